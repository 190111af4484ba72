"""SLSA provenance (v1): the job is the build, program, data and first state are what it depends on."""

from typing import Final

from tiebreak.api.provenance.envelopes import checked_again, payload_with, signed_envelope
from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.signing.attesting import SLSA
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.statement import sign, signers_of
from tiebreak.protocol.errors import ConfigurationError, SignatureError

ROOT: Final = "tiebreakRoot"
"""The name of a digest that is the root of a tree (docs/SPEC.md), not the hash of a file."""


def _slsa_payload(source: FormatSource, pem: str) -> Payload:
    certificate = source.signed.certificate
    document = certificate.document()
    job = document["predicate"]["job"]
    dependencies = [{"name": name, "digest": {ROOT: job[name]}} for name in ("program", "data", "firstState")]
    predicate = {
        "buildDefinition": {
            "buildType": "urn:tiebreak:job:1", "externalParameters": {"job": job}, "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {"id": f"urn:tiebreak:trainer:{job['trainer']}"}, "metadata": {"invocationId": job["id"]},
            "byproducts": [{"name": "run", "digest": {ROOT: certificate.head.head.run_root.hex()}}],
        },
    }  # fmt: skip
    return payload_with(document["subject"], SLSA, predicate, pem)


def slsa(source: FormatSource) -> bytes:
    key, trainer = source.key, source.signed.certificate.job.trainer
    if key is None or key.address != trainer:
        raise ConfigurationError(f"expected the key of the trainer, 0x{trainer.hex()}, SLSA's builder, got another")
    return sign(signed_envelope(source, _slsa_payload)[0], key).encode()


def slsa_again(source: FormatSource, data: bytes) -> bytes:
    envelope, trainer = Envelope.decode(data), source.signed.certificate.job.trainer
    if signers_of(envelope, "SLSA provenance") != [trainer]:
        raise SignatureError(f"expected a signature by the trainer, 0x{trainer.hex()}, got none or others")
    return checked_again(source, envelope, _slsa_payload)[0].encode()
