"""`TiebreakTrainer`: `transformers.Trainer` as its users write it, with a run in place of its loop.

Optimizer, schedule, collator, loss and the number of steps come from `transformers` itself, made by the arguments as
`Trainer` makes them, and are then translated. An argument that asks for something that a job does not do is refused by
name: a run that is not what its user wrote would be worse than none. Two things differ by nature. Examples come in the
order that the job's seed draws (without replacement within an epoch, as there, but another permutation), and so do the
masks of dropout.
"""

import time
from collections.abc import Iterator, Mapping, Sized
from dataclasses import fields
from inspect import getmro
from math import ceil
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, IterableDataset

from tiebreak.api.machine import Machine
from tiebreak.api.training.runs import Run, agree
from tiebreak.api.training.trainer import Step
from tiebreak.engine.capture.task import Clip
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, StateError

try:
    from transformers import Trainer, TrainingArguments, set_seed
    from transformers.trainer_utils import TrainOutput, speed_metrics
except ImportError as missing:
    raise ConfigurationError(
        f"expected transformers and accelerate, got: {missing}; pip install 'tiebreak[hf]'"
    ) from missing

_TAKEN: Final = (
    "output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type "
    "lr_scheduler_kwargs warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon "
    "gradient_accumulation_steps max_grad_norm label_smoothing_factor bf16 logging_strategy logging_steps "
    "logging_first_step save_strategy save_steps save_total_limit seed data_seed use_cpu remove_unused_columns "
    "label_names disable_tqdm use_cache"
)
_ASIDE: Final = (
    "do_train do_eval do_predict per_device_eval_batch_size prediction_loss_only eval_do_concat_batches "
    "eval_accumulation_steps bf16_full_eval fp16_full_eval include_for_metrics metric_for_best_model greater_is_better "
    "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor "
    "dataloader_multiprocessing_context dataloader_in_order log_level log_level_replica log_on_each_node "
    "logging_nan_inf_filter run_name project full_determinism average_tokens_across_devices skip_memory_metrics "
    "hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision length_column_name"
)
"""Arguments that say how a step is fed or what happens after training: none of them reaches the weights."""
_REASONS: Final = {
    "data_seed": "a job has one seed, which draws order and dropout; set seed",
    "dataloader_drop_last": "nothing is dropped in a job; leave examples out of train_dataset yourself",
    "fp16": "a loss that is scaled by what its gradients were has no program; use bf16",
    "tf32": "products are rounded correctly, so there is nothing to choose",
    "torch_compile": "the step is captured and runs as a program; leave it out",
    "gradient_checkpointing": "a run takes less memory with `tiebreak train --memory`, bit for bit; leave it out",
    "activation_checkpointing": "a run takes less memory with `tiebreak train --memory`, bit for bit; leave it out",
    "neftune_noise_alpha": "its noise is added by a hook that is not part of the model; add it in forward",
    "use_liger_kernel": "the step is captured from PyTorch's own operators; leave it out",
    "auto_find_batch_size": "the batch size is part of the job; set per_device_train_batch_size",
    "eval_strategy": "nothing is measured while a run computes; call evaluate() after train()",
    "eval_on_start": "nothing is measured while a run computes; call evaluate() before train()",
    "load_best_model_at_end": "a run is all its steps; open one of its checkpoints with run.state_dict(step)",
    "report_to": "what is logged is in state.log_history; report it from there",
    "push_to_hub": "call push_to_hub() after train()",
    "train_sampling_strategy": "the order of a job is drawn from its seed",
    "save_only_model": "a checkpoint is the whole state, which an audit needs",
    "resume_from_checkpoint": "a run goes on from its last checkpoint by itself",
}
_HONOURED: Final = (
    "compute_loss create_optimizer create_scheduler create_optimizer_and_scheduler get_decay_parameter_names log "
    "evaluate predict prediction_step evaluation_loop get_eval_dataloader get_test_dataloader save_model"
)
"""Methods of `Trainer` that a subclass may have of its own; all others would never be called."""
_ITEMS: Final = "num_items_in_batch"
"""The name of the data with the number of labels of each example, where a step's batches have unequally many."""
_REFUSED: Final = {
    "model_init": "give the model itself",
    "callbacks": "they are called by a loop that does not run here",
}


