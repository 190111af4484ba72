"""Plans of `scatter_sum`: the exact sum of all sources whose index points at an output element (SPEC 4.3).

Output dims are *matched* (the index addresses them), *keyed* (the index depends on them) or *row* (the index ignores
them); the other dims are the reduction. With key = keyed coordinate * box + index, every source row (keyed and
reduction coordinate) is added to the row of its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.views import MAX_TABLE, Integers, View, offsets_of
from tiebreak.protocol.program.isa import Instruction, ScatterParams, row_major


@dataclass(frozen=True)
class ScatterTables:
    """The places that kernels read and write, by coordinate."""

    source: tuple[Integers, Integers, Integers]
    """Places by keyed, summed and row coordinate."""
    index: tuple[Integers, Integers]
    """Places by keyed and summed coordinate."""
    out: tuple[Integers, Integers, Integers]
    """Places by keyed, matched and row coordinate."""
    reach: tuple[tuple[int, int], tuple[int, int]]
    """The least and the greatest place read of the source and of the index."""


@dataclass(frozen=True)
class ScatterPlan:
    """The plan by which one `scatter_sum` is computed."""

    shape: tuple[int, ...]
    source: View
    """Dims (keyed, reduction, row)."""
    index: View
    """Dims (keyed, reduction): the key under which each source row is added."""
    keyed: tuple[int, ...]
    summed: tuple[int, ...]
    row: tuple[int, ...]
    matched: tuple[int, ...]
    order: tuple[int, ...]
    """Permutation that takes (keyed, matched, row) dims to output order."""
    tables: ScatterTables | None
    """The tables of the kernels; None if they would be too large."""

    @property
    def box(self) -> int:
        """The number of outputs that an index can address."""
        return prod(self.matched)

    def numbers(self, keys: Tensor, elements: Tensor) -> Tensor:
        """The places in the result of elements numbered over (keys, row)."""
        width, at = prod(self.row), elements.cpu().numpy()
        places = keys.cpu().numpy()[at // width] * width + at % width
        if self.shape:
            coordinates = np.unravel_index(places, (*self.keyed, *self.matched, *self.row))
            places = np.ravel_multi_index([coordinates[number] for number in self.order], self.shape)
        return torch.from_numpy(places).to(keys.device)


def plan_scatter(instruction: Instruction) -> ScatterPlan:
    """The plan of a validated `scatter_sum`."""
    params, shape, space = instruction.params, instruction.shape, instruction.index_space
    assert isinstance(params, ScatterParams)
    source, index = instruction.operands
    rank = len(shape)
    matched = [d for d in range(rank) if params.match[d] != 0]
    keyed = [d for d in range(rank) if params.match[d] == 0 and index.strides[d] != 0 and shape[d] > 1]
    row = [d for d in range(rank) if d not in matched and d not in keyed]
    summed = list(range(rank, len(space)))

    def view(offset: int, strides: Sequence[int], dims: Sequence[int]) -> View:
        return View.of(offset, [space[d] for d in dims], [strides[d] for d in dims])

    def places(strides: Sequence[int], dims: Sequence[int], offset: int = 0) -> Integers:
        return offset + offsets_of([(space[d], strides[d]) for d in dims])

    tables = None
    if sum(prod(space[d] for d in dims) for dims in (matched, keyed, row, summed)) <= MAX_TABLE:
        written = row_major(shape)
        tables = ScatterTables(
            (places(source.strides, keyed, source.offset), places(source.strides, summed), places(source.strides, row)),
            (places(index.strides, keyed, index.offset), places(index.strides, summed)),
            (places(written, keyed), places(written, matched), places(written, row)),
            (source.extent(space), index.extent(space)),
        )
    placed = [*keyed, *matched, *row]
    return ScatterPlan(
        shape,
        view(source.offset, source.strides, [*keyed, *summed, *row]),
        view(index.offset, index.strides, [*keyed, *summed]),
        tuple(shape[d] for d in keyed),
        instruction.reduction,
        tuple(shape[d] for d in row),
        tuple(shape[d] for d in matched),
        tuple(placed.index(d) for d in range(rank)),
        tables,
    )
