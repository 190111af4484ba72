"""Blocks as their own hashes prove them: a header under its hash, the logs of a block under its header.

A block's hash is that of its header. The header names its parent by hash, has a Bloom filter of the addresses and
topics of all logs in the block, and the root of the tree of receipts, in which the logs lie whole. So the holder of a
hash can check that a node leaves no log out. Nobody's consensus is checked here: a node that makes up other blocks,
with other hashes, is not found out.

Sources: the Ethereum yellow paper (4.3 and appendices B to D), EIP-2718 for the types of receipts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from eth_bloom.bloom import BloomFilter
from eth_hash.auto import keccak
from rlp import encode
from trie.hexary import HexaryTrie

from tiebreak.protocol.chain.errors import NodeError
from tiebreak.protocol.commitments.eip712 import Address

BLOOM_BYTES: Final = 256
_FIELDS: Final = (
    "parentHash", "sha3Uncles", "miner", "stateRoot", "transactionsRoot", "receiptsRoot", "logsBloom", "difficulty",
    "number", "gasLimit", "gasUsed", "timestamp", "extraData", "mixHash", "nonce",
)  # fmt: skip
_LATER: Final = ("baseFeePerGas", "withdrawalsRoot", "blobGasUsed", "excessBlobGas", "parentBeaconBlockRoot",
                 "requestsHash")  # fmt: skip
"""Fields that hardforks have added, in their order; blocks before them end without."""
_OF_RECEIPTS: Final = ("depositNonce", "depositReceiptVersion")
"""Additional fields of the receipts of deposits, on chains of the OP stack."""


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a header that hashes to the block's hash."""

    hash: bytes
    number: int
    parent: bytes
    bloom: BloomFilter
    receipts_root: bytes

    def may_log(self, addresses: Sequence[Address]) -> bool:
        """Whether the block may hold logs of one of these contracts. False is certain; true may be chance."""
        return any(address in self.bloom for address in addresses)


def header_in(block: Mapping[str, Any]) -> Header | None:
    """The header of a block as web3 shows it; None if its fields do not hash to its hash."""
    try:
        bloom = bytes(block["logsBloom"]).rjust(BLOOM_BYTES, b"\0")
        fields = [*_FIELDS, *takewhile(lambda name: block.get(name) is not None, _LATER)]
        packed = [bloom if name == "logsBloom" else _field(block[name]) for name in fields]
        digest, parent, root = (bytes(block[name]) for name in ("hash", "parentHash", "receiptsRoot"))
    except (KeyError, TypeError, ValueError):
        return None
    if bytes(keccak(encode(packed))) != digest:
        return None
    return Header(digest, int(block["number"]), parent, BloomFilter(int.from_bytes(bloom, "big")), root)


def logs_under(
    header: Header, receipts: Sequence[Mapping[str, Any]], addresses: Sequence[Address]
) -> list[dict[str, Any]]:
    """The logs of contracts in a block, given all of its receipts as web3 shows them.

    Only `transactionHash` is the node's word. Raises `NodeError` unless the receipts are those of the header.
    """
    tree, found, at = HexaryTrie({}), list[dict[str, Any]](), 0
    for index, receipt in enumerate(receipts):
        logs = [(_field(log["address"]), [bytes(topic) for topic in log["topics"]], bytes(log["data"]))
                for log in receipt["logs"]]  # fmt: skip
        tree[encode(_number(index))] = _receipt(receipt, logs)
        for address, topics, data in logs:
            if address in addresses:
                found.append({
                    "address": address, "topics": topics, "data": data, "logIndex": at, "blockHash": header.hash,
                    "blockNumber": header.number, "transactionHash": bytes(receipt["transactionHash"]),
                })  # fmt: skip
            at += 1
    if tree.root_hash != header.receipts_root:
        raise NodeError(f"expected the receipts of block {header.number} under its header, got others")
    return found


def _receipt(receipt: Mapping[str, Any], logs: Sequence[tuple[bytes, list[bytes], bytes]]) -> bytes:
    bloom = BloomFilter.from_iterable(item for address, topics, _ in logs for item in (address, *topics))
    fields: list[Any] = [_number(int(receipt["status"])), _number(int(receipt["cumulativeGasUsed"])),
              int(bloom).to_bytes(BLOOM_BYTES, "big"), [[*log] for log in logs]]  # fmt: skip
    fields += [_field(receipt[name]) for name in _OF_RECEIPTS if receipt.get(name) is not None]
    kind = receipt.get("type", 0)
    kind = int(kind, 16) if isinstance(kind, str) else int(kind)
    return (bytes([kind]) if kind else b"") + bytes(encode(fields))


def _field(value: Any) -> bytes:
    """A field in the form in which it is hashed; text is hexadecimal."""
    if isinstance(value, str):
        return bytes.fromhex(value.removeprefix("0x"))
    return _number(value) if isinstance(value, int) else bytes(value)


def _number(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "big")
