"""Bytes that a step on a GPU reads, writes and holds, counted in its plan: docs/speed.md has the figures."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, prod

import pytest
import torch

from tiebreak.engine.arithmetic.gpu.sums import FEWEST
from tiebreak.engine.arithmetic.plan.chains import Unit
from tiebreak.engine.arithmetic.plan.sums import plan_tables
from tiebreak.engine.arithmetic.plan.ziv import DENSE
from tiebreak.engine.capture.captured import capture_in_place
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.schedule import plan, replacements
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, WindowParams
from tiebreak.protocol.program.program import Program

PROGRAMS = 4 * 132
"""The programs that give an H100 work."""
EAGER = 14.18
"""GiB at the peak of eager FP32 on an H100: GPT-2 124M, 8 x 1024 tokens."""


def planned(program: Program) -> tuple[Unit, ...]:
    return plan(program, MapFunction, again=True, prologues=True)


def bytes_of(program: Program, value: int) -> int:
    return program.body[value].numel * program.body[value].dtype.size


def elements_read(i: Instruction, number: int, access: Access) -> int:
    """How many elements of an operand an instruction reads, at most."""
    space = i.index_space if i.opcode == Opcode.REDUCE else i.shape
    if i.opcode == Opcode.WINDOW and number == 0:
        assert isinstance(i.params, WindowParams)
        space = i.params.extents
    if i.opcode in (Opcode.GATHER, Opcode.SCATTER_SUM):
        return prod(space) if i.opcode == Opcode.GATHER else 1 << 62
    return prod(size for size, stride in zip(space, access.strides, strict=True) if stride)


def moved_by(program: Program, unit: Unit) -> tuple[int, int]:
    """Bytes that a unit reads and writes, each element that it reads once."""
    read = Counter[int]()
    for n in unit.members:
        for number, access in enumerate(program.body[n].operands):
            if access.value not in unit.members:
                read[access.value] += elements_read(program.body[n], number, access)
    sizes = {n: min(program.body[n].numel, count) * program.body[n].dtype.size for n, count in read.items()}
    return sum(sizes.values()), sum(bytes_of(program, n) for n in unit.outputs)


def moved(program: Program, units: Sequence[Unit]) -> Counter[str]:
    """Bytes read and written by the units of each kind."""
    found = Counter[str]()
    for unit in units:
        first, last = (program.body[unit.members[at]] for at in (0, -1))
        if first.opcode == Opcode.SOURCE:
            continue
        kind = "chains" if last.opcode in (Opcode.MAP, Opcode.RANDOM, Opcode.IOTA) else "others"
        if last.opcode == Opcode.REDUCE:
            kind = "prologues" if len(unit.members) > 1 else "products" if len(last.operands) > 1 else "sums"
        found[kind] += sum(moved_by(program, unit))
    return found


def scratch(i: Instruction) -> int:
    """Bytes that a sum takes for its list, FP64 sums of parts, and norms; a scatter sum for sums and digits."""
    if i.opcode == Opcode.SCATTER_SUM:
        return i.numel * (16 + (12 * 8 + 4) // 2)
    if i.opcode != Opcode.REDUCE or not i.is_f32_sum or (tables := plan_tables(i)) is None:
        return 0
    first, last = tables.operands[0], tables.operands[-1]
    rows, columns = (len(first.own), len(last.own)) if tables.out else (1, 1)
    batches = len(first.batch) * tables.run_batch
    tiles = batches * ceil(rows / 128) * ceil(columns / 64) if tables.out else ceil(batches / 8)
    parts = max(1, min(ceil(PROGRAMS / tiles), tables.terms // FEWEST))
    fp64 = (parts * i.numel if parts > 1 else 0) + parts * batches * (rows + columns)
    return 4 * min(i.numel, i.numel // DENSE + PROGRAMS) + 8 * fp64


def held(program: Program, units: Sequence[Unit], *, values: bool = True) -> int:
    """The most bytes that values take at any time beside the state, with what sums take while they are computed.

    values: whether results take the memory of other values, and not of old entries of the state only.
    """
    takes, alive, most = replacements(program, units, MapFunction, values=values), dict[int, int](), 0
    inputs = {n for n, i in enumerate(program.body) if i.opcode == Opcode.SOURCE}
    for unit in units:
        taken = {n: takes[n] for n in unit.outputs if n in takes}
        alive |= {n: 0 if n in inputs | taken.keys() else bytes_of(program, n) for n in unit.outputs}
        most = max(most, sum(alive.values()) + scratch(program.body[unit.members[-1]]))
        alive |= {n: alive.pop(old, 0) for n, old in taken.items()}
        for dead in {n for dying in unit.dying for n in dying}:
            alive.pop(dead, None)
    return most


def gpt2(layers: int, tokens: int, **sizes: int) -> Program:
    real_models = pytest.importorskip("benchmarks.real_models")
    with torch.random.fork_rng(devices=[]):
        model = real_models._gpt2(n_layer=layers, **sizes)
        task = real_models._text("gpt2", model, model.config.vocab_size, 8, tokens, steps=1)
    return capture_in_place(task, frozenset()).program


def test_counted_bytes_of_a_small_step_equal_a_count_by_hand() -> None:
    """Two products and what lies between them, of 64 x 64 numbers, one row of which is read everywhere."""
    b = Builder()
    weight, row = b.state("w", DType.F32, (64, 64)), b.state("row", DType.F32, (3, 64))
    first = b.matmul(weight, weight)
    half = b.mul(first, row.slice(0, 1, 2).expand((64, 64)))
    program = b.finish({"w": b.matmul(half, weight), "row": row}, b.sum(half))
    units, size, lists, norms = planned(program), 4 * 64 * 64, 4 * (64 * 64 // DENSE + PROGRAMS), 8 * 2 * 64
    loss = 2 * 4  # is read and written once more at the end
    assert moved(program, units) == {"products": 5 * size, "chains": 2 * size + 4 * 64 + loss, "sums": size + 4}
    assert held(program, units) == held(program, units, values=False) == 2 * size + lists + norms
    between = units[:4]
    assert held(program, between) == size + lists + norms
    assert held(program, between, values=False) == 2 * size


@pytest.mark.slow
def test_gpt2_holds_little_more_memory_than_eager_pytorch(cases: Callable[[int], None]) -> None:
    """GPT-2 124M on 8 x 1024 tokens: with the second state of a checkpoint, at most 1.3 times eager FP32's memory."""
    program = gpt2(12, 1024)
    units, usual = planned(program), plan(program, MapFunction)
    now, before = moved(program, units), moved(program, usual)
    assert now["chains"] + now["prologues"] < 95e9 < 141e9 < before["chains"]
    assert now.total() < 157e9 < 236e9 < before.total()
    entries = [*program.state_spec().values(), *program.data_spec().values()]
    state = sum(prod(shape) * dtype.size for dtype, shape in entries)
    assert held(program, units) + 2 * state < 1.3 * EAGER * 2**30
    cases(len(units))
