"""Executes one instruction on one device, bit for bit as SPEC sections 4 to 7 say.

Near ties under policy `logged` are the exception: the caller can collect them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.arithmetic import elementwise, elementwise_fused, indexing, random
from tiebreak.engine.arithmetic.buffers import Buffers
from tiebreak.engine.arithmetic.exact import Exact, Integers, exact_sums
from tiebreak.engine.arithmetic.reduce import (
    SumRunner,
    build,
    plan_extreme,
    plan_sum,
    run_extreme,
    run_extreme_fused,
    runs_on,
)
from tiebreak.engine.arithmetic.rounding import Round
from tiebreak.engine.arithmetic.scatter import ScatterRunner, plan_scatter
from tiebreak.engine.arithmetic.stats import Stats
from tiebreak.engine.arithmetic.threads import spread
from tiebreak.engine.arithmetic.views import View
from tiebreak.engine.arithmetic.ziv import NOTHING_NEAR, Collector, Logging, NearTies
from tiebreak.engine.dtypes import TORCH_DTYPES
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.isa import (
    TRANSCENDENTALS,
    Instruction,
    MapFunction,
    Opcode,
    ReduceFunction,
    SourceKind,
)
from tiebreak.protocol.program.rounding import sum_kind

Operands = Sequence[Tensor]
Compiled = Callable[[Operands, int, Collector | None], Tensor]
"""A prepared instruction: (operands, step, collector of a logged sum's near ties) -> result."""

MAX_PLANS: Final = 1 << 20
FP64_ELEMENTS: Final = {"cpu": 1 << 22}
"""The number of FP64 elements of one tensor that are held at once, by kind of device."""
FP64_ELEMENTS_ELSEWHERE: Final = 1 << 26
LONG: Final = 1 << 22
"""The amount of work from which on an instruction is worth all of torch's threads, as elements times cost."""
FP64_FUNCTION: Final = 32
"""The number of elements that are copied while torch computes one transcendental and its test."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an `Arithmetic`."""

    device: torch.device
    permuted: bool
    """Takes the terms of every sum in random order, long ones in pieces. This changes no bit, which audits use it to
    show."""
    fp64_elements: int
    precision: int
    """The number of bits to which sums and transcendentals are rounded."""
    logging: Logging | None
    """The rules for finding near ties; None under policy `exact`."""


class Arithmetic:
    """Executes instructions exactly on a device, except for near ties where the caller settles them.

    NaN in an f32 result may have any payload, because no result depends on it; make it canonical before hashing.
    Results are contiguous and, except for constants, new; neither operands nor constants are ever written to. Only one
    thread at a time may use an instance.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        permute: torch.Generator | int | None = None,
        stats: Stats | None = None,
        *,
        precision: int = MAX_PRECISION,
        logging: Logging | None = None,
        fp64_elements: int | None = None,
    ) -> None:
        device = torch.device(device)
        default = FP64_ELEMENTS.get(device.type, FP64_ELEMENTS_ELSEWHERE)
        elements = default if fp64_elements is None else fp64_elements
        self.options = Options(device, permute is not None, elements, precision, logging)
        self.stats = Stats() if stats is None else stats
        shuffled = torch.Generator().manual_seed(permute) if isinstance(permute, int) else permute
        roundings = {False: Round(precision), True: Round(MIN_PRECISION)}
        self._scatters = {bf16: ScatterRunner(shuffled, rounded) for bf16, rounded in roundings.items()}
        self._transcendentals = elementwise.Transcendentals(precision)
        self._shuffles = random.Shuffles()
        self._compiled: dict[int, tuple[Instruction, Compiled]] = {}
        self.chains = self._make_chains()
        """Runs chains of elementwise instructions in one pass; None if they must run one by one."""
        self._sums = {bf16: SumRunner(shuffled, self.buffers, rounded) for bf16, rounded in roundings.items()}
        """Runners for sums of the job's precision and for sums to bfloat16."""

    @property
    def device(self) -> torch.device:
        """The device of operands and results."""
        return self.options.device

    @property
    def buffers(self) -> Buffers | None:
        """The memory of results where kernels for CPUs are compiled."""
        return self.chains.buffers if isinstance(self.chains, elementwise.Chains) else None

    def _make_chains(self) -> elementwise.Chains | elementwise_fused.FusedChains | None:
        if elementwise_fused.runs_on(self.device):
            return elementwise_fused.FusedChains(self.device, self.options.precision, self.stats)
        found = elementwise.kernel() if self.device.type == "cpu" else None
        return None if found is None else elementwise.Chains(found, self._transcendentals, self.stats)

    def execute(self, instruction: Instruction, operands: Operands, step: int) -> Tensor:
        """The result of a validated instruction other than `source` state or data and `commit`.

        `operands`: for each operand the whole tensor that it reads, contiguous, on the device. `step` counts from 0: it
        is what `source` step yields (SPEC's s - 1). Returns a contiguous tensor of the instruction's shape and dtype.
        Plans are cached per instruction object.
        """
        return self._plan(instruction, operands)(operands, step, None)

    def execute_logged(self, instruction: Instruction, operands: Operands, step: int) -> tuple[Tensor, NearTies]:
        """Like `execute`, but near ties are left open and reported.

        With `logging`, open elements of a sum with a tolerance (`tiebreak.engine.arithmetic.ziv`) hold RN(c);
        every other element is RN(exact) as usual.
        """
        logging, kind = self.options.logging, sum_kind(instruction)
        if logging is None or kind is None or not logging.logs(kind):
            return self.execute(instruction, operands, step), NOTHING_NEAR
        collector = logging.collector(kind)
        return self._plan(instruction, operands)(operands, step, collector), collector.found()

    def runner(self, instruction: Instruction) -> SumRunner:
        """Computes f32 sums with the precision of an instruction."""
        return self._sums[instruction.is_bf16_sum]

    def _plan(self, instruction: Instruction, operands: Operands) -> Compiled:
        found = self._compiled.get(id(instruction))
        if found is None or found[0] is not instruction:
            if len(self._compiled) >= MAX_PLANS:
                self._compiled.clear()
            # Keeping the instruction alive keeps its id unique.
            compiled = self._compile(instruction, operands)
            if self.buffers is not None and _is_long(instruction):
                compiled = spread(compiled)
            found = self._compiled[id(instruction)] = (instruction, compiled)
        return found[1]

    def plans(self) -> list[object]:
        """The objects that prepared instructions read on the device: a graph of their launches has to keep them."""
        return list(self._compiled.values())

    def exact_sums(
        self, instruction: Instruction, operands: Operands, elements: Sequence[int] | Integers
    ) -> list[Exact]:
        """(n, e) of the exact sum n * 2^e for some elements of a sum, by number; None for one that is not finite."""
        return exact_sums(instruction, operands, elements)

    def _compile(self, i: Instruction, operands: Operands) -> Compiled:
        device = self.device
        match i.opcode:
            case Opcode.MAP:
                return self._compile_map(i, operands)
            case Opcode.REDUCE:
                return self._compile_reduce(i)
            case Opcode.SCATTER_SUM:
                plan, counts, scatters = plan_scatter(i), self.stats.of("scatter_sum"), self._scatters[i.is_bf16_sum]
                return lambda x, _, near: scatters.run(plan, x, counts, near)
            case Opcode.GATHER:
                return lambda x, *_: indexing.gather(i, x)
            case Opcode.WINDOW:
                return lambda x, *_: indexing.window(i, x)
            case Opcode.IOTA:
                return lambda *_: indexing.iota(i, device)
            case Opcode.RANDOM:
                return lambda x, *_: random.random(i, x)
            case Opcode.SHUFFLE:
                return lambda x, *_: self._shuffles.run(i, x)
            case Opcode.SOURCE:
                return _compile_source(i, device)
        raise ValueError(f"expected an instruction that computes, got {i.opcode.name} {i.function}")

    def _compile_map(self, i: Instruction, operands: Operands) -> Compiled:
        function = MapFunction(i.function)
        views = tuple(View.of_access(access, i.shape) for access in i.operands)
        shape, device = i.shape, self.device
        # One operand must have the result's whole shape; otherwise torch would return a smaller result.
        widths = zip(*(view.sizes for view in views), strict=True)
        widen = any(max(sizes) != n for sizes, n in zip(widths, shape, strict=True))
        if function in TRANSCENDENTALS:
            counts, (view,) = self.stats.of(f"map.{function.name.lower()}"), views
            functions = self._transcendentals

            def transcendental(x: Operands, *_: object) -> Tensor:
                result = functions.apply(function, view.on(x[0]), counts)
                return result.expand(shape).contiguous() if widen else result

            return transcendental
        write, dtype = elementwise.function_of(function, operands[0].dtype, i.dtype), TORCH_DTYPES[i.dtype]

        def one(x: Operands, *_: object) -> Tensor:
            read = [view.on(base) for view, base in zip(views, x, strict=True)]
            if widen:
                read[0] = read[0].expand(shape)
            out = torch.empty(shape, dtype=dtype, device=device)
            write(read, out)
            return out

        return one

    def _compile_reduce(self, i: Instruction) -> Compiled:
        if i.function in (ReduceFunction.MAX, ReduceFunction.ARGMAX):
            return self._compile_extreme(i)
        if not i.is_f32_sum:
            return lambda x, *_: _wrapping_sum(i, x)
        plan, sums = plan_sum(i, self.options.fp64_elements), self.runner(i)
        counts = self.stats.of(plan.kind)
        return lambda x, _, near: sums.run(plan, x, counts, near)

    def _compile_extreme(self, i: Instruction) -> Compiled:
        fused = runs_on(self.device, prod(i.reduction))
        library = build().library if self.device.type == "cpu" and not fused else None
        tables = plan_extreme(i, fused=fused) if fused or library is not None else None
        place, dtype = i.function == ReduceFunction.ARGMAX, TORCH_DTYPES[i.dtype]

        def one(x: Operands, *_: object) -> Tensor:
            if tables is None or x[0].dtype != torch.float32:
                return indexing.extreme(i, x)
            out = torch.empty(i.shape, dtype=dtype, device=x[0].device)
            if library is None:
                run_extreme_fused(tables, x[0], out, place=place)
            else:
                run_extreme(library, tables, x[0], out, place=place)
            return out

        return one


def _is_long(i: Instruction) -> bool:
    each = FP64_FUNCTION if i.opcode == Opcode.MAP and i.function in TRANSCENDENTALS else 1
    return prod(i.index_space) * each >= LONG


def _compile_source(i: Instruction, device: torch.device) -> Compiled:
    match i.function:
        case SourceKind.CONST:
            made = indexing.constant(i, device)
            return lambda *_: made
        case SourceKind.STEP:
            return lambda _, step, __: torch.full((), step, dtype=torch.int64, device=device)
    raise ValueError(f"expected a constant or the step, got source {i.function}: the interpreter provides those")


def _wrapping_sum(i: Instruction, operands: Operands) -> Tensor:
    x = View.of_access(i.operands[0], i.index_space).on(operands[0])
    rank = len(i.shape)
    x = x.expand((*x.shape[:rank], *i.reduction))
    total = x.sum(tuple(range(rank, x.dim()))) if i.reduction else x
    return total.expand(i.shape).clone(memory_format=torch.contiguous_format)
