"""Puts the exchanges of a step together: a message takes long to come, however small it is.

The result of an exchange is not read before what does not depend on it is computed, within limits, and exchanges
that are begun meanwhile belong to the same unit. So the step has about as many rounds of messages as there are sums
that wait for each other. Small ones are sent when the unit is due. A large one is sent as soon as it can be, and is on
its way while the rest is computed. Weights are gathered where they are read, because they are under way beforehand.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from tiebreak.engine.distributed.exchange import JOINED
from tiebreak.engine.distributed.partition import AllGather, SharedSum
from tiebreak.engine.distributed.sizes import SUM_BYTES
from tiebreak.engine.run.schedule import Unit, plan, with_lifetimes
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.protocol.program.program import Program

AHEAD_BYTES: Final = 1 << 28
"""The bytes of results that come between the first exchange of a unit and its end, deferred ones included."""
_Members = tuple[int, ...]


def reads_state(program: Program, i: AllGather) -> bool:
    """Whether it gathers a state entry from the shards that there are before the step."""
    held = program.body[i.operands[0].value]
    return held.opcode == Opcode.SOURCE and held.function == SourceKind.STATE


def joined(program: Program) -> tuple[tuple[Unit, ...], Mapping[int, Sequence[int]]]:
    """The order of `tiebreak.engine.run.schedule`, with the instructions that exchange in few units.

    Also, by the first member of a unit, the exchanges that are begun before it.
    """
    order = _Order(program)
    waiting = [unit.members for unit in plan(program)]
    while waiting:
        waiting = order.round(waiting)
    return with_lifetimes(program, order.units), order.begun


class _Order:
    def __init__(self, program: Program) -> None:
        self.program, self.body = program, program.body
        self.units: list[_Members] = []
        self.begun: dict[int, list[int]] = {}
        self._ready: list[int] = []
        """The exchanges that can be sent before the next unit."""
        self._weights: dict[int, _Members] = {}
        """Weights that are to be gathered when something reads them."""

    def round(self, waiting: Sequence[_Members]) -> list[_Members]:
        """Takes units until the exchanges among them have to be made. Returns those that have to wait for it."""
        exchanged: list[int] = []
        blocked: set[int] = set()
        deferred: list[_Members] = []
        room = AHEAD_BYTES
        for at, unit in enumerate(waiting):
            i = self.body[unit[0]]
            if isinstance(i, AllGather) and reads_state(self.program, i):
                self._weights[unit[0]] = unit
                continue
            if not blocked.isdisjoint(self._read(unit)):
                deferred.append(unit)
                blocked.update(unit)
            elif isinstance(i, AllGather | SharedSum):
                exchanged += unit
                blocked.update(unit)
                size = i.numel * i.dtype.size if isinstance(i, AllGather) else SUM_BYTES * i.mine.numel
                if size > JOINED:
                    self._gather(unit)
                    self._ready += unit
            else:
                self._take(unit)
            if exchanged:
                room -= sum(self.body[n].numel * self.body[n].dtype.size for n in unit)
            if room < 0:
                deferred += waiting[at + 1 :]
                break
        if exchanged:
            self._take(tuple(exchanged))
        return deferred

    def _read(self, unit: _Members) -> set[int]:
        return {access.value for n in unit for access in self.body[n].operands}

    def _take(self, unit: _Members) -> None:
        self._gather(unit)
        self._append(unit)

    def _gather(self, unit: _Members) -> None:
        """Takes the weights that a unit reads."""
        for value in sorted(self._read(unit) & self._weights.keys()):
            self._append(self._weights.pop(value))

    def _append(self, unit: _Members) -> None:
        if self._ready:
            self.begun[unit[0]], self._ready = self._ready, []
        self.units.append(unit)
