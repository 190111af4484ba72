"""`scatter_sum` and `shuffle` on GPUs by Triton kernels (`kernels/scatter.py` and `random.py`).

The host waits for nothing. One launch of a kernel takes the place of hundreds of calls of torch.
"""

from math import ceil
from typing import Any, Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.gpu.launching import kernels, launch, programs
from tiebreak.engine.arithmetic.plain.random import operands_of
from tiebreak.engine.arithmetic.plan.options import Counts, Operands, Options
from tiebreak.engine.arithmetic.plan.sums import ScatterTables
from tiebreak.engine.arithmetic.plan.views import check_reach
from tiebreak.engine.arithmetic.plan.ziv import coefficient
from tiebreak.protocol.numbers.float32 import MAX_PRECISION
from tiebreak.protocol.numbers.philox import half_width
from tiebreak.protocol.program.isa import Instruction, ShuffleParams

OPTIONS: Final[dict[str, Any]] = {"BLOCK": 256, "num_warps": 4, "enable_fp_fusion": False}
"""Lanes of a program of the kernels, and the compiler's options."""


class LaunchedScatter:
    """A `scatter_sum` that kernels compute. With `shuffled`, sources are taken in random order."""

    def __init__(self, instruction: Instruction, tables: ScatterTables, options: Options) -> None:
        self._tables, self._shape, self._shuffled = tables, instruction.shape, options.shuffled
        self._precision = options.rounding(instruction).precision
        every = (*tables.source, *tables.index, *tables.out)
        # The tables stay on the device, so that a step uploads nothing.
        self._held = [torch.from_numpy(table).to(options.device) for table in every]

    def run(self, operands: Operands, counts: Counts) -> Tensor:
        """The result, f32, contiguous, of the instruction's shape."""
        (source, index), precision = operands, self._precision
        tables, held, found = self._tables, self._held, kernels("scatter")
        for tensor, reach in zip(operands, tables.reach, strict=True):
            check_reach(tensor, reach)
        device, (groups, sources, rows) = source.device, (len(table) for table in tables.source)
        if self._shuffled is not None:
            order = torch.randperm(sources, generator=self._shuffled, device=self._shuffled.device).to(device)
            held = [table[order] if number in (1, 4) else table for number, table in enumerate(held)]
        out = torch.empty(self._shape, dtype=torch.float32, device=device)
        count, numel = out.numel(), groups * sources * rows
        tasks, terms = ceil(numel / OPTIONS["BLOCK"]), (index, *held, groups, sources, rows, len(tables.out[1]))
        # A term that is alone is decided if it is not rounded: e is less than 2^-28 of it, as tables have 2^24 entries.
        room = min(count, numel if precision < MAX_PRECISION else max(1, numel // 2))
        sums, sizes = torch.zeros((2, count), dtype=torch.float64, device=device)
        slots, opened = sums.view(torch.int64), torch.zeros(1, dtype=torch.int64, device=device)
        listed = torch.empty(room, dtype=torch.int32 if count < 1 << 31 else torch.int64, device=device)
        digits = torch.empty((12, room), dtype=torch.int64, device=device)
        launch(found.add_terms, tasks, source, *terms, sums, sizes, **OPTIONS)
        factor, counters = coefficient(sources) * (1 + 2.0**-20), counts.on(device)  # which is passed in FP32
        launch(
            found.decide_sums, ceil(count / OPTIONS["BLOCK"]), sums, sizes, out, slots, opened, listed, digits,
            counters, count, room, factor, PRECISION=precision, **OPTIONS,
        )  # fmt: skip
        shared = programs(device)
        launch(found.add_open, shared, source, *terms, slots, opened, digits, room, tasks, **OPTIONS)
        launch(
            kernels("near_ties").round_listed, shared, digits, *4 * [None], out, opened, listed, counters, 1, 1, count,
            room, MATRIX=False, FIRST=3, SLICES=6, PRECISION=precision, MANY=0, **OPTIONS,
        )  # fmt: skip
        return out


def shuffle(instruction: Instruction, operands: Operands) -> Tensor:
    """The i64 result of a `shuffle` instruction."""
    params = instruction.params
    assert isinstance(params, ShuffleParams)
    index, epoch, seed = operands_of(instruction, operands)
    out = torch.empty_like(index, memory_format=torch.contiguous_format)
    # The stream is passed as i32, so that the kernel's argument has one type.
    launch(
        kernels("random").permute, ceil(out.numel() / OPTIONS["BLOCK"]), out, index.contiguous(), epoch.contiguous(),
        seed, params.stream - (params.stream >> 31 << 32), params.n, half_width(params.n), out.numel(), **OPTIONS,
    )  # fmt: skip
    return out.view(instruction.shape)
