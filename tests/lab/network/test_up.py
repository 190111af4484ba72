"""`tiebreak up`: real processes on this machine, and what they leave, also when they are killed at any instant.

Sealed jobs, of which a hub sees ciphertext, and jobs with seats. `make anvil` plays seats on anvil.
"""

import json
import os
import random
import re
import secrets
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tiebreak.api.agreement.sealing import Card
from tiebreak.engine.run.directory import DATA, PROGRAM, RECORDS
from tiebreak.lab.network import local_network as up
from tiebreak.lab.network.local_network import TERMS, Child, LocalNetwork, UpPlan, free_port
from tiebreak.protocol.chain.devnet import BALANCE, find_anvil
from tiebreak.protocol.commitments.terms import MAX_GAMES, Terms
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.game.messages import Message, open_wire
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties import posts

pytestmark = pytest.mark.slow
TASK = Path(__file__).with_name("small_job.py")
TRUE_ROOT = "d1b15adb"
"""How the root of the small task's true run begins."""
FEE, BOND = 10**17, 1 << 57
GAS = 10**16
"""Wei: more than what the transactions of a party cost on this chain, and a tenth of a fee."""
WINDOW = 24
"""Bytes that are looked for at once."""


class Stormy(LocalNetwork):
    """Kills a party with SIGKILL every now and then, and starts it again."""

    def __init__(self, plan: UpPlan, seed: int, kills: int) -> None:
        self.story: list[str] = []
        super().__init__(plan, self.story.append)
        self.rng, self.kills = random.Random(seed), kills
        self.killed: list[str] = []
        self._count = 0
        self._due_at = self.rng.randrange(3, 12)

    def told(self, name: str, line: str) -> None:
        self._count += name in self.plan.parties
        super().told(name, line)

    def disturb(self) -> None:
        """Kill a party a moment after a line of any party's log, and start it again at once or a little later."""
        if len(self.killed) >= self.kills or self._count < self._due_at:
            return
        role = self.rng.choice(self.plan.parties)
        time.sleep(self.rng.uniform(0, 0.4))
        self.kill(role)
        self.killed.append(role)
        self.story.append(f"        killed   {role}")
        time.sleep(self.rng.choice((0.0, 0.0, 1.0)))
        self.start(role)
        self._due_at = self._count + self.rng.randrange(1, 9)


def said(folder: Path) -> Iterator[posts.Post]:
    """All posts that the hub took."""
    with sqlite3.connect(folder / "hub" / "posts.sqlite") as db:
        for (wire,) in db.execute("SELECT wire FROM posts ORDER BY place"):
            yield posts.SignedPost.decode(wire).post


def said_twice(folder: Path) -> list[object]:
    """Places in which somebody signed two things: heads, answers, moves, and numbers of posts."""
    first: dict[object, bytes] = {}
    twice: list[object] = []
    for post in said(folder):
        body = posts.BODIES[post.kind].unpack("body", unpack(post.body, posts.MAX_BODY_BYTES))
        places: list[tuple[object, bytes]] = [((post.sender, post.job_id, post.number), post.encode())]
        match body:
            case posts.HeadBody(head=head):
                places.append((("head", post.sender, post.job_id, head.head.count), head.encode()))
            case posts.AnswerBody():
                places.append((("answer", post.sender, post.job_id), post.body))
            case posts.MoveBody(wire=wire):
                number = Message.decode(open_wire(wire)[0]).sequence
                places.append((("move", post.sender, post.game_id, number), wire))
        twice += [place for place, content in places if first.setdefault(place, content) != content]
    return twice


def roots(folder: Path) -> dict[int, str]:
    """The run root of each head that the hub of a folder took, by its count."""
    return roots_in(said(folder))


def roots_in(found_posts: Iterable[posts.Post]) -> dict[int, str]:
    """The run root of each head that was said, by its count."""
    found = {}
    for post in found_posts:
        if post.kind == posts.PostKind.HEAD:
            body = posts.HeadBody.unpack("body", unpack(post.body, posts.MAX_BODY_BYTES))
            found[body.head.head.count] = body.head.head.run_root.hex()
    return found


