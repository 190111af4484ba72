"""A Computation Receipt of a run (`tiebreak.protocol.commitments.computation_receipts`)."""

from tiebreak.api.provenance.source import FormatSource
from tiebreak.protocol.commitments.computation_receipts import receipt_of_run, verdict
from tiebreak.protocol.errors import VerificationError


def receipt(source: FormatSource) -> bytes:
    made = source.signed.certificate
    return receipt_of_run(made.job, made.record.state_root, {"tiebreakCertificate": made.payload.digest.hex()})


def receipt_again(source: FormatSource, data: bytes) -> bytes:
    own = receipt(source)
    if data != own:
        raise VerificationError(f"expected the receipt of this certificate, got another: {verdict(data, own)}")
    return own
