"""Chains on GPUs: one launch of one Triton kernel (`kernels/chains.py`) for each.

The host waits for nothing while a step runs. What the kernels note, whether results are finite and what FP64 left open,
stays on the device, with the loss, until `GpuBackend.look`, once a step.
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.gpu.launching import kernels, launch, target
from tiebreak.engine.arithmetic.gpu.sums import LaunchedSum, Prologue
from tiebreak.engine.arithmetic.plan.chains import Apply, ChainCode, Draw, Iota, Load, Member, NewTensor
from tiebreak.engine.arithmetic.plan.options import Options, Stats
from tiebreak.engine.arithmetic.plan.sums import kind_of, plan_tables
from tiebreak.engine.arithmetic.plan.views import Dim
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import TRANSCENDENTALS, MapFunction, Opcode

LOAD: Final = -1
IOTA: Final = -2
RANDOM: Final = -3
"""Operations in addition to the functions of `map`, numbered as in the kernels."""
PLAIN: Final = -1
"""The rank of an operand that is read in place."""
BLOCK: Final = 1024
"""The elements of a program."""
OPTIONS: Final[dict[str, Any]] = {"enable_fp_fusion": False, "num_warps": 8}
WIDE: Final = 1 << 31
"""Elements are counted in 64 bits if there are this many or more."""
_ALIGNMENT: Final = 2
"""The notes of a chain begin at a multiple of this, that is of 16 bytes; in the first of these is the loss."""


class Operation(NamedTuple):
    """The operation that computes one register of a chain, as the kernel reads it. Both have the same number."""

    code: int
    a: int = 0
    """The first operand's register; for LOAD, the pointer."""
    b: int = 0
    """The second operand's register; for LOAD and IOTA, the rank."""
    c: int = 0
    """The third operand's register; for LOAD, IOTA and RANDOM, the place where its numbers begin."""
    d: int = 0
    """The result's dtype; for a transcendental, the place of its notes; for RANDOM, whether it begins with a block."""


class LaunchedChains:
    """Makes and runs the chains of one `Arithmetic`."""

    functions = frozenset(MapFunction)
    repeats = True

    def __init__(self, options: Options, stats: Stats, empty: NewTensor) -> None:
        self.options, self.device, self.precision, self.stats = options, options.device, options.precision, stats
        self.prologues = options.logging is None  # a log is made of a sum's terms, which the host reads
        self.empty = empty
        self.notes = torch.zeros(1 << 10, dtype=torch.int64, device=self.device)
        """The kernels' notes: the bits of the loss, then a range for each chain."""
        self._used = _ALIGNMENT

    def make(self, members: Sequence[Member]) -> "LaunchedChain":
        reduced = members[-1].instruction.opcode == Opcode.REDUCE
        code = KernelCode(ChainCode(members[:-1] if reduced else members))
        first = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        self._used = first + code.notes
        while self._used > len(self.notes):
            self.notes = torch.cat([self.notes, torch.zeros_like(self.notes)])
        return LaunchedReduction(self, code, first, members[-1]) if reduced else LaunchedChain(self, code, first)


