"""Instructions as bytes, well-formed or nearly, and what `describe` and `finish` must say of them."""

import random

from tests.contracts.abi import word
from tests.contracts.disputes import KINDS
from tests.contracts.hostile import any_accumulator, flipped
from tests.contracts.roundings import any_rounding, edge_sum, no_rounding, unpacked
from tests.contracts.slotted import SOURCES, slotted
from tiebreak.protocol.commitments.records import tensor_id
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.program.accumulator import Kind, decode, encode, finish, kind_of
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, ReduceFunction
from tiebreak.protocol.program.program import decode_alone, encode_instruction, instruction_digest
from tiebreak.protocol.program.reference import to_raw
from tiebreak.protocol.program.rounding import sum_kind
from tiebreak.protocol.tags import Tag, tagged_hash

CODES = {
    Kind.F32_SUM: 1, Kind.I64_SUM: 2, Kind.F32_MAX: 3, Kind.I64_MAX: 4, Kind.F32_ARGMAX: 5, Kind.I64_ARGMAX: 5,
    Kind.BF16_SUM: 7,
}  # fmt: skip
"""What `Description.accumulator` says; an argmax does not say what it is of."""


def any_instruction(rng: random.Random) -> bytes:
    """An encoding of any kind, often with something changed."""
    kind = rng.choice((*KINDS, "commit", *SOURCES))
    made = encode_instruction(KINDS[kind](rng)[0]) if kind in KINDS else slotted(rng, kind).move.instruction
    for _ in range(rng.randrange(3)):
        head = bytearray(made.ljust(6, b"\x00"))
        head[rng.randrange(6)] = rng.randrange(12)
        made = rng.choice(
            (bytes(head), flipped(rng, made), flipped(rng, made), made[: rng.randrange(len(made))], made + b"\x00")
        )
        made = made or b"\x01"
    return bytes(4097) if rng.randrange(500) == 0 else made


def description(encoded: bytes, chunk_root: bytes) -> bytes | None:
    try:
        i = decode_alone(encoded)
    except VerificationError:
        return None
    size = i.numel * i.dtype.size
    leaves = -(-i.terms // 4) if i.terms > 4 else 0
    logged = sum_kind(i)
    numbers = (
        *(int(i.opcode), int(i.dtype), i.numel, size, -(-size // 512), leaves),
        *(code_of(i) if leaves else 0, 0 if logged is None else 1 + logged),
    )
    head = instruction_digest(encoded) + tensor_id(i.dtype, i.shape, chunk_root)
    return head + b"".join(map(word, numbers))


def code_of(i: Instruction) -> int:
    argmax = i.opcode == Opcode.REDUCE and i.function == ReduceFunction.ARGMAX
    return CODES[kind_of(i, DType.F32 if argmax else i.dtype)]


def any_last(rng: random.Random) -> tuple[Kind, bytes]:
    """A kind and bytes that may be its last accumulator: canonical or not, sums of every size, next to ties."""
    sums = Kind.F32_SUM, Kind.BF16_SUM
    kind = rng.choice((*Kind, *sums, Kind.F32_SUM, Kind.F32_SUM))
    if kind not in sums or rng.randrange(4) == 0:
        length = kind.value[1]
        return kind, any_accumulator(rng, length)
    # As many significant bits as a precision keeps, one half, and a last unit more or less; anywhere from below the
    # least subnormal to above the greatest number.
    digits = rng.randrange(15, 26)
    half = (1 << digits - 1 | rng.getrandbits(digits)) * 2 + 1
    value = (half << rng.randrange(120, 430)) + rng.choice((0, 0, 1, -1))
    value = -value if rng.randrange(2) else value
    return kind, b"\x00" + value.to_bytes(96, "big", signed=True)


def any_finish(rng: random.Random) -> tuple[Kind, int, bytes]:
    """A kind, a packed rounding that may be none, and bytes that may be a last accumulator."""
    kind, encoded = any_last(rng)
    return kind, no_rounding(rng) if rng.randrange(20) == 0 else any_rounding(rng), encoded


def edge_finish(rng: random.Random) -> tuple[Kind, int, bytes]:
    """A sum at or next to an end of what a log decides; sometimes of a rounding that is none."""
    rounding = any_rounding(rng)
    encoded = b"\x00" + edge_sum(rng, rounding).to_bytes(96, "big", signed=True)
    return Kind.F32_SUM, no_rounding(rng) if rng.randrange(12) == 0 else rounding, encoded


def finished(kind: Kind, rounding: int, encoded: bytes) -> bytes | None:
    """What `finish` returns: canonical, leaf, bits; None if it refuses. The length tells what an argmax is of."""
    if kind in (Kind.F32_ARGMAX, Kind.I64_ARGMAX):
        kind = Kind.F32_ARGMAX if len(encoded) == 12 else Kind.I64_ARGMAX
    try:
        last = decode(kind, encoded)
    except EncodingError:
        return bytes(96)
    assert encode(last) == encoded
    dtype = DType.F32 if kind.is_f32_sum or kind is Kind.F32_MAX else DType.I64
    told = unpacked(rounding)
    if told is None and kind == Kind.F32_SUM:
        return None
    bits = to_raw(dtype, finish(last) if told is None else finish(last, told))
    return word(1) + tagged_hash(Tag.ACCUMULATOR, encoded) + word(bits)
