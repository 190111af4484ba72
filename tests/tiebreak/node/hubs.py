"""Hubs for tests: real ones over HTTP, on both databases, and the posts that they take."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, make_job
from tiebreak.node.hub.app import make_app
from tiebreak.node.hub.limits import HubLimits, networks_in
from tiebreak.node.hub.post_writer import Arrival, PostResult, PostWriter
from tiebreak.node.hub.process import configure
from tiebreak.node.hub.service import Hub, HubSettings
from tiebreak.node.hub.store import Store
from tiebreak.node.hub_client import HubClient
from tiebreak.protocol.commitments.job import Head, SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import posts
from tiebreak.protocol.tags import Digest

HUB = PrivateKey.from_int(4)
JOB = make_job()
HEAD = SignedHead.sign(Head(job_id=JOB.id, count=1, run_root=Digest(b"\1" * 32)), DOMAIN, TRAINER)
GAME = game_id(HEAD.head, DOMAIN, CHALLENGER.address, 1)
NEED_POSTGRES = "TIEBREAK_NEED_POSTGRES"


@cache
def postgres_folder() -> Path | None:
    """Where PostgreSQL's programs are; None without one."""
    found = shutil.which("initdb")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    folder = next((path for path in candidates if (path / "postgres").exists()), None)
    assert folder is not None or NEED_POSTGRES not in os.environ, "expected PostgreSQL on this machine, got none"
    return folder


DATABASES = ["sqlite", "postgres"] if postgres_folder() else ["sqlite"]


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A server on a socket in a folder, deleted at the end. Gives what follows the database's name in a URL."""
    folder.mkdir(mode=0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    try:
        _program("initdb", folder, "-D", folder / "data", "-U", "tiebreak", "-A", "trust").wait()
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-k", folder]
        server = _program("postgres", folder, "-D", folder / "data", *options)
        for _ in range(200):
            if _program("pg_isready", folder, "-h", folder).wait() == 0:
                break
            time.sleep(0.05)
        try:
            yield f"?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)  # a fast shutdown; SIGTERM would wait for every client that a test left
            server.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str, folder: Path, *arguments: Any) -> "subprocess.Popen[bytes]":
    programs = postgres_folder()
    assert programs is not None
    user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    return subprocess.Popen([programs / name, *arguments], **quiet, **user)


@dataclass
class Running:
    url: str
    hub: Hub
    server: uvicorn.Server
    thread: threading.Thread

    def connect(self, **changes: Any) -> HubClient:
        return HubClient(self.url, DOMAIN, **{"hub": HUB.address, "seconds": 10.0, **changes})

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


def settings(folder: Path, database: str = "", **limits: int) -> HubSettings:
    changed = replace(HubLimits(free_bytes=0), **limits)
    return HubSettings(folder=folder, domain=DOMAIN, key=HUB, database=database, limits=changed)


@contextlib.contextmanager
def running(wanted: HubSettings, port: int = 0, *, proxies: str = "", **given: Any) -> Iterator[Running]:
    wanted.folder.mkdir(exist_ok=True)
    app = make_app(wanted, **given)
    trusted = networks_in(proxies)
    server = uvicorn.Server(configure(app, host="127.0.0.1", port=port, limits=wanted.limits, proxies=trusted))
    server.config.timeout_graceful_shutdown = 0.1  # type: ignore[assignment]
    listening = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the hub did not start"
        time.sleep(0.01)
    found = Running(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.hub, server, thread)
    try:
        yield found
    finally:
        found.stop()
        listening.close()


def ask(
    hub: Running, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers (names in small letters) and the body of an answer."""
    connection = http.client.HTTPConnection(urlsplit(hub.url).netloc, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    finally:
        connection.close()


def make_writer(store: Store, **changes: Any) -> PostWriter:
    return PostWriter(store, **{"domain": DOMAIN, "key": HUB, "limits": HubLimits(), **changes})


def arrived(wire: bytes, at: float = 0, address: str = "192.0.2.1") -> Arrival:
    return Arrival(wire=wire, signed=posts.SignedPost.decode(wire), at=at, address=address)


def take(writer: PostWriter, *wires: bytes, address: str = "192.0.2.1") -> list[PostResult]:
    return writer.take([arrived(wire, address=address) for wire in wires])


def post(body: posts.Body, author: PrivateKey, number: int, *, game: Digest | None = None) -> bytes:
    made = posts.Post.of(body, job_id=JOB.id, number=number, sender=author.address, game_id=game)
    return posts.SignedPost.sign(made, DOMAIN, author).encode()


OFFER = post(posts.OfferBody(job=JOB), CLIENT, 0)


def steps(number: int, author: PrivateKey = TRAINER) -> bytes:
    body = posts.StepsBody(first_step=number, losses=(), millisteps=0, processor=0, memory=0)
    return post(body, author, number)


def replayed(number: int, author: PrivateKey) -> bytes:
    return post(posts.ReplayedBody(count=number, run_root=JOB.id, agrees=1), author, number)


def library(files: list[tuple[str, Digest, int]], number: int, author: PrivateKey = TRAINER) -> bytes:
    """A post that names files by name, root and size."""
    rows = [posts.PublishedFile(name=name.encode(), size=size, root=root) for name, root, size in sorted(files)]
    return post(posts.LibraryBody(count=1, logs=0, files=tuple(rows)), author, number)


def own_job(key: PrivateKey, trainer: PrivateKey | None = None) -> list[bytes]:
    """An offer of a stranger's own, and a list of files, a head and three answers in it, all signed by that key."""
    job = replace(make_job(nonce=8), client=key.address, trainer=(trainer or key).address)
    head = SignedHead.sign(replace(HEAD.head, job_id=job.id), DOMAIN, key)
    bodies = [
        posts.OfferBody(job=job), posts.LibraryBody(count=0, logs=0, files=()), posts.HeadBody(head=head),
        *(posts.AnswerBody(job=job, signature=b"") for _ in range(3)),
    ]  # fmt: skip
    made = [posts.Post.of(body, job_id=job.id, number=n, sender=key.address) for n, body in enumerate(bodies)]
    return [posts.SignedPost.sign(one, DOMAIN, key).encode() for one in made]


def upload(hub_client: HubClient, path: Path) -> Digest:
    with path.open("rb", buffering=0) as file:
        return hub_client.put(file, path.stat().st_size)


def download(hub_client: HubClient, root: Digest, size: int, path: Path) -> None:
    path.touch()
    with path.open("r+b", buffering=0) as file:
        hub_client.get(root, size, file)