class TiebreakTrainer(Trainer):
    """A `transformers.Trainer` whose `train` makes a run in `output_dir/run`, which anyone can audit.

    args: `TrainingArguments`, all of which are translated, or refused by name if they ask for what a job does not do.
    Checkpoints are committed every `save_steps`, or ten times if that is longer than the run. `bf16` is autocast as on
    CPUs, wherever the run is computed. train_dataset: with a length and items by number; an item must collate to the
    same row alone as in a batch (pad to a fixed length), each time (mask once, beforehand). All rows are held in
    memory. client, trainer, terms: as in `tiebreak.agree`. others: further arguments of `Trainer`.

    Raises `ConfigurationError`.
    """

    model: Any
    train_dataset: Any
    optimizer: Any

    def __init__(
        self, model: Any = None, args: TrainingArguments | None = None, data_collator: Any = None,
        train_dataset: Any = None, *, client: PrivateKey | None = None, trainer: PrivateKey | None = None,
        terms: Terms | None = None, **others: Any,
    ) -> None:  # fmt: skip
        if model is None or args is None or train_dataset is None:
            raise ConfigurationError("expected a model, args=TrainingArguments(...) and a train_dataset, got none")
        for name, reason in _REFUSED.items():
            if others.get(name) is not None:
                raise ConfigurationError(f"expected no {name}, got one: {reason}")
        check_arguments(args)
        super().__init__(model, args, data_collator, train_dataset, **others)
        self._job: dict[str, Any] = {"client": client, "trainer": trainer, "terms": terms}
        self._run: Run | None = None
        self._unlogged: list[float] = []
        self._counts: Tensor | None = None

    @property
    def run(self) -> Run:
        """The run that `train` has made: to audit, to dispute, to certify. Raises `StateError` before."""
        if self._run is None:
            raise StateError("expected a run that `train` has made, got none yet")
        return self._run

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:  # fmt: skip
        """Computes the run, or what is left of it, and loads its weights into the model.

        A run that was interrupted goes on from its last checkpoint, whatever `resume_from_checkpoint` says; a path is
        refused. Call it on the model as it was at the first call: its weights are part of the job.
        """
        if isinstance(resume_from_checkpoint, str) or trial is not None or ignore_keys_for_eval:
            raise ConfigurationError(
                "expected a call of train without a path, a trial or keys, got one: a run is what its arguments say, "
                "and goes on from its own last checkpoint"
            )
        self._check_methods()
        started, device = time.time(), self.args.device
        self.model.train().cpu()
        run = self._run = self._agreed(self._arrays())
        self.state.max_steps, first = run.steps, run.step
        run.resume(self._job["trainer"], progress=not self.args.disable_tqdm, keep=self._keep(), callbacks=[self._told])
        self.model.load_state_dict(run.state_dict())
        self.model.to(device)
        losses = run.losses
        done, loss = run.steps - first, sum(losses) / len(losses)
        metrics = speed_metrics("train", started, done * self._step_size, done)  # type: ignore[no-untyped-call]
        self._at(run.steps)
        self.log(metrics := metrics | {"train_loss": loss})
        return TrainOutput(run.steps, loss, metrics)

    @property
    def _step_size(self) -> int:
        return int(self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps)

    def _agreed(self, arrays: Mapping[str, Tensor]) -> Run:
        args, steps = self.args, self._steps(len(self.train_dataset))
        self._counts = self._items(arrays)
        self.create_optimizer_and_scheduler(steps)
        if not isinstance(self.lr_scheduler, LRScheduler):
            raise ConfigurationError(
                f"expected a schedule that depends on the step alone, got lr_scheduler_type={args.lr_scheduler_type}"
            )
        counted = {} if self._counts is None else {_ITEMS: self._counts}
        return agree(
            self.model, self._loss, optimizer=self.optimizer, schedule=self.lr_scheduler, data={**arrays, **counted},
            batch=args.per_device_train_batch_size, steps=steps, directory=Path(str(args.output_dir), "run"),
            seed=args.seed, checkpoint_every=self._interval(steps), accumulation=args.gradient_accumulation_steps,
            clip=Clip(norm=args.max_grad_norm) if args.max_grad_norm > 0 else None,
            machine=Machine(device=str(args.device)), items=_ITEMS if counted else None, **self._job,
        )  # fmt: skip

    def _loss(self, model: Any, **batch: Tensor) -> Tensor:
        """The loss of one batch as `Trainer` computes it, over the labels that count in it, or their sum."""
        count = self._labels(batch) if self._counts is None else torch.tensor(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.args.bf16):
            loss: Any = self.compute_loss(model, batch, num_items_in_batch=count)
        return cast("Tensor", loss.float())

    def _labels(self, batch: dict[str, Tensor]) -> Any:
        """The number of labels that count in a batch, in a tensor; None if the loss is not divided by it."""
        return self.get_batch_samples(iter([batch]), 1, torch.device("cpu"))[1]

    def _check_methods(self) -> None:
        """Raises `ConfigurationError` if a method of the loop that does not run is the user's own."""
        own = getmro(type(self))[: getmro(type(self)).index(TiebreakTrainer)]
        names = {name for kind in own for name in vars(kind)} | {n for n, held in vars(self).items() if callable(held)}
        for name in sorted(names.difference(_HONOURED.split())):
            if callable(getattr(Trainer, name, None)) and not name.startswith("__"):
                raise ConfigurationError(f"expected Trainer's own {name}, got another one, which a run never calls")

    def _items(self, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """The number of labels that count in each example; None if a step averages over its batches.

        Raises `ConfigurationError` for a loss that a job would add up otherwise than `Trainer`.
        """
        own = (
            self.compute_loss_func is not None
            or getattr(self.compute_loss, "__func__", None) is not Trainer.compute_loss
        )
        if self.args.bf16 and (own or self.label_smoother is not None):
            raise ConfigurationError(
                "expected the model's own loss with bf16, which Trainer applies to the model alone, got another loss"
            )
        if self.args.gradient_accumulation_steps == 1:
            return None
        if own:
            raise ConfigurationError(
                "expected the model's own loss with gradient_accumulation_steps, got another one: a job averages over "
                "batches, and what Trainer does with it depends on the function"
            )
        rows = [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(len(self.train_dataset))]
        if (count := self._labels(rows[0])) is None:
            return None  # then Trainer averages over batches too
        counts = torch.stack([torch.as_tensor(self._labels(row)).long() for row in rows])
        self.model.eval()
        with torch.no_grad():
            once: Any = self.compute_loss(self.model, dict(rows[0]), num_items_in_batch=count)
            half: Any = self.compute_loss(self.model, dict(rows[0]), num_items_in_batch=2 * count)
        self.model.train()
        if not torch.allclose(once, 2 * half):
            raise ConfigurationError(
                "expected a loss that is divided by the number of labels with gradient_accumulation_steps, got another "
                "one: Trainer would add it up over the batches; use a larger batch"
            )
        return None if bool((counts == count).all()) else counts

    def _steps(self, examples: int) -> int:
        args, size = self.args, self._step_size
        epoch = ceil(ceil(examples / args.per_device_train_batch_size) / args.gradient_accumulation_steps)
        steps = int(args.max_steps if args.max_steps > 0 else ceil(args.num_train_epochs * epoch))
        if examples % size and steps > examples // size:
            raise ConfigurationError(
                f"expected a multiple of {size} examples, which every step of a job takes, got {examples}: Trainer "
                f"ends an epoch with a smaller step; leave {examples % size} of them out"
            )
        return steps

    def _interval(self, steps: int) -> int | None:
        """Steps between checkpoints, as they are saved; None for a tenth of all steps if none would be saved."""
        match self.args.save_strategy:
            case "steps" if (every := _every(self.args.save_steps, steps)) <= steps:
                return every
            case "epoch" if (every := ceil(len(self.train_dataset) / self._step_size)) <= steps:
                return every
        return None

    def _keep(self) -> str:
        return "last" if self.args.save_total_limit == 1 or self.args.save_strategy == "no" else "all"

    def _arrays(self) -> dict[str, Tensor]:
        """All rows of the data, collated one by one, and compared with what batches of them give another time."""
        loader = self.get_train_dataloader()
        dataset: Any = loader.dataset
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise ConfigurationError(
                f"expected a dataset with a length and items by number, got {type(self.train_dataset).__name__}"
            )
        rows = list(_collated(loader, 1, self.args.seed))
        if any(_shapes(row) != _shapes(rows[0]) for row in rows):
            raise ConfigurationError(
                "expected examples that collate to the same names and shapes, got others; pad to a fixed length"
            )
        arrays = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        if any(len(array) != len(rows) for array in arrays.values()):
            raise ConfigurationError("expected a data_collator that gives a row for each example, got another one")
        at, size = 0, self.args.per_device_train_batch_size
        for batch in _collated(loader, size, self.args.seed + 1):
            given = {name: array[at : at + size] for name, array in arrays.items()}
            if batch.keys() != given.keys() or not all(torch.equal(batch[name], given[name]) for name in given):
                raise ConfigurationError(
                    "expected a dataset and a data_collator that give an example the same row each time, alone and in "
                    "a batch, got another one (random masks, padding by batch); prepare the rows once, beforehand"
                )
            at += size
        set_seed(self.args.seed)  # as `Trainer` left it
        return arrays

    def _told(self, step: Step) -> None:
        """Logs the mean loss since the last time, as `Trainer` does."""
        args = self.args
        self._at(step.number)
        self._unlogged.append(step.loss)
        match args.logging_strategy:
            case "steps":
                due = step.number % _every(args.logging_steps, self.state.max_steps) == 0
            case "epoch":
                due = step.number * self._step_size % len(self.train_dataset) < self._step_size
            case _:
                due = False
        if due or (step.number == 1 and args.logging_first_step):
            self.log({"loss": sum(self._unlogged) / len(self._unlogged)})
            self._unlogged.clear()

    def _at(self, step: int) -> None:
        self.state.global_step, self.state.epoch = step, step * self._step_size / len(self.train_dataset)


def check_arguments(args: TrainingArguments) -> None:
    """Raises `ConfigurationError` for the first argument that asks for what a job does not do."""
    if type(args) is not TrainingArguments:
        raise ConfigurationError(
            f"expected TrainingArguments, got {type(args).__name__}, so its extra fields would be ignored"
        )
    known = {*_TAKEN.split(), *_ASIDE.split()}
    defaults = TrainingArguments(output_dir=args.output_dir, use_cpu=args.use_cpu)
    for name in (field.name for field in fields(args)):
        value = getattr(args, name)
        if name in known or value == getattr(defaults, name):
            continue
        reason = _REASONS.get(name, "a job does nothing by it")
        raise ConfigurationError(f"expected {name} as it is by default, got {value!r}: {reason}")
    if args.data_seed not in (None, args.seed):
        raise ConfigurationError(
            f"expected no data_seed other than seed, got {args.data_seed}: {_REASONS['data_seed']}"
        )
    if args.world_size > 1 or args.n_gpu > 1:
        raise ConfigurationError(
            "expected one process and at most one GPU, got more, each with a batch of its own; use use_cpu=True or "
            "CUDA_VISIBLE_DEVICES, or workers that share a batch (tiebreak.train(..., distributed=True))"
        )
    if args.mixed_precision not in ("no", "bf16" if args.bf16 else "no"):
        raise ConfigurationError(f"expected bf16=True, or nothing, got {args.mixed_precision} from the environment")
    if args.save_strategy not in ("no", "steps", "epoch") or args.save_total_limit not in (None, 1):
        raise ConfigurationError(
            "expected checkpoints by steps or epochs, all of them or the last one (save_total_limit=1), got "
            f"save_strategy={args.save_strategy}, save_total_limit={args.save_total_limit}"
        )


def _every(given: float, steps: int) -> int:
    """A number of steps, which may be given as a share of all."""
    return ceil(given * steps) if given < 1 else int(given)


def _collated(loader: DataLoader[Any], size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """The examples in their order, `size` at a time. Random numbers come from the seed."""
    set_seed(seed)
    dataset: Any = loader.dataset
    for first in range(0, len(dataset), size):
        batch = loader.collate_fn([dataset[i] for i in range(first, min(first + size, len(dataset)))])
        if not isinstance(batch, Mapping) or not all(isinstance(value, Tensor) for value in batch.values()):
            raise ConfigurationError(f"expected a data_collator that gives tensors by name, got {type(batch).__name__}")
        yield dict(batch)


def _shapes(row: Mapping[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in row.items()}
