"""A hub under load: posts a second with many parties that listen, and a large blob against curl from a static server.

The hub is two processes on two cores (`taskset`), as an operator would run it; those who load it run beside it, so on a
machine with no more cores than that they take from it what they use, and the load of the machine is in the row's case.
The receipts' signatures are not checked here, which is the parties' time.
"""

import asyncio
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from benchmarks.table import Row, placed, publish
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.engine.run.agreement import Terms
from tiebreak.node.mail import Mail, blob_of
from tiebreak.protocol.chain.devnet import free_port
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.parties import posts
from tiebreak.protocol.tags import Digest

JOBS: Final = 200
LISTENERS: Final = 1000
RATE: Final = 500
TARGETS: Final = {"p99": "under 0.25 s", "blob": "at least 0.6", "memory": "under 300 MB"}


def job_of(number: int, client: PrivateKey, trainer: PrivateKey) -> Job:
    terms, root = Terms(), Digest(bytes(32))
    return Job(
        client=client.address, trainer=trainer.address, program_root=root, body_count=10, state_count=1, data_count=0,
        initial_state_root=root, data_root=root, steps=1000, checkpoint_interval=10, reward=terms.reward,
        trainer_stake=terms.trainer_stake, challenger_stake=terms.challenger_stake,
        challenge_window=terms.challenge_window, clock=terms.clock, replay_time=terms.replay_time,
        talk_time=terms.talk_time, audit_time=terms.audit_time, deadline=terms.deadline, descent_levels=4, nonce=number,
    )  # fmt: skip


