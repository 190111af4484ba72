"""The plan of a step on several workers, found from the partition alone: its order, and what they hold and send.

The order puts the exchanges of a step together: a message takes long to come, however small it is.
The result of an exchange is not read before what does not depend on it is computed, within limits, and exchanges
that are begun meanwhile belong to the same unit. So the step has about as many rounds of messages as there are sums
that wait for each other. Small ones are sent when the unit is due. A large one is sent as soon as it can be, and is on
its way while the rest is computed. Weights are gathered where they are read, because they are under way beforehand.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tiebreak.engine.arithmetic.plan.chains import Unit
from tiebreak.engine.arithmetic.plan.sums import norms
from tiebreak.engine.distributed.exchange import JOINED, SHORT, numbering
from tiebreak.engine.distributed.layout import Split, share
from tiebreak.engine.distributed.partition import AllGather, Partition, SharedSum
from tiebreak.engine.distributed.wire import BOUND_BYTES, SUM_BYTES
from tiebreak.engine.run.cost import Cost, cost_of
from tiebreak.engine.run.schedule import plan, with_lifetimes
from tiebreak.protocol.program.isa import Instruction, Opcode, SourceKind
from tiebreak.protocol.program.program import Program

AHEAD_BYTES: Final = 1 << 28
"""The bytes of results that come between the first exchange of a unit and its end, deferred ones included."""
_Members = tuple[int, ...]
BATCH, STATE, WHOLE = "of the batch, in shards", "of weights and state, in shards", "whole on every worker"
WEIGHTS, OPERANDS, SUMS, ROUNDED, LISTS, END = (
    "weights gathered", "other operands gathered", "FP64 sums with their bounds", "rounded sums gathered",
    "which sums are undecided", "whether the state is finite",
)  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Held:
    """Values of one kind, without data: how many there are, their bytes, and the most that one worker has of them."""

    values: int
    bytes: int
    share: int


@dataclass(frozen=True)
class Plan:
    """A program's step on several workers. Bytes that a worker sends to the others are listed by worker."""

    partition: Partition

    @property
    def workers(self) -> int:
        return self.partition.workers

    @cached_property
    def held(self) -> dict[str, Held]:
        """The values of a step by how they are held: in shards of the batch, in shards of the state, or whole."""
        last, found = self.workers - 1, {kind: Held(0, 0, 0) for kind in (BATCH, STATE, WHOLE)}
        for i, split, batched in zip(
            self.partition.program.body, self.partition.layouts, self.partition.batched, strict=True
        ):
            if i.opcode == Opcode.SOURCE and i.function == SourceKind.DATA:
                continue
            kind = WHOLE if split is None else BATCH if batched else STATE
            size, mine = i.dtype.size, i.numel if split is None else _held(split, last, self.workers)
            old = found[kind]
            found[kind] = Held(old.values + 1, old.bytes + size * i.numel, old.share + size * mine)
        return found

    @cached_property
    def sent(self) -> dict[str, list[int]]:
        """The bytes of a step, by kind of exchange.

        Exact parts of elements that FP64 leaves undecided are extra; their number depends on the data.
        """
        found: dict[str, list[int]] = {}
        for worker in range(self.workers):
            sent = Counter[str]()
            program = self.partition.local(worker)
            for i in program.body:
                if isinstance(i, AllGather):
                    sent[WEIGHTS if reads_state(program, i) else OPERANDS] += (
                        self._to_others(i.split, worker) * i.dtype.size
                    )
                elif isinstance(i, SharedSum):
                    sent.update(dict(self._sum(i, worker)))
            for unit in self.rounds:
                if held := sum(i.mine.numel for i in unit if isinstance(i, SharedSum) and i.split is not None):
                    sent[LISTS] += (1 + SHORT) * numbering(held).itemsize * (self.workers - 1)
            sent[END] += 8 * (self.workers - 1)
            for kind, count in sent.items():
                found.setdefault(kind, [0] * self.workers)[worker] = count
        return found

    @cached_property
    def rounds(self) -> list[list[Instruction]]:
        """The exchanges of a step that are made at once, without those that are under way before it begins."""
        program = self.partition.local(self.workers - 1)
        units = ([program.body[n] for n in unit.members] for unit in joined(program)[0])
        return [
            unit for unit in units
            if isinstance(unit[0], SharedSum) or (isinstance(unit[0], AllGather) and not reads_state(program, unit[0]))
        ]  # fmt: skip

    @cached_property
    def checkpoint(self) -> list[int]:
        """The bytes that bring the state to the first worker, after each step whose state is committed."""
        found = [0] * self.workers
        for dtype, shape in self.partition.program.state_spec().values():
            if (split := self.partition.state_layout(shape)) is not None:
                for worker in range(1, self.workers):
                    found[worker] += dtype.size * _held(split, worker, self.workers)
        return found

    @cached_property
    def cost(self) -> Cost:
        """The cost of the step for the worker that has most of it, data included."""
        local = self.partition.local(self.workers - 1)
        return cost_of(local, joined(local)[0])

    def _to_others(self, split: Split, worker: int) -> int:
        return _held(split, worker, self.workers) * (self.workers - 1)

    def _sum(self, i: SharedSum, worker: int) -> Iterator[tuple[str, int]]:
        """The bytes that a worker sends of a sum, by kind of exchange, without those of undecided elements."""
        others, of_norms = self.workers - 1, BOUND_BYTES * norms(i.mine)
        each = SUM_BYTES if of_norms else SUM_BYTES + BOUND_BYTES
        if i.everywhere:
            yield SUMS, others * (each * i.mine.numel + of_norms)
            return
        split = Split(1, i.mine.numel, 1) if i.split is None else i.split
        yield SUMS, each * (split.numel - _held(split, worker, self.workers)) + of_norms * others
        if i.split is None:
            yield ROUNDED, self._to_others(split, worker) * i.dtype.size


def _held(split: Split, worker: int, workers: int) -> int:
    """The elements of a worker's shard."""
    begin, end = share(split.size, worker, workers)
    return split.outer * (end - begin) * split.inner
