"""Rematerialization: values that are computed again where they are read late, instead of held until then.

Training holds what its backward pass reads. Much of that follows at little cost from other values that are held anyway:
activations from what a matrix product made, attention weights from queries and keys. Such a value is dropped between
two reads that lie on both sides of the moment of most memory, and units that compute it again come before the second.
Values are pure, so this changes no bit.

1. The moment of most memory is found by counting what is live after each unit.
2. Of the values that are live then and not read, those are dropped that can be computed again, where they are read
   next, from values that are live there, from sources and from smaller values, which are held for longer, with at most
   `WORK` multiplications for each byte, and 1/`BUDGET` of a step's for all. What a chain makes then, and others read
   later, need not be stored before.
3. This is repeated, for the moment that now needs most, up to `ROUNDS` times.
4. Then, as often, those values are held in bfloat16 between two such reads that are rounded to it, or copies of such.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import Final

from tiebreak.engine.arithmetic.plan.chains import Unit
from tiebreak.engine.run.schedule import MAX_MEMBERS, is_elementwise, plan, reads_in_place, with_lifetimes
from tiebreak.protocol.program.isa import TRANSCENDENTALS, DType, Instruction, MapFunction, Opcode
from tiebreak.protocol.program.program import Program

LEAST: Final = 1 << 27
"""A step that never needs this many bytes is left as it is."""
SHARE: Final = 512
"""Values of less than 1/SHARE of the most memory are left as they are."""
WORK: Final = 64
FEW: Final = 4
"""Values that are held for longer have at least this many times fewer bytes than the one that is dropped for them."""
ROUNDS: Final = 16
BUDGET: Final = 16
"""Values computed again take at most 1/BUDGET of a step's time."""
_ELEMENTWISE, _TRANSCENDENTAL = 4, 32
"""The number of multiplications of a product that take as long as one function of an element."""
_Gap = tuple[int, int]
"""The positions of two reads of a value between which it is not held."""


def rematerialized(program: Program, units: Sequence[Unit] | None = None) -> tuple[Unit, ...]:
    """The units, with others between them that compute values again.

    units: a planned order [default: that of chains in C, so that the result is the order of a worker alone on a CPU].
    """
    found = _Rematerialized(program, [unit.members for unit in (plan(program) if units is None else units)])
    for how in (found.drop, found.narrow):
        for _ in range(ROUNDS):
            if not found.lower(how):
                break
    return found.units()


