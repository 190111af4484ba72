"""Calls and transactions as bytes, over a node whose many kinds of failure become our own errors.

Importing web3 and the embedded chain takes seconds, so both are imported only when connecting to a node.
"""

import ast
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast
from urllib.parse import urlsplit

from eth_hash.auto import keccak
from eth_typing import Hash32
from eth_utils.address import to_checksum_address
from eth_utils.exceptions import ValidationError

from tiebreak.protocol.chain.abi import decode_revert
from tiebreak.protocol.chain.errors import ChainError, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.gas import MOST, Market
from tiebreak.protocol.chain.headers import Header, header_in, logs_under
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from web3 import Web3
    from web3.types import RPCEndpoint, TxParams, Wei

RPC_SECONDS: Final = 10
"""The time that a node has for one answer, which is waited for once."""
MOST_RECEIPTS: Final = 64
"""The most receipts of a block that are asked for one by one, where a node lacks `eth_getBlockReceipts`."""
T = TypeVar("T")
_EMBEDDED_PREFIX: Final = "execution reverted: "


def sign_transaction(signer: PrivateKey, fields: dict[str, Any]) -> bytes:
    """Sign an EIP-1559 transaction; returns its raw bytes.

    `fields` are chainId, nonce, to (absent to create a contract), value, data, gas, maxFeePerGas, maxPriorityFeePerGas.
    """
    from eth_account.typed_transactions.typed_transaction import TypedTransaction  # noqa: PLC0415  # takes a second

    typed = {**fields, "type": 2}
    signature = signer.sign(bytes(TypedTransaction.from_dict(typed).hash()), typed)
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    return bytes(TypedTransaction.from_dict({**typed, "v": signature[64] - 27, "r": r, "s": s}).encode())


@dataclass(frozen=True, slots=True)
class Tip:
    """The newest block as a node names it; its hash tells whether a block of this number was replaced."""

    number: int
    hash: bytes
    timestamp: int
    header: Header | None = field(default=None, compare=False, repr=False)
    """The header that its hash proves; None if the node shows no header that hashes to it."""

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> Self:
        """The block, as web3 shows it."""
        return cls(int(block["number"]), bytes(block["hash"]), int(block["timestamp"]), header_in(block))


def read_transaction(raw: bytes) -> dict[str, Any]:
    """The fields that `sign_transaction` was given."""
    from eth_account.typed_transactions.typed_transaction import TypedTransaction  # noqa: PLC0415  # takes a second
    from hexbytes import HexBytes  # noqa: PLC0415

    fields = dict(TypedTransaction.from_bytes(HexBytes(raw)).as_dict())
    to = bytes(fields["to"])
    return {**fields, "data": bytes(fields["data"]), "to": Address(to) if to else None}


ORACLE: Final = Address(bytes.fromhex("42" + 36 * "0" + "0f"))
"""The contract that says on chains of the OP Stack what they take for the data that they post to the L1."""
_DATA_FEE: Final = keccak(b"getL1FeeUpperBound(uint256)")[:4]


