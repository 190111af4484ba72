"""Statements for other tools, signed by the P-256 key of a party that signed the certificate, too."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tiebreak.api.provenance.source import FormatSource
from tiebreak.api.signing.attesting import check_pem, public_pem, signed_for_others
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.statement import STATEMENT_TYPE, is_list, payload_of
from tiebreak.protocol.errors import ConfigurationError, SignatureError
from tiebreak.protocol.strict_json import JsonObject


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
    statement = JsonObject.parse("statement", envelope.payload.data, 8)
    subject = statement.take("subject", "at least one", is_list)[0]
    pem = JsonObject("subject", subject).inner("annotations").text("publicKey")
    check_pem(envelope, pem, source.signed.envelope)
    return replace(envelope, payload=payload(source, pem)), pem


def one_signature(data: bytes) -> Envelope:
    """Reads an envelope with one signature, which is not checked here. Raises `VerificationError`."""
    envelope = Envelope.decode(data)
    if len(envelope.signatures) != 1:
        raise SignatureError(f"expected one signature, got {len(envelope.signatures)}")
    return envelope
