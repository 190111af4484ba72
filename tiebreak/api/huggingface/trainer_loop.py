"""Trainer's own loop over the steps of a run, so that logs, callbacks, evaluation and saving are Trainer's own."""

import json
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerState
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback

from tiebreak.api.huggingface.objective import check_loss
from tiebreak.api.huggingface.processes import TrainerProcesses
from tiebreak.api.huggingface.recording import WEIGHT, Recording, loop
from tiebreak.api.huggingface.refusals import logs_in_loss
from tiebreak.api.huggingface.rollouts import Rollouts, seeded
from tiebreak.api.huggingface.sampled_rollouts import SAMPLED
from tiebreak.api.training import trackers
from tiebreak.api.training.runs import Run
from tiebreak.api.training.trainer import Step
from tiebreak.engine.capture.step_run import replaced, same_draws
from tiebreak.engine.distributed.train import SharedWeights
from tiebreak.engine.logged.files import LogFiles
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

_STATE: Final = "trainer_state.json"
_ASKED: Final = ("should_log", "should_evaluate", "should_save", "should_epoch_stop", "should_training_stop")
_LOG: Final = logging.getLogger(__name__)


def drive(
    processes: TrainerProcesses, run: Run, recording: Recording, rollouts: Rollouts | None = None, *,
    key: PrivateKey | None, keep: str, **options: Any,
) -> Any:  # fmt: skip
    """Computes what is left of a run within the trainer's loop, and returns what `trainer.train()` returns.

    The loop passes over the steps that are computed already, with their losses and without callbacks. The model has the
    weights of the last step then, or those that the trainer loads (`load_best_model_at_end`). rollouts: of a trainer
    that samples. options: of its `train`.
    """
    driven: _Driven
    trainer = processes.trainer
    supply = None if rollouts is None else lambda *_: driven.late
    computed = run.iterate(key, keep=keep, supply=supply, exchange=processes.exchange)
    with closing(computed) as steps:  # whatever happens: it holds the folder's lock
        kind: Callable[..., _Driven] = _Driven if rollouts is None else partial(_Sampling, rollouts)
        driven = kind(processes, run, recording, steps)
        processes.align()
        with driven.in_place():
            found = loop(trainer, **options)
        driven.finish()
    return found


