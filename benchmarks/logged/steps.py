"""One training step of each party under policy `logged`, log included, in a form that can be called repeatedly."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from benchmarks.steps import ExactStep
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging, NearTies
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.logged.encoding import decode_sparse, encode_sparse
from tiebreak.engine.logged.journal import Recorder
from tiebreak.engine.logged.log_replay import Follower
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.rounding import SumKind, pack_tolerances, sum_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which sums are computed and rounded."""

    precision: int
    logging: Logging

    @property
    def tolerances(self) -> int:
        """The tolerances as the field of a job."""
        return pack_tolerances(dict(self.logging.tolerances))

    def arithmetic(self, permute: int | None = None) -> Arithmetic:
        """A new `Arithmetic` that follows these rules."""
        return Arithmetic(permute=permute, precision=self.precision, logging=self.logging)


@dataclass(slots=True)
class Entered:
    """Counts of entries of one kind of sum, and of what happened to them in audits."""

    entries: int = 0
    needed: int = 0
    missing: int = 0
    elsewhere: int = 0

    def add(self, other: "Entered") -> None:
        """Adds the counts of `other` to these."""
        self.entries += other.entries
        self.needed += other.needed
        self.missing += other.missing
        self.elsewhere += other.elsewhere


class Ignoring:
    """`Sums` of a party that rounds its own values and ignores every log."""

    def settle(self, *_: object) -> None:
        """Leaves the result as it is."""


class Tally:
    """`Sums` that settles as a follower does, and counts what happened by kind of sum."""

    def __init__(self, follower: Follower, counts: Mapping[SumKind, Entered], log_entries: Mapping[int, int]) -> None:
        self._follower, self._counts, self._entries = follower, counts, log_entries

    def settle(
        self, index: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        """Settles the result as the follower does, and counts."""
        report, kind = self._follower.report, sum_kind(instruction)
        assert kind is not None  # no other kind of instruction is settled
        needed, missing, elsewhere = report.needed, report.missing, report.elsewhere
        self._follower.settle(index, instruction, operands, result, near)
        found = self._counts[kind]
        found.entries += self._entries.get(index, 0)
        found.needed += report.needed - needed
        found.missing += report.missing - missing
        found.elsewhere += report.elsewhere - elsewhere


class Trainer(ExactStep):
    """Computes, logs, encodes the log and makes its tree. permute: take sums in random orders."""

    def __init__(self, captured: Captured, steps: int, rules: Rules, permute: int | None = None) -> None:
        super().__init__(captured, steps, arithmetic=rules.arithmetic(permute))
        self.rules, self.program = rules, captured.program
        self.encoded, self.root = b"", ZERO_DIGEST
        self.losses: list[float] = []
        self.handling: list[float] = []
        """Seconds of each step spent on the log's encoding and tree."""

    def __call__(self) -> None:
        recorder = Recorder()
        self.losses.append(self.advance(recorder).loss)
        started = time.perf_counter()
        log = recorder.log
        self.encoded = encode_sparse(log, self.program, self.number)
        self.root = LogTree(self.program, log).root
        self.handling.append(time.perf_counter() - started)


class Auditor(ExactStep):
    """Follows the logs of a trainer that is one step ahead, and checks them against the trainer's commitment."""

    def __init__(self, captured: Captured, steps: int, trainer: Trainer, job: Job, permute: int | None = None) -> None:
        super().__init__(captured, steps, arithmetic=trainer.rules.arithmetic(permute))
        self.program, self._trainer, self._job = captured.program, trainer, job
        self.counts = {kind: Entered() for kind in SumKind}
        self.handling: list[float] = []

    def __call__(self) -> None:
        started = time.perf_counter()
        step = self._trainer.number
        log = decode_sparse(self._trainer.encoded, self.program, step)
        if LogTree(self.program, log).root != self._trainer.root:
            raise StateError(f"step {step}: expected a log with the root {self._trainer.root.hex()}, got another")
        follower = Follower(self.program, log, self._job, self.arithmetic, step)
        counted = {index: len(entries) for index, entries in log.entries.items()}
        self.handling.append(time.perf_counter() - started)
        self.advance(Tally(follower, self.counts, counted))


class Unlogged(ExactStep):
    """A party that computes by the same rules but uses no log."""

    def __init__(self, captured: Captured, steps: int, rules: Rules, permute: int | None = None) -> None:
        super().__init__(captured, steps, arithmetic=rules.arithmetic(permute))

    def __call__(self) -> None:
        self.advance(Ignoring())
