"""Evidence of a cheat that also lies about how a sum was computed, so that a dispute goes down to one partial sum."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from tiebreak.engine.run.evidence import Evidence, Source
from tiebreak.engine.run.interpreter import Interpreter, Observer
from tiebreak.engine.run.logs import NO_LOGS, Logs
from tiebreak.protocol.commitments.accumulator_tree import AccumulatorTree
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.accumulator import Kind, decode_for, encode, finish
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.partial_sums import BLOCK_LEAVES
from tiebreak.sim.adversaries.observers import Tampered

_UNIT_EXPONENT = 298
"""Accumulators count in units of 2^-298 (SPEC section 6)."""


def _exact_units(bits: int) -> int:
    """A finite float32, given by its bits, in units of 2^-298."""
    exponent, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    significand = fraction | (0x800000 if exponent else 0)
    value = Fraction(significand) * Fraction(2) ** (max(exponent, 1) - 150 + _UNIT_EXPONENT)
    return -int(value) if bits >> 31 else int(value)


Bend = Callable[[int], int]
"""Maps the number of accumulators to the first one to bend."""


def halfway(count: int) -> int:
    """The middle one."""
    return count // 2


class Lies(Protocol):
    """The part of a cheat that its evidence needs."""

    def tamper(self, step: int) -> Observer | None:
        """The `Tamper` of this cheat."""

    def tells(self, step: int, leaf: int, element: int) -> bool:
        """Whether the cheat changed the number in this place."""


class ForgedEvidence(Evidence):
    """The `Evidence` of the tampered run.

    The accumulators of a tampered sum are bent, from one of them on, to fit it.
    """

    def __init__(
        self, run: Source, interpreter: Interpreter, cheat: Lies, logs: Logs = NO_LOGS, *, bend: Bend = halfway
    ) -> None:
        super().__init__(run, Tampered(interpreter, cheat.tamper), logs)
        self._cheat = cheat
        self._bend = bend

    def _make_accumulators(self, step: int, value: int, element: int) -> AccumulatorTree:
        """Honest accumulators; for a tampered element, accumulators bent to end in the tampered value."""
        honest = super()._make_accumulators(step, value, element)
        if not self._cheat.tells(step, value, element):
            return honest
        return bend_to(self.tensor(step, value), self.program.body[value], honest, element, self._bend)


def bend_to(
    data: bytes, instruction: Instruction, honest: AccumulatorTree, element: int, bend: Bend
) -> AccumulatorTree:
    """Accumulators that end in this element of `data`. `bend` selects the first one that differs.

    Only finite float32 sums are bent, and never to -0, which no sum gives. In all other cases the honest ones are
    returned.
    """
    last = decode_for(instruction, honest.last)
    claimed = int.from_bytes(data[4 * element : 4 * element + 4], "little")
    if last.kind is not Kind.F32_SUM or claimed & 0x7FFFFFFF >= NAN_BITS & 0x7F800000:
        return honest
    bent = replace(last, value=_exact_units(claimed))
    if finish(bent) != claimed:
        return honest
    return _bent(instruction, honest, bent.value - last.value, bend(honest.count))


def _bent(instruction: Instruction, honest: AccumulatorTree, missing: int, first: int) -> AccumulatorTree:
    """The tree with `missing` more units in every accumulator from number `first` on."""

    def block(number: int) -> bytes:
        found = honest.block(number)
        for place in range(max(0, first - number * BLOCK_LEAVES), len(found)):
            held = decode_for(instruction, found[place])
            found[place] = encode(replace(held, value=held.value + missing))
        return b"".join(found)

    return AccumulatorTree(honest.count, block)
