"""A training job in terms that a PyTorch user knows: a model, a loss, an optimizer, data and a batch.

Capture reads a `Task`, and the plain FP32 loop trains one. Only its author runs the code that makes it; other parties
receive the program captured from it, and its initial state and data as bytes.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from tiebreak.engine.capture import four_bit
from tiebreak.engine.capture.examples import LOSSES, MAX_INDEX, Batch, Loss, NamedLoss, Rows, arrays, loaded, of_batch
from tiebreak.engine.data import not_finite
from tiebreak.engine.data.mapped import NARROW
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.optimizers.settings import MIN_EPS, STEPS, Clip, Optimizer, check_groups, fp32, require
from tiebreak.engine.optimizers.translate import TorchOptimizers, by_phase, factors, of_lightning, translated
from tiebreak.protocol.arguments import FLAG, FUNCTION, NONE, TEXT, Expectation, instance, is_text, taking, whole
from tiebreak.protocol.errors import ConfigurationError

DATA_DTYPES: Final = (torch.float32, torch.int64, torch.bool, *NARROW)
CHECKPOINTS: Final = 10
"""The number of checkpoints in a job whose task does not choose its own interval."""
Evaluation = Callable[[nn.Module], dict[str, float]]
"""evaluate(model) -> metrics by name. It must not draw from training's random stream, nor train on what it measures."""
Data = Any
"""Arrays by name or their file, a dataset of PyTorch's or Hugging Face's, a `DataLoader`, or a list of examples."""
Schedule = Sequence[float] | Callable[[int], float] | LRScheduler | Sequence[LRScheduler]
AnyOptimizer = Optimizer | torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | TorchOptimizers


def _is_schedule(given: object) -> bool:
    several = given if isinstance(given, list | tuple) else ()
    numbers = all(isinstance(f, int | float) and not isinstance(f, bool) for f in several)
    schedulers = all(isinstance(one, LRScheduler) for one in several or [given])
    return schedulers or (bool(several) and numbers)


_SCHEDULE: Final = Expectation(
    "a factor of at least 0 for each step (of the learning rate) in a list, or as a function of the step, counted from "
    "0; or as a scheduler of torch.optim.lr_scheduler",
    _is_schedule,
)


