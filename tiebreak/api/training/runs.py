"""Runs on disk: committed at every checkpoint, resumable after a crash, open to audits, and disputable if signed."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, nullcontext
from dataclasses import fields, replace
from functools import partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Final, cast

from torch import Tensor

from tiebreak.api.auditing.audits import audit_chosen, segments_of
from tiebreak.api.auditing.progress import Tally, on_stderr
from tiebreak.api.disputing.disputes import Dispute, dispute, open_both
from tiebreak.api.machine import MACHINE, Machine
from tiebreak.api.machine.interpreters import Policy, as_policy, make_interpreter
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import Bundle, capture_bundle
from tiebreak.api.training.distributed import joined
from tiebreak.api.training.reading import CHECKS, check_of, open_directory
from tiebreak.api.training.settings import check_unchanged, remember
from tiebreak.api.training.tasks import CHECK, TASK, adapter_names, as_state_dict, state_names
from tiebreak.api.training.trainer import Callbacks, Step, evaluate_state, norm_in, tell
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.captured import Captured, Terms, draft_job, sign_job
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data.disk import write_file
from tiebreak.engine.distributed.exchange import Exchange
from tiebreak.engine.distributed.train import SharedInterpreter, SharedWeights, follow
from tiebreak.engine.logged.journal import LogsInProgress, Supply, no_late_data
from tiebreak.engine.logged.policy import POLICY, LoggedPolicy, policy_of
from tiebreak.engine.run.audit import SegmentAudit
from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.directory import MAX_NAMES_BYTES, NAMES, ORIGINS, TITLE, UNCHECKED, Keep, RunDirectory, titled
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.engine.run.segments import draw_segments, signed_records
from tiebreak.engine.run.train import OnCommit, OnProgress, Progress, Worker
from tiebreak.protocol.arguments import CALLBACKS, FLAG, FUNCTION, NONE, PATH, TEXT, instance, taking, whole
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address, Domain
from tiebreak.protocol.commitments.job import PRECISION_F32, Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.seats import drawable
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program import rounding
from tiebreak.protocol.tags import Digest

KEY: Final = instance("a key (tiebreak.load_key reads one)", PrivateKey)
PRECISION: Final = whole(MIN_PRECISION, MAX_PRECISION)
SETTINGS: Final = "settings.json"
"""The file with the settings that a run was made with (`remember`)."""
POLICY_OR_PATH: Final = instance("a policy of tiebreak.calibrate", LoggedPolicy) | PATH


LateData = Callable[[int, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""supply(step, weights) -> the late data of a step (from 1) by name, as the task's `late` shows them.

weights: weights and buffers before the step, with the keys of `state_dict`: the engine's own tensors, on the device
that computes; copy them, and never write to them.
"""


