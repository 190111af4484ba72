"""How often the fast path was not enough, counted exactly per kind of instruction."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Exact counts of output elements."""

    elements: int = 0
    """Computed in all."""
    undecided: int = 0
    """Not decided by the first Ziv test (in FP64)."""
    undecided_twice: int = 0
    """Summed exactly: not decided in doubled precision either, or undecided among many."""
    logged: int = 0
    """Not decided by the first test and reported as near ties, to be logged, instead of settled."""
    double_rounded: int = 0
    """Elements that FP64-then-round would have got wrong: the rounded FP64 value is not the exact result's rounding."""

    seconds_resolving: float = 0.0
    """Time spent on the undecided, as if all threads shared it equally. Not part of `Stats.as_dict`: it is no count."""

    def __iadd__(self, other: "Counts") -> "Counts":
        self.elements += other.elements
        self.undecided += other.undecided
        self.undecided_twice += other.undecided_twice
        self.logged += other.logged
        self.double_rounded += other.double_rounded
        self.seconds_resolving += other.seconds_resolving
        return self


@dataclass(slots=True)
class Stats:
    """Counts by kind: `reduce.sum.products`, `reduce.sum.plain`, `scatter_sum`, `map.exp`, ..."""

    kinds: dict[str, Counts] = field(default_factory=dict)

    def of(self, kind: str) -> Counts:
        """The counts of a kind, made when first asked for."""
        counts = self.kinds.get(kind)
        if counts is None:
            counts = self.kinds[kind] = Counts()
        return counts

    def merge(self, other: "Stats") -> None:
        """Adds another's counts."""
        for kind, counts in other.kinds.items():
            mine = self.of(kind)
            mine += counts

    @property
    def seconds_resolving(self) -> float:
        """Time spent on undecided elements of all kinds."""
        return sum(counts.seconds_resolving for counts in self.kinds.values())

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Plain data, kinds in alphabetical order."""
        return {
            kind: {
                "elements": c.elements,
                "undecided": c.undecided,
                "undecided_twice": c.undecided_twice,
                "logged": c.logged,
                "double_rounded": c.double_rounded,
            }
            for kind, c in sorted(self.kinds.items())
        }
