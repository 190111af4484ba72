"""Reproducible training without disputes: no keys, no stakes, and no directory unless you want one."""

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from tiebreak.api.auditing.progress import on_stderr
from tiebreak.api.machine import MACHINE, Machine
from tiebreak.api.machine.running import make_interpreter
from tiebreak.api.training.evaluation import evaluate_state
from tiebreak.api.training.tasks import CHECK, CHECKPOINTS, MODULE, TASK, as_state_dict, capture, make_task, state_names
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.state import NORM
from tiebreak.engine.capture.task import LOSSES, Task
from tiebreak.engine.data import FactsCache, data_identities
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.data.formats import read_tensors, write_tensors
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.run.interpreter import State
from tiebreak.engine.run.loop import exact, steps
from tiebreak.protocol.arguments import CALLBACKS, FLAG, NONE, PATH, taking, whole
from tiebreak.protocol.commitments.records import data_tree, state_tree
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.strict_json import JsonObject

SAVED: Final = "trainer.json"
FORMAT: Final = 1
MAX_SAVED_BYTES: Final = 4096


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

    `tiebreak.reproducible` makes one. The user's module is never changed: load `state_dict()` into it.
    """

    @taking(
        task=TASK, directory=PATH | NONE, save_every=whole(1) | NONE, machine=MACHINE, check=CHECK,
        callbacks=CALLBACKS,
    )  # fmt: skip
    def __init__(
        self, task: Task, *, directory: str | Path | None = None, save_every: int | None = None,
        machine: Machine = Machine(), check: str = "full", callbacks: Callbacks = (),
    ) -> None:  # fmt: skip
        if save_every is not None and directory is None:
            raise ConfigurationError(f"expected a directory to save into with save_every={save_every}, got none")
        if directory is not None and Path(directory).exists() and not Path(directory).is_dir():
            raise ConfigurationError(f"expected a directory to save into, got the file {directory}; choose another")
        self.directory = None if directory is None else Path(directory)
        self.steps = task.steps
        self.step = 0
        """The number of steps computed so far."""
        self.losses: list[float] = []
        """The loss of each computed step."""
        self.metrics: dict[int, dict[str, float]] = {}
        """The results of the task's `evaluate`, by step."""
        self._task, self._callbacks = task, callbacks
        self._every = save_every
        self._names = state_names(task.model)
        self._compiled: Captured = capture(task, check=check, device=machine.device)
        self._roots = {
            "program_root": self.program_root,
            "initial_state_root": _state_root(self._compiled.state),
            "data_root": data_tree(data_identities(self._compiled.data, cache=FactsCache())).root.hex(),
        }
        state = self._compiled.state if self.directory is None else self._restore(self.directory)
        self._interpreter = make_interpreter(self._compiled.program, machine)
        self._state: State = self._interpreter.to_device(state)
        self._data = self._interpreter.place_data(self._compiled.data)

    def __repr__(self) -> str:
        last = f", loss {self.losses[-1]:.4g}" if self.losses else ""
        return f"<tiebreak trainer: step {self.step} of {self.steps}{last}, program {self.program_root[:8]}>"

    @property
    def program_root(self) -> str:
        """The root of the step's instructions, in hex: it identifies the computation."""
        return self._compiled.program.root.hex()

    def __iter__(self) -> Iterator[Step]:
        """Computes the remaining steps, each when it is asked for. Raises `StateError` if one is not finite."""
        if self.step == self.steps:
            warnings.warn(f"all {self.steps} steps are computed; for more, make a trainer of more steps", stacklevel=2)
        numbers, started = range(self.step + 1, self.steps + 1), time.perf_counter()
        for done in steps(self._interpreter, self._state, self._data, numbers, sums=exact, check_finite=True):
            self.step, self._state = done.number, done.result.state
            self.losses.append(done.result.loss)
            if self.directory is not None and (self.step == self.steps or self._due()):
                self.save()
            step = Step(
                self.step, done.result.loss, time.perf_counter() - started, self._evaluated(), norm_in(self._state)
            )
            tell(self._callbacks, step, self._task.model)
            yield step
            started = time.perf_counter()

    def _evaluated(self) -> dict[str, float] | None:
        every = self._task.evaluate_every or max(1, self.steps // CHECKPOINTS)
        if self._task.evaluate is None or (self.step % every and self.step != self.steps):
            return None
        self.metrics[self.step] = evaluate_state(self._task, self._state)
        return self.metrics[self.step]

    def _due(self) -> bool:
        return self._every is not None and self.step % self._every == 0

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
        """Weights and buffers after the last step, for the module's `load_state_dict`; copies, on the CPU."""
        return as_state_dict(self._state, self._names)

    def digest(self) -> str:
        """SHA-256 root, hex, of what the next step reads: weights, buffers, optimizer. Equal on all machines."""
        return _state_root(self._state)

    @taking(directory=PATH | NONE)
    def save(self, directory: str | Path | None = None) -> Path:
        """Saves the run in a directory (default: its own). If killed at any moment, it leaves one complete save behind.

        A trainer made from the same model, data and settings with this directory continues from there.
        """
        folder = self.directory if directory is None else Path(directory)
        if folder is None:
            raise ConfigurationError("expected a directory to save into, got none")
        state, losses = _files(self.step)
        saved = {"format": FORMAT, "step": self.step, **self._roots, "state_root": self.digest()}
        with Folder.make(folder) as files:
            write_tensors(files, state, {name: tensor.to("cpu") for name, tensor in self._state.items()})
            write_tensors(files, losses, {"loss": torch.tensor([*self.losses, 0.0])})
            files.write(SAVED, (json.dumps(saved, indent=2) + "\n").encode())
            old = [name for name in files.names() if name.startswith(("state-", "losses-"))]
            for name in old:
                if name.endswith(".safetensors") and name not in (state, losses):
                    files.remove(name)
        return folder

    def _restore(self, folder: Path) -> dict[str, Tensor]:
        """The state saved in a folder, checked; the initial state if nothing is saved there."""
        if not (folder / SAVED).is_file():
            return self._compiled.state
        with Folder(folder) as files:
            saved = JsonObject.parse(str(folder / SAVED), files.read(SAVED, MAX_SAVED_BYTES), 1)
        saved.integer("format", FORMAT, FORMAT)
        for name, root in self._roots.items():
            if (found := saved.text(name)) != root:
                raise ConfigurationError(
                    f"{folder}: expected {name} {root} of this model, data and settings, got {found}; choose another "
                    "directory"
                )
        step, state_root = saved.integer("step", 0, self.steps), saved.text("state_root")
        saved.finish()
        state_file, losses_file = _files(step)
        with Folder(folder) as files:
            state = read_tensors(files, state_file, self._compiled.program.state_spec())
            losses = read_tensors(files, losses_file, {"loss": (DType.F32, (step + 1,))})["loss"]
        if state_root != (root := _state_root(state)):
            raise EncodingError(f"{folder / state_file}: expected state {state_root}, got {root}")
        self.step, self.losses = step, losses[:step].tolist()
        return state


@taking(
    model=MODULE, loss=LOSSES, directory=PATH | NONE, save_every=whole(1) | NONE, machine=MACHINE, check=CHECK,
    callbacks=CALLBACKS,
)  # fmt: skip
def reproducible(
    model: nn.Module, loss: Callable[..., Tensor], *, directory: str | Path | None = None,
    save_every: int | None = None, machine: Machine = Machine(), check: str = "full",
    callbacks: Callbacks = (), **options: Any,
) -> Trainer:  # fmt: skip
    """Prepares training whose every byte is fixed by model, data and settings, on any machine, with any thread count.

    options: the arguments of `tiebreak.make_task`: at least optimizer, data, batch and steps. The initial weights are
    those that the module holds. Torch's seeded initialisation differs between machines, so share the weights as a file
    if others are to repeat the run. directory: the place to save, every `save_every` steps and at the end; if it holds
    a save of the same run, training continues from it. machine: how this process computes. check: see
    `tiebreak.capture`. callbacks: one or several, called with each `Step`; those of `evaluate` (`tiebreak.Task`)
    have metrics.

    Raises `ConfigurationError` before any work if something cannot be done; it lists every operator without an exact
    form.
    """
    if "checkpoint_every" in options:
        raise ConfigurationError("expected save_every instead of checkpoint_every, which is for tiebreak.train")
    return Trainer(
        make_task(model, loss, checkpoint_every=1, **options), directory=directory, save_every=save_every,
        machine=machine, check=check, callbacks=callbacks,
    )  # fmt: skip


def norm_in(state: Mapping[str, Tensor]) -> float | None:
    """The norm of all gradients that a state holds; None for tasks that do not ask for it."""
    return state[NORM].item() if NORM in state else None


def _state_root(state: State) -> str:
    return state_tree(identities(state)).root.hex()


def _files(step: int) -> tuple[str, str]:
    return f"state-{step:012d}.safetensors", f"losses-{step:012d}.safetensors"
