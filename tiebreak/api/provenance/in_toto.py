"""A training run for readers of in-toto, by a predicate of our own (docs/predicate.md), without the proofs."""

import json
import re
from dataclasses import replace
from typing import Final

from tiebreak.api.provenance.envelopes import checked_again, one_signature, payload_with, signed_envelope
from tiebreak.api.provenance.slsa import ROOT
from tiebreak.api.provenance.source import FormatSource, verify_command
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.statement import FILE, hexed, is_list
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.strict_json import JsonObject

PREDICATE: Final = "urn:tiebreak:training-run:1"


def _payload(source: FormatSource, pem: str) -> Payload:
    signed, certificate = source.signed, source.signed.certificate
    job, document = certificate.job, certificate.document()
    roots = {name: document["predicate"]["job"][name] for name in ("program", "data", "firstState")}
    if certificate.adapter is not None:
        roots["base"] = certificate.adapter.root.hex()
    roles = {hexed(signer): signed.role(signer) for signer in signed.signers}
    # A replay with the trainer's log of roundings repeats what the log says, right or not.
    reproduced = "auditor" in roles.values() and not job.is_logged
    predicate = {
        "assuranceLevel": "reproduced" if reproduced else "self_attested",
        "job": {"id": job.id.hex(), "steps": job.steps},
        "inputs": [{"name": name, "digest": {ROOT: root}} for name, root in roots.items()],
        "finalState": {"digest": {ROOT: certificate.record.state_root.hex()}},
        "arithmetic": {
            "policy": document["predicate"]["job"]["policy"], "precision": job.precision,
            "replay": "unverifiable" if job.is_logged else "same_bytes",
        },
        "signers": [{"id": signer, "role": role} for signer, role in roles.items()],
        "certificate": {
            "name": source.certificate, "digest": {"tiebreakCertificate": certificate.payload.digest.hex()},
        },
        "verification": {"command": verify_command(signed, source.certificate)},
    }  # fmt: skip
    return payload_with(document["subject"], PREDICATE, predicate, pem)


def training_run(source: FormatSource) -> bytes:
    if not re.fullmatch(FILE, source.certificate):
        raise ConfigurationError(f"expected a certificate with a plain name, got {source.certificate!r}")
    return signed_envelope(source, _payload)[0].encode()


def training_run_again(source: FormatSource, data: bytes) -> bytes:
    envelope = one_signature(data)
    predicate = JsonObject.parse("statement", envelope.payload.data, 8).inner("predicate")
    name = predicate.inner("certificate").text("name", FILE)
    named = str(predicate.take("signers", "at least one", is_list))
    # Who signs later need not write the file again: it may name some of the signers, and its level is by those.
    signers = [signer for signer in source.signed.signers if hexed(signer) in named]
    known = replace(source, certificate=name, signed=replace(source.signed, signers=signers))
    return checked_again(known, envelope, _payload)[0].encode()


def training_run_says(data: bytes) -> str:
    statement = json.loads(Envelope.decode(data).payload.data)
    return f" Its level is {statement['predicate']['assuranceLevel']}."
