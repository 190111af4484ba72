"""Copies of the operands of convolutions and their gradients, made here however small the products are."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.engine.arithmetic_cases import STYLES, Maker, check, elements_of, expected, sum_over
from tests.engine.interpreted import Mutants, NoReads, Suite, _exit_code, changed, graphs, killed, main, sums
from tests.engine.interpreted.integers import small as by_integers
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.gpu import operands as launching
from tiebreak.engine.arithmetic.gpu.kernels import products as kernels
from tiebreak.engine.arithmetic.gpu.kernels import rounding
from tiebreak.engine.arithmetic.plan import ziv
from tiebreak.engine.arithmetic.plan.sums import ReduceTables
from tiebreak.engine.run import qualify
from tiebreak.protocol.program.isa import Access, DType, Instruction
from tiebreak.protocol.program.rounding import SumKind


@contextmanager
def always(module: ModuleType = launching) -> Iterator[None]:
    """Copies wherever an operand is slow, in blocks that small ones fill several times; by `module`."""
    arrange = module.arrange
    with (
        mock.patch.multiple(module, LEAST=0, PAYS=2.0**-30),
        mock.patch.dict(module.OPTIONS, BLOCK=4),
        mock.patch.object(launching, "arrange", arrange),
        mock.patch.object(sums.launching, "arrange", arrange),
    ):
        yield


def drawn(seed: int) -> tuple[Instruction, list[torch.Tensor], dict[int, launching.Copy]]:
    """A layer with hostile values, and its copies."""
    r = random.Random(seed)
    i, sizes = sums.convolution(r)
    x = [Maker(r).tensor(DType.F32, size, STYLES[seed % len(STYLES)]) for size in sizes]
    return i, x, launching.arrange(i, sums.tables_of(i))[1]


def computes(seeds: range, module: ModuleType = launching) -> int:
    """Layers with copies against integers: in order and permuted, in parts, at every precision."""
    ran = 0
    with sums.small(), always(module):
        for seed in seeds:
            i, x, copies = drawn(seed)
            permute, precision = seed if seed % 4 == 0 else None, 32 - seed % 17
            ran += len(check(Arithmetic(permute=permute, precision=precision), i, x)) * bool(copies)
    return ran


def settles(seeds: range) -> int:
    """The same where nothing is decided before fixed point."""
    with mock.patch.object(sums.launching, "coefficient", return_value=2.0**20), sums.in_fixed_point():
        return computes(seeds)


def logs(seeds: range) -> int:
    """Under policy `logged`, elements near a tie are reported or settled, and come out right; how many were logged."""
    logged = 0
    logging = ziv.Logging(dict.fromkeys(SumKind, 2.0**33), dict.fromkeys(SumKind, 2))
    with sums.small(), always():
        for seed in seeds:
            i, x, copies = drawn(seed)
            arithmetic = Arithmetic(precision=16, logging=logging)
            case = qualify._Case("layer", i, tuple((DType.F32, tuple(elements_of(one))) for one in x))
            qualify._compare_logged(arithmetic, case, expected(i, x, precision=16), x)
            logged += bool(copies) * sum(counts.logged for counts in arithmetic.stats.kinds.values())
    return logged


def leaves_parts(examples: int) -> int:
    """What is left for other workers, computed from copies, lies within its own bound of the exact sums."""
    with sums.small(), always():
        return sums.partial_sums(examples, sums.convolution)


def computes_by_integers(seeds: range) -> int:
    ran = 0
    for seed in seeds:
        with by_integers() as products, always():
            i, x, copies = drawn(seed)
            found = check(Arithmetic(), i, x)
            ran += len(found) * bool(copies and products)
    return ran


def places(copy: launching.Copy) -> Any:
    """The place in the operand of each number of a copy, by its definition."""
    line, point, lane = (np.arange(n) * step for n, step in zip(copy.counts, copy.steps, strict=True))
    return (copy.first + line[:, None, None] + point[:, None] + lane).reshape(-1)


def terms_of(i: Instruction, tables: ReduceTables, copies: dict[int, launching.Copy]) -> Any:
    """The pairs of places, in the operands, of all terms of each element of the result, in some order."""
    pairs = []
    for o in tables.operands:
        at = o.batch[:, None, None] + o.own[:, None] + o.k
        at = places(copies[o.index])[at] if o.index in copies else at
        pairs.append((o.index, at[:, :, None] if o is tables.operands[0] else at[:, None]))
    (_, first), (_, second) = sorted(pairs, key=lambda pair: pair[0])
    code = (first.astype(np.int64) << 32) + second
    batch, m, n = tables.out
    found = np.zeros((i.numel, tables.terms), dtype=np.int64)
    found[(batch[:, None, None] + m[:, None] + n).reshape(-1)] = np.sort(code.reshape(i.numel, -1), axis=1)
    return found


def reads_the_same(seeds: range, module: ModuleType = launching) -> int:
    """Each element has the same terms as without copies; copies are read by 16 bytes, and hold nothing else.

    What they read lies between the least and the greatest place that the sum reads.
    """
    counted = [0, 0]
    with always(module):
        for seed in seeds:
            i, x, copies = drawn(seed)
            before = sums.tables_of(i)
            after, _ = launching.arrange(i, before)
            if not before.out:
                continue
            assert np.array_equal(terms_of(i, before, {}), terms_of(i, after, copies)), i
            slow = [o.index for o in before.operands if launching._is_slow(o)]
            lanes = [n for n in i.reduction if n % 4 == 0]
            assert bool(copies) <= (len(slow) == 2)
            for o in after.operands:
                assert not (lanes and len(slow) == 2 and launching._is_slow(o)), i
                if (copy := copies.get(o.index)) is not None:
                    layout = launching.OperandLayout.of(o.batch, o.own, o.k)
                    assert layout.unit == 4 or layout.step is not None
                    assert 0 <= o.reach[0] <= o.reach[1] < prod(copy.counts)
                    at = places(copy)
                    assert (at.min(), at.max()) == i.operands[o.index].extent(i.index_space) == copy.reach
                    assert at.max() < len(x[o.index])
            counted[bool(copies)] += 1
    assert min(counted) > len(seeds) // 10, counted
    return sum(counted)


def refuses() -> int:
    """A copy checks the places that it reads, as sums check what they read."""
    with always():
        _, x, copies = drawn(next(n for n in range(100) if len(drawn(n)[2]) == 2))
    for at, copy in copies.items():
        for short in (x[at][: copy.reach[1]], x[at].repeat(2)[::2]):
            try:
                copy.make(short)
            except ValueError as error:
                assert "places 0 ..." in str(error)  # noqa: PT017
            else:
                raise AssertionError("expected a refusal, got a copy")
    return len(copies)


def pays() -> int:
    """Only what is large enough is copied, if it is multiplied often enough and fits into memory."""

    def copied(images: int, channels: int, outer: int, *, back: bool = True) -> list[tuple[int, ...]]:
        """Copies for a gradient by images of 14 x 14; not `back`: for a convolution, whose weights are affine."""
        image, filters = (256 * channels, 0, 16, 1, 256, 16, 1), (0, 9, 0, 0, 9 * outer, -3, -1)
        if not back:
            filters = (0, 9 * channels, 0, 0, 9, 3, 1)
        i = sum_over((images, outer, 14, 14), (channels, 3, 3), Access(0, 0, image), Access(1, 8 * back, filters))
        return [copy.counts for copy in launching.arrange(i, sums.tables_of(i))[1].values()]

    image, result = (0, 81, 9, 1, 512 * 81, 9, 1), (49, 0, 0, 0, 512 * 49, 7, 1)
    gradient = sum_over((512, 512, 3, 3), (16, 7, 7), Access(0, 0, result), Access(1, 0, image))
    copies = launching.arrange(gradient, sums.tables_of(gradient))[1]
    assert sorted(copy.counts for copy in copies.values()) == [(1, 512 * 49, 16), (1, 512 * 81, 16)]
    both = sorted(copied(16, 256, 128))
    assert both == [(1, 9 * 128, 256), (16, 256, 256)]
    assert not copied(16, 256, 128, back=False)
    assert not copied(1, 64, 64)  # 7 million multiplications
    assert not copied(16, 255, 256)  # channels that are no multiple of 4, and none of the taps is
    assert not copied(16, 1024, 16)  # 106 multiplications for each number
    with mock.patch.object(launching, "MOST", sum(map(prod, both))):
        assert copied(16, 256, 128)
    with mock.patch.object(launching, "MOST", sum(map(prod, both)) - 1):
        assert not copied(16, 256, 128)
    return 8


def waits_for_nothing() -> int:
    with always():
        i, x, copies = drawn(next(n for n in range(100) if len(drawn(n)[2]) == 2))
        with NoReads():
            Arithmetic().execute(i, x, 0)
    return len(copies)


def by_mutant(*changes: str) -> str:
    """What refutes a change of the host's part: places, or else results."""
    module = changed(changes, launching)

    def computed() -> None:
        try:
            computes(range(100), module=module)
        except ValueError as error:  # places outside an operand or a copy are refused
            raise AssertionError from error

    try:
        reads_the_same(range(300), module)
    except (AssertionError, IndexError):
        return "places"
    return "results" if _exit_code(computed) else ""


