"""Rematerialization: values that are computed again where they are read late, instead of held until then.

Training holds what its backward pass reads. Much of that follows at little cost from other values that are held anyway:
activations from what a matrix product made, attention weights from queries and keys. Such a value is dropped between
two reads that lie on both sides of the moment of most memory, and units that compute it again come before the second.
Values are pure, so this changes no bit.

1. The moment of most memory is found by counting what is live after each unit.
2. Of the values that are live then and not read, those are dropped that can be computed again, where they are read
   next, from values that are live there, from sources and from smaller values, which are held for longer, with at most
   `WORK` multiplications for each byte. What is made then by a chain, and read later, need not be stored before.
3. This is repeated, for the moment that now needs most, up to `ROUNDS` times.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Final

from tiebreak.engine.arithmetic.plan.chains import Unit
from tiebreak.engine.run.schedule import is_elementwise, with_lifetimes
from tiebreak.protocol.program.isa import TRANSCENDENTALS, Instruction, Opcode
from tiebreak.protocol.program.program import Program

LEAST: Final = 1 << 27
"""A step that never needs this many bytes is left as it is."""
SHARE: Final = 512
"""Values of less than 1/SHARE of the most memory are left as they are."""
WORK: Final = 64
FEW: Final = 4
"""What is held for longer has at least this many times fewer bytes than the value that is dropped for it."""
ROUNDS: Final = 16
_ELEMENTWISE, _TRANSCENDENTAL = 4, 32
"""The number of multiplications of a product that take as long as one function of an element."""
_Gap = tuple[int, int]
"""The positions of two reads of a value between which it is not held."""


def rematerialized(program: Program, units: Sequence[Unit], *, least: int = LEAST) -> tuple[Unit, ...]:
    """The units, with others between them that compute values again. least: of most memory, in bytes."""
    found = _Rematerialized(program, [unit.members for unit in units])
    for _ in range(ROUNDS):
        if not found.lower(least):
            break
    return with_lifetimes(program, found.units())


class _Rematerialized:
    """A plan and what it computes again, by position of the unit before which that comes."""

    def __init__(self, program: Program, units: Sequence[tuple[int, ...]]) -> None:
        self.body, self.planned = program.body, units
        self.kept = {commit.operands[0].value for commit in program.commits} | {len(program.body) - 1}
        self.made = {n: position for position, unit in enumerate(units) for n in unit}
        self.reads: dict[int, list[int]] = {}
        """The positions at which a value is made and read, ascending; none if only its own unit reads it."""
        self.gaps: dict[int, _Gap] = {}
        self.again: dict[int, set[int]] = {}
        for position, unit in enumerate(units):
            self._read(set(unit), position)

    def _read(self, members: set[int], position: int) -> None:
        for n in {a.value for index in members for a in self.body[index].operands} - members:
            reads = self.reads.setdefault(n, [self.made[n]])
            if reads[-1] < position:
                reads.append(position)
            elif (at := bisect_left(reads, position)) and reads[at] != position:
                reads.insert(at, position)

    def units(self) -> list[tuple[int, ...]]:
        """The members of all units, in order."""
        found = []
        for position, unit in enumerate(self.planned):
            again = self.again.get(position, set())
            origins = sorted({self.made[n] for n in again})
            found += [tuple(n for n in self.planned[origin] if n in again) for origin in origins]
            found.append(unit)
        return found

    def lower(self, least: int) -> bool:
        """Drops values that are live when most memory is needed; returns whether there are any."""
        changes = [0] * (len(self.planned) + 1)
        for n, reads in self.reads.items():
            for begin, end in self._spans(n, reads):
                changes[begin] += self._bytes(n)
                changes[end] -= self._bytes(n)
        live = list(accumulate(changes))
        most = max(live)
        if most < least:
            return False
        peak, dropped = live.index(most), False
        large = sorted((n for n in self.reads if self._bytes(n) * SHARE > most), key=self._bytes, reverse=True)
        for n in large:
            reads = self.reads[n]
            at = bisect_left(reads, peak)
            in_chain = reads[0] == peak and len(self.planned[peak]) > 1  # then it need not be stored at all
            if n in self.kept or n in self.gaps or not (in_chain or (0 < at < len(reads) and reads[at] > peak)):
                continue
            gap = (peak, reads[1]) if in_chain else (reads[at - 1], reads[at])
            if (members := self._way(n, gap[1])) is not None:
                self.gaps[n], dropped = gap, True
                self.again.setdefault(gap[1], set()).update(members)
                self._read(members, gap[1])
        return dropped

    def _spans(self, n: int, reads: Sequence[int]) -> list[_Gap]:
        """The positions from which on a value is held, and at which it no longer is."""
        end = len(self.planned) if n in self.kept else reads[-1] + 1
        if n not in self.gaps:
            return [(reads[0], end)]
        first, second = self.gaps[n]
        return [(reads[0], first + (first > reads[0])), (second, end)]

    def _bytes(self, n: int) -> int:
        return 0 if self.body[n].opcode == Opcode.SOURCE else self.body[n].numel * self.body[n].dtype.size

    def _is_live(self, n: int, position: int) -> bool:
        """Whether a value is held before a unit and read by it or later."""
        reads = self.reads.get(n, [])
        first, second = self.gaps.get(n, (position, position - 1))
        return bool(reads) and position <= reads[-1] and not first < position <= second

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
