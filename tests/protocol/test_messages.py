"""Messages of a game: one encoding for each, and refusal of every other."""

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given

from tests.protocol.records import any_record
from tests.protocol.runs import CHALLENGER, DOMAIN
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game import moves
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES, Message, message_hash, open_wire, sign
from tiebreak.protocol.game.sides import choose
from tiebreak.protocol.strict_json import parse_json
from tiebreak.protocol.tags import Digest

messages = any_record(Message)
JOB_ID, GAME_ID = Digest(b"\1" * 32), Digest(b"\2" * 32)
VALUES = moves.OpenValues(state_root=bytes(32), loss_bits=0, log_root=bytes(32), nodes=(), siblings=())
FIRST = moves.Descend(nodes=(bytes(32), b"\3" * 32))
SECOND = choose(FIRST.nodes, 1)


@given(messages)
def test_message_round_trips_through_its_encoding(message: Message) -> None:
    encoded = message.encode()
    assert Message.decode(encoded) == message
    assert message.hash == message_hash(encoded)


def test_message_json_matches_the_contracts_spelling() -> None:
    move = {"kind": "select", "node": "0x" + "03" * 32, "index": 1, "siblings": ["0x" + "00" * 32]}
    item = message(SECOND, sequence=1 << 60).to_json()
    assert item["sequence"] == str(1 << 60)
    assert item["move"].items() >= move.items()
    assert parse_json(json.dumps(item).encode(), 8) == item


def message(move: moves.Move = FIRST, **changes: Any) -> Message:
    fields: dict[str, Any] = {"job_id": JOB_ID, "game_id": GAME_ID, "sequence": 0, "previous": GAME_ID, "move": move}
    return Message(**(fields | changes))


ENCODED = message().encode()
VALUE = msgpack.unpackb(ENCODED)


def with_field(number: int, value: Any) -> bytes:
    return bytes(msgpack.packb([*VALUE[:number], value, *VALUE[number + 1 :]]))


NOT_CANONICAL = {
    "long zero": ENCODED.replace(b"\xc4\x20" + GAME_ID + b"\x00", b"\xc4\x20" + GAME_ID + b"\xcc\x00", 1),
    "long array": b"\xdc\x00\x07" + ENCODED[1:],
    "long bin": ENCODED.replace(b"\xc4\x20", b"\xc5\x00\x20", 1),
    "version 2": with_field(0, 2),
    "negative": with_field(3, -1),
    "float": with_field(3, 0.0),
    "short digest": with_field(1, bytes(31)),
    "kind 11": with_field(5, 11),
    "a concession with words": with_field(5, 10),
    "another kind's body": with_field(5, 2),
    "map": with_field(6, {}),
    "extension": with_field(6, msgpack.ExtType(1, b"")),
    "too many nodes": with_field(6, [[bytes(32)] * 33]),
    "a proof without salt": bytes(msgpack.packb([*VALUE[:5], 9, [b"", b"", [], [], [], []]])),
    "six fields": bytes(msgpack.packb(VALUE[:6])),
    "eight fields": bytes(msgpack.packb([*VALUE, 0])),
    "deep": b"\x91" * 5000 + b"\x00",
    "large": bytes(msgpack.packb(bytes(MAX_MESSAGE_BYTES))),
    "claims a huge array": b"\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("what", NOT_CANONICAL)
def test_noncanonical_message_encodings_are_refused(what: str) -> None:
    assert NOT_CANONICAL[what] != ENCODED
    with pytest.raises(EncodingError):
        Message.decode(NOT_CANONICAL[what])


def test_moves_check_their_fields() -> None:
    makers: list[Any] = [
        lambda: moves.Descend(nodes=(bytes(31),)),
        lambda: moves.Descend(nodes=(bytes(32),) * 33),
        lambda: moves.Select(node=bytes(32), index=-1, siblings=()),
        lambda: moves.Select(node=bytes(31), index=0, siblings=()),
        lambda: moves.OpenChunk(chunk=bytes(513)),
        lambda: moves.OpenSteps(nodes=(), siblings=(), loss_bits=1 << 32),
        lambda: moves.OpenSteps(nodes=(), siblings=(bytes(32),) * 65),
        lambda: moves.OpenTensor(instruction=bytes(4097), siblings=(), nodes=()),
        lambda: moves.OpenTerms(step=1, value=0, element=0, nodes=(), accumulator=bytes(98), siblings=()),
        lambda: moves.Prove(
            instruction=b"", chunks=(moves.ChunkOpening(tensor=0, chunk_index=0, data=b"", siblings=()),) * 33
        ),
        lambda: moves.TensorOpening(value=0, dtype=0, dims=(1,) * 9, chunk_root=bytes(32), siblings=()),
    ]
    for make in makers:
        with pytest.raises(EncodingError):
            make()


def test_under_policy_exact_the_logs_fields_are_zero_and_empty() -> None:
    """They are so by default, so that code without logs says nothing of them; all fields travel all the same."""
    steps = moves.OpenSteps(nodes=(), siblings=())
    assert steps.pack() == ((), (), bytes(32), 0, bytes(32))
    assert VALUES.pack() == (bytes(32), 0, bytes(32), (), (), bytes(32), ())
    assert moves.OpenChunk(chunk=b"x").pack() == (b"x", bytes(32), ())
    for kind, short in ((3, [[], []]), (4, [bytes(32), 0, bytes(32), [], []]), (6, [b"x"])):
        with pytest.raises(EncodingError, match="expected an array of"):
            moves.unpack_move(kind, short)


def test_largest_proof_fits_the_message_size_limit() -> None:
    siblings = (bytes(32),) * 40
    tensor = moves.TensorOpening(value=0, dtype=0, dims=(1,) * 8, chunk_root=bytes(32), siblings=siblings)
    chunk = moves.ChunkOpening(tensor=0, chunk_index=0, data=bytes(512), siblings=siblings)
    proof = moves.Prove(
        instruction=bytes(4096), previous=bytes(97), siblings=siblings, tensors=(tensor,) * 8, chunks=(chunk,) * 8,
        salt=bytes(32),
    )  # fmt: skip
    wire = sign(message(proof), DOMAIN, CHALLENGER, None)
    assert len(wire) < MAX_MESSAGE_BYTES // 2
    assert Message.decode(open_wire(wire)[0]).move == proof
