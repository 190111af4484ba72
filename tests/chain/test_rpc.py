"""The JSON-RPC server over the embedded EVM: what a client gets, and everything that is no request."""

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chain.support import PAUPER
from tests.waiting import until
from tiebreak.api.chain.chains import check as check_deployment
from tiebreak.api.chain.chains import document
from tiebreak.protocol.chain import Call, Chain, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.devnet import BALANCE, MNEMONIC, dev_secrets
from tiebreak.protocol.chain.embedded import new_tester
from tiebreak.protocol.chain.rpc import HOST, MAX_BODY_BYTES, RpcServer
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, VerificationError

KEYS = [PrivateKey.from_int(secret) for secret in dev_secrets(2)]


@pytest.fixture(scope="module")
def server() -> Iterator[RpcServer]:
    with RpcServer(new_tester(MNEMONIC, 2, BALANCE), 0) as server:
        yield server


def post(server: RpcServer, body: bytes, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(HOST, server.server_address[1], timeout=30)
    connection.request("POST", "/", body, headers)
    response = connection.getresponse()
    text = response.read()
    return response.status, json.loads(text) if text else None


def call(server: RpcServer, method: str, *params: object) -> Any:
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)}
    status, answer = post(server, json.dumps(request).encode())
    assert (status, answer["id"]) == (200, 7)
    return answer


def test_accounts_are_those_of_the_mnemonic_and_have_money(server: RpcServer) -> None:
    # The first account of this mnemonic in every wallet.
    assert KEYS[0].address.hex() == "f39fd6e51aad88f6f4ce6ab8827279cfffb92266"
    for key in KEYS:
        assert int(call(server, "eth_getBalance", "0x" + key.address.hex(), "latest")["result"], 16) == BALANCE


