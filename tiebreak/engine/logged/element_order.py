"""The order of logs in files: all elements of all logged sums of a program in one sequence, in program order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import sum_kind
from tiebreak.protocol.program.step_log import Entries, Integers, Mask


@dataclass(frozen=True, slots=True, eq=False)
class ElementOrder:
    """The k-th logged sum is value `values[k]`; its elements have places `starts[k]` to `starts[k + 1] - 1`."""

    values: Integers
    starts: Integers

    @classmethod
    def of(cls, program: Program) -> "ElementOrder":
        """The order of a program. The limits on programs keep the number of elements below 2^60."""
        logged = [(value, body.numel) for value, body in enumerate(program.body) if sum_kind(body) is not None]
        starts = np.zeros(len(logged) + 1, dtype=np.int64)
        np.cumsum([numel for _, numel in logged], out=starts[1:])
        return cls(np.array([value for value, _ in logged], dtype=np.int64), starts)

    @property
    def total(self) -> int:
        """The number of elements in all."""
        return int(self.starts[-1])

    def start(self, value: int) -> int:
        """The place of a logged sum's first element."""
        return int(self.starts[np.searchsorted(self.values, value)])

    def split(self, place: Integers, up: Mask) -> Iterator[tuple[int, Entries]]:
        """Splits entries by place, ascending, into entries by value."""
        sums = np.searchsorted(self.starts, place, side="right") - 1
        first = np.flatnonzero(np.diff(sums, prepend=-1))
        for a, b in zip(first.tolist(), [*first[1:].tolist(), len(place)], strict=False):
            k = int(sums[a])
            # The directions are copied because a view would keep the whole array alive.
            yield int(self.values[k]), Entries(place[a:b] - self.starts[k], up[a:b].copy())


def joined(pieces: Sequence[Entries]) -> Entries:
    """Joins consecutive pieces of one value's entries."""
    if len(pieces) == 1:
        return pieces[0]
    elements = np.concatenate([piece.elements for piece in pieces])
    return Entries(elements, np.concatenate([piece.up for piece in pieces]))