def steps() -> dict[str, int]:
    """The checked-in records of a residual network's steps are reached with copies, by replays of a graph too."""
    with always():
        return {"resnet": graphs.golden("resnet")}


FIRST = range(30)
MUTANTS: Mutants = [
    ("lanes of the first block", lambda: computes(FIRST), "task % across * BLOCK + t", "task % across * 0 + t"),
    ("points of the first block", lambda: computes(FIRST), "task // across % down * BLOCK", "0 * task"),
    ("the first line", lambda: computes(FIRST), "x += first + line * line_step", "x += first + 0 * line"),
    ("copied to the first line", lambda: computes(FIRST), "to += line * points * lanes", "to += 0 * line"),
    ("lines beside each other", lambda: computes(FIRST), "line * points * lanes", "line * points"),
    ("from the first place", lambda: computes(FIRST), "x += first + ", "x += "),
    ("lanes by a point's step", lambda: computes(FIRST), "[:, None] * lane_step", "[:, None] * point_step"),
    ("points by a lane's step", lambda: computes(FIRST), "[None, :] * point_step", "[None, :] * lane_step"),
    ("points as far as lanes", lambda: computes(FIRST), "(point < points)[None", "(point < lanes)[None"),
    ("not turned", lambda: computes(FIRST), "tl.trans(to), tl.trans(tl.load", "tl.trans(to), (tl.load"),
]  # fmt: skip
HOST: Mutants = [
    ("host: no first line", None, "access.offset + low + least,", "access.offset + least,"),
    ("host: no first point", None, "access.offset + low + least,", "access.offset + low,"),
    ("host: copies read from 0", None, "-lanes * (low // line * points + least // point)", "0 * (low + least)"),
    ("host: points as lines", None, "x // line * points + y // point", "x // line + y // point"),
    ("host: one point too few", None, "1 + sum(map(abs, reach)) // step", "max(1, sum(map(abs, reach)) // step)"),
    ("host: points of any step", None, "gcd(*strides) or 1", "max(map(abs, strides), default=1) or 1"),
    ("host: ways back left out", None, "sum(min(0, each) for each in reach)", "min(0, *reach, 0)"),
    ("host: only ways on", None, "sum(map(abs, reach))", "sum(max(0, each) for each in reach)"),
    ("host: strides in their own order", None, "a.strides[d] for d in dims", "a.strides[d] for d in sorted(dims)"),
    ("host: any number of lanes", None, "sizes[d] % 4 == 0", "sizes[d] % 2 == 0"),
    ("host: one copy for both", None, "made[at].access", "made[min(made)].access"),
]  # fmt: skip
"""Changes of `gpu/operands.py`, which `by_mutant` checks."""


def broken() -> dict[str, str]:
    """What refutes each change of the host's part."""
    found = {name: by_mutant(*changes) for name, _, *changes in HOST}
    return {name: how for name, how in found.items() if how}


SUITE = Suite(
    fast={"layers": lambda: computes(range(12)), "places": lambda: reads_the_same(range(60)), "refused": refuses},
    slow={
        "layers": lambda: computes(range(60)), "places": lambda: reads_the_same(range(400)),
        "settled": lambda: settles(range(25)), "logged": lambda: logs(range(40)), "pays": pays,
        "partial sums": lambda: leaves_parts(20),
        "by integers": lambda: computes_by_integers(range(20)), "no reads": waits_for_nothing,
    },
    mutants=MUTANTS + HOST,
    killed=lambda: killed(MUTANTS, launching, rounding, kernels) | broken(),
)  # fmt: skip

if __name__ == "__main__":
    main(SUITE, golden=steps)
