"""The statements of a certificate in two other formats, for tools that know those and not it.

SLSA provenance (v1): the job is the build definition, with the job file as its external parameters; program, data and
first state are its dependencies, the trainer is the builder. OpenSSF model signing (v1.0): the files of the weights
with their SHA-256, in a Sigstore bundle, for `model_signing verify key`. Each is signed by a party's P-256 key
(`certifying.attesting_key`). Both say less than the certificate, and prove less: docs/certificates.md.
"""

import json
from hashlib import sha256
from typing import Any, Final

from tiebreak.api.certification.certifying import public_pem, signed_for_others
from tiebreak.protocol.commitments.certificate import PAYLOAD_TYPE, STATEMENT_TYPE, Certificate
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

SLSA: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:tiebreak:job:1"
MODEL_SIGNING: Final = "https://model_signing/signature/v1.0"
BUNDLE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
ROOT: Final = "tiebreakRoot"
"""The name of a digest that is the root of a tree (docs/SPEC.md), not the hash of a file."""


def provenance(certificate: Certificate, key: PrivateKey) -> bytes:
    """SLSA provenance, in a DSSE envelope. Raises `ConfigurationError` if the key is not that of the trainer."""
    if key.address != certificate.job.trainer:
        raise ConfigurationError(
            f"expected the key of the trainer, 0x{certificate.job.trainer.hex()}, who is the builder in SLSA "
            f"provenance, got that of 0x{key.address.hex()}"
        )
    document = certificate.document()
    job = document["predicate"]["job"]
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"job": job},
            "resolvedDependencies": [
                {"name": name, "digest": {ROOT: job[name]}} for name in ("program", "data", "firstState")
            ],
        },
        "runDetails": {
            "builder": {"id": f"urn:tiebreak:trainer:{job['trainer']}"},
            "metadata": {"invocationId": job["id"]},
            "byproducts": [{"name": "run", "digest": {ROOT: certificate.head.head.run_root.hex()}}],
        },
    }
    return _signed(document["subject"], SLSA, predicate, key).encode()


def model_signature(certificate: Certificate, name: str, key: PrivateKey) -> bytes:
    """An OpenSSF model signature over the files of the weights, in a Sigstore bundle. name: the model's."""
    digests = {file: certificate.files[file] for file in sorted(certificate.files)}
    predicate = {
        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []},
        "resources": [{"name": n, "algorithm": "sha256", "digest": d.hex()} for n, d in digests.items()],
    }
    subject = {"name": name, "digest": {"sha256": sha256(b"".join(digests.values())).hexdigest()}}
    hint = sha256(public_pem(key).encode()).hexdigest()
    bundle = {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
        "dsseEnvelope": json.loads(_signed([subject], MODEL_SIGNING, predicate, key).encode()),
    }
    return json.dumps(bundle).encode() + b"\n"


def _signed(subjects: list[Any], kind: str, predicate: dict[str, Any], key: PrivateKey) -> Envelope:
    statement = {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": kind, "predicate": predicate}
    data = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode("ascii")
    return signed_for_others(Envelope(payload=Payload(kind=PAYLOAD_TYPE, data=data)), key)
