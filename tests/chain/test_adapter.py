"""The adapter itself: agreement with the contracts' ABI, and every way in which a chain can disappoint."""

import copy
import json
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from web3.exceptions import BlockNotFound, ContractLogicError, MethodUnavailable

from tests.chain.support import JOB, RUN, STRANGER
from tests.protocol.records import any_record
from tiebreak.protocol.chain import (
    Chain,
    ChainError,
    ContractMismatch,
    EmbeddedChain,
    InsufficientFunds,
    NodeError,
    Reverted,
    artifacts,
)
from tiebreak.protocol.chain.artifacts import BOARD, load_artifact
from tiebreak.protocol.chain.calls import Call, move_call, read_move
from tiebreak.protocol.chain.gas import MOST
from tiebreak.protocol.chain.node import Node
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import MOVES, Move
from tiebreak.protocol.tags import Digest

GAME = Digest(b"\x0a" * 32)


# ---------------------------------------------------------------- moves as calls


def survives(move: Move) -> bool:
    witness = getattr(move, "witness", None)
    return witness is None or (any(witness.tensor_id) and any(getattr(witness, "state_root", b"\1")))


moves = st.one_of(*map(any_record, MOVES.values())).filter(survives)
STATE = game.start(JOB, Head(job_id=JOB.id, count=1, run_root=RUN), GAME, 0)


@settings(max_examples=150, deadline=None)
@given(moves)
def test_a_move_survives_its_calldata(move: Move) -> None:
    call = move_call(STATE, move)
    found = Call.decode(call.data)
    assert found == call
    assert (call.values["gameId"], call.game_id) == (GAME, GAME)
    assert read_move(found) == found.move == move


def test_a_call_that_no_function_takes_halts(chain: EmbeddedChain) -> None:
    with pytest.raises(Reverted) as error:
        chain.node.call(chain.deployment.board, b"\xde\xad\xbe\xef")
    assert error.value.name == "Halted"


class FakeEth:
    """A node whose newest block has number 7 and time 100; `seen` lists what it executed, and on which block."""

    chain_id = 1

    def __init__(self, pending: dict[str, Any] | None, *, simulates: bool, refusing: Collection[str] = ()) -> None:
        self.pending, self.simulates, self.refusing, self.seen = pending, simulates, refusing, list[Any]()

    def call(self, tx: object, block: str) -> bytes:
        self.seen.append(block)
        if block in self.refusing:
            raise ContractLogicError("refused", data="0x82b42900")
        return b""

    def get_block(self, block: str) -> dict[str, Any]:
        if block == "latest":
            return {"number": 7, "timestamp": 100, "hash": bytes(32)}
        if self.pending is None:
            raise BlockNotFound("pending")
        return self.pending

    def simulate_v1(self, payload: dict[str, Any], block: str) -> list[Any]:
        if not self.simulates:
            raise MethodUnavailable("eth_simulateV1 is not known here")
        (state,) = payload["blockStateCalls"]
        (tx,) = state["calls"]
        self.seen.append((block, state["blockOverrides"], tx["gas"]))
        refused = {"status": 0, "error": {"code": -32015, "message": "out of gas"}}
        return [{"calls": [refused if tx["gas"] == 125 else {"status": 1}]}]

    def try_out(self) -> int:
        return Node(SimpleNamespace(eth=self)).try_out(STRANGER.address, STRANGER.address, b"", 0, 125)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waiting", "refusing", "tried"),
    [
        ([], {"pending"}, ["pending", "refused"]),
        ([b"a decoy"], {"pending"}, ["pending", "latest", "sent"]),
        ([b"something"], {"pending", "latest"}, ["pending", "latest", "refused"]),
        ([b"something"], set(), ["pending", "sent"]),
        (None, {"pending"}, ["pending", "latest", "sent"]),
    ],
)
def test_mempool_decoy_blocks_nobody_without_block_overrides(
    waiting: list[bytes] | None, refusing: set[str], tried: list[str]
) -> None:
    """A pending state that refuses is believed only if nothing waits there; a node need not show what does."""
    pending = None if waiting is None else {"transactions": waiting, "timestamp": 112, "number": 8}
    eth = FakeEth(pending, simulates=False, refusing=refusing)
    try:
        assert eth.try_out() == 125
        eth.seen.append("sent")
    except Reverted:
        eth.seen.append("refused")
    assert eth.seen == tried


