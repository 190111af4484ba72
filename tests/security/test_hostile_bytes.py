"""Bytes from a stranger end in a `VerificationError`, whatever they are: nothing else escapes, nothing runs on."""

from collections.abc import Callable
from functools import cache

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.programs import every_kind
from tests.protocol.runs import CLIENT, DOMAIN, TRAINER, make_job
from tiebreak.protocol.commitments.job import SignedHead, SignedJob
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.game.messages import Message, open_wire, seal
from tiebreak.protocol.game.moves import ChunkOpening, Descend, Move, Prove, StateWitness, TensorOpening
from tiebreak.protocol.game.snapshot import SignedStanding, Snapshot
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.program.program import Program, decode_alone, decode_instruction

DIGEST = bytes(32)


@cache
def samples() -> dict[str, tuple[Callable[[bytes], object], bytes]]:
    job = make_job()
    agreement = SignedJob(
        domain=DOMAIN,
        job=job,
        client_signature=CLIENT.sign(job.digest(DOMAIN)),
        trainer_signature=TRAINER.sign(job.digest(DOMAIN)),
    )
    proof = Prove(
        instruction=every_kind().encoded[5],
        previous=b"\0" * 97,
        siblings=(DIGEST,),
        tensors=(TensorOpening(value=1, dtype=0, dims=(3, 4), chunk_root=DIGEST, siblings=(DIGEST,)),),
        chunks=(ChunkOpening(tensor=0, chunk_index=0, data=b"abcd", siblings=(DIGEST,)),),
        witness=StateWitness(
            step=1,
            state_root=DIGEST,
            loss_bits=2,
            log_root=DIGEST,
            record_siblings=(DIGEST,),
            tensor_id=DIGEST,
            siblings=(),
        ),
    )
    moves: tuple[Move, ...] = (proof, Descend(nodes=(DIGEST, DIGEST)))
    messages = [
        Message(job_id=job.id, game_id=job.id, sequence=k, previous=job.id, move=move) for k, move in enumerate(moves)
    ]
    standing = SignedStanding(game_id=job.id, sequence=1, snapshot=job.id, signature=bytes(65))
    return {
        "job": (SignedJob.decode, agreement.encode()),
        "proof": (Message.decode, messages[0].encode()),
        "descend": (Message.decode, messages[1].encode()),
        "wire": (open_wire, seal(messages[1], DOMAIN, TRAINER, None)),
        "receipt": (SignedStanding.decode, standing.encode()),
        "snapshot": (Snapshot.decode, bytes([1]) + bytes(143)),
        "program": (Program.decode, every_kind().encode()),
        "instruction": (decode_alone, every_kind().encoded[7]),
    }


NAMES = ("job", "proof", "descend", "wire", "receipt", "snapshot", "program", "instruction")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6),
    st.one_of(st.none(), st.integers(0, 1 << 16)),
    st.binary(max_size=4),
)
def test_damaged_bytes_are_refused_or_mean_what_they_say(
    name: str, edits: list[tuple[int, int]], cut: int | None, tail: bytes
) -> None:
    decode, good = samples()[name]
    data = bytearray(good)
    for at, value in edits:
        data[at % len(data)] = value
    hostile = bytes(data[:cut] if cut is not None else data) + tail
    try:
        found = decode(hostile)
    except VerificationError:
        return
    if isinstance(found, SignedJob | Message | Program | SignedStanding | Snapshot):
        assert found.encode() == hostile  # one value, one encoding


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), st.binary(max_size=200))
def test_noise_is_refused(name: str, noise: bytes) -> None:
    with pytest.raises(VerificationError):
        samples()[name][0](noise)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 100_000 + b"\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\x91\x00\x00",
        b"\xc7\x00\xff",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xa2\xff\xfe",
        b"\xcb" + bytes(8),
        b"\xc0",
        b"\xff",
        b"\x80",
    ],
)
def test_msgpack_bombs_are_refused(bomb: bytes) -> None:
    with pytest.raises(EncodingError):
        unpack(bomb, 1 << 17)


def test_a_message_larger_than_the_limit_is_not_parsed() -> None:
    with pytest.raises(EncodingError, match="at most"):
        open_wire(msgpack.packb([b"x" * (1 << 17), bytes(65)], use_bin_type=True))


def test_a_head_of_zero_or_too_many_checkpoints_is_refused() -> None:
    for count in (0, 1 << 64):
        raw = msgpack.packb([1, DIGEST, count, DIGEST, bytes(65)], use_bin_type=True) if count < 1 << 64 else b"\xcf"
        with pytest.raises(VerificationError):
            SignedHead.decode(raw)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 60), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3))
def test_an_instruction_shown_alone_is_read_back_exactly_or_refused(number: int, edits: list[tuple[int, int]]) -> None:
    encoded = bytearray(every_kind().encoded[number % len(every_kind().encoded)])
    for at, value in edits:
        encoded[at % len(encoded)] = value
    try:
        decode_alone(bytes(encoded))
    except VerificationError:
        return
    assert decode_instruction(bytes(encoded)) is not None
