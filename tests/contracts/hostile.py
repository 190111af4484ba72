"""What a hostile party makes of an honest dispute: something changed, foreign operands, forged accumulators."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.contracts.disputes import F32, KINDS, Dispute, Target, at_leaf, dispute_of
from tests.contracts.roundings import any_rounding, edge_sum, no_rounding, unpacked
from tests.contracts.slotted import SOURCES, slotted
from tiebreak.protocol.commitments.records import tensor_id
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.game.moves import ChunkOpening, Prove, StateWitness, TensorOpening, TensorWitness
from tiebreak.protocol.program.accumulator import Kind, decode, encode, finish, kind_of
from tiebreak.protocol.program.isa import DType, Instruction, Opcode, ReduceFunction
from tiebreak.protocol.program.program import decode_alone, decode_instruction, encode_instruction, instruction_digest
from tiebreak.protocol.program.reference import to_raw
from tiebreak.protocol.program.rounding import sum_kind
from tiebreak.protocol.tags import Tag, tagged_hash


def flipped(rng: random.Random, data: bytes) -> bytes:
    """One bit changed; a byte if there was none."""
    if not data:
        return b"\x00"
    k = rng.randrange(len(data))
    return data[:k] + bytes([data[k] ^ 1 << rng.randrange(8)]) + data[k + 1 :]


def changed_list(rng: random.Random, items: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not items:
        return items
    k = rng.randrange(len(items))
    return rng.choice(
        (
            (*items[:k], change(items[k]), *items[k + 1 :]),
            (*items[:k], change(items[k]), *items[k + 1 :]),
            items[:k] + items[k + 1 :],
            (*items, items[k]),
            (*items[k:], *items[:k]),
        )
    )


def changed_siblings(rng: random.Random, siblings: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return changed_list(rng, siblings, lambda s: flipped(rng, s)) or (bytes(32),)


def changed_tensor(rng: random.Random, t: TensorOpening) -> TensorOpening:
    dims = rng.choice(((), (0,), (*t.dims, 1), (t.dims[0] + 1,), (1 << 40, 2), (1,) * 8))
    return rng.choice(
        (
            lambda: replace(t, value=rng.choice((t.value ^ 1, 4, (1 << 32) - 1))),
            lambda: replace(t, dtype=rng.choice((0, 1, 2, 3, 255))),
            lambda: replace(t, dims=dims),
            lambda: replace(t, chunk_root=flipped(rng, t.chunk_root)),
            lambda: replace(t, siblings=changed_siblings(rng, t.siblings)),
        )
    )()


def changed_chunk(rng: random.Random, c: ChunkOpening) -> ChunkOpening:
    return rng.choice(
        (
            lambda: replace(c, tensor=rng.choice((c.tensor ^ 1, 7, 255))),
            lambda: replace(c, chunk_index=rng.choice((c.chunk_index + 1, (1 << 64) - 1))),
            lambda: replace(c, data=flipped(rng, c.data)),
            lambda: replace(c, data=rng.choice((c.data[:-1], c.data[:511] + b"\x00", b""))),
            lambda: replace(c, siblings=changed_siblings(rng, c.siblings)),
        )
    )()


def changed_witness(rng: random.Random, move: Prove) -> Prove:
    w = move.witness
    options: list[Callable[[], Any]] = [
        lambda: TensorWitness(tensor_id=bytes([1] * 32), siblings=()),
        lambda: TensorWitness(tensor_id=bytes(32), siblings=(bytes(32),)),
    ]
    if w is not None:
        options += [
            lambda: replace(w, tensor_id=flipped(rng, w.tensor_id)),
            lambda: replace(w, siblings=changed_siblings(rng, w.siblings)),
        ]
    if isinstance(w, StateWitness):
        options += [
            lambda: replace(w, step=w.step ^ 1),
            lambda: replace(w, state_root=flipped(rng, w.state_root)),
            lambda: replace(w, loss_bits=w.loss_bits ^ 1 << rng.randrange(32)),
            lambda: replace(w, log_root=flipped(rng, w.log_root)),
            lambda: replace(w, record_siblings=changed_siblings(rng, w.record_siblings)),
        ]
    return replace(move, witness=rng.choice(options)())


def changed(rng: random.Random, dispute: Dispute) -> Dispute:
    """One thing changed, anywhere in the proof, or the element or leaf that it is asked for."""
    move, c = dispute.move, dispute.context
    some = rng.randrange(1 << 16)
    changes: list[Callable[[], Dispute]] = [
        lambda: replace(dispute, move=replace(move, instruction=flipped(rng, move.instruction))),
        lambda: replace(dispute, move=replace(move, previous=flipped(rng, move.previous))),
        lambda: replace(dispute, move=replace(move, siblings=changed_siblings(rng, move.siblings))),
        lambda: replace(dispute, move=changed_witness(rng, move)),
        lambda: replace(dispute, context=replace(c, element=rng.choice((c.element + 1, some, (1 << 64) - 1)))),
        lambda: replace(dispute, context=replace(c, body_root=flipped(rng, c.body_root))),
    ]
    if c.target is Target.VALUE:
        changes.append(lambda: replace(dispute, context=replace(c, step_log=flipped(rng, c.step_log))))
        if not c.position >> c.depth:
            changes.append(lambda: replace(dispute, context=replace(c, position=c.position ^ 1)))
    if c.target is Target.TERMS:
        changes.append(lambda: replace(dispute, context=replace(c, terms_leaf=rng.choice((c.terms_leaf + 1, some)))))
        changes.append(lambda: replace(dispute, context=replace(c, accumulator_root=flipped(rng, c.accumulator_root))))
    if move.tensors:
        tensors: Callable[[], Any] = lambda: changed_list(rng, move.tensors, lambda t: changed_tensor(rng, t))  # noqa: E731
        chunks: Callable[[], Any] = lambda: changed_list(rng, move.chunks, lambda t: changed_chunk(rng, t))  # noqa: E731
        changes += [lambda: replace(dispute, move=replace(move, tensors=tensors()))] * 4
        changes += [lambda: replace(dispute, move=replace(move, chunks=chunks()))] * 4
    return rng.choice(changes)()


def changed_often(rng: random.Random, dispute: Dispute, count: int) -> Iterator[Dispute]:
    """Changes that can be sent at all: the moves' own limits (digests of 32 bytes, u32 ...) hold on both sides."""
    made = 0
    while made < count:
        try:
            other = changed(rng, dispute)
        except EncodingError:
            continue
        made += 1
        yield other


