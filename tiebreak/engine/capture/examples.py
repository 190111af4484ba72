"""Examples of datasets as arrays, and the batches that a `DataLoader` makes of them.

A job reads its data once, and makes its batches by itself. What a loader or a dataset does beyond giving examples that
stay the same is followed, or refused by its name.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from tiebreak.engine.capture.step_run import SEED
from tiebreak.engine.capture.user_step import random_streams, set_random_streams
from tiebreak.engine.data import ArrayFile, hugging_face, map_array, open_array, open_safetensors
from tiebreak.protocol.arguments import shown
from tiebreak.protocol.errors import ConfigurationError

LOOKS: Final = 256
"""The most examples of a dataset that are read again, twice and in other orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The dataset of a loader, and how it makes batches: their size, in random order or not, with a short last one."""

    dataset: Any
    size: int
    shuffled: bool
    drop_last: bool


def loaded(loader: DataLoader[Any]) -> Loaded:
    """Reads what a loader does, if a job can do it. Raises `ConfigurationError` with the name of what it cannot."""
    batches: Any = loader.batch_sampler
    dataset: Any = loader.dataset
    _refuse(isinstance(dataset, IterableDataset), f"a stream, {shown(dataset)}")
    _refuse(type(loader).__iter__ is not DataLoader.__iter__, f"the class {type(loader).__name__}")
    _refuse(batches is None, "batch_size=None")
    _refuse(loader.collate_fn is not default_collate, "a collate_fn")
    _refuse(loader.worker_init_fn is not None and loader.num_workers > 0, "a worker_init_fn that workers call")
    _refuse(type(batches) is not BatchSampler, f"the batch_sampler {type(batches).__name__}")
    sampler: Any = batches.sampler
    kind = type(sampler)
    if kind in (SubsetRandomSampler, list, tuple, range, Tensor, np.ndarray):  # a user's class may do anything
        chosen = [int(i) for i in (sampler.indices if kind is SubsetRandomSampler else sampler)]
        dataset = dataset.select(chosen) if hasattr(dataset, "column_names") else Subset(dataset, chosen)
    elif kind is RandomSampler:
        _refuse(sampler.replacement, "a sampler with replacement")
    else:
        _refuse(kind is not SequentialSampler, f"the sampler {kind.__name__}")
    _refuse(not hasattr(dataset, "__len__"), f"a dataset without a length, {shown(dataset)}")
    _refuse(len(sampler) != len(dataset), f"a sampler of {len(sampler)} of {len(dataset)} examples")
    return Loaded(
        dataset=dataset, size=batches.batch_size, drop_last=batches.drop_last,
        shuffled=kind in (RandomSampler, SubsetRandomSampler),
    )  # fmt: skip


def _refuse(refused: bool, what: str) -> None:
    if refused:
        raise ConfigurationError(
            f"expected a DataLoader whose batches a job can make (batch_size, shuffle, drop_last, a subset), got one "
            f"with {what}; give its dataset and `batch`, or a list of all examples"
        )


def _stacked(data: Any) -> Any:
    """The examples of a list or of a PyTorch dataset as arrays, as `default_collate` stacks them; other data as it is.

    Raises `ConfigurationError` if they are no numbers of equal shapes, or others at another look.
    """
    listed = isinstance(data, list | tuple) and bool(data) and isinstance(data[0], list | tuple | Mapping)
    stored = type(data) is TensorDataset or isinstance(data, IterableDataset) or not hasattr(data, "__len__")
    known = stored or not isinstance(data, Dataset) or hasattr(data, "with_format")
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
    before = random_streams()
    try:
        found, after = read(), random_streams()
        drawn = [n for n, (x, y) in enumerate(zip(before, after, strict=True)) if x != y]
        if drawn:
            torch.default_generator.manual_seed(SEED)
            random.seed(SEED)
            np.random.seed(SEED)
            read()
            again = random_streams()
            drawn = [n for n in drawn if again[n] != after[n]]
    finally:
        set_random_streams(before)
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
