"""Sums and extremes."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from math import ceil, floor, prod
from operator import mul
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from triton import language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.engine.arithmetic_cases import (
    STYLES,
    Maker,
    check,
    elements_of,
    expected,
    extreme_of,
    map_of,
    random_reduction,
    sum_over,
    tensor_of,
)
from tests.engine.interpreted import Mutants, NoReads, Suite, changed, killed, main, ran_by, tried
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import operands as reading
from tiebreak.engine.arithmetic.gpu import sums as launching
from tiebreak.engine.arithmetic.gpu.kernels import near_ties, products, rounding
from tiebreak.engine.arithmetic.gpu.kernels import sums as summing
from tiebreak.engine.arithmetic.plain import indexing
from tiebreak.engine.arithmetic.plain.sums import PlainSum
from tiebreak.engine.arithmetic.plan import ziv
from tiebreak.engine.arithmetic.plan.sums import plan_tables
from tiebreak.engine.run import qualify
from tiebreak.protocol.numbers.float32 import round_ratio
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, RandomParams, ReduceFunction
from tiebreak.protocol.program.rounding import SumKind

Form = Callable[[random.Random], tuple[Instruction, list[int]]]
"""Makes an instruction of some form, and tells how many numbers each operand has."""
EXTREMES = ReduceFunction.MAX, ReduceFunction.ARGMAX
SMALL = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "APART": False}
"""Blocks that small results fill several times."""


@contextmanager
def small(flush: int = 32, programs: int = 4) -> Iterator[None]:
    """Kernels with small blocks, and with flushes and parts where there are few terms."""
    changes = {
        "FLUSH": flush, "FEWEST": 2 * flush, "tile": lambda *_: SMALL, "programs": lambda _: programs,
        "settling": lambda *_, **__: {"BLOCK_M": 64, "BLOCK_K": 32}, "NORMS": {"BLOCK_M": 32, "BLOCK_K": 16},
    }  # fmt: skip
    with mock.patch.multiple(launching, **changes):
        yield


@contextmanager
def tabled() -> Iterator[None]:
    """All products from tables."""
    with ExitStack() as stack:
        for module in (launching, reading):
            stack.enter_context(mock.patch.object(module, "progression", return_value=None))
        yield


@contextmanager
def replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Kernels that call `function` in place of another, which is its first argument."""
    modules = set(map(launching.kernels, ("sums", "products", "near_ties")))  # a mutant is all of them
    with ExitStack() as stack:
        for module in modules:
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, partial(function, getattr(module, name))))
        yield


def undecided(_: Any, *arguments: Any) -> Any:
    return (tl.full((arguments[-2],), float("nan"), tl.float64),) * 3


def in_fixed_point() -> Any:
    """Doubled precision decides nothing."""
    return replaced("add_doubled", undecided)


@contextmanager
def in_doubled_precision() -> Iterator[None]:
    """Everything is listed, and no product is computed again."""
    with mock.patch.object(launching, "MANY", 0), replaced("finish", lambda f, c, e, *rest: f(c, e + np.inf, *rest)):
        yield


