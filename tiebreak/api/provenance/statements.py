"""Statements for other tools, signed by the P-256 key of a party that signed the certificate, too.

Two of them are here: SLSA provenance (v1), in which the job is the build, and program, data and first state are what it
depends on; and a training run for readers of in-toto, by a predicate of our own (docs/predicate.md), without the
proofs. Of a digest `tiebreakRoot` the value is the root of a tree (docs/SPEC.md), not the hash of a file.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tiebreak.api.provenance.filling import fill, template
from tiebreak.api.provenance.source import FormatSource, verify_command
from tiebreak.api.signing.attesting import SLSA, check_pem, public_pem, signed_for_others
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.statement import FILE, STATEMENT_TYPE, hexed, is_list, payload_of, sign, signers_of
from tiebreak.protocol.errors import ConfigurationError, SignatureError
from tiebreak.protocol.strict_json import JsonObject

PREDICATE: Final = "urn:tiebreak:training-run:1"
EVALUATION: Final = "urn:tiebreak:evaluation:1"
"""The same for an evaluation, with its metrics."""
_SLSA: Final = json.loads(template("slsa.json"))
_TRAINING_RUN: Final = json.loads(template("training_run.json"))


def payload_with(subjects: list[Any], kind: str, predicate: dict[str, Any], pem: str, **more: str) -> Payload:
    """The first subject names the P-256 key that signs. more: annotations of it in addition to the key."""
    subjects = [subjects[0] | {"annotations": {"publicKey": pem, **more}}, *subjects[1:]]
    return payload_of({"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": kind, "predicate": predicate})


def signed_envelope(source: FormatSource, payload: Callable[[FormatSource, str], Payload]) -> tuple[Envelope, str]:
    """An envelope signed by the P-256 key of the signer, and the PEM of that key."""
    if source.key is None:
        raise ConfigurationError("expected the key of whoever signs, got none")
    pem = public_pem(source.key)
    return signed_for_others(Envelope(payload=payload(source, pem)), source.key), pem


def checked_again(
    source: FormatSource, envelope: Envelope, payload: Callable[[FormatSource, str], Payload]
) -> tuple[Envelope, str]:
    """The envelope with the payload that the certificate gives, and the PEM of the P-256 key that signed it."""
    subject = JsonObject.parse("statement", envelope.payload.data, 8).take("subject", "at least one", is_list)[0]
    pem = JsonObject("subject", subject).inner("annotations").text("publicKey")
    check_pem(envelope, pem, source.signed.envelope)
    return replace(envelope, payload=payload(source, pem)), pem


def one_signature(data: bytes) -> Envelope:
    """Reads an envelope with one signature, which is not checked here. Raises `VerificationError`."""
    envelope = Envelope.decode(data)
    if len(envelope.signatures) != 1:
        raise SignatureError(f"expected one signature, got {len(envelope.signatures)}")
    return envelope


# ---------------------------------------------------------------- SLSA


def _slsa_payload(source: FormatSource, pem: str) -> Payload:
    values = source.fields()
    return payload_with(values["subject"], SLSA, fill(_SLSA, values), pem)


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


# ---------------------------------------------------------------- in-toto


def _run_payload(source: FormatSource, pem: str) -> Payload:
    signed, logged, values = source.signed, source.signed.certificate.job.is_logged, source.fields()
    # A replay with the trainer's log of roundings repeats what the log says, right or not.
    reproduced = not logged and any(one["by"] == "auditor" for one in signed.signatures)
    values |= {
        "level": "reproduced" if reproduced else "self_attested", "replay": "unverifiable" if logged else "same_bytes",
        "name": source.certificate, "command": verify_command(signed, source.certificate),
    }  # fmt: skip
    predicate, metrics = fill(_TRAINING_RUN, values), source.metrics
    predicate |= {"metrics": metrics} if metrics else {}
    return payload_with(values["subject"], EVALUATION if metrics else PREDICATE, predicate, pem)


def training_run(source: FormatSource) -> bytes:
    if not re.fullmatch(FILE, source.certificate):
        raise ConfigurationError(f"expected a certificate with a plain name, got {source.certificate!r}")
    return signed_envelope(source, _run_payload)[0].encode()


def training_run_again(source: FormatSource, data: bytes) -> bytes:
    envelope = one_signature(data)
    predicate = JsonObject.parse("statement", envelope.payload.data, 8).inner("predicate")
    name = predicate.inner("certificate").text("name", FILE)
    named = str(predicate.take("signers", "at least one", is_list))
    # Who signs later need not write the file again: it may name some of the signers, and its level is by those.
    signers = [signer for signer in source.signed.signers if hexed(signer) in named]
    known = replace(source, certificate=name, signed=replace(source.signed, signers=signers))
    return checked_again(known, envelope, _run_payload)[0].encode()


def training_run_says(data: bytes) -> str:
    statement = json.loads(Envelope.decode(data).payload.data)
    return f" Its level is {statement['predicate']['assuranceLevel']}."
