"""A fine-tuning service under load: 200 clients poll a job each second, 50 files come, and all that while a job trains.

Those who load it run beside it on the same cores, and so does the job; the load of the machine is in the row's case.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.table import Row, placed, publish
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.lab.network.local_network import free_port

CLIENTS: Final = 200
UPLOADS: Final = 50
ROW: Final = json.dumps({"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4" * 99}]})
FORM: Final = (
    '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b\r\nContent-Disposition: form-data; '
    'name="file"; filename="x.jsonl"\r\n\r\n%s\r\n--b--\r\n'
)


class ApiClient:
    """A connection with a key, which asks one thing after another."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self._streams: Any = None

    async def ask(self, line: str, body: str = "", kind: str = "application/json") -> tuple[float, Any]:
        """The seconds until the answer has come, and the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{line} HTTP/1.1\r\nHost: s\r\nAuthorization: Bearer {self._key}\r\nContent-Length: {len(body)}\r\n"
        start = time.perf_counter()
        writer.write(f"{head}Content-Type: {kind}\r\n\r\n{body}".encode())
        try:
            found = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):  # it was idle for longer than the server waits
            self._streams = None
            return await self.ask(line, body, kind)
        size = next(int(one.split(b":")[1]) for one in found.lower().splitlines() if one.startswith(b"content-length"))
        answer = await reader.readexactly(size)
        assert b" 200 " in found.splitlines()[0], (found, answer)
        return time.perf_counter() - start, json.loads(answer)

    async def upload(self, rows: int) -> tuple[float, Any]:
        body = FORM % ("\n".join([ROW] * rows))
        return await self.ask("POST /v1/files", body, "multipart/form-data; boundary=b")


async def measured(port: int, key: str, model: str, seconds: int, megabytes: int) -> list[Row]:
    """Polls and uploads before a job and while it trains."""
    clients, rows = [ApiClient(port, key) for _ in range(CLIENTS)], list[Row]()
    file = (await clients[0].upload(200))[1]["id"]
    seed, what = {"model": model, "training_file": file, "seed": 1}, ["no job trains", "a job trains"]
    for case in what:
        if case == what[1]:
            order = {**seed, "hyperparameters": {"n_epochs": 50}}
            await clients[0].ask("POST /v1/fine_tuning/jobs", json.dumps(order))
            while (await clients[0].ask("GET /v1/fine_tuning/jobs?limit=1"))[1]["data"][0]["status"] == "queued":
                await asyncio.sleep(0.2)
            await asyncio.sleep(15)  # it imports torch and captures
        polls, end = list[float](), time.perf_counter() + seconds

        async def poll(one: ApiClient, end: float = end, polls: list[float] = polls) -> None:
            while time.perf_counter() < end:
                polls.append((await one.ask("GET /v1/fine_tuning/jobs?limit=1"))[0])
                await asyncio.sleep(1)

        await asyncio.gather(*map(poll, clients))
        counts = megabytes * 2**20 // len(ROW)
        uploads = [took for took, _ in await asyncio.gather(*(one.upload(counts) for one in clients[:UPLOADS]))]
        for name, times in ((f"{CLIENTS} clients poll", polls), (f"{UPLOADS} uploads of {megabytes} MB", uploads)):
            for share in (0.5, 0.99):
                value = round(sorted(times)[int(share * (len(times) - 1))], 4)
                rows.append(Row(metric=f"{name}, p{100 * share:g}", case=case, value=value, unit="s"))
    return rows


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option("--seconds", type=click.IntRange(1), default=20, show_default=True, help="How long to poll each time.")
@click.option("--megabytes", type=click.IntRange(1), default=1, show_default=True, help="Size of each upload.")
@placed
def main(model: Path, seconds: int, megabytes: int, folder: Path) -> None:
    """Measure a service whose base model is in the folder MODEL."""
    port, environment = free_port(), {**os.environ, PASSPHRASE_VARIABLE: "benchmark"}
    with tempfile.TemporaryDirectory(prefix="tiebreak-service-") as name:
        scratch = Path(name)
        command = [sys.executable, "-m", "tiebreak", "serve", str(scratch / "service")]
        keyed = [*command, "--new-key", "load", "--limit", "requests=1000000"]
        key = subprocess.run(keyed, check=True, capture_output=True, text=True).stdout.split()[-1]
        more = ["--models", str(model.parent), "--key", str(scratch / "key.pem"), "--port", str(port)]
        with subprocess.Popen([*command, *more], env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                time.sleep(10)
                rows = asyncio.run(measured(port, key, model.name, seconds, megabytes))
            finally:
                process.terminate()
    publish("service", rows, folder=folder)


if __name__ == "__main__":
    main()
