"""The plan of what several workers hold and send in a step, found from the partition alone; nothing is run."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tiebreak.engine.arithmetic.plan.sums import norms
from tiebreak.engine.distributed.exchange import SHORT, numbering
from tiebreak.engine.distributed.exchange_buckets import joined, reads_state
from tiebreak.engine.distributed.layout import Split, share
from tiebreak.engine.distributed.partition import AllGather, Partition, SharedSum
from tiebreak.engine.distributed.sizes import BOUND_BYTES, SUM_BYTES
from tiebreak.engine.run.cost import Cost, cost_of
from tiebreak.protocol.program.isa import Instruction, Opcode, SourceKind

BATCH, STATE, WHOLE = "of the batch, in shards", "of weights and state, in shards", "whole on every worker"
WEIGHTS, OPERANDS, SUMS, ROUNDED, LISTS, END = (
    "weights gathered", "other operands gathered", "FP64 sums with their bounds", "rounded sums gathered",
    "which sums are undecided", "whether the state is finite",
)  # fmt: skip


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
        return cost_of(self.partition.local(self.workers - 1))

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
