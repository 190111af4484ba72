"""A step's batch: the examples that it takes, and their order; examples of datasets as arrays, and a `DataLoader`'s.

A job reads its data once, and makes its batches by itself. What a loader or a dataset does beyond giving examples that
stay the same is followed, or refused by its name.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset, SubsetRandomSampler, TensorDataset, default_collate

from tiebreak.engine.capture.step_run import SEED, random_streams, same_draws
from tiebreak.engine.data import ArrayFile, hugging_face, map_array, open_array, open_safetensors
from tiebreak.engine.optimizers.settings import require
from tiebreak.protocol.arguments import FLAG, TEXT, Expectation, instance, require_fields, shown, tuple_of, whole
from tiebreak.protocol.errors import ConfigurationError

MAX_INDEX: Final = (1 << 63) - 1
"""The largest int64: steps, places and seeds are int64 in a program."""
TARGETS: Final = frozenset(["y", "target", "targets", "label", "labels"])
"""The usual names of targets."""
LOSSES: Final = Expectation(
    "a function of the model and the arrays of the batch, or a list of such functions, one for each phase of a step",
    lambda x: callable(x) or (isinstance(x, list | tuple) and bool(x) and all(map(callable, x))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Example i is row i of each named array; the batch gains a leading dimension.

    names: of the arrays. The loss gets each as the argument of its name; the order counts only for `*batch`.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        require_fields(self, names=tuple_of('names of arrays in a tuple, such as ("x", "y")', TEXT.holds))
        require(len(self.names) > 0, "at least one name of an array", self.names)

    def arrays(self) -> tuple[str, ...]:
        """The names of the data that it reads."""
        return self.names

    def count(self, data: Mapping[str, Tensor]) -> int:
        """The number of examples in the data."""
        rows = {name: data[name].shape[0] if data[name].ndim else 0 for name in self.names}
        require(len(set(rows.values())) == 1, "arrays with equally many rows", rows)
        return min(rows.values())

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        return tuple(data[name][index_B] for name in self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Example i is `length` tokens of a 1-d int64 array from i * stride on; the batch is int64 [B, length].

    name: of the array in the task's data. stride: tokens from the beginning of one example to that of the next.
    """

    name: str
    length: int
    stride: int

    def __post_init__(self) -> None:
        require_fields(self, name=TEXT, length=whole(1, MAX_INDEX), stride=whole(1, MAX_INDEX))

    def arrays(self) -> tuple[str, ...]:
        """The names of the data that it reads."""
        return (self.name,)

    def count(self, data: Mapping[str, Tensor]) -> int:
        """The number of whole windows in the tokens."""
        tokens = data[self.name]
        require(tokens.ndim == 1, f"one dimension in {self.name}", tuple(tokens.shape))
        return max(0, (tokens.shape[0] - self.length) // self.stride + 1)

    def take(self, data: Mapping[str, Tensor], index_B: Tensor) -> tuple[Tensor, ...]:
        """The batch of the examples `index_B` (int64 [B])."""
        offsets_BT = index_B[:, None] * self.stride + torch.arange(self.length)
        return (data[self.name][offsets_BT],)


Examples = Rows | Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A step's batch: `size` examples, without replacement within an epoch, in an order drawn from the seed.

    Draw number g = (step - 1) * size + j (step from 1, j the place in the batch) is example order(g mod n) of epoch g
    // n, where n is the number of examples; a batch may span two epochs. With gradient accumulation over A batches,
    `size` in this formula stands for A * size, and the step's batches are consecutive parts of the draws.

    examples: `Rows` or `Windows`.
    shuffled: else the order of each epoch is that of the data.
    drop_last: whether n is the largest multiple of `size` instead, so that each epoch leaves out the last examples of
    its order.
    """

    size: int
    examples: Examples
    shuffled: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        examples = instance("tiebreak.Rows or tiebreak.Windows", Rows, Windows)
        require_fields(self, size=whole(1, MAX_INDEX), examples=examples, shuffled=FLAG, drop_last=FLAG)

    def drawn(self, examples: int) -> int:
        """The number of draws in an epoch over this number of examples."""
        return examples - examples % self.size if self.drop_last else examples


Loss = Callable[..., Tensor]
"""loss(model, ...) -> f32 of rank 0. Its further arguments are those of the batch, by name if the data are `Rows`."""


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """A loss over a batch in the order of `names`: each array goes to the argument of its name.

    `*batch` takes the arrays that no argument names, in their order; `**batch` takes them by name.
    """

    loss: Loss
    names: tuple[str, ...]
    order: tuple[str, ...]
    """The arrays that are given by position."""
    unread: tuple[str, ...] = ()
    """The arrays that are given to losses of other phases only."""

    def __call__(self, model: nn.Module, *batch: Tensor) -> Tensor:
        given = {n: tensor for n, tensor in zip(self.names, batch, strict=True) if n not in self.unread}
        positional = [given.pop(name) for name in self.order]
        return self.loss(model, *positional, **given)

    @classmethod
    def of(cls, loss: Loss, names: tuple[str, ...], *, phases: Sequence[Loss] = ()) -> "NamedLoss":
        """Binds a loss. Raises `ConfigurationError` if its arguments are not those of the batch.

        phases: the losses of all phases of a step, if there are several; each array must be an argument of one.
        """
        loss = loss.loss if isinstance(loss, cls) else loss
        try:
            found = list(signature(loss).parameters.values())
        except (TypeError, ValueError):  # some callables in C do not tell their arguments
            return cls(loss, names, names)
        if not found or found[0].kind == Parameter.VAR_POSITIONAL:
            return cls(loss, names, names)
        arguments, kinds = found[1:], {p.kind for p in found[1:]}
        named = [p for p in arguments if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
        missing = [p.name for p in named if p.name not in names and p.default is Parameter.empty]
        left = [name for name in names if name not in [p.name for p in named]]
        takes_all = kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        unread = tuple(left) if not takes_all and all(_is_named(name, phases) for name in left) else ()
        if missing or (left and not takes_all and not unread):
            raise ConfigurationError(
                f"expected a loss whose arguments after the model are the arrays of the batch, {', '.join(names)}, got "
                f"{', '.join(str(p) for p in arguments) or 'none'}; arrays are bound by name, so rename the arguments "
                "or the data, leave out what the loss does not take, or take them by position with `*batch`"
            )
        first = [p.name for p in named if p.kind == Parameter.POSITIONAL_ONLY and p.name in names]
        if Parameter.VAR_POSITIONAL in kinds:
            before = [p.name for p in named if p.kind != Parameter.KEYWORD_ONLY and p.name in names]
            first = [*before, *left]
        return cls(loss, names, tuple(first), unread)


def _is_named(name: str, losses: Sequence[Loss]) -> bool:
    """Whether a loss has an argument of this name."""
    return any(name in signature(getattr(loss, "loss", loss)).parameters for loss in losses)


def of_batch(loss: Callable[..., Tensor], names: tuple[str, ...], *, by_position: bool) -> Callable[..., Tensor]:
    """Gives torch's own losses, which take an output and a target, the signature loss(model, *batch).

    by_position: the arrays have no names of the user's, so every loss takes them in order.
    """
    own = isinstance(loss, nn.Module) or getattr(F, getattr(loss, "__name__", ""), None) is loss
    if not own and not by_position:
        return loss
    if own and (misplaced := [name for name in names[:-1] if name in TARGETS and names[-1] not in TARGETS]):
        raise ConfigurationError(
            f"expected the target of torch's own losses last in the data, got {', '.join(names)}; put {misplaced[0]} "
            "last, or write the loss as a function with arguments of these names"
        )

    def in_order(model: nn.Module, *batch: Tensor) -> Tensor:
        return loss(model(*batch[:-1]), batch[-1]) if own else loss(model, *batch)

    return in_order


LOOKS: Final = 256
"""The most examples of a dataset that are read again, twice and in other orders."""


def loaded(loader: DataLoader[Any]) -> tuple[Any, dict[str, Any]]:
    """The dataset of a loader, and the settings of a `Batch` (size, shuffled, drop_last) that do what it does.

    Raises `ConfigurationError` with the name of what a job cannot do.
    """
    batches: Any = loader.batch_sampler
    dataset: Any = loader.dataset
    _refuse(isinstance(dataset, IterableDataset), f"a stream, {shown(dataset)}")
    _refuse(type(loader).__iter__ is not DataLoader.__iter__, f"the class {type(loader).__name__}")
    _refuse(batches is None, "batch_size=None")
    _refuse(loader.collate_fn is not default_collate, "a collate_fn")
    _refuse(loader.worker_init_fn is not None and loader.num_workers > 0, "a worker_init_fn that workers call")
    _refuse(type(batches) is not torch.utils.data.BatchSampler, f"the batch_sampler {type(batches).__name__}")
    sampler: Any = batches.sampler
    kind = type(sampler)
    if kind in (SubsetRandomSampler, list, tuple, range, Tensor, np.ndarray):  # a user's class may do anything
        chosen = [int(i) for i in (sampler.indices if kind is SubsetRandomSampler else sampler)]
        dataset = dataset.select(chosen) if hasattr(dataset, "column_names") else Subset(dataset, chosen)
    elif kind is torch.utils.data.RandomSampler:
        _refuse(sampler.replacement, "a sampler with replacement")
    else:
        _refuse(kind is not torch.utils.data.SequentialSampler, f"the sampler {kind.__name__}")
    _refuse(not hasattr(dataset, "__len__"), f"a dataset without a length, {shown(dataset)}")
    _refuse(len(sampler) != len(dataset), f"a sampler of {len(sampler)} of {len(dataset)} examples")
    shuffled = kind in (torch.utils.data.RandomSampler, SubsetRandomSampler)
    return dataset, {"size": batches.batch_size, "shuffled": shuffled, "drop_last": batches.drop_last}


def _refuse(refused: bool, what: str) -> None:
    if refused:
        raise ConfigurationError(
            f"expected a DataLoader whose batches a job can make (batch_size, shuffle, drop_last, a subset), got one "
            f"with {what}; give its dataset and `batch`, or a list of all examples"
        )


def _stacked(data: Any) -> Any:
    """The examples of a list or of a PyTorch dataset as arrays, as `default_collate` stacks them; other data as it is.

    Raises `ConfigurationError` if they are no numbers of equal shapes, or differ when they are read again.
    """
    listed = isinstance(data, list | tuple) and bool(data) and isinstance(data[0], list | tuple | Mapping)
    stored = type(data) is TensorDataset or isinstance(data, IterableDataset) or not hasattr(data, "__len__")
    known = stored or not isinstance(data, torch.utils.data.Dataset) or hasattr(data, "with_format")
    if known and not listed and not hugging_face.makes_rows(data):
        return data
    if len(data) == 0:
        raise ConfigurationError(f"expected at least one example, got none in {shown(data)}")
    try:
        found, repeats = _drawing_nothing(lambda: _read(data))
    except (TypeError, ValueError, RuntimeError, KeyError, IndexError, AttributeError) as error:
        raise ConfigurationError(
            f"expected examples of numbers in equal shapes, as tuples or dicts, got others: {error}"
        ) from error
    if not repeats:
        raise ConfigurationError(
            "expected a dataset that gives the same example each time, got another at the second look: a job's data "
            "are fixed; draw augmentations in the step (torch.rand, dropout), or take them out"
        )
    narrow = {name: t.float() if t.dtype == torch.float64 else t for name, t in found.items()}
    return narrow if all(isinstance(name, str) for name in narrow) else TensorDataset(*narrow.values())


def _read(data: Any) -> tuple[dict[Any, Tensor], bool]:
    """All examples, read one by one, and whether some of them are the same in other orders and batches."""
    found = _columns(data, range(len(data)), 1)
    some = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:LOOKS].tolist()
    looks = (some, LOOKS), (some[::-1], 3)
    return found, all(_are(found, order, _columns(data, order, size)) for order, size in looks)


def _columns(data: Any, order: Sequence[int], size: int) -> dict[Any, Tensor]:
    """The examples of some numbers, read in batches of `size` and stacked, by key or by place."""
    together = getattr(data, "__getitems__", None) or (lambda batch: [data[i] for i in batch])  # as a loader asks
    stacked = default_collate([one for at in range(0, len(order), size) for one in together([*order[at : at + size]])])
    if isinstance(stacked, Mapping):
        return dict(stacked)
    return dict(enumerate([stacked] if isinstance(stacked, Tensor) else stacked))


def _are(found: Mapping[Any, Tensor], order: Sequence[int], again: Mapping[Any, Tensor]) -> bool:
    index = torch.tensor(order)
    return found.keys() == again.keys() and all(
        np.array_equal(found[name][index].numpy(), again[name].numpy(), equal_nan=again[name].is_floating_point())
        for name in found
    )


_STREAMS: Final = ("torch's", "Python's (`random`)", "NumPy's (`np.random`)")
"""The names of the states of `random_streams`."""


def _drawing_nothing(read: Callable[[], Any]) -> Any:
    """Calls a function, refuses one that draws from a global random stream, and puts the streams back.

    A reading that sets the seed by itself (by the example's number) ends in one state, wherever it began.
    """
    with same_draws():
        before, found, after = random_streams(), read(), random_streams()
        drawn = [n for n, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]
        if drawn:
            torch.default_generator.manual_seed(SEED)
            random.seed(SEED)
            np.random.seed(SEED)
            read()
            again = random_streams()
            drawn = [n for n in drawn if again[n] != after[n]]
    if drawn:
        raise ConfigurationError(
            f"expected a dataset that draws nothing when it is read, got one that uses {_STREAMS[drawn[0]]} random "
            "numbers: a job's data are fixed; draw augmentations in the step (torch.rand, dropout), or take them out"
        )
    return found


def arrays(data: Any, losses: Sequence[Callable[..., Tensor]]) -> tuple[dict[str, Tensor], bool]:
    """Data of any kind that a task takes as tensors by name, and whether the names are the user's.

    Of a dataset of Hugging Face, the columns that the losses name. Raises `ConfigurationError`.
    """
    data = _stacked(data)
    if isinstance(getattr(data, "column_names", None), dict):
        raise ConfigurationError(
            f"expected one split of the dataset, got all; choose one of {sorted(data.column_names)}"
        )
    if hasattr(data, "column_names") and hasattr(data, "with_format") and hasattr(data, "__len__"):  # no stream
        wanted = dict[str, None]()
        for loss in losses:
            # torch's own losses name no arrays, and some callables in C do not tell their arguments
            with suppress(TypeError, ValueError):
                wanted |= dict.fromkeys([] if isinstance(loss, nn.Module) else list(signature(loss).parameters)[1:])
        data = hugging_face.arrays(data, wanted)
    is_named = not isinstance(data, TensorDataset)
    if isinstance(data, str | Path) and Path(data).suffix == ".safetensors":
        data = open_safetensors(Path(data))
    if isinstance(data, TensorDataset):
        data = {f"tensor{i}": tensor for i, tensor in enumerate(data.tensors)}
    if not isinstance(data, Mapping) or not data:
        raise ConfigurationError(
            f"expected data as arrays by name, a .safetensors file of them, a dataset with a length, a DataLoader or "
            f"a list of examples, got {shown(data)}"
        )
    return {name: _array(name, array) for name, array in data.items()}, is_named


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
