"""Series of units that one call of C executes: the bits of single units, and tables that C refuses."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.arithmetic_cases import Maker, check, extreme_of
from tests.engine.lowering_bench import stepped
from tiebreak.api.builtin.loader import load_task
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.c import units
from tiebreak.engine.arithmetic.c.threads import limited
from tiebreak.engine.arithmetic.c.units import LONGEST, UnitSeries
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data.tensors import tensor_bytes
from tiebreak.engine.run.interpreter import Interpreter, Planned
from tiebreak.protocol.program.isa import Access, DType, GatherParams, Instruction, Opcode, ReduceFunction, row_major

pytestmark = pytest.mark.skipif(units.build().library is None, reason="needs a C compiler")
COUNTED = ("elements", "undecided", "undecided_twice", "double_rounded")


@pytest.fixture(scope="module")
def digits() -> Captured:
    return capture_task(load_task("digits"))


def series_of(machine: Interpreter) -> list[UnitSeries]:
    return [series for _, series in machine.work if isinstance(series, UnitSeries)]


@pytest.mark.parametrize("permute", [None, 7])
@pytest.mark.parametrize("threads", [1, 3])
def test_series_compute_the_bits_and_counts_of_single_units(
    permute: int | None, threads: int, digits: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, counts = [], []
    monkeypatch.setattr(units, "SHARED", 1)
    for joins in (True, False):
        monkeypatch.setattr(Interpreter, "joins", joins)
        arithmetic = Arithmetic(permute=permute)
        own = replace(digits, state={name: x.clone() for name, x in digits.state.items()})
        with limited(threads):
            steps = [*islice(stepped(own, arithmetic, donate=True), 3)]
        found.append([{name: bytes(tensor_bytes(x)) for name, x in step.state.items()} for step in steps[-1:]])
        kinds = arithmetic.stats.kinds
        counts.append({kind: [getattr(kinds[kind], name) for name in COUNTED] for kind in sorted(kinds)})
    assert found[0] == found[1]
    assert counts[0] == counts[1] or permute is not None
    assert counts[0]["reduce.sum.products"][0] == counts[1]["reduce.sum.products"][0]


def test_series_hold_all_units_that_one_thread_computes(digits: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, alone = Interpreter(digits.program, Arithmetic()), list[str]()
    execute = Planned.execute

    def noted(self: Planned, unit: Any, chain: Any) -> None:
        alone.append(digits.program.body[unit.members[0]].opcode.name)
        execute(self, unit, chain)

    monkeypatch.setattr(Planned, "execute", noted)
    machine.step(1, machine.to_device(digits.state), machine.place_data(digits.data))
    assert sorted(alone) == ["MAP", "REDUCE", "SHUFFLE"]
    for limit, small in (("LONGEST", LONGEST >> 8), ("RESULTS", 8)):
        with monkeypatch.context() as patch:
            patch.setattr(units, limit, small)
            assert len(series_of(Interpreter(digits.program, Arithmetic()))) > len(series_of(machine))


BAD: dict[str, tuple[str, int, int]] = {
    "an unknown kernel": ("_words", 0, 6),
    "a negative kernel": ("_words", 0, -1),
    "no such plan": ("_words", 1, 1 << 40),
    "no such total": ("_words", 2, 99),
    "no such counter": ("_words", 4, 1 << 40),
    "too few touches": ("_words", 6, 0),
    "more touches than words": ("_words", 6, 400),
    "no such memory": ("_words", 7, 1 << 40),
    "before the memory": ("_words", 8, -4),
    "beyond the memory": ("_words", 9, 1 << 40),
    "smaller memory": ("_bytes", 0, 3),
}


@pytest.mark.parametrize("name", BAD)
def test_c_refuses_a_table_that_points_outside(name: str, digits: Captured) -> None:
    machine = Interpreter(digits.program, Arithmetic())
    series = series_of(machine)[-1]
    array, at, value = BAD[name]
    words = getattr(series, array)
    if array == "_words" and words[0] == units.CHAIN and at == 6:
        value = -1 if value == 0 else value
    words[at if array == "_words" else int(series._words[7])] = value
    with pytest.raises(ValueError, match="expected a table of units, got one that C refuses"):
        machine.step(1, machine.to_device(digits.state), machine.place_data(digits.data))


def test_threads_that_come_late_or_never_are_not_waited_for(
    digits: Captured, monkeypatch: pytest.MonkeyPatch, cases: Callable[[int], None]
) -> None:
    monkeypatch.setattr(units, "SHARED", 1)
    right = next(stepped(digits)).loss_bits
    with limited(3):
        machine = Interpreter(digits.program, Arithmetic())
        state, data = machine.to_device(digits.state), machine.place_data(digits.data)
        assert any(series._workers == 3 for series in series_of(machine))
        for absent in (lambda work, _: [work()], lambda work, _: [work(), *delayed(work)]):
            monkeypatch.setattr(units, "together", absent)
            assert machine.step(1, state, data).loss_bits == right
            cases(1)


def delayed(work: Callable[[], int]) -> list[int]:
    """What a thread returns that comes when all is done."""
    with ThreadPoolExecutor(1) as pool:
        return [pool.submit(work).result(30)]


def test_a_cut_table_is_refused(digits: Captured, cases: Callable[[int], None]) -> None:
    machine = Interpreter(digits.program, Arithmetic())
    series = series_of(machine)[0]
    for words in range(1, 7 + 3 * int(series._words[6])):
        series._table.table_count = words
        with pytest.raises(ValueError, match="that C refuses"):
            machine.step(1, machine.to_device(digits.state), machine.place_data(digits.data))
        cases(words)


def big_gather(held: torch.dtype) -> tuple[Instruction, list[Tensor]]:
    """Rows of a table, some of them outside, of more elements than one thread moves at a time."""
    rows, width, bound = 3000, 70, 50
    i = Instruction(
        opcode=Opcode.GATHER, dtype=DType.F32, shape=(rows, width),
        params=GatherParams(index_stride=width, bound=bound),
        operands=(Access(0, 0, (0, 1)), Access(1, 0, (1, 0))),
    )  # fmt: skip
    index = torch.randint(-2, bound + 2, (rows,), generator=torch.Generator().manual_seed(3))
    return i, [torch.randn(bound * width).to(held), index]


@pytest.mark.parametrize("threads", [1, 3])
def test_gathers_on_any_threads_equal_those_of_torch(threads: int) -> None:
    """Also when the same instruction reads a table that is held in bfloat16, or no longer is."""
    arithmetic = Arithmetic()
    i, given = big_gather(torch.float32)
    for held in (torch.float32, torch.bfloat16, torch.float32):
        operands = [given[0].to(held), given[1]]
        with limited(threads):
            found = arithmetic.execute(i, operands, 0)
        assert found.dtype == held
        assert torch.equal(found.nan_to_num(7.0), Arithmetic(compiled=False).execute(i, operands, 0).nan_to_num(7.0))
        assert found.isnan().any(1).sum() == ((operands[1] < 0) | (operands[1] >= 50)).sum()
    with pytest.raises(ValueError, match=r"operand 1 in torch.int64"):
        arithmetic.execute(i, [given[0], given[1].int()], 0)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(16, 70), st.sampled_from([None, 0x7FC00000, 0x7F800000, 0x80000000]))
def test_the_greatest_of_a_run_is_that_of_the_integer_reference(seed: int, run: int, special: int | None) -> None:
    make = Maker(random.Random(seed))
    shape, reduction = (make.random.randint(1, 5),), (make.random.randint(1, 3), run)
    i = extreme_of(ReduceFunction.MAX, shape, reduction, row_major((*shape, *reduction)))
    x = make.tensor(DType.F32, i.numel * reduction[0] * run)
    if special is not None:
        x.view(torch.int32)[make.random.randrange(len(x))] = special - (special >> 31 << 32)
    check(Arithmetic(), i, [x])


def test_an_operand_that_does_not_fit_is_refused(digits: Captured, cases: Callable[[int], None]) -> None:
    machine = Interpreter(digits.program, Arithmetic())
    state, data = machine.to_device(digits.state), machine.place_data(digits.data)
    for wrong in (lambda x: x.double(), lambda x: x.reshape(-1)[:-1], lambda x: torch.stack((x, x), -1)[..., 0]):
        with pytest.raises(ValueError, match="in a row on the CPU"):
            machine.step(1, state, {name: wrong(x) if x.is_floating_point() else x for name, x in data.items()})
        cases(1)
