"""Scatter sums and permutations."""

import random
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

import torch

from tests.engine.arithmetic_cases import STYLES, Maker, check, random_scatter, scatter_of
from tests.engine.interpreted import Mutants, NoReads, Suite, killed, main, tried
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import indices as launching
from tiebreak.engine.arithmetic.gpu.kernels import near_ties, rounding
from tiebreak.engine.arithmetic.gpu.kernels import random as draw_kernels
from tiebreak.engine.arithmetic.gpu.kernels import scatter as scatter_kernels
from tiebreak.engine.arithmetic.plain.scatter import PlainScatter
from tiebreak.engine.data.tensors import from_bytes
from tiebreak.engine.run import qualify
from tiebreak.protocol.program.isa import Access, DType, Instruction, Opcode, ShuffleParams
from tiebreak.protocol.program.reference import pack

T = TypeVar("T")
OUTSIDE = (-1, -(1 << 63), (1 << 63) - 1, 1 << 32)


def one_scatter(seed: int, precision: int, style: str) -> Arithmetic:
    """Any access maps, hostile values and indices, in order and permuted, by the kernels alone."""
    r = random.Random(seed)
    i, (source, index) = random_scatter(Maker(r))
    source = Maker(r).tensor(DType.F32, source.numel(), style)
    for at in range(index.numel()):
        index[at] = r.choice(OUTSIDE) if r.random() < 0.1 else index[at]
    arithmetic = Arithmetic(permute=seed if seed % 4 == 0 else None, precision=precision)
    with mock.patch.object(PlainScatter, "run", side_effect=AssertionError("expected the kernels")):
        check(arithmetic, i, [source, index])
    return arithmetic


def scatters(examples: int) -> int:
    def holds(seed: int, precision: int) -> int:
        return one_scatter(seed, precision, STYLES[seed % len(STYLES)]).stats.of("scatter_sum").elements

    return tried(examples, holds)


def settles(examples: int) -> int:
    """Fixed point alone gives every finite result where errors decide nothing."""
    with mock.patch.object(launching, "coefficient", return_value=2.0**20):
        made = [one_scatter(seed, 16 + seed % 17, STYLES[seed % len(STYLES)]) for seed in range(examples)]
    settled = sum(a.stats.of("scatter_sum").undecided_twice for a in made)
    assert settled > examples
    return settled


def leaves_nothing_open() -> int:
    """Small whole numbers, whose sums are far from any middle: the test decides all of them."""
    arithmetic, count = Arithmetic(), 90
    i = scatter_of((5,), (count,), Access(0, 0, (0, 1)), Access(1, 0, (0, 1)), (1,))
    check(arithmetic, i, [torch.arange(count) % 7 - 3.0, torch.arange(count) % 5])
    assert arithmetic.stats.of("scatter_sum").undecided == 0
    return i.numel


def keeps_to_its_room() -> int:
    """A list of two gets two of five open sums, which are right; the others are NaN."""
    i = scatter_of((5,), (90,), Access(0, 0, (0, 1)), Access(1, 0, (0, 1)), (1,))
    operands = [torch.arange(90) % 7 - 3.0 + 2.0**-20, torch.arange(90) % 5]
    right = Arithmetic(precision=16).execute(i, operands, 0)
    with (
        mock.patch.object(launching, "coefficient", return_value=2.0**20),
        mock.patch.object(launching, "min", return_value=2, create=True),
    ):
        found = Arithmetic(precision=16).execute(i, operands, 0)
    listed = ~found.isnan()
    assert int(listed.sum()) == 2
    assert torch.equal(found[listed], right[listed])
    return i.numel


def hard_scatters(precision: int = 32) -> int:
    """Qualification's: ties, next to ties, cancellation, NaN, and indices outside the box."""
    arithmetic = Arithmetic(precision=precision)
    ran = sum(qualify._compare(arithmetic, case, qualify._right(case, precision)) for case in qualify._scatters())
    assert 0 < arithmetic.stats.of("scatter_sum").undecided < ran
    return ran


