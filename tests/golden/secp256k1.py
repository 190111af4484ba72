"""What keys need of `coincurve`, made of `ecdsa` (pure Python), for machines where there is no libsecp256k1."""

from hashlib import sha256

from ecdsa import SECP256k1, SigningKey, VerifyingKey
from ecdsa.util import sigdecode_string, sigencode_string_canonize


class PublicKey:
    def __init__(self, key: VerifyingKey) -> None:
        self._key = key

    def format(self, compressed: bool) -> bytes:
        return bytes(self._key.to_string("compressed" if compressed else "uncompressed"))

    @classmethod
    def from_signature_and_message(cls, signature: bytes, digest: bytes, hasher: None) -> "PublicKey":
        """Raises `ValueError` if no key makes this signature."""
        try:  # the first key is that of the point with an even y
            return cls(_recovered(signature[:64], digest)[signature[64]])
        except Exception as error:  # ecdsa's are of several families
            raise ValueError(str(error)) from error


class PrivateKey:
    def __init__(self, secret: int) -> None:
        self._secret, self._key = secret, SigningKey.from_secret_exponent(secret, SECP256k1, sha256)
        self.public_key = PublicKey(self._key.verifying_key)

    @classmethod
    def from_int(cls, secret: int) -> "PrivateKey":
        return cls(secret)

    def to_int(self) -> int:
        return self._secret

    def sign_recoverable(self, digest: bytes, hasher: None) -> bytes:
        made = self._key.sign_digest_deterministic(digest, sigencode=sigencode_string_canonize)
        return bytes(made) + bytes([_recovered(made, digest).index(self._key.verifying_key)])


def _recovered(signature: bytes, digest: bytes) -> list[VerifyingKey]:
    return VerifyingKey.from_public_key_recovery_with_digest(
        signature, digest, SECP256k1, hashfunc=sha256, sigdecode=sigdecode_string, allow_truncate=True
    )
