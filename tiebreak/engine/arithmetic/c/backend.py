"""The back-end of kernels in C, on CPUs: sums, extremes, scatter sums and chains; and the memory of its results.

Fresh memory costs a page fault for every 4 KiB, so that of large results is used again. A buffer returns to the pool
when the last tensor over it dies, regardless of who holds that tensor or which thread drops it, so callers need not
know about the pool. A buffer that was not used during a whole step is freed, and so are the oldest ones before fresh
memory is taken while much is idle and there would be more in all than was ever lent at once.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.c import chains, moves, scatter, sums, threads, units
from tiebreak.engine.arithmetic.c.table import KernelPlan
from tiebreak.engine.arithmetic.plain.backend import Table, TorchBackend
from tiebreak.engine.arithmetic.plan.chains import PreparedChain, PreparedSeries, Unit, Work
from tiebreak.engine.arithmetic.plan.options import Operands, Options, Prepared, Stats
from tiebreak.engine.arithmetic.plan.sums import Partial, plan_scatter, plan_tables
from tiebreak.engine.dtypes import FLOATS, TORCH_DTYPES
from tiebreak.engine.native import release
from tiebreak.protocol.program.isa import TRANSCENDENTALS, Instruction, Opcode, ReduceFunction

FEW_TERMS: Final = 16
"""A max of more terms is left to torch, which is faster, unless at least as many lie side by side."""
LONG: Final = 1 << 22
"""The amount of work from which on an instruction is worth all of torch's threads, as elements times cost."""
FP64_FUNCTION: Final = 32
"""The number of elements that are copied while torch computes one transcendental and its test."""
SMALL: Final = 1 << 18
"""Below this many bytes the allocator itself reuses memory."""
IDLE: Final = 1 << 27
"""The most bytes that are idle when fresh memory raises the peak."""
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
        return dict.fromkeys((Opcode.REDUCE, Opcode.SCATTER_SUM, Opcode.GATHER, Opcode.WINDOW), self._prepared)

    def prepare_plain(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        prepared = super().prepare_plain(i, dtypes)
        each = FP64_FUNCTION if i.opcode == Opcode.MAP and i.function in TRANSCENDENTALS else 1
        return threads.spread(prepared) if prod(i.index_space) * each >= LONG else prepared

    def partial(self, i: Instruction) -> Callable[[Operands], Partial]:
        library, tables = sums.build().library, plan_tables(i)
        if library is None or tables is None:
            return super().partial(i)
        made = sums.TabledSum(library, tables, i, self.options)
        return lambda operands: made.partial([self.wide(tensor) for tensor in operands])

    @contextmanager
    def step(self) -> Iterator[None]:
        with threads.torch_alone():
            yield
        self.buffers.end_step()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self.buffers.empty(shape, dtype)

    def wide(self, tensor: Tensor) -> Tensor:
        return (threads.spread(super().wide) if tensor.numel() >= LONG else super().wide)(tensor)

    def is_finite(self, tensor: Tensor) -> bool:
        if self._kernel is None or not tensor.is_contiguous():
            return super().is_finite(tensor)
        return self._kernel.all_finite(tensor)

    def join(
        self, work: Sequence[Work], body: Sequence[Instruction]
    ) -> Sequence[tuple[Sequence[Work], PreparedSeries | None]]:
        if not isinstance(self.chains, chains.CompiledChains):
            return super().join(work, body)
        caller = units.Caller(self.empty, self.stats, self.finite, self.chains.resolver)
        if caller.library is None:
            return super().join(work, body)
        made, parts = set[int](), list[units.SeriesPart | None]()
        for unit, chain in work:
            again = not made.isdisjoint(unit.outputs)  # a series has one memory for each value
            alone = again or unit.widened or unit.narrowed
            parts.append(None if alone else self._part(unit, chain, body))
            made.update(unit.members)
        return units.join(work, parts, body, caller)

    def _part(self, unit: Unit, chain: PreparedChain | None, body: Sequence[Instruction]) -> units.SeriesPart | None:
        """A unit as a series has it; None if it takes long, or is left to torch."""
        dying, result = [value for dying in unit.dying for value in dying], unit.members[0]
        if isinstance(chain, chains.CompiledChain):
            made = {store.member.index: store.member.replaces for store in chain.code.stores}
            return units.SeriesPart([units.of_chain(chain)], made, dying) if chain.work <= units.LONGEST else None
        i = body[result]
        if len(unit.members) > 1 or prod(i.index_space) > units.LONGEST:
            return None
        planned = self._planned(i, [TORCH_DTYPES[body[operand.value].dtype] for operand in i.operands])
        return None if planned is None else units.SeriesPart(planned.entries(result), {result: None}, dying)

    def _planned(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> KernelPlan | None:
        """The kernel that computes an instruction; None if torch does."""
        match i.opcode:
            case Opcode.GATHER | Opcode.WINDOW if found := moves.build().library:
                return moves.Moves(found, i, dtypes[0])
            case Opcode.SCATTER_SUM if (found := scatter.build().library) and (places := plan_scatter(i).tables):
                return scatter.TabledScatter(found, places, i, self.options)
            case Opcode.REDUCE if dtypes[0] in FLOATS and (found := sums.build().library):
                tables, few = plan_tables(i), i.function != ReduceFunction.MAX or prod(i.reduction) <= FEW_TERMS
                if tables is not None and (few or tables.run_k >= FEW_TERMS):
                    return sums.TabledSum(found, tables, i, self.options)
        return None

    def _prepared(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared | None:
        planned = self._planned(i, dtypes)
        return None if planned is None else lambda x, _, near: planned.run(x, self, near)


class Buffers:
    """A pool of CPU memory, by exact size. One thread at a time may take buffers; any thread may return them."""

    def __init__(self) -> None:
        self._idle: dict[int, deque[tuple[int, Block]]] = {}
        self._lent: dict[int, tuple[weakref.ref[Block], Block]] = {}
        self._most = 0
        """The most bytes that were lent at once when fresh memory was taken."""
        self._ticks, self._begun = count(), 0
        """The numbers of returns, and the first one of this step."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous CPU tensor of undefined contents."""
        size = prod(shape) * dtype.itemsize
        if size < SMALL:
            return torch.empty(tuple(shape), dtype=dtype)
        idle = self._idle.setdefault(size, deque())
        block = idle.pop()[1] if idle else self._fresh(size + _ALIGNMENT)
        start = -block.ctypes.data % _ALIGNMENT
        lease = block[start : start + size]
        tensor = torch.from_numpy(lease)  # holds `lease`, and so do all views of it
        key = id(lease)

        def returned(_: weakref.ref[Block]) -> None:
            self._lent.pop(key, None)
            idle.append((next(self._ticks), block))

        self._lent[key] = weakref.ref(lease, returned), block
        return tensor.view(dtype).view(tuple(shape))

    def _fresh(self, size: int) -> Block:
        lent = size + sum(block.nbytes for _, block in list(self._lent.values()))
        self._most = max(self._most, lent)
        while sum(size * len(idle) for size, idle in self._idle.items()) > max(IDLE, self._most - lent):
            min(filter(None, self._idle.values()), key=lambda idle: idle[0][0]).popleft()
        if size >= IDLE:
            release()  # malloc keeps smaller blocks after they are freed
        return np.empty(size, dtype=np.uint8)

    def end_step(self) -> None:
        """Frees the buffers that have been idle since before the step that now ends."""
        for idle in self._idle.values():
            while idle and idle[0][0] < self._begun:
                idle.popleft()
        self._begun = next(self._ticks)
