"""Signatures by secp256k1 keys that both `cryptography` and the EVM's `ecrecover` accept.

Signature format (SPEC section 8), 65 bytes:

    offset  width  field
    0       32     r, big-endian, 1 <= r < n
    32      32     s, big-endian, 1 <= s <= n/2 (the lower half: one signature per nonce, EIP-2)
    64      1      v, 27 + parity of R's y coordinate

Numbered plan of `verify`: (1) the format above, (2) libsecp256k1 (`coincurve`) recovers the one key that makes this
signature over the digest, if there is one, (3) its address is the one expected.
"""

from collections.abc import Mapping
from typing import Any, Final

import coincurve
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from eth_hash.auto import keccak

from tiebreak.protocol.arguments import PASSPHRASE, Expectation, instance, taking
from tiebreak.protocol.commitments.dsse import Payload
from tiebreak.protocol.commitments.eip712 import Address, TypedData
from tiebreak.protocol.errors import ConfigurationError, SignatureError

ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""n, the order of secp256k1's base point (SEC 2, 2.4.1)."""
SIGNATURE_BYTES: Final = 65
MIN_PASSPHRASE_BYTES: Final = 8
RANDOM_BYTES: Final = 48
"""Number of random bytes that a new key is made from."""


About = TypedData | Payload | Mapping[str, Any] | None
"""The data under a digest: typed data, a certificate's statement, the fields of a transaction, or None if the owner
derives a secret from the signature.
"""


def _address(key: coincurve.PublicKey) -> Address:
    """Ethereum address: the last 20 bytes of keccak-256 of the uncompressed point without its 0x04."""
    return Address(bytes(keccak(key.format(compressed=False)[1:])[12:]))


class PrivateKey:
    """A signing key (secp256k1). Its `repr` shows only the address, so the key is never printed.

    key: the scalar, as `coincurve` holds it; `tiebreak.new_key`, `generate`, `from_int` and `from_pem` make it.
    `address` is the Ethereum address, 20 bytes.
    """

    __slots__ = ("_key", "address")

    def __init__(self, key: coincurve.PrivateKey) -> None:
        self._key = key
        self.address = _address(key.public_key)

    def __repr__(self) -> str:
        return f"PrivateKey(address=0x{self.address.hex()})"

    @classmethod
    @taking(randomness=instance(f"{RANDOM_BYTES} random bytes", bytes))
    def generate(cls, randomness: bytes) -> "PrivateKey":
        """Make a key from 48 random bytes: 16 more than a scalar has, which limits the modulo bias to about 2^-128."""
        if len(randomness) != RANDOM_BYTES:
            raise ConfigurationError(f"expected {RANDOM_BYTES} random bytes, got {len(randomness)}")
        return cls.from_int(1 + int.from_bytes(randomness, "big") % (ORDER - 1))

    @classmethod
    @taking(secret=Expectation("an integer", lambda x: isinstance(x, int), secret=True))
    def from_int(cls, secret: int) -> "PrivateKey":
        """The key with this scalar, 1 <= secret < n."""
        if not 1 <= secret < ORDER:
            raise ConfigurationError("expected a secret between 1 and the order of secp256k1")
        return cls(coincurve.PrivateKey.from_int(secret))

    def sign(self, digest: bytes, about: "About" = None) -> bytes:  # noqa: ARG002 (for signers that show it)
        """Sign a 32-byte digest: 65 bytes r || s || v, deterministic (RFC 6979), with s in the lower half.

        about: the data under the digest.
        """
        _check_digest(digest)
        made = self._key.sign_recoverable(digest, hasher=None)
        return made[:64] + bytes([27 + made[64]])

    @taking(passphrase=PASSPHRASE)
    def to_pem(self, passphrase: str) -> bytes:
        """Encrypted PKCS#8 PEM (AES-256; the key derivation is the best PKCS#8 scheme that `cryptography` offers)."""
        encryption = serialization.BestAvailableEncryption(_passphrase_bytes(passphrase))
        key = ec.derive_private_key(self._key.to_int(), ec.SECP256K1())
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)

    @classmethod
    @taking(pem=instance("the bytes of a PEM file", bytes), passphrase=PASSPHRASE)
    def from_pem(cls, pem: bytes, passphrase: str) -> "PrivateKey":
        """Decrypt. Raises `ConfigurationError` for a wrong passphrase, an unencrypted key or another kind of key."""
        if b"BEGIN ENCRYPTED PRIVATE KEY" not in pem:
            raise ConfigurationError("expected an encrypted PKCS#8 PEM file, got something else; make a new key")
        try:
            key = serialization.load_pem_private_key(pem, _passphrase_bytes(passphrase))
        except (ValueError, TypeError) as error:
            raise ConfigurationError("the key file does not decrypt: wrong passphrase or damaged file") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigurationError(f"expected a secp256k1 key, got {type(key).__name__}")
        if not isinstance(key.curve, ec.SECP256K1):
            raise ConfigurationError(f"expected a secp256k1 key, got one on {key.curve.name}")
        return cls.from_int(key.private_numbers().private_value)


def recover(digest: bytes, signature: bytes) -> Address:
    """The address whose key made the signature. Raises `SignatureError` unless it is well-formed and valid."""
    _check_digest(digest)
    if len(signature) != SIGNATURE_BYTES:  # (1)
        raise SignatureError(f"expected a signature of {SIGNATURE_BYTES} bytes, got {len(signature)}")
    r, s, v = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"), signature[64]
    if not 1 <= r < ORDER:
        raise SignatureError("expected r between 1 and the group order")
    if not 1 <= s <= ORDER // 2:
        raise SignatureError("expected s in the lower half of the group order")
    if v not in (27, 28):
        raise SignatureError(f"expected v of 27 or 28, got {v}")
    try:
        wire = signature[:64] + bytes([v - 27])
        return _address(coincurve.PublicKey.from_signature_and_message(wire, digest, hasher=None))  # (2)
    except ValueError as error:
        raise SignatureError("no secp256k1 key makes this signature over this digest") from error


def verify(digest: bytes, signature: bytes, address: bytes) -> None:
    """Raise `SignatureError` unless `signature` over `digest` was made by the key of `address`."""
    found = recover(digest, signature)
    if found != address:  # (3)
        raise SignatureError(f"expected a signature by 0x{address.hex()}, got one by 0x{found.hex()}")


def _check_digest(digest: bytes) -> None:
    if len(digest) != 32:
        raise SignatureError(f"expected a digest of 32 bytes, got {len(digest)}")


def _passphrase_bytes(passphrase: str) -> bytes:
    data = passphrase.encode("utf-8")
    if len(data) < MIN_PASSPHRASE_BYTES:
        raise ConfigurationError(f"expected a passphrase of at least {MIN_PASSPHRASE_BYTES} bytes, got {len(data)}")
    return data
