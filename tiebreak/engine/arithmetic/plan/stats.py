"""Exact counts, per kind of instruction, of how often the fast path was not enough."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


class _Counter:
    """A count to which the host adds, and kernels at one place of `Counts.on`. To read it waits for their device."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, counts: "Counts", _: type["Counts"]) -> int:
        found = 0 if counts.on_device is None else int(counts.on_device[self._place])
        return counts.on_host[self._place] + found

    def __set__(self, counts: "Counts", value: int) -> None:
        counts.on_host[self._place] += value - self.__get__(counts, Counts)


@dataclass(slots=True)
class Counts:
    """Counts of output elements."""

    logged: int = 0
    """Elements that the first test did not decide, and that were reported as near ties instead of settled."""
    seconds_resolving: float = 0.0
    """Time spent on undecided elements, as if all threads shared it equally. Kernels on a device do not measure it."""
    on_host: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    on_device: Tensor | None = None
    elements = _Counter(0)
    undecided = _Counter(1)
    """Elements that the first Ziv test (in FP64) did not decide."""
    undecided_twice = _Counter(2)
    """Elements summed exactly. The others are sums on a grid (C) or decided in doubled precision (GPUs)."""
    double_rounded = _Counter(3)
    """Elements that FP64-then-round would have got wrong: rounded, C is not the exact result's rounding."""

    def on(self, device: torch.device) -> Tensor:
        """i64 (4,), always the same: elements, undecided, undecided twice and double rounded, for kernels to add to."""
        if self.on_device is None:
            self.on_device = torch.zeros(len(self.on_host), dtype=torch.int64, device=device)
        return self.on_device


@dataclass(slots=True)
class Stats:
    """Counts by kind: `reduce.sum.products`, `reduce.sum.plain`, `scatter_sum`, `map.exp`, ..."""

    kinds: dict[str, Counts] = field(default_factory=dict)

    def of(self, kind: str) -> Counts:
        """The counts of a kind; created on first use."""
        return self.kinds.setdefault(kind, Counts())

    @property
    def seconds_resolving(self) -> float:
        """Time spent on undecided elements of all kinds."""
        return sum(counts.seconds_resolving for counts in self.kinds.values())
