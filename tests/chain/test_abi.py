"""What Python declares against what the compiler wrote: a drift between Solidity and Python fails here."""

import re
import subprocess
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any, get_args

import pytest
from eth_abi.abi import encode
from eth_abi.exceptions import DecodingError
from eth_hash.auto import keccak

from tests.chain.support import CHALLENGER
from tests.source_tree import ROOT
from tests.vectors.posts import GAME, HEAD, JOB, transactions
from tiebreak.protocol.chain import Call, ChainError, GameRecord, JobRecord, JobStatus, Outcome, Reverted
from tiebreak.protocol.chain.abi import decode_revert, entries, read_log, snake_case
from tiebreak.protocol.chain.artifacts import CONTRACTS, load_artifact
from tiebreak.protocol.chain.calls import MOVE_KINDS, call_of, read_move
from tiebreak.protocol.commitments.eip712 import encode_type
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import MOVES, Concede, Move, Phase, Prove, StateWitness
from tiebreak.protocol.game.rules import Level, Reason
from tiebreak.protocol.packing import Data, FieldType, ListOf, OneOf, Raw, Record, Uint, camel_case
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, PublicGame, PublicJob

ENTRIES = [(contract, entry) for contract in CONTRACTS for entry in load_artifact(contract).abi]
Items = list[dict[str, Any]]


def declared(kind: str, name: str, contract: str | None = None) -> dict[str, Any]:
    (found,) = [e for w, e in ENTRIES if contract in (None, w) and (e["type"], e.get("name")) == (kind, name)]
    return found


def canonical(field: dict[str, Any]) -> str:
    """A type as selectors have it, written without the code under test."""
    if not field["type"].startswith("tuple"):
        return str(field["type"])
    return "(" + ",".join(map(canonical, field["components"])) + ")" + field["type"][5:]


# ---------------------------------------------------------------- functions, events, errors


def test_selectors_and_fields_match_the_compiled_abi(cases: Callable[..., None]) -> None:
    signatures: dict[tuple[str, str], str] = {}
    for _, entry in ENTRIES:
        if entry["type"] == "constructor":
            continue
        signature = f"{entry['name']}({','.join(map(canonical, entry['inputs']))})"
        assert signatures.setdefault((entry["type"], entry["name"]), signature) == signature, "two of one name"
        found = entries(entry["type"])[entry["name"]]
        assert found.topic == keccak(signature.encode())
        assert [field.name for field in found.inputs] == [field["name"] for field in entry["inputs"]]
        cases()
    assert len(signatures) > 100
    for kind in ("function", "error"):
        assert len({e.selector for e in entries(kind).values()}) == len(entries(kind))


SAMPLES: dict[str, Any] = {
    "bytes32": b"\1" * 32,
    "address": b"\2" * 20,
    "string": "field",
    "bytes": b"bytes",
    "bool": True,
}


def sample(kind: str) -> Any:
    return (b"\3" * 32, b"\4" * 32) if kind == "bytes32[]" else SAMPLES.get(kind, 3)


def test_every_custom_error_decodes_to_its_name_and_values(cases: Callable[..., None]) -> None:
    for _, entry in ENTRIES:
        if entry["type"] == "error":
            types = [field["type"] for field in entry["inputs"]]
            values = [sample(kind) for kind in types]
            selector = bytes(keccak(f"{entry['name']}({','.join(types)})".encode()))[:4]
            error = decode_revert(selector + encode(types, values), "")
            assert error.name == entry["name"]
            assert error.values == dict(zip((field["name"] for field in entry["inputs"]), values, strict=True))
            cases()


def test_every_event_is_read_with_its_name_and_values(cases: Callable[..., None]) -> None:
    for _, entry in ENTRIES:
        if entry["type"] == "event":
            fields = entry["inputs"]
            topics = [keccak(f"{entry['name']}({','.join(f['type'] for f in fields)})".encode())]
            topics += [encode([f["type"]], [sample(f["type"])]) for f in fields if f["indexed"]]
            plain = [f["type"] for f in fields if not f["indexed"]]
            data = encode(plain, [sample(kind) for kind in plain])
            assert read_log(topics, data) == (entry["name"], {f["name"]: sample(f["type"]) for f in fields})
            if data:
                with pytest.raises(DecodingError):
                    read_log(topics, data[:-1])
            cases()
    assert read_log([], b"") is None
    assert read_log([bytes(32)], b"") is None


