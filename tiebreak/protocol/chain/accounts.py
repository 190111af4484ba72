"""Signing transactions with a key that shows only its address and signs digests, as `keys.PrivateKey` does."""

from typing import Any, Protocol

from tiebreak.protocol.commitments.eip712 import Address


class Signer(Protocol):
    """An account that can sign. `tiebreak.protocol.commitments.keys.PrivateKey` is one."""

    @property
    def address(self) -> Address:
        """20 bytes."""

    def sign(self, digest: bytes) -> bytes:
        """65 bytes r || s || v (27 or 28) over a 32-byte digest, s in the lower half."""


def sign_transaction(signer: Signer, fields: dict[str, Any]) -> bytes:
    """A raw EIP-1559 transaction.

    `fields`: chainId, nonce, to (absent: creation), value, data, gas, maxFeePerGas, maxPriorityFeePerGas.
    """
    from eth_account.typed_transactions.typed_transaction import TypedTransaction  # noqa: PLC0415  # takes a second

    typed = {**fields, "type": 2}
    signature = signer.sign(bytes(TypedTransaction.from_dict(typed).hash()))
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
    signed = TypedTransaction.from_dict({**typed, "v": signature[64] - 27, "r": r, "s": s})
    return bytes(signed.encode())
