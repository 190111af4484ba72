"""One small computation and its honest run, computed once and shared by all games of a process.

A run depends only on program, state, data and logs, not on who agreed on the job. So the caches here belong to the
computation, and each party gets them bound to its job. Nothing of a cheat's run is cached: it starts from states of the
honest run, which are only read, and has evidence of its own.

Two workshops compute the same task. "exact" uses the default policy. "logged" rounds sums to bfloat16's 16 bits, and
its trainer logs which way near ties were rounded. It sums in FP64 and uses a threshold far above FP64's errors to find
near ties, so its logs have many entries and are the same on any machine. "rollouts" computes another task, whose late
data its trainer samples; its logs have these alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any, Final

import torch

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.plan.ziv import Logging
from tiebreak.engine.capture.captured import Captured, Terms, capture_task, draft_job
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.journal import Supply, no_late_data
from tiebreak.engine.run.interpreter import Interpreter, State
from tiebreak.lab.sim.world.rollout_task import PLAIN, RolloutSampler, Sampling, rollout_task
from tiebreak.lab.sim.world.small_task import INTERVAL, STEPS, STREAM, small_task
from tiebreak.lab.sim.world.work import Lie, MemoryEvidence, MemoryRun, Trees, Work, bound, compute, first_lie, own_tree
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import PRECISION_F32, Job
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import CannotCheck, ConfigurationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy, StepLog, SumKind, pack_tolerances
from tiebreak.protocol.tags import Digest

PRECISION: Final = 16
TOLERANCE: Final = 5
"""A log decides within 2^-5 of a gap around a midpoint, which is about one sum in sixteen."""
THRESHOLD: Final = 2.0**37
"""The trainer's assumed error, in units of FP64's: as if it summed in 16-bit numbers."""
_TOLERANCES: Final = dict.fromkeys(SumKind, TOLERANCE)
_TRUTHS: Final = 8
"""The number of kept runs that follow other logs. The auditors of one game all follow the same logs."""
_NOBODY: Final = Address(bytes(19) + b"\x01")
SAMPLINGS: Final = (
    Sampling(rows=1), Sampling(rows=2, dtype=torch.float64), Sampling(dtype=torch.bfloat16), Sampling(wrong=0.5),
    Sampling(rows=2, restart=INTERVAL), Sampling(cached=True),
)  # fmt: skip
"""The ways in which honest trainers sample rollouts, besides the one of the shared run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkshopRules:
    """The task of a workshop, and the rules of its jobs."""

    task: Callable[[int], Task] = small_task
    policy: Policy = Policy.EXACT
    precision: int = PRECISION_F32
    tolerances: Mapping[SumKind, int] = field(default_factory=dict)
    finite_losses: bool = False


