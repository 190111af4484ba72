"""A CA, a log of certificates and a log of signatures in the forms of Sigstore, with keys that follow from names."""

import json
import struct
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tiebreak.protocol.commitments.computation_receipts import canonical

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
ISSUER: Final = "https://issuer.example"
UNUSED: Final = dict.fromkeys(
    ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only",
     "crl_sign"], False,
)  # fmt: skip


def key_of(name: str) -> ec.EllipticCurvePrivateKey:
    """The key of an authority or a log of this name."""
    return ec.derive_private_key(int.from_bytes(sha256(name.encode()).digest()[:16]), ec.SECP256R1())


def signed_by(name: str, data: bytes) -> bytes:
    return key_of(name).sign(data, ec.ECDSA(hashes.SHA256()))


def der(name: str) -> bytes:
    return key_of(name).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def text(data: bytes) -> str:
    return b64encode(data).decode()


def issued(subject: str, key: Any, by: str, *more: x509.ExtensionType) -> x509.Certificate:
    """A certificate of an authority for a key; without a subject it is no authority's."""
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)] if one else []) for one in (by, subject)]
    made = x509.CertificateBuilder(*names, key, 1, START, START + timedelta(minutes=10))
    made = made.add_extension(x509.BasicConstraints(ca=bool(subject), path_length=None), critical=True)
    usage = x509.KeyUsage(digital_signature=not subject, key_cert_sign=bool(subject), **UNUSED)
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(key_of(by).public_key())
    for extension in (usage, above, *more):
        must = isinstance(extension, (x509.KeyUsage, x509.SubjectAlternativeName))
        made = made.add_extension(extension, critical=must)
    return made.sign(key_of(by), hashes.SHA256())


def chained(folder: Path, key: Any, name: str = "a@example.org") -> tuple[Path, Path]:
    """PEM files of a root, and of a leaf for a key with the intermediate above it.

    The leaf is as Fulcio's, with an address, its issuer, and the receipt (RFC 6962) of a log whose name is `ct`.
    """
    root, middle, stamp = f"{folder.name} root", f"{folder.name} middle", int(START.timestamp() * 1000).to_bytes(8)
    parts = [
        x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CODE_SIGNING]),
        x509.SubjectAlternativeName([x509.RFC822Name(name)]),
        x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1"), ISSUER.encode()),
    ]
    plain = issued("", key, middle, *parts).tbs_certificate_bytes
    entry = b"\0\1" + sha256(der(middle)).digest() + struct.pack("!I", len(plain))[1:] + plain
    signature = signed_by("ct", b"\0\0" + stamp + entry + b"\0\0")
    receipt = b"\0" + sha256(der("ct")).digest() + stamp + b"\0\0\4\3" + struct.pack("!H", len(signature)) + signature
    receipts = struct.pack("!BBHH", 4, len(receipt) + 4, len(receipt) + 2, len(receipt)) + receipt
    parts.append(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2"), receipts))
    leaf, above = issued("", key, middle, *parts), issued(middle, key_of(middle).public_key(), root)
    folder.mkdir()
    (folder / "root.pem").write_bytes(issued(root, key_of(root).public_key(), root).public_bytes(Encoding.PEM))
    (folder / "chain.pem").write_bytes(leaf.public_bytes(Encoding.PEM) + above.public_bytes(Encoding.PEM))
    return folder / "root.pem", folder / "chain.pem"


def trust(root: Path, chain: Path) -> dict[str, Any]:
    """Sigstore's configuration of a client that trusts this root and the logs `ct` and `rekor`, and nobody else."""
    since = {"validFor": {"start": "2026-01-01T00:00:00Z"}}
    above = x509.load_pem_x509_certificates(chain.read_bytes())[1:] + x509.load_pem_x509_certificates(root.read_bytes())
    certificates = [{"rawBytes": text(one.public_bytes(Encoding.DER))} for one in above]
    ca = {"subject": {"organization": "a", "commonName": "b"}, "uri": "", "certChain": {"certificates": certificates}}
    kind, one_of = "application/vnd.dev.sigstore.{}+json", {"selector": "ANY"}

    def log(name: str) -> dict[str, Any]:
        key = {"rawBytes": text(der(name)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", **since}
        made = {"baseUrl": f"https://{name}.invalid", "hashAlgorithm": "SHA2_256", "publicKey": key}
        return {**made, "logId": {"keyId": text(sha256(der(name)).digest())}}

    def service(name: str) -> list[Any]:
        return [{"url": f"https://{name}.invalid", "majorApiVersion": 1, "operator": "test", **since}]

    return {
        "mediaType": kind.format("clienttrustconfig.v0.1"),
        "trustedRoot": {
            "mediaType": f"{kind.format('trustedroot')};version=0.1", "tlogs": [log("rekor")], "ctlogs": [log("ct")],
            "certificateAuthorities": [ca | since], "timestampAuthorities": [],
        },
        "signingConfig": {
            "mediaType": kind.format("signingconfig.v0.2"), "caUrls": service("ca"), "oidcUrls": service("oidc"),
            "rekorTlogUrls": service("rekor"), "rekorTlogConfig": one_of, "tsaUrls": [], "tsaConfig": one_of,
        },
    }  # fmt: skip


def logged(signature: bytes, leaf: bytes) -> bytes:
    """The answer of a Rekor (version 1) with the name `rekor` that holds this signature by this leaf, and no other."""
    envelope = json.loads(signature)["dsseEnvelope"]
    digests = {"envelopeHash": json.dumps(envelope).encode(), "payloadHash": b64decode(envelope["payload"])}
    spec: dict[str, Any] = {n: {"algorithm": "sha256", "value": sha256(d).hexdigest()} for n, d in digests.items()}
    spec["signatures"] = [{"signature": envelope["signatures"][0]["sig"], "verifier": text(leaf)}]
    body = canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
    at, root = sha256(der("rekor")).digest(), sha256(b"\0" + body).digest()
    entry: dict[str, Any] = {"body": text(body), "logID": at.hex(), "logIndex": 0}
    entry["integratedTime"] = int(START.timestamp()) + 60
    note = f"rekor\n1\n{text(root)}\n"
    proof: dict[str, Any] = {"logIndex": 0, "rootHash": root.hex(), "treeSize": 1, "hashes": []}
    proof["checkpoint"] = f"{note}\n\u2014 rekor {text(at[:4] + signed_by('rekor', note.encode()))}\n"
    promise = text(signed_by("rekor", canonical(entry)))
    return json.dumps(
        {"uuid": entry | {"verification": {"inclusionProof": proof, "signedEntryTimestamp": promise}}}
    ).encode()