class Server:
    """A hub in a folder, and the memory of all its processes."""

    def __init__(self, folder: Path, *, cores: str) -> None:
        self.port = free_port()
        environment = {**os.environ, PASSPHRASE_VARIABLE: "benchmark"}
        command = [sys.executable, "-m", "tiebreak", "hub", "--folder", str(folder)]
        subprocess.run([*command, "--init"], env=environment, check=True, stdout=subprocess.DEVNULL)
        limits = "[limits]\nposts_per_minute = 1000000\nstreams_per_address = 2000\nfree_bytes = 0\n"
        text = (folder / "hub.toml").read_text()
        (folder / "hub.toml").write_text(text.replace("[limits]\n", limits))
        pinned = ["taskset", "-c", cores, *command, "--port", str(self.port)]
        self.process = subprocess.Popen(pinned, env=environment, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        self.mail = Mail(self.url, OFF_CHAIN)
        self.mail.hub  # noqa: B018  # waits until it answers

    def _processes(self) -> list[str]:
        command = ["ps", "-o", "pid=", "--ppid", str(self.process.pid)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [str(self.process.pid), *listed.split()]

    def memory(self) -> float:
        """Proportional set size of the hub and its clerk, in MB: what both share counts once."""
        total = 0
        for word in self._processes():
            lines = Path(f"/proc/{word}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1000

    def seconds(self) -> float:
        """Processor time of the hub and its clerk so far."""
        total = 0
        for word in self._processes():
            total += sum(map(int, Path(f"/proc/{word}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
        return total / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Load:
    """Parties over plain sockets: their own work is not what is measured."""

    def __init__(self, server: Server, seconds: int, seed: int) -> None:
        self._server, self._seconds, self._random = server, seconds, random.Random(seed)
        self.waits: list[float] = []
        self.heard = 0
        self.failed = 0

    def prepare(self) -> None:
        """Offer the jobs, and sign what will be posted."""
        keys = [PrivateKey.from_int(1000 + n) for n in range(2 * JOBS)]
        self._jobs = [job_of(n, keys[2 * n], keys[2 * n + 1]) for n in range(JOBS)]
        for n, job in enumerate(self._jobs):
            offer = posts.Post.of(posts.OfferBody(job=job), job_id=job.id, number=0, sender=job.client)
            self._server.mail.post(posts.SignedPost.sign(offer, OFF_CHAIN, keys[2 * n]).encode())
        self._wires = []
        for number in range(self._seconds * RATE):
            n = number % JOBS
            body = posts.StepsBody(first_step=number, losses=(1,) * 10, millisteps=1, processor=1, memory=1)
            post = posts.Post.of(body, job_id=self._jobs[n].id, number=number // JOBS, sender=keys[2 * n + 1].address)
            self._wires.append(posts.SignedPost.sign(post, OFF_CHAIN, keys[2 * n + 1]).encode())

    async def run(self) -> None:
        listening = [asyncio.create_task(self._listen(self._jobs[n % JOBS].id)) for n in range(LISTENERS)]
        await asyncio.sleep(10)
        self.idle = self._server.seconds()
        free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        for _ in range(64):
            free.put_nowait(await asyncio.open_connection("127.0.0.1", self._server.port))
        start, posting = time.perf_counter(), []
        for number, wire in enumerate(self._wires):
            due = start + number / RATE
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            posting.append(asyncio.create_task(self._post(free, wire, due)))
        await asyncio.gather(*posting)
        self.took = time.perf_counter() - start
        await asyncio.sleep(1)
        for task in listening:
            task.cancel()

    async def _post(
        self, free: "asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]", wire: bytes, due: float
    ) -> None:
        reader, writer = await free.get()
        writer.write(b"POST /posts HTTP/1.1\r\nHost: hub\r\nContent-Length: %d\r\n\r\n" % len(wire) + wire)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        self.waits.append(time.perf_counter() - due)
        self.failed += not head.startswith(b"HTTP/1.1 200")
        free.put_nowait((reader, writer))

    async def _listen(self, job: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=1 << 20)
        writer.write(b"GET /stream?posts=1&after=%d&job=%s HTTP/1.1\r\nHost: hub\r\n\r\n" % (JOBS, job.hex().encode()))
        while line := await reader.readline():
            self.heard += line.startswith(b"id: ")


def posting(folder: Path, seconds: int, cores: str) -> list[Row]:
    """Posts at a steady rate. A wait counts from the instant at which the post was due, not from when it was sent."""
    server = Server(folder, cores=cores)
    try:
        load = Load(server, seconds, 1)
        load.prepare()
        before = os.getloadavg()[0]
        asyncio.run(load.run())
        used = (server.seconds() - load.idle) / load.took
        memory = server.memory()
    finally:
        server.stop()
    assert load.failed == 0, f"{load.failed} posts were refused"
    assert load.heard == len(load.waits) * LISTENERS // JOBS, f"listeners heard {load.heard} of {len(load.waits)}"
    case = f"{LISTENERS} parties, {JOBS} jobs, {RATE} posts/s, load {before:.1f} before"
    waits = sorted(load.waits)
    rows = []
    for name, share, target in (("median", 0.5, ""), ("p99", 0.99, TARGETS["p99"]), ("worst", 0.99999, "")):
        wait = round(waits[int(len(waits) * share)], 4)
        rows.append(Row(metric=f"post, {name}", case=case, value=wait, unit="s", target=target))
    rows.append(Row(metric="posts", case=case, value=round(len(waits) / load.took, 1), unit="1/s", target=f"{RATE}"))
    each = round(1000 * used * load.took / len(waits), 2)
    rows.append(Row(metric="processor time of a post", case=case, value=each, unit="ms"))
    return [*rows, Row(metric="memory", case=case, value=round(memory, 1), unit="MB", target=TARGETS["memory"])]


def blobs(folder: Path, megabytes: int, cores: str, rounds: int) -> list[Row]:
    """A blob from the hub, checked and written, against curl from a static server."""
    folder.mkdir()
    large, out = folder / "large.bin", folder / "out"
    with large.open("wb") as file:
        for _ in range(megabytes):
            file.write(random.randbytes(1 << 20))
    root, size = blob_of(large)
    client, trainer = PrivateKey.from_int(1), PrivateKey.from_int(2)
    job = job_of(0, client, trainer)
    server = Server(folder / "hub", cores=cores)
    found: dict[str, list[float]] = {"upload": [], "download": [], "curl": []}
    try:
        row = posts.PublishedFile(name=b"large", size=size, root=root)
        for number, body, key in (
            (0, posts.OfferBody(job=job), client),
            (0, posts.LibraryBody(count=0, logs=0, files=(row,)), trainer),
        ):
            post = posts.Post.of(body, job_id=job.id, number=number, sender=key.address)
            server.mail.post(posts.SignedPost.sign(post, OFF_CHAIN, key).encode())
        found["upload"].append(_timed(lambda: server.mail.upload(large)))
        with _Static(folder, cores) as static:
            for _ in range(rounds):
                found["download"].append(_timed(lambda: server.mail.download(root, size, out)))
                out.unlink()
                found["curl"].append(_timed(lambda: _curl(f"{static}/large.bin", out)))
                assert out.stat().st_size == size
                out.unlink()
        memory = server.memory()
    finally:
        server.stop()
    load, case = os.getloadavg()[0], f"{megabytes} MiB"
    medians = {name: statistics.median(values) for name, values in found.items()}
    rows = [
        Row(metric=f"blob, {name}", case=case, value=round(size / value / 1e6), unit="MB/s")
        for name, value in medians.items()
    ]
    ratio = round(medians["curl"] / medians["download"], 3)
    rows.append(
        Row(metric="blob against curl", case=f"{case}, load {load:.1f}", value=ratio, unit="", target=TARGETS["blob"])
    )
    return [
        *rows,
        Row(metric="memory", case=f"after {case}", value=round(memory, 1), unit="MB", target=TARGETS["memory"]),
    ]


class _Static:
    """Python's own file server, which hands files to the kernel in pieces of 64 KiB (`shutil.copyfileobj`)."""

    def __init__(self, folder: Path, cores: str) -> None:
        self._port = free_port()
        command = ["taskset", "-c", cores, sys.executable, "-m", "http.server", str(self._port), "-d", str(folder)]
        self._process = subprocess.Popen(
            [*command, "-b", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> str:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                break
            except OSError:
                time.sleep(0.1)
        return f"http://127.0.0.1:{self._port}"

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        self._process.wait()


def _curl(url: str, out: Path) -> None:
    subprocess.run(["curl", "-s", "-o", str(out), url], check=True)


def _timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@click.command()
@click.option("--seconds", type=click.IntRange(1), default=30, show_default=True, help="How long to post.")
@click.option("--megabytes", type=click.IntRange(1), default=2048, show_default=True, help="Size of the blob.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Downloads each way.")
@click.option("--cores", default="0,1", show_default=True, help="The hub's.")
@click.option("--skip", type=click.Choice(["posts", "blobs"]), help="Leave one part away.")
@placed
def main(seconds: int, megabytes: int, rounds: int, cores: str, skip: str | None, folder: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix="tiebreak-hub-"))
    rows: list[Row] = []
    try:
        if skip != "posts":
            rows += posting(scratch / "posts", seconds, cores)
        if skip != "blobs":
            rows += blobs(scratch / "blobs", megabytes, cores, rounds)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    publish("hub", rows, folder=folder)


if __name__ == "__main__":
    main()
