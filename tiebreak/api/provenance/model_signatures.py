"""OpenSSF model signing (v1.0): the files of the weights with their SHA-256, in a Sigstore bundle."""

import json
from hashlib import sha256

from tiebreak.api.provenance.envelopes import checked_again, payload_with
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.signing.attesting import public_pem, signed_for_others
from tiebreak.protocol.commitments.certificate import Certificate
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.errors import ConfigurationError, SignatureError
from tiebreak.protocol.strict_json import JsonObject


def _resources(certificate: Certificate, pem: str) -> Payload:
    digests = {file: certificate.files[file] for file in sorted(certificate.files)}
    predicate = {
        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []},
        "resources": [{"name": n, "algorithm": "sha256", "digest": d.hex()} for n, d in digests.items()],
    }
    subject = {"name": certificate.job.id.hex(), "digest": {"sha256": sha256(b"".join(digests.values())).hexdigest()}}
    return payload_with([subject], "https://model_signing/signature/v1.0", predicate, pem)


def _bundle(envelope: Envelope, pem: str) -> bytes:
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": json.loads(envelope.encode()),
        "verificationMaterial": {"publicKey": {"hint": sha256(pem.encode()).hexdigest()}, "tlogEntries": []},
    }  # fmt: skip
    return json.dumps(bundle).encode() + b"\n"


def model_signature(source: FormatSource) -> bytes:
    if source.key is None:
        raise ConfigurationError("expected the key of whoever signs the model, got none")
    pem = public_pem(source.key)
    envelope = Envelope(payload=_resources(source.signed.certificate, pem))
    return _bundle(signed_for_others(envelope, source.key), pem)


def model_signature_again(source: FormatSource, data: bytes) -> bytes:
    found = JsonObject.parse("bundle", data, 8).take("dsseEnvelope", "an object", lambda x: isinstance(x, dict))
    envelope = Envelope.decode(json.dumps(found).encode())
    if len(envelope.signatures) != 1:
        raise SignatureError(f"expected one signature, got {len(envelope.signatures)}")
    return _bundle(*checked_again(source, envelope, _resources))
