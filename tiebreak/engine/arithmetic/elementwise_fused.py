"""Chains on GPUs: one launch of one Triton kernel (`kernels/elementwise.py`) for each.

The host waits for nothing while a step runs. What the kernels note, whether results are finite and what FP64 left open,
stays on the device, with the loss, until `FusedChains.look`, once a step.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.chains import Member, Result, check_value, common_numel, sole_member
from tiebreak.engine.arithmetic.launching import kernels, launch, target
from tiebreak.engine.arithmetic.random import first_of
from tiebreak.engine.arithmetic.stats import Stats
from tiebreak.engine.arithmetic.views import Dim, coalesce
from tiebreak.engine.dtypes import PROTOCOL_DTYPES, TORCH_DTYPES
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import (
    TRANSCENDENTALS,
    DType,
    Instruction,
    IotaParams,
    MapFunction,
    Opcode,
    RandomParams,
)

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


class ChainStore(NamedTuple):
    """A register to be stored through the pointer that has the store's own number."""

    register: int
    note: int
    """The place where the kernel notes that a sealed result is not finite; -1 if it is not sealed."""


def _kernels(device: torch.device) -> ModuleType | None:
    return kernels(f"{__package__}.kernels.elementwise", device)


def runs_on(device: torch.device) -> bool:
    """Whether the kernels run on a device."""
    return _kernels(device) is not None


