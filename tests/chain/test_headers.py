"""Headers and the receipts under them, against another implementation, an EVM's blocks, and nodes that lie."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import rlp as other_rlp
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st
from trie import HexaryTrie

from tests.chain.support import CLIENT, ETHER, STRANGER, TRAINER, numbered
from tiebreak.protocol.chain import Chain, EmbeddedChain, NodeError, calls
from tiebreak.protocol.chain.devnet import MNEMONIC, dev_secrets, find_anvil, free_port, run_anvil
from tiebreak.protocol.chain.headers import Header, header_in, logs_under, rlp, tree_root
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey

ITEMS = st.recursive(st.binary(max_size=80), lambda inner: st.lists(inner, max_size=20), max_leaves=40)


@given(ITEMS)
def test_rlp_is_that_of_another_implementation(item: Any) -> None:
    assert rlp(item) == other_rlp.encode(item)


@given(st.dictionaries(st.binary(min_size=1, max_size=3), st.binary(min_size=1, max_size=60), max_size=60))
def test_a_tree_has_the_root_of_another_implementation(values: dict[bytes, bytes]) -> None:
    other = HexaryTrie({})
    for key, value in values.items():
        other[key] = value
    assert tree_root(values) == other.root_hash


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=300))
def test_a_list_of_receipts_has_the_root_of_another_implementation(values: list[bytes]) -> None:
    other = HexaryTrie({})
    pairs = {rlp(n.to_bytes((n.bit_length() + 7) // 8, "big")): value for n, value in enumerate(values)}
    for key, value in pairs.items():
        other[key] = value
    assert tree_root(pairs) == other.root_hash


@pytest.fixture(scope="module", params=["embedded", "anvil"])
def chain(request: pytest.FixtureRequest) -> Iterator[Chain]:
    """With a block that logs something."""
    if request.param == "embedded":
        embedded = EmbeddedChain()
        for key in (CLIENT, STRANGER):
            embedded.fund(key.address, 1000 * ETHER)
        embedded.deploy(STRANGER)
        yield with_logs(embedded)
        return
    binary = find_anvil()
    if binary is None:
        pytest.skip("needs anvil")
    with run_anvil(binary, port=free_port(), mnemonic=MNEMONIC, accounts=1) as node:
        found = Chain.connect(node.url)
        params: Any = ["0x" + CLIENT.address.hex(), hex(1000 * ETHER)]
        found.node.web3.provider.make_request("anvil_setBalance", params)  # type: ignore[arg-type]
        found.deploy(PrivateKey.from_int(dev_secrets(1)[0]))
        yield with_logs(found)


def with_logs(chain: Chain) -> Chain:
    job = numbered(4)
    chain.send(CLIENT, calls.create_job(job, TRAINER.sign(job.digest(chain.domain))))
    return chain


def addresses(chain: Chain) -> tuple[Address, Address]:
    return chain.deployment.board, chain.deployment.games


def headers(chain: Chain) -> list[Header]:
    blocks = [chain.node.block(number) for number in range(1, chain.node.newest().number + 1)]
    return [block.header for block in blocks if block is not None and block.header is not None]


def test_headers_hash_to_what_they_say_and_link(chain: Chain) -> None:
    found = headers(chain)
    assert len(found) == chain.node.newest().number
    for before, after in pairwise(found):
        assert after.parent == before.hash


def test_a_header_that_was_changed_is_none(chain: Chain) -> None:
    block = dict(chain.node.web3.eth.get_block("latest"))
    assert header_in(block) is not None
    for name in ("logsBloom", "receiptsRoot", "timestamp", "parentHash", "baseFeePerGas", "hash"):
        old = block[name]
        new = old + 1 if isinstance(old, int) else bytes(reversed(bytes(old).rjust(32, b"\1")))
        assert header_in({**block, name: new}) is None, name
    assert header_in({**block, "requestsHash": None, "withdrawalsRoot": None}) is None
    assert header_in({}) is None


def test_the_logs_of_a_block_are_all_there_and_no_others(chain: Chain) -> None:
    logging = 0
    for header in headers(chain):
        given = chain.logs(header.number, header.number)
        proven = chain.node.logs_under(header, addresses(chain)) if header.may_log(addresses(chain)) else []
        assert [(bytes(log["transactionHash"]), bytes(log["data"]), log["topics"]) for log in proven] == [
            (bytes(log["transactionHash"]), bytes(log["data"]), [bytes(t) for t in log["topics"]]) for log in given
        ]
        assert [chain.event_in(log) for log in proven] == [chain.event_in(log) for log in given]
        logging += bool(given)
    assert logging == 1
    assert not headers(chain)[-1].may_log([Address(keccak(b"somebody else")[12:])])


def test_receipts_that_were_changed_are_refused(chain: Chain) -> None:
    header = headers(chain)[-1]
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