def foreign(rng: random.Random, kind: str) -> Dispute:
    """A defender's value tree may hold anything: other dtypes, sizes, NaN payloads, bools that are none."""
    instruction, tensors = KINDS[kind](rng)
    if tensors:
        k = rng.randrange(len(tensors))
        dtype = rng.choice((*DType, tensors[k][0], tensors[k][0]))
        count = rng.choice((1, tensors[k][1][0], tensors[k][1][0], 300))
        data = rng.randbytes(count * dtype.size)
        if rng.randrange(2) and dtype == F32:  # NaNs of all kinds
            data = ((b"\x01\x00\x80\x7f" + rng.randbytes(3) + b"\xff") * (count // 2 + 1))[: 4 * count]
        tensors[k] = (dtype, (count,), data)
    dispute = dispute_of(instruction, tensors, rng.randrange(instruction.numel), rounding=any_rounding(rng))
    if instruction.is_reduction and instruction.terms > 4:
        return at_leaf(dispute, [b""] * -(-instruction.terms // 4), 0)
    return dispute


def forged(rng: random.Random, honest: Dispute) -> Dispute:
    """The accumulator before may be any that the defender committed: huge sums, flags, NaN, other lengths."""
    instruction = decode_instruction(honest.move.instruction)
    if instruction.opcode not in (Opcode.REDUCE, Opcode.SCATTER_SUM) or instruction.terms <= 4:
        return honest
    leaves = -(-instruction.terms // 4)
    plain = replace(honest, move=replace(honest.move, previous=b"", siblings=()))
    return at_leaf(plain, [any_accumulator(rng, len(honest.move.previous))] * leaves, rng.randrange(1, leaves))


def misrounded(rng: random.Random, honest: Dispute) -> Dispute:
    """A sum that is to be rounded in a way that is none; it is refused where a sum is rounded at all."""
    return replace(honest, context=replace(honest.context, rounding=no_rounding(rng)))


def any_accumulator(rng: random.Random, likely: int) -> bytes:
    """Bytes of a length that some accumulator has, `likely` before all, canonical or not."""
    length = rng.choice((97, 97, 8, 4, 12, 16, likely, likely, likely))
    pattern = rng.randbytes(max(1, rng.randrange(length + 1))) if length else b""
    zeros = bytes(max(0, length - len(pattern)))
    return rng.choice(
        (
            rng.randbytes(length),
            b"\x00" + rng.randbytes(max(0, length - 1)),
            b"\xff" * length,
            (b"\x00" + zeros + pattern)[:length] or b"\x00",
            (b"\x01" + bytes(length))[:length],
            (b"\x01" + pattern + zeros)[:length] or b"\x01",
            (rng.choice((b"\x00\x7f", b"\x00\x80")) + rng.choice((b"\x00", b"\xff")) * length)[:length],
            (b"\x7f\xc0\x00\x00" + rng.randbytes(length))[:length],
        )
    )


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
    return head + b"".join(number.to_bytes(32, "big") for number in numbers)


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
    return (1).to_bytes(32, "big") + tagged_hash(Tag.ACCUMULATOR, encoded) + bits.to_bytes(32, "big")
