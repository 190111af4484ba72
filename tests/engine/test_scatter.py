"""The compiled kernel of scatter sums against its pure twin, at sizes that need several threads and tasks."""

import random
from collections.abc import Callable

import pytest
import torch

from tests.engine.arithmetic_cases import Maker
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic, scatter
from tiebreak.engine.arithmetic.scatter import plan_scatter
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ScatterParams

pytestmark = pytest.mark.skipif(scatter.build().library is None, reason="needs a C compiler")


def embedding(keys: int, width: int, count: int) -> Instruction:
    """Gradient of an embedding: `count` rows of `width` go to the rows that `count` indices name."""
    return Instruction(
        opcode=Opcode.SCATTER_SUM,
        dtype=DType.F32,
        shape=(keys, width),
        reduction=(count,),
        operands=(Access(0, 0, (0, 1, width)), Access(1, 0, (0, 0, 1))),
        params=ScatterParams(match=(1, 0)),
    )


def pooling(images: int, side: int, out: int) -> Instruction:
    """Gradient of max-pool: in each image `out` sources go to places of a side x side box."""
    return Instruction(
        opcode=Opcode.SCATTER_SUM,
        dtype=DType.F32,
        shape=(images, side, side),
        reduction=(out,),
        operands=(Access(0, 0, (out, 0, 0, 1)), Access(1, 0, (out, 0, 0, 1))),
        params=ScatterParams(match=(0, side, 1)),
    )


@pytest.mark.parametrize(
    ("instruction", "sources", "indices", "top"),
    [
        (embedding(50, 700, 300), 700 * 300, 300, 50),
        (embedding(5000, 300, 500), 300 * 500, 500, 4999),
        pytest.param(embedding(3, 1000, 900), 1000 * 900, 900, 2, marks=pytest.mark.slow),
        (pooling(70, 30, 400), 70 * 400, 70 * 400, 905),
    ],
)
@pytest.mark.parametrize("style", slow_except(["gauss", "ties", "any"], "ties"))
def test_against_the_pure_twin(
    instruction: Instruction,
    sources: int,
    indices: int,
    top: int,
    style: str,
    monkeypatch: pytest.MonkeyPatch,
    cases: Callable[[], None],
) -> None:
    make = Maker(random.Random(sources))
    source = make.tensor(DType.F32, sources, style)
    index = torch.randint(-1, top + 1, (indices,), generator=torch.Generator().manual_seed(1))
    assert plan_scatter(instruction).tables is not None
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    pure = Arithmetic()
    right = pure.execute(instruction, [source, index], 0)
    monkeypatch.setenv("TIEBREAK_NATIVE", "1")
    before = torch.get_num_threads()
    try:
        for threads, permute in ((1, None), (2, None), (3, 4)):
            torch.set_num_threads(threads)
            compiled = Arithmetic(permute=permute)
            found = compiled.execute(instruction, [source, index], 0)
            assert torch.equal(found.nan_to_num(7.0), right.nan_to_num(7.0))
            assert torch.equal(found.isnan(), right.isnan())
            counts = [a.stats.of("scatter_sum") for a in (pure, compiled)]
            assert counts[0].elements == counts[1].elements
            cases()
    finally:
        torch.set_num_threads(before)
