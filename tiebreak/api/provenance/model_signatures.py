"""OpenSSF model signing (v1.0): the files of a folder with their SHA-256, in a Sigstore bundle.

The resources are the files of the weights, by the certificate, and, if that is for a folder, all other files in it as
they are, but for this one and git's, which `model_signing` passes over by default. A chain of X.509 certificates of the
key (`x509_chains`) may be in the place of the key's hash; the statement has the chain's SHA-256.
"""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Final

from tiebreak.api.certification import folders
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.provenance.statements import checked_again, one_signature, payload_with, signed_envelope
from tiebreak.api.provenance.x509_chains import identity
from tiebreak.protocol.commitments.dsse import Envelope, Payload, base64, from_base64
from tiebreak.protocol.commitments.statement import is_list
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

CHAIN: Final = "x509CertificateChain"


def _payload(source: FormatSource, pem: str) -> Payload:
    certificate, digests, ignored = source.signed.certificate, dict(source.signed.certificate.files), []
    if certificate.others is not None:
        ignored = [*folders.GIT, folders.MODEL_SIGNATURE]
        digests |= {name: Digest(sha256(data).digest()) for name, data in source.pending.items()}
        digests |= folders.other_digests(source.folder, {*digests, *ignored})
    files = {name: digests[name] for name in sorted(digests, key=lambda name: name.split("/"))}
    predicate = {
        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": ignored},
        "resources": [{"name": n, "algorithm": "sha256", "digest": d.hex()} for n, d in files.items()],
    }
    subject = {"name": certificate.job.id.hex(), "digest": {"sha256": sha256(b"".join(files.values())).hexdigest()}}
    chain = {"certificateChain": sha256(b"".join(source.chain)).hexdigest()} if source.chain else {}
    return payload_with([subject], "https://model_signing/signature/v1.0", predicate, pem, **chain)


def _bundle(source: FormatSource, envelope: Envelope, pem: str) -> bytes:
    material: dict[str, object] = {"publicKey": {"hint": sha256(pem.encode()).hexdigest()}}
    if source.chain:
        identity(source.chain, pem)  # that of this key
        material = {CHAIN: {"certificates": [{"rawBytes": base64(one)} for one in source.chain]}}
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": json.loads(envelope.encode()),
        "verificationMaterial": material | {"tlogEntries": []},
    }  # fmt: skip
    return json.dumps(bundle).encode() + b"\n"


def model_signature(source: FormatSource) -> bytes:
    return _bundle(source, *signed_envelope(source, _payload))


def model_signature_again(source: FormatSource, data: bytes) -> bytes:
    bundle = JsonObject.parse("bundle", data, 8)
    material = bundle.inner("verificationMaterial")
    if CHAIN in material:
        listed = material.inner(CHAIN).take("certificates", "at least one", is_list)
        texts = [JsonObject("certificate", one).text("rawBytes") for one in listed]
        source = replace(source, chain=tuple(from_base64("certificate", text) for text in texts))
    envelope = one_signature(json.dumps(bundle.take("dsseEnvelope", "an object", lambda _: True)).encode())
    return _bundle(source, *checked_again(source, envelope, _payload))


def model_signature_says(data: bytes) -> str:
    bundle = json.loads(data)
    statement = json.loads(from_base64("payload", bundle["dsseEnvelope"]["payload"]))
    count = len(statement["predicate"]["resources"])
    text = f" It covers {count} file{'s' * (count != 1)}."
    if (chain := bundle["verificationMaterial"].get(CHAIN)) is not None:
        leaf, pem = chain["certificates"][0]["rawBytes"], statement["subject"][0]["annotations"]["publicKey"]
        name = identity([from_base64("certificate", leaf)], pem)
        text += f" It names the X.509 identity {name}, which nothing here checks."
    return text
