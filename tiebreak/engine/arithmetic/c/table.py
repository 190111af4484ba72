"""The entries of the tables that units.c follows, and what plans the kernels that they name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c.chains import CompiledChain
from tiebreak.engine.arithmetic.plan.options import Operands, Stats
from tiebreak.engine.arithmetic.plan.ziv import Collector

CHAIN, MATRIX, SUMS, GREATEST, SCATTER, MOVE = range(6)
"""Kinds of entries, as in units.c."""
FILL: Final = -1
"""Stands among values for the element that a window writes outside its box."""


class Touch(NamedTuple):
    """A value that a kernel reads or writes: its first byte there, and the end."""

    value: int
    first: int
    end: int

    @classmethod
    def of(cls, value: int, reach: tuple[int, int], size: int) -> "Touch":
        """Spans the least place to the greatest, of elements of `size` bytes."""
        return cls(value, reach[0] * size, (reach[1] + 1) * size)


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One unit, or one copy of a window, as the table has it."""

    kind: int
    plan: Callable[[int], tuple[Any, object]]
    """Makes the plan of a call for a number of threads, a structure or an array, with what must outlive it."""
    touches: Sequence[Touch]
    """The memory that it reads, then that which it writes."""
    work: int
    """The time that it takes, in multiplications."""
    number: int = 0
    """The bits of a sum's result, the elements of a chain, or whether the place of an extreme is wanted."""
    counted: str = ""
    """The kind under which a sum is counted, if it is one."""
    chain: CompiledChain | None = None
    varies: bool = False
    """Whether each call has another plan."""
    fill: npt.NDArray[np.uint64] | None = None
    """The element for which FILL stands."""


def fixed(plan: object, _threads: int) -> tuple[Any, object]:
    """A plan that refers to nothing and is the same in each call."""
    return plan, None


class Host(Protocol):
    """The back-end for which kernels run."""

    stats: Stats

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of undefined contents."""

    def wide(self, tensor: Tensor) -> Tensor:
        """A tensor as f32, if it is held in bfloat16."""


class KernelPlan(Protocol):
    """Computes one instruction in C, alone or as entries of a table."""

    def run(self, operands: Operands, host: Host, near: Collector | None) -> Tensor:
        """The result. `near` collects open elements that are not settled."""

    def entries(self, result: int) -> Sequence[TableEntry]:
        """The entries that write value `result`."""