def plan_of(folder: Path, **changes: Any) -> UpPlan:
    given = {
        "task": str(TASK), "steps": None, "cheat": "", "chain": True, "embedded": True, "port": free_port(),
        "folder": folder, "until_over": True, "terms": TERMS,
    }  # fmt: skip
    return UpPlan(**given | changes)


def play(town: LocalNetwork, story: list[str]) -> LocalNetwork:
    try:
        town.run()
    finally:
        print("\n".join(story))
    return town


class Sealing(LocalNetwork):
    """Seals its job to the trainer and the auditors."""

    def wishes(self) -> list[str]:
        keys = [self.key(name) for name in self.plan.parties if name != "client"]
        return [part for key in keys for part in ("--seal-to", Card.of(key).text(key))]


class SealingInStorm(Sealing, Stormy):
    pass


def windows(path: Path) -> Iterator[bytes]:
    """What can be recognised of a file."""
    data = path.read_bytes()
    for at in range(0, len(data) - WINDOW, 8):
        window = data[at : at + WINDOW]
        if len(set(window)) > WINDOW // 2:
            yield window


def the_hub_is_blind(folder: Path) -> None:
    """A hub has nothing of its parties in the clear but what a dispute has opened."""
    (job,) = (folder / "trainer" / "jobs").iterdir()
    states = sorted((job / "checkpoints").iterdir())
    plain = {name: set(windows(path)) for path in (job / PROGRAM, job / DATA, job / RECORDS, *states)
             for name in [path.name]}  # fmt: skip
    assert len(states) > 1
    assert all(plain.values())

    blobs = [path.read_bytes() for path in (folder / "hub").rglob("*") if path.is_file() and ".sqlite" not in path.name]
    assert sum(map(len, blobs)) > sum(path.stat().st_size for path in (job / PROGRAM, job / DATA))
    for name, found in plain.items():
        assert not any(window in blob for window in found for blob in blobs), name
    shown = {post.kind for post in said(folder) for found in plain.values() if any(w in post.body for w in found)}
    assert shown <= {posts.PostKind.MOVE}, "a move opens what the referee needs, and no other post shows anything"
    assert not [post for post in said(folder) if post.kind == posts.PostKind.STEPS], "losses are not told"

    for party in ("client", "trainer", "auditor", "auditor2"):
        for name in ("jobs", "replays"):
            place = folder / party / name
            assert not place.exists() or place.stat().st_mode & 0o77 == 0
    for path in (folder / "trainer" / "jobs").rglob("*"):
        assert path.stat().st_mode & 0o77 == 0, path


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = plan_of(tmp_path / "town", port=taken.getsockname()[1])
        with pytest.raises(ConfigurationError, match="to be free"):
            LocalNetwork(plan, print).run()
    assert not (tmp_path / "town").exists()


def test_waiting_accepts_a_child_process_that_exits_during_the_check(tmp_path: Path) -> None:
    town = LocalNetwork(plan_of(tmp_path, task=""), print)
    child = Child("capture", ["--version"], tmp_path, os.environ)
    looks = 0

    def found() -> bool:
        nonlocal looks
        looks += 1
        return child.is_done() if looks > 1 else bool(child._process.wait())  # when asked first, it still ran

    assert town._wait(child, found)
    with pytest.raises(StateError, match="the capture ended with code 0"):
        town._wait(child, lambda: False)


