"""Makes a task from what a PyTorch user has at hand, and reports every mistake before any work is done."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from tiebreak.api.data import examples, hugging_face
from tiebreak.api.data.examples import Loaded, loaded
from tiebreak.api.machine import DEVICE
from tiebreak.api.machine.running import usable_device
from tiebreak.api.training.reading import CHECKS
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.check import checked
from tiebreak.engine.capture.slices import NoSlice, Slice
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.capture.task import LOSSES, Batch, Loss, Optimizer, Rows, Task
from tiebreak.engine.data import ArrayFile, map_array, open_array
from tiebreak.engine.data.tensors import widened
from tiebreak.engine.optimizers.settings import STEPS
from tiebreak.engine.run.cost import Cost, cost_of, memory_here
from tiebreak.engine.run.loop import exact_step
from tiebreak.protocol.arguments import NONE, TEXT, Expectation, instance, shown, taking, whole
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.program import Program

Schedule = Sequence[float] | Callable[[int], float] | LRScheduler | Sequence[LRScheduler]
AnyOptimizer = Optimizer | torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
Data = Any
"""Arrays by name, a dataset of PyTorch's or Hugging Face's, a `DataLoader`, or a list of examples."""
_NAMES: Final = "name model loss optimizer data batch steps seed schedule checkpoint_interval"
_OWN: Final = frozenset(_NAMES.split())
TARGETS: Final = frozenset(["y", "target", "targets", "label", "labels"])
"""The usual names of targets."""
PROCESS: Final = 1 << 29
"""Bytes that a process takes before it holds a model: torch, its tracer and the engine."""
CHECKPOINTS: Final = 10
"""The number of checkpoints in a run that does not choose its own interval."""
PEFT: Final = "base_model.model."
"""The prefix of a base model's names in a PEFT model."""


MODULE: Final = instance("a torch.nn.Module", nn.Module)
TASK: Final = instance("a task of tiebreak.make_task", Task)
CHECK: Final = Expectation(f"one of {', '.join(CHECKS)}", lambda x: isinstance(x, str) and x in CHECKS)


