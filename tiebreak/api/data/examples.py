"""Examples of datasets as arrays, and the batches that a `DataLoader` makes of them.

A job reads its data once, and makes its batches by itself. What a loader or a dataset does beyond giving examples that
stay the same is followed, or refused by its name.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
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
    """What a loader does, if a job can do it. Raises `ConfigurationError` with the name of what it cannot."""
    batches: Any = loader.batch_sampler
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ConfigurationError(f"expected a dataset with a length in the DataLoader, got {shown(dataset)}")
    _refuse(type(loader).__iter__ is not DataLoader.__iter__, f"the class {type(loader).__name__}")
    _refuse(batches is None, "batch_size=None")
    _refuse(loader.collate_fn is not default_collate, "a collate_fn")
    _refuse(loader.worker_init_fn is not None, "a worker_init_fn")
    _refuse(type(batches) is not BatchSampler, f"the batch_sampler {shown(batches)}")
    sampler: Any = batches.sampler
    kind, chosen = type(sampler), None
    if kind is SubsetRandomSampler or isinstance(sampler, Sequence):
        chosen = [int(i) for i in (sampler.indices if kind is SubsetRandomSampler else sampler)]
        dataset = dataset.select(chosen) if hasattr(dataset, "column_names") else Subset(dataset, chosen)
    elif kind is RandomSampler:
        _refuse(sampler.replacement, "a sampler with replacement")
    else:
        _refuse(kind is not SequentialSampler, f"the sampler {shown(sampler)}")
    _refuse(len(sampler) != len(dataset), f"a sampler of {len(sampler)} of {len(dataset)} examples")
    return Loaded(
        dataset=dataset, size=batches.batch_size, drop_last=batches.drop_last,
        shuffled=kind in (RandomSampler, SubsetRandomSampler),
    )  # fmt: skip


def _refuse(refused: bool, what: str) -> None:
    if refused:
        raise ConfigurationError(
            f"expected a DataLoader with batches that a job can make (batch_size, shuffle, drop_last, subsets), got "
            f"one with {what}; give its dataset and `batch`, or all that it gives, as arrays by name"
        )


def arrays(data: Any) -> Any:
    """The examples of a list or of a PyTorch dataset as arrays, as `default_collate` stacks them; other data as it is.

    Raises `ConfigurationError` if they are no numbers of equal shapes, or others at another look.
    """
    listed = isinstance(data, list | tuple) and bool(data) and isinstance(data[0], list | tuple | Mapping)
    stored = isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
    known = stored or isinstance(data, IterableDataset) or not hasattr(data, "__len__")
    if not listed and (known or not isinstance(data, Dataset) or hasattr(data, "column_names")):
        return data
    try:
        with _drawing_nothing():
            found = _columns(data, range(len(data)))
            some = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:LOOKS].tolist()
            repeats = all(_are(found, order, _columns(data, order)) for order in (some, some[::-1]))
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


def _columns(data: Any, order: Sequence[int]) -> dict[Any, Tensor]:
    """The examples of some numbers, stacked, by key or by place."""
    together = getattr(data, "__getitems__", None)  # a loader asks for these, where a dataset has them
    stacked = default_collate(together(list(order)) if together else [data[i] for i in order])
    return (
        dict(stacked)
        if isinstance(stacked, Mapping)
        else dict(enumerate([stacked] if isinstance(stacked, Tensor) else stacked))
    )


def _are(found: Mapping[Any, Tensor], order: Sequence[int], again: Mapping[Any, Tensor]) -> bool:
    index = torch.tensor(order)
    return found.keys() == again.keys() and all(
        np.array_equal(found[name][index].numpy(), again[name].numpy(), equal_nan=again[name].is_floating_point())
        for name in found
    )


_STREAMS: Final[Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]] = {
    "Python's (`random`)": (random.getstate, random.setstate),
    "NumPy's (`np.random`)": (np.random.get_state, np.random.set_state),
    "torch's": (torch.get_rng_state, torch.set_rng_state),
}
"""Functions that get and set the global random streams."""


@contextmanager
def _drawing_nothing() -> Any:
    """Refuses a block that draws from a global random stream, and puts these back."""
    before = {name: get() for name, (get, _) in _STREAMS.items()}
    try:
        yield
        drawn = [name for name, (get, _) in _STREAMS.items() if not _same_state(get(), before[name])]
    finally:
        for name, (_, put) in _STREAMS.items():
            put(before[name])
    if drawn:
        raise ConfigurationError(
            f"expected a dataset that draws nothing when it is read, got one that uses {drawn[0]} random numbers: a "
            "job's data are fixed; draw augmentations in the step (torch.rand, dropout), or take them out"
        )


def _same_state(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else repr(a) == repr(b)