RULES: Final = {
    "exact": WorkshopRules(),
    "logged": WorkshopRules(policy=Policy.LOGGED, precision=PRECISION, tolerances=_TOLERANCES),
    "rollouts": WorkshopRules(policy=Policy.LOGGED, task=rollout_task, finite_losses=True),
}
CLASSIFIER: Final = ("exact", "logged")
"""The workshops whose task is that of `small_task`."""
ROLLOUTS: Final = ("rollouts",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLogs:
    """The logs that are published with a run."""

    job: Job
    program: Program
    logs: Mapping[int, StepLog] | None
    path: str = "a published run"

    def step_log(self, step: int) -> StepLog:
        """The log of a step. Raises `CannotCheck` if it was not published, `LogError` if it is impossible."""
        if self.logs is None or step not in self.logs:
            raise CannotCheck(f"expected the log of step {step}, got none")
        self.logs[step].check(self.program, step)
        return self.logs[step]


class Workshop:
    """One small computation and its honest run. Use `Workshop.open`, which makes one of each name per process."""

    def __init__(self, name: str, captured: Captured | None = None) -> None:
        """`captured` replaces the small task by another one. Raises `ConfigurationError` for an unknown name."""
        if name not in RULES:
            raise ConfigurationError(f"expected a workshop named {' or '.join(RULES)}, got {name!r}")
        self.name, self._rules = name, (rules := RULES[name])
        self.captured: Captured = capture_task(rules.task(STREAM)) if captured is None else captured
        self.program: Program = self.captured.program
        self.interpreter = _interpreter(self.program, rules, THRESHOLD)
        """The trainer's interpreter."""
        self.auditor = _interpreter(self.program, rules, None)
        self.supply: Supply = self.sampler() if self.samples else no_late_data
        """Late data of an honest trainer."""
        self._template = draft_job(
            self.captured, steps=STEPS, checkpoint_interval=INTERVAL, client=_NOBODY, trainer=_NOBODY,
            terms=Terms(finite_losses=rules.finite_losses), policy=rules.policy, precision=rules.precision,
            tolerances=pack_tolerances(dict(rules.tolerances)) if rules.tolerances else 0,
        )  # fmt: skip
        self.run = self._compute(self.interpreter)
        """The honest run. Read only, as its evidence is: all games share both."""
        self.evidence = MemoryEvidence(self.run, self.interpreter)
        self._others, self._sampled = dict[int, MemoryRun](), dict[Sampling, MemoryEvidence]()
        self._truths = OrderedDict[tuple[Digest, ...], MemoryEvidence]()

    @classmethod
    @cache
    def open(cls, name: str) -> "Workshop":
        """The workshop of this name, made at the first call."""
        return cls(name)

    @property
    def is_logged(self) -> bool:
        """Whether its jobs have policy `logged`."""
        return self._rules.policy is Policy.LOGGED

    @property
    def samples(self) -> bool:
        """Whether a step reads rollouts that its trainer samples."""
        return bool(self.program.late_slots)

    def sampler(self, how: Sampling = PLAIN, seed: int | None = None) -> RolloutSampler:
        """The sampler of a run's rollouts. seed: another one than the job's."""
        data = self.captured.data | ({} if seed is None else {"seed": torch.tensor(seed)})
        return RolloutSampler(self.interpreter, data, how)

    def job(self, *, client: Address, trainer: Address, nonce: int, terms: Terms) -> Job:
        """A job over the computation: ten steps, a checkpoint after every third and after the last."""
        return replace(self._template, client=client, trainer=trainer, **terms.job_fields | {"nonce": nonce})

    def honest(self, job: Job) -> Work:
        """The true run. Like all methods here, raises `ConfigurationError` for a job over another computation."""
        return self._work(job, self.evidence)

    def trained(self, job: Job, rng: Random) -> Work:
        """The run of an honest trainer, which samples rollouts in its own way."""
        if not self.samples:
            return self.honest(job)
        how = rng.choice(SAMPLINGS)
        if how not in self._sampled:
            run = self._compute(self.interpreter, known=self.run.steps[: how.restart], supply=self.sampler(how))
            self._sampled[how] = MemoryEvidence(run, self.interpreter)
        return self._work(job, self._sampled[how])

    def another(self, stream: int) -> MemoryRun:
        """The run from other initial weights, drawn from this stream, as a stranger would have it. Read only.

        Raises `ConfigurationError` for the stream of the honest run.
        """
        if stream == STREAM:
            raise ConfigurationError(f"expected a stream other than {STREAM}, which is the honest run's, got it")
        if stream not in self._others:
            drawn = self._rules.task(stream).initial_state()
            initial = self.captured.state | {f"{MODEL}{name}": tensor for name, tensor in drawn.items()}
            self._others[stream] = self._compute(self.interpreter, initial)
        return self._others[stream]

    def compute(
        self, interpreter: Interpreter, *, first_step: int, logs: Mapping[int, StepLog] | None = None,
        trees: Trees = own_tree, supply: Supply | None = None,
    ) -> MemoryRun:  # fmt: skip
        """A trainer's run: honest before `first_step`, by its own interpreter from there on. See `work.compute`."""
        known, supply = self.run.steps[: first_step - 1], supply or self.supply
        return self._compute(interpreter, known=known, logs=logs, trees=trees, supply=supply)

    def work_of(self, job: Job, evidence: MemoryEvidence, *, computed_steps: int | None = None) -> Work:
        """The work of a party that committed to this evidence, with the first position where it is false or forbidden.

        computed_steps: the steps that the party had to execute, if not all.
        """
        run, published = evidence.run, evidence.run.logs()
        told = run.trees is not own_tree
        truth = self._follow(published or {}, run.trees) if told else self._truth_of(run.records(), published)
        steps = job.steps if computed_steps is None else computed_steps
        lie, signed = first_lie(evidence, truth), [r.step for r in run.records() if r.step in run.forbidden]
        if lie is None and signed:
            lie = Lie(step=signed[0], leaf=len(self.program.body) - 1, element=None)
        return replace(self._work(job, evidence), lie=lie, computed_steps=steps)

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
        return compute(self._template, interpreter, initial, self.captured.data, **{"supply": self.supply} | more)

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


def _interpreter(program: Program, rules: WorkshopRules, threshold: float | None) -> Interpreter:
    thresholds = dict.fromkeys(SumKind, threshold)
    logging = Logging(thresholds=thresholds, tolerances=dict(rules.tolerances)) if rules.tolerances else None
    return Interpreter(program, Arithmetic(precision=rules.precision, logging=logging))
