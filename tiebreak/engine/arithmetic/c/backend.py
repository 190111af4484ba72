"""The back-end of kernels in C, on CPUs: sums, extremes, scatter sums and chains; and the memory of its results.

Fresh memory costs a page fault for every 4 KiB, so that of large results is used again. A buffer returns to the pool
when the last tensor over it dies, regardless of who holds that tensor or which thread drops it, so callers need not
know about the pool. A buffer that was not used during a whole step is freed.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c import chains, integers, scatter, sums
from tiebreak.engine.arithmetic.c.threads import spread, torch_alone
from tiebreak.engine.arithmetic.plain.backend import Table, TorchBackend
from tiebreak.engine.arithmetic.plan.options import Operands, Options, Prepared, Stats
from tiebreak.engine.arithmetic.plan.sums import Partial, kind_of, plan_scatter, plan_tables
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.protocol.program.isa import TRANSCENDENTALS, Instruction, Opcode, ReduceFunction

FEW_TERMS: Final = 16
"""The most terms of a max that sums.c computes, as torch is faster with more. It computes every argmax."""
LONG: Final = 1 << 22
"""The amount of work from which on an instruction is worth all of torch's threads, as elements times cost."""
FP64_FUNCTION: Final = 32
"""The number of elements that are copied while torch computes one transcendental and its test."""
SMALL: Final = 1 << 18
"""Below this many bytes the allocator itself reuses memory."""
_ALIGNMENT: Final = 64

Block = npt.NDArray[np.uint8]


class CBackend(TorchBackend):
    """Kernels in C. Results have memory of a pool, and torch has one thread during a step, but in long instructions."""

    name = "C"

    def __init__(self, options: Options, stats: Stats) -> None:
        super().__init__(options, stats)
        self.buffers = Buffers()
        self._kernel = chains.kernel()
        if self._kernel is not None:
            self.chains = chains.CompiledChains(self._kernel, self.transcendentals, stats, self.empty, self.finite)

    @property
    def table(self) -> Table:
        return {Opcode.REDUCE: self._tabled, Opcode.SCATTER_SUM: self._scattered}

    def prepare_plain(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        prepared = super().prepare_plain(i, dtypes)
        each = FP64_FUNCTION if i.opcode == Opcode.MAP and i.function in TRANSCENDENTALS else 1
        return spread(prepared) if prod(i.index_space) * each >= LONG else prepared

    def partial(self, i: Instruction) -> Callable[[Operands], Partial]:
        library, tables = sums.build().library, plan_tables(i)
        if library is None or tables is None:
            return super().partial(i)
        return sums.TabledSum(library, tables, self.options.shuffled).partial

    @contextmanager
    def step(self) -> Iterator[None]:
        with torch_alone():
            yield
        self.buffers.end_step()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.buffers.empty(shape, dtype)

    def is_finite(self, tensor: Tensor) -> bool:
        if self._kernel is None or not tensor.is_contiguous():
            return super().is_finite(tensor)
        return self._kernel.all_finite(tensor)

    def _tabled(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared | None:
        place = i.function == ReduceFunction.ARGMAX
        few = place or i.function != ReduceFunction.MAX or prod(i.reduction) <= FEW_TERMS
        library = sums.build().library if few and dtypes[0] == torch.float32 else None
        if library is None or (tables := plan_tables(i)) is None:
            return None
        if not i.is_f32_sum:
            found, dtype = sums.TabledSum(library, tables, None), TORCH_DTYPES[i.dtype]
            return lambda x, *_: found.greatest(x[0], torch.empty(i.shape, dtype=dtype), place=place)
        counts, precision = self.stats.of(kind_of(i)), self.options.rounding(i).precision
        chosen = integers.choose(tables, precision, forced=self.options.by_integers)
        planned = sums.TabledSum(library, tables, self.options.shuffled, chosen)
        return lambda x, _, near: planned.run(x, self.empty(i.shape, torch.float32), counts, precision, near)

    def _scattered(self, i: Instruction, _: Sequence[torch.dtype]) -> Prepared | None:
        library, tables, shuffled = scatter.build().library, plan_scatter(i).tables, self.options.shuffled
        if library is None or tables is None:
            return None
        counts, precision = self.stats.of("scatter_sum"), self.options.rounding(i).precision
        return lambda x, _, near: scatter.scatter(
            library, tables, x, torch.zeros(i.shape, dtype=torch.float32), counts, shuffled, precision, near
        )


class Buffers:
    """A pool of CPU memory, by exact size. One thread at a time may take buffers; any thread may return them."""

    def __init__(self) -> None:
        self._idle: dict[int, deque[tuple[int, Block]]] = {}
        self._lent: dict[int, tuple[weakref.ref[Block], Block]] = {}
        self._step = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous CPU tensor of undefined contents."""
        size = prod(shape) * dtype.itemsize
        if size < SMALL:
            return torch.empty(tuple(shape), dtype=dtype)
        idle = self._idle.setdefault(size, deque())
        block = idle.pop()[1] if idle else np.empty(size + _ALIGNMENT, dtype=np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        lease = block[start : start + size]
        tensor = torch.from_numpy(lease)  # holds `lease`, and so do all views of it
        key = id(lease)

        def returned(_: weakref.ref[Block]) -> None:
            self._lent.pop(key, None)
            idle.append((self._step, block))

        self._lent[key] = weakref.ref(lease, returned), block
        return tensor.view(dtype).view(tuple(shape))

    def end_step(self) -> None:
        """Frees the buffers that have been idle since before the step that now ends."""
        for idle in self._idle.values():
            for _ in range(len(idle)):
                since, block = idle.popleft()
                if since >= self._step:
                    idle.append((since, block))
        self._step += 1
