"""The back-end of torch alone, on any device. It computes every instruction; others replace what they do faster.

A step is surrounded by `step`. In it `begin_step` comes first, then instructions, chains and finalizers in any order,
then `end_step`; `look` returns to the host, afterwards, which values are finite, and the loss.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plain import indexing, random
from tiebreak.engine.arithmetic.plain.maps import Transcendentals, function_of
from tiebreak.engine.arithmetic.plain.scatter import PlainScatter
from tiebreak.engine.arithmetic.plain.sums import WHOLE, PlainSum
from tiebreak.engine.arithmetic.plan.chains import Chains, PreparedChain, PreparedSeries, Work, members_of
from tiebreak.engine.arithmetic.plan.options import Operands, Options, Prepared, Stats
from tiebreak.engine.arithmetic.plan.sums import Partial, kind_of
from tiebreak.engine.arithmetic.plan.views import View
from tiebreak.engine.data.tensors import canonical
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.protocol.program.isa import TRANSCENDENTALS, Instruction, MapFunction, Opcode, ReduceFunction, SourceKind

Table = Mapping[Opcode, Callable[[Instruction, Sequence[torch.dtype]], Prepared | None]]
"""Prepares instructions, by opcode, on operands of some dtypes. A hole, or None, leaves them to torch alone."""


class Finalizer:
    """Makes one f32 value committable: every NaN becomes the canonical one, and it is noted whether all is finite."""

    def __init__(self, backend: "TorchBackend", index: int) -> None:
        self._backend, self._index = backend, index

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> dict[int, Tensor]:  # noqa: ARG002
        """The finalized value by its index. Only the memory of values in `given` may be overwritten."""
        index = self._index
        self._backend.finite[index] = self._backend.is_finite(values[index])
        return {index: values[index] if self._backend.finite[index] else canonical(values[index])}


class TorchBackend:
    """Computes with torch's operators only; other back-ends extend it and replace what they do faster."""

    name = "torch"
    """The name by which people know it."""
    chains: Chains | None = None
    """Runs chains of elementwise instructions in one pass; None if they must run one by one."""

    def __init__(self, options: Options, stats: Stats) -> None:
        self.options, self.stats = options, stats
        self.transcendentals = Transcendentals(options.precision, options.fp64)
        self.finite: dict[int, bool] = {}
        """Whether each value that was finalized in the step is finite in all its elements."""
        self.left: set[int] = set()
        """The ids of the instructions that are left to torch alone."""
        self._loss = torch.zeros((), dtype=torch.float32)
        shuffles = random.Shuffles()
        self._complete: Table = {
            Opcode.SOURCE: self._source,
            Opcode.MAP: self._map,
            Opcode.REDUCE: self._reduce,
            Opcode.SCATTER_SUM: self._scatter,
            Opcode.GATHER: lambda i, _: lambda x, *_: indexing.gather(i, x, reads_values=options.reads_values),
            Opcode.WINDOW: lambda i, _: lambda x, *_: indexing.window(i, x),
            Opcode.IOTA: lambda i, _: lambda *_: indexing.iota(i, options.device),
            Opcode.RANDOM: lambda i, _: lambda x, *_: random.random(i, x),
            Opcode.SHUFFLE: lambda i, _: lambda x, *_: shuffles.run(i, x),
        }

    @property
    def table(self) -> Table:
        """The instructions that the back-end computes itself."""
        return self._complete

    def prepare(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        """Prepares a validated instruction on operands of these dtypes."""
        made = self.table.get(i.opcode)
        prepared = None if made is None else made(i, dtypes)
        return self.prepare_plain(i, dtypes) if prepared is None else prepared

    def prepare_plain(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        """Prepares an instruction for torch alone."""
        if (made := self._complete.get(i.opcode)) is None or (prepared := made(i, dtypes)) is None:
            raise ValueError(f"expected an instruction that computes, got {i.opcode.name} {i.function}")
        self.left.add(id(i))
        return prepared

    def partial(self, i: Instruction) -> Callable[[Operands], Partial]:
        """Prepares an f32 `reduce` sum whose FP64 sums are left for others to add and to round."""
        return PlainSum(i, self.options, WHOLE).partial

    def compile_ahead(self, work: Callable[[], object]) -> None:
        """Compiles the kernels that `work` will launch. It is called once for that, and must bear undefined results."""

    @property
    def notes(self) -> Tensor | None:
        """The memory, on the device, of what `look` reads; None if the host waits for each result."""
        return None

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context in which one step is executed, for back-ends that keep memory between steps."""
        yield

    def join(
        self,
        work: Sequence[Work],
        body: Sequence[Instruction],  # noqa: ARG002
    ) -> Sequence[tuple[Sequence[Work], PreparedSeries | None]]:
        """Units in order, with what executes several of them together."""
        return [((one,), None) for one in work]

    def begin_step(self) -> None:
        """Clears what the previous step left for `look`."""
        self.finite.clear()

    def finalize(self, index: int, i: Instruction) -> "Finalizer | PreparedChain":  # noqa: ARG002
        """Prepares to finalize an f32 value that comes from no chain."""
        return Finalizer(self, index)

    def end_step(self, loss: Tensor) -> None:
        """Takes the loss, an f32 of rank 0, after all else."""
        self._loss = loss

    def run_once(self, instructions: Sequence[Instruction], operands: Operands) -> list[Tensor]:
        """Runs instructions as `members_of` takes them as one chain, for qualification and tests."""
        assert self.chains is not None
        chain = self.chains.make(members_of(instructions, operands))
        self.begin_step()
        made = chain.run(dict(enumerate(operands)))
        self.look((chain,))
        return [made[number] for number in sorted(made)]

    def look(self, ran: Iterable[object]) -> tuple[dict[int, bool], int]:  # noqa: ARG002
        """Whether each finalized value is finite, by index, and the loss's bits as an i32.

        ran: all chains and finalizers that ran in the step.
        """
        return self.finite, int(self._loss.reshape(1).view(torch.int32).item())

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of undefined contents on the device."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.options.device)

    def wide(self, tensor: Tensor) -> Tensor:
        """A tensor as f32, if it is held in bfloat16: in memory of the back-end's, which costs no page faults."""
        return tensor if tensor.dtype != torch.bfloat16 else self.empty(tensor.shape, torch.float32).copy_(tensor)

    def is_finite(self, tensor: Tensor) -> bool:
        """Whether all elements of an f32 tensor are finite."""
        return bool(torch.isfinite(tensor).all())

    def _source(self, i: Instruction, _: Sequence[torch.dtype]) -> Prepared:
        device = self.options.device
        match i.function:
            case SourceKind.CONST:
                made = indexing.constant(i, device)
                return lambda *_: made
            case SourceKind.STEP:
                return lambda _, step, __: torch.full((), step, dtype=torch.int64, device=device)
        raise ValueError(f"expected a constant or the step, got source {i.function}: the interpreter provides those")

    def _map(self, i: Instruction, dtypes: Sequence[torch.dtype]) -> Prepared:
        function = MapFunction(i.function)
        views = tuple(View.of_access(access, i.shape) for access in i.operands)
        shape, device = i.shape, self.options.device
        # One operand must have the result's whole shape; otherwise torch would return a smaller result.
        widths = zip(*(view.sizes for view in views), strict=True)
        widen = any(max(sizes) != n for sizes, n in zip(widths, shape, strict=True))
        if function in TRANSCENDENTALS:
            counts, (view,) = self.stats.of(f"map.{function.name.lower()}"), views

            def transcendental(x: Operands, *_: object) -> Tensor:
                result = self.transcendentals.apply(function, view.on(x[0]), counts)
                return result.expand(shape).contiguous() if widen else result

            return transcendental
        write, dtype = function_of(function, dtypes[0], i.dtype), TORCH_DTYPES[i.dtype]

        def one(x: Operands, *_: object) -> Tensor:
            read = [view.on(base) for view, base in zip(views, x, strict=True)]
            if widen:
                read[0] = read[0].expand(shape)
            out = torch.empty(shape, dtype=dtype, device=device)
            write(read, out)
            return out

        return one

    def _reduce(self, i: Instruction, _: Sequence[torch.dtype]) -> Prepared:
        if i.function in (ReduceFunction.MAX, ReduceFunction.ARGMAX):
            return lambda x, *_: indexing.extreme(i, x)
        if not i.is_f32_sum:
            return lambda x, *_: indexing.wrapping_sum(i, x)
        planned, counts = PlainSum(i, self.options, self.options.fp64), self.stats.of(kind_of(i))
        return lambda x, _, near: planned.run(x, counts, near)

    def _scatter(self, i: Instruction, _: Sequence[torch.dtype]) -> Prepared:
        planned, counts = PlainScatter(i, self.options), self.stats.of("scatter_sum")
        return lambda x, _, near: planned.run(x, counts, near)
