"""X.509 certificates of a signer's P-256 key, leaf first, as a CA such as Fulcio issues them. No CA is judged here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tiebreak.engine.data.disk import read_file
from tiebreak.protocol.errors import ConfigurationError, SignatureError, own_file

MAX_BYTES: Final = 1 << 15
_SHOWN: Final = 200
_MALFORMED: Final = (
    ValueError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType,
)  # fmt: skip


def read_chain(path: Path) -> tuple[bytes, ...]:
    """The certificates of a PEM file, in DER. Raises `ConfigurationError`."""
    with own_file():
        data = read_file(path, MAX_BYTES)
    try:
        return tuple(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(data))
    except _MALFORMED as error:
        raise ConfigurationError(f"{path}: expected X.509 certificates in PEM, got something else: {error}") from error


def identity(chain: Sequence[bytes], pem: str) -> str:
    """Whom the leaf names, escaped for a terminal: its alternative names, else its subject.

    Raises `SignatureError` unless it is for the key in this PEM.
    """
    try:
        leaf = x509.load_der_x509_certificate(chain[0])
        key = leaf.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        named = (one.value for one in leaf.extensions if isinstance(one.value, x509.SubjectAlternativeName))
        text = ", ".join(str(name.value) for names in named for name in names) or leaf.subject.rfc4514_string()
    except _MALFORMED as error:
        raise SignatureError(f"expected X.509 certificates of the signer's key, got others: {error}") from error
    if key != pem:
        raise SignatureError("expected an X.509 certificate of the P-256 key that signs, got one of another key")
    return ascii(text[:_SHOWN])