class FusedChains:
    """Makes and runs the chains of one `Arithmetic`, as `elementwise.Chains` does."""

    functions: Final = frozenset(MapFunction)

    def __init__(self, device: torch.device, precision: int, stats: Stats) -> None:
        self.device, self.precision, self.stats = device, precision, stats
        self.notes = torch.zeros(1 << 10, dtype=torch.int64, device=device)
        """The kernels' notes: the bits of the loss, then a range for each chain."""
        self._used = _ALIGNMENT

    def make(self, members: tuple[Member, ...]) -> "FusedChain":
        """Prepares a chain, as `elementwise.Chains.make` does."""
        code = Code(members)
        first = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        self._used = first + code.notes
        while self._used > len(self.notes):
            self.notes = torch.cat([self.notes, torch.zeros_like(self.notes)])
        return FusedChain(self, code, first)

    def alone(self, instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
        """Runs one instruction as a chain of its own, as `elementwise.Chains.alone` does."""
        chain = self.make((sole_member(instruction, operands),))
        self.begin()
        made = chain.run(dict(enumerate(operands)))
        self.look((chain,))
        return made.tensors[len(operands)]

    def begin(self) -> None:
        """Clears all notes when a step begins."""
        self.notes.zero_()

    def note(self, loss: Tensor) -> None:
        """Notes the bits of an f32 of rank 0."""
        self.notes[:1].copy_(loss.reshape(1).view(torch.int32))

    def look(self, ran: Iterable["FusedChain"]) -> tuple[dict[int, bool], int]:
        """Whether each sealed result is finite in all its elements, by value number, and the loss's bits as an i32.

        ran: the chains that ran since `begin`. Waits for the device. Raises `ConfigurationError` if a device could not
        settle a transcendental function.
        """
        noted, finite = self.notes.tolist(), dict[int, bool]()
        for chain in ran:
            finite |= chain.read(noted)
        return finite, noted[0]


class FusedChain:
    """One chain, planned once and run in every step."""

    def __init__(self, chains: FusedChains, code: "Code", first: int) -> None:
        self._chains, self.code, self._first = chains, code, first
        self._numbers = tuple(code.numbers)
        self._options = {**code.constants(chains.precision, *target(chains.device)), **OPTIONS}

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> Result:
        """Executes the chain, as `ElementwiseChain.run` does; `FusedChains.look` then tells what is finite."""
        chains, code = self._chains, self.code
        for number, (dtype, numel) in code.inputs.items():
            check_value(values[number], number, TORCH_DTYPES[dtype], numel, chains.device.type)
        made = {
            number: values[old].view(shape)
            if old is not None and old in given
            else torch.empty(shape, dtype=dtype, device=chains.device)
            for number, shape, dtype, old in code.outputs
        }
        read = (values[number].view(-1)[offset:] for number, offset in code.reads)
        found = _kernels(chains.device)
        assert found is not None
        launch(
            found.run, ceil(code.numel / BLOCK), chains.notes[self._first :], (*made.values(), *read),
            self._numbers, code.numel, **self._options,
        )  # fmt: skip
        return Result(made, {})

    def read(self, noted: Sequence[int]) -> dict[int, bool]:
        """Whether sealed results are finite, by value number; counts what FP64 left open."""
        code, first = self.code, self._first
        for function, at in code.resolved:
            undecided, double_rounded, still = noted[first + at : first + at + 3]
            if still:
                raise ConfigurationError(
                    f"{self._chains.device}: expected {function.name.lower()} to be settled by pairs of FP64, got "
                    f"{still} elements left open. Use another device, driver or build of torch"
                )
            counts = self._chains.stats.of(f"map.{function.name.lower()}")
            counts.elements += code.numel
            counts.undecided += undecided
            counts.double_rounded += double_rounded
        return {number: not noted[first + at] for number, at in code.sealed.items()}


class Code:
    """A chain's instructions, translated into operations."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.numel = common_numel(members)
        self.operations: list[Operation] = []
        self.numbers: list[int] = []
        """Sizes, strides and other numbers to which operations refer."""
        self.inputs: dict[int, tuple[DType, int]] = {}
        """The values read from outside: dtype and number of elements."""
        stored = sorted((m for m in members if m.exported), key=lambda m: m.replaces is not None)
        self.outputs = [(m.number, m.instruction.shape, TORCH_DTYPES[m.instruction.dtype], m.replaces) for m in stored]
        """The results that are stored: number, shape, dtype, and the value that each replaces; these come last."""
        self.late = sum(m.replaces is None for m in stored)
        self.reads: list[tuple[int, int]] = []
        """Value and offset of each pointer after those of the outputs."""
        self.sealed: dict[int, int] = {}
        """The place, by value number, where it is noted that a result is not finite."""
        self.resolved: list[tuple[MapFunction, int]] = []
        """The chain's transcendental functions, each with the place of its notes on what FP64 left open."""
        self.notes = 0
        self._registers: dict[int, int] = {}
        self._loaded: dict[tuple[int, int, tuple[Dim, ...]], int] = {}
        for m in members:
            self._registers[m.number] = self._emit(self._operation(m))
        self.stores = [ChainStore(self._registers[m.number], self._sealed(m)) for m in stored]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The dtypes that the kernel's pointers point to, in order: results first."""
        made = (PROTOCOL_DTYPES[dtype] for _, _, dtype, _ in self.outputs)
        return *made, *(self.inputs[number][0] for number, _ in self.reads)

    def constants(self, precision: int, backend: str, arch: int) -> dict[str, Any]:
        """The constants of the kernel's compilation for a target of Triton, such as ("cuda", 90)."""
        return {
            "APART": backend == "cuda" and arch >= 100,
            "PROGRAM": tuple(self.operations), "STORES": tuple(self.stores), "LATE": self.late,
            "WIDE": self.numel >= WIDE, "PRECISION": precision, "BLOCK": BLOCK,
        }  # fmt: skip

    def _operation(self, m: Member) -> Operation:
        i = m.instruction
        match i.opcode, i.params:
            case Opcode.IOTA, IotaParams() as params:
                dims = coalesce(i.shape, [params.strides])
                return Operation(IOTA, b=len(dims), c=self._number(params.offset, *_box(dims)))
            case Opcode.RANDOM, RandomParams() as params:
                seed, step = (self._operand(m, o) for o in range(2))
                first = first_of(params)
                return Operation(RANDOM, seed, step, self._number(params.stream, first), int(first % 4 == 0))
        function = MapFunction(i.function)
        operands = [self._operand(m, o) for o in range(len(m.instruction.operands))]
        a, b, c = (*operands, *(operands[0],) * (3 - len(operands)))
        if function not in TRANSCENDENTALS:
            return Operation(function, a, b, c, i.dtype)
        self.resolved.append((function, self.notes))
        return Operation(function, a, b, c, self._note(3))

    def _sealed(self, m: Member) -> int:
        if not m.sealed or m.instruction.dtype != DType.F32:
            return -1
        self.sealed[m.number] = self._note(1)
        return self.sealed[m.number]

    def _operand(self, m: Member, which: int) -> int:
        """The register of an operand, which is loaded if it comes from outside."""
        access, dtype, numel = m.instruction.operands[which], m.operand_dtypes[which], m.operand_numels[which]
        if access.value in self._registers:
            return self._registers[access.value]
        self.inputs[access.value] = dtype, numel
        dims = coalesce(m.instruction.shape, [access.strides])
        key = access.value, access.offset, tuple(dims)
        if key not in self._loaded:
            strides = [dim.strides[0] for dim in dims]
            rank = PLAIN if strides == [1] else len(dims) if any(strides) else 0
            if key[:2] not in self.reads:
                self.reads.append(key[:2])
            pointer = len(self.outputs) + self.reads.index(key[:2])
            self._loaded[key] = self._emit(Operation(LOAD, pointer, rank, self._number(*_box(dims[: max(rank, 0)]))))
        return self._loaded[key]

    def _emit(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1

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
