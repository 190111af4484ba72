"""Chains: elementwise instructions that are computed in one pass, and the code that says how, for every back-end.

A chain is straight-line code over registers, each of which holds one element at a time: an operand's, as its access map
reads it, or the result of an operation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.views import Dim, coalesce
from tiebreak.engine.dtypes import PROTOCOL_DTYPES, TORCH_DTYPES
from tiebreak.protocol.program.isa import DType, Instruction, IotaParams, MapFunction, Opcode, RandomParams

NewTensor = Callable[[Sequence[int], torch.dtype], Tensor]
"""Makes a contiguous tensor of undefined contents."""
Chained = Collection[MapFunction]
CHAINED: Final = frozenset(MapFunction) - {MapFunction.LOG, MapFunction.ERF, MapFunction.SIN, MapFunction.COS}
"""The functions of `map` that may be part of a chain on CPUs; on GPUs all may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFrom(RandomParams):
    """Parameters of a `random` instruction from which one worker draws the elements from some number on."""

    first: int


def first_of(params: RandomParams) -> int:
    """The number of the first element that an instruction draws."""
    return params.first if isinstance(params, RandomFrom) else 0


@dataclass(frozen=True, slots=True)
class Unit:
    """Instructions that are executed together, in this order."""

    members: tuple[int, ...]
    outputs: tuple[int, ...]
    """The members whose results are committed, are the loss, or are read by other units."""
    dying: tuple[tuple[int, ...], ...]
    """The values that nothing reads after each member."""
    widened: tuple[int, ...] = ()
    """The values that are held in bfloat16 until the unit reads them."""
    narrowed: tuple[int, ...] = ()
    """The values that are held in bfloat16 from then on."""


@dataclass(frozen=True, slots=True)
class Member:
    """An instruction of a chain, and what becomes of its result."""

    index: int
    instruction: Instruction
    operand_dtypes: tuple[DType, ...]
    operand_numels: tuple[int, ...]
    exported: bool
    """Whether its result is used outside the chain."""
    committed: bool
    """Whether its result is committed: NaN becomes canonical, and the kernel notes whether all elements are finite."""
    replaces: int | None = None
    """The value whose memory the result may reuse: this chain reads it in place, and nothing reads it afterwards."""

    @property
    def notes_finite(self) -> bool:
        """Whether the kernel notes that an element is not finite."""
        return self.committed and self.instruction.dtype == DType.F32


class Load(NamedTuple):
    """Reads an operand from outside the chain."""

    value: int
    offset: int
    dims: tuple[Dim, ...]
    dtype: DType

    @property
    def is_plain(self) -> bool:
        """Whether element k is at place offset + k."""
        return [dim.strides[0] for dim in self.dims] == [1]

    @property
    def is_scalar(self) -> bool:
        """Whether all elements are one."""
        return not any(dim.strides[0] for dim in self.dims)


class Iota(NamedTuple):
    """Computes an index from an element's coordinates."""

    offset: int
    dims: tuple[Dim, ...]


class Draw(NamedTuple):
    """Draws an element by its number; `seed` and `step` are registers."""

    seed: int
    step: int
    stream: int
    first: int


class Apply(NamedTuple):
    """Computes a function of registers."""

    function: MapFunction
    operands: tuple[int, ...]
    source: DType
    """The dtype of the first operand."""
    dtype: DType


class Exported(NamedTuple):
    """A register whose elements are a member's result, which is used outside the chain."""

    register: int
    member: Member