def waits_for_nothing() -> int:
    """Scatter sums, with open elements and without, leave the host nothing to read."""
    ran = 0
    for case in qualify._scatters():
        arithmetic, operands = Arithmetic(), [from_bytes(pack(t, x), t, (len(x),)) for t, x in case.operands]
        for _ in range(2):  # tables are on the device from the first call on
            with NoReads():
                arithmetic.execute(case.instruction, operands, 0)
        ran += arithmetic.stats.of("scatter_sum").undecided_twice
    return ran


def permuted(examples: int) -> int:
    ran = 0
    for n in range(examples):
        r = random.Random(n)
        size = r.choice([1, 2, 3, 5, 17, 64, 1000, 1 << 40])
        index = [*range(min(size, 20)), size - 1, size, *OUTSIDE]
        accesses = Access(0, 0, (1,)), Access(1, 0, (0,)), Access(2, 0, (r.randint(0, 1),))
        params = ShuffleParams(n=size, stream=r.choice([0, 1 << 31, (1 << 32) - 1]))
        i = Instruction(opcode=Opcode.SHUFFLE, dtype=DType.I64, shape=(len(index),), operands=accesses, params=params)
        operands = [torch.tensor(index), torch.tensor([r.getrandbits(63)]), torch.arange(len(index)) - 3]
        found = check(Arithmetic(), i, operands)
        ran += len(found)
    return ran


SCATTER_MUTANTS: Mutants = [
    ("nothing is open", hard_scatters, "~(high <= low)", "~(high >= low)"),
    ("the last index outside", hard_scatters, "(key < box)", "(key < box - 1)"),
    ("infinity is finite", hard_scatters, 'e < float("inf")', 'e <= float("inf")'),
    ("index 0 outside", hard_scatters, "(key >= 0)", "(key >= 1)"),
    ("sizes with a sign", hard_scatters, "tl.abs(wide)", "wide"),
    ("one round of tasks", hard_scatters, "tasks), tl.num_programs(0)", "tasks), tasks + 1"),
    ("no high digit", lambda: settles(9), "used & (high != 0)", "used & (high < 0)"),
    ("digits without a sign", lambda: settles(9), "tl.where(bits < 0, -low, low)", "low"),
    ("digits that begin at 1", lambda: settles(9), "tl.store(digit, 0,", "tl.store(digit, 1,"),
    ("another unit", lambda: settles(9), "normal + 5 ", "normal + 4 "),
    ("everything is open", leaves_nothing_open, "~(high <= low)", "~(high < low)"),
]  # fmt: skip
DRAW_MUTANTS: Mutants = [
    ("nine rounds", lambda: permuted(6), "range(10)", "range(9)"),
    ("no walk", lambda: permuted(6), "0) > 0:", "0) > 1:"),
    ("epochs of the first index", lambda: permuted(6),
     "tl.load(epoch + at, mask=inside, other=0)", "tl.load(epoch + 0 * at)"),
    ("words that do not cross", lambda: permuted(6), "high1 ^ c1 ^ k0", "high0 ^ c1 ^ k0"),
    ("indices outside", lambda: permuted(3), "tl.where(inside, x, -1)", "x"),
]  # fmt: skip


def within(check: Callable[..., T], *arguments: object) -> Callable[[], T]:
    """A check in small blocks, by one program."""

    def run() -> T:
        block = 16 if check is permuted else 64
        options = mock.patch.dict(launching.OPTIONS, BLOCK=block)
        with options, mock.patch.object(launching, "programs", return_value=1):
            return check(*arguments)

    return run


SUITE = Suite(
    fast={
        "scatters": within(scatters, 2), "settled": within(settles, 2), "room": within(keeps_to_its_room),
        "permuted": within(permuted, 1),
    },
    slow={
        "scatters": within(scatters, 40), "settled": within(settles, 20), "decided": within(leaves_nothing_open),
        "no reads": within(waits_for_nothing), "permuted": within(permuted, 20), "hard": within(hard_scatters),
        "hard, 16 bits": within(hard_scatters, 16),
    },
    mutants=SCATTER_MUTANTS + DRAW_MUTANTS,
    killed=within(lambda: killed(SCATTER_MUTANTS, launching, rounding, near_ties, scatter_kernels)
                  | killed(DRAW_MUTANTS, launching, draw_kernels)),
)  # fmt: skip

if __name__ == "__main__":
    main(SUITE)