class Run:
    """A run in its directory. `tiebreak.train` and `tiebreak.agree` make one, `tiebreak.open_run` opens it again.

    opened: its files, checked. machine: how this process computes. task: for its `evaluate`, if this process has it.
    """

    def __init__(self, opened: RunDirectory, machine: Machine = Machine(), task: Task | None = None) -> None:
        self.metrics: dict[int, dict[str, float]] = {}
        """The results of the task's `evaluate` in this process, by step; empty for a run that `open_run` opened."""
        self._task, self._run, self._machine = task, opened, machine

    def __repr__(self) -> str:
        return f"<tiebreak run of job {self.job.id.hex()[:16]} in {self.directory}: step {self.step} of {self.steps}>"

    @property
    def directory(self) -> Path:
        return self._run.path

    @property
    def job(self) -> Job:
        """The parties' agreement: the roots of program, initial state and data; steps, stakes and clocks."""
        return self._run.job

    @property
    def check(self) -> str:
        """The comparison of the program with eager PyTorch: "full", "slice" or "none", as the folder says."""
        return check_of(self._run)

    @property
    def steps(self) -> int:
        """The number of steps in the job."""
        return self.job.steps

    @property
    def step(self) -> int:
        """The step of the last complete checkpoint; 0 before the first."""
        return self._run.last_complete()

    @property
    def finished(self) -> bool:
        return len(self._run.records()) == self.job.checkpoints

    @property
    def losses(self) -> list[float]:
        """The loss of each step so far, in order."""
        return [float(line["loss"]) for line in self._run.metrics() if line["step"] <= self.steps]

    @property
    def root(self) -> str:
        """Root of the run tree over the checkpoints so far, in hex. Everyone who computes them gets the same root."""
        return self._run.root().hex()

    @property
    def signed(self) -> int:
        """The number of checkpoints that the trainer has signed; 0 for a run without keys."""
        head = self._run.last_head()
        return 0 if head is None else head.head.count

    @taking(step=whole(0) | NONE)
    def state_dict(self, step: int | None = None) -> dict[str, Tensor]:
        """Weights and buffers for the module's `load_state_dict`, checked against their record.

        Without what bitsandbytes holds in 4 bits: of such a model, load it with `strict=False`. step: the step of a
        kept checkpoint, 0 for the initial state [default: the last checkpoint]. Raises `StateError` if there is no
        checkpoint at that step or its state was not kept, `VerificationError` if the state is damaged.
        """
        at = self.step if step is None else step
        if at and at not in [record.step for record in self._run.records()]:
            raise StateError(f"expected the step of a checkpoint so far, got {step}")
        if not self._run.state_path(at).is_file():
            raise StateError(f"the state after step {at} was not kept; replay to it")
        return as_state_dict(self._run.state(at, narrow=True), four_bit.loadable(names_of(self._run)))

    @taking(
        key=KEY | NONE, until=whole(1) | NONE, progress=FLAG, keep=TEXT, callbacks=CALLBACKS, supply=FUNCTION | NONE
    )
    def resume(
        self, key: PrivateKey | None = None, *, until: int | None = None, progress: bool = True, keep: str = "all",
        callbacks: Callbacks = (), supply: LateData | None = None, exchange: Exchange | None = None,
    ) -> "Run":  # fmt: skip
        """Computes from the last complete checkpoint to step `until` (default: the end) and returns the run.

        key: the trainer's key; with it, a head is signed at every checkpoint. progress: show a bar with the loss on
        stderr. keep: the checkpoints that stay on disk, `all`, `every:M` or `last`; an audit recomputes what was
        dropped. callbacks: called with each `tiebreak.Step`, and once more, with metrics, when the task's `evaluate`
        was called on a checkpoint. supply: see `LateData`. exchange: the workers that compute together; all of them
        call this, and the first one has key, bar and callbacks. Raises `StateError` if the loss or the state is no
        longer finite; whatever is committed by then stays.
        """
        tally = Tally()
        with on_stderr("training", self.steps, self.step, quiet=not progress) as on_step:

            def told(progress: Progress) -> None:
                tally.step(progress)
                on_step(progress.step, progress.loss, tally.words())
                if not isfinite(progress.loss):
                    raise NotFiniteError(progress.step, "the loss")
                model = None if self._task is None else self._task.model
                tell(callbacks, Step(progress.step, progress.loss, progress.seconds), model)

            def committed(commit: Commit) -> None:
                tally.commit(commit)
                self._evaluate(commit.record.step, callbacks)

            machine = replace(self._machine, exchange=exchange)
            continue_run(
                self._run, machine, key=key, until=until, keep=keep, on_progress=told, on_commit=committed,
                supply=self._supplied(supply),
            )  # fmt: skip
        return self

    @property
    def late(self) -> tuple[str, ...]:
        """The names of the late data that a step reads."""
        return tuple(self._run.program.late_spec())

    @taking(key=KEY | NONE, keep=TEXT, supply=FUNCTION | NONE)
    def iterate(
        self, key: PrivateKey | None = None, *, keep: str = "all", supply: LateData | None = None,
        exchange: Exchange | None = None,
    ) -> Generator[tuple[Step, Mapping[str, Tensor]]]:  # fmt: skip
        """Computes what is left, each step when it is asked for, and yields it with its weights and buffers.

        These are the engine's own tensors, with the keys of `state_dict`, on the device that computes: copy them before
        the next step is asked for, and never write to them. Frozen ones may be in bfloat16. key, keep, supply,
        exchange: as in `resume`. Several workers read the same weights at the same time, since they hold them in
        shards.
        A loop that ends early leaves the run at its last checkpoint. Raises what `resume` raises.
        """
        names = names_of(self._run)
        interpreter = _interpreter(self._run, replace(self._machine, exchange=exchange), key)
        computed = _followed(self._run, interpreter, None, check_finite=key is not None)
        if computed is None:
            logs = LogsInProgress.of(self._run, supply=self._supplied(supply))
            computed = Worker(self._run, interpreter, key=key, keep=Keep.parse(keep), logs=logs).each()
        with closing(computed):
            for progress, state in computed:
                if not isfinite(progress.loss):
                    raise NotFiniteError(progress.step, "the loss")
                weights: Mapping[str, Tensor] = {key: state[entry] for key, entry in names.items()}
                if isinstance(interpreter, SharedInterpreter):
                    weights = SharedWeights(interpreter, state, names)
                yield Step(progress.step, progress.loss, progress.seconds, norm=norm_in(state)), weights

    def _supplied(self, supply: LateData | None) -> Supply:
        """The supply of late data from entries of the state. Raises `ConfigurationError` if one is missing."""
        program, names = self._run.program, names_of(self._run)
        if (supply is None) == bool(program.late_slots):
            wanted = ", ".join(program.late_spec()) or "nothing"
            raise ConfigurationError(f"expected a supply for a task with late data, which reads {wanted}, and no other")
        if supply is None:
            return no_late_data
        return lambda step, state: supply(step, {key: state[entry] for key, entry in names.items()})

    def _evaluate(self, step: int, callbacks: Callbacks) -> None:
        """Measures the state of a checkpoint, if the task can and it is due."""
        task = self._task
        if task is None or task.evaluate is None or (step % (task.evaluate_every or step) and step != self.steps):
            return
        started = time.perf_counter()
        self.metrics[step] = evaluate_state(task, self._run.state(step, narrow=True))
        found = Step(step, self.losses[step - 1], time.perf_counter() - started, self.metrics[step])
        tell(callbacks, found, task.model)

    @taking(sample=whole(1) | NONE, seed=TEXT | NONE, from_step=whole(1) | NONE, to_step=whole(1) | NONE, progress=FLAG)
    def audit(
        self, *, sample: int | None = None, seed: str | None = None, from_step: int | None = None,
        to_step: int | None = None, progress: bool = False,
    ) -> SegmentAudit:  # fmt: skip
        """Computes all or part of the run again and compares every record on the way. Writes nothing.

        Without arguments it checks everything that is committed, from the initial state. from_step, to_step: check the
        segments that contain these steps. sample, seed: check that many segments, drawn from the seed and the run root
        (see `tiebreak audit`). Only the signed part of a signed run is checked. The result's `agrees` and `fraud` tell
        the outcome. Raises `CannotCheck` if something that the audit needs is missing.
        """
        records, root = self._run.records(), Digest(bytes.fromhex(self.root))
        if self.signed:
            records, head = signed_records(self._run)
            root = head.head.run_root
        if not records:
            raise StateError("expected a run with at least one checkpoint, got none; nothing to audit yet")
        if sample is not None:
            if seed is None or from_step is not None or to_step is not None:
                raise ConfigurationError("expected a sample with a seed, and no steps beside it")
            chosen = draw_segments(len(records), sample, seed.encode(), root)
        else:
            chosen = segments_of(self._run, len(records), from_step, to_step)
        return audit_chosen(self._run, chosen, records, self._machine, quiet=not progress)

    @taking(replay=PATH, count=whole(1) | NONE)
    def dispute(self, replay: str | Path, *, count: int | None = None) -> Dispute | None:
        """Plays the verification game over a signed head of this run, against the auditor's replay of the same job.

        replay: the directory that a whole audit (`tiebreak audit`) has made. count: how many checkpoints the head
        covers [default: those of the last]. Returns None if the head is what the program produces; otherwise the
        result's `sentence` names the first checkpoint, step, module and instruction that differ, and `loser` the party
        that the referee convicts. Raises `ConfigurationError` if there is no such head, or the replay is of another
        job.
        """
        return dispute(*open_both(self.directory, Path(replay)), self._machine, count)


