"""`tiebreak.hf.train(trainer)` in the place of `trainer.train()`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from tiebreak.api.huggingface import refusals, sampled_rollouts, trainer_loop
from tiebreak.api.huggingface.objective import check_padding, objective, ready
from tiebreak.api.huggingface.processes import TrainerProcesses
from tiebreak.api.huggingface.recording import Recording, columns
from tiebreak.api.huggingface.rollouts import Rollouts
from tiebreak.api.huggingface.sampled_rollouts import RUN, SampledRollouts
from tiebreak.api.machine import Machine
from tiebreak.api.training.runs import Run, agree
from tiebreak.engine.capture.step_run import replaced, same_draws
from tiebreak.engine.capture.task import CHECKPOINTS, Task
from tiebreak.engine.optimizers.settings import Clip
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError


def train(
    trainer: Trainer, resume_from_checkpoint: str | bool | None = None, trial: Any = None,
    ignore_keys_for_eval: list[str] | None = None, *, machine: Machine | None = None, client: PrivateKey | None = None,
    key: PrivateKey | None = None, terms: Terms | None = None, check: str = "full", exact_sampling: bool = False,
) -> TrainOutput:  # fmt: skip
    """Does what `trainer.train()` does, as a run in `output_dir/run` that anyone can audit, and returns the same.

    trainer: a `transformers.Trainer` or a subclass (TRL's SFTTrainer, DPOTrainer, RewardTrainer, GRPOTrainer), ready to
    train. Its own loop runs twice: once to record what each micro-batch is fed, and once over the steps that the engine
    computes from that. So order, packing, logs, callbacks, evaluation and saving are its own. Only dropout and other
    draws within the step follow the job's seed. Called again after an interruption, it goes on from the last
    checkpoint. Of several processes (torchrun, accelerate launch) each calls this: they are the workers of one run,
    that of one process with the batches of all. What GRPOTrainer and RLOOTrainer sample is published with each step
    (docs/reinforcement.md).
    resume_from_checkpoint: True, or a checkpoint of this run in `output_dir`, changes nothing; another path is refused.
    trial: None; a search is refused. ignore_keys_for_eval: as in `trainer.train`.
    machine: how this process computes [default: on the trainer's device].
    client, key, terms: the parties' keys and the terms of a job that can be disputed, as client, trainer and terms of
    `tiebreak.agree`. check: see `tiebreak.capture`.
    exact_sampling: the rollouts of GRPOTrainer and RLOOTrainer are those that the weights and the seed demand. The
    step's program checks each token of them, its loss is NaN from the first other one on, and the terms of the job
    demand finite losses.

    Raises `ConfigurationError`, with every reason, if the trainer asks for what a run could not follow.
    """
    refusals.check_trainer(trainer)
    start = trainer.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
    _check_start(trainer, start)
    if trial is not None:
        raise ConfigurationError("expected no trial of a search, got one: make a trainer and a folder for each trial")
    machine = machine or Machine(device=str(trainer.args.device))
    terms = replace(terms or Terms(), finite_losses=True) if exact_sampling else terms
    with (
        sampled_rollouts.marked(trainer) if exact_sampling else nullcontext() as judge,
        TrainerProcesses.of(trainer, machine) as processes,
    ):
        options = {"client": client, "trainer": key, "terms": terms, "check": check}
        with _noting_reads(trainer.args) as read:
            with processes.alone():
                recording = processes.recorded()
                rollouts = Rollouts.of(trainer, recording, exact=exact_sampling) if refusals.samples(trainer) else None
            made = processes.first(partial(_agreed, processes, recording, rollouts, machine, options, judge))
        recording.inputs.clear()
        if made is not None:
            refusals.warn_of_unread(trainer.args, read)
        run = made or Run(RunDirectory.open(Path(str(trainer.args.output_dir), RUN)), machine)
        given = {"ignore_keys_for_eval": ignore_keys_for_eval} if ignore_keys_for_eval else {}
        saves = str(getattr(trainer.args.save_strategy, "value", trainer.args.save_strategy)) != "no"
        keep = "all" if saves and trainer.args.save_total_limit is None else "last"
        sampler = SampledRollouts(trainer, run, rollouts, machine) if exact_sampling and rollouts else None
        with nullcontext() if sampler is None else sampler.in_place():
            output: TrainOutput = trainer_loop.drive(processes, run, recording, rollouts, key=key, keep=keep, **given)
    return output


def _check_start(trainer: Trainer, start: str | bool | None) -> None:
    """Raises `ConfigurationError` if the checkpoint is of another training."""
    folder = Path(str(trainer.args.output_dir)).resolve()
    checkpoints = [*folder.glob("checkpoint-[0-9]*")] if start is True else [Path(start).resolve()] if start else []
    if any(path.parent != folder or not (folder / RUN).is_dir() for path in checkpoints):
        raise ConfigurationError(
            f"expected to begin with the model that the trainer holds, or to go on with a run in {folder / RUN}, got "
            f"resume_from_checkpoint={start!r}, a checkpoint of another training: load its weights with "
            "from_pretrained, and train without resume_from_checkpoint"
        )


@contextmanager
def _noting_reads(args: Any) -> Iterator[set[str]]:
    """The names of all attributes that are read of an object."""
    read, kind = set[str](), type(args)

    def get(held: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(held, name)

    args.__class__ = type(kind.__name__, (kind,), {"__getattribute__": get, "__module__": kind.__module__})
    try:
        yield read
    finally:
        args.__class__ = kind


def _agreed(
    processes: TrainerProcesses, recording: Recording, rollouts: Rollouts | None, machine: Machine,
    options: dict[str, Any], judge: Callable[..., Tensor] | None,
) -> Run:  # fmt: skip
    """Makes or opens the run. Of several processes, the first one does, which believes itself alone."""
    trainer = processes.trainer
    refusals.say_of_processes(trainer)
    processes.batches.remember(Path(str(trainer.args.output_dir)))
    with processes.alone(), same_draws():
        return _captured(trainer, recording, rollouts, machine, options, judge)


def _captured(
    trainer: Any, recording: Recording, rollouts: Rollouts | None, machine: Machine, options: dict[str, Any],
    judge: Callable[..., Tensor] | None,
) -> Run:  # fmt: skip
    args, interval, late, more = trainer.args, _interval(trainer.args, recording), set[str](), None
    if rollouts is None:
        found, inputs = columns(trainer, recording), recording
        data = found.data
    else:
        found, inputs, data = rollouts.columns, rollouts.example, rollouts.data(args.seed)
        late = found.data.keys() - data.keys() - rollouts.derived
        more = partial(rollouts.computed, trainer)
        every = (interval or max(1, recording.steps // CHECKPOINTS)) / rollouts.period
        interval = min(recording.steps, ceil(every) * rollouts.period)  # at which nothing is left to be used again
    refers = nullcontext() if rollouts and not (rollouts.refers or rollouts.reward_funcs) else _reference(trainer)
    attached = rollouts.attached(trainer.model, args.device) if rollouts else nullcontext()
    with ready(trainer), refers, attached, replaced(trainer, **_optimizers(trainer, recording.planned)):
        if found.smallest:
            check_padding(trainer, inputs, found, None if rollouts is None else partial(rollouts.referred, trainer))
        task = Task(
            trainer.model, objective(trainer, found, more, judge), optimizer=trainer.optimizer, batch=1,
            data=data, late={name: found.data[name] for name in late}, steps=recording.steps, seed=args.seed,
            schedule=trainer.lr_scheduler, accumulation=args.gradient_accumulation_steps, norm=True,
            checkpoint_interval=interval,
            clip=Clip(norm=args.max_grad_norm) if args.max_grad_norm and args.max_grad_norm > 0 else None,
        )  # fmt: skip
        return agree(task, Path(str(args.output_dir), RUN), machine=machine, **options)


def _optimizers(trainer: Any, steps: int) -> dict[str, Any]:
    """The trainer's optimizer and schedule, made as it makes them, or the user's."""
    with replaced(trainer, optimizer=trainer.optimizer, lr_scheduler=trainer.lr_scheduler):
        trainer.create_optimizer_and_scheduler(steps)
        made = {"optimizer": trainer.optimizer, "lr_scheduler": trainer.lr_scheduler}
    if not isinstance(made["lr_scheduler"], LRScheduler):
        raise ConfigurationError(
            f"expected a schedule that depends on the step alone, got {type(made['lr_scheduler']).__name__}"
        )
    return made


@contextmanager
def _reference(trainer: Any) -> Iterator[None]:
    """Makes the reference model of DPO a frozen part of the model while the step is captured, so that it is state."""
    reference = getattr(trainer, "ref_model", None)
    if reference is None or getattr(trainer, "precompute_ref_logps", False):
        yield
        return
    device = next(reference.parameters()).device
    trainer.model.add_module("reference", reference.cpu().eval().requires_grad_(False))
    try:
        yield
    finally:
        del trainer.model._modules["reference"]
        reference.to(device)


def _interval(args: Any, recording: Recording) -> int | None:
    """Steps between checkpoints: those at which Trainer saves, or else evaluates; None for a tenth of all steps."""
    epoch = ceil(len(recording.loader.epochs[0]) / args.gradient_accumulation_steps)
    for strategy, every in ((args.save_strategy, args.save_steps), (args.eval_strategy, args.eval_steps)):
        every = every or 1  # of a strategy that asks for none
        intervals: dict[str, int] = {
            "steps": ceil(every * recording.steps) if every < 1 else int(every),
            "epoch": epoch,
        }
        found = intervals.get(str(getattr(strategy, "value", strategy)))
        if found is not None and found <= recording.steps:
            return found
    return None
