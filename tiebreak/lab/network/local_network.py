"""Everything on one machine: a chain, a hub with its pages, and a client, a trainer and an auditor that play one job.

Each is a process of its own, started with the same commands, keys and settings files that people on several machines
would use; this module only starts them, reads their logs, and tells the story of the job in a line an event.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from tiebreak.api.signing import keys
from tiebreak.node import settings
from tiebreak.node.parties import deliver
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, StateError, printable

MARKER: Final = ".tiebreak-up"
"""Marks a folder that this command made, so that the next one may empty it."""
BLOCK_SECONDS: Final = 1
TERMS: Final = {
    "challenge-window": 30, "clock": 90, "replay-time": 5, "talk-time": 20, "audit-time": 5, "deadline": 600,
    "descent-levels": 2,
}  # fmt: skip
"""Short enough to be watched, in seconds. A job in earnest has hours and days here (`tiebreak economics`)."""
ON_PAPER: Final = {"clock": 420, "talk-time": 240}
"""Other terms without a chain, where parties leave time as if blocks came every 12 seconds: 72 of a talk, to enter."""
HERE: Final[dict[str, Any]] = {
    "step_seconds": 0,  # what a trial measures counts: with a second a step, these terms would be too short for some
    "threads": 1,  # all parties share this machine
    "uncompiled": True,  # nobody loses money by slow kernels
}
"""Settings in which parties of one machine differ from those of `init`, besides `BLOCK_SECONDS` on its chain."""
USUAL_SECONDS: Final = 12
"""Seconds in which two cores with nothing else to do come to the offer. A slower machine gets longer terms."""
UNHURRIED: Final = 4
"""The factor on the window for heads of a job with a cheat: only an honest job waits until the window has passed."""
START_SECONDS: Final = 60
STOP_SECONDS: Final = 5
CHEATS: Final = {
    "label": "one label of one batch is changed",
    "rate": "one step uses another learning rate",
    "weight": "one bit of one weight in a checkpoint is flipped",
    "tf32": "one sum of products is truncated to TF32",
}
"""The cheats that a trainer can be given, for demonstrations."""
PARTIES: Final = ("client", "trainer", "auditor")
SECOND: Final = "auditor2"
"""The second auditor of a job with seats: if one were drawn twice, its seats would say less."""
OPEN_TO_ALL: Final[dict[str, dict[str, Any]]] = {
    "trainer": {"clients": (settings.ANY,), "most_stake": settings.ANY},
    "auditor": {"most_stake": settings.ANY},
}
"""The settings by which parties of a demonstration, whose money is worth nothing, allow everybody everything."""
SEAT: Final = ("--seat-fee", "0.1", "--seat-bond", "0.1")
BOARD: Final = "Board"
HUB: Final = "tiebreak.node.hub.process"
"""The module that takes most of the time in which a hub starts."""
AFTER_SECONDS: Final = 3.0
"""The time that the story goes on after the job has ended: some money may still move."""
DECLINED: Final = "the trainer declines"
OVER: Final = frozenset({"settled", "slashed", "abandoned", "cancelled", "parted"})
_STORY: Final = frozenset({"offer", "work", "send"})
"""Events of the parties' logs that are part of the story, in addition to warnings."""
_UNTOLD: Final = ("PostHead", "found move")
"""The beginnings of texts of such events that come too often for a story."""
_WAITED: Final = {
    "chain": "a chain with the contracts of a job board",
    "hub": "the hub and its pages",
    "capture": "the capture of the task and its check against eager PyTorch",
    "offer": "the client's signature under the offer",
}
"""Results that `up` waits for before the story begins, by process."""
_MARKS: Final = {
    "client job active": "accepted", "trainer work trained to checkpoint 1": "first head",
    "auditor send Challenge": "challenged",
}  # fmt: skip
"""The beginnings of the moments that the summary names, and their names there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    task: str
    steps: int | None
    cheat: str
    chain: bool
    embedded: bool
    port: int
    """The port of hub and pages; 0 takes a free one."""
    folder: Path
    until_over: bool
    """End when the job has ended, instead of at Ctrl-C."""
    terms: Mapping[str, int] = field(default_factory=lambda: TERMS)
    seats: int = 0
    """The number of paid audits; with any, there are two auditors."""
    patience: int | None = None
    """The factor on the times of the terms; None: as this machine turns out to need."""

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names. A second one of a role has a number after it."""
        return (*PARTIES, SECOND) if self.seats else PARTIES