def continue_run(
    run: RunDirectory, machine: Machine, *, key: PrivateKey | None, until: int | None, keep: str,
    on_progress: OnProgress, on_commit: OnCommit, diverging: bool = False, supply: Supply = no_late_data,
) -> Digest:  # fmt: skip
    """Computes from the last complete checkpoint to step `until` (default: the end). Returns the root of the run tree.

    machine: without thresholds of its own it has those in the directory. diverging: continue even if the state is no
    longer finite. Of several workers the first one needs the key, and does all that concerns the directory. Raises
    `ConfigurationError` if the key is not the trainer's, or if the job has no such step.
    """
    job, kept = run.job, Keep.parse(keep)
    if until is not None and not 1 <= until <= job.steps:
        raise ConfigurationError(f"expected until of 1 to {job.steps} steps, got {until}")
    interpreter = _interpreter(run, machine, key)
    if computed := _followed(run, interpreter, until, check_finite=key is not None and not diverging):
        for _ in computed:
            pass
        return Digest(cast("SharedInterpreter", interpreter).agreed(bytes(32)))
    worker = Worker(
        run, interpreter, key=key, keep=kept, on_progress=on_progress, on_commit=on_commit,
        stop_if_not_finite=not diverging, logs=LogsInProgress.of(run, supply=supply),
    )  # fmt: skip
    root = worker.work(until)
    return Digest(interpreter.agreed(root)) if isinstance(interpreter, SharedInterpreter) else root


