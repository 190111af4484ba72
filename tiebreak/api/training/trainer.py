"""Reproducible training in memory: no keys, no stakes, no folder."""

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from tiebreak.api.auditing.progress import on_stderr
from tiebreak.api.machine import MACHINE, Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.tasks import CHECK, TASK, as_state_dict, capture, state_names
from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.state import MODEL, NORM, load_state
from tiebreak.engine.capture.step_run import untouched
from tiebreak.engine.capture.task import Task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.interpreter import State
from tiebreak.engine.run.loop import exact, steps
from tiebreak.protocol.arguments import CALLBACKS, FLAG, NONE, shown, taking, whole
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import ConfigurationError


class Step(NamedTuple):
    """A computed step.

    number: from 1. loss: before the step's update. seconds: the time that the step took. metrics: the results of the
    task's `evaluate` after the step, if it was due. norm: of all gradients before clipping, from `reproducible` and
    `Run.iterate`, if the task has `norm=True`.
    """

    number: int
    loss: float
    seconds: float
    metrics: dict[str, float] | None = None
    norm: float | None = None


OnStep = Callable[[Step], None]
"""A callback. It is called after each step, before the next is begun. It cannot change what the steps compute."""
Callbacks = OnStep | Sequence[OnStep]


def tell(callbacks: Callbacks, step: Step, model: nn.Module | None) -> None:
    """Calls callbacks. Raises `ConfigurationError` if one sets a number or text of the model: no step would read it."""

    def settings() -> dict[tuple[str, str], object]:
        held = model.named_modules() if model is not None and callbacks else ()
        kinds = (bool, int, float, str)
        return {(n, k): v for n, m in held for k, v in vars(m).items() if k != "training" and isinstance(v, kinds)}

    before = settings()
    for callback in [callbacks] if callable(callbacks) else callbacks:
        callback(step)
    if changed := sorted(before.items() ^ settings().items(), key=repr):
        name = ".".join(filter(None, changed[0][0]))
        raise ConfigurationError(
            f"expected callbacks that leave the model alone, got one that sets {name}: the program does not read "
            "it; make it a buffer, a schedule or data"
        )


class Trainer:
    """A training run in memory. Iterate over it, or call `run`; it can stop at any step and continue later.

    `tiebreak.reproducible` is its name for users. The user's module is never changed: load `state_dict()` into it.
    """

    @taking(task=TASK, machine=MACHINE, check=CHECK, callbacks=CALLBACKS)
    def __init__(
        self, task: Task, *, machine: Machine = Machine(), check: str = "full", callbacks: Callbacks = ()
    ) -> None:
        """Prepares training whose every byte is fixed by the task, on any machine, with any thread count.

        The initial weights are those that the task's model holds. Torch's seeded initialisation differs between
        machines, so share the weights as a file if others are to repeat the run. For a training that outlives its
        process, use `tiebreak.train`.

        task: what is trained; its model is never changed. machine: how this process computes.
        check: see `tiebreak.capture`. callbacks: one or several, called with each `Step`; those of the task's
        `evaluate` have metrics.

        Raises `ConfigurationError` before any work if something cannot be done; it lists every operator without an
        exact form.
        """
        self.steps, self.step = task.steps, 0
        self.losses: list[float] = []
        """The loss of each computed step."""
        self.metrics: dict[int, dict[str, float]] = {}
        """The results of the task's `evaluate`, by step."""
        self._task, self._callbacks = task, callbacks
        # An interval of 1 whatever the task says: the state holds the losses since the last checkpoint, and nothing is
        # committed here, so the digest does not depend on when it would be.
        captured = capture(replace(task, checkpoint_interval=1), check=check, device=machine.device)
        self.program_root = captured.program.root.hex()
        """The root of the step's instructions, in hex: it identifies the computation."""
        self._interpreter = make_interpreter(captured.program, machine)
        shared = {name: captured.state[name].clone() for name in captured.program.frozen}  # the model may change
        self._state: State = self._interpreter.to_device(captured.state | shared)
        self._data = self._interpreter.place_data(captured.data)

    def __repr__(self) -> str:
        last = f", loss {self.losses[-1]:.4g}" if self.losses else ""
        return f"<tiebreak trainer: step {self.step} of {self.steps}{last}, program {self.program_root[:8]}>"

    def __iter__(self) -> Iterator[Step]:
        """Computes the remaining steps, each when it is asked for. Raises `StateError` if one is not finite."""
        if self.step == self.steps:
            warnings.warn(f"all {self.steps} steps are computed; for more, make a trainer of more steps", stacklevel=2)
        task, numbers, started = self._task, range(self.step + 1, self.steps + 1), time.perf_counter()
        for done in steps(self._interpreter, self._state, self._data, numbers, sums=exact, check_finite=True):
            self.step, self._state = done.number, done.result.state
            self.losses.append(done.result.loss)
            is_due = self.step % (task.evaluate_every or task.checkpoint_interval) == 0 or self.step == self.steps
            if task.evaluate is not None and is_due:
                self.metrics[self.step] = evaluate_state(task, self._state)
            seconds, metrics = time.perf_counter() - started, self.metrics.get(self.step)
            step = Step(self.step, done.result.loss, seconds, metrics, norm_in(self._state))
            tell(self._callbacks, step, task.model)
            yield step
            started = time.perf_counter()

    @taking(until=whole(0) | NONE, progress=FLAG)
    def run(self, until: int | None = None, *, progress: bool = True) -> "Trainer":
        """Computes to step `until` (default: the end), with a bar on stderr if `progress`. Returns the trainer."""
        last = self.steps if until is None else until
        if last > self.steps:
            raise ConfigurationError(f"expected until of at most {self.steps} steps, got {until}")
        with on_stderr("training", self.steps, self.step, quiet=not progress) as on_step:
            while self.step < last:
                step = next(iter(self))
                on_step(step.number, step.loss)
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Weights and buffers after the last step, for the module's `load_state_dict`; copies, on the CPU.

        Without what bitsandbytes holds in 4 bits: of such a model, load it with `strict=False`.
        """
        return as_state_dict(self._state, four_bit.loadable(state_names(self._task.model)))

    def digest(self) -> str:
        """SHA-256 root, hex, of what the next step reads: weights, buffers, optimizer. Equal on all machines."""
        return state_tree(identities(self._state)).root.hex()


reproducible = Trainer
"""`tiebreak.reproducible(task)` reads as what it does; the trainer that it makes is an object to iterate over."""


def norm_in(state: Mapping[str, Tensor]) -> float | None:
    """The norm of all gradients that a state holds; None for tasks that do not ask for it."""
    return state[NORM].item() if NORM in state else None


def evaluate_state(task: Task, state: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics of a job's state, whose tensors are named as in the job, by a copy of the model in eval mode.

    The task's model and all global random streams stay as they are. Raises `ConfigurationError` if the task has no
    evaluation, or if the state belongs to another model.
    """
    if task.evaluate is None:
        raise ConfigurationError(f"expected task {task.name} to have an evaluation, got none")
    own = {name.removeprefix(MODEL): tensor for name, tensor in state.items() if name.startswith(MODEL)}
    with untouched(task.model), four_bit.as_state(task.model):
        model = copy.deepcopy(task.model)
        load_state(model, own)
        found: object = task.evaluate(model.eval())
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigurationError(
            f"expected evaluate(model) to return metrics by name, such as {{'accuracy': 0.9}}, got {shown(found)}"
        )
    return dict(found)
