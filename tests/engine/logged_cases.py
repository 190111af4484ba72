"""Runs under policy `logged` for the engine's tests: jobs, machines, and a trainer that takes every liberty.

In FP64 hardly anything lies near a tie: about one element in 2^40. So thresholds here are a million times what is
needed, which makes a log of a share of all elements; and the trainer who *flips* rounds each of those to the other
neighbour, as other hardware might one of them. An auditor who does not follow it forks at the first.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from tests.tampered import Tamper, Tampered
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging, NearTies
from tiebreak.engine.capture.captured import Captured, Terms, capture_task, draft_job, sign_job
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.elements import bits_of, put_bits, toward, went_up
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.logged.journal import LogsInProgress, Recorder
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.logs import LogReport
from tiebreak.engine.run.segments import signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.job import Job, SignedJob
from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.rounding import Policy, StepLog, SumKind, pack_tolerances, tolerance_of

from .tiny import CLIENT, DOMAIN, TRAINER, make_tiny_task

STEPS, INTERVAL = 24, 4
WIDE = 2.0**24
"""A threshold of some million times what FP64 sums of a few terms need."""
TOLERANCE = 2


@cache
def captured() -> Captured:
    return capture_task(make_tiny_task(STEPS, INTERVAL))


def logged_job(
    precision: int = 32, tolerance: int = TOLERANCE, interval: int = INTERVAL, made: Captured | None = None
) -> SignedJob:
    job = draft_job(
        made or captured(), steps=STEPS, checkpoint_interval=interval, client=CLIENT.address, trainer=TRAINER.address,
        terms=Terms(clock=1000), policy=Policy.LOGGED, precision=precision,
        tolerances=pack_tolerances(dict.fromkeys(SumKind, tolerance)),
    )  # fmt: skip
    return sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)


def new_run(path: Path, agreement: SignedJob, made: Captured | None = None) -> RunDirectory:
    made = made or captured()
    return RunDirectory.create(path, agreement, made.program, made.state, made.data)


def logging_of(job: Job, threshold: float | None = WIDE) -> Logging:
    tolerances = {kind: tolerance_of(job.tolerances, kind) for kind in SumKind}
    return Logging(thresholds=dict.fromkeys(SumKind, threshold), tolerances=tolerances)


def machine(job: Job, threshold: float | None = WIDE, permute: int | None = None) -> Interpreter:
    logging = logging_of(job, threshold) if job.is_logged else None
    arithmetic = Arithmetic(permute=permute, precision=job.precision, logging=logging)
    return Interpreter(captured().program, arithmetic)


class Flipping(Recorder):
    """Records, and rounds each element that it may to the other neighbour."""

    precision = 32

    def settle(
        self, index: int, instruction: Instruction, operands: Sequence[Tensor], result: Tensor, near: NearTies
    ) -> None:
        if len(near):
            own = bits_of(result, near.elements)
            other = toward(own, near.values, ~went_up(own, near.values), self.precision)
            put_bits(result, near.elements, other)
        super().settle(index, instruction, operands, result, near)


def train(
    run: RunDirectory, threshold: float | None = WIDE, permute: int | None = None, tamper: Tamper = lambda _: None,
    **options: object,
) -> bytes:  # fmt: skip
    computer = Tampered(machine(run.job, threshold, permute), tamper)
    return Worker(run, computer, key=TRAINER, logs=LogsInProgress.of(run), **options).work()  # type: ignore[arg-type]


def log_of(run: RunDirectory, step: int) -> StepLog:
    return LogFiles(run).step_log(step)


def published(run: RunDirectory) -> CommittedLogs:
    return CommittedLogs(LogFiles(run), signed_records(run)[0].__getitem__)


class Replay(NamedTuple):
    run: RunDirectory
    report: LogReport


def replay(run: RunDirectory, path: Path, threshold: float | None = WIDE, permute: int | None = None) -> Replay:
    own = new_run(path, run.agreement)
    logs = LogsInProgress(own, published(run).step_log)
    Worker(own, machine(run.job, threshold, permute), logs=logs).work()
    return Replay(own, logs.report)
