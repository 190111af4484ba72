"""Exact counts, per kind of instruction, of how often the fast path was not enough."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Counts of output elements."""

    elements: int = 0
    """All elements computed."""
    undecided: int = 0
    """Elements that the first Ziv test (in FP64) did not decide."""
    undecided_twice: int = 0
    """Elements summed exactly. The others are sums on a grid (compiled) or decided in doubled precision (torch)."""
    logged: int = 0
    """Elements that the first test did not decide, and that were reported as near ties instead of settled."""
    double_rounded: int = 0
    """Elements that FP64-then-round would have got wrong: the rounded FP64 value is not the exact result's rounding."""

    seconds_resolving: float = 0.0
    """Time spent on undecided elements, as if all threads shared it equally."""


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
