"""The back-end of Triton kernels, on GPUs. The host waits for nothing before `look`, once a step."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.gpu.chains import LaunchedChain, LaunchedChains
from tiebreak.engine.arithmetic.gpu.indices import LaunchedScatter, shuffle
from tiebreak.engine.arithmetic.gpu.launching import compile_ahead
from tiebreak.engine.arithmetic.gpu.sums import LaunchedSum
from tiebreak.engine.arithmetic.plain.backend import Table, TorchBackend
from tiebreak.engine.arithmetic.plan.chains import Member
from tiebreak.engine.arithmetic.plan.options import Operands, Options, Prepared, Stats
from tiebreak.engine.arithmetic.plan.sums import MOST, Partial, ReduceTables, kind_of, plan_scatter, plan_tables
from tiebreak.engine.arithmetic.plan.ziv import Collector
from tiebreak.engine.dtypes import FLOATS
from tiebreak.protocol.program.isa import Access, Instruction, MapFunction, Opcode, ReduceFunction, row_major


class GpuBackend(TorchBackend):
    """Computes with Triton kernels what has one, and with torch the rest."""

    name = "Triton"
    chains: LaunchedChains

    def __init__(self, options: Options, stats: Stats) -> None:
        super().__init__(options, stats)
        self.chains = LaunchedChains(options, stats, self.empty)

    @property
    def table(self) -> Table:
        return {
            Opcode.REDUCE: self._tabled,
            Opcode.SCATTER_SUM: self._scattered,
            Opcode.SHUFFLE: lambda i, _: lambda x, *_: shuffle(i, x),
        }

    def partial(self, i: Instruction) -> Callable[[Operands], Partial]:
        if (tables := _tables(i)) is None:
            return super().partial(i)
        return LaunchedSum(i, tables, self.options).partial

    @property
    def notes(self) -> Tensor:
        return self.chains.notes

    def compile_ahead(self, work: Callable[[], object]) -> None:
        compile_ahead(work)

    def begin_step(self) -> None:
        self.chains.notes.zero_()

    def finalize(self, index: int, i: Instruction) -> LaunchedChain:
        """A copy, in place where that is allowed: the kernel makes NaN canonical and notes what is not finite."""
        operand = Access(index, 0, row_major(i.shape))
        copy = Instruction(
            opcode=Opcode.MAP, function=MapFunction.COPY, dtype=i.dtype, shape=i.shape, operands=(operand,)
        )
        return self.chains.make((Member(index, copy, (i.dtype,), (i.numel,), True, True, index),))

    def end_step(self, loss: Tensor) -> None:
        self.chains.notes[:1].copy_(loss.reshape(1).view(torch.int32))

    def look(self, ran: Iterable[object]) -> tuple[dict[int, bool], int]:
        noted, finite = self.chains.notes.tolist(), dict[int, bool]()  # waits for the device
        for chain in ran:
            if isinstance(chain, LaunchedChain):
                finite |= chain.read(noted)
        return finite, noted[0]

    def _tabled(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared | None:
        kinds = (*FLOATS, torch.int64) if i.function == ReduceFunction.MAX else FLOATS
        tables = _tables(i) if dtypes[0] in kinds else None
        if tables is None:
            return None
        planned = LaunchedSum(i, tables, self.options)
        if not i.is_f32_sum:
            return lambda x, *_: planned.greatest(x)
        counts = self.stats.of(kind_of(i))
        return self._or_plain(i, dtypes, lambda x, near: planned.run(x, counts, near))

    def _scattered(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared | None:
        if (tables := plan_scatter(i).tables) is None:
            return None
        planned, counts = LaunchedScatter(i, tables, self.options), self.stats.of("scatter_sum")
        return self._or_plain(i, dtypes, lambda x, near: planned.run(x, counts) if near is None else None)

    def _or_plain(
        self, i: Instruction, dtypes: Sequence[torch.dtype], run: Callable[[Operands, Collector | None], Tensor | None]
    ) -> Prepared:
        """Runs kernels, and torch where they return None: for near ties without room, and for scatters that log."""
        plain = cache(lambda: self.prepare_plain(i, dtypes))

        def computed(x: Operands, step: int, near: Collector | None) -> Tensor:
            found = run(x, near)
            return plain()(x, step, near) if found is None else found

        return computed


def _tables(i: Instruction) -> ReduceTables | None:
    tables = plan_tables(i)
    return tables if tables is not None and tables.terms <= MOST else None