@dataclass(slots=True)
class Ending:
    """The job's last status, and the times of moments, in seconds after the command."""

    status: str = ""
    seconds: float = 0.0
    patience: int = 1
    """The factor on the times of the job's terms."""
    moments: dict[str, float] = field(default_factory=dict)


class Child:
    """One of the processes. Its output goes into a file, and line by line to a listener.

    It ends with this process, even if that is killed: its standard input is a pipe that nothing is written to.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str],
        on_line: Callable[[str, str], None] = lambda _name, _line: None, *,
        module: str = "tiebreak.lab.network.parent_watch",
    ) -> None:  # fmt: skip
        self.name = name
        command = [sys.executable, "-m", module, *arguments]
        self.log = folder / f"{name}.log"
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(environment), text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        self._on_line = on_line
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("a", encoding="utf-8") as file:
            for line in self._process.stdout:
                file.write(line)
                file.flush()
                self._on_line(self.name, line.rstrip("\n"))

    def tell(self, command: Sequence[str]) -> None:
        """Give the process its command, if it was started to wait for one (`tiebreak.lab.network.parent_watch`)."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `check` says why it has ended
            self._process.stdin.write(json.dumps(list(command)) + "\n")
            self._process.stdin.flush()

    def has_ended(self) -> bool:
        """Whether the process runs no longer."""
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise `StateError` if the process has ended."""
        if (code := self._process.poll()) is not None:
            self._thread.join(1)
            raise StateError(f"the {self.name} ended with code {code}: {' '.join(self._last())}; see {self.log}")

    def is_done(self) -> bool:
        """Whether the process has ended well. Raises `StateError` if it has failed."""
        code = self._process.poll()
        if code:
            self.check()
        if code == 0:
            self._thread.join(1)
        return code == 0

    def _last(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]

    def stop(self) -> None:
        """Send SIGTERM, so that the process can close its journal."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """End the process at once, and wait until it has."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Wait for the process to end, or kill it."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()


