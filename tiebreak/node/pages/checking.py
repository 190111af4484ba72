"""Checks a file (certificate, job, head or receipt) by the parties' own code, and says what it proves."""

from contextlib import suppress
from re import IGNORECASE
from re import compile as pattern
from typing import Final

from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.node.pages import views, words
from tiebreak.node.pages.source import PageSource
from tiebreak.node.pages.words import Values
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES
from tiebreak.protocol.commitments.job import LogReceipt, SignedHead, SignedJob
from tiebreak.protocol.errors import EncodingError, VerificationError

MAX_FORM_BYTES: Final = MAX_ENVELOPE_BYTES + (1 << 14)
MAX_PARTS: Final = 16
_BOUNDARY: Final = pattern('multipart/form-data *;.*boundary="?(?P<text>[^";, ]{1,70})', IGNORECASE)


def file_in(body: bytes, content_type: str) -> bytes:
    """The one file of a form that a browser sent: the first part of its name. Raises `EncodingError`.

    The form is split once, by its own boundary: nothing inside a part is taken for structure.
    """
    if (boundary := _BOUNDARY.match(content_type)) is not None:
        delimiter = b"\r\n--" + boundary["text"].encode("latin-1", "replace")
        for part in (b"\r\n" + body).split(delimiter, MAX_PARTS)[1:MAX_PARTS]:
            head, _, data = part.partition(b"\r\n\r\n")
            if b'name="file"' in head and data:
                return data
    raise EncodingError("expected a file, got a form without one")


def refusal(title: str, *, holds: bool | None = None) -> Values:
    """A file that does not hold; holds: None if this hub cannot know whether it does."""
    return {"holds": holds, "title": title, "kind": "", "job": None, "signed": None}


def check(data: bytes, source: PageSource) -> Values:
    """Find out a file's kind and whether it holds. For heads and receipts the hub has to know the job.

    The template says what it proves. place: here, elsewhere, or unknown to this hub; empty if the hub must know it.
    """
    refused = "A certificate that does not hold"
    try:
        if data.lstrip().startswith(b"{"):
            certificate = SignedCertificate.read(data)
            return _holds("certificate", certificate, certificate.certificate.agreement, source)
        refused = "A job file that does not hold"
        with suppress(EncodingError):
            signed_job = SignedJob.decode(data)
            signed_job.verify()
            return _holds("job", signed_job, signed_job, source)
        try:
            signed = SignedHead.decode(data)
        except VerificationError:
            return refusal("Nothing that this page can check: no certificate, job, head or receipt")
        if (job := views.agreed(source, signed.head.job_id)) is None:
            about = f"about job {words.short(signed.head.job_id)}, which this hub does not know"
            return refusal(f"A head or a receipt that may hold: it is {about}")
        refused = "For this hub’s board, it does not hold"
        kind = "head"
        try:
            signed.verify(job, source.domain)
        except VerificationError:
            LogReceipt(head=signed.head, signature=signed.signature).verify(job, source.domain)
            kind = "receipt"
        return {"holds": True, "kind": kind, "job": job, "signed": signed, "place": ""}
    except VerificationError as error:
        return refusal(f"{refused}: {words.clipped(str(error))}", holds=False)


def _holds(kind: str, signed: object, agreement: SignedJob, source: PageSource) -> Values:
    place = "elsewhere"
    if agreement.domain == source.domain:
        place = "unknown" if views.agreed(source, agreement.job.id) is None else "here"
    return {
        "holds": True, "kind": kind, "job": agreement.job, "signed": signed, "place": place,
        "has_board": source.domain.chain_id != 0,
    }  # fmt: skip