def _followed(
    run: RunDirectory, interpreter: Interpreter, until: int | None, *, check_finite: bool
) -> Generator[tuple[Progress, Mapping[str, Tensor]]] | None:
    """The steps of a worker other than the first, once all have the same job; None on the first, and for one alone."""
    if not isinstance(interpreter, SharedInterpreter):
        return None
    interpreter.compare({"job": run.job, "last step": until or run.job.steps})
    agreed = bool(interpreter.agreed(bytes([check_finite]))[0])
    if not interpreter.arithmetic.exchange.worker:
        return None
    return follow(run, interpreter, until, check_finite=agreed)


def _interpreter(run: RunDirectory, machine: Machine, key: PrivateKey | None) -> Interpreter:
    if key is not None and key.address != run.job.trainer:
        raise ConfigurationError(f"expected the key of trainer 0x{run.job.trainer.hex()}, got 0x{key.address.hex()}")
    if machine.policy is None:
        machine = replace(machine, policy=policy_of(run))
    return make_interpreter(run.program, machine, run.job)


_AGREED: Final = {
    "task": TASK, "directory": PATH, "client": KEY | NONE, "trainer": KEY | NONE, "machine": MACHINE, "check": CHECK,
    "terms": instance("tiebreak.Terms", Terms) | NONE, "policy": POLICY_OR_PATH | NONE, "precision": PRECISION | NONE,
}  # fmt: skip
"""The arguments that `agree` and `train` share."""


@taking(**_AGREED, progress=FLAG, keep=TEXT, callbacks=CALLBACKS, supply=FUNCTION | NONE, distributed=FLAG)
def train(
    task: Task, directory: str | Path, *, client: PrivateKey | None = None, trainer: PrivateKey | None = None,
    terms: Terms | None = None, policy: Policy | None = None, precision: int | None = None,
    machine: Machine = Machine(), check: str = "full", progress: bool = True, keep: str = "all",
    callbacks: Callbacks = (), supply: LateData | None = None, distributed: bool = False,
) -> Run:  # fmt: skip
    """Trains into a directory and returns the finished run. Called again, it continues the run in that directory.

    Without keys the run is committed and can be audited, but it is not signed. The task's model is not changed: use
    `model.load_state_dict(run.state_dict())`.

    task, directory, client, trainer, terms, policy, precision, machine, check: see `tiebreak.agree`.
    progress, keep, callbacks, supply: see `Run.resume`.
    distributed: the workers that `torchrun` has started all call this, and compute one run together, the same for any
    number of them. The first one captures, signs, reports and calls the callbacks.

    Raises what `tiebreak.agree` and `Run.resume` raise.
    """
    with joined(machine.device) if distributed else nullcontext() as exchange:
        if exchange is not None and exchange.worker:
            exchange.meet()  # the run is there
            return Run(RunDirectory.open(Path(directory)), machine).resume(progress=False, keep=keep, exchange=exchange)
        run = agree(
            task, directory, client=client, trainer=trainer, terms=terms, policy=policy, precision=precision,
            machine=machine, check=check,
        )  # fmt: skip
        if exchange is not None:
            exchange.meet()
        return run.resume(trainer, progress=progress, keep=keep, callbacks=callbacks, supply=supply, exchange=exchange)