def with_mark(mark: str) -> list[str]:
    """The command lines of all processes that have this text in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is not ours
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_no_process_outlives_a_killed_up_command(tmp_path: Path) -> None:
    """None does when `up` is killed either; its processes have workers and a node of their own."""
    mark = f"UP_TEST={secrets.token_hex(16)}"
    command = [sys.executable, "-m", "tiebreak", "up", str(TASK), "--port", "0", "--output", str(tmp_path / "town")]
    environment = os.environ | dict([mark.split("=")])
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "trained to checkpoint 1" in line:
                break
        kinds = [" devnet ", "hub.process", " client run", " trainer run", " auditor run", "multiprocessing"]
        alive = with_mark(mark)
        assert [kind for kind in kinds if not any(kind in line for line in alive)] == []
        process.kill()
    until(lambda: not with_mark(mark), seconds=60)


@pytest.mark.nightly
def test_kills_at_any_instant_change_nothing(tmp_path: Path) -> None:
    """Ending, root and verdict are those of an undisturbed job, nobody signs two things in one place, all is sealed."""
    folder = tmp_path / "town"
    plan = plan_of(folder, cheat="weight", embedded=False, terms=TERMS | {"challenge-window": 120})
    town = SealingInStorm(plan, seed=1, kills=6)
    play(town, town.story)
    assert len(town.killed) >= 4, town.killed
    assert town.ending.status == "slashed"
    assert "client game challenger wins: recomputed" in town.ending.moments
    assert not said_twice(folder)
    assert not roots(folder)[4].startswith(TRUE_ROOT)
    the_hub_is_blind(folder)


STORY = (
    "trainer work trained to checkpoint 4", "client send DrawSeats", "auditor2? work audit", "auditor2? send SealRoot",
    "trainer send OpenHead 4|trainer say ShowHead 4", "auditor2? send ClaimSeat",
)  # fmt: skip


NEEDS_ANVIL = pytest.mark.skipif(find_anvil() is None, reason="needs anvil")


@pytest.mark.parametrize(
    ("town", "cheat"),
    [pytest.param(Sealing, "", marks=pytest.mark.nightly), pytest.param(LocalNetwork, "rate", marks=NEEDS_ANVIL)],
    ids=["sealed", "anvil"],
)
def test_auditors_are_paid_for_seats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, town: type[LocalNetwork], cheat: str
) -> None:
    """Heads are sealed, the client draws, the seats' auditors seal what they computed, and only then a head is shown.

    Fees and shares are those of SPEC section 11.1, to the gas of the transactions. One auditor may have both seats; the
    other one, who can have won a game, withdraws without waiting for anybody's claim.
    """
    monkeypatch.setattr(up, "AFTER_SECONDS", 15)
    story = list[str]()
    terms = TERMS | {"challenge-window": 120}  # time for the heads beside whatever else runs
    plan = plan_of(tmp_path / "town", cheat=cheat, seats=2, embedded=town is Sealing, terms=terms)
    ending = play(town(plan, story.append), story).ending
    assert ending.status == ("slashed" if cheat else "settled")

    def first(words: str) -> float:
        return min(at for moment, at in ending.moments.items() if re.fullmatch(words, moment))

    order = [first(words) for words in STORY]
    assert order == sorted(order)
    assert [moment for moment in ending.moments if "ShowHead" in moment] == ["trainer say ShowHead 4"]
    if town is Sealing:
        the_hub_is_blind(tmp_path / "town")

    def mined(name: str, what: str) -> int:
        return len([moment for moment in ending.moments if moment.startswith(f"{name} mined {what} ")])

    auditors, paid = ("auditor", "auditor2"), 0
    share = Terms().trainer_stake // 2 // 3 if cheat else 0
    relief, overtaken = share // MAX_GAMES, sum(mined(name, "reclaim") for name in auditors)
    for name in auditors:
        seats, won = mined(name, "claim"), mined(name, "prove")
        if seats:
            assert first(f"{name} mined claim .*") <= first(f"{name} mined withdraw")
        earned = seats * FEE + (seats + won) * share + (mined(name, "reclaim") - won * overtaken) * relief
        balance = json.loads((tmp_path / "town" / name / "status.json").read_text())["balance"]
        assert -GAS < balance - (BALANCE - BOND + earned) <= 0, name
        paid += seats
    assert paid == 2