def test_unknown_reverts_decode_to_generic_errors() -> None:
    assert decode_revert(b"", "out of gas").name == "Halted"
    assert decode_revert(b"\x01\x02\x03\x04", "").values == {"data": b"\x01\x02\x03\x04"}
    panic = bytes.fromhex("4e487b71") + encode(["uint256"], [0x11])
    assert (decode_revert(panic, "").name, decode_revert(panic, "").values) == ("Panic", {"code": 0x11})
    text = bytes.fromhex("08c379a0") + encode(["string"], ["why"])
    assert str(decode_revert(text, "")) == "the contract refused: Error(message=why)"
    assert decode_revert(panic[:10], "").name == "Unknown"


@pytest.mark.parametrize(("function", "record"), [("job", JobRecord), ("game", GameRecord)])
def test_contract_structs_have_the_declared_record_fields(function: str, record: type) -> None:
    (struct,) = entries("function")[function].outputs
    assert record.__annotations__.keys() <= {snake_case(member.name) for member in struct.members}


# ---------------------------------------------------------------- moves


def abi_type(kind: FieldType) -> str:
    """The type in calldata of a field that a message carries."""
    match kind:
        case Uint(bits=bits):
            return f"uint{bits}"
        case Raw(length=length):
            return f"bytes{length}"
        case Data():
            return "bytes"
        case ListOf(item=item):
            return f"{abi_type(item)}[]"
        case OneOf(types=types):  # the contract's witness has the fields of the longest
            return f"({','.join(map(abi_type, types[0].kinds().values()))})"
    raise TypeError(kind)


def compare(record: type[Record], fields: Items, cases: Callable[..., None]) -> None:
    """Names, order and types; and those of the records inside."""
    kinds = record.kinds()
    assert [camel_case(name) for name in kinds] == [field["name"] for field in fields], record
    for kind, field in zip(kinds.values(), fields, strict=True):
        wider = field["type"] == "uint256" and isinstance(kind, Uint)  # an index: the contract itself refuses more
        assert wider or abi_type(kind) == canonical(field), (record, field["name"])
        inner = kind.item if isinstance(kind, ListOf) else kind
        if isinstance(inner, OneOf):
            compare(inner.types[0], field["components"], cases)
        cases()


def test_moves_are_the_boards_functions_field_by_field(cases: Callable[..., None]) -> None:
    assert len(get_args(Move)) == len(MOVES) == len(MOVE_KINDS) == 10
    for function, kind in MOVE_KINDS.items():
        game_id, *fields = declared("function", function)["inputs"]
        assert (game_id["name"], game_id["type"]) == ("gameId", "bytes32")
        if MOVES[kind] is Prove:
            proof, salt, opened = fields
            assert (opened["name"], opened["type"]) == ("opened", "bytes32[]")
            fields = [*proof["components"], salt]
        compare(MOVES[kind], fields, cases)
    assert OneOf in map(type, Prove.kinds().values())
    assert StateWitness in Prove.kinds()["witness"].types  # type: ignore[attr-defined]


def test_calls_that_are_not_moves_are_refused() -> None:
    settle = Call("settle", (bytes(32),))
    with pytest.raises(ChainError, match="got a call of settle"):
        read_move(settle)
    assert Call.decode(settle.data) == settle
    with pytest.raises(DecodingError):
        Call.decode(settle.data[:-1])
    for data in (b"", b"\1\2\3", b"\1\2\3\4" + bytes(32)):
        with pytest.raises(ChainError, match="the selector 0x"):
            Call.decode(data)
    with pytest.raises(ChainError, match="no function"):
        read_move(Call("", raw=b"abc"))


# ---------------------------------------------------------------- jobs, heads, records, enums


@pytest.mark.parametrize(("record", "function"), [(Job, "hashJob"), (Head, "headDigest")], ids=["job", "head"])
def test_solidity_structs_match_the_signed_eip712_types(record: type[Record], function: str) -> None:
    (struct,) = declared("function", function)["inputs"]
    fields = ",".join(f"{field['type']} {field['name']}" for field in struct["components"])
    assert encode_type(record.__name__, record.kinds()) == f"{record.__name__}({fields})"


ENUMS = {"JobStatus": JobStatus, "Verdict": Outcome, "Reason": Reason}
PLAIN = {"address": bytes, "bytes32": bytes, "bool": bool}


