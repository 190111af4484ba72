"""Messages: one encoding each, and a chain that nothing foreign gets into."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.runs import CHALLENGER, DOMAIN
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES, Message, message_hash, open_wire, seal
from tiebreak.protocol.game.moves import (
    ChunkOpening,
    Concede,
    Descend,
    Move,
    OpenChunk,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Prove,
    Select,
    SelectElement,
    StateWitness,
    TensorOpening,
    TensorWitness,
    unpack_move,
)
from tiebreak.protocol.game.sides import choose
from tiebreak.protocol.packing import OneOf, pack, read_json, unpack
from tiebreak.protocol.strict_json import parse_json
from tiebreak.protocol.tags import Digest

digests = st.binary(min_size=32, max_size=32)
lists = st.lists(digests, max_size=5).map(tuple)
u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
instructions = st.binary(max_size=100)
tensors = st.builds(
    TensorOpening,
    value=u32,
    dtype=u8,
    dims=st.lists(u64, max_size=8).map(tuple),
    chunk_root=digests,
    siblings=lists,
)
chunks = st.builds(ChunkOpening, tensor=u8, chunk_index=u64, data=st.binary(max_size=512), siblings=lists)
witnesses = st.one_of(
    st.none(),
    st.builds(TensorWitness, tensor_id=digests, siblings=lists),
    st.builds(
        StateWitness,
        step=u64,
        state_root=digests,
        loss_bits=u32,
        log_root=digests,
        record_siblings=lists,
        tensor_id=digests,
        siblings=lists,
    ),
)
moves: st.SearchStrategy[Move] = st.one_of(
    st.builds(Descend, nodes=lists),
    st.builds(Select, node=digests, index=u32, siblings=lists, seal=digests),
    st.builds(OpenSteps, nodes=lists, siblings=lists, state_root=digests, loss_bits=u32, log_root=digests),
    st.builds(
        OpenValues,
        state_root=digests,
        loss_bits=u32,
        log_root=digests,
        nodes=lists,
        siblings=lists,
        step_log=digests,
        log_siblings=lists,
    ),
    st.builds(OpenTensor, instruction=instructions, siblings=lists, nodes=lists),
    st.builds(OpenChunk, chunk=st.binary(max_size=512), word=digests, siblings=lists),
    st.builds(SelectElement, index=u32, chunk=st.binary(max_size=512), seal=digests),
    st.builds(
        OpenTerms, step=u64, value=u32, element=u64, nodes=lists, accumulator=st.binary(max_size=97), siblings=lists
    ),
    st.builds(Concede),
    st.builds(
        Prove,
        instruction=instructions,
        previous=st.binary(max_size=97),
        siblings=lists,
        tensors=st.lists(tensors, max_size=3).map(tuple),
        chunks=st.lists(chunks, max_size=3).map(tuple),
        witness=witnesses,
        salt=digests,
    ),
)
messages = st.builds(
    Message,
    job_id=digests.map(Digest),
    game_id=digests.map(Digest),
    sequence=u64,
    previous=digests.map(Digest),
    move=moves,
)
JOB_ID, GAME_ID = Digest(b"\1" * 32), Digest(b"\2" * 32)
VALUES = OpenValues(state_root=bytes(32), loss_bits=0, log_root=bytes(32), nodes=(), siblings=())
FIRST = Descend(nodes=(bytes(32), b"\3" * 32))
SECOND = choose(FIRST.nodes, 1)


@given(messages)
def test_a_message_comes_back(message: Message) -> None:
    encoded = message.encode()
    assert Message.decode(encoded) == message
    assert message.hash == message_hash(encoded)


MESSAGE = OneOf((Message,))


@given(messages)
def test_a_message_comes_back_from_json(message: Message) -> None:
    text = json.dumps(message.to_json())
    assert read_json(MESSAGE, "message", parse_json(text.encode(), 8)) == message


@settings(max_examples=150)
@given(messages, st.data())
def test_json_has_one_form_and_its_fields_alone(message: Message, data: st.DataObject) -> None:
    """Any change of a value, name or spelling is refused, or is the form of another message."""
    item = message.to_json()
    places = [(item, key) for key in item] + [(item["move"], key) for key in item["move"]]
    holder, key = data.draw(st.sampled_from(places))
    found = holder[key]
    changed = [None, True, 1.0, -1, "", "0X00", f"{found} ", f"0{found}", [found], {"a": found}, str(found).upper()]
    new = data.draw(st.sampled_from(["drop", "add", *changed]))
    if new == "drop":
        del holder[key]
    elif new == "add":
        holder["more"] = 1
    else:
        holder[key] = new
    with contextlib.suppress(EncodingError):
        other = read_json(MESSAGE, "message", item)
        assert json.dumps(other.to_json(), sort_keys=True) == json.dumps(item, sort_keys=True)
        assert (other == message) == (new == found and type(new) is type(found))


def test_json_is_spelled_as_in_the_contracts() -> None:
    move = {"kind": "select", "node": "0x" + "03" * 32, "index": 1, "siblings": ["0x" + "00" * 32]}
    item = message(SECOND, sequence=1 << 60).to_json()
    assert item["sequence"] == str(1 << 60)
    assert item["move"].items() >= move.items()
    for wrong in (
        {**item, "sequence": 1},
        {**item, "jobId": "0x" + "AB" * 32},
        {**item, "move": {"kind": "leap"}},
        [],
        7,
    ):
        with pytest.raises(EncodingError, match="message: expected the JSON form"):
            read_json(MESSAGE, "message", wrong)
    with pytest.raises(ValueError, match="a name appears twice"):
        parse_json(b'{"kind": "concede", "kind": "concede"}', 8)


@settings(max_examples=150)
@given(messages, st.data())
def test_changed_bytes_are_refused_or_another_message(message: Message, data: st.DataObject) -> None:
    """One encoding: whatever still decodes is a different message with exactly these bytes."""
    encoded = message.encode()
    at = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytearray(encoded)
    changed[at] = data.draw(st.integers(0, 255).filter(lambda b: b != encoded[at]))
    try:
        decoded = Message.decode(bytes(changed))
    except VerificationError:
        return
    assert decoded != message
    assert decoded.encode() == bytes(changed)


@given(st.binary(max_size=200))
def test_noise_is_refused_or_canonical(noise: bytes) -> None:
    with contextlib.suppress(EncodingError):
        assert pack(unpack(noise, 200)) == noise
    with pytest.raises(EncodingError):
        Message.decode(noise)


@given(messages)
def test_cut_and_lengthened_messages_are_refused(message: Message) -> None:
    encoded = message.encode()
    for damaged in (encoded[:-1], encoded[:1], encoded + b"\0", encoded + encoded, b""):
        with pytest.raises(EncodingError):
            Message.decode(damaged)


def message(move: Move = FIRST, **changes: Any) -> Message:
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
    "bool": with_field(3, False),
    "nil": with_field(3, None),
    "string": with_field(1, "1" * 32),
    "short digest": with_field(1, bytes(31)),
    "kind 0": with_field(5, 0),
    "kind 11": with_field(5, 11),
    "a concession with words": with_field(5, 10),
    "another kind's body": with_field(5, 2),
    "map": with_field(6, {}),
    "extension": with_field(6, msgpack.ExtType(1, b"")),
    "timestamp": with_field(6, msgpack.Timestamp(0)),
    "too many nodes": with_field(6, [[bytes(32)] * 33]),
    "a proof without salt": bytes(msgpack.packb([*VALUE[:5], 9, [b"", b"", [], [], [], []]])),
    "six fields": bytes(msgpack.packb(VALUE[:6])),
    "eight fields": bytes(msgpack.packb([*VALUE, 0])),
    "deep": b"\x91" * 5000 + b"\x00",
    "large": bytes(msgpack.packb(bytes(MAX_MESSAGE_BYTES))),
    "claims a huge array": b"\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("what", NOT_CANONICAL)
def test_other_encodings_are_refused(what: str) -> None:
    assert NOT_CANONICAL[what] != ENCODED
    with pytest.raises(EncodingError):
        Message.decode(NOT_CANONICAL[what])


def test_moves_check_their_fields() -> None:
    makers: list[Any] = [
        lambda: Descend(nodes=(bytes(31),)),
        lambda: Descend(nodes=(bytes(32),) * 33),
        lambda: Select(node=bytes(32), index=-1, siblings=()),
        lambda: Select(node=bytes(31), index=0, siblings=()),
        lambda: Select(node=bytes(32), index=0, siblings=(), seal=b""),
        lambda: SelectElement(index=0, chunk=b"", seal=bytes(33)),
        lambda: OpenChunk(chunk=bytes(513)),
        lambda: OpenChunk(chunk=b"", word=bytes(31)),
        lambda: OpenChunk(chunk=b"", siblings=(bytes(32),) * 65),
        lambda: OpenSteps(nodes=(), siblings=(), state_root=bytes(31)),
        lambda: OpenSteps(nodes=(), siblings=(), loss_bits=1 << 32),
        lambda: OpenSteps(nodes=(), siblings=(), log_root=b""),
        lambda: replace(VALUES, step_log=bytes(33)),
        lambda: replace(VALUES, log_siblings=(bytes(32),) * 65),
        lambda: replace(VALUES, log_siblings=(bytes(31),)),
        lambda: OpenTensor(instruction=bytes(4097), siblings=(), nodes=()),
        lambda: OpenSteps(nodes=(), siblings=(bytes(32),) * 65),
        lambda: OpenTerms(step=1, value=0, element=0, nodes=(bytes(32),) * 33, accumulator=b"", siblings=()),
        lambda: OpenTerms(step=1, value=0, element=0, nodes=(), accumulator=bytes(98), siblings=()),
        lambda: Prove(instruction=b"", salt=bytes(31)),
        lambda: Prove(instruction=b"", chunks=(ChunkOpening(tensor=0, chunk_index=0, data=b"", siblings=()),) * 33),
        lambda: TensorOpening(value=0, dtype=0, dims=(1,) * 9, chunk_root=bytes(32), siblings=()),
    ]
    for make in makers:
        with pytest.raises(EncodingError):
            make()


def test_under_policy_exact_the_logs_fields_are_zero_and_empty() -> None:
    """By default, so that who knows nothing of logs says nothing of them; all fields travel all the same."""
    steps = OpenSteps(nodes=(), siblings=())
    assert steps.pack() == ((), (), bytes(32), 0, bytes(32))
    assert VALUES.pack() == (bytes(32), 0, bytes(32), (), (), bytes(32), ())
    assert OpenChunk(chunk=b"x").pack() == (b"x", bytes(32), ())
    for kind, short in ((3, [[], []]), (4, [bytes(32), 0, bytes(32), [], []]), (6, [b"x"])):
        with pytest.raises(EncodingError, match="expected an array of"):
            unpack_move(kind, short)


def test_the_largest_proof_fits() -> None:
    siblings = (bytes(32),) * 40
    tensor = TensorOpening(value=0, dtype=0, dims=(1,) * 8, chunk_root=bytes(32), siblings=siblings)
    chunk = ChunkOpening(tensor=0, chunk_index=0, data=bytes(512), siblings=siblings)
    proof = Prove(
        instruction=bytes(4096), previous=bytes(97), siblings=siblings, tensors=(tensor,) * 8, chunks=(chunk,) * 8,
        salt=bytes(32),
    )  # fmt: skip
    wire = seal(message(proof), DOMAIN, CHALLENGER, None)
    assert len(wire) < MAX_MESSAGE_BYTES // 2
    assert Message.decode(open_wire(wire)[0]).move == proof