@pytest.mark.slow
def test_contracts_deploy_and_verify_through_the_rpc_server(server: RpcServer, tmp_path: Any) -> None:
    chain = Chain.connect(server.url)
    made: list[Any] = []
    with pytest.raises(InsufficientFunds) as poor:
        chain.deploy(PAUPER)
    assert poor.value.needed > 10**12
    deployment = chain.deploy(KEYS[0], made.append)
    assert [c.name for c in made] == list(deployment.named())
    assert Chain.connect(server.url).attach(deployment.board) == deployment
    with pytest.raises(Reverted) as refused:
        chain.send(KEYS[1], Call("settle", (bytes(32),)))
    assert refused.value.name == "WrongJobStatus"

    path = tmp_path / "deployment.json"
    content = document(chain, KEYS[0].address, made)
    path.write_text(json.dumps(content))
    check_deployment(chain, path)
    for change, error in (
        ({"chainId": 1}, ConfigurationError),
        ({"version": 2}, ConfigurationError),
        ({"contracts": {}}, ConfigurationError),
        ({"contracts": {**content["contracts"], "Board": content["contracts"]["Referee"]}}, Exception),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(error):
            check_deployment(chain, path)
    content["contracts"]["Referee"]["codeHash"] = "0x" + "11" * 32
    path.write_text(json.dumps(content))
    with pytest.raises(VerificationError, match="Referee: expected code of hash 0x1111"):
        check_deployment(chain, path)


@pytest.mark.slow
def test_blocks_follow_the_clock(server: RpcServer) -> None:
    chain = Chain.connect(server.url)
    chain.deploy(KEYS[0])
    assert abs(chain.now() - time.time()) < 60


@pytest.mark.slow
def test_rpc_server_mines_blocks_periodically() -> None:
    with RpcServer(new_tester(MNEMONIC, 2, BALANCE), 0) as server:
        server.mine_every(0.1)  # type: ignore[arg-type]
        chain = Chain.connect(server.url)
        first = int(call(server, "eth_blockNumber")["result"], 16)
        assert chain.deploy(KEYS[0]).board
        assert int(call(server, "eth_blockNumber")["result"], 16) >= first + 3


def test_mining_failure_is_reported_in_rpc_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    tester = new_tester(MNEMONIC, 1, BALANCE)
    with RpcServer(tester, 0) as server:
        server.mine_every(0.1)  # type: ignore[arg-type]
        server.check()
        assert int(call(server, "eth_blockNumber")["result"], 16) >= 0

        def fail() -> None:
            raise ValueError("no such state")

        monkeypatch.setattr(tester, "mine_block", fail)
        until(lambda: "error" in call(server, "eth_blockNumber"))
        answer = call(server, "eth_blockNumber")
        assert answer["error"]["message"] == "the chain makes no more blocks: ValueError('no such state')"
        with pytest.raises(NodeError, match="makes no more blocks"):
            server.check()


def test_reexecuted_block_keeps_its_prevrandao() -> None:
    """A final seal keeps it, and the tester executes the last block again for each transaction that comes."""
    tester = new_tester(MNEMONIC, 2, BALANCE)
    tester.disable_auto_mine_transactions()
    account, other = tester.get_accounts()
    # PREVRANDAO, to slot 0 of a new contract
    kept = {"from": account, "gas": 100_000, "data": "0x44600055", "value": 0}
    plain = {"from": other, "to": account, "gas": 21_000, "value": 1}
    tester.mine_block()
    tester.send_transaction(kept)
    tester.mine_block()
    for _ in range(2):
        sent = tester.send_transaction(plain)
        tester.mine_block()
        assert tester.get_transaction_receipt(sent)["status"] == 1


def test_rpc_answers_follow_the_ethereum_json_rpc_format(server: RpcServer) -> None:
    block = call(server, "eth_getBlockByNumber", "latest", False)["result"]
    assert int(block["number"], 16) >= 0
    assert len(block["logsBloom"]) == 2 + 512
    sent = {"from": "0x" + KEYS[0].address.hex(), "to": "0x" + KEYS[1].address.hex(), "value": "0x1", "gas": "0x5208"}
    receipt = call(server, "eth_getTransactionReceipt", call(server, "eth_sendTransaction", sent)["result"])["result"]
    assert (receipt["status"], receipt["logs"], len(receipt["logsBloom"])) == ("0x1", [], 2 + 512)
    refused = call(server, "eth_call", {"data": "0x600160005260206000fd"}, "latest")  # reverts with a word of 1
    data = "0x" + (1).to_bytes(32, "big").hex()
    assert refused["error"] == {"code": 3, "message": "execution reverted", "data": data}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 100_000, -32700),
        (b"null", -32600),
        (b"{}", -32600),
        (b'{"id": 1, "method": 5}', -32600),
        (b'{"id": 1, "method": "eth_nothing"}', -32601),
        (b'{"id": 1, "method": "testing_timeTravel", "params": [9]}', -32601),
        (b'{"id": 1, "method": "evm_mine"}', -32601),
        (b'[{"id": 1, "method": "eth_chainId"}]', -32600),
        (b'{"id": 1, "method": "eth_getBalance", "params": {}}', -32000),
        (b'{"id": 1, "method": "eth_getBalance", "params": []}', -32000),
        (b'{"id": 1, "method": "eth_call", "params": [5]}', -32000),
        (b'{"id": 1, "method": "eth_call", "params": []}', -32000),
        (b'{"id": 1, "method": "eth_sendRawTransaction", "params": ["0x00"]}', None),
    ],
)
def test_what_is_no_request_gets_an_error(server: RpcServer, body: bytes, code: int | None) -> None:
    status, answer = post(server, body)
    assert status == 200
    assert answer["error"]["code"] == code if code is not None else answer["error"]["code"] < 0
    assert call(server, "eth_chainId")["result"]  # and the server lives


def test_rpc_refuses_oversized_bodies_and_missing_lengths(server: RpcServer) -> None:
    assert post(server, b"", **{"Content-Length": str(MAX_BODY_BYTES + 1)})[0] == 413
    assert post(server, b"", **{"Content-Length": "-1"})[0] == 411
    assert post(server, b"", **{"Transfer-Encoding": "chunked"})[0] == 411
    assert post(server, b"{}", Host="evil.example")[0] == 403


def test_a_port_that_is_taken_is_named(server: RpcServer) -> None:
    with pytest.raises(NodeError, match="choose another --port"):
        RpcServer(new_tester(MNEMONIC, 1, BALANCE), server.server_address[1])
