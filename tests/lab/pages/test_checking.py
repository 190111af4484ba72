"""A file that is dropped on the page is checked by the parties' own code."""

from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.lab.pages.staged import Staged
from tests.protocol import certified
from tests.protocol.certified import CLIENT, DOMAIN, STRANGER, TRAINER
from tests.protocol.runs import make_job
from tiebreak.node.pages import checking
from tiebreak.node.pages.routes import routes
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Domain
from tiebreak.protocol.commitments.job import Head, LogReceipt, SignedHead, SignedJob
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.program.rounding import Policy
from tiebreak.protocol.tags import Digest

PARTIES = {"client": CLIENT.address, "trainer": TRAINER.address}
JOB = replace(make_job(steps=10, interval=4), policy=int(Policy.LOGGED), **PARTIES)
HEAD = Head(job_id=JOB.id, count=2, run_root=Digest(b"\4" * 32))


def source() -> Staged:
    made = Staged(domain=DOMAIN, at=1_700_000_000, board=Board())
    made.say(p.OfferBody(job=JOB), JOB.client, JOB.id, 1_700_000_000)
    return made


def dropped(data: bytes) -> tuple[int, str]:
    answer = TestClient(Starlette(routes=routes(source()))).post("/check", files={"file": ("x", data)})
    return answer.status_code, answer.text


def signed_job(domain: Domain = DOMAIN) -> SignedJob:
    client, trainer = (JOB.sign(domain, key) for key in (CLIENT, TRAINER))
    return SignedJob(domain=domain, job=JOB, client_signature=client, trainer_signature=trainer)


def test_signed_jobs_heads_and_receipts_are_verified() -> None:
    status, text = dropped(signed_job().encode())
    assert (status, "A job that both parties signed" in text, JOB.program_root.hex() in text) == (200, True, True)
    assert "It was signed for the board that this hub follows, and the job was offered" in text
    assert "signed for another chain or board" in dropped(signed_job(replace(DOMAIN, chain_id=5)).encode())[1]
    status, text = dropped(SignedHead.sign(HEAD, DOMAIN, TRAINER).encode())
    assert (status, "trainer signed" in text, HEAD.run_root.hex() in text) == (200, True, True)
    status, text = dropped(LogReceipt.sign(HEAD, DOMAIN, CLIENT).encode())
    assert (status, "A receipt that the client signed" in text) == (200, True)


def test_a_certificate_is_checked_without_its_weights() -> None:
    made = certified.certificate()
    status, text = dropped(certified.envelope(made, certified.TRAINER, certified.AUDITOR).encode())
    assert status == 200
    for expected in (
        "A certificate whose signatures and roots hold", made.record.state_root.hex(), "SHA-256 of model-00001",
        "Signed by auditor", "this hub has not seen the job", "Whether weights that you have are its",
        "anybody can make keys", "no node of its chain was asked",
    ):  # fmt: skip
        assert expected in text
    proven, unknown = text.split("What it does not")
    assert ("this hub has not seen" in proven, "board that this hub" in proven + unknown) == (False, False)
    bare = certified.certificate(domain=OFF_CHAIN, audits=(), settlement=None)
    assert "signed for another chain or board" in dropped(certified.envelope(bare).encode())[1]
    elsewhere = replace(made, agreement=replace(made.agreement, domain=replace(DOMAIN, chain_id=5)))
    for other in (certified.envelope(made, certified.CLIENT), certified.envelope(elsewhere)):
        status, text = dropped(other.encode())
        assert (status, "A certificate that does not hold" in text) == (422, True)


@pytest.mark.parametrize(
    ("data", "said", "is_known"),
    [
        (replace(signed_job(), trainer_signature=STRANGER.sign(JOB.digest(DOMAIN))).encode(), "does not hold", True),
        (SignedHead.sign(replace(HEAD, count=4), DOMAIN, TRAINER).encode(), "at most 3 checkpoints", True),
        (SignedHead.sign(HEAD, DOMAIN, STRANGER).encode(), "For this hub’s board, it does not hold", True),
        (b'{"payload": "<script>alert(1)</script>"}', "A certificate that does not hold", True),
        (SignedHead.sign(replace(HEAD, job_id=Digest(b"\5" * 32)), DOMAIN, TRAINER).encode(), "does not know", False),
        (b"<script>alert(1)</script>", "Nothing that this page can check", False),
        (b"", "Nothing to check", False),
    ],
)  # fmt: skip
def test_false_files_fail_and_unknown_ones_are_reported_as_unknown(data: bytes, said: str, *, is_known: bool) -> None:
    """What is unknown is neither false nor true."""
    status, text = dropped(data)
    assert status == 422
    assert said in text
    assert "<script>alert" not in text
    if not is_known:
        (title,) = [line for line in text.splitlines() if line.startswith("<h2 ")]
        assert 'class="soft"' in title
        assert "does not hold" not in text


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=", "\u0141\n"]
)
def test_a_body_that_is_not_a_multipart_form_is_refused(kind: str) -> None:
    with pytest.raises(EncodingError, match="expected a file"):
        checking.file_in(b"--x\r\n\r\nabc", kind)


def test_nested_multipart_forms_are_not_split_again() -> None:
    """However deep what it holds is nested, and whatever else a part of it is called."""
    parts = (b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (n, n + 1) for n in range(1200))
    with pytest.raises(EncodingError, match="a form without one"):
        checking.file_in(b"".join(parts), "multipart/form-data; boundary=0")
    inner = b'--2\r\nContent-Disposition: form-data; name="file"\r\n\r\ninner\r\n--2--'
    form = b'--1\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%s\r\n--1--\r\n' % inner
    assert checking.file_in(form, 'multipart/form-data; boundary="1"') == inner


def test_a_form_above_the_limit_is_refused() -> None:
    status, text = dropped(bytes(1 << 20))
    assert (status, "Nothing to check" in text) == (422, True)
