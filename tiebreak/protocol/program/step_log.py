"""The rounding log of one step, with its direction for each element (SPEC section 5.1).

The tree that commits to a log (`tiebreak.protocol.commitments.log_tree`) has one place for every element that could be
logged, so nothing in it can be out of order, repeated or out of range. Log *files* can have these faults, and so can a
`StepLog` built by hand; `StepLog.check` finds them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Direction, sum_kind

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class LogError(VerificationError):
    """A malformed rounding log. Names the step, instruction and element as far as they are known."""

    def __init__(
        self, rule: str, *, step: int | None = None, index: int | None = None, element: int | None = None
    ) -> None:
        self.rule = rule
        self.step = step
        self.index = index
        self.element = element
        parts = (("step", step), ("instruction", index), ("element", element))
        where = ", ".join(f"{name} {number}" for name, number in parts if number is not None)
        super().__init__(f"rounding log{' of ' if where else ''}{where}: {rule}")


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """The log of one value: strictly ascending row-major element numbers, and for each whether it was rounded up."""

    elements: Integers
    up: Mask

    __hash__ = None  # type: ignore[assignment]  # arrays can change

    def __len__(self) -> int:
        return len(self.elements)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entries):
            return NotImplemented
        return np.array_equal(self.elements, other.elements) and np.array_equal(self.up, other.up)

    def directions(self) -> Iterator[tuple[int, Direction]]:
        """Each logged element with its direction."""
        for element, up in zip(self.elements.tolist(), self.up.tolist(), strict=True):
            yield element, Direction.UP if up else Direction.DOWN


@dataclass(frozen=True, slots=True)
class StepLog:
    """Entries by the index of their instruction, in ascending order; instructions without entries are left out."""

    entries: Mapping[int, Entries] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Total number of entries."""
        return sum(map(len, self.entries.values()))

    def check(self, program: Program, step: int) -> None:
        """Raise `LogError` unless every entry names a logged sum's element of the program, in order and only once."""
        before = -1
        for index, entries in self.entries.items():
            if index <= before:
                rule = "instruction twice" if index == before else f"expected instructions after {before} in order"
                raise LogError(rule, step=step, index=index)
            before = index
            if index >= len(program.body) or sum_kind(program.body[index]) is None:
                raise LogError("expected a sum of f32, which alone is logged", step=step, index=index)
            _check_entries(entries, program.body[index].numel, step, index)


def _check_entries(entries: Entries, numel: int, step: int, index: int) -> None:
    if not len(entries) or entries.elements.shape != entries.up.shape:
        raise LogError(
            f"expected as many directions as elements, at least one, got {len(entries)}", step=step, index=index
        )
    wrong = np.flatnonzero(np.diff(entries.elements) <= 0)
    if wrong.size:
        first, second = (int(entries.elements[wrong[0] + k]) for k in (0, 1))
        rule = "element twice" if first == second else f"unsorted: comes after element {first}"
        raise LogError(rule, step=step, index=index, element=second)
    for element in (int(entries.elements[0]), int(entries.elements[-1])):
        if not 0 <= element < numel:
            raise LogError(f"out of range: expected an element below {numel}", step=step, index=index, element=element)
