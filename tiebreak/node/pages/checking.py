"""Checks a file (certificate, job, head or receipt) by the parties' own code, and says what it proves."""

from collections.abc import Callable
from dataclasses import dataclass
from re import IGNORECASE
from re import compile as pattern
from typing import Final

from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.node.pages import words
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, LogReceipt, SignedHead, SignedJob
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.tags import Digest

MAX_FORM_BYTES: Final = MAX_ENVELOPE_BYTES + (1 << 14)
MAX_PARTS: Final = 16
_BOUNDARY: Final = pattern('multipart/form-data *;.*boundary="?(?P<text>[^";, ]{1,70})', IGNORECASE)
JobOf = Callable[[Digest], Job | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFinding:
    """The result of a check of a file, and what follows from it. `facts` name what the file is about.

    holds: None where this hub cannot know.
    """

    holds: bool | None
    title: str
    facts: tuple[tuple[str, str], ...] = ()
    proves: tuple[str, ...] = ()
    leaves_open: tuple[str, ...] = ()


def file_in(body: bytes, content_type: str) -> bytes:
    """The one file of a form that a browser sent: the first part of its name. Raises `EncodingError`.

    The form is split once, by its own boundary: nothing inside a part is taken for structure.
    """
    if len(body) > MAX_FORM_BYTES:
        raise EncodingError(f"expected a file of at most {MAX_FORM_BYTES} bytes, got a form of {len(body)}")
    boundary = _BOUNDARY.match(content_type)
    if boundary is not None:
        delimiter = b"\r\n--" + boundary["text"].encode("latin-1", "replace")
        for part in (b"\r\n" + body).split(delimiter, MAX_PARTS)[1:MAX_PARTS]:
            head, _, data = part.partition(b"\r\n\r\n")
            if b'name="file"' in head and data:
                return data
    raise EncodingError("expected a file, got a form without one")


def check(data: bytes, domain: Domain, job_of: JobOf) -> FileFinding:
    """Find out a file's kind and whether it holds. job_of: the jobs that this hub knows, for heads and receipts."""
    if data.lstrip().startswith(b"{"):
        try:
            return _of_certificate(SignedCertificate.read(data), domain, job_of)
        except VerificationError as error:
            return FileFinding(holds=False, title=f"A certificate that does not hold: {words.clipped(str(error))}")
    try:
        return _check_job(SignedJob.decode(data), domain, job_of)
    except EncodingError:
        pass
    except VerificationError as error:
        return FileFinding(holds=False, title=f"A job file that does not hold: {words.clipped(str(error))}")
    try:
        signed = SignedHead.decode(data)
    except VerificationError:
        return FileFinding(holds=None, title="Nothing that this page can check: no certificate, job, head or receipt")
    job = job_of(signed.head.job_id)
    if job is None:
        about = f"about job {words.short(signed.head.job_id)}, which this hub does not know"
        return FileFinding(holds=None, title=f"A head or a receipt that may hold: it is {about}")
    try:
        return _check_head(signed, job, domain)
    except VerificationError as error:
        return FileFinding(holds=False, title=f"For this hub’s board, it does not hold: {words.clipped(str(error))}")


def _of_certificate(signed: SignedCertificate, domain: Domain, job_of: JobOf) -> FileFinding:
    here, unknown = _place(signed.certificate.agreement, domain, job_of)
    found, job = signed.certificate, signed.certificate.job
    facts = [
        ("Job", job.id.hex()), ("Program", job.program_root.hex()), ("First state", job.initial_state_root.hex()),
        ("Data", job.data_root.hex()), ("Final state", found.record.state_root.hex()),
        *((f"SHA-256 of {name}", digest.hex()) for name, digest in found.files.items()),
        *((f"Signed by {signed.role(one)}", words.address(one)) for one in signed.signers),
    ]  # fmt: skip
    return FileFinding(
        holds=True,
        title="A certificate whose signatures and roots hold",
        facts=tuple(facts),
        proves=(*signed.proves(), *here),
        leaves_open=(
            "Whether weights that you have are its: `tiebreak verify` says so.",
            *signed.leaves_open(),
            *unknown,
        ),
    )


def _place(signed: SignedJob, domain: Domain, job_of: JobOf) -> tuple[list[str], list[str]]:
    """Sentences on where a job counts, as far as this hub knows, and on what it does not know."""
    if signed.domain != domain:
        return ["It was signed for another chain or board than this hub’s."], []
    if job_of(signed.job.id) is None:
        return [], ["Whether it counts anywhere: this hub has not seen the job."]
    where = "for the board that this hub follows" if domain.chain_id else "for no chain"
    return [f"It was signed {where}, and the job was offered at this hub."], []


def _check_job(signed: SignedJob, domain: Domain, job_of: JobOf) -> FileFinding:
    signed.verify()
    job, (here, unknown) = signed.job, _place(signed, domain, job_of)
    facts = (
        ("Job", job.id.hex()), ("Client", words.address(job.client)), ("Trainer", words.address(job.trainer)),
        ("Program", job.program_root.hex()), ("First state", job.initial_state_root.hex()),
        ("Data", job.data_root.hex()), ("Steps", f"{job.steps:,}"),
    )  # fmt: skip
    return FileFinding(
        holds=True,
        title="A job that both parties signed",
        facts=facts,
        proves=(
            "The client and the trainer both signed this program, first state, data and terms. "
            "These three roots fix every byte of the run.",
            *here,
        ),
        leaves_open=("Whether the run was done, and done right: a head and a replay of it have to say.", *unknown),
    )


def _check_head(signed: SignedHead, job: Job, domain: Domain) -> FileFinding:
    facts = (
        ("Job", job.id.hex()), ("Checkpoints", f"{signed.head.count} of {job.checkpoints}"),
        ("Up to step", f"{job.last_step(signed.head.count - 1):,}"), ("Run root", signed.head.run_root.hex()),
    )  # fmt: skip
    try:
        signed.verify(job, domain)
    except VerificationError:
        LogReceipt(head=signed.head, signature=signed.signature).verify(job, domain)
        return FileFinding(
            holds=True, title="A receipt that the client signed", facts=facts,
            proves=("The client said that it holds the rounding logs of all segments up to this head.",),
            leaves_open=("Whether the head is true: that is for a replay to find out.",),
        )  # fmt: skip
    return FileFinding(
        holds=True,
        title="A head that the job’s trainer signed",
        facts=facts,
        proves=("The trainer committed itself to this run root. If a replay gives another one, the trainer can be "
                "convicted with this file.",),
        leaves_open=("Whether the run is right: only a replay, or a window in which nobody objected, says so.",),
    )  # fmt: skip
