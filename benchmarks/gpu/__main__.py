"""Measures everything there is to know of a GPU, in parts, within 25 minutes: docs/gpu.md says what each file holds.

    python -m benchmarks.gpu [PART ...]          writes benchmark-results/gpu/PART.json
    python -m benchmarks.gpu --device cpu        tests the benchmark itself on tiny models, with kernels interpreted

Each part runs in a process of its own and writes its file when it is done; one that fails leaves PART.failed, with what
it printed last, and the others still run. Killed at any instant, the same command goes on with what is missing: a part
is kept if its file is of the same sources and the same device. No part is started that is not expected to be done in
time; what is left is said.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Final

import click
import torch

from benchmarks.gpu.parts import PARTS, Part, parts_on, work
from benchmarks.table import RESULTS, placed, read, show
from tiebreak.api.machine.environment import describe_cuda

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("tiebreak", "benchmarks/gpu")
STARTS: Final = {"cuda": "spawn", "cpu": "forkserver"}
"""The start methods of processes of parts. Forks of a server that has imported everything are quick, but CUDA does not
work in them if anything has asked for the GPU before, which an import may do."""
PATIENCE: Final = 3
"""A part that takes this many times longer than guessed is ended."""
SHOWN: Final = 4000
"""The characters of what a failed part has printed last."""


def sources() -> str:
    """A digest of the sources that decide the results, in hex."""
    hasher = sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.[pch]*")):
            data = path.read_bytes()
            hasher.update(f"{path.relative_to(ROOT)} {len(data)}\n".encode() + data)
    return hasher.hexdigest()


def commit() -> str:
    """The commit of this tree, with `-dirty` if it was changed; `unknown` without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Measurement:
    """One command's parts, in one folder."""

    def __init__(self, device: str, folder: Path, minutes: float) -> None:
        self.device, self.folder = device, folder
        self.ends = time.monotonic() + 60 * minutes
        names = [name for key, name in describe_cuda() if key.startswith("cuda:")]
        self.key = {"device": device, "names": ", ".join(names) if device != "cpu" else "", "sources": sources()}
        self.told = self.key | {"commit": commit()}
        self._processes = multiprocessing.get_context(STARTS[device])
        self._processes.set_forkserver_preload(["benchmarks.gpu.parts"])
        folder.mkdir(parents=True, exist_ok=True)

    def is_done(self, part: Part) -> bool:
        """Whether the part's file is there, of this device and these sources."""
        path = self.folder / f"{part.name}.json"
        if not path.is_file():
            return False
        environment = json.loads(path.read_text("utf-8"))["environment"]
        return all(environment.get(name) == value for name, value in self.key.items())

    def run(self, part: Part) -> str:
        """Runs a part; returns what became of it."""
        left = self.ends - time.monotonic()
        if left < part.seconds:
            return f"left: {left:.0f} s remain, it is guessed to take {part.seconds}"
        (self.folder / f"{part.name}.json").unlink(missing_ok=True)
        log, failed = self.folder / f".{part.name}.log", self.folder / f"{part.name}.failed"
        failed.unlink(missing_ok=True)
        arguments = part, self.device, self.folder, log, self.told
        process = self._processes.Process(target=work, args=arguments)
        started = time.monotonic()
        process.start()
        limit = min(PATIENCE * part.seconds, left)
        process.join(limit)
        if process.is_alive():
            process.kill()
            process.join()
        seconds = time.monotonic() - started
        if self.is_done(part):
            log.unlink()
            rows = read(self.folder / f"{part.name}.json")
            show(part.name, rows)
            return f"done: {len(rows)} rows in {seconds:.0f} s"
        printed = log.read_text("utf-8", errors="replace").strip() if log.exists() else ""
        how = f"ended after {limit:.0f} s" if seconds >= limit else f"exit code {process.exitcode}"
        failed.write_text(f"{printed[-SHOWN:]}\n{how}\n", encoding="utf-8")
        log.unlink(missing_ok=True)
        return f"failed, {how}: {(printed or 'no message').splitlines()[-1]}"


@click.command(help=__doc__)
@click.argument("parts", nargs=-1, type=click.Choice([part.name for part in PARTS]))
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    default="cuda",
    show_default=True,
    help="cpu: try out, on tiny models.",
)
@click.option("--minutes", type=click.FloatRange(min=0), default=25, show_default=True, help="For this call.")
@placed
def main(parts: tuple[str, ...], device: str, folder: Path, minutes: float) -> None:
    if device == "cpu" and folder == RESULTS:
        raise click.UsageError("--commit is for a GPU's results, not for a trial on the CPU")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # for every part
    elif not torch.cuda.is_available():
        raise click.ClickException("expected a GPU that torch can use, got none; --device cpu tries out the benchmark")
    measurement = Measurement(device, folder / "gpu", minutes)
    outcomes = {}
    for part in (part for part in parts_on(device) if not parts or part.name in parts):
        outcomes[part.name] = "done before" if measurement.is_done(part) else measurement.run(part)
        click.echo(f"{part.name}: {outcomes[part.name]}")
    click.echo(f"\n{measurement.folder}, {', '.join(f'{name} {value}' for name, value in measurement.told.items())}")
    for name, outcome in outcomes.items():
        click.echo(f"    {name:<20}{outcome}")
    missing = [name for name, outcome in outcomes.items() if not outcome.startswith("done")]
    if missing:
        click.echo(f"not done: {', '.join(missing)}; the same command goes on with these", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