@taking(**_AGREED)
def agree(
    task: Task, directory: str | Path, *, client: PrivateKey | None = None, trainer: PrivateKey | None = None,
    terms: Terms | None = None, policy: Policy | None = None, precision: int | None = None,
    machine: Machine = Machine(), check: str = "full",
) -> Run:  # fmt: skip
    """Captures a job, has client and trainer sign it, and returns a run in which nothing is computed yet.

    If the directory already holds a run, that run is opened, provided that it is the same job over the same model, data
    and settings.

    task: what is trained. directory: a new or empty folder, or a run's.
    client, trainer: their keys; throwaway keys sign the job in the place of those left out, and a trainer without a key
    signs no heads. terms: reward, stakes, windows. policy: a policy of `tiebreak.calibrate` or the path of its file,
    for policy `logged` [default: `exact`]. precision: bits of results, 16 to 32 [default: the policy's, or 32].
    machine: how this process computes the run. check: see `tiebreak.capture`; the run says so.

    Raises `ConfigurationError` if the task cannot be a program, or if the directory holds another job or other files.
    """
    if client is not None and trainer is None:
        raise ConfigurationError("expected the trainer's key too, got the client's alone")
    folder = Path(directory)
    if task.evaluate_every is not None and task.evaluate_every % task.checkpoint_interval:
        raise ConfigurationError(
            f"expected evaluate_every to be a multiple of checkpoint_interval, {task.checkpoint_interval}, got "
            f"{task.evaluate_every}; a run on disk is measured at its checkpoints"
        )
    there = (folder / "job.bin").exists()
    if not there and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder}: expected a new or empty directory, or a run, got other files")
    settings = _settings(task)
    if there:
        check_unchanged(folder / SETTINGS, settings)
    bundle = capture_bundle(task, check=check, device=machine.device)
    client, trainer, terms, policy = client or new_key(), trainer or new_key(), terms or Terms(), as_policy(policy)
    if there:
        opened = RunDirectory.open(folder)
        _check_same(opened.job, draft(bundle, client, trainer.address, terms, policy, precision), folder)
        return Run(opened, machine, task)
    made = agree_on(
        bundle, folder, client=client, trainer=trainer, terms=terms, domain=OFF_CHAIN, policy=policy,
        precision=precision,
    )  # fmt: skip
    adapted, names = adapter_names(task.model), state_names(task.model)
    lines = ["\t".join([key, entry, *([adapted[key]] if key in adapted else [])]) for key, entry in names.items()]
    write_file(folder / NAMES, "".join(f"{line}\n" for line in lines).encode())
    remember(folder / SETTINGS, settings)
    return Run(made, machine, task)


def _settings(task: Task) -> dict[str, object]:
    """The settings of a task that are numbers or words and decide what it computes, by name."""
    parts: dict[str, Any] = {"": task, "batch.": task.batch, "optimizer.": task.optimizer, "clip.": task.clip}
    held = ((f"{n}{f.name}", getattr(part, f.name)) for n, part in parts.items() if part for f in fields(part))
    found = {n: v for n, v in held if isinstance(v, bool | int | float | str) and n not in ("name", "evaluate_every")}
    schedule = None if task.schedule is None else sha256(repr(task.schedule).encode()).hexdigest()
    return found | {"optimizer": type(task.optimizer).__name__, "schedule (SHA-256)": schedule}


def agree_on(
    bundle: Bundle, directory: Path, *, client: PrivateKey, trainer: PrivateKey, terms: Terms, domain: Domain,
    policy: Policy | None = None, precision: int | None = None,
) -> RunDirectory:  # fmt: skip
    """Does what `agree` does, for a job that was captured into files earlier (`tiebreak capture`)."""
    logged = as_policy(policy)
    job = draft(bundle, client, trainer.address, terms, logged, precision)
    signed = sign_job(job, domain, client=client, trainer=trainer)
    more = notice(bundle) | ({} if logged is None else {POLICY: logged.encode()})
    return RunDirectory.create(directory, signed, bundle.program, bundle.state, bundle.data, more)


