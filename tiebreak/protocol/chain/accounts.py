"""Transaction signing with any key that offers an address and signs digests, as `keys.PrivateKey` does."""

from typing import Any, Protocol

from tiebreak.protocol.commitments.eip712 import Address


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
