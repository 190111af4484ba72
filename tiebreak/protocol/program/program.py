"""The program: a training step as data (SPEC section 4), with its encoding, its root, and the rules it must obey.

Numbered plan of `Program.validate`. The first broken rule is reported with its instruction:
(1) counts: 1 <= B, S <= 2^17, the loss is the last body instruction, f32, rank 0;
(2) each instruction's own form: rank, dims, operand count, parameters, encoded size;
(3) operands name earlier body values;
(4) dtypes fit the opcode and function;
(5) every element an access map can reach lies inside its tensor;
(6) slots and names: data slots 0, 1, ... in name order, each sourced once; state slots agree with the commits;
    commits in name order, each the whole of a value;
(7) random streams are pairwise different;
(8) limits of the machine that is asked to run it: elements of one value, elements of all values, terms in all.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from itertools import pairwise
from math import prod
from struct import Struct

from tiebreak.protocol.codec import Reader, decode_name, encode_name, signed, unsigned
from tiebreak.protocol.errors import EncodingError, ProgramError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.isa import Access, DType, Instruction, MapFunction, Opcode, Slot, SourceKind
from tiebreak.protocol.tags import EMPTY, Digest, Tag, tagged_hash
from tiebreak.protocol.trees import Tree, depth_of

MAGIC = b"TBPROG01"
_MIN_BYTES = 8
"""The bytes of an instruction without dims, operands and parameters."""

_FUNCTIONS: dict[Opcode, type[IntEnum]] = {
    Opcode.SOURCE: SourceKind,
    Opcode.MAP: MapFunction,
    Opcode.REDUCE: isa.ReduceFunction,
    Opcode.SCATTER_SUM: isa.ScatterFunction,
    Opcode.WINDOW: isa.WindowFunction,
}
"""Opcodes that use the function field; for all others it is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """The largest program that a machine will run. A larger one raises a `ProgramError` that names the limit."""

    value_elements: int = 1 << 33
    total_elements: int = 1 << 38
    total_terms: int = 1 << 52


def _encode_params(instruction: Instruction) -> bytes:
    match instruction.params:
        case None:
            return b""
        case isa.SourceConst(bits=bits):
            return unsigned(bits, 8)
        case Slot(slot=slot, name=name):
            return unsigned(slot, 4) + encode_name(name)
        case isa.GatherParams(index_stride=stride, bound=bound):
            return signed(stride, 8) + unsigned(bound, 8)
        case isa.ScatterParams(match=match_strides):
            return b"".join(signed(stride, 8) for stride in match_strides)
        case isa.WindowParams() as window:
            box = zip(window.lo, window.hi, window.step, strict=True)
            encoded = b"".join(signed(lo, 8) + signed(hi, 8) + unsigned(step, 8) for lo, hi, step in box)
            return encoded + (unsigned(window.fill, 8) if instruction.function == isa.WindowFunction.FILL else b"")
        case isa.IotaParams(offset=offset, strides=strides):
            return signed(offset, 8) + b"".join(signed(stride, 8) for stride in strides)
        case isa.RandomParams(stream=stream):
            return unsigned(stream, 4)
        case isa.ShuffleParams(n=n, stream=stream):
            return unsigned(n, 8) + unsigned(stream, 4)


def encode_instruction(instruction: Instruction) -> bytes:
    """The encoding of SPEC 4.1."""
    parts = [
        bytes((instruction.opcode, instruction.function, instruction.dtype)),
        bytes((len(instruction.shape), len(instruction.reduction), len(instruction.operands))),
        *(unsigned(dim, 8) for dim in instruction.index_space),
    ]
    for operand in instruction.operands:
        parts += [unsigned(operand.value, 4), signed(operand.offset, 8)]
        parts += [signed(stride, 8) for stride in operand.strides]
    params = _encode_params(instruction)
    return b"".join([*parts, unsigned(len(params), 2), params])


