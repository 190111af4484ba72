"""Headers and the receipts under them, against the blocks of two EVMs, and nodes that lie."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from eth_hash.auto import keccak

from tests.chain.support import CLIENT, ETHER, new_chain, numbered, offer
from tiebreak.protocol.chain import Chain, NodeError
from tiebreak.protocol.chain.devnet import dev_secrets
from tiebreak.protocol.chain.headers import Header, header_in, logs_under
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey


@dataclass(frozen=True)
class Logging:
    chain: Chain
    first: int

    @property
    def headers(self) -> list[Header]:
        node = self.chain.node
        blocks = [node.block(number) for number in range(self.first, node.newest().number + 1)]
        return [block.header for block in blocks if block is not None and block.header is not None]


@pytest.fixture(scope="module", params=["embedded", "anvil"])
def logging(request: pytest.FixtureRequest) -> Logging:
    if request.param == "embedded":
        chain: Chain = new_chain()
        return with_logs(chain, 1)
    chain = Chain.connect(request.getfixturevalue("anvil").url)
    params: Any = ["0x" + CLIENT.address.hex(), hex(1000 * ETHER)]
    chain.node.web3.provider.make_request("anvil_setBalance", params)  # type: ignore[arg-type]
    first = chain.node.newest().number + 1
    chain.deploy(PrivateKey.from_int(dev_secrets(1)[0]))
    return with_logs(chain, first)


def with_logs(chain: Chain, first: int) -> Logging:
    job = numbered(4)
    offer(chain, job)
    return Logging(chain, first)


def addresses(chain: Chain) -> tuple[Address, Address]:
    return chain.deployment.board, chain.deployment.games


def test_block_headers_hash_correctly_and_link_to_parents(logging: Logging) -> None:
    found = logging.headers
    assert len(found) == logging.chain.node.newest().number - logging.first + 1
    for before, after in pairwise(found):
        assert after.parent == before.hash


def test_altered_block_header_is_rejected(logging: Logging) -> None:
    block = dict(logging.chain.node.web3.eth.get_block("latest"))
    assert header_in(block) is not None
    for name in ("logsBloom", "receiptsRoot", "timestamp", "parentHash", "baseFeePerGas", "hash"):
        old = block[name]
        new = old + 1 if isinstance(old, int) else bytes(reversed(bytes(old).rjust(32, b"\1")))
        assert header_in({**block, name: new}) is None, name
    assert header_in({**block, "requestsHash": None, "withdrawalsRoot": None}) is None
    assert header_in({}) is None


def test_logs_proved_from_receipts_equal_the_nodes_logs(logging: Logging) -> None:
    chain, full = logging.chain, 0
    for header in logging.headers:
        given = chain.logs(header.number, header.number)
        proven = chain.node.logs_under(header, addresses(chain)) if header.may_log(addresses(chain)) else []
        assert [(bytes(log["transactionHash"]), bytes(log["data"]), log["topics"]) for log in proven] == [
            (bytes(log["transactionHash"]), bytes(log["data"]), [bytes(t) for t in log["topics"]]) for log in given
        ]
        assert [chain.event_in(log) for log in proven] == [chain.event_in(log) for log in given]
        full += bool(given)
    assert full == 1
    assert not logging.headers[-1].may_log([Address(keccak(b"somebody else")[12:])])


def test_receipts_that_were_changed_are_refused(logging: Logging) -> None:
    chain, header = logging.chain, logging.headers[-1]
    (digest,) = chain.node.web3.eth.get_block(header.number)["transactions"]
    receipt: Any = dict(chain.node.web3.eth.get_transaction_receipt(digest))  # type: ignore[arg-type]
    assert logs_under(header, [receipt], addresses(chain))
    log = dict(receipt["logs"][0])
    for lie in (
        [],
        [receipt, receipt],
        [{**receipt, "logs": receipt["logs"][1:]}],
        [{**receipt, "logs": [{**log, "data": bytes(log["data"]) + b"\0"}, *receipt["logs"][1:]]}],
        [{**receipt, "status": 1 - receipt["status"]}],
        [{**receipt, "cumulativeGasUsed": receipt["cumulativeGasUsed"] + 1}],
    ):
        with pytest.raises(NodeError, match=f"expected the receipts of block {header.number} under its header"):
            logs_under(header, lie, addresses(chain))
