"""The P-256 key of a party, by which tools that read no key on secp256k1 check its signature under a certificate."""

from hashlib import sha256, sha512
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.seats import salt_of
from tiebreak.protocol.errors import SignatureError
from tiebreak.protocol.tags import Digest

SLSA: Final = "https://slsa.dev/provenance/v1"
"""The type of predicates that say how something was built."""
_PURPOSE: Final = Digest(sha256(b"tiebreak: the P-256 key for certificates, 1").digest())
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def signed_for_others(envelope: Envelope, key: PrivateKey) -> Envelope:
    """The envelope with the signature of a party's P-256 key."""
    companion = attesting_key(key)
    signature = companion.sign(envelope.payload.pae, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
    return envelope.signed(sha256(_public(companion, serialization.Encoding.DER)).hexdigest(), signature)


def attesting_key(key: PrivateKey) -> ec.EllipticCurvePrivateKey:
    """The P-256 key of a party, which its own key makes again at any time."""
    wide = int.from_bytes(sha512(salt_of(key, _PURPOSE)).digest(), "big")
    return ec.derive_private_key(1 + wide % (_P256_ORDER - 1), ec.SECP256R1())


def public_pem(key: PrivateKey) -> str:
    """The public half of `attesting_key`, as `cosign verify-blob-attestation --key` and in-toto's libraries take it."""
    return _public(attesting_key(key), serialization.Encoding.PEM).decode("ascii")


def request_pem(key: PrivateKey) -> str:
    """A request (PKCS#10) for an X.509 certificate of the public half of `attesting_key`; it names nobody."""
    request = x509.CertificateSigningRequestBuilder(subject_name=x509.Name([]))
    made = request.sign(attesting_key(key), hashes.SHA256(), ecdsa_deterministic=True)
    return made.public_bytes(serialization.Encoding.PEM).decode("ascii")


def check_pem(envelope: Envelope, pem: str, certificate: Envelope) -> None:
    """Checks the one signature under an envelope that is not under an address. Raises `SignatureError`.

    It has to be by the key in this PEM, by which the certificate is signed, too. Nothing here says whose that key is.
    """
    try:
        [(key_id, signature)] = [pair for pair in envelope.signatures if not pair[0].startswith("0x")]
        key = serialization.load_pem_public_key(pem.encode())
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        if not isinstance(key, ec.EllipticCurvePublicKey) or key_id != sha256(der).hexdigest():
            raise ValueError("another key")
        if not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("another curve")
        key.verify(signature, envelope.payload.pae, ec.ECDSA(hashes.SHA256()))
        key.verify(dict(certificate.signatures)[key_id], certificate.payload.pae, ec.ECDSA(hashes.SHA256()))
    except (ValueError, KeyError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise SignatureError("expected one signature by a P-256 key that signed the certificate, got none") from error


def _public(key: ec.EllipticCurvePrivateKey, encoding: serialization.Encoding) -> bytes:
    return key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