class LocalNetwork:
    """Starts the processes of one job, prints the events of their logs, and ends them."""

    def __init__(self, plan: UpPlan, say: Callable[[str], None]) -> None:
        self.plan, self._say, self._port = plan, say, plan.port or free_port()
        self._started = time.monotonic()
        self._lines: SimpleQueue[tuple[str, str]] = SimpleQueue()
        self._children: dict[str, Child] = {}
        self._environment = os.environ | {
            "TIEBREAK_PASSPHRASE": secrets.token_hex(16), "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE",
        }  # fmt: skip
        self.ending = Ending()
        self._chain_id = 0

    # ------------------------------------------------------------------ processes

    def run(self) -> Ending:
        """Start all processes and print events until Ctrl-C, or until the job is over; then end all processes."""
        plan = self.plan
        if _answers(self._port):
            raise ConfigurationError(f"expected port {self._port} to be free, got one in use; choose another --port")
        _prepare(plan.folder)
        try:
            self._say(f"logs and files are in {plan.folder}")
            hub = self._start("hub", "--import", HUB)  # imports while the chain starts
            board, rpc = self._chain() if plan.chain else ("", "")
            self._serve(hub, board, rpc)
            # The page comes before the others, which would take the processors from it.
            self._wait(hub, lambda: _answers(self._port))
            self._tell("page", f"open {self.page} to watch")
            self.ending.moments["page"] = self._seconds()
            steps = [] if plan.steps is None else ["--steps", str(plan.steps)]
            capture = self._start("capture", "capture", plan.task, "--output", str(plan.folder / "task"), *steps)
            addresses = {name: self._party(name, board, rpc) for name in plan.parties}
            self._wait(capture, capture.is_done, 10 * START_SECONDS)
            self._offer(addresses, board)
            self._story()
        except KeyboardInterrupt:
            self._say("")
        finally:
            for child in reversed(self._children.values()):
                child.stop()
            for child in reversed(self._children.values()):
                child.end()
        if self.ending.status:
            self._say(self.summary())
        return self.ending

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def summary(self) -> str:
        """The ending of the job and the times of the named moments, in a line."""
        named = {"page": "page", **_MARKS}
        found = {name: at for moment, at in self.ending.moments.items()
                 for start, name in named.items() if moment.startswith(start)}  # fmt: skip
        said = "".join(f"{name} {at:.1f} s, " for name, at in found.items())
        return f"after the command: {said}{self.ending.status} {self.ending.seconds:.1f} s"

    def _start(self, name: str, *arguments: str, **given: Any) -> Child:
        listen = self._heard if name in self.plan.parties else lambda _name, _line: None
        child = Child(name, arguments, self.plan.folder, self._environment, listen, **given)
        self._children[name] = child
        return child

    def _heard(self, name: str, line: str) -> None:
        self._lines.put((name, line))

    def _chain(self) -> tuple[str, str]:
        """Start the chain. Returns the address of its board, and its URL."""
        keys, found = self.plan.folder / "accounts", self.plan.folder / "chain.log"
        options = ["--port", str(free_port()), "--block-time", str(BLOCK_SECONDS), "--keys", str(keys), "--json"]
        child = self._start("chain", "devnet", *options, *(["--embedded"] if self.plan.embedded else []))
        document = self._wait(child, lambda: _json_in(found))
        self._chain_id = int(document["chainId"])
        board = str(document["contracts"][BOARD])
        self._tell("chain", f"{document['node']} at {document['rpc']}, with the job board {board}")
        return board, str(document["rpc"])

    def _serve(self, hub: Child, board: str, rpc: str) -> None:
        """Start the hub, whose modules are imported by now, on a board's chain or without a chain."""
        folder = self.plan.folder / "hub"
        folder.mkdir()
        self._new_key(folder / "hub.pem")
        place = [*self._domain(board), *(["--chain", rpc] if rpc else [])]
        hub.tell(["hub", "--folder", str(folder), "--port", str(self._port), *place])

    def _domain(self, board: str) -> list[str]:
        return ["--chain-id", str(self._chain_id), "--board", board or f"0x{OFF_CHAIN.contract.hex()}"]

    def _party(self, name: str, board: str, rpc: str) -> str:
        """Start a party. Returns its address."""
        folder = self.plan.folder / name
        folder.mkdir()
        given = HERE | {"hub": self.page, "chain": rpc, "board": board} | OPEN_TO_ALL.get(_role(name), {})
        given |= {"block_seconds": BLOCK_SECONDS} if rpc else {}
        settings.write(_role(name), folder, **given)
        account = self.plan.folder / "accounts" / f"account-{1 + self.plan.parties.index(name)}.pem"
        if account.exists():
            shutil.copy(account, folder / "key.pem")
        else:
            self._new_key(folder / "key.pem")
        self.start(name)
        return f"0x{self.key(name).address.hex()}"

    def key(self, name: str) -> PrivateKey:
        return keys.load_key(self.plan.folder / name / "key.pem", self._environment["TIEBREAK_PASSPHRASE"])

    def start(self, name: str) -> None:
        """Start a party, or start it again after it was killed."""
        folder = str(self.plan.folder / name)
        if self.plan.cheat and name == "trainer":
            self._start(name, self.plan.cheat, folder, module="tiebreak.lab.network.cheating_trainer")
        else:
            self._start(name, _role(name), "run", folder, "--json")

    def kill(self, name: str) -> None:
        """End a process as SIGKILL does."""
        self._children.pop(name).kill()

    def _offer(self, addresses: dict[str, str], board: str) -> None:
        folder, own = self.plan.folder / "offer", self.plan.folder / "client"
        terms = [part for name, value in self.terms().items() for part in (f"--{name}", str(value))]
        terms += ["--seats", str(self.plan.seats), *SEAT] if self.plan.seats else []
        offer = self._start(
            "offer", "agree", str(self.plan.folder / "task"), "--client", str(own / "key.pem"), "--trainer",
            addresses["trainer"], "--output", str(folder), *self._domain(board), *terms, *self.wishes(),
        )  # fmt: skip
        self._wait(offer, offer.is_done)
        deliver(folder, own, [self.key(name).address for name in addresses if _role(name) == "auditor"])

    def terms(self) -> dict[str, int]:
        """The job's terms. Their times are longer on a machine that was slow so far: clocks do not wait for it."""
        plan, seconds = self.plan, self._seconds()
        self.ending.patience = patience = plan.patience or max(1, round(seconds / USUAL_SECONDS))
        usual = plan.terms if plan.chain else {**plan.terms, **ON_PAPER}
        terms = {name: value * (1 if name == "descent-levels" else patience) for name, value in usual.items()}
        if plan.cheat and not plan.seats:
            terms["challenge-window"] *= UNHURRIED
        if patience > 1 and plan.patience is None:
            self._tell("up", f"gives the parties {patience} times as long as usual, since this took {seconds:.0f} s")
        return terms

    def wishes(self) -> list[str]:
        """More options of the offer; tests seal jobs here."""
        return []

    def _new_key(self, path: Path) -> None:
        keys.save_key(keys.new_key(), path, self._environment["TIEBREAK_PASSPHRASE"])

    def _wait(self, child: Child, found: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
        """Waits for a child's result and prints events meanwhile. Raises `StateError` if it fails or takes too long."""
        end = time.monotonic() + seconds
        if not found():
            self._tell("up", f"waits for {_WAITED[child.name]}; its log is {child.log}")
        while True:
            has_ended = child.has_ended()  # asked first: a process may end well in between
            if result := found():
                break
            if has_ended:
                child.check()
            if time.monotonic() > end:
                raise StateError(f"expected the {child.name} within {seconds:.0f} s, got none; see {child.log}")
            self._listen(0.05)
        return result

    # ------------------------------------------------------------------ the story

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 1)

    def _tell(self, who: str, text: str) -> None:
        self._say(f"{self._seconds():6.1f} s  {who:<9}{printable(text)}")

    def _story(self) -> None:
        """Print events from the parties' logs until the job has ended, or until Ctrl-C if the plan is to stay."""
        while self.plan.until_over is False or not self.ending.status:
            for name in ("chain", "hub", *self.plan.parties):
                if name in self._children:
                    self._children[name].check()
            self.disturb()
            self._listen(0.5)
        end = time.monotonic() + AFTER_SECONDS
        while time.monotonic() < end:
            self._listen(0.5)

    def disturb(self) -> None:
        """Called about twice a second until the job has ended; tests kill processes here."""

    def _listen(self, seconds: float) -> None:
        """Print the lines that the parties have logged, or log within these seconds."""
        with suppress(Empty):
            self.told(*self._lines.get(timeout=seconds))
            while True:
                self.told(*self._lines.get_nowait())

    def told(self, name: str, line: str) -> None:
        """Print one line of a party's log if its event is shown, and note the job's status."""
        try:
            found = json.loads(line)
            event, text, level = found["event"], found["text"], found["level"]
        except (ValueError, KeyError, TypeError):
            self._tell(name, line)
            return
        moment = f"{name} {event} {text}"
        self.ending.moments.setdefault(moment, self._seconds())
        if event in ("job", "game"):
            if name == "client":
                self._tell("board", f"the {event} is {text}" if event == "job" else f"game: {text}")
            if name == "client" and event == "job" and text in OVER:
                self._end(text, moment)
            return
        if level != "INFO":
            self._tell(name, f"{level}: {text}")
            if name == "client" and text.endswith(DECLINED):
                self._end("declined", moment)
        elif event in _STORY and not text.startswith(_UNTOLD):
            self._tell(name, text)

    def _end(self, status: str, moment: str) -> None:
        if not self.ending.status:
            self.ending.status, self.ending.seconds = status, self.ending.moments[moment]
            if not self.plan.until_over:
                self._say("the job has ended; Ctrl-C ends all processes")


def up(plan: UpPlan, say: Callable[[str], None]) -> Ending:
    return LocalNetwork(plan, say).run()


def _prepare(folder: Path) -> None:
    """Make the folder, or empty one that an earlier command made."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise ConfigurationError(f"expected a new folder, or one that `tiebreak up` made, got {folder}")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def _role(name: str) -> str:
    return name.rstrip("0123456789")


def free_port() -> int:
    """A port of this machine that nobody listens at.

    It is below those that systems give to outgoing connections: one of these could take it before a server does.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _answers(port: int) -> bool:
    """Whether something listens at a port."""
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _json_in(path: Path) -> Any:
    """The document that a file holds, once it is whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