@dataclass(frozen=True, init=False, eq=False)
class Task:
    """One training job: everything that decides what its steps compute. See `__init__` for what each field may be."""

    model: nn.Module
    loss: Loss
    """Takes the model and the arrays of the batch in their order."""
    data: Mapping[str, Tensor]
    late: Mapping[str, Tensor]
    optimizer: Optimizer | TorchOptimizers | None
    batch: Batch
    steps: int
    seed: int
    schedule: tuple[float, ...] | None
    accumulation: int
    items: str | None
    clip: Clip | None
    norm: bool
    average: float | None
    checkpoint_interval: int
    evaluate: Evaluation | None
    evaluate_every: int | None
    name: str
    phases: tuple["Task", ...] = field(init=False, repr=False, default=())
    """The phases of a step as tasks of their own; most tasks have one, the task itself."""

    @taking(
        model=instance("a torch.nn.Module", nn.Module), loss=LOSSES, steps=STEPS, seed=whole(0, MAX_INDEX),
        batch=whole(1) | instance("a tiebreak.Batch", Batch) | NONE, accumulation=whole(1, MAX_INDEX),
        items=TEXT | NONE, norm=FLAG, average=fp32("a decay in [0, 1)", lambda x: 0 <= x < 1) | NONE,
        clip=fp32("a positive number, at least 2^-126, to clip the norm to", lambda x: x >= MIN_EPS)
        | instance("a tiebreak.Clip", Clip) | NONE,
        checkpoint_interval=STEPS | NONE, evaluate=FUNCTION | NONE, evaluate_every=whole(1, MAX_INDEX) | NONE,
        late=instance("tensors by name", Mapping) | NONE, name=TEXT,
    )  # fmt: skip
    def __init__(
        self, model: nn.Module, loss: Loss | Sequence[Loss], *, data: Data, optimizer: AnyOptimizer | None, steps: int,
        batch: int | Batch | None = None, seed: int = 0, schedule: Schedule | None = None, accumulation: int = 1,
        items: str | None = None, clip: float | Clip | None = None, norm: bool = False, average: float | None = None,
        checkpoint_interval: int | None = None, evaluate: Evaluation | None = None, evaluate_every: int | None = None,
        late: Mapping[str, Tensor] | None = None, name: str = "run",
    ) -> None:  # fmt: skip
        """Checks and reads everything that it is given. Raises `ConfigurationError`.

        model: initialised, float32 or bfloat16. Each module stays in the mode (train or eval) that it is in; nothing of
            it is changed. The bytes of its parameters and buffers are the initial state.
        loss: a function that returns a float32 scalar, from the model and the batch alone. It is called with the model
            and the arrays of the batch, each as the argument of its name (`lambda model, x, y: ...` or
            `lambda model, **batch: model(**batch).loss`), or in the order of the data for `*batch`. Or one of torch's
            own losses, as a module (`nn.CrossEntropyLoss()`) or a function (`F.mse_loss`), which is called with
            model(*batch[:-1]) and the target batch[-1]. Or a list of losses with as many optimizers of torch, which are
            phases of each step (the two sides of a GAN): each is computed over the step's batches from the weights and
            buffers that the phase before it leaves, and trains the parameters of its optimizer only. The step's loss is
            their sum. An optimizer may stand there more than once. `clip` is by phase; schedulers and `average` move on
            after the last.
        data: arrays by name, in the order in which the batch takes them, with examples along dim 0: float32, int64,
            bool or narrower integers (`tiebreak.engine.data.mapped`) on the CPU, as tensors, numpy arrays, or files
            (.npy, .safetensors; these stay on the disk), or one .safetensors file of all. Or a `TensorDataset`, or a
            Hugging Face `datasets.Dataset`: the columns that the loss names are taken, or all that are numbers. Or a
            list of examples, each a dict, a tuple or a pair, or any PyTorch dataset of such (`Subset` too), or a
            `DataLoader` over one, whose batch_size, shuffle, drop_last and subset count (docs/tasks.md); which order is
            the job's.
        optimizer: `tiebreak.AdamW(...)` and the like, or one of `torch.optim` or your own over the model's parameters,
            as it is before its first step, or a list of such that step one after the other (Muon and AdamW). Or what
            the `configure_optimizers` of Lightning returns, if its schedulers go by steps. The task holds the settings
            that it stands for. None: nothing is learnt, and no parameter requires a gradient; the steps write to
            buffers, such as the scores of an evaluation.
        steps: the number of updates.
        batch: examples per step, drawn without replacement in each epoch, in an order that the seed fixes; or a
            `tiebreak.Batch` (`tiebreak.Windows` cuts a long array of tokens). A loader's own, if it is left out.
        seed: of the example order, of dropout and of other draws.
        schedule: factor of the learning rate for each step (from 0), as a sequence (`tiebreak.cosine` and others make
            one) or, as with `LambdaLR`, a function. Or a scheduler of `torch.optim.lr_scheduler` over that optimizer,
            as if it were stepped after each step; or a list of them. None means 1 throughout.
        accumulation: the number of batches per step. Each goes through the model separately (with its own batch norm
            statistics and dropout masks), and the optimizer runs once: a step takes accumulation * batch.size examples.
            Gradients are added in the order of the batches and divided by their number; so is the loss.
        items: the name of an array in data that the loss does not get: int64, the number of items (labels that count)
            of each example. A batch's loss is then a sum over its items, and the step divides by all of its items.
        clip: see `Clip`; applies to the gradients after this division. A number is the norm to clip to.
        norm: whether the state also holds the 2-norm of all gradients, before clipping, as `telemetry.norm`.
        average: the decay of a moving average of the trained parameters, which the state holds as `average.NAME`.
        checkpoint_interval: steps between two checkpoints (k of the specification), at which a run is committed and
            signed [default: a tenth of all steps].
        evaluate: see `Evaluation`; runs outside the job, on data that need not be part of it, every `evaluate_every`
            steps [default: at each checkpoint] and after the last.
        late: arrays by name that the trainer supplies with each step, such as what the model of the moment wrote; the
            loss takes them after the data's. Here in the shape of a step, with accumulation * batch.size examples along
            dim 0, and with numbers as they may be, which capture is checked with; float32, int64 or bool. The numbers
            of a run come from `supply` (see `tiebreak.train`) and are published with it; what they are, the loss has to
            check: it may return NaN.
        name: what pages and commands call the run; no byte of it depends on the name.
        """
        losses: list[Any] = list(loss) if isinstance(loss, list | tuple) else [loss]
        data, of_loader = loaded(data) if isinstance(data, DataLoader) else (data, {})
        taken, is_named = arrays(data, losses)
        size = of_loader.get("size") if batch is None else batch
        if size is None:
            raise ConfigurationError("expected batch, the number of examples per step, got none")
        late, names = dict(late or {}), tuple(one for one in taken if one != items)
        batch = size if isinstance(size, Batch) else Batch(size=size, examples=Rows(names=names))
        if batch.size != of_loader.get("size", batch.size):
            raise ConfigurationError(
                f"expected batch={of_loader['size']}, the batch_size of the DataLoader, got {batch.size}; leave "
                "`batch` out, or give the loader's dataset"
            )
        batch = replace(batch, **of_loader)
        arrays_of_batch = (*batch.examples.arrays(), *late)
        losses = [of_batch(one, arrays_of_batch, by_position=not is_named) for one in losses]
        vars(self).update(
            model=model, data=taken, late=late,
            batch=batch, steps=steps, seed=seed, accumulation=accumulation, items=items,
            clip=Clip(norm=clip) if isinstance(clip, int | float) else clip, norm=norm, average=average,
            checkpoint_interval=max(1, steps // CHECKPOINTS) if checkpoint_interval is None else checkpoint_interval,
            evaluate=evaluate, evaluate_every=evaluate_every, name=name,
        )  # fmt: skip
        learns = any(parameter.requires_grad for parameter in model.parameters())
        what = "a parameter that requires a gradient, or none and optimizer=None"
        require(learns == (optimizer is not None), what, [name for name, _ in model.named_parameters()])
        given = [name for name, value in (("clip", clip), ("schedule", schedule), ("average", average), ("norm", norm))
                 if value is not None and value is not False]  # fmt: skip
        require(learns or not given, "no clip, schedule, average or norm without an optimizer", given)
        each = self._translate(optimizer, schedule, len(losses) if isinstance(loss, list | tuple) else None)
        require(1 <= self.checkpoint_interval <= steps, f"1 <= interval <= {steps}", self.checkpoint_interval)
        if evaluate_every is not None:
            require(evaluate is not None, "a function evaluate(model) with evaluate_every", "none")
        self._check_data()
        with four_bit.as_state(model):
            self._check_model()
        left = 0 if of_loader.get("drop_last", True) else self.examples % batch.size
        if left and steps * accumulation * batch.size > self.examples - left:
            raise ConfigurationError(
                "expected a DataLoader whose batches are all of one size, got drop_last=False and a last one of "
                f"{left} examples; give drop_last=True, or the loader's dataset, of which a batch may span two epochs"
            )
        self._set_phases(losses, each)

    def _translate(self, given: Any, schedule: Any, phases: int | None) -> tuple[TorchOptimizers, ...]:
        """Takes optimizer and schedule, with settings in the place of torch's objects; returns those of phases."""
        given, schedule = of_lightning(given, schedule)
        schedule = factors(schedule, self.steps)
        (_SCHEDULE | NONE).require("schedule", schedule)
        each: tuple[TorchOptimizers, ...] = ()
        if given is None:
            optimizer = None
        elif phases is None:
            optimizer, schedule = translated(given, schedule, self.model, self.steps)
        else:
            require(not self.norm, "several losses without `norm` (each phase has a norm of its own)", self.norm)
            each, schedule = by_phase(given, schedule, self.model, phases)
            optimizer = TorchOptimizers(
                optimizers=tuple(one for phase in each for one in phase.optimizers), lr=each[0].lr,
                schedulers=tuple(dict.fromkeys(one for phase in each for one in phase.schedulers)),
            )  # fmt: skip
        vars(self).update(optimizer=optimizer, schedule=schedule)
        if schedule is not None:
            require(len(schedule) == self.steps, f"{self.steps} factors in the schedule", len(schedule))
            require(all(isfinite(f) and f >= 0 for f in schedule), "finite factors >= 0", schedule)
        return each

    def _set_phases(self, losses: list[Loss], each: Sequence[TorchOptimizers]) -> None:
        if isinstance(self.batch.examples, Rows):
            names, several = (*self.batch.examples.names, *self.late), losses if each else ()
            losses = [NamedLoss.of(loss, names, phases=several) for loss in losses]
        vars(self).update(loss=tuple(losses) if each else losses[0])
        phases = [copy.copy(self) for _ in each]
        for phase, loss, optimizer in zip(phases, losses, each, strict=False):
            vars(phase).update(loss=loss, optimizer=optimizer)
        vars(self).update(phases=tuple(phases) or (self,))

    def trains(self, parameter: nn.Parameter) -> bool:
        """Whether the optimizer of the step, or of this phase of one, gets a parameter's gradient."""
        o = self.optimizer
        others = isinstance(o, TorchOptimizers) and o.prefix and not o.holds(parameter)
        return parameter.requires_grad and not others

    def _check_data(self) -> None:
        for name, array in self.data.items():
            require(
                is_text(name) and isinstance(array, Tensor), "tensors by name in data", (name, type(array).__name__)
            )
            require(array.device.type == "cpu", f"data {name!r} on the CPU (`.cpu()`)", str(array.device))
            known = f"float32, int64 or bool in data {name!r}, or uint8, int8, int16 or int32 (convert it)"
            require(array.dtype in DATA_DTYPES, known, array.dtype)
            require(not array.requires_grad, f"data {name!r} without a gradient (`.detach()`)", "requires_grad")
            require(array.numel() > 0, f"elements in data {name!r}", tuple(array.shape))
            if array.dtype == torch.float32:
                bad = not_finite(array)
                require(bad == 0, f"only finite numbers in data {name!r}", f"{bad} that are not")
        drawn = self.accumulation * self.batch.size
        given: Mapping[str, Any] = self.late
        for name, array in given.items():
            whole = isinstance(array, Tensor) and array.dtype in PROTOCOL_DTYPES and array.shape[:1] == (drawn,)
            what = f"float32, int64 or bool in late data {name!r}, with {drawn} examples along dim 0"
            require(whole and name not in self.data, what, getattr(array, "shape", array))
        missing = [name for name in (*self.batch.examples.arrays(), self.items) if name not in (*self.data, None)]
        require(not missing, f"data named {missing}", sorted(self.data))
        require(self.examples >= 1, "at least one example", self.examples)
        if self.items is not None:
            counts = self.data[self.items]
            whole = counts.dtype == torch.int64 and counts.shape == (self.examples,) and bool((counts >= 0).all())
            require(whole, f"an int64 >= 0 for each of {self.examples} examples in {self.items}", tuple(counts.shape))
        require(self.batch.size <= self.examples, f"a batch of at most all {self.examples} examples", self.batch.size)

    def _check_model(self) -> None:
        for name, tensor in self._tensors():
            lazy = isinstance(tensor, UninitializedParameter | UninitializedBuffer)
            require(not lazy, f"{name} to have a shape (call the model once on a batch)", "a lazy module's tensor")
            place = f"{name} on the CPU (`model.cpu()`; the machine's `device` computes)"
            require(lazy or tensor.device.type == "cpu", place, str(tensor.device))
            hooks = getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None)
            advice = "scale or clip gradients with `clip=`, or in forward with `register_hook` on a result"
            require(not hooks, f"{name} without hooks on its gradient, which a program cannot call ({advice})", "some")
            floats = torch.float32, torch.bfloat16
            allowed = floats if isinstance(tensor, nn.Parameter) else (*floats, torch.int64, torch.bool, *NARROW)
            held = "keep it as a plain attribute, or as its `torch.view_as_real`"
            advice = held if tensor.is_complex() else "convert it"
            require(tensor.dtype in allowed, f"{name} to be one of {allowed} ({advice})", tensor.dtype)
            parts = torch.split(tensor.detach().reshape(-1), 1 << 20) if tensor.dtype.is_floating_point else ()
            finite = all(bool(torch.isfinite(part).all()) for part in parts)
            advice = "call the model once on a batch if an observer or a cache is still empty"
            require(finite, f"only finite numbers in {name} ({advice})", "others")
        names = [name for name, _ in self.model.named_parameters()]
        if self.optimizer is not None:
            check_groups(self.optimizer.groups, names)

    @property
    def examples(self) -> int:
        """The number of examples in one epoch."""
        return self.batch.examples.count(self.data)

    def parts(self, late: Mapping[str, Tensor]) -> list[tuple[Tensor, ...]]:
        """The late data of each of a step's batches."""
        size = self.batch.size
        starts = range(0, self.accumulation * size, size)
        return [tuple(late[name][at : at + size] for name in self.late) for at in starts]

    def learning_rates(self) -> Tensor:
        """The learning rate of every step, float32 [steps]; this table becomes data of the job."""
        factors = (1.0,) * self.steps if self.schedule is None else self.schedule
        return torch.tensor([getattr(self.optimizer, "lr", 0.0) * f for f in factors], dtype=torch.float64).to(
            torch.float32
        )

    def initial_state(
        self, device: str | None = None, *, copy: bool = True, shared: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Copies of the parameters and buffers by name; tied ones appear once, under their first name.

        Those of bfloat16 are float32 here, and narrow integers int64, as in the program. shared: the names of those
        that are the model's own memory, in bfloat16 too.
        """
        ints = dict.fromkeys(NARROW, torch.int64)
        found = dict[str, Tensor]()
        for name, tensor in self._tensors():
            is_own = name in shared
            wide = ints if is_own else {torch.bfloat16: torch.float32, **ints}
            held = tensor.detach().to(device=device)
            found[name] = held.to(wide.get(held.dtype, held.dtype), copy=copy and not is_own)
        return found

    def bf16(self) -> frozenset[str]:
        """The names of the parameters and buffers that the model holds in bfloat16."""
        return frozenset(name for name, dtype in self.narrow().items() if dtype == torch.bfloat16)

    def narrow(self) -> dict[str, torch.dtype]:
        """The dtypes of the parameters and buffers that a program holds in a wider one."""
        return {name: t.dtype for name, t in self._tensors() if t.dtype in (torch.bfloat16, *NARROW)}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()