def _decode_params(opcode: Opcode, function: int, rank: int, reader: Reader) -> isa.Params:
    match opcode, function:
        case Opcode.SOURCE, SourceKind.CONST:
            return isa.SourceConst(bits=reader.unsigned(8))
        case (Opcode.SOURCE, SourceKind.STATE | SourceKind.DATA | SourceKind.LATE) | (Opcode.COMMIT, _):
            return Slot(slot=reader.unsigned(4), name=decode_name(reader))
        case Opcode.GATHER, _:
            return isa.GatherParams(index_stride=reader.signed(8), bound=reader.unsigned(8))
        case Opcode.SCATTER_SUM, _:
            return isa.ScatterParams(match=tuple(reader.signed(8) for _ in range(rank)))
        case Opcode.WINDOW, _:
            box = [(reader.signed(8), reader.signed(8), reader.unsigned(8)) for _ in range(rank)]
            fill = reader.unsigned(8) if function == isa.WindowFunction.FILL else 0
            return isa.WindowParams(
                lo=tuple(b[0] for b in box), hi=tuple(b[1] for b in box), step=tuple(b[2] for b in box), fill=fill
            )
        case Opcode.IOTA, _:
            return isa.IotaParams(offset=reader.signed(8), strides=tuple(reader.signed(8) for _ in range(rank)))
        case Opcode.RANDOM, _:
            return isa.RandomParams(stream=reader.unsigned(4))
        case Opcode.SHUFFLE, _:
            return isa.ShuffleParams(n=reader.unsigned(8), stream=reader.unsigned(4))
    return None


@cache
def _layout(space: int, operands: int) -> Struct:
    """Dims, operands, and the length of the parameters."""
    return Struct(f">{space}Q" + f"Iq{space}q" * operands + "H")


def decode_instruction(data: bytes) -> Instruction:
    """Decode what `encode_instruction` can produce. Raises `EncodingError` for anything else."""
    if len(data) > isa.MAX_INSTRUCTION_BYTES:
        raise EncodingError(f"expected an instruction of at most {isa.MAX_INSTRUCTION_BYTES} bytes, got {len(data)}")
    reader = Reader(data)
    raw_opcode, function, raw_dtype, rank, reduction_rank, operand_count = reader.take(6)
    try:
        opcode, dtype = Opcode(raw_opcode), DType(raw_dtype)
        function = _FUNCTIONS[opcode](function) if opcode in _FUNCTIONS else function
    except ValueError as error:
        raise EncodingError(f"expected a known opcode, function and dtype, got {tuple(data[:3])}") from error
    if rank > isa.MAX_RANK or reduction_rank > isa.MAX_RANK or operand_count > isa.MAX_OPERANDS:
        raise EncodingError(
            f"expected ranks <= {isa.MAX_RANK} and <= {isa.MAX_OPERANDS} operands, got {tuple(data[3:6])}"
        )
    space = rank + reduction_rank
    layout = _layout(space, operand_count)
    fields = layout.unpack(reader.take(layout.size))
    shape, reduction = fields[:rank], fields[rank:space]
    operands = tuple(
        Access(fields[at], fields[at + 1], fields[at + 2 : at + 2 + space])
        for at in range(space, len(fields) - 1, space + 2)
    )
    if fields[-1] != reader.remaining:
        raise EncodingError(f"expected {fields[-1]} bytes of parameters, got {reader.remaining}")
    params = _decode_params(opcode, function, rank, reader)
    reader.finish()
    return Instruction(
        opcode=opcode,
        function=function,
        dtype=dtype,
        shape=shape,
        reduction=reduction,
        operands=operands,
        params=params,
    )


def instruction_digest(encoded: bytes) -> Digest:
    """The leaf of an encoded instruction in the program tree."""
    return tagged_hash(Tag.INSTRUCTION, encoded)