class LaunchedChain:
    """One chain, planned once and run in every step. `GpuBackend.look` tells which results are finite."""

    def __init__(self, chains: LaunchedChains, kernel: "KernelCode", first: int) -> None:
        self._chains, self.kernel, self.code, self._first = chains, kernel, kernel.code, first
        self._numbers = tuple(kernel.numbers)
        self._options = {**kernel.constants(chains.precision, *target(chains.device)), **OPTIONS}

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> dict[int, Tensor]:
        read, made = self._reading(values), self.code.results(values, given, self._chains.empty)
        launch(
            kernels("chains").run, ceil(self.code.numel / BLOCK), self._notes(), (*made.values(), *read),
            self._numbers, self.code.numel, **self._options,
        )  # fmt: skip
        return made

    def _notes(self) -> Tensor:
        return self._chains.notes[self._first :]

    def _reading(self, values: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
        self.code.operands(values, self._chains.device.type)
        return tuple(values[index].view(-1)[offset:] for index, offset in self.kernel.reads)

    def read(self, noted: Sequence[int]) -> dict[int, bool]:
        """Whether finalized results are finite, by index; counts what FP64 left open.

        Raises `ConfigurationError` if the device could not settle a transcendental function.
        """
        first = self._first
        for function, at in self.kernel.resolved:
            undecided, double_rounded, still = noted[first + at : first + at + 3]
            if still:
                raise ConfigurationError(
                    f"{self._chains.device}: expected {function.name.lower()} to be settled by pairs of FP64, got "
                    f"{still} elements left open. Use another device, driver or build of torch"
                )
            counts = self._chains.stats.of(f"map.{function.name.lower()}")
            counts.elements += self.code.numel
            counts.undecided += undecided
            counts.double_rounded += double_rounded
        return {index: not noted[first + at] for index, at in self.kernel.finalized.items()}


class LaunchedReduction(LaunchedChain):
    """A maximum or a plain sum, and its prologue: a chain that computes the terms while the kernel reads."""

    def __init__(self, chains: LaunchedChains, kernel: "KernelCode", first: int, last: Member) -> None:
        super().__init__(chains, kernel, first)
        self._last, i, tables = last, last.instruction, plan_tables(last.instruction)
        # SAFETY: the terms are elements of the chain, which is trusted to have as many.
        if tables is None or not 0 <= tables.operands[0].reach[0] <= tables.operands[0].reach[1] < self.code.numel:
            raise ValueError(f"expected a reduction of {self.code.numel} elements that has tables, got {i}")
        prologue = Prologue(self._options["CHAIN"], self._numbers, self._notes)
        self._planned, self._counts = LaunchedSum(i, tables, chains.options, prologue), chains.stats.of(kind_of(i))

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> dict[int, Tensor]:  # noqa: ARG002
        read, planned = [self._reading(values)], self._planned
        is_sum = self._last.instruction.is_f32_sum
        result = planned.run(read, self._counts, None) if is_sum else planned.greatest(read)
        assert result is not None  # nothing is logged
        return {self._last.index: result}


class KernelCode:
    """A chain's code as the kernel reads it."""

    def __init__(self, code: ChainCode) -> None:
        self.code = code
        self.numbers: list[int] = []
        """Sizes, strides and other numbers to which operations refer."""
        self.late = sum(store.member.replaces is None for store in code.stores)
        self.reads: list[tuple[int, int]] = []
        """Value and offset of each pointer after those of the outputs."""
        self.finalized: dict[int, int] = {}
        """The place, by index, where it is noted that a result is not finite."""
        self.resolved: list[tuple[MapFunction, int]] = []
        """The chain's transcendental functions, each with the place of its notes on what FP64 left open."""
        self.notes = 0
        self.operations = [self._operation(operation) for operation in code.operations]
        for store in code.stores:
            if store.member.notes_finite:
                self.finalized[store.member.index] = self._note(1)
        self.stores = [(s.register, self.finalized.get(s.member.index, -1)) for s in code.stores]
        """Each register that is stored, and where the kernel notes that it is not finite; -1 if it is not finalized."""

    def constants(self, precision: int, backend: str, arch: int) -> dict[str, Any]:
        """The constants of the kernel's compilation for a target of Triton, such as ("cuda", 90)."""
        apart, wide = backend == "cuda" and arch >= 100, self.code.numel >= WIDE
        chain = (wide, apart, precision), *self.operations
        return {"CHAIN": chain, "STORES": tuple(self.stores), "LATE": self.late, "BLOCK": BLOCK}

    def _operation(self, operation: Load | Iota | Draw | Apply) -> Operation:
        match operation:
            case Load(value, offset, dims):
                rank = PLAIN if operation.is_plain else 0 if operation.is_scalar else len(dims)
                if (value, offset) not in self.reads:
                    self.reads.append((value, offset))
                pointer = len(self.code.stores) + self.reads.index((value, offset))
                return Operation(LOAD, pointer, rank, self._number(*_box(dims[: max(rank, 0)])))
            case Iota(offset, dims):
                return Operation(IOTA, b=len(dims), c=self._number(offset, *_box(dims)))
            case Draw(seed, step, stream, first):
                return Operation(RANDOM, seed, step, self._number(stream, first), int(first % 4 == 0))
            case Apply(function, operands, _, dtype):
                a, b, c = (*operands, *(operands[0],) * (3 - len(operands)))
                if function not in TRANSCENDENTALS:
                    return Operation(function, a, b, c, dtype)
                self.resolved.append((function, self.notes))
                return Operation(function, a, b, c, self._note(3))

    def _number(self, *numbers: int) -> int:
        """Adds numbers and returns where they begin."""
        self.numbers += numbers
        return len(self.numbers) - len(numbers)

    def _note(self, number: int) -> int:
        """Adds places for notes and returns the first."""
        self.notes += number
        return self.notes - number


def _box(dims: Sequence[Dim]) -> tuple[int, ...]:
    return *(dim.size for dim in dims), *(dim.strides[0] for dim in dims)
