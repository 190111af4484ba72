"""Exact counts, per kind of instruction, of how often the fast path was not enough."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

_COUNTED = "elements", "undecided", "undecided_twice", "double_rounded"
"""What kernels on a device count too, in the order of `Counts.on`."""


@dataclass(slots=True)
class Counts:
    """Counts of output elements. To read one waits for the device whose kernels count too."""

    logged: int = 0
    """Elements that the first test did not decide, and that were reported as near ties instead of settled."""
    seconds_resolving: float = 0.0
    """Time spent on undecided elements, as if all threads shared it equally. Kernels on a device do not measure it."""
    _host: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTED, 0))
    _device: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """i64 (4,), always the same: elements, undecided, undecided twice and double rounded, for kernels to add to."""
        if self._device is None:
            self._device = torch.zeros(len(_COUNTED), dtype=torch.int64, device=device)
        return self._device

    def _read(self, name: str) -> int:
        found = 0 if self._device is None else int(self._device[_COUNTED.index(name)])
        return self._host[name] + found

    def _write(self, name: str, value: int) -> None:
        self._host[name] += value - self._read(name)

    @property
    def elements(self) -> int:
        """All elements computed."""
        return self._read("elements")

    @elements.setter
    def elements(self, value: int) -> None:
        self._write("elements", value)

    @property
    def undecided(self) -> int:
        """Elements that the first Ziv test (in FP64) did not decide."""
        return self._read("undecided")

    @undecided.setter
    def undecided(self, value: int) -> None:
        self._write("undecided", value)

    @property
    def undecided_twice(self) -> int:
        """Elements summed exactly. The others are sums on a grid (compiled) or decided in doubled precision (torch)."""
        return self._read("undecided_twice")

    @undecided_twice.setter
    def undecided_twice(self, value: int) -> None:
        self._write("undecided_twice", value)

    @property
    def double_rounded(self) -> int:
        """Elements that FP64-then-round would have got wrong: rounded, C is not the exact result's rounding."""
        return self._read("double_rounded")

    @double_rounded.setter
    def double_rounded(self, value: int) -> None:
        self._write("double_rounded", value)


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