def draft(
    bundle: Bundle, client: PrivateKey, trainer: Address, terms: Terms, policy: LoggedPolicy | None,
    precision: int | None,
) -> Job:  # fmt: skip
    """The job over a captured task. Its nonce commits to the client's secret if it has seats."""
    drafted = partial(
        draft_job, Captured(bundle.program, bundle.state, bundle.data), steps=bundle.steps,
        checkpoint_interval=bundle.checkpoint_interval, client=client.address, trainer=trainer, terms=terms,
    )  # fmt: skip
    if policy is None and bundle.program.late_slots:  # whose records have the root of these
        return drafted(policy=rounding.Policy.LOGGED, precision=PRECISION_F32 if precision is None else precision)
    if policy is None:
        job = drafted(precision=PRECISION_F32 if precision is None else precision)
        return drawable(job, client)[0] if job.seats else job
    if precision not in (None, policy.precision):
        raise ConfigurationError(
            f"expected precision {policy.precision} of the policy file, got {precision}; calibrate for that"
        )
    return drafted(policy=rounding.Policy.LOGGED, precision=policy.precision, tolerances=policy.tolerances_packed)


def notice(bundle: Bundle) -> dict[str, bytes]:
    """Unsigned files: the task's name, the origin of each instruction, and a mark if the capture was not checked."""
    mark = {} if bundle.check == "full" else {UNCHECKED: f"{bundle.check}: {CHECKS[bundle.check]}\n".encode()}
    return mark | {name: data for name, data in ((TITLE, titled(bundle.name)), (ORIGINS, bundle.origins)) if data}


@taking(directory=PATH, machine=MACHINE)
def open_run(directory: str | Path, *, machine: Machine = Machine()) -> Run:
    """Opens an existing run, which may be untrusted.

    directory: the run's. machine: how this process computes what is left, or audits.

    Raises `VerificationError` if its files do not match its job, `ConfigurationError` if there is no run.
    """
    return Run(open_directory(Path(directory)), machine)


_CAUSES: Final = {
    "program_root": ": another model, loss, or shape of the data",
    "initial_state_root": ": other weights at the beginning",
    "data_root": ": other data or learning rates",
}


def _check_same(there: Job, wanted: Job, folder: Path) -> None:
    names = ("program_root", "initial_state_root", "data_root", "steps", "checkpoint_interval")
    for name in (*names, "policy", "precision", "tolerances"):
        expected, found = getattr(wanted, name), getattr(there, name)
        if expected != found:
            shown = [value.hex() if isinstance(value, bytes) else value for value in (expected, found)]
            raise ConfigurationError(
                f"{folder}: expected a run with {name} {shown[0]} of this model, data and settings, got {shown[1]}"
                f"{_CAUSES.get(name, '')}; go on with what it was made with, or start afresh: choose another directory"
            )


def names_of(run: RunDirectory, *, adapter: bool = False) -> dict[str, str]:
    """Maps keys of the module's `state_dict` to entries of the state. adapter: the names in its adapter's file instead.

    The file is checked. The command line writes none; then the keys are the entries' own names. Raises `StateError` if
    there is no adapter.
    """
    path, entries = run.path / NAMES, run.program.state_spec()
    if not path.is_file() and not adapter:
        return {name.removeprefix("model."): name for name in entries if name.startswith("model.")}
    # Plain lines instead of JSON, because deeply nested JSON from a stranger can exhaust the C stack of its parser.
    with run.folder() as folder:
        text = folder.read(NAMES, MAX_NAMES_BYTES) if folder.holds(NAMES) else b""
    rows = [line.split("\t") for line in text.decode("utf-8", "replace").splitlines()]
    if (not rows and not adapter) or not all(len(row) in (2, 3) and row[1] in entries for row in rows):
        raise EncodingError(
            f"{path}: expected keys, entries of the state, and names in an adapter's file, tabs between them, on lines"
        )
    if not adapter:
        return {row[0]: row[1] for row in rows}
    if not (names := {row[2]: row[1] for row in rows if len(row) == 3}):
        raise StateError(
            f"{path}: expected the names of an adapter's tensors, which `tiebreak.agree` and `tiebreak.train` write "
            "down for a PEFT model, got none"
        )
    return names
