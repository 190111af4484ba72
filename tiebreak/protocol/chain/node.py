"""Calls and transactions as bytes, over a node whose many kinds of failure become our own errors.

Importing web3 and the embedded chain takes seconds, so both are imported only when connecting to a node.
"""

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, cast
from urllib.parse import urlsplit

from eth_typing import Hash32
from eth_utils.address import to_checksum_address
from eth_utils.exceptions import ValidationError

from tiebreak.protocol.chain.abi import decode_revert
from tiebreak.protocol.chain.errors import ChainError, InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from web3 import Web3
    from web3.types import TxParams, Wei

RPC_SECONDS: Final = 30
RECEIPT_SECONDS: Final = 180
"""How long to wait for a transaction to be mined."""
_EMBEDDED_PREFIX: Final = "execution reverted: "


class Signer(Protocol):
    """An account that can sign, such as `tiebreak.protocol.commitments.keys.PrivateKey`."""

    @property
    def address(self) -> Address:
        """The account's address, 20 bytes."""

    def sign(self, digest: bytes) -> bytes:
        """Sign a 32-byte digest: r, s (in the lower half) and v (27 or 28), 65 bytes in all."""


def sign_transaction(signer: Signer, fields: dict[str, Any]) -> bytes:
    """Sign an EIP-1559 transaction; returns its raw bytes.

    `fields` are chainId, nonce, to (absent to create a contract), value, data, gas, maxFeePerGas, maxPriorityFeePerGas.
    """
    from eth_account.typed_transactions.typed_transaction import TypedTransaction  # noqa: PLC0415  # takes a second

    typed = {**fields, "type": 2}
    signature = signer.sign(bytes(TypedTransaction.from_dict(typed).hash()))
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    signed = TypedTransaction.from_dict({**typed, "v": signature[64] - 27, "r": r, "s": s})
    return bytes(signed.encode())


class Node:
    """Takes and returns bytes. `gas_limit` applies to every transaction; None asks the node for estimates."""

    def __init__(self, web3: "Web3", gas_limit: int | None = None) -> None:
        self.web3 = web3
        self._gas_limit = gas_limit
        with node_errors():
            self.chain_id = int(web3.eth.chain_id)

    @classmethod
    def connect(cls, endpoint: str) -> Self:
        """Connect to an http(s) URL or an IPC socket. Raises `NodeError` if there is no answer."""
        from web3 import HTTPProvider, IPCProvider, Web3  # noqa: PLC0415

        if urlsplit(endpoint).scheme in ("http", "https"):
            return cls(Web3(HTTPProvider(endpoint, request_kwargs={"timeout": RPC_SECONDS})))
        if Path(endpoint).is_socket():
            return cls(Web3(IPCProvider(endpoint, timeout=RPC_SECONDS)))
        raise ConfigurationError(f"expected an http(s) URL or the path of a node's IPC socket, got {endpoint}")

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

    def send(self, signer: Signer, to: Address | None, data: bytes, value: int = 0) -> Mapping[str, Any]:
        """Try a transaction, sign it, send it and wait for its receipt.

        Because it is tried first, a move that the contract refuses costs nothing. Raises `Reverted`,
        `InsufficientFunds` or `NodeError`.
        """
        tx = self._transaction(to, data, value)
        tx["from"] = to_checksum_address(signer.address)
        self._check_funds(signer.address, value)
        sent = self.post(signer, to, data, value, gas=self._try(tx))
        with node_errors():
            receipt = self.web3.eth.wait_for_transaction_receipt(Hash32(sent), timeout=RECEIPT_SECONDS)
        if receipt["status"] != 1:
            # The chain moved on between trying and mining, so trying again shows what changed.
            self._try(tx)
            raise decode_revert(b"", "the transaction failed though it had been tried and would succeed now")
        return cast("Mapping[str, Any]", receipt)

    def post(self, signer: Signer, to: Address | None, data: bytes, value: int = 0, *, gas: int) -> bytes:
        """Sign and send a transaction without trying it and without waiting. Returns its hash."""
        fees = self._fees()
        self._check_funds(signer.address, value + gas * fees["maxFeePerGas"])
        nonce = self.nonce(signer.address)
        with node_errors():
            fields: dict[str, Any] = {"chainId": self.chain_id, "nonce": nonce, "value": value, "data": data}
            if to is not None:
                fields["to"] = to
            return bytes(self.web3.eth.send_raw_transaction(sign_transaction(signer, {**fields, **fees, "gas": gas})))

    def nonce(self, account: Address) -> int:
        """The number of the account's next transaction."""
        with node_errors():
            return int(self.web3.eth.get_transaction_count(to_checksum_address(account), "pending"))

    def require_gas(self, account: Address, gas: int) -> None:
        """Raise `InsufficientFunds` unless an account can pay for this much gas."""
        self._check_funds(account, gas * self._fees()["maxFeePerGas"])

    def _transaction(self, to: Address | None, data: bytes, value: int) -> "TxParams":
        tx: TxParams = {"data": data, "value": cast("Wei", value)}
        if to is not None:
            tx["to"] = to_checksum_address(to)
        return tx

    def _fees(self) -> dict[str, int]:
        with node_errors():
            base = self.web3.eth.get_block("latest").get("baseFeePerGas")
            if base is None:
                raise NodeError("expected a chain with a base fee (EIP-1559), got blocks without one")
            tip = int(self.web3.eth.max_priority_fee)
        return {"maxFeePerGas": 2 * int(base) + tip, "maxPriorityFeePerGas": tip}

    def _try(self, tx: "TxParams") -> int:
        """The gas limit for a transaction. Raises `Reverted` if it would fail now.

        It is tried on the pending state, because a proof is refused in the second of its seal and so needs the next
        block's time. But somebody could keep a transaction in the mempool that is never mined, only to have honest ones
        refused here until their clocks run out. So if the pending state refuses and other transactions are waiting, it
        is also tried on the newest block alone, and sent if it succeeds there. At worst, that costs its gas.
        """
        try:
            return self._gas_on(tx, "pending")
        except Reverted:
            if not self._anything_waits():
                raise
        return self._gas_on(tx, "latest")

    def _gas_on(self, tx: "TxParams", block: Literal["pending", "latest"]) -> int:
        with node_errors():
            if self._gas_limit is None:
                return int(self.web3.eth.estimate_gas(tx, block)) * 5 // 4
            self.web3.eth.call({**tx, "gas": self._gas_limit}, block)
            return self._gas_limit

    def _anything_waits(self) -> bool:
        """Whether the pending block has transactions. If the node does not show one, assume so."""
        try:
            with node_errors():
                return bool(self.web3.eth.get_block("pending")["transactions"])
        except NodeError:
            return True

    def _check_funds(self, account: Address, needed: int) -> None:
        if (available := self.balance(account)) < needed:
            raise InsufficientFunds(account, needed, available)


@contextmanager
def node_errors() -> Iterator[None]:
    """Turn what web3, the embedded chain and HTTP raise into `Reverted` and `NodeError`."""
    try:
        yield
    except Exception as error:
        found = _translated(error)
        if found is None:
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
            return NodeError(f"cannot reach the node: {error}; is it running at this address?")
    return None


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
