"""The driver of a party, alone: what it brings a hub and how often, what it keeps of others, and what it takes."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER
from tests.protocol.town import JOB, PACE, START
from tiebreak.node import driver
from tiebreak.node.driver import Driver
from tiebreak.node.hub_client import HubRefused
from tiebreak.node.journal import Journal
from tiebreak.node.log import Log
from tiebreak.node.parties import AcceptancePolicy, JobFiles, TrainerNode
from tiebreak.node.tasks import Answer, Publish
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import Board, JobStatus, PublicJob
from tiebreak.protocol.parties.posts import LibraryBody
from tiebreak.protocol.tags import Digest

HUB, OTHER_HUB = Address(b"\1" * 20), Address(b"\2" * 20)


class Hub:
    """A hub's client: takes posts, but for those in `refused`, and may lose what it has."""

    def __init__(self, hub: Address = HUB) -> None:
        self.hub, self.had, self.refused, self.asked = hub, list[bytes](), set[bytes](), 0

    def post(self, wire: bytes) -> Any:
        if wire in self.refused:
            raise HubRefused(403, "of a test")
        self.had.append(wire)
        return SimpleNamespace(place=len(self.had))

    def holds(self, place: int, wire: bytes) -> bool:
        self.asked += 1
        return self.had[place - 1 : place] == [wire]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "trainer", {})
    yield found
    found.close()


def trainer_of(folder: Path, *jobs: PublicJob, **more: Any) -> TrainerNode:
    board = Board()
    board.jobs = {job.id: job for job in jobs}
    more = {"policy": AcceptancePolicy(), **more}
    return TrainerNode(job_files=JobFiles(folder), board=board, domain=DOMAIN, pace=PACE, key=TRAINER, **more)


def driver_of(journal: Journal, hub: Hub, *jobs: PublicJob) -> Driver:
    """A driver, and in `asked` what its processes are asked for."""
    machine, asked = trainer_of(journal.folder, *jobs), list[Any]()

    def ask(task: Any, done: Any, **_: object) -> None:
        asked.append((task, done))

    workers = SimpleNamespace(listeners=SimpleNamespace(), ask=ask, asked=asked)
    board_source: Any = SimpleNamespace(now=lambda: START, light_client=None, send=asked.append)
    notes = Log("trainer", stream=StringIO())
    return Driver(
        machine, board_source=board_source, hub_client=hub, journal=journal, job_files=machine.job_files,
        workers=workers, notes=notes,  # type: ignore[arg-type]
    )  # fmt: skip


def on_board(**more: Any) -> PublicJob:
    return PublicJob(**{"job": JOB, "status": JobStatus.ACTIVE, "last_progress": START, "accepted": START, **more})


def say(journal: Journal, *texts: bytes) -> None:
    for text in texts:
        journal.post(JOB.id, text, lambda number, text=text: text + bytes([number]))  # type: ignore[misc]


# ---------------------------------------------------------------- posts


def test_each_post_leaves_once_and_again_only_if_the_hub_has_lost_it(journal: Journal) -> None:
    hub = Hub()

    def start(at: Hub) -> None:
        """The same party, started again, sends what waits, twice."""
        party = driver_of(journal, at)
        for _ in range(2):
            party.traffic.send_all()

    say(journal, b"a", b"b")
    start(hub)
    assert (hub.had, hub.asked) == ([b"a\0", b"b\1"], 0), "nothing was heard of it before"
    say(journal, b"a", b"c")
    start(hub)
    assert (hub.had, hub.asked) == ([b"a\0", b"b\1", b"c\2"], 1), "nothing is repeated, and the hub is asked once"
    del hub.had[1:]
    start(hub)
    assert hub.had == [b"a\0", b"a\0", b"b\1", b"c\2"], "all is said again, since anything may be lost"
    other = Hub(OTHER_HUB)
    start(other)
    assert (other.had, other.asked) == ([b"a\0", b"b\1", b"c\2"], 0)


