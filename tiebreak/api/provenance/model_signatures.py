"""OpenSSF model signing (v1.0): the files of a folder with their SHA-256, in a Sigstore bundle.

The resources are the files of the weights, by the certificate, and, if that is for a folder, all other files in it as
they are, but for this one and git's, which `model_signing` passes over by default. A chain of X.509 certificates of the
key (`x509_chains`) may be in the place of the key's hash; the statement has the chain's SHA-256.
"""

import json
from dataclasses import replace
from hashlib import sha256

from tiebreak.api.certification import folders
from tiebreak.api.provenance.envelopes import checked_again, one_signature, payload_with
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.provenance.x509_chains import MAX_CERTIFICATES, chain_digest, check_chain, identity
from tiebreak.api.signing.attesting import public_pem, signed_for_others
from tiebreak.protocol.commitments.dsse import Envelope, Payload, base64, from_base64
from tiebreak.protocol.commitments.statement import is_list
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest


def _payload(source: FormatSource, pem: str) -> Payload:
    certificate, digests = source.signed.certificate, dict(source.signed.certificate.files)
    ignored = () if certificate.others is None else (*folders.GIT, folders.MODEL_SIGNATURE)
    if certificate.others is not None:
        digests |= {name: Digest(sha256(data).digest()) for name, data in source.pending.items()}
        digests |= folders.other_digests(source.folder, digests.keys() | {*ignored})
    files = {name: digests[name] for name in sorted(digests, key=lambda name: name.split("/"))}
    predicate = {
        "serialization": {
            "method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": [*ignored],
        },
        "resources": [{"name": n, "algorithm": "sha256", "digest": d.hex()} for n, d in files.items()],
    }  # fmt: skip
    subject = {"name": certificate.job.id.hex(), "digest": {"sha256": sha256(b"".join(files.values())).hexdigest()}}
    chained = {"certificateChain": chain_digest(source.chain)} if source.chain else {}
    return payload_with([subject], "https://model_signing/signature/v1.0", predicate, pem, **chained)


def _bundle(source: FormatSource, envelope: Envelope, pem: str) -> bytes:
    material: dict[str, object] = {"publicKey": {"hint": sha256(pem.encode()).hexdigest()}}
    if source.chain:
        material = {"x509CertificateChain": {"certificates": [{"rawBytes": base64(one)} for one in source.chain]}}
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": json.loads(envelope.encode()),
        "verificationMaterial": material | {"tlogEntries": []},
    }  # fmt: skip
    return json.dumps(bundle).encode() + b"\n"


def model_signature(source: FormatSource) -> bytes:
    if source.key is None:
        raise ConfigurationError("expected the key of whoever signs the model, got none")
    pem = public_pem(source.key)
    if source.chain:
        check_chain(source.chain, pem)
    return _bundle(source, signed_for_others(Envelope(payload=_payload(source, pem)), source.key), pem)


def model_signature_again(source: FormatSource, data: bytes) -> bytes:
    bundle = JsonObject.parse("bundle", data, 8)
    material = bundle.inner("verificationMaterial")
    if "x509CertificateChain" in material:
        few = f"up to {MAX_CERTIFICATES} certificates"
        listed = material.inner("x509CertificateChain").take(
            "certificates", few, lambda x: is_list(x) and len(x) <= MAX_CERTIFICATES
        )
        texts = [JsonObject("certificate", one).text("rawBytes") for one in listed]
        source = replace(source, chain=tuple(from_base64("certificate", text) for text in texts))
    envelope = one_signature(json.dumps(bundle.take("dsseEnvelope", "an object", lambda _: True)).encode())
    envelope, pem = checked_again(source, envelope, _payload)
    if source.chain:
        check_chain(source.chain, pem)
    return _bundle(source, envelope, pem)


def model_signature_says(data: bytes) -> str:
    bundle = json.loads(data)
    statement = json.loads(from_base64("payload", bundle["dsseEnvelope"]["payload"]))
    text = f" It covers {len(statement['predicate']['resources'])} files."
    if (chain := bundle["verificationMaterial"].get("x509CertificateChain")) is not None:
        leaf = from_base64("certificate", chain["certificates"][0]["rawBytes"])
        text += f" It names the X.509 identity {identity(leaf)}, which nothing here checks."
    return text