class Node:
    """Takes and returns bytes. Nothing that it says is more than a claim; what is sent is decided from the chain."""

    def __init__(self, web3: "Web3") -> None:
        self.web3 = web3
        self._simulates = True
        self._has_oracle: bool | None = None
        with node_errors():
            self.chain_id = int(web3.eth.chain_id)

    @classmethod
    def connect(cls, endpoint: str) -> Self:
        """Connect to an http(s) URL or an IPC socket, or to several, separated by commas (`NodePool`).

        Raises `NodeError` if there is no answer.
        """
        if "," in endpoint:
            return cast("Self", NodePool([partial(cls.connect, one.strip()) for one in endpoint.split(",")]))
        from web3 import HTTPProvider, IPCProvider, Web3  # noqa: PLC0415

        if urlsplit(endpoint).scheme in ("http", "https"):
            # web3 would ask a silent node five times, and a player with a clock would wait for all of them.
            given: Any = {"request_kwargs": {"timeout": RPC_SECONDS}, "exception_retry_configuration": None}
            return cls(Web3(HTTPProvider(endpoint, **given)))
        if Path(endpoint).is_socket():
            return cls(Web3(IPCProvider(endpoint, timeout=RPC_SECONDS)))
        raise ConfigurationError(f"expected an http(s) URL or the path of a node's IPC socket, got {endpoint}")

    # ------------------------------------------------------------------ reading

    def call(self, to: Address | None, data: bytes) -> bytes:
        """The result of a call on the newest block. If `to` is None, the code that a creation would deploy.

        The mempool is ignored: its transactions may never be mined, and a decoy there must not change what we read.
        """
        with node_errors():
            return bytes(self.web3.eth.call(self._transaction(to, data, 0), "latest"))

    def code(self, address: Address) -> bytes:
        """The code at an address; empty for an account without code."""
        with node_errors():
            return bytes(self.web3.eth.get_code(to_checksum_address(address)))

    def balance(self, address: Address) -> int:
        with node_errors():
            return int(self.web3.eth.get_balance(to_checksum_address(address)))

    def timestamp(self, block: int | None = None) -> int:
        """Time of a block in seconds; of the newest by default."""
        with node_errors():
            return int(self.web3.eth.get_block("latest" if block is None else block)["timestamp"])

    def newest(self) -> Tip:
        with node_errors():
            return Tip.of(self.web3.eth.get_block("latest"))

    def _found(self, read: Callable[[], T]) -> T | None:
        """The answer; None if the node does not have the thing, as one that is behind or has changed its mind."""
        from web3.exceptions import BlockNotFound, TransactionNotFound  # noqa: PLC0415

        with node_errors():
            try:
                return read()
            except (BlockNotFound, TransactionNotFound):
                return None

    def block(self, number: int) -> Tip | None:
        """The block of this number; None if the node has none."""
        return self._found(lambda: Tip.of(self.web3.eth.get_block(number)))

    def transaction(self, digest: bytes) -> Mapping[str, Any] | None:
        """A transaction by its hash; None if the node has none."""
        return self._found(lambda: cast("Mapping[str, Any]", self.web3.eth.get_transaction(Hash32(digest))))

    def inner_calls(self, digest: bytes) -> list[tuple[Address, bytes]]:
        """Receiver and calldata of every call within a transaction that was not undone; none if the node has no traces.

        The only source for what somebody sent to a contract by way of another.
        """
        try:
            with node_errors():
                options: Any = [f"0x{digest.hex()}", {"tracer": "callTracer"}]
                method: Any = "debug_traceTransaction"
                found = self.web3.provider.make_request(method, options).get("result")
                return list(_calls_below(found)) if isinstance(found, Mapping) else []
        except ChainError:
            return []

    def count(self, account: Address) -> int:
        """The number of an account's transactions in blocks."""
        with node_errors():
            return int(self.web3.eth.get_transaction_count(to_checksum_address(account), "latest"))

    def receipt(self, digest: bytes) -> Mapping[str, Any] | None:
        """The receipt of a transaction that is in a block; None for any other."""
        return self._found(lambda: cast("Mapping[str, Any]", self.web3.eth.get_transaction_receipt(Hash32(digest))))

    def logs(
        self, addresses: Sequence[Address], topics: list[Any], first_block: int, last_block: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """The logs of contracts from a block on, by default up to the newest; oldest first."""
        wanted: Any = {"address": [to_checksum_address(a) for a in addresses], "topics": topics}
        wanted |= {"fromBlock": first_block, "toBlock": "latest" if last_block is None else last_block}
        with node_errors():
            return self.web3.eth.get_logs(wanted)

    def logs_under(self, header: Header, addresses: Sequence[Address]) -> list[dict[str, Any]]:
        """All logs of contracts in a block. Raises `NodeError` if the node does not show receipts that prove them."""
        from web3.exceptions import MethodUnavailable  # noqa: PLC0415

        with node_errors():
            eth, digest = self.web3.eth, Hash32(header.hash)
            try:
                receipts: Any = eth.get_block_receipts(digest)
            except (MethodUnavailable, NotImplementedError):
                ours: Any = eth.get_block(digest)["transactions"][:MOST_RECEIPTS]
                receipts = [eth.get_transaction_receipt(one) for one in ours]
            return logs_under(header, receipts, addresses)

    def market(self) -> Market:
        with node_errors():
            if (base := self.web3.eth.get_block("latest").get("baseFeePerGas")) is None:
                raise NodeError("expected a chain with a base fee (EIP-1559), got blocks without one")
            return Market(int(base), int(self.web3.eth.max_priority_fee))

    def data_fee(self, size: int) -> int:
        """The most that the chain would take now for a transaction of `size` bytes, in addition to its gas, in wei.

        0 but on rollups of the OP Stack (since Fjord), where the node refuses a transaction whose sender cannot pay it.
        """
        if self._has_oracle is None:
            self._has_oracle = bool(self.code(ORACLE))
        if not self._has_oracle:
            return 0
        try:
            found = self.call(ORACLE, _DATA_FEE + size.to_bytes(32, "big"))
        except Reverted:
            return 0
        return int.from_bytes(found, "big") if len(found) == 32 else 0

    def require(self, account: Address, wei: int) -> None:
        """Raise `InsufficientFunds` unless an account has this much."""
        if (available := self.balance(account)) < wei:
            raise InsufficientFunds(account, wei, available)

    # ------------------------------------------------------------------ trying and sending

    def try_out(self, sender: Address, to: Address | None, data: bytes, value: int, limit: int) -> int:
        """The gas to send a transaction with. Raises `Reverted` if the next block would refuse it as its only one.

        Others' waiting transactions have no say: somebody could keep one in the mempool that is never mined, only to
        have honest ones refused here until their clocks run out. The trial must have the next block's time, since
        a proof is illegal in the second of its seal. `limit` is a measured one; only a call that turns out to need
        more gets all that a transaction may have.
        """
        tx = self._transaction(to, data, value)
        tx["from"] = to_checksum_address(sender)
        for gas in (limit, MOST):
            try:
                self._try({**tx, "gas": gas})
            except Reverted as refused:
                if refused.name != "Halted" or gas == MOST:
                    raise
            else:
                return gas
        raise AssertionError("the loop returns or raises")

    def _try(self, tx: "TxParams") -> None:
        from web3.exceptions import MethodUnavailable, Web3Exception  # noqa: PLC0415

        if self._simulates and "to" in tx:
            try:
                return self._simulate(tx)
            except (MethodUnavailable, NotImplementedError):
                self._simulates = False
            except (Web3Exception, KeyError, TypeError, ValueError):
                pass  # it answered with something else than the result
        # Without the means to set a time, only the pending state has the next block's. It is believed unless it may
        # be somebody's transaction that stands in the way; then the newest block decides, at its own time.
        try:
            with node_errors():
                self.web3.eth.call(tx, "pending")
        except Reverted:
            with suppress(NodeError), node_errors():  # if the node shows no pending block, assume that something waits
                if not self.web3.eth.get_block("pending")["transactions"]:
                    raise
            with node_errors():
                self.web3.eth.call(tx, "latest")
        return None

    def _simulate(self, tx: "TxParams") -> None:
        """Try on the newest block, at the time of the next (`eth_simulateV1`)."""
        # When the next block is due, as the node builds it: a development node may build two in one second.
        newest = self.newest()
        time = newest.timestamp + 1
        with suppress(NodeError), node_errors():
            pending = self.web3.eth.get_block("pending")
            is_next = pending["number"] == newest.number + 1  # a node without a pending block may show the newest
            time = max(newest.timestamp + (0 if is_next else 1), int(pending["timestamp"]))
        payload: Any = {"blockStateCalls": [{"blockOverrides": {"time": time}, "calls": [tx]}], "validation": False}
        try:
            (block,) = self.web3.eth.simulate_v1(payload, "latest")
        except OSError as error:
            raise _unreachable(error) from error
        (found,) = block["calls"]
        if int(found["status"]) != 1:
            refused = cast("Mapping[str, Any]", found["error"])
            # Some nodes give the revert data with the error, as the specification says, and some as what was returned.
            data = _hex_data(refused.get("data")) or bytes(found.get("returnData", b""))
            raise decode_revert(data, str(refused.get("message")))

    def broadcast(self, raw: bytes) -> str:
        """Hand a signed transaction to the node. Returns what the node has against it, or nothing."""
        try:
            with node_errors():
                self.web3.eth.send_raw_transaction(raw)
        except ChainError as error:
            return str(error)
        return ""

    def mine_at(self, instant: int) -> None:
        """Make an empty block of this instant, as development nodes can. Raises `NodeError` for others."""
        with node_errors():
            for method, arguments in (("evm_setNextBlockTimestamp", [instant]), ("evm_mine", [])):
                self.web3.manager.request_blocking(cast("RPCEndpoint", method), arguments)

    def _transaction(self, to: Address | None, data: bytes, value: int) -> "TxParams":
        tx: TxParams = {"data": data, "value": cast("Wei", value)}
        if to is not None:
            tx["to"] = to_checksum_address(to)
        return tx


class NodePool:
    """Several nodes of one chain in the place of one `Node`.

    If one does not answer, the next one is asked. Each look at the newest block goes on to the next node, and a
    transaction goes to all of them. So one that is away, behind or lies costs time as long as another one does not.
    """

    def __init__(self, connect: Sequence[Callable[[], Node]]) -> None:
        """`connect`: for each node, a function that connects to it or raises `NodeError`. At least one must answer."""
        self._connect = deque((number, make) for number, make in enumerate(connect))
        self._nodes: dict[int, Node] = {}
        self.chain_id = 0
        self.chain_id = self._ask(lambda node: node.chain_id)

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self._ask(lambda node: getattr(node, name)(*given))

    def newest(self) -> Tip:
        self._connect.rotate(-1)
        return self._ask(lambda node: node.newest())

    def count(self, account: Address) -> int:
        """The least that any of them says: an outbox knows itself what is too low."""
        if not (found := self._all(lambda node: node.count(account))):
            raise NodeError("expected how many transactions an account has sent, got no answer")
        return min(found)

    def broadcast(self, raw: bytes) -> str:
        """Returns what the nodes have against it, or nothing if one of them takes it."""
        said = self._all(lambda node: node.broadcast(raw))
        return "" if "" in said or not said else said[0]

    def _all(self, question: Callable[[Node], T]) -> list[T]:
        """One answer of each node that is there, in turn; empty if all are away."""
        found = []
        for _ in self._connect.copy():
            self._connect.rotate(-1)
            with suppress(NodeError):
                found.append(question(self._first()))
        return found

    def _ask(self, question: Callable[[Node], T]) -> T:
        problem = NodeError("expected a node to ask, got none")
        for _ in self._connect.copy():
            try:
                return question(self._first())
            except NodeError as error:
                problem = error
                self._connect.rotate(-1)
        raise problem

    def _first(self) -> Node:
        number, make = self._connect[0]
        if number not in self._nodes:
            found = make()
            if self.chain_id and found.chain_id != self.chain_id:
                raise NodeError(f"expected a node of chain {self.chain_id}, got one of chain {found.chain_id}")
            self._nodes[number] = found
        return self._nodes[number]


def _calls_below(frame: Mapping[str, Any]) -> Iterator[tuple[Address, bytes]]:
    """A call and those within it, as go-ethereum's `callTracer` tells them."""
    if frame.get("error"):
        return  # all calls below were undone
    to, data = frame.get("to"), frame.get("input")
    if isinstance(to, str) and isinstance(data, str) and frame.get("type") == "CALL":
        yield Address(bytes.fromhex(to.removeprefix("0x"))), bytes.fromhex(data.removeprefix("0x"))
    for inner in frame.get("calls", ()):
        yield from _calls_below(inner)


@contextmanager
def node_errors() -> Iterator[None]:
    """Turn what web3, the embedded chain and HTTP raise into `Reverted` and `NodeError`."""
    try:
        yield
    except Exception as error:
        if (found := _translated(error)) is None:
            raise
        raise found from error


def _translated(error: Exception) -> ChainError | None:
    from eth_tester.exceptions import TransactionFailed  # noqa: PLC0415
    from web3.exceptions import ContractLogicError, Web3Exception  # noqa: PLC0415

    match error:
        case ContractLogicError():
            return decode_revert(_hex_data(error.data), str(error))
        case TransactionFailed():
            return decode_revert(embedded_revert_data(str(error)), str(error))
        case Web3Exception() | ValidationError():
            return NodeError(f"the node refused: {error}")
        case OSError():  # requests' errors too
            return _unreachable(error)
        case KeyError() | TypeError() | ValueError():
            return NodeError(f"expected an answer of JSON-RPC, got one that is none: {error!r}")
    return None


def _unreachable(error: OSError) -> NodeError:
    return NodeError(f"cannot reach the node: {error}; is it running at this address?")


def _hex_data(data: object) -> bytes:
    try:
        return bytes.fromhex(data.removeprefix("0x")) if isinstance(data, str) else b""
    except ValueError:
        return b""


def embedded_revert_data(message: str) -> bytes:
    """The revert data in eth-tester's message, which holds it as the text of a bytes literal."""
    text = message.removeprefix(_EMBEDDED_PREFIX)
    if not text.startswith(("b'", 'b"')):
        return b""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return b""
    return value if isinstance(value, bytes) else b""
