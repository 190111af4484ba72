"""`tiebreak up`: real processes on this machine, and what they leave, also when they are killed at any instant."""

import os
import random
import secrets
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tiebreak.node.up import TERMS, Child, Plan, Town
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.game.messages import Message, open_wire
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties import posts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TASK = Path(__file__).with_name("small_job.py")
TRUE_ROOT = "d1b15adb"
"""How the root of the small task's true run begins."""


class Stormy(Town):
    """Kills a party with SIGKILL every now and then, and starts it again."""

    def __init__(self, plan: Plan, seed: int, kills: int) -> None:
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
    """The run root of each head that was said, by its count."""
    found = {}
    for post in said(folder):
        if post.kind == posts.PostKind.HEAD:
            body = posts.HeadBody.unpack("body", unpack(post.body, posts.MAX_BODY_BYTES))
            found[body.head.head.count] = body.head.head.run_root.hex()
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def play(folder: Path, *, cheat: str = "", seed: int = 0, kills: int = 0, embedded: bool = False) -> Stormy:
    plan = Plan(
        task=str(TASK), steps=None, cheat=cheat, chain=True, embedded=embedded, port=free_port(), folder=folder,
        until_over=True, terms=TERMS | ({"challenge-window": 120} if kills else {}),
    )  # fmt: skip
    town = Stormy(plan, seed, kills)
    try:
        town.run()
    finally:
        print("\n".join(town.story))
    return town


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = Plan(
            task=str(TASK), steps=None, cheat="", chain=False, embedded=False, port=taken.getsockname()[1],
            folder=tmp_path / "town", until_over=True,
        )  # fmt: skip
        with pytest.raises(ConfigurationError, match="to be free"):
            Town(plan, print).run()
    assert not (tmp_path / "town").exists()


def test_a_process_may_end_well_right_after_it_was_asked(tmp_path: Path) -> None:
    town = Town(
        Plan(task="", steps=None, cheat="", chain=False, embedded=True, port=1, folder=tmp_path, until_over=True), print
    )
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
def test_no_process_outlives_it(tmp_path: Path) -> None:
    """Also when `up` is killed, and its processes have workers and a node of their own."""
    mark = f"UP_TEST={secrets.token_hex(16)}"
    command = [sys.executable, "-m", "tiebreak", "up", str(TASK), "--port", "0", "--output", str(tmp_path / "town")]
    environment = os.environ | dict([mark.split("=")])
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "trained to checkpoint 1" in line:
                break
        kinds = [" devnet ", " hub ", " client run", " trainer run", " auditor run", "multiprocessing"]
        alive = with_mark(mark)
        assert [kind for kind in kinds if not any(kind in line for line in alive)] == []
        process.kill()
    end = time.monotonic() + 60
    while left := with_mark(mark):
        assert time.monotonic() < end, left
        time.sleep(0.2)


def test_kills_at_any_instant_change_nothing(tmp_path: Path) -> None:
    """Ending, root and verdict are those of an undisturbed job, and nobody signs two things in one place."""
    town = play(tmp_path / "town", cheat="weight", seed=1, kills=8)
    assert len(town.killed) >= 4, town.killed
    assert town.ending.status == "slashed"
    assert "client game challenger wins: recomputed" in town.ending.moments
    assert not said_twice(tmp_path / "town")
    assert not roots(tmp_path / "town")[4].startswith(TRUE_ROOT)