class ChainCode:
    """The code of a chain: each operation computes the register of its own number."""

    def __init__(self, members: Sequence[Member]) -> None:
        """Members are in program order. Raises `ValueError` unless all have the same number of elements.

        An operand that is a member's result must be read in place (`tiebreak.engine.run.schedule.reads_in_place`).
        """
        self.numel = members[0].instruction.numel
        # SAFETY: every register is a run of this many elements.
        if any(m.instruction.numel != self.numel for m in members):
            raise ValueError(f"expected members of {self.numel} elements, got {[m.instruction.numel for m in members]}")
        self.operations: list[Load | Iota | Draw | Apply] = []
        self.inputs: dict[int, tuple[DType, int]] = {}
        """The values read from outside: dtype and number of elements."""
        self._registers: dict[int, int] = {}
        self._loaded: dict[Load, int] = {}
        for m in members:
            self._registers[m.index] = self._emit(self._operation(m))
        stored = sorted((m for m in members if m.exported), key=lambda m: m.replaces is not None)
        self.stores = [Exported(self._registers[m.index], m) for m in stored]
        """The results that are stored. Those that may take an operand's place come last, when all of it was read."""
        self._read = [(index, TORCH_DTYPES[dtype], numel) for index, (dtype, numel) in self.inputs.items()]
        self._made = [(m.index, m.instruction.shape, TORCH_DTYPES[m.instruction.dtype], m.replaces) for m in stored]

    @property
    def finalized(self) -> frozenset[int]:
        """The values that are checked: kernels note whether they are finite."""
        return frozenset(store.member.index for store in self.stores if store.member.notes_finite)

    def operands(self, values: Mapping[int, Tensor], device: str) -> list[Tensor]:
        """The values read from outside, on a kind of device."""
        read = []
        for index, dtype, numel in self._read:
            x = values[index]
            # SAFETY: kernels read a value's elements from the tensor's first on, and nothing else of it.
            if x.dtype != dtype or x.numel() != numel or not x.is_contiguous() or x.device.type != device:
                raise ValueError(
                    f"value {index}: expected {numel} contiguous elements of {dtype} on {device}, got {x.dtype} "
                    f"{tuple(x.shape)} on {x.device}"
                )
            read.append(x)
        return read

    def results(self, values: Mapping[int, Tensor], given: Collection[int], empty: NewTensor) -> dict[int, Tensor]:
        """Memory for what is stored: of the values in `given` that are replaced, and new."""
        return {
            index: values[old].view(shape) if old is not None and old in given else empty(shape, dtype)
            for index, shape, dtype, old in self._made
        }

    def _operation(self, m: Member) -> Iota | Draw | Apply:
        i = m.instruction
        match i.opcode, i.params:
            case Opcode.IOTA, IotaParams() as params:
                return Iota(params.offset, tuple(coalesce(i.shape, [params.strides])))
            case Opcode.RANDOM, RandomParams() as params:
                seed, step = (self._operand(m, o) for o in range(2))
                return Draw(seed, step, params.stream, first_of(params))
        operands = tuple(self._operand(m, o) for o in range(len(i.operands)))
        return Apply(MapFunction(i.function), operands, m.operand_dtypes[0], i.dtype)

    def _operand(self, m: Member, which: int) -> int:
        """The register of an operand, which is loaded if it comes from outside."""
        access = m.instruction.operands[which]
        if access.value in self._registers:
            return self._registers[access.value]
        dtype = m.operand_dtypes[which]
        self.inputs[access.value] = dtype, m.operand_numels[which]
        load = Load(access.value, access.offset, tuple(coalesce(m.instruction.shape, [access.strides])), dtype)
        if load not in self._loaded:
            self._loaded[load] = self._emit(load)
        return self._loaded[load]

    def _emit(self, operation: Load | Iota | Draw | Apply) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1


class PreparedChain(Protocol):
    """One chain, planned once and run in every step."""

    code: ChainCode
    """The operations that it executes, as they were generated."""

    def run(self, values: Mapping[int, Tensor], given: Collection[int] = ()) -> dict[int, Tensor]:
        """Executes the chain on the values that it reads; returns the results that are used outside.

        Results may overwrite the values in `given` that they replace.
        """


Work = tuple[Unit, PreparedChain | None]
"""A unit, and its chain if it is one."""


class PreparedSeries(Protocol):
    """Units that are executed together, planned once and run in every step."""

    reads: frozenset[int]
    """The values that it reads from outside."""
    dying: tuple[int, ...]
    """The values among them that nothing reads afterwards."""

    def run(self, values: Mapping[int, Tensor], given: Collection[int]) -> dict[int, Tensor]:
        """Executes the units; returns the results that are used afterwards. They may overwrite values in `given`."""


class Chains(Protocol):
    """Makes the chains of one `Arithmetic`."""

    functions: frozenset[MapFunction]
    """The functions of `map` that may be part of a chain."""
    repeats: bool
    """Whether computing a cheap result again takes less than storing it and reading it."""
    prologues: bool
    """Whether a maximum or a plain sum may be the last member of a chain, whose elements are its terms."""

    def make(self, members: Sequence[Member]) -> PreparedChain:
        """Prepares a chain of members as in `ChainCode`, or of a prologue and a reduction."""


def members_of(instructions: Sequence[Instruction], operands: Sequence[Tensor]) -> tuple[Member, ...]:
    """A chain of instructions that read the same operands, after which their values are numbered.

    If the last one is a reduction, it may read the others' results, and only its own is used.
    """
    dtypes = [*(PROTOCOL_DTYPES[x.dtype] for x in operands), *(i.dtype for i in instructions)]
    numels = [*(x.numel() for x in operands), *(i.numel for i in instructions)]
    chain = instructions[-1].opcode != Opcode.REDUCE
    return tuple(
        Member(
            n, i, tuple(dtypes[a.value] for a in i.operands), tuple(numels[a.value] for a in i.operands), chain, chain
        )
        for n, i in enumerate(instructions, len(operands))
    )