class _Driven:
    """Runs a trainer's loop with the steps of a reproducible run."""

    def __init__(
        self, processes: TrainerProcesses, run: Run, recording: Recording,
        steps: Generator[tuple[Step, Mapping[str, Tensor]]],
    ) -> None:  # fmt: skip
        self.processes, self.trainer, self.run, self.recording = processes, processes.trainer, run, recording
        trainer = self.trainer
        self.first, self._losses = run.step, run.losses
        self._steps = steps
        self.weights: Mapping[str, Tensor] = {}
        """The weights after the last step; valid until the next step."""
        self._done = 0
        """Micro-batches of this step that have passed."""
        recording.loader.watches = not (self.first or processes.index)
        self._reports = hasattr(trainer, "_metrics") or logs_in_loss(trainer)
        self._norm: float | None = None
        self.callbacks = trainer.callback_handler
        self.plain = list[Tensor]()
        """The losses of the micro-batches of this step in plain PyTorch."""
        self.late: dict[str, Tensor] = {}
        """The late data of the next step."""
        self._written: dict[str, int] = {}
        """The version of each tensor after it was last written."""
        own = ("transformers.trainer_callback", "transformers.utils.notebook")
        others = [one for one in self.callbacks.callbacks if not type(one).__module__.startswith(own)]
        (self.watched,) = processes.any([bool(others)])
        """Whether there are callbacks of other packages, which may read the weights after each step."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replaces what computes in the trainer."""
        held, make = self.trainer, self.trainer.create_optimizer
        taken: list[Any] = []

        def create_optimizer(*args: Any, **options: Any) -> Any:
            made = make(*args, **options)
            taken.append(made or held.optimizer)
            vars(taken[-1])["step"] = MethodType(lambda *_, **__: None, taken[-1])
            return made

        norms = {name: lambda *_, **__: self._norm for name in ("_clip_grad_norm", "_get_grad_norm")}
        handler = _Replayed(self) if self.first else self.callbacks
        keeper = _Keeper(self)
        self.callbacks.callbacks.append(keeper)
        try:
            with (
                replaced(
                    held, training_step=self.training_step, create_optimizer=create_optimizer,
                    callback_handler=handler, get_train_dataloader=lambda: self.recording.loader, **norms,
                ),
                replaced(held.args, save_only_model=True),
                self.processes.in_loop(),
            ):  # fmt: skip
                yield
        finally:
            self.callbacks.callbacks.remove(keeper)
            for optimizer in taken:
                vars(optimizer).pop("step", None)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Stands in for Trainer's: the last micro-batch of a step takes the run's next step, and has all its loss."""
        held = self.trainer
        model.train()
        number, loss = held.state.global_step + 1, 0.0
        if self._reports:
            self._report(model, inputs, num_items_in_batch, computed=number <= self.first)
        self._done = (self._done + 1) % held.current_gradient_accumulation_steps
        if not self._done:
            loss = self._losses[number - 1] if number <= self.first else self._next(number)
            self.plain.clear()
        return torch.tensor(loss, device=held.args.device)

    def _next(self, number: int) -> float:
        changed = [name for name, tensor in self._tensors() if tensor._version != self._written.get(name)]
        if changed and self._written and self.watched:
            raise ConfigurationError(
                f"expected callbacks that leave the weights alone, got one that writes to {changed[0]} before step "
                f"{number}: the program does not read it"
            )
        step, self.weights = next(self._steps)
        self._norm = step.norm
        if self.watched:
            self.write()
        return step.loss

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        model = self.trainer.model
        yield from ((name, p) for name, p in model.named_parameters() if p.requires_grad)
        yield from ((name, buffer) for name, buffer in model.named_buffers())

    def write(self) -> None:
        """Gives the module the weights and buffers of the last step."""
        weights = self.weights
        if isinstance(weights, SharedWeights):
            weights = weights.gather([name for name, _ in self._tensors() if name in weights])
        with torch.no_grad():
            for name, tensor in self._tensors():
                if name in weights:
                    tensor.copy_(weights[name])
                self._written[name] = tensor._version

    def _report(self, model: Any, inputs: Any, items: Any, *, computed: bool) -> None:
        """Lets `compute_loss` report on a micro-batch (TRL's metrics) in plain PyTorch, with the weights of its step.

        computed: the step was in an earlier process. Its tokens are counted, as TRL counts them.
        """
        if computed:
            if hasattr(self.trainer, "_total_train_tokens"):
                mask, places = inputs.get("attention_mask"), inputs.get("position_ids")
                self.trainer._total_train_tokens += int(mask.sum()) if mask is not None else places.shape[1]
            return
        self._refresh()
        mine = inputs if self.processes.count == 1 else self.processes.share(inputs)
        with same_draws(), torch.no_grad(), self.processes.alone() if mine is None else nullcontext():
            prepared = self._prepared(inputs if mine is None else mine)
            with self.trainer.compute_loss_context_manager():
                self.plain.append(self.trainer.compute_loss(model, prepared, num_items_in_batch=items))

    def _refresh(self) -> None:
        """Gives the module the weights before a step, with its first micro-batch."""
        if not self._done and (self.weights or self.first) and not (self.weights and self.watched):
            self.weights = self.weights or self.run.state_dict()
            self.write()

    def _prepared(self, inputs: Any) -> Any:
        return self.trainer._prepare_inputs(dict(inputs))

    def finish(self) -> None:
        """Finishes the last checkpoint, and gives the model the weights of the run unless the trainer chose others."""
        state = self.trainer.state
        if state.global_step == self.run.steps:
            for _ in self._steps:
                raise AssertionError("the loop has ended before the run")
        self._steps.close()
        self.processes.meet()  # the last checkpoint is on disk
        if not (self.trainer.args.load_best_model_at_end and state.best_model_checkpoint):
            self.weights = self.run.state_dict()
            self.write()


class _Sampling(_Driven):
    """Runs the loop of a trainer that samples from its model. Its rollouts are each step's late data."""

    def __init__(self, rollouts: Rollouts, processes: TrainerProcesses, *rest: Any) -> None:
        super().__init__(processes, *rest)
        self._rollouts, self._taken, self._seconds = rollouts, list[dict[str, Tensor]](), 0.0
        self._logs = LogFiles(RunDirectory.open(self.run.directory))
        self.trainer._step, self.trainer._buffered_inputs = 0, None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        started = time.perf_counter()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.trainer._step += 1
        self._seconds += time.perf_counter() - started
        if not self._done:  # as TRL reports it
            self.trainer._metrics["train"]["step_time"].append(self._seconds)
            self._seconds = 0.0
        return loss

    def _next(self, number: int) -> float:
        made = self._rollouts.late(self._taken, (number - 1) * len(self._taken))
        self.late, self._taken = {name: made[name] for name in self.run.late}, []
        loss = super()._next(number)
        if number == self.first + 1 and hasattr(self.trainer.model, SAMPLED):
            weight = float(self._rollouts.columns.data[WEIGHT][0])
            check_loss(self.trainer, loss, weight * float(torch.stack(self.plain).mean()))
        return loss

    def _report(self, model: Any, inputs: Any, items: Any, *, computed: bool) -> None:
        if not computed:
            return super()._report(model, inputs, items, computed=False)
        held, a = self.trainer, self.trainer.args.gradient_accumulation_steps
        if held._step % (held.args.steps_per_generation * held.num_iterations) < held.args.steps_per_generation:
            late = self._logs.step_log(held.state.global_step + 1).late  # as TRL counts what it samples
            said = torch.frombuffer(bytearray(late["completion_mask"]), dtype=torch.int64).view(a, -1)[self._done]
            held.state.num_input_tokens_seen += int(said.sum() + self._rollouts.known["prompt_mask"][held._step].sum())
        return None

    def _prepared(self, inputs: Any) -> Any:
        with seeded(self.trainer):
            self._taken.append(self.trainer._prepare_inputs(inputs))
        return self._taken[-1]


class _Keeper(TrainerCallback):
    """The last callback: gives the model the run's weights before evaluations and saves; ends runs at checkpoints."""

    def __init__(self, driven: _Driven) -> None:
        self._driven, self._stopping = driven, False
        self._asked, self._later = dict.fromkeys(_ASKED, False), set[str]()
        """Decisions that the processes have agreed on, and those that one asks for until they meet again."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        run = self._driven.run
        if not self._driven.processes.index:
            trackers.remember(run.directory, run.job, self._driven.callbacks.callbacks)

    def _at(self, state: Any, control: Any) -> Any:
        every, driven = self._driven.run.job.checkpoint_interval, self._driven
        ends = state.global_step % every == 0 or state.global_step >= driven.run.steps
        if control.should_training_stop and not ends and not self._stopping:
            self._stopping = True
            after = min(driven.run.steps, -(-state.global_step // every) * every)
            _LOG.warning("a callback ends the training; it goes on to step %s, the next checkpoint", after)
        control.should_training_stop = (control.should_training_stop or self._stopping) and ends
        looks = control.should_evaluate or control.should_save or control.should_training_stop
        if looks and driven.weights and not driven.watched:
            driven.write()
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        asked = self._driven.processes.any([name in self._later or getattr(control, name) for name in _ASKED])
        self._asked, self._later = dict(zip(_ASKED, asked, strict=True)), set()
        vars(control).update(self._asked)  # what a callback of one process asks for, all do
        return self._at(state, control)

    on_epoch_end = on_evaluate = on_step_end

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        if self._driven.processes.count == 1:
            return self._at(state, control)
        fresh = {name for name, asked in self._asked.items() if getattr(control, name) and not asked}
        self._later |= fresh  # perhaps one process alone logs or saves
        vars(control).update(dict.fromkeys(fresh, False))
        return control

    on_save = on_log


class _Replayed(CallbackHandler):
    """Keeps Trainer's logs of the steps that are computed already from callbacks, until the first new step."""

    def __init__(self, driven: _Driven) -> None:
        self._driven, self._live = driven, driven.callbacks
        super().__init__(  # type: ignore[no-untyped-call]
            [DefaultFlowCallback()], self._live.model, self._live.processing_class, None, None
        )

    def call_event(self, event: str, args: Any, state: Any, control: Any, **more: Any) -> Any:
        held = self._driven.trainer
        for name in ("model", "optimizer", "lr_scheduler", "train_dataloader"):
            setattr(self._live, name, getattr(self, name))
        if event == "on_train_begin":
            return self._live.call_event(event, args, state, control, **more)
        if event == "on_step_begin" and state.global_step >= self._driven.first:
            held.callback_handler = self._live
            self._remember(held)
            control = self._live.on_epoch_begin(args, state, control)
            return self._live.on_step_begin(args, state, control)
        control = super().call_event(event, args, state, control, **more)  # type: ignore[no-untyped-call]
        control.should_evaluate = control.should_save = False
        return control

    def _remember(self, held: Any) -> None:
        """Loads evaluations, the best model and callbacks from the trainer's last checkpoint in these steps."""
        steps = {int(p.name.rpartition("-")[2]): p for p in Path(held.args.output_dir).glob("checkpoint-[0-9]*")}
        saved = [steps[n] for n in sorted(steps) if n <= self._driven.first and (steps[n] / _STATE).is_file()]
        if not saved:
            return
        try:
            before = TrainerState.load_from_json(str(saved[-1] / _STATE))
        except (json.JSONDecodeError, TypeError) as error:
            raise ConfigurationError(f"{saved[-1] / _STATE}: expected the state of a trainer, got: {error}") from error
        for name in ("best_metric", "best_global_step", "best_model_checkpoint", "stateful_callbacks"):
            setattr(held.state, name, getattr(before, name))
        later = [line for line in held.state.log_history if line["step"] > before.global_step]
        held.state.log_history = before.log_history + later
        held._load_callback_state()