def by_tables(check: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with tabled():
            return check()

    return run


# ---- instructions ----


def affine(r: random.Random) -> tuple[Instruction, list[int]]:
    """Products that `product` computes: four layouts, gaps between rows and batches, any first places.

    Half of all numbers are multiples of 4, so that all kinds of promises are given and each is missing now and then.
    """

    def number(*some: int) -> int:
        return r.choice(some) if r.random() < 0.5 else r.choice([4, 8, 16, 20, 36])

    batch, m, n, k = r.randint(1, 3), number(1, 5, 18), number(1, 5, 18), number(1, 7, 33, 150)
    sizes, accesses = [], []
    for operand, rows in enumerate((m, n)):
        along, first = r.random() < 0.5, r.choice([0, 4, 3])
        step = (k if along else rows) + r.choice([0, 0, 4, 3, 2])
        last = (rows if along else k) * step
        apart = last + r.choice([0, 0, 4, 1])
        own, term = (step, 1) if along else (1, step)
        rest = (own, 0) if operand == 0 else (0, own)
        accesses.append(Access(operand, first, (apart, *rest, term)))
        sizes.append(first + (batch - 1) * apart + last)
    order = [0, 1, 2] if r.random() < 0.7 else [1, 0, 2]  # rows of the result lie apart if batches lie between them
    shape = [(batch, m, n)[d] for d in order]
    turned = [Access(a.value, a.offset, (*(a.strides[d] for d in order), a.strides[3])) for a in accesses]
    return sum_over((*shape,), (k,), *turned), sizes


def convolution(r: random.Random) -> tuple[Instruction, list[int]]:
    """A convolution or a gradient of one: any stride, dilation, groups, remainder of the width by 4, and padding."""
    images, groups, inner, outer = r.choice([1, 2, 4]), r.choice([1, 1, 2]), r.choice([3, 4, 8]), r.choice([4, 5, 8])
    size, step, apart = r.choice([1, 2, 3]), r.choice([1, 1, 2]), r.choice([1, 1, 2])
    height, width, margin = r.randint(1, 3), r.randint(2, 5), r.choice([0, 0, 1, 2])
    wide = (width - 1) * step + (size - 1) * apart + 1 + margin
    area = ((height - 1) * step + (size - 1) * apart + 1 + margin) * wide
    taps, first = size * size, r.choice([0, 0, 2, 4])

    def image(channels: int) -> tuple[int, ...]:
        """The strides by image, group, channel, row and column, of steps, and by the filter's row and column."""
        return groups * channels * area, channels * area, area, step * wide, step, apart * wide, apart

    match r.randrange(3):
        case 0:  # (image, group, outer, row, column), over (inner, taps)
            n, g, c, *pixels = image(inner)
            shape, terms = (images, groups, outer, height, width), (inner, size, size)
            read = (n, g, 0, *pixels[:2], c, *pixels[2:]), (0, outer * inner * taps, inner * taps, 0, 0, taps, size, 1)
            sizes = [images * groups * inner * area, groups * outer * inner * taps]
        case 1:  # by images: the same with filters that are reversed, whose channels are the other way round
            n, g, c, *pixels = image(outer)
            shape, terms = (images, groups, inner, height, width), (outer, size, size)
            filters = (0, outer * inner * taps, taps, 0, 0, inner * taps, -size, -1)
            read = (n, g, 0, *pixels[:2], c, *pixels[2:]), filters
            sizes = [images * groups * outer * area, groups * outer * inner * taps]
        case _:  # by filters: (group, outer, inner, taps), over (image, row, column)
            n, g, c, *pixels = image(inner)
            shape, terms = (groups, outer, inner, size, size), (images, height, width)
            plain = height * width
            read = (
                (g, 0, c, *pixels[2:], n, *pixels[:2]),
                (outer * plain, plain, 0, 0, 0, groups * outer * plain, width, 1),
            )
            sizes = [images * groups * inner * area, images * groups * outer * plain]
    offsets = [first, taps - 1 if min(read[1]) < 0 else 0]
    sizes = [size + offset for size, offset in zip(sizes, offsets, strict=True)]
    back = [r.choice([1, 1, 1, -1]) for _ in (*shape, *terms)]  # the ways in which dims are taken
    for at, strides in enumerate(read):
        steps = zip(strides, back, (*shape, *terms), strict=True)
        offsets[at] += sum(stride * (size - 1) for stride, way, size in steps if way < 0)
    order = r.choice([(0, 1), (1, 0)])
    turned = [tuple(map(mul, strides, back)) for strides in read]
    accesses = (Access(at, offsets[o], turned[o]) for at, o in enumerate(order))
    return sum_over(shape, terms, *accesses), [sizes[o] for o in order]


def plain(r: random.Random) -> tuple[Instruction, list[int]]:
    rows, columns = r.randint(1, 40), r.choice([3, 40, 300])
    match r.randrange(3):
        case 0:
            return sum_over((rows,), (columns,), Access(0, 0, (columns, 1))), [rows * columns]
        case 1:
            return sum_over((columns,), (rows,), Access(0, 0, (1, columns))), [rows * columns]
        case _:
            return sum_over((), (rows, columns), Access(0, 0, (columns, 1))), [rows * columns]


# ---- checks ----


@cache
def vectors(precision: int) -> list[tuple[Any, tuple[int, ...]]]:
    """Qualification's cases for sums, with the right answers."""
    cases = (*qualify._sums(), *qualify._products())
    return [(case, qualify._right(case, precision)) for case in cases]


def conforms(precision: int = 32, logging: ziv.Logging | None = None) -> Arithmetic:
    arithmetic = Arithmetic(precision=precision, logging=logging)
    for case, right in vectors(precision):
        qualify._compare(arithmetic, case, right)
    return arithmetic


def counted(precision: int = 32) -> int:
    return sum(counts.undecided for counts in conforms(precision).stats.kinds.values())


def logs() -> int:
    logging = ziv.Logging(dict.fromkeys(SumKind, 2.0**33), dict.fromkeys(SumKind, 2))
    return sum(counts.logged for counts in conforms(16, logging).stats.kinds.values())


def tables_of(i: Instruction) -> Any:
    tables = plan_tables(i)
    assert tables is not None
    return tables


def promises(layout: Any = reading.OperandLayout) -> int:
    """What `product` tells the compiler, compared with the addresses in the tables.

    Neighbours in a run, counted from a multiple of its length, lie side by side. If the unit is 4, four neighbours lie
    at a multiple of 16 bytes from the operand's first number, side by side, and all or none of them are there. Where
    that is not promised, one of these fails. Tables that are progressions are not read.
    """
    given = []
    for seed in range(1200):
        i, _ = (affine, convolution)[seed % 2](random.Random(seed))
        for operand in tables_of(i).operands:
            read = layout.of(operand.batch, operand.own, operand.k)
            places = operand.batch[:, None, None] + operand.own[:, None] + operand.k
            places = places if read.along else places.transpose(0, 2, 1)
            left = -places.shape[2] % 4
            fours = np.pad(places, ((0, 0), (0, 0), (0, left)), constant_values=-1).reshape(-1, 4)
            holds = not left and (fours[:, 0] % 4 == 0).all() and (fours == fours[:, :1] + np.arange(4)).all()
            if read.step is None:
                assert seed % 2, i
                runs = places.reshape(-1, read.run)
                assert places.shape[2] % read.run == 0
                assert (runs == runs[:, :1] + np.arange(read.run)).all(), (i, operand)
            else:
                assert (np.diff(places, axis=1) == read.step).all()
                assert (np.diff(places, axis=2) == 1).all()
            assert (read.unit == 4) <= bool(holds), (i, operand)
            given.append((read.step is None, read.unit == 4, bool(holds)))
    for tabled in (False, True):
        some = [(unit, holds) for by_table, unit, holds in given if by_table is tabled]
        assert some.count((False, True)) <= len(some) // 20, tabled  # a single row's step may be anything
        assert some.count((True, True)) > len(some) // 20, tabled
    return len(given)


def views(examples: int) -> int:
    """Any access maps: strides of any sign, overlapping, ignored dims."""

    def holds(seed: int, precision: int) -> int:
        made = random_reduction(Maker(random.Random(seed)), ReduceFunction.SUM, DType.F32)
        return len(check(Arithmetic(precision=precision), *made))

    return tried(examples, holds)


def partial_sums(examples: int, *forms: Form) -> int:
    """What is left for other workers lies within its own bound of the exact sums."""
    ran = 0
    for _, i, operands in drawn(examples, *(forms or (affine, plain))):
        arithmetic = Arithmetic()
        part = arithmetic.backend.partial(i)(operands)
        factor = Fraction(ziv.coefficient(part.roundings))
        c = part.in_order(part.sums).tolist()
        if len(part.sizes) == 1:
            e = part.in_order(part.sizes[0]).tolist()
        else:
            rows, columns = (size.sqrt() for size in part.sizes)
            e = part.errors(rows, columns, 0, i.numel).tolist()
        for got, bound, exact in zip(c, e, arithmetic.exact_sums(i, operands, range(i.numel)), strict=True):
            if exact is not None:
                assert abs(Fraction(got) - exact[0] * Fraction(2) ** exact[1]) <= factor * Fraction(bound)
                ran += 1
    return ran


def drawn(examples: int, *forms: Form) -> Iterator[tuple[int, Instruction, list[Tensor]]]:
    """Seeds, each with an instruction of one of some forms, and operands of hostile values."""
    for seed in range(examples):
        r = random.Random(seed)
        i, sizes = r.choice(forms)(r)
        yield seed, i, [Maker(r).tensor(DType.F32, size, STYLES[seed % len(STYLES)]) for size in sizes]


def hostile(form: Form = affine, examples: int = 20) -> int:
    """Instructions of a form, with hostile values, in order and permuted, at every precision."""
    return sum(
        len(check(Arithmetic(permute=seed if seed % 4 == 3 else None, precision=32 - seed % 17), i, x))
        for seed, i, x in drawn(examples, form)
    )


def counts_in_fours() -> int:
    """Rows and columns that are no multiples of 4 where terms are, and the other way round."""
    ran = 0
    for sizes, a, b in (((5, 5, 8), (8, 0, 1), (0, 8, 1)), ((8, 8, 5), (1, 0, 8), (0, 1, 8))):
        m, n, k = sizes
        i = sum_over((m, n), (k,), Access(0, 0, a), Access(1, 0, b))
        assert [reading.OperandLayout.of(o.batch, o.own, o.k).unit for o in tables_of(i).operands] == [4, 4]
        arithmetic = Arithmetic()
        ran += len(check(arithmetic, i, [torch.arange(40.0) + 1, torch.arange(40.0) + 1]))
        assert arithmetic.stats.of("reduce.sum.products").undecided == 0  # as a row that is left out would be
    return ran


def settles_batches() -> int:
    """Two batches with rows of other sizes: with norms of the first for both, the hard second one was decided."""
    a, b = torch.zeros(2, 3, 40), torch.ones(2, 3, 40)
    a[0, :, :2], a[1, :, :3] = 2.0**-40, torch.tensor([1.0, 2.0**-24, 2.0**-80])
    i = sum_over((2, 3, 3), (40,), Access(0, 0, (120, 40, 0, 1)), Access(1, 0, (120, 0, 40, 1)))
    return len(check(Arithmetic(), i, [a.view(-1), b.view(-1)]))


def few(r: random.Random) -> tuple[Instruction, list[int]]:
    """Long sums, four or one, which programs divide, and forty, which they do not."""
    match r.randrange(3):
        case 0:
            return sum_over((2, 2), (150,), Access(0, 0, (150, 0, 1)), Access(1, 0, (0, 150, 1))), [300, 300]
        case 1:
            return sum_over((), (300,), Access(0, 0, (1,))), [300]
        case _:
            return sum_over((40,), (90,), Access(0, 0, (90, 1))), [3600]


def settles(examples: int, *forms: Form) -> int:
    """Fixed point alone gives every result that is not NaN or a sum of zeros, where errors decide nothing."""
    ran = 0
    known = mock.patch.object(launching, "coefficient", return_value=2.0**20), mock.patch.object(PlainSum, "run")
    with known[0], known[1], in_fixed_point():
        for seed, i, x in drawn(examples, *(forms or (affine, plain))):
            arithmetic = Arithmetic(permute=seed if seed % 3 else None, precision=32 - seed % 17)
            check(arithmetic, i, x)
            ran += sum(counts.undecided_twice for counts in arithmetic.stats.kinds.values())
    return ran


def cut_products(_: object, a: Any, b: Any, d: Any, *__: object) -> Any:
    """A matrix unit whose additions are not rounded but cut."""
    total = d.data
    with np.errstate(all="ignore"):
        for k in range(a.data.shape[1]):
            term = a.data[:, k : k + 1] * b.data[k : k + 1]
            rounded = total + term
            part = rounded - total
            error = (total - (rounded - part)) + (term - part)
            total = np.where(error * rounded < 0, np.nextafter(rounded, 0), rounded)
    return TensorHandle(total, d.dtype.scalar)


def sees_a_unit_that_cuts() -> int:
    """Qualification refuses it."""
    case = next(case for case in qualify._products() if case.instruction.shape == (64, 64))
    right = qualify._right(case, 32)
    qualify._compare(Arithmetic(), case, right)
    with mock.patch.object(InterpreterBuilder, "create_dot", cut_products), mock.patch.object(launching, "FLUSH", 256):
        try:
            qualify._compare(Arithmetic(), case, right)
        except qualify.ConfigurationError:
            return 1
    raise AssertionError("expected a unit that cuts to be refused")


def settles_far() -> int:
    """One of the last elements of a result of over 2^32, whose sum is added whole or in pieces."""
    m, n, i, j = 50257, 65536, 50000, 7

    def table(size: int, place: int, value: int) -> Tensor:
        return torch.zeros(size, dtype=torch.int64).index_fill_(0, torch.tensor(place), value)

    x, rows, batch = torch.tensor([9.0, 9.0, 9.0, 1.0, 2.0, 4.0]), table(m, i, 2), table(2, 1, 1)
    columns, terms = table(n, j, 2), torch.arange(3)
    options = {"MATRIX": True, "FIRST": 0, "SLICES": 12, "PRECISION": 32, "MANY": 0}
    blocks = launching.settling("cuda", 3, prologue=False)
    for room in (0, 1):
        out, listed, digits = torch.zeros(6), torch.tensor([m * n + i * n + j]), None
        if room:
            digits = torch.zeros((2 * options["SLICES"] + 1, room), dtype=torch.int64)
        ends = batch, rows, columns, out, torch.tensor([1, 0]), listed, None
        launching.launch(
            launching.kernels("near_ties").settle, 1, x, x, batch, rows, terms, batch, columns, terms, *ends, digits,
            m, n, 1, 1, 3, 2 * m * n, 1, room, 1.0, None, PAIRS=True, CHAIN=None, A_STEP=1, B_STEP=1, **options,
            **blocks,
        )  # fmt: skip
        if digits is not None:
            launching.launch(
                launching.kernels("near_ties").round_listed, 1, digits, digits[-1], *ends, m, n, 2 * m * n, room,
                **options, **launching.PARTS,
            )  # fmt: skip
        assert out.tolist() == [0, 0, 0, 0, 0, 21], (room, out)
    return 2


def settles_tails(*, doubled: bool) -> int:
    """Sums beside a middle by a term far below, or exactly on it, wherever digits begin, in either precision."""
    arithmetic, ran, scales, tails = Arithmetic(), 0, range(-60, 60, 23), (26, 40, 53, 60, 75, 85, 140)
    for scale in scales:
        rows = [[1.0, 2.0**-24, sign * 2.0**-tail] for tail in tails for sign in (1, 0, -1)]
        rows += [[-x for x in row] for row in rows]
        a, b = torch.tensor(rows).view(-1), torch.full((3 * len(rows),), 2.0**scale)
        i = sum_over((len(rows),), (3,), *(Access(o, 0, (3, 1)) for o in (0, 1)))
        with nullcontext() if doubled else in_fixed_point():
            ran += len(check(arithmetic, i, [a, b]))
    counts = arithmetic.stats.of("reduce.sum.products")
    assert counts.elements == ran
    assert ran // 3 < counts.undecided
    assert counts.undecided_twice == (0 if doubled else ran)  # the list has no room for a third of all
    lost = len(scales) * 2 * sum(tail >= 53 for tail in tails)  # positive ones, which FP64 does not see
    assert counts.double_rounded == lost
    return ran


def doubles(examples: int) -> int:
    """Doubled precision decides most sums of any values, and fixed point the others."""
    elements, left = 0, 0
    with in_doubled_precision():
        for seed, i, x in drawn(examples, affine, plain):
            arithmetic = Arithmetic(permute=seed if seed % 3 else None, precision=32 - seed % 17)
            check(arithmetic, i, x)
            for counts in arithmetic.stats.kinds.values():
                assert counts.undecided == counts.elements == i.numel
                elements, left = elements + counts.elements, left + counts.undecided_twice
    assert left < elements // 4
    return elements - left


def doubles_what_cancels() -> int:
    """Ties, and sums just beside one, of terms in up to six lanes; only lost errors of errors leave any open."""

    def hidden(x: float) -> tuple[float, ...]:
        return 2.0**60, x, -(2.0**60)  # in one lane, whose sum is 0 and the error x

    one, tie, far, odd = (1.0,), (2.0**-24,), 2.0**-140, (2**23 + 1) * 2.0**-70
    open_ = [
        (hidden(1), hidden(2.0**-24), hidden(far)), (hidden(1), tie), (one, (odd,), (far,), (-odd,), tie),
        (one, tie, hidden(odd), hidden(far), hidden(-odd)),
    ]  # fmt: skip
    decided = [
        (one, tie, hidden(far)), (one, tie, (2.0**-80,), hidden(-(2.0**-90))),
        (one, tie, (-(2.0**-90),), hidden(2.0**-80)), ((-far,),),
        (one, tie, (2.0**-40,), (-(2.0**-40),)), ((2.0**60,), (-(2.0**60),), one, tie),
    ]  # fmt: skip
    rows = torch.zeros(2, 2, len(open_ + decided), 3, 32)
    rows[1] = 1
    for n, lanes in enumerate(open_ + decided):
        for at, terms in enumerate(lanes):  # the first lane joins the second, the third the fourth
            rows[0, :, n, : len(terms), 1 + n + at // 2 + 16 * (at % 2)] = torch.tensor(terms)
    rows[0, 1] *= -1
    rows[1, :, len(open_) + 3] = far  # a product that is rounded to 0
    arithmetic, count = Arithmetic(), rows[0].numel() // 96
    with in_doubled_precision():
        i = sum_over((count,), (96,), *(Access(o, 0, (96, 1)) for o in (0, 1)))
        check(arithmetic, i, [x.reshape(-1) for x in rows])
    assert arithmetic.stats.of("reduce.sum.products").undecided_twice == 2 * len(open_)
    return count


def doubles_within_its_bound() -> int:
    """What rounding leaves of the errors of additions is no more than the coefficient times their sizes."""
    ran = 0
    for seed in range(12):
        r, found, pairs = random.Random(seed), [], seed % 2 + 1
        i = sum_over((20,), (150,), *(Access(o, 0, (150, 1)) for o in range(pairs)))
        x = [Maker(r).tensor(DType.F32, 3000, ("ties", "gauss", "wide")[seed % 3]) for _ in range(pairs)]

        def kept(add: Any, *arguments: Any, found: list[Any] = found) -> Any:
            sums = add(*arguments)
            found.extend(zip(*(x.handle.data.tolist() for x in sums), strict=True))
            return sums

        with in_doubled_precision(), replaced("add_doubled", kept):
            check(Arithmetic(), i, x)
        factor = Fraction(ziv.coefficient(ceil(prod(i.reduction) / 32) + 64))
        for (s, low, size), exact in zip(found, Arithmetic().exact_sums(i, x, range(i.numel)), strict=False):
            assert exact is not None
            assert abs(Fraction(s) + Fraction(low) - exact[0] * Fraction(2) ** exact[1]) <= factor * Fraction(size)
            ran += size > 0
    return ran


def extremes(examples: int) -> int:
    """max and argmax over any access maps, and over rows, columns and windows, which no other path may take."""
    ran = 0
    for seed in range(examples):
        r = random.Random(seed)
        i, operands = random_reduction(Maker(r), r.choice(EXTREMES), DType.F32)
        ran += len(check(Arithmetic(), i, operands))
    with mock.patch.object(indexing, "extreme", side_effect=AssertionError("expected the kernel, got torch")):
        for seed in range(examples):
            r = random.Random(seed)
            rows, columns = r.randint(1, 20), r.choice([3, 40, 300])
            shape, terms, strides = r.choice(
                [
                    ((rows,), (columns,), (columns, 1)),
                    ((columns,), (rows,), (1, columns)),
                    ((), (rows, columns), (columns, 1)),
                    ((rows, columns - 1), (1, 2), (columns, 1, columns, 1)),
                ]
            )
            i = extreme_of(r.choice(EXTREMES), shape, terms, strides)
            style = STYLES[seed % len(STYLES)]
            x = Maker(r).tensor(DType.F32, rows * columns, style)
            x[::2].neg_()  # so that NaN has either sign
            ran += len(check(Arithmetic(), i, [x]))
    return ran


def leaves_nothing_open() -> int:
    """Small whole numbers, whose sums are far from any middle: the test decides all of them."""
    r = random.Random(5)
    arithmetic = Arithmetic()
    i = sum_over((20, 17), (100,), Access(0, 0, (100, 0, 1)), Access(1, 0, (0, 100, 1)))
    check(arithmetic, i, [torch.tensor([float(r.randint(1, 9)) for _ in range(n * 100)]) for n in i.shape])
    assert arithmetic.stats.of("reduce.sum.products").undecided == 0
    return i.numel


def decides_hard_rows() -> int:
    """Sums beside a middle by less than FP64 can tell, in all sizes of both operands, with zeros behind; infinite ones.

    One row is hard, all others and all columns are ones.
    """
    above, below = [1.0, 2.0**-24, 2.0**-80], [1.0, 2.0**-24, -(2.0**-80)]
    rows = [
        (above, 1.0, 1.0), (above, 2.0**60, 1.0), (above, 1.0, 2.0**60), (below, 1.0, 1.0),
        ([1.0, float("inf")], 1.0, 1.0), ([3e38, 3e38, -3e38, 1.0], 1.0, 1.0),
    ]  # fmt: skip
    for row, a_scale, b_scale in rows:
        a, b = torch.zeros(33, 40), torch.zeros(2, 40)
        a[:, :16], b[:, :16] = 1.0, b_scale
        a[5, :16] = 0.0
        a[5, : len(row)] = torch.tensor(row) * a_scale
        i = sum_over((33, 2), (40,), Access(0, 0, (40, 0, 1)), Access(1, 0, (0, 40, 1)))
        check(Arithmetic(), i, [a.view(-1), b.view(-1)])
    return len(rows)


def decides_long_rows() -> int:
    """Sums in four parts, of which only the first two have large squares: with norms of the last, all were decided."""
    a, b = torch.zeros(2, 256), torch.zeros(2, 256)
    a[:, :3], b[:, :3] = torch.tensor([1.0, 2.0**-24, 2.0**-80]), 1.0
    a[0, 100] = 2.0**-90
    i = sum_over((2, 2), (256,), Access(0, 0, (256, 0, 1)), Access(1, 0, (0, 256, 1)))
    arithmetic = Arithmetic()
    check(arithmetic, i, [a.view(-1), b.view(-1)])
    check(arithmetic, i, [b.view(-1), a.view(-1)])
    assert arithmetic.stats.of("reduce.sum.products").undecided == 8
    return 8


def decides_cut_rows() -> int:
    """Products in one part, of whose rows only the first terms have large squares, which two programs add."""
    a, b = torch.zeros(32, 128), torch.zeros(32, 128)
    a[:, :3], b[:, :3] = torch.tensor([1.0, 2.0**-24, 2.0**-80]), 1.0
    a[:, 100], b[:, 110] = 2.0**-90, 2.0**-90
    i = sum_over((32, 32), (128,), Access(0, 0, (128, 0, 1)), Access(1, 0, (0, 128, 1)))
    call = launching.LaunchedSum(i, tables_of(i), Arithmetic().options)._prepare(torch.device("cpu"), None)
    assert (call.parts, call.cuts) == (1, 2)
    above = round_ratio(2**24 + 2, 2**24)
    for operands in ([a, b], [b, a], [a.flip(1), b.flip(1)]):
        arithmetic = Arithmetic()
        check(arithmetic, i, [x.reshape(-1) for x in operands], right=[above] * 1024)
        assert arithmetic.stats.of("reduce.sum.products").undecided == 1024
    return 2


def conforms_in_parts() -> int:
    x = torch.arange(512.0).remainder(7)
    for i in (
        sum_over((2, 2), (256,), Access(0, 0, (256, 0, 1)), Access(1, 0, (0, 256, 1))),
        sum_over((2,), (256,), Access(0, 0, (256, 1))),
        sum_over((), (512,), Access(0, 0, (1,)), Access(1, 0, (1,))),
    ):
        check(Arithmetic(), i, [x] * len(i.operands))
    return 7


def settles_by_one_program() -> int:
    """Lists longer than what programs settle at once."""
    with small(programs=1):
        return settles(5)


def twice(*, left: int) -> int:
    """Products of which nothing is decided at first, and all but so many are in doubled precision."""
    ties = torch.zeros(2, 1504), torch.full((2, 1504), 0.9375)  # 1319 and a bit, and 2^-44 beside a middle
    ties[0][:, :1500], ties[0][:, 1500:1503] = 0.9375, torch.tensor([1 - 2.0**-22, 2.0**-13, 2.0**-20])
    ties[1][:, 1500:1503] = torch.tensor([1 - 2.0**-22, 0.5, 0.5])
    rest = torch.zeros(2, 96), torch.ones(2, 96)  # 2^-80 beside a middle, lost between terms of 2^-23
    rest[0][:, :2], rest[1][:, 1] = torch.tensor([1, 2.0**-12]), 2.0**-12
    rest[0][:, 16], rest[0][:, 32], rest[0][:, 48] = 2.0**-23, 2.0**-80, -(2.0**-23)
    wide = torch.zeros(2, 40), torch.zeros(2, 40)  # 1 + 2^-24, and that and 2^-52, of factors of 24 bits
    wide[0][:, :3] = torch.tensor([1 + 2.0**-23, -3 * 2.0**-24, -(2.0**-23)])
    wide[1][:, :3] = torch.tensor([1 + 2.0**-23, 1, 2.0**-23])
    wide[0][1, 2] += 2.0**-29
    near = torch.zeros(2, 40), torch.ones(2, 40)
    near[0][:, :3] = torch.tensor([1, 2.0**-24, 2.0**-48])
    arithmetic, ran = Arithmetic(), 0
    with small(programs=1):
        for pair in (ties, wide, near, near[::-1], *((rest, rest[::-1]) if left else ())):
            k = pair[0].shape[1]
            i = sum_over((2, 2), (k,), Access(0, 0, (k, 0, 1)), Access(1, 0, (0, k, 1)))
            ran += len(check(arithmetic, i, [x.reshape(-1) for x in pair]))
    counts = arithmetic.stats.of("reduce.sum.products")
    assert (counts.undecided, counts.undecided_twice) == (ran, left)
    assert counts.double_rounded == 4 + left  # all but `near`, which FP64 holds
    return ran


def waits_for_nothing() -> int:
    """Sums with undecided elements, in parts or not, and their counts, leave the host nothing to read."""
    ran = 0
    for k in (40, 256):
        for strides in (((k, 0, 1), (0, k, 1)), ((2 * k, k, 1),)):
            i = sum_over((2, 2), (k,), *(Access(o, 0, each) for o, each in enumerate(strides)))
            x = torch.zeros(4, k)
            x[:, :3] = torch.tensor([1, 2.0**-24, 2.0**-80])
            arithmetic = Arithmetic()
            with NoReads():
                arithmetic.execute(i, [x.view(-1), torch.ones(4 * k)][: len(strides)], 0)
            ran += sum(counts.undecided for counts in arithmetic.stats.kinds.values())
    assert ran == 16
    return ran


def divides(examples: int) -> int:
    """Sums of which programs share the terms, and lists that are too long for that."""
    with small(programs=8), mock.patch.object(launching, "LONG", 0):
        return settles(examples, few) + overflows()


def overflows() -> int:
    """Sums of which the highest slices leave their digit: two that do not fit f32, and two that do in the end."""
    rows = torch.full((4, 512), 2.0**127)
    rows[1], rows[2, 257:], rows[3, :255] = -(2.0**127), -(2.0**127), -(2.0**127)
    rows[2:, 255:257] = 3.0
    with mock.patch.object(launching, "coefficient", return_value=2.0**20), in_fixed_point():
        return len(check(Arithmetic(), sum_over((4,), (512,), Access(0, 0, (512, 1))), [rows.view(-1)]))


def flushes() -> int:
    """Sums in fixed point that are carried after every second term of a lane."""
    with mock.patch.object(near_ties, "SAFE", type(near_ties.SAFE)(16)):
        return settles(5)


def rounds_single_terms() -> int:
    """A single term has no error, so a middle is decided: to even."""
    a = torch.tensor([1 + n * 2.0**-8 for n in range(16)])
    i = sum_over((16, 16), (1,), Access(0, 0, (1, 0, 0)), Access(1, 0, (0, 1, 0)))
    check(Arithmetic(precision=16), i, [a, torch.ones(16)])
    return i.numel


BLOCKS, FLUSH = 4096, launching.FLUSH


def biased() -> tuple[Instruction, list[torch.Tensor], int]:
    """A sum of 2^16 products in which one chain of additions errs by more than the bound of flushed ones allows.

    All terms but one are x * x, so that adding 16 of them to what is there is rounded to the same side again and again;
    the first puts a middle between the exact sum and where such a chain ends, out of the bound's reach of the latter.
    """
    count = 16 * BLOCKS
    for n in range(1, 1 << 12):
        x = 1 - (2 * n + 1) * 2.0**-24
        block = 16 * Fraction(x) ** 2
        if block * 2**44 % 128 != 57:  # 128 are ulp(sum), so it is rounded down, by nearly a half
            continue
        others = (count - 1) * Fraction(x) ** 2
        middle = (2 * floor(others * 2**8) + 1) * Fraction(1, 2**9)
        first = float(np.float32(float(middle - others + 200 * Fraction(1, 2**37))))
        exact = others + Fraction(first)
        c = 15 * x * x + first
        for _ in range(BLOCKS - 1):
            c += 16 * x * x
        e = Fraction(ziv.coefficient(FLUSH + count // FLUSH + 2)) * count
        if c + float(e) < middle < exact:
            break
    else:
        raise AssertionError("expected such a sum, found none")
    a, b = torch.full((2, count), x), torch.full((2, count), x)
    a[:, 0], b[:, 0] = first, 1.0
    i = sum_over((2, 2), (count,), Access(0, 0, (count, 0, 1)), Access(1, 0, (0, count, 1)))
    return i, [a.view(-1), b.view(-1)], round_ratio(exact.numerator, exact.denominator)


def stays_within_its_bound() -> int:
    """A long sum whose roundings all go one way is right; BLOCK_K is 16."""
    i, operands, right = biased()
    with small(flush=FLUSH, programs=1):
        assert elements_of(Arithmetic().execute(i, operands, 0).view(-1)) == [right] * 4
    return 4


KEYS = [torch.tensor([0x123456789ABCDEF]), torch.tensor([7])]


def prologue(r: random.Random) -> tuple[list[Instruction], list[int]]:
    """Two instructions, the first of which may broadcast or read a draw, and a reduction of the second one's result.

    Also the sizes of two operands; `KEYS` are the others.
    """
    rows, columns = r.choice([(1, 90), (7, 3), (5, 40), (20, 17)])
    size = rows * columns
    spread = r.choice([(rows * columns, (columns, 1)), (rows, (1, 0)), (columns, (0, 1)), (1, (0, 0))])
    function = r.choice([MapFunction.ADD, MapFunction.SUB, MapFunction.MUL])
    keys, params = tuple(Access(o, 0, (0, 0)) for o in (2, 3)), RandomParams(stream=r.randrange(9))
    draw = Instruction(opcode=Opcode.RANDOM, dtype=DType.F32, shape=(rows, columns), operands=keys, params=params)
    draws = [draw] if r.random() < 0.5 else []
    accesses = Access(4 if draws else 0, 0, (columns, 1)), Access(1, 0, spread[1])
    result, second = r.choice(
        [(DType.F32, MapFunction.NEG), (DType.F32, MapFunction.EXP), (DType.I64, MapFunction.CAST)]
    )
    chain = [
        *draws,
        map_of(function, DType.F32, (rows, columns), *accesses),
        map_of(second, result, (size,), Access(4 + len(draws), 0, (1,))),
    ]
    shape, terms, strides = r.choice(
        [((rows,), (columns,), (columns, 1)), ((columns,), (rows,), (1, columns)), ((), (rows, columns), (columns, 1))]
    )
    reduced = sum_over(shape, terms, Access(5 + len(draws), 0, strides))
    if result == DType.I64:
        reduced = replace(reduced, function=ReduceFunction.MAX, dtype=result)
    elif r.random() < 0.3:
        extreme, dtype = r.choice([(ReduceFunction.MAX, DType.F32), (ReduceFunction.ARGMAX, DType.I64)])
        reduced = replace(reduced, function=extreme, dtype=dtype)
    return [*chain, reduced], [size, spread[0]]


def prologues(seeds: Iterable[int]) -> int:
    """Reductions whose terms chains compute, in order and permuted, in parts, and settled in each way."""
    ran = 0
    for seed in seeds:
        r = random.Random(seed)
        instructions, sizes = prologue(r)
        operands = [*(Maker(r).tensor(DType.F32, size, r.choice(STYLES)) for size in sizes), *KEYS]
        precision, values = 32 - seed % 17, [*operands]
        for i in instructions:
            own = replace(i, operands=tuple(replace(a, value=o) for o, a in enumerate(i.operands)))
            found = expected(own, [values[a.value] for a in i.operands], precision=precision)
            values.append(tensor_of(i.dtype, found))
        arithmetic = Arithmetic(permute=seed if seed % 4 == 0 else None, precision=precision)
        with ExitStack() as stack:
            if seed % 3:
                stack.enter_context(in_doubled_precision())
            if seed % 3 == 2:
                stack.enter_context(in_fixed_point())
            if seed % 2:
                stack.enter_context(mock.patch.object(launching, "LONG", 0))
            result = arithmetic.backend.run_once(instructions, operands)[0]
        assert result.shape == instructions[-1].shape
        assert elements_of(result) == elements_of(values[-1]), (seed, instructions)
        ran += result.numel()
    return ran


# ---- mutants ----


def tails() -> int:
    return settles_tails(doubled=False)


MUTANTS: Mutants = [
    ("everything is open", leaves_nothing_open, "~(high <= low)", "~(high < low)"),
    ("nothing is open", decides_hard_rows, "~(high <= low)", "~(high >= low)"),
    ("NaN is decided", decides_hard_rows, "~(high <= low)", "(high > low)"),
    ("affine: no norm of rows", decides_hard_rows, "tl.sqrt(squares_of(sizes, i,", "tl.sqrt(0 * squares_of(sizes, i,"),
    ("affine: no norm of columns", decides_hard_rows,
     "tl.sqrt(squares_of(sizes + m,", "tl.sqrt(0 * squares_of(sizes + m,"),
    ("affine: norms of rows for columns", decides_hard_rows, "squares_of(sizes + m, j", "squares_of(sizes, j"),
    ("affine: squares of the last step", decides_hard_rows, "total += v * v", "total = v * v"),
    ("infinite terms settled", decides_hard_rows, "< 2.0**256, finite, 0", "< 2.0**256, finite, 1"),
    ("lists too long: where there is room", decides_hard_rows,
     "tl.where(inside & (left > most), first + lane, o)", "tl.where(inside, first + lane, o)"),
    ("twice: sums without their errors", lambda: twice(left=0), "c)\n            low += error", "c)"),
    ("twice: the list goes on", lambda: twice(left=0), "tl.load(found + 1))", "undecided)"),
    ("twice: the rest is not exact", lambda: twice(left=0), "(2.25 * 2.0**134)", "(2.25 * 2.0**100)"),
    ("twice: no rest of columns", lambda: twice(left=0),
     "rest = tl.dot(x1, y2, rest, out_dtype=tl.float64)", "rest += 0"),
    ("twice: the rest is exact", lambda: twice(left=8), "(2.25 * 2.0**134)", "(2.25 * 2.0**174)"),
    ("twice: the rest has no error", lambda: twice(left=8), "0.0, size * coefficient + ", "0.0, "),
    ("twice: squares of the columns' last step", lambda: twice(left=8), "squares_y2 += y2", "squares_y2 = y2"),
    ("twice: squares of the last step", lambda: twice(left=8), "squares_x2 += x2", "squares_x2 = x2"),
    ("divided: the first part", lambda: divides(6), "blocks * parts, tl", "blocks, tl"),
    ("divided: terms that are not finite", lambda: divides(6), "inside & ~good", "inside & good"),
    ("digits of a part that overlap", lambda: divides(6), "held[j] & 0xFFFFFF", "held[j] & 0x1FFFFFF"),
    ("parts left out", conforms_in_parts, "range(parts)", "range(1)"),
    ("affine: each part from the first term", conforms_in_parts, "which // batches * whole(step, 16)", "0"),
    ("affine: squares of the last cut", decides_cut_rows, "total += tl.load(sizes", "total = tl.load(sizes"),
    ("affine: squares of the first cut", decides_cut_rows, "which // batches * whole(cut, 16)", "0"),
    ("affine: one batch's norms", settles_batches, "sizes += batch * (m + n)", "sizes += 0"),
    ("affine: no flush", stays_within_its_bound, "- begin) % FLUSH == 0", "- begin) % FLUSH == 1"),
    ("affine: what is flushed stays", hostile,
     "            c = tl.zeros((BLOCK_M, BLOCK_N), tl.float64)\n    total", "    total"),
    ("affine: no last flush", hostile, " += c\n\n    # Com", " += 0 * c\n\n    # Com"),
    ("affine: groups of rows that are not there", hostile, "tl.minimum(rows - first, GROUP)", "GROUP"),
    ("affine: a's batches for b", hostile, "b += whole(tl.load(b_batch", "b += whole(tl.load(a_batch"),
    ("affine: a's terms for b", hostile,
     "BLOCK_K if B_ALONG else BLOCK_K * b_step", "BLOCK_K if A_ALONG else BLOCK_K * a_step"),
    ("affine: rows in fours, of a", counts_in_fours,
     "i < (m if A_ALONG else whole(m, A_UNIT))", "i < whole(m, A_UNIT)"),
    ("affine: columns in fours, of b", counts_in_fours,
     "j < (n if B_ALONG else whole(n, B_UNIT))", "j < whole(n, B_UNIT)"),
    ("affine: terms in fours, of a", counts_in_fours, "whole(end, A_UNIT) if A_ALONG else end", "whole(end, A_UNIT)"),
    ("affine: terms in fours, of b", counts_in_fours, "whole(end, B_UNIT) if B_ALONG else end", "whole(end, B_UNIT)"),
    ("rows: squares of the last part", decides_long_rows,
     "size += tl.load(squares + i,", "size = tl.load(squares + i,"),
    ("columns: squares of the last part", decides_long_rows, "other += tl", "other = tl"),
    ("doubled: sums without errors", doubles_what_cancels, "low += error\n        size", "size"),
    ("doubled: errors without sizes", doubles_what_cancels, "size += tl.abs(error)", "size += 0"),
    ("doubled: sizes that cancel", doubles_what_cancels, "size += tl.abs(error)", "size += error"),
    ("doubled: joined without errors", doubles_what_cancels, "low + low2 + error", "low + low2"),
    ("doubled: joined without sizes", doubles_what_cancels, "size2 + tl.abs(error)", "size2"),
    ("doubled: errors of one", doubles_what_cancels, "low + low2 + error", "low + error"),
    ("doubled: sizes of one", doubles_what_cancels, "size + size2 + ", "size + "),
    ("doubled: only upwards", doubles_what_cancels, "round_pair(s, low - e, ", "round_pair(s, low, "),
    ("doubled: only downwards", doubles_what_cancels, "round_pair(s, low + e, ", "round_pair(s, low, "),
    ("doubled: zeros with a sign", doubles_what_cancels,
     "decided, value = inside & (above <= below), tl.where(above == 0, 0.0, above)",
     "decided, value = inside & (above <= below), above"),
    ("no carry out of the highest digit", overflows, "(digits[SLICES] + over,)", "(digits[SLICES],)"),
    ("doubled: settled again", lambda: settles_tails(doubled=True), "return inside & ~decided", "return inside"),
    ("doubled: never", lambda: settles_tails(doubled=True), "(count * MANY < elements)", "(count < 0)"),
    ("doubled: nobody counts", lambda: settles_tails(doubled=True), "differ = decided & ", "differ = ~decided & "),
    ("no carry out of a part", lambda: divides(1), "high += held[SLICES] << 24", "high += 0"),
    ("slices of half a unit", lambda: settles(5), "52 - 298 + 48 * (FIRST + SLICES", "51 - 298 + 48 * (FIRST + SLICES"),
    ("slices that keep what was cut", lambda: settles(5), "x -= shifted - shift", "x -= 0 * shift"),
    ("patterns of one term too few", lambda: settles(5), "terms.to(tl.int64)", "(terms - 1).to(tl.int64)"),
    ("lists too long: as listed", lambda: settles(5), "tl.where(inside & (left > most), first + lane, o)", "o"),
    ("settled within 2^31", settles_far,
     "// n // m, o // n % m, o % n\n            row", "// (m * n), o // n % m, o % n\n            row"),
    ("rounded within 2^31", settles_far, "place // n // m", "place // (m * n)"),
    ("nobody counts", tails, "differ = good & ", "differ = ~good & "),
    ("no rest", tails, "below < 0, -0.5", "below < 0, 0.0"),
    ("twice to nearest", tails, "(bits & 1) == 0", "(bits & 1) == 2"),
    ("lists too long: only as many", tails, "tl.where(left <= most, left, elements)", "left"),
    ("the last digit alone is the rest", tails, "tl.where(last != 0, last, rest)", "last"),
    ("to odd, away", tails, "(t < 0), 1, -1", "(t < 0), 1, 1"),
    ("NaN by its pattern", lambda: extremes(20), "tl.where(x == x, order, 0x7FFFFFFF)", "order"),
    ("the last of equals", lambda: extremes(20), "(0xFFFFFFFF - term[None, :].to(tl.int64))", "term[None, :]"),
    ("zeros with a sign", lambda: extremes(20), "x == 0, 0, ", "x != x, 0, "),
    ("halves up", rounds_single_terms, "((bits >> drop) & 1) + ", "1 + "),
    ("one round of the list", settles_by_one_program, "parts, tl.num_programs(0)", "parts, count + 1"),
    ("digits of the last flush", lambda: settles(25), "1 << 15)", "16)", "digits[j] + over", "over"),
    ("carries not rounded", lambda: settles(25), "(n + (1 << 47)) >> 48", "n >> 48"),
    ("carries of parts not rounded", lambda: divides(25), " + (1 << 23)) >> 24", ") >> 24"),
    ("absolute terms of the last step", conforms, "size += tl.abs(x)", "size = tl.abs(x)"),
    ("only upwards", conforms, "round_to(c - e, PRECISION)", "round_to(c, PRECISION)"),
    ("tables: the first column", lambda: hostile(convolution),
     "at_rows(b, b_n, j", "at_rows(b, b_n, 0 * j"),
    ("tables: the first terms", lambda: hostile(convolution),
     "at_terms(right, b_k, at + t", "at_terms(right, b_k, t"),
    ("tables: the first of each run", lambda: hostile(convolution),
     "first + i % RUN", "first + i % RUN * 0"),
    ("tables: the first run", lambda: hostile(convolution), "i // RUN * RUN", "i * 0"),
    ("tables: squares of the first terms", by_tables(decides_cut_rows),
     "at_terms(source, terms, at + t,", "at_terms(source, terms, t,"),
    ("prologue: what is not used", lambda: prologues(range(40)), "tl.where(used, made[last], 0)", "made[last]"),
    ("prologue: all but the last", lambda: prologues(range(40)), "len(CHAIN) - 2", "len(CHAIN) - 3"),
    ("prologue: the first place", lambda: prologues(range(40)),
     "if CHAIN is None else place", "if CHAIN is None else place * 0"),
    ("prologue: the first row is settled", lambda: prologues(range(40)),
     "at_row(a, tl.load(a_batch + o // run_batch) +", "at_row(a, tl.load(a_batch + 0 * o) +"),
    ("prologue: places for maxima", lambda: prologues(range(40)), "== tl.int64 and not PLACE", "== tl.int64 and PLACE"),
    ("tables: the result's first row", by_tables(hostile),
     "out_m + i, mask=in_m, other=0)[", "out_m + 0 * i, mask=in_m, other=0)["),
]  # fmt: skip
STEPS = "1 if step % 4 or count % 4 or (batch % 4).any() else 4"
PROMISES: Mutants = [
    ("promised: any count", promises, STEPS, "1 if step % 4 or (batch % 4).any() else 4"),
    ("promised: the first batch", promises, STEPS, "1 if step % 4 or count % 4 or batch[0] % 4 else 4"),
    ("promised: even steps", promises, STEPS, "1 if step % 2 or count % 4 or (batch % 4).any() else 4"),
    ("promised: the other's count", promises, STEPS,
     "1 if step % 4 or (len(own) if along else len(k)) % 4 or (batch % 4).any() else 4"),
    ("promised: any batch's fours", promises, "in (batch, outer, inner[::4])", "in (outer, inner[::4])"),
    ("promised: fours in any rows", promises, "in (batch, outer, inner[::4])", "in (batch, inner[::4])"),
    ("promised: fours from anywhere", promises, "in (batch, outer, inner[::4])", "in (batch, outer)"),
    ("promised: the first run", promises, "np.arange(run)).all()", "np.arange(run))[0].all()"),
]  # fmt: skip
"""What is promised on the host, and one case too often."""


def broken() -> dict[str, str]:
    """What refutes each promise that is given too often: the addresses."""
    found = {}
    for name, _, *changes in PROMISES:
        try:
            promises(changed(changes, reading).OperandLayout)
        except AssertionError as error:
            found[name] = type(error).__name__
    return found


def within(check: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with small():
            return check()

    return run


FAST = {
    "affine": lambda: hostile(affine, 1), "tables": by_tables(lambda: hostile(affine, 1)),
    "convolution": lambda: hostile(convolution, 1), "plain": lambda: hostile(plain, 2),
    "extremes": lambda: extremes(3), "long rows": decides_long_rows, "prologues": lambda: prologues(range(6)),
}  # fmt: skip
SLOW = {
    "hard rows": decides_hard_rows, "hard rows, tables": by_tables(decides_hard_rows), "cut rows": decides_cut_rows,
    "affine": hostile, "fours": counts_in_fours, "promises": promises,
    "batches": settles_batches, "far": settles_far, "cut": sees_a_unit_that_cuts,
    "tables": by_tables(lambda: hostile(affine, 10)), "convolutions": lambda: hostile(convolution, 12),
    "partial sums, tables": by_tables(lambda: partial_sums(5)),
    "views": lambda: views(40), "plain": lambda: hostile(plain, 20), "settled": lambda: settles(20), "tails": tails,
    "doubled tails": lambda: settles_tails(doubled=True), "doubled": lambda: doubles(20),
    "doubled, cancelling": doubles_what_cancels, "doubled, bound": doubles_within_its_bound,
    "extremes": lambda: extremes(20), "decided": leaves_nothing_open, "single terms": rounds_single_terms,
    "parts": conforms_in_parts, "flushes": flushes, "overflows": overflows, "divided": lambda: divides(20),
    "twice": lambda: twice(left=0),
    "twice, few left": lambda: twice(left=8), "no reads": waits_for_nothing, "vectors, small blocks": counted,
    "prologues": lambda: prologues(range(80)), "near ties": logs, "partial sums": lambda: partial_sums(6),
}  # fmt: skip
SUITE = Suite(
    fast={name: within(check) for name, check in FAST.items()},
    slow={name: within(check) for name, check in SLOW.items()},
    mutants=MUTANTS + PROMISES,
    killed=within(lambda: killed(MUTANTS, launching, rounding, summing, products, near_ties) | broken()),
)

if __name__ == "__main__":
    main(SUITE, long=lambda: ran_by({"vectors": counted, "biased": stays_within_its_bound}))
