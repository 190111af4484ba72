"""The adapter itself: agreement with the contracts' ABI, and every way in which a chain can disappoint."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.chain import (
    Chain,
    ChainError,
    ContractMismatch,
    EmbeddedChain,
    EndReason,
    GameRecord,
    JobRecord,
    JobStatus,
    NodeError,
    Outcome,
    Reverted,
    artifacts,
)
from protocol.chain.abi import Interface, abi_type, selector_of
from protocol.chain.artifacts import BOARD, REFEREE, decode_revert, load_artifact
from protocol.chain.calls import move_call, read_move
from protocol.eip712 import JOB_TYPE, Address
from protocol.errors import ConfigurationError, StateError
from protocol.game import Level
from protocol.game import Reason as GameReason
from protocol.moves import (
    ChunkOpening,
    Descend,
    Move,
    OpenChunk,
    OpenSteps,
    OpenTensor,
    OpenTerms,
    OpenValues,
    Phase,
    Prove,
    Select,
    SelectElement,
    StateWitness,
    TensorOpening,
    TensorWitness,
)
from tests.chain.support import RUN, STRANGER

INTERFACES = Path(__file__).resolve().parents[2] / "contracts" / "src" / "interfaces"
SNAKE = re.compile(r"(?<!^)(?=[A-Z])")


def outputs(function: str) -> list[dict[str, Any]]:
    (entry,) = [e for e in load_artifact(BOARD).abi if e["type"] == "function" and e["name"] == function]
    found: list[dict[str, Any]] = entry["outputs"][0]["components"]
    return found


@pytest.mark.parametrize(("kind", "function"), [(JobRecord, "job"), (GameRecord, "game")])
def test_records_have_the_contracts_fields_in_order(kind: type, function: str) -> None:
    contract = [SNAKE.sub("_", field["name"]).lower() for field in outputs(function)]
    assert [field.name for field in fields(kind)] == contract


def test_jobs_are_encoded_in_the_order_of_the_signed_type() -> None:
    (entry,) = [e for e in load_artifact(BOARD).abi if e["type"] == "function" and e["name"] == "createJob"]
    struct = entry["inputs"][0]["components"]
    assert tuple((field["type"], field["name"]) for field in struct) == JOB_TYPE.fields


def solidity_enum(file: str, name: str) -> dict[str, int]:
    """Members of an enum in the interface's source, comments removed."""
    source = re.sub(r"//[^\n]*", "", (INTERFACES / file).read_text("utf-8"))
    found = re.search(rf"enum {name} \{{(.*?)\}}", source, re.DOTALL)
    assert found is not None
    return {member.strip(): index for index, member in enumerate(found[1].split(","))}


def test_enums_are_those_of_the_interfaces() -> None:
    def members(kind: Any) -> dict[str, int]:
        return {member.name: member.value for member in kind}

    assert members(JobStatus) == solidity_enum("IJobBoard.sol", "JobStatus")
    assert members(Level) == solidity_enum("IGame.sol", "Level")
    assert members(Outcome) == solidity_enum("IGame.sol", "Verdict")
    assert members(EndReason) == solidity_enum("IGame.sol", "Reason")
    assert members(GameReason).items() <= members(EndReason).items()
    assert {"NONE": 0, **members(Phase)} == solidity_enum("IGame.sol", "Phase")


# ---------------------------------------------------------------- moves as calls

digest = st.binary(min_size=32, max_size=32)
digests = st.lists(digest, max_size=4).map(tuple)
u8, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 32, 64))
data = st.binary(max_size=97)
# A witness is told from another by what is not zero; digests of things are never zero.
some_digest = digest.filter(any)
witnesses = st.one_of(
    st.none(),
    st.builds(TensorWitness, tensor_id=some_digest, siblings=digests),
    st.builds(
        StateWitness,
        step=u64,
        state_root=some_digest,
        loss_bits=u32,
        log_root=digest,
        record_siblings=digests,
        tensor_id=some_digest,
        siblings=digests,
    ),
)
tensors = st.builds(
    TensorOpening,
    value=u32,
    dtype=u8,
    dims=st.lists(u64, max_size=8).map(tuple),
    chunk_root=digest,
    siblings=digests,
)
chunks = st.builds(ChunkOpening, tensor=u8, chunk=u64, data=data, siblings=digests)
moves = st.one_of(
    st.builds(Descend, nodes=digests),
    st.builds(Select, nodes=digests, index=u32),
    st.builds(OpenSteps, steps_root=digest, siblings=digests),
    st.builds(OpenValues, state_root=digest, loss_bits=u32, log_root=digest, body_root=digest, siblings=digests),
    st.builds(OpenTensor, instruction=data, siblings=digests, chunk_root=digest),
    st.builds(OpenChunk, chunk=data),
    st.builds(SelectElement, index=u32, chunk=data, instruction=data),
    st.builds(OpenTerms, accumulator_root=digest, accumulator=data, siblings=digests, instruction=data),
    st.builds(
        Prove,
        instruction=data,
        previous=data,
        siblings=digests,
        tensors=st.lists(tensors, max_size=3).map(tuple),
        chunks=st.lists(chunks, max_size=3).map(tuple),
        witness=witnesses,
    ),
)


