"""Signatures by secp256k1 keys that both `cryptography` and the EVM's `ecrecover` accept.

Signature format (SPEC section 8), 65 bytes:

    offset  width  field
    0       32     r, big-endian, 1 <= r < n
    32      32     s, big-endian, 1 <= s <= n/2 (the lower half: one signature per nonce, EIP-2)
    64      1      v, 27 + parity of R's y coordinate

Numbered plan of `verify`: (1) the format above, (2) the key is recovered from signature and digest, (3) the
signature is checked against that key by `cryptography`, independently of the recovery, (4) its address is the one
expected.

Where libsecp256k1 is installed (`coincurve`, with the extras `fast` and `node`), it signs, and does (2) and (3) in one:
the same bytes and the same refusals in a fiftieth of the time. A test holds the two ways together.
"""

from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from eth_hash.auto import keccak

from tiebreak.protocol.arguments import PASSPHRASE, Expectation, instance, taking
from tiebreak.protocol.commitments.dsse import Payload
from tiebreak.protocol.commitments.eip712 import Address, TypedData
from tiebreak.protocol.errors import ConfigurationError, SignatureError

try:
    import coincurve
except ImportError:
    coincurve = None  # type: ignore[assignment]
LIBSECP256K1: Any = coincurve

ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""n, the order of secp256k1's base point (SEC 2, 2.4.1)."""
_PRIME: Final = 2**256 - 2**32 - 977
"""p, the prime of the field of the curve y^2 = x^3 + 7."""
SIGNATURE_BYTES: Final = 65
MIN_PASSPHRASE_BYTES: Final = 8
RANDOM_BYTES: Final = 48
"""Number of random bytes that a new key is made from."""

# The digest is already a hash. SHA-256 is named for its length (32 bytes), and as the hash of RFC 6979's nonces.
_PREHASHED: Final = utils.Prehashed(hashes.SHA256())
_SIGN: Final = ec.ECDSA(_PREHASHED, deterministic_signing=True)
_VERIFY: Final = ec.ECDSA(_PREHASHED)


About = TypedData | Payload | Mapping[str, Any] | None
"""The data under a digest: typed data, a certificate's statement, the fields of a transaction, or None if the owner
derives a secret from the signature.
"""


def address_of(key: ec.EllipticCurvePublicKey) -> Address:
    """Ethereum address: the last 20 bytes of keccak-256 of the uncompressed point without its 0x04."""
    return _address(key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint))


def _address(point: bytes) -> Address:
    return Address(bytes(keccak(point[1:])[12:]))


class PrivateKey:
    """A signing key. Its `repr` shows only the address, so the key is never printed."""

    __slots__ = ("_fast", "_key", "address")

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        if not isinstance(key.curve, ec.SECP256K1):
            raise ConfigurationError(f"expected a secp256k1 key, got one on {key.curve.name}")
        self._key = key
        self._fast: Any = None
        """The same key for libsecp256k1, once it has signed."""
        self.address = address_of(key.public_key())

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
        return cls(ec.derive_private_key(secret, ec.SECP256K1()))

    def sign(self, digest: bytes, about: "About" = None) -> bytes:  # noqa: ARG002 (for signers that show it)
        """Sign a 32-byte digest: 65 bytes r || s || v, deterministic (RFC 6979), with s in the lower half.

        about: the data under the digest.
        """
        _check_digest(digest)
        if LIBSECP256K1 is not None:
            if self._fast is None:
                self._fast = LIBSECP256K1.PrivateKey.from_int(self._key.private_numbers().private_value)
            made: bytes = self._fast.sign_recoverable(digest, hasher=None)
            return made[:64] + bytes([27 + made[64]])
        r, s = utils.decode_dss_signature(self._key.sign(digest, _SIGN))
        s = min(s, ORDER - s)
        # The holder of the secret d can compute the nonce k = (z + r d) / s, so R = kG needs no point recovery.
        # Choosing the lower s may have flipped the sign of s; this k has the matching sign.
        z = int.from_bytes(digest, "big")
        nonce = (z + r * self._key.private_numbers().private_value) * pow(s, -1, ORDER) % ORDER
        point = ec.derive_private_key(nonce, ec.SECP256K1()).public_key().public_numbers()
        assert point.x == r, "R's x coordinate exceeds the group order (chance 2^-128), or the nonce is wrong"
        return r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([27 + point.y % 2])

    @taking(passphrase=PASSPHRASE)
    def to_pem(self, passphrase: str) -> bytes:
        """Encrypted PKCS#8 PEM (AES-256; the key derivation is the best PKCS#8 scheme that `cryptography` offers)."""
        encryption = serialization.BestAvailableEncryption(_passphrase_bytes(passphrase))
        return self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)

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
        return cls(key)


