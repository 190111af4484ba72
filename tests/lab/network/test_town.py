"""A town without a chain, as its people would set it up: each party by its own `init`, every setting left as it is.

The hub keeps its posts in PostgreSQL. It is killed and started again, each party is killed and started again, and the
auditor is cut off from the hub, while the job is trained and while it is disputed.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.network.test_up import TASK, TRUE_ROOT, roots_in
from tests.tiebreak.node.hubs import DATABASES, postgres
from tiebreak.lab.network.local_network import Child, free_port
from tiebreak.protocol.packing import unpack
from tiebreak.protocol.parties import posts

ENDINGS = {"": "settled", "label": "slashed", "rate": "slashed", "weight": "slashed", "tf32": "slashed"}
TERMS = {
    "challenge-window": 90, "audit-time": 5, "clock": 260, "replay-time": 30, "deadline": 1200,
    "descent-levels": 2,
}  # fmt: skip
"""About the least that parties with the settings of `init` take, so that a game is over within minutes."""
NEEDED = {"TIEBREAK_CLIENTS": "any", "TIEBREAK_MOST_STAKE": "5"}
"""What `init` asks its owner to set: whose offers a trainer takes, and what a party may put up."""
SECONDS = 1500


class Wire:
    """A way to the hub that can be cut: connections end, and new ones lead nowhere."""

    def __init__(self, port: int) -> None:
        self.there, self.is_cut = port, False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._server.accept()
                try:
                    theirs = None if self.is_cut else socket.create_connection(("127.0.0.1", self.there))
                except OSError:
                    theirs = None
                if theirs is None:
                    ours.close()
                    continue
                self._open |= {ours, theirs}
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        self.is_cut = True
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        self.cut()
        self._server.close()


class LocalNetwork:
    """Processes that are started by the commands of docs/operate.md."""

    def __init__(self, folder: Path, database: str, cheat: str) -> None:
        self.folder, self.cheat, self.port = folder, cheat, free_port()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("TIEBREAK_")}
        self.environment |= {"TIEBREAK_PASSPHRASE": secrets.token_hex(8), **NEEDED}
        self.database, self.wire = database, Wire(self.port)
        self.children: dict[str, Child] = {}
        self.lines: dict[str, list[str]] = {}

    def command(self, *words: str) -> str:
        """Run a command to its end. Returns what it printed."""
        child = Child(f"{words[0]}-{secrets.token_hex(2)}", words, self.folder, self.environment)
        child._process.wait(300)
        child._thread.join(5)
        assert child._process.returncode == 0, child.log.read_text()
        return child.log.read_text()

    def init(self) -> None:
        self.command("hub", "--init", "--folder", str(self.folder / "hub"))
        self.start("hub")
        for role in ("client", "trainer", "auditor"):
            port = self.wire.port if role == "auditor" else self.port
            self.command(role, "init", str(self.folder / role), "--hub", f"http://127.0.0.1:{port}")
        for role in ("client", "trainer", "auditor"):
            self.start(role)

    def start(self, name: str) -> None:
        folder, more = str(self.folder / name), {}
        words = [name, "run", folder, "--json"]
        if name == "hub":
            words = ["hub", "--folder", folder, "--port", str(self.port), "--database", self.database]
        elif name == "trainer" and self.cheat:
            words, more = [self.cheat, folder], {"module": "tiebreak.lab.network.cheating_trainer"}
        heard = self.lines.setdefault(name, []).append
        listen = lambda _name, line: heard(line)  # noqa: E731
        self.children[name] = Child(name, words, self.folder, self.environment, listen, **more)

    def kill(self, name: str) -> None:
        self.children.pop(name).kill()

    def offer(self) -> None:
        self.command("capture", str(TASK), "--output", str(self.folder / "task"))
        shown = self.command("key", "--show", str(self.folder / "trainer" / "key.pem")).strip()
        terms = [part for name, value in TERMS.items() for part in (f"--{name}", str(value))]
        self.command("agree", str(self.folder / "task"), "--client", str(self.folder / "client"),
                     "--trainer", shown, "--output", str(self.folder / "offer"), *terms)  # fmt: skip

    def status(self, name: str = "client") -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            jobs = json.loads((self.folder / name / "status.json").read_text())["jobs"]
            return dict(next(iter(jobs.values())))
        return {}

    def wait(self, name: str, words: str) -> None:
        """Wait until a party has logged these words."""
        end = time.monotonic() + SECONDS
        while not any(words in line for line in self.lines[name]):
            assert time.monotonic() < end, f"{name} never logged {words!r}:\n" + "\n".join(self.lines[name][-20:])
            time.sleep(0.2)

    def again(self, *names: str) -> None:
        """Kill these as SIGKILL does, and start them again."""
        for name in names:
            self.kill(name)
            self.start(name)

    def close(self) -> None:
        self.wire.close()
        for name in list(self.children):
            self.kill(name)


@pytest.fixture
def server() -> Iterator[str]:
    with postgres(Path("/tmp") / f"tiebreak-pg-{secrets.token_hex(6)}") as host:
        yield host


CASES = [
    pytest.param(cheat, id=cheat or "honest", marks=pytest.mark.slow if cheat == "rate" else pytest.mark.nightly)
    for cheat in ENDINGS
]


@pytest.mark.skipif("postgres" not in DATABASES, reason="needs PostgreSQL")
@pytest.mark.parametrize("cheat", CASES)
def test_without_a_chain_default_parties_convict_lies_despite_restarts(tmp_path: Path, server: str, cheat: str) -> None:
    town = LocalNetwork(tmp_path, f"postgresql+psycopg://tiebreak@/postgres{server}", cheat)
    try:
        town.init()
        town.offer()
        town.wait("trainer", "trained to checkpoint 1")
        town.again("hub", "auditor")
        town.wait("trainer", "trained to checkpoint 3")
        town.again("trainer", "client")
        if cheat:
            town.wait("auditor", "challenging it")
            town.again("hub")
            town.wait("auditor", "found move 5")
            town.wire.cut()
            time.sleep(20)
            town.wire.is_cut = False
            town.again("trainer", "auditor")
        end = time.monotonic() + SECONDS
        while town.status().get("status") not in ("settled", "slashed", "abandoned", "cancelled", "parted"):
            assert time.monotonic() < end, town.status()
            time.sleep(0.5)
        assert town.status()["status"] == ENDINGS[cheat]
        the_hub_convicts(town, cheat)
    finally:
        town.close()


def the_hub_convicts(town: LocalNetwork, cheat: str) -> None:
    """What the hub hands out is enough to judge, for anybody, by the command of docs/operate.md."""
    hub = f"http://127.0.0.1:{town.port}"
    job = next(iter(json.loads((town.folder / "client" / "status.json").read_text())["jobs"]))
    files = []
    for name, path in (("POSTS", f"posts?job={job}"), ("END", f"posts/end?job={job}")):
        with urllib.request.urlopen(f"{hub}/{path}", timeout=30) as answer:
            (town.folder / name).write_bytes(answer.read())
        files.append(str(town.folder / name))
    with urllib.request.urlopen(f"{hub}/key", timeout=30) as answer:
        address = json.loads(answer.read())["address"]
    judged = json.loads(town.command("judge", *files, "--hub-key", address, "--json"))
    assert [one["status"] for one in judged["jobs"]] == [ENDINGS[cheat]]
    assert judged["complete"]
    assert {game["right"] for game in judged["games"]} == ({"challenger"} if cheat else set())
    trainer = json.loads((town.folder / "trainer" / "status.json").read_text())["address"]
    assert trainer in (judged["debts"] if cheat else judged["claims"])
    entries = [posts.ReceivedPost.unpack("entry", one) for one in unpack((town.folder / "POSTS").read_bytes(), 1 << 26)]
    shown = roots_in(posts.SignedPost.decode(entry.wire).post for entry in entries)
    assert shown[max(shown)].startswith(TRUE_ROOT) is not bool(cheat)


def test_a_cut_test_proxy_closes_connections_and_refuses_new_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hub:
        wire = Wire(hub.getsockname()[1])
        with socket.create_connection(("127.0.0.1", wire.port), timeout=20) as party:
            end, _ = hub.accept()
            party.sendall(b"post")
            assert end.recv(16) == b"post"
            wire.cut()
            assert (party.recv(16), end.recv(16)) == (b"", b"")
            end.close()
        with socket.create_connection(("127.0.0.1", wire.port), timeout=20) as party:
            assert party.recv(16) == b""
        wire.is_cut = False
        with socket.create_connection(("127.0.0.1", wire.port), timeout=20) as party:
            end, _ = hub.accept()
            end.sendall(b"answer")
            assert party.recv(16) == b"answer"
            end.close()
        wire.close()
