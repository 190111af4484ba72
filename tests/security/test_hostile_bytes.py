"""Bytes from a stranger end in a `VerificationError`, whatever they are: nothing else escapes, nothing runs on."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.programs import every_kind
from tests.protocol.records import any_record
from tests.protocol.runs import CLIENT, DOMAIN, TRAINER, make_job
from tests.protocol.walks import HONEST
from tests.vectors.posts import signed_posts
from tiebreak.protocol.commitments.job import SignedHead, SignedJob
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.game.messages import Message, open_wire
from tiebreak.protocol.game.snapshot import SignedStanding, Snapshot
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.parties.posts import SignedPost
from tiebreak.protocol.program.program import Program, decode_alone, decode_instruction, encode_instruction

JOB = make_job()
AGREEMENT = SignedJob(domain=DOMAIN, job=JOB, client_signature=JOB.sign(DOMAIN, CLIENT),
                      trainer_signature=JOB.sign(DOMAIN, TRAINER))  # fmt: skip
INSTRUCTIONS = st.sampled_from(every_kind().encoded)
DECODERS: dict[type, Callable[[Any], Any]] = {
    SignedJob: lambda data: verified(SignedJob.decode(data)),
    SignedHead: lambda data: verified(SignedHead.decode(data), JOB, DOMAIN),
    SignedPost: lambda data: verified(SignedPost.decode(data), DOMAIN),
    Message: Message.decode,
    SignedStanding: SignedStanding.decode,
    Snapshot: Snapshot.decode,
    Program: Program.decode,
}
"""Decoders, with the check of the signature where there is one."""
SAMPLES: dict[type, st.SearchStrategy[bytes]] = {
    SignedJob: st.just(AGREEMENT.encode()),
    SignedHead: st.integers(1, JOB.checkpoints).map(lambda count: HONEST.head(count).encode()),
    SignedPost: st.sampled_from(signed_posts()).map(lambda post: post[0].encode()),
    Message: any_record(Message).map(Message.encode),
    SignedStanding: any_record(SignedStanding).map(SignedStanding.encode),
    Snapshot: any_record(Snapshot).map(Snapshot.encode),
    Program: st.just(every_kind().encode()),
}


def verified(found: Any, *rest: Any) -> Any:
    found.verify(*rest)
    return found


edits = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6)


def damaged(good: bytes, changes: list[tuple[int, int]], cut: int | None, tail: bytes) -> bytes:
    data = bytearray(good)
    for at, value in changes:
        data[at % len(data)] = value
    return bytes(data[:cut]) + tail


@settings(max_examples=60)
@pytest.mark.parametrize("kind", SAMPLES)
@given(st.data(), edits, st.one_of(st.none(), st.integers(0, 1 << 12)), st.binary(max_size=4))
def test_damaged_bytes_are_refused_or_reencode_identically(
    kind: type, data: st.DataObject, changes: list[tuple[int, int]], cut: int | None, tail: bytes
) -> None:
    good = data.draw(SAMPLES[kind])
    assert DECODERS[kind](good).encode() == good
    hostile = damaged(good, changes, cut, tail)
    try:
        found = DECODERS[kind](hostile)
    except VerificationError:
        return
    assert found.encode() == hostile  # one value, one encoding
    assert hostile == good or kind not in (SignedJob, SignedHead), "the signature is of another value"


@pytest.mark.parametrize("decode", [*DECODERS.values(), open_wire, decode_instruction, decode_alone])
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_by_every_decoder(decode: Callable[[bytes], Any], noise: bytes) -> None:
    with suppress(EncodingError):
        assert pack(unpack(noise, 200)) == noise
    with pytest.raises(VerificationError):
        decode(noise)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 100_000 + b"\x00", b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
        b"\x81\x91\x00\x00", b"\xc7\x00\xff", b"\xd6\xff\x00\x00\x00\x00", b"\xa2\xff\xfe", b"\xcb" + bytes(8),
        b"\xc0", b"\xff", b"\x80",
    ],
)  # fmt: skip
def test_msgpack_bombs_are_refused(bomb: bytes) -> None:
    with pytest.raises(EncodingError):
        unpack(bomb, 1 << 17)


def test_a_message_larger_than_the_limit_is_not_parsed() -> None:
    with pytest.raises(EncodingError, match="at most"):
        open_wire(msgpack.packb([b"x" * (1 << 17), bytes(65)], use_bin_type=True))


@settings(max_examples=100)
@given(INSTRUCTIONS, edits)
def test_an_instruction_shown_alone_is_read_back_exactly_or_refused(
    good: bytes, changes: list[tuple[int, int]]
) -> None:
    hostile = damaged(good, changes, None, b"")
    try:
        decode_alone(hostile)
    except VerificationError:
        return
    assert encode_instruction(decode_instruction(hostile)) == hostile