def recover(digest: bytes, signature: bytes) -> Address:
    """The address whose key made the signature. Raises `SignatureError` unless it is well-formed and valid."""
    _check_digest(digest)
    r, s, v = _parse(signature)  # (1)
    try:
        if LIBSECP256K1 is not None:  # (2), (3)
            wire = signature[:64] + bytes([v - 27])
            found = LIBSECP256K1.PublicKey.from_signature_and_message(wire, digest, hasher=None)
            return _address(bytes(found.format(compressed=False)))
        # R has x coordinate r. A nonce whose x is n or more (chance 2^-128) would need another v, which is not allowed.
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256K1(), bytes([v - 25]) + signature[:32])
        key = _signer(point, int.from_bytes(digest, "big"), r, s)  # (2)
        key.verify(utils.encode_dss_signature(r, s), digest, _VERIFY)  # (3)
    except (ValueError, InvalidSignature) as error:
        raise SignatureError("no secp256k1 key makes this signature over this digest") from error
    return address_of(key)


def _signer(point: ec.EllipticCurvePublicKey, z: int, r: int, s: int) -> ec.EllipticCurvePublicKey:
    """The key Q = (s R - z G) / r (SEC 1, 4.1.6). Raises `ValueError` if that is the point at infinity."""
    inverse = pow(r, -1, ORDER)
    factor = -z * inverse % ORDER
    base = _affine(ec.derive_private_key(factor, ec.SECP256K1()).public_key()) if factor else _INFINITY
    found = _add(_times(s * inverse % ORDER, _affine(point)), base)
    if found[2] == 0:
        raise ValueError("the point at infinity")
    scale = pow(found[2], -1, _PRIME)
    x, y = found[0] * scale**2 % _PRIME, found[1] * scale**3 % _PRIME
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256K1()).public_key()


def _affine(key: ec.EllipticCurvePublicKey) -> "_Point":
    numbers = key.public_numbers()
    return numbers.x, numbers.y, 1


_Point = tuple[int, int, int]
"""Jacobian coordinates (X / Z^2, Y / Z^3), with Z = 0 at infinity. Nothing here is secret, so timing may vary."""
_INFINITY: Final = (0, 1, 0)


def _times(scalar: int, point: _Point) -> _Point:
    result: _Point = _INFINITY
    for bit in f"{scalar:b}":
        result = _double(result)
        if bit == "1":
            result = _add(result, point)
    return result


def _double(point: _Point) -> _Point:
    x, y, z = point
    square = y * y % _PRIME
    a, b = 4 * x * square % _PRIME, 3 * x * x % _PRIME
    found = (b * b - 2 * a) % _PRIME
    return found, (b * (a - found) - 8 * square * square) % _PRIME, 2 * y * z % _PRIME


def _add(left: _Point, right: _Point) -> _Point:
    if left[2] == 0 or right[2] == 0:
        return right if left[2] == 0 else left
    l2, r2 = left[2] ** 2 % _PRIME, right[2] ** 2 % _PRIME
    u, w = left[0] * r2 % _PRIME, left[1] * r2 * right[2] % _PRIME
    h, k = (right[0] * l2 - u) % _PRIME, (right[1] * l2 * left[2] - w) % _PRIME
    if h == 0:
        return _double(left) if k == 0 else _INFINITY
    h2 = h * h % _PRIME
    h3, v = h * h2 % _PRIME, u * h2 % _PRIME
    x = (k * k - h3 - 2 * v) % _PRIME
    return x, (k * (v - x) - w * h3) % _PRIME, h * left[2] * right[2] % _PRIME


def verify(digest: bytes, signature: bytes, address: bytes) -> None:
    """Raise `SignatureError` unless `signature` over `digest` was made by the key of `address`."""
    found = recover(digest, signature)
    if found != address:  # (4)
        raise SignatureError(f"expected a signature by 0x{address.hex()}, got one by 0x{found.hex()}")


def _check_digest(digest: bytes) -> None:
    if len(digest) != 32:
        raise SignatureError(f"expected a digest of 32 bytes, got {len(digest)}")


def _parse(signature: bytes) -> tuple[int, int, int]:
    if len(signature) != SIGNATURE_BYTES:
        raise SignatureError(f"expected a signature of {SIGNATURE_BYTES} bytes, got {len(signature)}")
    r, s, v = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"), signature[64]
    if not 1 <= r < ORDER:
        raise SignatureError("expected r between 1 and the group order")
    if not 1 <= s <= ORDER // 2:
        raise SignatureError("expected s in the lower half of the group order")
    if v not in (27, 28):
        raise SignatureError(f"expected v of 27 or 28, got {v}")
    return r, s, v


def _passphrase_bytes(passphrase: str) -> bytes:
    data = passphrase.encode("utf-8")
    if len(data) < MIN_PASSPHRASE_BYTES:
        raise ConfigurationError(f"expected a passphrase of at least {MIN_PASSPHRASE_BYTES} bytes, got {len(data)}")
    return data
