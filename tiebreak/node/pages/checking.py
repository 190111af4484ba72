"""Checks a file (certificate, job, head or receipt) by the parties' own code, and says what it proves."""

from collections.abc import Sequence
from contextlib import suppress
from re import IGNORECASE
from re import compile as pattern
from typing import Final

from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.node.pages import views, words
from tiebreak.node.pages.feed import Feed
from tiebreak.node.pages.words import Values
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, LogReceipt, SignedHead, SignedJob
from tiebreak.protocol.errors import EncodingError, VerificationError

MAX_FORM_BYTES: Final = MAX_ENVELOPE_BYTES + (1 << 14)
MAX_PARTS: Final = 16
_BOUNDARY: Final = pattern('multipart/form-data *;.*boundary="?(?P<text>[^";, ]{1,70})', IGNORECASE)


def file_in(body: bytes, content_type: str) -> bytes:
    """The one file of a form that a browser sent: the first part of its name. Raises `EncodingError`.

    The form is split once, by its own boundary: nothing inside a part is taken for structure.
    """
    boundary = _BOUNDARY.match(content_type)
    if boundary is not None:
        delimiter = b"\r\n--" + boundary["text"].encode("latin-1", "replace")
        for part in (b"\r\n" + body).split(delimiter, MAX_PARTS)[1:MAX_PARTS]:
            head, _, data = part.partition(b"\r\n\r\n")
            if b'name="file"' in head and data:
                return data
    raise EncodingError("expected a file, got a form without one")


def finding(
    holds: bool | None, title: str, facts: Sequence[tuple[str, str]] = (), proves: Sequence[str] = (),
    leaves_open: Sequence[str] = (),
) -> Values:  # fmt: skip
    """The result of a check, and what follows from it. holds: None where this hub cannot know. facts: its subject."""
    return {"holds": holds, "title": title, "facts": facts, "proves": proves, "leaves_open": leaves_open}


def check(data: bytes, source: Feed) -> Values:
    """Find out a file's kind and whether it holds. For heads and receipts the hub has to know the job."""
    refused = "A certificate that does not hold"
    try:
        if data.lstrip().startswith(b"{"):
            return _check_certificate(SignedCertificate.read(data), source)
        refused = "A job file that does not hold"
        with suppress(EncodingError):
            return _check_job(SignedJob.decode(data), source)
        try:
            signed = SignedHead.decode(data)
        except VerificationError:
            return finding(None, "Nothing that this page can check: no certificate, job, head or receipt")
        job = views.agreed(source, signed.head.job_id)
        if job is None:
            about = f"about job {words.short(signed.head.job_id)}, which this hub does not know"
            return finding(None, f"A head or a receipt that may hold: it is {about}")
        refused = "For this hub’s board, it does not hold"
        return _check_head(signed, job, source.domain)
    except VerificationError as error:
        return finding(holds=False, title=f"{refused}: {words.clipped(str(error))}")


def _check_certificate(signed: SignedCertificate, source: Feed) -> Values:
    here, unknown = _place(signed.certificate.agreement, source)
    found, job = signed.certificate, signed.certificate.job
    facts = [
        ("Job", job.id.hex()), ("Program", job.program_root.hex()), ("First state", job.initial_state_root.hex()),
        ("Data", job.data_root.hex()), ("Final state", found.record.state_root.hex()),
        *((f"SHA-256 of {name}", digest.hex()) for name, digest in found.files.items()),
        *((f"Signed by {signed.role(one)}", words.address(one)) for one in signed.signers),
    ]  # fmt: skip
    weights = "Whether weights that you have are its: `tiebreak verify` says so."
    title = "A certificate whose signatures and roots hold"
    return finding(True, title, facts, (*signed.proves(), *here), (weights, *signed.leaves_open(), *unknown))


def _place(signed: SignedJob, source: Feed) -> tuple[list[str], list[str]]:
    """Sentences on where a job counts, as far as this hub knows, and on what it does not know."""
    if signed.domain != source.domain:
        return ["It was signed for another chain or board than this hub’s."], []
    if views.agreed(source, signed.job.id) is None:
        return [], ["Whether it counts anywhere: this hub has not seen the job."]
    where = "for the board that this hub follows" if source.domain.chain_id else "for no chain"
    return [f"It was signed {where}, and the job was offered at this hub."], []


def _check_job(signed: SignedJob, source: Feed) -> Values:
    signed.verify()
    job, (here, unknown) = signed.job, _place(signed, source)
    facts = (
        ("Job", job.id.hex()), ("Client", words.address(job.client)), ("Trainer", words.address(job.trainer)),
        ("Program", job.program_root.hex()), ("First state", job.initial_state_root.hex()),
        ("Data", job.data_root.hex()), ("Steps", f"{job.steps:,}"),
    )  # fmt: skip
    proves = (
        "The client and the trainer both signed this program, first state, data and terms. "
        "These three roots fix every byte of the run."
    )
    leaves_open = "Whether the run was done, and done right: a head and a replay of it have to say."
    return finding(True, "A job that both parties signed", facts, [proves, *here], [leaves_open, *unknown])


def _check_head(signed: SignedHead, job: Job, domain: Domain) -> Values:
    facts = (
        ("Job", job.id.hex()), ("Checkpoints", f"{signed.head.count} of {job.checkpoints}"),
        ("Up to step", f"{job.last_step(signed.head.count - 1):,}"), ("Run root", signed.head.run_root.hex()),
    )  # fmt: skip
    try:
        signed.verify(job, domain)
    except VerificationError:
        LogReceipt(head=signed.head, signature=signed.signature).verify(job, domain)
        proves = "The client said that it holds the rounding logs of all segments up to this head."
        leaves_open = "Whether the head is true: that is for a replay to find out."
        return finding(True, "A receipt that the client signed", facts, [proves], [leaves_open])
    proves = (
        "The trainer committed itself to this run root. If a replay gives another one, the trainer can be convicted "
        "with this file."
    )
    leaves_open = "Whether the run is right: only a replay, or a window in which nobody objected, says so."
    return finding(True, "A head that the job’s trainer signed", facts, [proves], [leaves_open])