def test_a_refused_post_does_not_block_others(journal: Journal) -> None:
    hub = Hub()
    party = driver_of(journal, hub)
    say(journal, *(b"%d." % number for number in range(70)))  # more than one look at the journal shows
    *first, last = (b"%d.%c" % (number, number) for number in range(70))
    hub.refused = set(first)
    party.traffic.send_all()
    assert hub.had == [last]
    hub.refused = set()
    party.traffic.send_all()
    assert hub.had == [last, *first], "it may have come too early"


# ---------------------------------------------------------------- files


def listing(count: int) -> LibraryBody:
    return LibraryBody(count=count, logs=0, files=())


def test_a_run_is_uploaded_only_after_the_hub_has_its_file_list(journal: Journal) -> None:
    party = driver_of(journal, Hub(), on_board())
    asked: list[Any] = party.workers.asked  # type: ignore[attr-defined]
    for _ in range(2):
        party.publish_run(e.PublishRun(job_id=JOB.id, count=1, logs=False))
    ((task, listed),) = asked
    assert isinstance(task, Publish)
    assert task.is_listing
    asked.clear()
    listed(Answer(body=listing(1)))
    party.inbox.get_nowait()()
    assert asked == [], "the hub refuses what no list names"
    party._list(JOB.id, TRAINER.address, listing(1))
    for _ in range(2):
        party._upload(JOB.id, 1)
    ((task, _),) = asked
    assert (task.count, task.is_listing) == (1, False)


def test_only_the_newest_file_lists_of_each_publisher_are_kept(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "MAX_LISTINGS", 2)
    party = driver_of(journal, Hub())
    for sender, count in ((CLIENT, 0), (TRAINER, 1), (TRAINER, 2), (TRAINER, 3), (CHALLENGER, 9), (TRAINER, 2)):
        party._list(JOB.id, sender.address, listing(count))
    assert list(party._listings[JOB.id]) == [
        (CLIENT.address, 0), (TRAINER.address, 3), (CHALLENGER.address, 9), (TRAINER.address, 2),
    ]  # fmt: skip


def test_the_oldest_offers_that_the_board_does_not_show_are_forgotten(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "MAX_OWN", 2)
    party = driver_of(journal, Hub(), on_board())
    others = [Digest(bytes([number]) * 32) for number in range(3)]
    for job_id in (JOB.id, *others):
        party._adopt(job_id)
    assert list(party._own) == [JOB.id, others[2]]
    assert journal.fact("own jobs") == JOB.id + others[2]


# ---------------------------------------------------------------- offers


def test_acceptance_policy_takes_jobs_within_its_limits(tmp_path: Path) -> None:
    for policy, takes in (
        (AcceptancePolicy(clients=(CLIENT.address,)), True),
        (AcceptancePolicy(clients=(TRAINER.address,)), False),
        (AcceptancePolicy(most_steps=JOB.steps), True),
        (AcceptancePolicy(most_steps=JOB.steps - 1), False),
        (AcceptancePolicy(least_reward=JOB.reward), True),
        (AcceptancePolicy(least_reward=JOB.reward + 1), False),
    ):
        assert trainer_of(tmp_path, policy=policy).wants(JOB) is takes, policy


def test_as_many_jobs_are_accepted_as_there_are_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainerNode, "_is_crowded", lambda *_: False)
    offered = on_board(status=JobStatus.OFFERED)
    training = [on_board(job=replace(JOB, nonce=JOB.nonce + number)) for number in (1, 2)]
    for processes in (1, 2, 3):
        party = trainer_of(tmp_path, offered, *training, processes=processes)
        assert party.accepts(offered) is (processes > 2)
    done = on_board(job=training[0].job, head_count=JOB.checkpoints)
    assert trainer_of(tmp_path, offered, done, processes=1).accepts(offered), "nothing is left to train"