@pytest.mark.parametrize(
    ("pending", "number", "time"), [(None, 8, 101), (100, 7, 101), (100, 8, 100), (112, 8, 112), (99, 7, 101)]
)
def test_dry_run_uses_the_time_of_the_next_block(pending: int | None, number: int, time: int) -> None:
    """It is tried on the newest block alone, and gets more than the measured gas only where that runs out."""
    eth = FakeEth(None if pending is None else {"timestamp": pending, "number": number}, simulates=True)
    assert eth.try_out() == MOST
    assert eth.seen == [("latest", {"time": time}, 125), ("latest", {"time": time}, MOST)]


def test_call_too_large_for_a_message_is_not_a_move() -> None:
    large = Call("openChunk", (GAME, bytes(513), bytes(32), ()))
    with pytest.raises(EncodingError, match=r"OpenChunk\.chunk: expected at most 512 bytes, got 513"):
        read_move(large)
    assert Call.decode(large.data).move is None
    with pytest.raises(ChainError, match="expected a function of the contracts"):
        Call.decode(b"abcd")


def test_connecting_to_an_unreachable_node_raises_a_node_error() -> None:
    with pytest.raises(NodeError, match="is it running"):
        Chain.connect("http://127.0.0.1:9")


def test_reading_the_chain_needs_a_known_board(chain: EmbeddedChain) -> None:
    fresh = Chain(chain.node)
    with pytest.raises(StateError, match="deploy"):
        fresh.job_state(RUN)


def test_attaching_to_an_address_without_code_is_refused(chain: EmbeddedChain) -> None:
    with pytest.raises(ContractMismatch, match="without code"):
        Chain(chain.node).attach(STRANGER.address)


def test_attaching_to_another_contract_is_refused(chain: EmbeddedChain) -> None:
    with pytest.raises(ContractMismatch, match="Board"):
        Chain(chain.node).attach(chain.deployment.referee)


def test_a_board_of_another_version_is_refused(chain: EmbeddedChain) -> None:
    """One byte of the deployed code differs: creation code that returns the board's code, changed at its end."""
    code = chain.node.code(chain.deployment.board)
    code = code[:-1] + bytes([code[-1] ^ 1])
    # PUSH2 length, DUP1, PUSH1 offset, PUSH0, CODECOPY, PUSH0, RETURN
    creation = b"\x61" + len(code).to_bytes(2, "big") + b"\x80\x60\x0a\x5f\x39\x5f\xf3" + code
    board = chain._create(STRANGER, BOARD, creation).address
    assert chain.node.code(board) == code
    with pytest.raises(ContractMismatch, match="another contract or version"):
        Chain(chain.node).attach(board)


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


def test_data_fee_is_read_from_the_rollup_oracle(chain: EmbeddedChain, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract at a fixed address says it; here one takes a wei a byte, and another knows no such fee."""
    assert chain.node.data_fee(9000) == 0
    # As above; the code loads its argument, stores it, and returns what is in memory.
    at = chain._create(STRANGER, BOARD, bytes.fromhex("60098060095f395ff36004355f52595ff300")).address
    for oracle, fee in ((at, 9000), (chain.deployment.board, 0)):
        monkeypatch.setattr("tiebreak.protocol.chain.node.ORACLE", oracle)
        assert Node(chain.node.web3).data_fee(9000) == fee


# ---------------------------------------------------------------- errors


ERRORS: list[ChainError] = [
    Reverted("WindowClosed", {"end": 7, "current": 8, "root": b"\1\2"}),
    InsufficientFunds(b"\3" * 20, 8, 7),
    ContractMismatch("Board", b"\4" * 20, "another contract"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_copied_chain_errors_keep_message_and_fields(error: ChainError) -> None:
    copies = (type(error)(*error.args), copy.copy(error))
    assert [str(other) for other in copies] == [str(error)] * 2
    assert [vars(other) for other in copies] == [vars(error)] * 2
    assert str(error).startswith(
        ("the contract refused: WindowClosed(end=7, ", "account 0x0303", "expected the contra")
    )
