"""What one post, game or answer raises ends no thread of a node; only what cannot be kept in the journal stops it."""

from collections.abc import Sized
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER
from tests.protocol.town import PACE
from tests.tiebreak.node.hubs import JOB, OFFER, own_job
from tiebreak.node import driver, hub_traffic, parties
from tiebreak.node.board_source import HubSource
from tiebreak.node.driver import Driver
from tiebreak.node.hub_client import HubForgot, VerifiedPost
from tiebreak.node.journal import Journal
from tiebreak.node.parties import AcceptancePolicy, JobFiles
from tiebreak.protocol.chain import board_state
from tiebreak.protocol.chain.board_state import FollowedBoard
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties.auditor import WatcherParty
from tiebreak.protocol.parties.board import PublicJob


def raising(*_: Any, **__: Any) -> Any:
    raise ValueError("of no family")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> tuple[Driver, list[tuple[str, str]]]:
    """A driver of which everything outside raises, with the errors and warnings that it notes."""
    monkeypatch.setattr(hub_traffic, "PAUSE_SECONDS", 0)
    noted: list[tuple[str, str]] = []
    notes = SimpleNamespace(info=lambda *_, **__: None, warn=lambda *said: noted.append(said), error=noted.append)
    notes.error = notes.warn
    made = Driver(
        WatcherParty(board=FollowedBoard(), domain=DOMAIN, pace=PACE),
        board_source=SimpleNamespace(poll=raising, now=lambda: 7, domain=DOMAIN, light_client=None),  # type: ignore[arg-type]
        hub_client=SimpleNamespace(read=raising, turn=lambda: None, hub=b""),  # type: ignore[arg-type]
        journal=SimpleNamespace(append=raising, fact=raising),  # type: ignore[arg-type]
        workers=SimpleNamespace(listeners=SimpleNamespace(), drop=lambda _: [], move_only=lambda _: None),  # type: ignore[arg-type]
        job_files=SimpleNamespace(), notes=notes,  # type: ignore[arg-type]
    )  # fmt: skip
    return made, noted


def test_main_loop_survives_any_error_of_a_post_or_the_board_source(there: Any) -> None:
    made, noted = there
    made.machine.board.disagreements.append("Entered: of no lawful play")
    made.inbox.put(raising)
    made.step(0)
    failure = "unexpected ValueError: of no family"
    assert noted[:3] == [("post", failure), ("loop", failure), ("board", "Entered: of no lawful play")]
    made.view.note_changes()
    assert [one for one in noted if one[0] == "board"] == [("board", "Entered: of no lawful play")]


def verified(place: int, wire: bytes) -> VerifiedPost:
    signed = posts.SignedPost.decode(wire)
    received = posts.ReceivedPost(place=place, at=7, wire=wire, signature=bytes(65))
    return VerifiedPost(received=received, post=signed.post, body=signed.verify(DOMAIN))