@pytest.mark.parametrize("function", ["job", "game"])
def test_structs_are_read_with_all_their_members(function: str, cases: Callable[..., None]) -> None:
    (struct,) = declared("function", function)["outputs"]
    found = vars(Call(function, (bytes(32),)).result(bytes(32 * len(struct["components"]))))
    assert [camel_case(name) for name in found] == [field["name"] for field in struct["components"]]
    for value, field in zip(found.values(), struct["components"], strict=True):
        enum = ENUMS.get(field["internalType"].rpartition(".")[2], int)
        assert type(value) is (enum if field["type"].startswith("uint") else PLAIN[field["type"]]), field["name"]
        cases()


def members_in_solidity(interface: str, enum: str) -> dict[str, int]:
    source = (ROOT / "contracts" / "src" / "interfaces" / f"{interface}.sol").read_text("utf-8")
    source = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    (body,) = re.findall(rf"\benum {enum}\s*\{{(.*?)\}}", source, re.DOTALL)
    return {member.strip(): value for value, member in enumerate(body.split(","))}


def members(enum: type[IntEnum]) -> dict[str, int]:
    return {member.name: member.value for member in enum}


def test_enums_are_those_of_the_interfaces_and_of_the_rules() -> None:
    assert members(JobStatus) == members_in_solidity("IJobBoard", "JobStatus")
    assert members(Outcome) == members_in_solidity("IGame", "Verdict")
    assert members(Reason) == members_in_solidity("IGame", "Reason")
    assert members(Level) == members_in_solidity("IGame", "Level")
    assert {"NONE": 0, **members(Phase)} == members_in_solidity("IGame", "Phase")


def test_a_number_that_is_no_member_of_its_enum_is_refused() -> None:
    call, names = (
        Call("job", (bytes(32),)),
        [field["name"] for field in declared("function", "job")["outputs"][0]["components"]],
    )
    words = [bytes(32)] * len(names)
    assert call.result(b"".join(words)).status is JobStatus.NONE
    words[names.index("status")] = (8).to_bytes(32, "big")
    with pytest.raises(DecodingError, match="8 is not a valid JobStatus"):
        call.result(b"".join(words))


def test_snake_and_camel_case_names_convert_both_ways() -> None:
    for _, entry in ENTRIES:
        for field in entry.get("inputs", []):
            assert camel_case(snake_case(field["name"])) == field["name"]


def test_importing_the_chain_adapter_does_not_import_web3() -> None:
    code = (
        "import sys, tiebreak.protocol.chain as chain; chain.EmbeddedChain, chain.Call('settle', (bytes(32),)).data\n"
        "assert not {'web3', 'eth_tester', 'eth', 'eth_account', 'requests'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# ---------------------------------------------------------------- transactions as calls


ON_BOARD = {
    tx.AcceptJob(job_id=JOB.id): "WrongJobStatus",
    tx.Challenge(head=HEAD, nonce=0): "WrongJobStatus",
    tx.SealRoot(job_id=JOB.id, seat=0, seal=GAME): "WrongJobStatus",
    tx.MakeMove(game_id=GAME, sequence=0, move=Concede()): "NoSuchGame",
}


def board() -> Board:
    found, state = Board(), rules.start(JOB, HEAD.head, GAME, 0)
    found.jobs[JOB.id] = job = PublicJob(job=JOB, last_progress=0)
    found.begin(PublicGame(id=GAME, job=job, challenger=CHALLENGER.address, head=HEAD, state=state, started=0))
    return found


def test_every_transaction_encodes_to_one_contract_call() -> None:
    for wanted in transactions():
        call = call_of(wanted, board())
        assert (call.kind, call.heads) == (wanted.function, wanted.heads)
        assert Call.decode(call.data).data == call.data


@pytest.mark.parametrize("wanted", ON_BOARD, ids=lambda wanted: type(wanted).__name__)
def test_transaction_on_a_vanished_job_is_refused_like_the_contract(wanted: tx.Transaction) -> None:
    with pytest.raises(Reverted) as refused:
        call_of(wanted, Board())
    assert refused.value.name == ON_BOARD[wanted]


def test_calls_send_the_stakes_that_the_board_requires() -> None:
    assert call_of(tx.AcceptJob(job_id=JOB.id), board()) == Call("acceptJob", (JOB.id,), JOB.trainer_stake)
    one_is_open = 2 * JOB.challenger_stake
    assert call_of(tx.Challenge(head=HEAD, nonce=3, more=2), board()).value == 4 * one_is_open
    assert call_of(tx.JoinPool(bond=5), board()) == Call("joinPool", (0,), 5)
    assert call_of(tx.Withdraw(to=CHALLENGER.address), board()) == Call("withdraw", (CHALLENGER.address,))