class _Rematerialized:
    """A plan and what it computes again, by position of the unit before which that comes."""

    def __init__(self, program: Program, units: Sequence[tuple[int, ...]]) -> None:
        self.program, self.body, self.planned = program, program.body, units
        self.kept = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
        self.made = {n: position for position, unit in enumerate(units) for n in unit}
        self.reads: dict[int, list[int]] = {}
        """The positions at which a value is made and read, ascending; none if only its own unit reads it."""
        self.gaps: dict[int, _Gap] = {}
        self.again: dict[int, set[int]] = {}
        self.short = set[int]()
        """The values that are held in bfloat16 between these reads, not dropped."""
        self.left = sum(map(_work, self.body)) // BUDGET
        for position, unit in enumerate(units):
            self._read(set(unit), position)

    def _read(self, members: set[int], position: int) -> None:
        for n in {a.value for index in members for a in self.body[index].operands} - members:
            reads = self.reads.setdefault(n, [self.made[n]])
            if reads[-1] < position:
                reads.append(position)
            elif (at := bisect_left(reads, position)) and reads[at] != position:
                reads.insert(at, position)

    def units(self) -> tuple[Unit, ...]:
        """All units, in order: before each, those that compute values for it again."""
        members, places = list[tuple[int, ...]](), list[tuple[int, int]]()
        for position, unit in enumerate(self.planned):
            again = self.again.get(position, set())
            origins, begin = sorted({self.made[n] for n in again}), len(members)
            for group in (*(tuple(n for n in self.planned[origin] if n in again) for origin in origins), unit):
                if len(members) > begin and self._is_chain(one := tuple(sorted({*members[-1], *group}))):
                    members[-1] = one
                else:
                    members.append(group)
            places.append((begin, len(members) - 1))
        found = [*with_lifetimes(self.program, members)]
        for n in sorted(self.short):
            first, second = places[self.gaps[n][0]][1], places[self.gaps[n][1]][0]
            found[first] = replace(found[first], narrowed=(*found[first].narrowed, n))
            found[second] = replace(found[second], widened=(*found[second].widened, n))
        return tuple(found)

    def _is_chain(self, unit: tuple[int, ...]) -> bool:
        """Whether instructions can be executed in one pass."""
        reads = ((self.body[n], a) for n in unit for a in self.body[n].operands if a.value in unit)
        return (
            len(unit) <= MAX_MEMBERS
            and all(is_elementwise(self.body[n]) for n in unit)
            and len({self.body[n].numel for n in unit}) == 1
            and all(reads_in_place(access, reader, self.body[access.value]) for reader, access in reads)
        )

    def lower(self, how: Callable[[int, _Gap], bool]) -> bool:
        """Lessens, in one way, what is live when most memory is needed; returns whether it did."""
        changes = [0] * (len(self.planned) + 1)
        for n, reads in self.reads.items():
            for begin, end, size in self._spans(n, reads):
                changes[begin] += size
                changes[end] -= size
        live = list(accumulate(changes))
        most = max(live)
        if most < LEAST:
            return False
        peak, lessened = live.index(most), False
        large = sorted((n for n in self.reads if self._bytes(n) * SHARE > most), key=self._bytes, reverse=True)
        for n in large:
            reads = self.reads[n]
            at = bisect_left(reads, peak)
            in_chain = reads[0] == peak and len(self.planned[peak]) > 1  # then it need not be stored at all
            if n in self.kept or n in self.gaps or not (in_chain or (0 < at < len(reads) and reads[at] > peak)):
                continue
            lessened |= how(n, (peak, reads[1]) if in_chain else (reads[at - 1], reads[at]))
        return lessened

    def drop(self, n: int, gap: _Gap) -> bool:
        """Lets a value be computed again after a gap, if that takes little."""
        members = self._way(n, gap[1])
        if members is None or (work := sum(_work(self.body[m]) for m in members)) > self.left:
            return False
        self.gaps[n], self.left = gap, self.left - work
        self.again.setdefault(gap[1], set()).update(members)
        self._read(members, gap[1])
        return True

    def narrow(self, n: int, gap: _Gap) -> bool:
        """Lets a value be held in bfloat16 during a gap, if it has such numbers. Nothing must be dropped after that."""
        if not self._is_bf16(n) or gap[1] - gap[0] < 2:
            return False
        self.gaps[n] = gap
        self.short.add(n)
        return True

    def _is_bf16(self, n: int) -> bool:
        i = self.body[n]
        if (i.opcode, i.function, i.dtype) == (Opcode.MAP, MapFunction.COPY, DType.F32):
            return self._is_bf16(i.operands[0].value)
        return i.is_bf16_sum or (i.opcode, i.function) == (Opcode.MAP, MapFunction.BF16)

    def _spans(self, n: int, reads: Sequence[int]) -> list[tuple[int, int, int]]:
        """The positions from which on a value is held, and at which it no longer is, with its bytes."""
        end, size = len(self.planned) if n in self.kept else reads[-1] + 1, self._bytes(n)
        if n not in self.gaps:
            return [(reads[0], end, size)]
        first, second = self.gaps[n]
        if n in self.short:
            return [(reads[0], first + 1, size), (first + 1, second, size // 2), (second, end, size)]
        return [(reads[0], first + (first > reads[0]), size), (second, end, size)]

    def _bytes(self, n: int) -> int:
        return 0 if self.body[n].opcode == Opcode.SOURCE else self.body[n].numel * self.body[n].dtype.size

    def _is_live(self, n: int, position: int) -> bool:
        """Whether a value is held before a unit and read by it or later."""
        reads = self.reads.get(n, [])
        first, second = self.gaps.get(n, (position, position - 1))
        return n in self.kept or (bool(reads) and position <= reads[-1] and not first < position <= second)

    def _way(self, value: int, position: int) -> set[int] | None:
        """The instructions that compute a value again before a unit; None if that takes too much."""
        size, members, waiting, work, longer = self._bytes(value), set[int](), [value], 0, 0
        while waiting:
            members.add(n := waiting.pop())
            work += _work(self.body[n])
            if type(self.body[n]) is not Instruction or self.body[n].opcode == Opcode.SHUFFLE or work > WORK * size:
                return None
            for operand in {a.value for a in self.body[n].operands} - members:
                if self.body[operand].opcode == Opcode.SOURCE or self._is_live(operand, position):
                    continue
                if operand in self.reads and operand not in self.gaps and longer + self._bytes(operand) <= size // FEW:
                    longer += self._bytes(operand)
                else:
                    waiting.append(operand)
        return members


def _work(i: Instruction) -> int:
    """About how long an instruction takes, in multiplications of a product."""
    if i.is_reduction:
        return prod(i.index_space)
    slow = i.function in TRANSCENDENTALS and i.opcode == Opcode.MAP
    return i.numel * (_TRANSCENDENTAL if slow and not is_elementwise(i) else _ELEMENTWISE)