@taking(
    model=MODULE, loss=LOSSES, batch=whole(1) | instance("a tiebreak.Batch", Batch) | NONE, steps=STEPS, name=TEXT,
    items=TEXT | NONE, checkpoint_every=whole(1) | NONE,
)  # fmt: skip
def make_task(
    model: nn.Module, loss: Loss | Sequence[Loss], *, optimizer: AnyOptimizer, data: Data, steps: int,
    batch: int | Batch | None = None, seed: int = 0, schedule: Schedule | None = None,
    checkpoint_every: int | None = None, name: str = "run", **options: Any,
) -> Task:  # fmt: skip
    """Makes a `Task` from a module, a loss, optimizer settings and data. Raises `ConfigurationError`.

    model: initialised, float32. Each module stays in the mode (train or eval) that it is in; nothing of it is changed.
    loss: a function that returns a float32 scalar. It is called with the model and the arrays of the batch, each as the
        argument of its name (`lambda model, x, y: ...` or `lambda model, **batch: model(**batch).loss`), or in the
        order of the data for `*batch`. Or one of torch's own losses, as a module (`nn.CrossEntropyLoss()`) or a
        function (`F.mse_loss`), which is called with model(*batch[:-1]) and the target batch[-1].
        Or a list of losses with as many optimizers, which are phases of each step (`tiebreak.Task`): a GAN's two sides.
    optimizer: `tiebreak.AdamW(...)` and the like, or one of `torch.optim` or your own over the model's parameters, as
        it is before its first step, or a list of such that step one after the other (Muon and AdamW). Or what the
        `configure_optimizers` of Lightning returns, if its schedulers go by steps.
    data: arrays by name, in the order in which the batch takes them, with examples along dim 0: float32 or
        integer tensors, numpy arrays, or files (.npy, .safetensors; these stay on the disk). Or a `TensorDataset`, or a
        Hugging Face `datasets.Dataset`: the columns that the loss names are taken, or all that are numbers. Or a list
        of examples, each a dict, a tuple or a pair, or any PyTorch dataset of such (`Subset` too), or a `DataLoader`
        over one, whose batch_size, shuffle, drop_last and subset count (docs/tasks.md); which order is the job's.
    batch: examples per step, drawn without replacement in each epoch, in an order that the seed fixes; or a
        `tiebreak.Batch` (`tiebreak.Windows` cuts a long array of tokens). A loader's own, if it is left out.
    schedule: factor of the learning rate for each step (from 0), as a sequence or, as with `LambdaLR`, a function.
        Or a scheduler of `torch.optim.lr_scheduler` over that optimizer, as if it were stepped after each step; or a
        list of them.
    checkpoint_every: steps between two commitments [default: a tenth of all steps].
    options: further fields of `tiebreak.Task`.
    """
    losses: list[Any] = list(loss) if isinstance(loss, list | tuple) else [loss]
    optimizer, schedule = _configured(optimizer, schedule)
    loader = loaded(data) if isinstance(data, DataLoader) else None
    data = examples.arrays(data if loader is None else loader.dataset)
    arrays = _arrays(data, losses)
    names = tuple(name for name in arrays if name != options.get("items"))
    taken: Any = [_loss(one, names, by_position=isinstance(data, TensorDataset)) for one in losses]
    known = {field.name for field in fields(Task)} - _OWN
    if unknown := sorted(set(options) - known):
        raise ConfigurationError(f"expected options among {sorted(known)}, got {unknown}")
    interval = max(1, steps // CHECKPOINTS) if checkpoint_every is None else checkpoint_every
    task = Task(
        name=name, model=model, loss=taken if isinstance(loss, list | tuple) else taken[0], optimizer=optimizer,  # type: ignore[arg-type]  # the task translates it
        data=arrays, batch=_batch(batch, loader, names), steps=steps,
        seed=seed, schedule=_factors(schedule, steps), checkpoint_interval=interval, **options,
    )  # fmt: skip
    left = 0 if loader is None or loader.drop_last else task.examples % task.batch.size
    if left and steps * task.accumulation * task.batch.size > task.examples - left:
        raise ConfigurationError(
            f"expected a DataLoader whose batches are all of one size, got drop_last=False and a last one of {left} "
            "examples; give drop_last=True, or the loader's dataset, of which a batch may span two epochs"
        )
    return task


def _configured(given: Any, schedule: Any) -> tuple[Any, Any]:
    """Optimizers and schedulers of what `configure_optimizers` of Lightning returns; others stay as they are."""
    listed = isinstance(given, list | tuple)
    if listed and len(given) == 2 and all(isinstance(part, list | tuple) for part in given):
        parts = [*({"optimizer": one} for one in given[0]), *({"lr_scheduler": one} for one in given[1])]
    elif isinstance(given, Mapping) or (listed and any(isinstance(part, Mapping) for part in given)):
        parts = [dict(part) for part in ([given] if isinstance(given, Mapping) else given) if isinstance(part, Mapping)]
    else:
        return given, schedule
    known = {"optimizer", "lr_scheduler", "monitor", "frequency"}
    if schedule is not None or not all(part.keys() <= known for part in parts):
        raise ConfigurationError(f"expected dicts of 'optimizer' and 'lr_scheduler', without `schedule`, got {given!r}")
    optimizers = [part["optimizer"] for part in parts if "optimizer" in part]
    schedulers = [_of_steps(part["lr_scheduler"]) for part in parts if part.get("lr_scheduler") is not None]
    return optimizers[0] if len(optimizers) == 1 else optimizers, schedulers or None


def _of_steps(given: Any) -> Any:
    config = given if isinstance(given, Mapping) else {"scheduler": given}
    interval, every = config.get("interval", "epoch"), config.get("frequency", 1)
    if "scheduler" not in config or interval != "step" or every != 1:
        raise ConfigurationError(
            f"expected a scheduler that goes by steps, got interval {interval!r}, frequency {every} (Lightning's "
            "default is epochs); count its settings in steps, and give {'scheduler': ..., 'interval': 'step'}"
        )
    return config["scheduler"]


def _arrays(data: Any, losses: Sequence[Callable[..., Tensor]]) -> dict[str, Any]:
    if isinstance(getattr(data, "column_names", None), dict):
        raise ConfigurationError(
            f"expected one split of the dataset, got all; choose one of {sorted(data.column_names)}"
        )
    if hasattr(data, "column_names") and hasattr(data, "with_format") and hasattr(data, "__len__"):  # no stream
        data = hugging_face.arrays(data, dict.fromkeys(name for loss in losses for name in _arguments(loss)))
    if isinstance(data, TensorDataset):
        data = {f"tensor{i}": tensor for i, tensor in enumerate(data.tensors)}
    if not isinstance(data, Mapping) or not data:
        raise ConfigurationError(
            f"expected data as arrays by name, a dataset with a length, a DataLoader or a list of examples, got "
            f"{shown(data)}"
        )
    return {name: _array(name, array) for name, array in data.items()}


def _batch(given: int | Batch | None, loader: Loaded | None, names: tuple[str, ...]) -> Batch:
    """The batch of a task: as given, in the order of a loader if there is one."""
    size = loader.size if loader is not None and given is None else given
    if size is None:
        raise ConfigurationError("expected batch, the number of examples per step, got none")
    batch = size if isinstance(size, Batch) else Batch(size=size, examples=Rows(names=names))
    if loader is None:
        return batch
    if batch.size != loader.size:
        raise ConfigurationError(
            f"expected batch={loader.size}, the batch_size of the DataLoader, got {batch.size}; leave `batch` out, or "
            "give the loader's dataset"
        )
    return replace(batch, shuffled=loader.shuffled, drop_last=loader.drop_last)


def _arguments(loss: Callable[..., Tensor]) -> list[str]:
    """The names of a loss's arguments after the model; none for torch's own losses."""
    try:
        return [] if isinstance(loss, nn.Module) else list(signature(loss).parameters)[1:]
    except (TypeError, ValueError):  # some callables in C do not tell their arguments
        return []


def _array(name: str, array: object) -> Tensor:
    match array:
        case Tensor():
            return array
        case ArrayFile():
            return map_array(array)
        case str() | Path():
            return map_array(open_array(array))
        case np.ndarray():
            try:
                return torch.from_numpy(array)
            except (TypeError, ValueError) as error:  # a dtype or a stride that torch does not have
                raise ConfigurationError(f"expected numbers that torch can read in data {name!r}: {error}") from error
    raise ConfigurationError(f"expected an array or a file in data {name!r}, got {shown(array)}")


def _loss(loss: Callable[..., Tensor], names: tuple[str, ...], *, by_position: bool) -> Callable[..., Tensor]:
    """Gives torch's own losses, which take an output and a target, the signature loss(model, *batch).

    by_position: the arrays have no names of the user's, so every loss takes them in order.
    """
    own = getattr(F, getattr(loss, "__name__", ""), None) is loss
    if not isinstance(loss, nn.Module) and not own:
        return _in_order(loss) if by_position else loss
    if misplaced := [name for name in names[:-1] if name in TARGETS and names[-1] not in TARGETS]:
        raise ConfigurationError(
            f"expected the target of torch's own losses last in the data, got {', '.join(names)}; put {misplaced[0]} "
            "last, or write the loss as a function with arguments of these names"
        )

    def of_output(model: nn.Module, *batch: Tensor) -> Tensor:
        return loss(model(*batch[:-1]), batch[-1])

    return of_output


def _in_order(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def of_batch(model: nn.Module, *batch: Tensor) -> Tensor:
        return loss(model, *batch)

    return of_batch


def _factors(schedule: Schedule | None, steps: int) -> Any:
    if schedule is None or isinstance(schedule, LRScheduler):
        return schedule
    if not callable(schedule) and (isinstance(schedule, str | bytes) or not isinstance(schedule, Iterable)):
        return schedule  # the task refuses it
    try:
        found: Any = [schedule(step) for step in range(steps)] if callable(schedule) else schedule
        return tuple(one if isinstance(one, LRScheduler) else float(one) for one in found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"expected a number for each step in the schedule: {error}") from error


@taking(task=TASK, check=CHECK, device=DEVICE)
def capture(task: Task, *, check: str = "full", device: str = "cpu") -> Captured:
    """Captures the task as a program, its initial state and its data, and checks the program against eager PyTorch.

    The check takes about as long as capture itself and a few steps. A CUDA device may compute it, and the rehearsal.
    check: "full"; "slice" for a model of which this is too much: three of each list of equal layers are checked, and
    all others do the same (docs/decisions/capture.md says what this cannot see); if they do not, all of the model is
    checked, with a warning; or "none". Raises `ConfigurationError`
    if the program is not the model, if there is none (it then lists every operator that has no exact form), or, before
    anything is computed, if this machine has too little memory for the check.
    """
    if check == "none":
        return capture_task(task)
    try:
        return _checked(task, usable_device(device), Slice.of(task) if check == "slice" else None)
    except NoSlice as error:
        warnings.warn(f"the whole model is checked, since a slice does not tell: {error}", stacklevel=2)
    return _checked(task, usable_device(device), None)


def _checked(task: Task, chosen: torch.device, part: Slice | None) -> Captured:
    steps = task if part is None else part.task
    if chosen.type == "cpu":
        _require_memory(task, steps)

    def run_step(program: Program, *given: Any) -> Any:
        if given[-1].type == "cpu":
            _require_memory(task, steps, cost_of(program))
        return exact_step(program, *given)

    return checked(task, run_step, chosen, part)


def _require_memory(task: Task, part: Task, step: Cost | None = None) -> None:
    """Raises `ConfigurationError` if capture and its check take more memory than there is here.

    First the whole model's step is rehearsed: copies of its tensors and two sets of gradients. Then the engine takes
    two steps of `part`, the task itself or a slice of it, and keeps their gradients, the new state of the first and the
    new weights of the second. Of these, weights and gradients are still there when eager PyTorch has weights, gradients
    and values in FP64, with the parts of its largest gradient. Last, the state is copied. Without `step`, which the
    program tells, values and moments are not counted.
    """
    whole, tensors = ([*one.model.parameters(), *one.model.buffers()] for one in (task, part))
    trained = [4 * tensor.numel() for tensor in tensors if tensor.requires_grad]
    first, gradients = sum(4 * tensor.numel() for tensor in tensors), sum(trained)
    new = live = gradients if step is None else gradients + max(0, step.state_bytes - first)
    values = 0
    if step is not None:
        live, values = max(new, step.live_bytes), max(0, step.passing_bytes - gradients)
    wide = 2 * (first + gradients + values + 3 * max(trained))
    engine = max(gradients + live, new + 3 * gradients + values)
    copied = [tensor for tensor in tensors if part is not task or tensor.dtype != torch.float32]
    check = sum(4 * tensor.numel() for tensor in copied) + max(engine, 3 * gradients + wide)
    own = sum(tensor.nbytes for tensor in whole)
    rehearsal = own + 2 * sum(tensor.nbytes for tensor in whole if tensor.requires_grad)
    needed = PROCESS + own + max(rehearsal, check, sum(4 * tensor.numel() for tensor in whole))
    if needed > (available := memory_here()):
        raise ConfigurationError(
            f"expected a model whose capture and check fit into the {available / 2**30:.3g} GiB of memory here, got "
            f"one for which they take about {needed / 2**30:.3g} GiB; take smaller batches (`accumulation` adds up "
            'their gradients) or a machine with more memory, or check less (check="slice" or "none")'
        )


def state_names(model: nn.Module) -> dict[str, str]:
    """Maps each key of the module's `state_dict` to its state entry; the keys of tied tensors share one entry."""
    own = {id(t): name for name, t in reversed([*model.named_parameters(), *model.named_buffers()])}
    return {key: MODEL + own[id(t)] for key, t in model.state_dict(keep_vars=True).items() if id(t) in own}


def adapter_names(model: nn.Module) -> dict[str, str]:
    """Maps keys of the module's `state_dict` to the names that PEFT gives them in the file of the active adapter.

    A model without an adapter has none. PEFT itself maps them: it is given numbers in place of the tensors.
    """
    peft, keys = sys.modules.get("peft"), list(model.state_dict())
    marks = {key: torch.tensor(number) for number, key in enumerate(keys)}
    if peft is not None and isinstance(model, peft.PeftModel):
        found = peft.get_peft_model_state_dict(model, state_dict=marks, adapter_name=model.active_adapter)
    elif getattr(model, "_hf_peft_config_loaded", False):  # by `add_adapter` of transformers
        held: Any = model
        found = {f"{PEFT}{name}": mark for name, mark in held.get_adapter_state_dict(state_dict=marks).items()}
    else:
        return {}
    numbers = {name: mark for name, mark in found.items() if mark.ndim == 0}
    virtual = {  # tokens of a prompt, which PEFT computes: they are weights unless a network of their own gives them
        key: name for name, values in found.items() for key, tensor in model.state_dict().items()
        if name not in numbers and tensor.shape == values.shape and tensor.cpu().equal(values.to(tensor.dtype))
    }  # fmt: skip
    return {keys[int(mark)]: name for name, mark in numbers.items()} | virtual


def as_state_dict(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """The argument of `load_state_dict`: copies of the tensors, on the CPU."""
    return {key: widened(state[entry].detach()).to("cpu", copy=True) for key, entry in names.items()}