@settings(max_examples=150, deadline=None)
@given(moves)
def test_a_move_survives_its_calldata(move: Move) -> None:
    interface = Interface(load_artifact(BOARD).abi)
    function, arguments = move_call(move)
    call = interface.read_call(interface.call(function, RUN, *arguments))
    assert call is not None
    name, values = call
    assert values["gameId"] == RUN
    assert read_move(name, values) == move


def test_other_calls_are_no_moves() -> None:
    with pytest.raises(ChainError, match="got a call of settle"):
        read_move("settle", {})
    interface = Interface(load_artifact(BOARD).abi)
    assert interface.read_call(b"\xde\xad\xbe\xef") is None
    assert interface.read_call(interface.call("settle", RUN)[:-1]) is None
    assert interface.read_log([], b"") is None
    assert interface.read_log([bytes(32)], b"") is None


# ---------------------------------------------------------------- errors


def test_every_custom_error_decodes_to_its_name_and_values(cases: Callable[..., None]) -> None:
    samples = {"bytes32": RUN, "address": "0x" + "11" * 20, "string": "field", "bytes": b"bytes", "bool": True}
    for name in (BOARD, REFEREE):
        for entry in load_artifact(name).abi:
            if entry["type"] != "error":
                continue
            types = [abi_type(field) for field in entry["inputs"]]
            values = [samples.get(kind, 3) for kind in types]
            error = decode_revert(selector_of(entry) + encode(types, values), "")
            assert error.name == entry["name"]
            assert list(error.values.values()) == values
            cases()


def test_reverts_without_a_known_error() -> None:
    assert decode_revert(b"", "out of gas").name == "Halted"
    assert decode_revert(b"\x01\x02\x03\x04", "").values == {"data": b"\x01\x02\x03\x04"}
    panic = bytes.fromhex("4e487b71") + encode(["uint256"], [0x11])
    assert (decode_revert(panic, "").name, decode_revert(panic, "").values) == ("Panic", {"code": 0x11})
    text = bytes.fromhex("08c379a0") + encode(["string"], ["why"])
    assert str(decode_revert(text, "")) == "the contract refused: Error(message=why)"
    assert decode_revert(panic[:10], "").name == "Unknown"


def test_a_call_that_no_function_takes_halts(chain: EmbeddedChain) -> None:
    with pytest.raises(Reverted) as error:
        chain._node.call(chain.deployment.board, b"\xde\xad\xbe\xef")
    assert error.value.name == "Halted"


def test_a_node_that_is_not_there() -> None:
    with pytest.raises(NodeError, match="is it running"):
        Chain.connect("http://127.0.0.1:9")


def test_nothing_is_called_before_a_board_is_known(chain: EmbeddedChain) -> None:
    fresh = Chain(chain._node)
    with pytest.raises(StateError, match="deploy"):
        fresh.job_state(RUN)


def test_an_account_is_no_board(chain: EmbeddedChain) -> None:
    with pytest.raises(ContractMismatch, match="without code"):
        Chain(chain._node).attach(STRANGER.address)


def test_another_contract_is_no_board(chain: EmbeddedChain) -> None:
    with pytest.raises(ContractMismatch, match="Tiebreak"):
        Chain(chain._node).attach(chain.deployment.referee)


def test_a_board_of_another_version_is_refused(chain: EmbeddedChain) -> None:
    """One byte of the deployed code differs: creation code that returns the board's code, changed at its end."""
    code = chain._node.code(chain.deployment.board)
    code = code[:-1] + bytes([code[-1] ^ 1])
    # PUSH2 length, DUP1, PUSH1 offset, PUSH0, CODECOPY, PUSH0, RETURN
    creation = b"\x61" + len(code).to_bytes(2, "big") + b"\x80\x60\x0a\x5f\x39\x5f\xf3" + code
    board = Address(chain._create(STRANGER, creation))
    assert chain._node.code(board) == code
    with pytest.raises(ContractMismatch, match="another contract or version"):
        Chain(chain._node).attach(board)


def test_a_missing_or_broken_artifact_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACTS", tmp_path)
    with pytest.raises(ConfigurationError, match=r"Missing\.json"):
        load_artifact("Missing")
    for content in ("{", "[]", json.dumps({"abi": []}), json.dumps({"abi": [], "bytecode": "0xzz"})):
        (tmp_path / "Broken.json").write_text(content, "utf-8")
        with pytest.raises(ConfigurationError, match="restore the file"):
            load_artifact("Broken")


def test_time_does_not_run_backward(chain: EmbeddedChain) -> None:
    with pytest.raises(ValueError, match="expected a time after"):
        chain.travel_to(chain.now())
    start = chain.now()
    chain.advance(1)
    chain.fund(STRANGER.address, 1)
    assert chain.now() == start + 1
    chain.advance(500)
    chain.fund(STRANGER.address, 1)
    assert chain.now() == start + 501