def test_trainer_stores_nothing_of_strangers_jobs(there: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trainer names its clients: jobs of others are not its own even if they name it."""
    made, _ = there
    facts: dict[str, bytes] = {}
    made.job_files = JobFiles(tmp_path)
    made.journal = made.traffic._journal = SimpleNamespace(keep_fact=facts.__setitem__)
    policy = AcceptancePolicy(clients=(CLIENT.address,))
    known = {"domain": DOMAIN, "pace": PACE, "key": TRAINER, "job_files": made.job_files}
    made.machine = parties.TrainerNode(board=FollowedBoard(), policy=policy, **known)

    def held() -> dict[str, int]:
        parts = {**vars(made), **vars(made.traffic), **vars(made.view)}
        return {name: len(value) for name, value in parts.items() if isinstance(value, Sized)}

    before = held()
    for number in range(5):
        key = PrivateKey.from_int(100 + number)
        for place, wire in enumerate([*own_job(key), *own_job(key, TRAINER)[:1]]):
            made._receive(verified(1 + 10 * number + place, wire))
    assert held() == before
    made._receive(verified(100, OFFER))
    turned: list[int] = []
    made.traffic.hub_client.turn = lambda: turned.append(1)
    for _ in range(2):
        made._choose()
        made.traffic.ask()
    assert (made.traffic.wanted, len(turned)) == ({JOB.id}, 1)
    made.traffic._cursor = "read"
    made.traffic.keep_cursor()
    assert facts == {"own jobs": JOB.id, "read": (100).to_bytes(8, "big") + OFFER}
    monkeypatch.setattr(driver, "MAX_OWN", 2)
    made.machine.board.jobs[JOB.id] = PublicJob(job=JOB, last_progress=0)
    made._trials = {bytes(32): True}
    for number in range(3):
        made._adopt(bytes([number]) * 32)
    assert not made._trials, "of a job that is forgotten nothing stays"
    assert list(made._own) == [JOB.id, bytes([2]) * 32], "what is on the board stays"


def test_reported_board_disagreements_are_bounded(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = there
    monkeypatch.setattr(board_state, "MAX_DISAGREEMENTS", 3)
    for number in range(5):
        made.machine.board._disagree([SimpleNamespace(name=f"Entered {number}")], ValueError())
    made.view.note_changes()
    assert len(made.machine.board.disagreements) == len(made.view._disagreed) == 3
    made.machine.board.disagreements.clear()
    made.view.note_changes()
    assert not made.view._disagreed


@pytest.mark.parametrize("thread", ["_read", "_send"])
def test_hub_threads_survive_any_hub_or_disk_error(there: Any, thread: str) -> None:
    made, noted = there
    tries: list[int] = []

    def ask(*_: Any) -> None:
        tries.append(1)
        if len(tries) == 3:
            made.stop.set()
        raising()

    made.traffic.hub_client.read = made.journal.fact = ask
    getattr(made.traffic, thread)()
    assert len(tries) == 3
    assert noted == [("hub", "ValueError('of no family')")]


def test_a_node_stops_if_its_journal_cannot_be_written(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = there
    alarm = e.Alarm(is_error=True, text="said after it")
    monkeypatch.setattr(made.machine, "observe", lambda _: (e.AppendRecord(place=("a",), data=b""), alarm))
    with pytest.raises(ValueError, match="of no family"):
        made.tell(e.Tick(at=7))
    assert made.stop.is_set()


def test_client_names_the_auditors_of_its_offer_once_the_ledger_has_the_job(there: Any, tmp_path: Path) -> None:
    """Not before, once for as long as the process lives and after a restart, and never where there is a chain."""
    made, noted = there
    own = tmp_path / "client"
    job = replace(JOB, nonce=99)
    offer = SignedJob(domain=OFF_CHAIN, job=job, client_signature=job.sign(OFF_CHAIN, CLIENT))
    (tmp_path / "offer").mkdir()
    (tmp_path / "offer" / "offer.bin").write_bytes(offer.encode())
    accounts = (CHALLENGER.address, TRAINER.address)
    place = parties.deliver(tmp_path / "offer", own, accounts)
    assert parties.auditors_in(place) == accounts
    known = {"domain": OFF_CHAIN, "pace": PACE, "key": CLIENT, "job_files": JobFiles(own)}
    journal, board_source = Journal(own, {}), HubSource(OFF_CHAIN, CLIENT.address, raising, pace=PACE)
    made.journal, made._posts, made.machine = journal, journal, parties.ClientNode(board=board_source.board, **known)
    made._keep_record, made.workers.ask = journal.append, lambda *_: None

    def look() -> list[posts.Body]:
        made._look_for_offers()
        waiting = [posts.SignedPost.decode(row.wire).verify(OFF_CHAIN) for row in journal.unheard()]
        return [body for body in waiting if isinstance(body, posts.AuditorsBody)]

    made.board_source = board_source
    for _ in range(2):
        assert not look(), "the ledger knows of no such job, and would not listen"
    board_source.board.jobs[job.id] = PublicJob(job=job, last_progress=0)
    made.board_source = SimpleNamespace(now=lambda: 7, domain=OFF_CHAIN)
    assert not look()
    made.board_source = board_source
    assert look() == look() == [posts.AuditorsBody(accounts=accounts)]
    made._drafted.clear()
    made._auditors.clear()
    assert look() == [posts.AuditorsBody(accounts=accounts)], "after a restart it is said already"
    for text in ("0x12", "x", "0x" + "ab" * 21, "é"):
        (place / parties.AUDITORS).write_text(text, encoding="utf-8")
        made._drafted.clear()
        look()
        assert "auditors.txt: expected" in noted[-1][1]
    (place / parties.AUDITORS).unlink()
    assert parties.auditors_in(place) == ()
    journal.close()


@pytest.mark.parametrize("on_paper", [True, False])
def test_party_rereads_after_hub_data_loss_or_stops_without_a_chain(there: Any, tmp_path: Path, on_paper: bool) -> None:
    made, noted = there
    made.journal = made.traffic._journal = Journal(tmp_path, {})
    made.traffic.read_up_to = (9, b"last")
    made.journal.post(JOB.id, b"0", lambda _: b"wire")
    made.journal.heard(made.journal.unheard()[0], 4)

    def forgot(*_: Any) -> Any:
        raise HubForgot("expected the post in place 9, got none")

    made.traffic.hub_client = SimpleNamespace(read=forgot, hub=b"hub")
    if on_paper:
        made.board_source = HubSource(OFF_CHAIN, None, raising, pace=PACE)
    made.journal.keep_fact("read of " + b"hub".hex(), (9).to_bytes(8, "big") + b"last")
    made.traffic.read_all()
    assert made.journal.fact("read of " + b"hub".hex()) == b""
    assert [waiting.wire for waiting in made.journal.unheard()] == [b"wire"], "all is said again"
    made.inbox.get_nowait()()
    assert made.traffic.read_up_to == (0, b"")
    assert made.stop.is_set() == on_paper
    assert any("start this party again" in text for _, text in noted) == on_paper
    made.journal.close()