@dataclass(frozen=True)
class Program:
    """B body instructions and S commits. Value i is the result of body instruction i."""

    body: Sequence[Instruction]
    commits: Sequence[Instruction]

    @cached_property
    def half_depth(self) -> int:
        """Depth of each half of the program tree and of the value tree; D in the SPEC."""
        return max(depth_of(len(self.body)), depth_of(len(self.commits)))

    @cached_property
    def heights(self) -> tuple[int, int]:
        """The depths of the tallest tree of a value's chunks and of the tallest tree of a sum's partial sums."""
        chunks = max(-(-value.numel * value.dtype.size // CHUNK_BYTES) for value in self.body)
        leaves = max((-(-value.terms // isa.TERMS_PER_LEAF) for value in self.body if value.is_reduction), default=1)
        return depth_of(chunks), depth_of(leaves)

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        """The encodings of the body instructions, then of the commits."""
        return tuple(encode_instruction(instruction) for instruction in (*self.body, *self.commits))

    @cached_property
    def tree(self) -> Tree:
        """The program tree, of depth D + 1."""
        leaves = [instruction_digest(encoded) for encoded in self.encoded]
        count = len(self.body)
        return half_and_half(leaves[:count], leaves[count:], self.half_depth)

    @property
    def root(self) -> Digest:
        """The root of the program tree."""
        return self.tree.root

    def leaf_of_commit(self, slot: int) -> int:
        """Position of commit `slot` in the program tree, and of state leaf `slot` in the value tree."""
        return (1 << self.half_depth) + slot

    def instruction_at(self, leaf: int) -> Instruction:
        half = 1 << self.half_depth
        return self.body[leaf] if leaf < half else self.commits[leaf - half]

    def encoded_at(self, leaf: int) -> bytes:
        """The encoding of the instruction at a leaf of the program tree."""
        half = 1 << self.half_depth
        return self.encoded[leaf if leaf < half else len(self.body) + leaf - half]

    def operand_dtypes(self, instruction: Instruction) -> tuple[DType, ...]:
        """The dtypes of the values that an instruction reads."""
        return tuple(self.body[operand.value].dtype for operand in instruction.operands)

    @cached_property
    def data_slots(self) -> tuple[Instruction, ...]:
        """The `source` data instructions, in slot order."""
        return self._in_slots(SourceKind.DATA)

    @cached_property
    def late_slots(self) -> tuple[Instruction, ...]:
        """The `source` late instructions, in slot order."""
        return self._in_slots(SourceKind.LATE)

    def _in_slots(self, kind: SourceKind) -> tuple[Instruction, ...]:
        found = [self.body[index] for index in self.sources(kind)]
        return tuple(sorted(found, key=lambda i: i.params.slot if isinstance(i.params, Slot) else -1))

    def sources(self, kind: SourceKind) -> list[int]:
        """The indices of the `source` instructions of a kind."""
        return [n for n, i in enumerate(self.body) if i.opcode == Opcode.SOURCE and i.function == kind]

    def state_spec(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The dtype and shape of every state entry by name, in slot order."""
        return {_slot(i).name: (i.dtype, i.shape) for i in self.commits}

    @cached_property
    def frozen(self) -> frozenset[str]:
        """The names of the state entries that every step commits as it read them, and under no other name."""
        read = {n: _slot(self.body[n]).name for n in self.sources(SourceKind.STATE)}
        committed = Counter(i.operands[0].value for i in self.commits)
        once = (i for i in self.commits if committed[i.operands[0].value] == 1)
        return frozenset(_slot(i).name for i in once if read.get(i.operands[0].value) == _slot(i).name)

    def data_spec(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The dtype and shape of every data entry by name, in slot order."""
        return {_slot(i).name: (i.dtype, i.shape) for i in self.data_slots}

    def late_spec(self) -> dict[str, tuple[DType, tuple[int, ...]]]:
        """The dtype and shape of every tensor of late data by name, in slot order."""
        return {_slot(i).name: (i.dtype, i.shape) for i in self.late_slots}

    def encode(self) -> bytes:
        """The program file."""
        parts = [MAGIC, unsigned(len(self.body), 4), unsigned(len(self.commits), 4)]
        for encoded in self.encoded:
            parts += [unsigned(len(encoded), 4), encoded]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, limits: ProgramLimits | None = None) -> "Program":
        """Read and validate an untrusted program file. Raises `EncodingError` or `ProgramError`."""
        reader = Reader(data)
        if (magic := reader.take(len(MAGIC))) != MAGIC:
            raise EncodingError(f"expected a program file that starts with {MAGIC!r}, got {magic!r}")
        counts = reader.unsigned(4), reader.unsigned(4)
        if not all(1 <= count <= isa.MAX_INSTRUCTIONS for count in counts):
            raise EncodingError(f"expected 1 to {isa.MAX_INSTRUCTIONS} instructions, got {counts}")
        found = [_read(reader, index) for index in range(sum(counts))]
        reader.finish()
        program = cls(tuple(found[: counts[0]]), tuple(found[counts[0] :]))
        program.validate(limits)
        return program

    def validate(self, limits: ProgramLimits | None = None) -> None:
        """Raise `ProgramError` unless every rule of the module's plan holds."""
        _Validator(self, limits or ProgramLimits()).run()


def _read(reader: Reader, index: int) -> Instruction:
    """The next instruction of a program file. Raises `EncodingError`; a length out of range is refused unread."""
    length = reader.unsigned(4)
    if not _MIN_BYTES <= length <= isa.MAX_INSTRUCTION_BYTES:
        limit = f"{_MIN_BYTES} to {isa.MAX_INSTRUCTION_BYTES}"
        raise EncodingError(f"instruction {index}: expected {limit} bytes, got {length}")
    encoded = reader.take(length)
    try:
        return decode_instruction(encoded)
    except EncodingError as error:
        raise EncodingError(f"instruction {index}: {error}") from error


def decode_alone(data: bytes) -> Instruction:
    """Decode an instruction shown without its program, and check its own form and that its dtype fits its opcode.

    Raises `EncodingError` or `ProgramError`. This is for games over programs that this side never validated: computing
    such an instruction may give nonsense, but always gives a result.
    """
    instruction = decode_instruction(data)
    validator = _Validator(Program((), ()), ProgramLimits())
    validator.own_form(instruction)
    validator.own_types(instruction)
    return instruction


def half_and_half(left: Sequence[bytes], right: Sequence[bytes], half_depth: int) -> Tree:
    """The tree of depth `half_depth + 1` with the leaves `left` in its left half and `right` in its right half."""
    return Tree([*left, *([EMPTY] * ((1 << half_depth) - len(left))), *right], half_depth + 1)


def _slot(instruction: Instruction) -> Slot:
    if not isinstance(instruction.params, Slot):
        raise ProgramError(None, f"expected an instruction with a slot, got {instruction.opcode.name}")
    return instruction.params


_PARAMS: dict[Opcode, tuple[type | None, ...]] = {
    Opcode.SOURCE: (isa.SourceConst, None, Slot, Slot, Slot),
    Opcode.MAP: (None,),
    Opcode.REDUCE: (None,),
    Opcode.GATHER: (isa.GatherParams,),
    Opcode.SCATTER_SUM: (isa.ScatterParams,),
    Opcode.WINDOW: (isa.WindowParams,),
    Opcode.IOTA: (isa.IotaParams,),
    Opcode.RANDOM: (isa.RandomParams,),
    Opcode.SHUFFLE: (isa.ShuffleParams,),
    Opcode.COMMIT: (Slot,),
}


class _Validator:
    """Validates a program in one pass. `self._at` is the current instruction, for error messages."""

    def __init__(self, program: Program, limits: ProgramLimits) -> None:
        self._program = program
        self._limits = limits
        self._at: int | None = None

    def run(self) -> None:
        self._counts()
        limits, streams, elements, terms = self._limits, set[int](), 0, 0
        for index, instruction in enumerate((*self._program.body, *self._program.commits)):
            self._at = index
            is_commit = index >= len(self._program.body)
            fits = (instruction.opcode == Opcode.COMMIT) == is_commit
            self._require(fits, "commits follow the body and nothing else does")  # (2)
            self.own_form(instruction)
            self._operands(instruction)
            self._types(instruction)
            self._bounds(instruction)
            if isinstance(instruction.params, isa.RandomParams | isa.ShuffleParams):  # (7)
                self._require(instruction.params.stream not in streams, "each random stream is used once")
                streams.add(instruction.params.stream)
            numel, elements = instruction.numel, elements + instruction.numel  # (8)
            terms += prod(instruction.index_space)
            self._require(numel <= limits.value_elements, f"limit of {limits.value_elements} elements a value")
            self._require(elements <= limits.total_elements, f"limit of {limits.total_elements} elements")
            self._require(terms <= limits.total_terms, f"limit of {limits.total_terms} terms in all")
        self._at = None
        self._slots()

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            raise ProgramError(self._at, rule)

    def _counts(self) -> None:  # (1)
        program = self._program
        for count, what in ((len(program.body), "body"), (len(program.commits), "commit")):
            self._require(
                1 <= count <= isa.MAX_INSTRUCTIONS, f"expected 1 to {isa.MAX_INSTRUCTIONS} {what} instructions"
            )
        loss = program.body[-1]
        self._require(loss.dtype == DType.F32 and loss.shape == (), "the last body instruction is an f32 of rank 0")

    def own_form(self, i: Instruction) -> None:  # (2)
        """Check what can be checked for an instruction without its program."""
        self._require(
            len(i.shape) <= isa.MAX_RANK and len(i.reduction) <= isa.MAX_RANK, f"ranks are at most {isa.MAX_RANK}"
        )
        self._require(all(dim >= 1 for dim in i.index_space), "dims are at least 1")
        self._require(i.numel <= isa.MAX_NUMEL and i.terms <= isa.MAX_TERMS, "at most 2^40 elements and 2^32 terms")
        self._require(i.is_reduction or not i.reduction, "only reduce and scatter_sum have reduction dims")
        self._require(i.opcode in _FUNCTIONS or i.function == 0, f"{i.opcode.name} has no function {i.function}")
        self._require(len(i.operands) in isa.operand_counts(i.opcode), f"{len(i.operands)} operands do not fit")
        kinds = _PARAMS[i.opcode]
        expected = kinds[i.function] if i.opcode == Opcode.SOURCE else kinds[0]
        self._require(
            i.params is None if expected is None else type(i.params) is expected, "parameters do not fit the opcode"
        )
        self._require(len(encode_instruction(i)) <= isa.MAX_INSTRUCTION_BYTES, "encoding is at most 4096 bytes")
        self._params(i)

    def _params(self, i: Instruction) -> None:  # (2)
        match i.params:
            case isa.SourceConst(bits=bits):
                self._require(i.shape == (), "a constant has rank 0")
                self._const(bits, i.dtype)
            case isa.ScatterParams(match=match_strides):
                self._scatter(i, match_strides)
            case isa.WindowParams() as w:
                ranges = zip(w.lo, w.hi, w.step, i.shape, strict=True)
                self._require(
                    all(0 <= lo < hi <= dim and 1 <= step <= 1 << 32 for lo, hi, step, dim in ranges),
                    "a window's box lies inside the output: 0 <= lo < hi <= dim, 1 <= step <= 2^32",
                )
                self._const(w.fill, i.dtype)
            case isa.GatherParams(bound=bound):
                self._require(1 <= bound <= isa.MAX_NUMEL, "a gather's bound is 1 to 2^40")
            case isa.ShuffleParams(n=n):
                self._require(1 <= n <= isa.MAX_NUMEL, "a shuffle's n is 1 to 2^40")
            case None if i.opcode == Opcode.SOURCE:
                self._require(i.shape == () and i.dtype == DType.I64, "the step number is an i64 of rank 0")

    def _const(self, bits: int, dtype: DType) -> None:
        width = {DType.F32: 32, DType.I64: 64, DType.BOOL: 1}[dtype]
        self._require(bits >> width == 0, f"constant bits exceed {dtype.name}")
        if dtype == DType.F32:
            is_nan = bits & 0x7F800000 == 0x7F800000 and bits & 0x7FFFFF != 0
            self._require(not is_nan or bits == 0x7FC00000, "a NaN constant is 0x7fc00000")

    def _scatter(self, i: Instruction, match_strides: tuple[int, ...]) -> None:
        matched = [d for d, stride in enumerate(match_strides) if stride != 0]
        self._require(bool(matched), "a scatter matches at least one output dim")
        expected = isa.row_major(tuple(i.shape[d] for d in matched))
        self._require(tuple(match_strides[d] for d in matched) == expected, "match strides are row-major")
        for operand in i.operands:
            if len(operand.strides) == len(i.index_space):  # a wrong length is reported by (3)
                self._require(all(operand.strides[d] == 0 for d in matched), "scatter operands ignore matched dims")

    def _operands(self, i: Instruction) -> None:  # (3)
        limit = len(self._program.body) if i.opcode == Opcode.COMMIT else self._at
        for operand in i.operands:
            self._require(limit is not None and 0 <= operand.value < limit, "operands name earlier body values")
            self._require(len(operand.strides) == len(i.index_space), "one stride for each coordinate")

    def _types(self, i: Instruction) -> None:  # (4)
        types = self._program.operand_dtypes(i)
        accepted = isa.signatures(i)
        fits = accepted is None or (types, i.dtype) in accepted
        self._require(fits, f"{i.opcode.name} {i.function} does not take {[t.name for t in types]} to {i.dtype.name}")

    def own_types(self, i: Instruction) -> None:  # (4)
        """Check that the dtype fits the opcode for at least one choice of operand dtypes."""
        accepted = isa.signatures(i)
        fits = accepted is None or any(len(t) == len(i.operands) and d == i.dtype for t, d in accepted)
        self._require(fits, f"{i.opcode.name} {i.function} does not make {i.dtype.name} of {len(i.operands)} operands")

    def _bounds(self, i: Instruction) -> None:  # (5)
        for number, operand in enumerate(i.operands):
            dims = i.index_space
            if isinstance(i.params, isa.WindowParams) and number == 0:
                dims = i.params.extents
            low, high = operand.extent(dims)
            if isinstance(i.params, isa.GatherParams) and number == 0:
                reach = i.params.index_stride * (i.params.bound - 1)
                low, high = low + min(0, reach), high + max(0, reach)
            size = self._program.body[operand.value].numel
            self._require(
                low >= 0 and high < size, f"operand {number} reads elements {low} to {high} of a tensor of {size}"
            )
        scalars = {Opcode.RANDOM: (0, 1), Opcode.SHUFFLE: (1,)}.get(i.opcode, ())
        for number in scalars:
            self._require(not any(i.operands[number].strides), f"operand {number} is read with all strides 0")

    def _slots(self) -> None:  # (6)
        program = self._program
        for slot, commit in enumerate(program.commits):
            self._at = len(program.body) + slot
            self._require(_slot(commit).slot == slot, f"commit {slot} has slot {slot}")
            taken, source = commit.operands[0], program.body[commit.operands[0].value]
            is_whole = taken.offset == 0 and taken.strides == isa.row_major(commit.shape)
            self._require(is_whole and source.shape == commit.shape, "a commit takes a value whole")
        self._at = None
        self._name_order("commits are", [_slot(commit).name.encode() for commit in program.commits])
        for kind in (SourceKind.STATE, SourceKind.DATA, SourceKind.LATE):
            seen: set[int] = set()
            for index in program.sources(kind):
                self._source(index, seen)
        for what, slots in (("data", program.data_slots), ("late data", program.late_slots)):
            named = [_slot(i) for i in slots]
            self._require(
                [s.slot for s in named] == list(range(len(named))), f"{what} slots are 0, 1, ..., each sourced once"
            )
            self._name_order(f"{what} is", [s.name.encode() for s in named])
        both = program.data_spec().keys() & program.late_spec().keys()
        self._require(not both, "data and late data have other names")

    def _source(self, index: int, seen: set[int]) -> None:
        """A source of state, data or late data; `seen` has the slots of those of its kind before it."""
        i, commits = self._program.body[index], self._program.commits
        self._at, slot = index, _slot(i)
        self._require(slot.slot not in seen, f"slot {slot.slot} is sourced once")
        seen.add(slot.slot)
        if i.function == SourceKind.STATE:
            self._require(slot.slot < len(commits), f"state slot {slot.slot} is committed")
            commit = commits[slot.slot]
            same = (slot.name, i.dtype, i.shape) == (_slot(commit).name, commit.dtype, commit.shape)
            self._require(same, f"state slot {slot.slot} is sourced as it is committed")
        self._at = None

    def _name_order(self, what: str, names: list[bytes]) -> None:
        self._require(all(a < b for a, b in pairwise(names)), f"{what} in name order")
