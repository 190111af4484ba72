"""One small computation and its honest run, computed once and shared by all games of a process.

A run depends only on program, state, data and logs, not on who agreed on the job. So the caches here belong to the
computation, and each party gets them bound to its job. Nothing of a cheat's run is cached: it starts from states of the
honest run, which are only read, and has evidence of its own.

Both workshops compute the same task. "exact" uses the default policy. "logged" rounds sums to bfloat16's 16 bits, and
its trainer logs which way near ties were rounded. It sums in FP64 and uses a threshold far above FP64's errors to find
near ties, so its logs have many entries and are the same on any machine.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Final

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import Captured, Terms, capture_task, draft_job
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.lab.sim.world.small_task import INTERVAL, STEPS, STREAM, small_task
from tiebreak.lab.sim.world.work import MemoryEvidence, MemoryRun, Trees, Work, bound, compute, first_lie, own_tree
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import PRECISION_F32, Job
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, ConfigurationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy, StepLog, SumKind, pack_tolerances
from tiebreak.protocol.tags import Digest

NAMES: Final = ("exact", "logged")
PRECISION: Final = 16
TOLERANCE: Final = 5
"""A log decides within 2^-5 of a gap around a midpoint, which is about one sum in sixteen."""
THRESHOLD: Final = 2.0**37
"""The trainer's assumed error, in units of FP64's: as if it summed in 16-bit numbers."""
_TOLERANCES: Final = dict.fromkeys(SumKind, TOLERANCE)
_TRUTHS: Final = 8
"""The number of kept runs that follow other logs. The auditors of one game all follow the same logs."""
_NOBODY: Final = Address(bytes(19) + b"\x01")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLogs:
    """The logs that are published with a run."""

    job: Job
    program: Program
    logs: Mapping[int, StepLog] | None
    path: str = "a published run"

    def step_log(self, step: int) -> StepLog:
        """The log of a step. Raises `CannotCheck` if it was not published."""
        if self.logs is None or step not in self.logs:
            raise CannotCheck(f"expected the log of step {step}, got none")
        return self.logs[step]


class Workshop:
    """One small computation and its honest run. Use `Workshop.open`, which makes one of each name per process."""

    def __init__(self, name: str, captured: Captured | None = None) -> None:
        """`captured` replaces the small task by another one. Raises `ConfigurationError` for an unknown name."""
        if name not in NAMES:
            raise ConfigurationError(f"expected a workshop named {' or '.join(NAMES)}, got {name!r}")
        self.name = name
        self.captured: Captured = capture_task(small_task()) if captured is None else captured
        self.program: Program = self.captured.program
        logged = name == "logged"
        self.interpreter = _interpreter(self.program, logged, THRESHOLD)
        """The trainer's interpreter."""
        self.auditor = _interpreter(self.program, logged, None)
        self._template = draft_job(
            self.captured,
            steps=STEPS,
            checkpoint_interval=INTERVAL,
            client=_NOBODY,
            trainer=_NOBODY,
            terms=Terms(),
            policy=Policy.LOGGED if logged else Policy.EXACT,
            precision=PRECISION if logged else PRECISION_F32,
            tolerances=pack_tolerances(_TOLERANCES) if logged else 0,
        )
        self.run = self._compute(self.interpreter)
        """The honest run. Read only, as its evidence is: all games share both."""
        self.evidence = MemoryEvidence(self.run, self.interpreter)
        self._others = dict[int, MemoryRun]()
        self._truths = OrderedDict[tuple[Digest, ...], MemoryEvidence]()

    @classmethod
    @cache
    def open(cls, name: str) -> "Workshop":
        """The workshop of this name, made at the first call."""
        return cls(name)

    def job(self, *, client: Address, trainer: Address, nonce: int, terms: Terms) -> Job:
        """A job over the computation: ten steps, a checkpoint after every third and after the last."""
        return replace(self._template, client=client, trainer=trainer, **terms.job_fields | {"nonce": nonce})

    def honest(self, job: Job) -> Work:
        """The true run. Like all methods here, raises `ConfigurationError` for a job over another computation."""
        return self._work(job, self.evidence)

    def another(self, stream: int) -> MemoryRun:
        """The run from other initial weights, drawn from this stream, as a stranger would have it. Read only.

        Raises `ConfigurationError` for the stream of the honest run.
        """
        if stream == STREAM:
            raise ConfigurationError(f"expected a stream other than {STREAM}, which is the honest run's, got it")
        if stream not in self._others:
            initial = self.captured.state | {f"{MODEL}{n}": x for n, x in small_task(stream).initial_state().items()}
            self._others[stream] = self._compute(self.interpreter, initial)
        return self._others[stream]

    def compute(
        self, interpreter: Interpreter, *, first_step: int, logs: Mapping[int, StepLog] | None = None,
        trees: Trees = own_tree,
    ) -> MemoryRun:  # fmt: skip
        """A trainer's run: honest before `first_step`, by its own interpreter from there on. See `work.compute`."""
        return self._compute(interpreter, known=self.run.steps[: first_step - 1], logs=logs, trees=trees)

    def work_of(self, job: Job, evidence: MemoryEvidence, *, computed_steps: int | None = None) -> Work:
        """The work of a party that committed to this evidence, with the first position where it is false.

        computed_steps: the steps that the party had to execute, if not all.
        """
        run, published = evidence.run, evidence.run.logs()
        told = run.trees is not own_tree
        truth = self._follow(published or {}, run.trees) if told else self._truth_of(run.records(), published)
        steps = job.steps if computed_steps is None else computed_steps
        return replace(self._work(job, evidence), lie=first_lie(evidence, truth), computed_steps=steps)

    def audited(self, job: Job, published: Work) -> Work:
        """The work of a diligent auditor: the true run, which under policy `logged` follows the published logs.

        Raises `CannotCheck` if logs are withheld, or differ from the commitment, before any record is false. If a
        record is false before that place, the returned work is good for a challenge, but meaningless after the place.
        """
        return self._work(job, self._truth_of(published.records, published.logs))

    def readable(self, published: Work) -> tuple[int, str]:
        """The number of checkpoints whose published logs hash to the records, and what is wrong with the next ones."""
        roots, problem = self._readable(published.records, published.logs)
        return len(roots), str(problem or "")

    def told(self, job: Job, work: Work) -> Work:
        """The work of an auditor that knows the logs and log trees which a party of this process committed to."""
        run = work.oracle.run
        return self._work(job, self._follow(run.logs() or {}, run.trees))

    def _work(self, job: Job, evidence: MemoryEvidence) -> Work:
        """The work of a party with this evidence, if it is true."""
        return Work(
            records=tuple(evidence.run.records()),
            oracle=bound(evidence, job),
            computed_steps=job.steps,
            lie=None,
            kept=evidence.run.state,
            logs=evidence.run.logs(),
        )

    def _compute(self, interpreter: Interpreter, initial: State | None = None, **more: Any) -> MemoryRun:
        initial = self.captured.state if initial is None else initial
        return compute(self._template, interpreter, initial, self.captured.data, **more)

    def _truth_of(self, records: Sequence[StepRecord], logs: Mapping[int, StepLog] | None) -> MemoryEvidence:
        """The run that follows the committed logs, as far as they can be read.

        Raises `CannotCheck` if they end early and the records are true up to there.
        """
        if not self._template.is_logged:
            return self.evidence
        roots, problem = self._readable(records, logs)
        if roots not in self._truths:
            job = self._template
            steps = range(1, (job.last_step(len(roots) - 1) if roots else 0) + 1)
            self._truths[roots] = self._follow({step: (logs or {})[step] for step in steps})
        self._truths.move_to_end(roots)
        if len(self._truths) > _TRUTHS:
            self._truths.popitem(last=False)
        truth = self._truths[roots]
        if problem is not None and truth.run.records()[: len(roots)] == list(records[: len(roots)]):
            raise problem
        return truth

    def _readable(
        self, records: Sequence[StepRecord], logs: Mapping[int, StepLog] | None
    ) -> tuple[tuple[Digest, ...], CannotCheck | None]:
        """The log roots of the first checkpoints whose logs are there, and the problem that ended the list, if any."""
        published = PublishedLogs(job=self._template, program=self.program, logs=logs)
        committed, roots = CommittedLogs(published, records.__getitem__), list[Digest]()
        for checkpoint in range(self._template.checkpoints):
            try:
                roots.append(committed.log_root(checkpoint))
            except CannotCheck as problem:
                return tuple(roots), problem
        return tuple(roots), None

    def _follow(self, logs: Mapping[int, StepLog], trees: Trees = own_tree) -> MemoryEvidence:
        """The run that follows these logs; steps after the last log are computed without one."""
        own = self.run.steps
        same = next((n for n, step in enumerate(own) if step.log != logs.get(n + 1)), len(own))
        if same == len(own) and trees is own_tree:
            return self.evidence
        run = self._compute(self.auditor, known=own[:same], logs=logs, trees=trees)
        return MemoryEvidence(run, self.auditor)


Deviation = Callable[[Workshop, Job, Random], Work]
"""A computation of the trainer instead of the job. All choices are drawn from the `Random`."""


def _interpreter(program: Program, logged: bool, threshold: float | None) -> Interpreter:
    if not logged:
        return Interpreter(program, Arithmetic())
    thresholds = dict.fromkeys(SumKind, threshold)
    logging = Logging(thresholds=thresholds, tolerances=_TOLERANCES)
    return Interpreter(program, Arithmetic(precision=PRECISION, logging=logging))
