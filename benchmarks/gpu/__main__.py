"""Measures everything there is to know of a GPU, in slices of four minutes at most: docs/speed.md says what each holds.

    python -m benchmarks.gpu [SLICE ...]         writes benchmark-results/gpu/CARD/SLICE.json
    python -m benchmarks.gpu --list              what is done on which card, what is next, and how long it took
    python -m benchmarks.gpu --device cpu        tests the benchmark itself on tiny models, with kernels interpreted

Each slice runs in a process of its own with a limit of its own, and one that fails stops no other. Killed at any
instant, the same command goes on: here, or on another machine with the same card and a copy of the folder. Slices that
were never tried come first, then those that failed, then those measured from other sources.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import click
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu.slices import LIMIT, SLICES, slices_on
from benchmarks.gpu.workloads import caches
from benchmarks.table import OUTPUT, RESULTS, Row, placed, show, write

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = ("tiebreak/engine", "benchmarks/gpu")
SHOWN: Final = 4000
"""The characters that are kept of what a failed slice has printed last."""
TRIAL_LIMIT: Final = 600
"""The limit of a slice in a trial, whose kernels are interpreted, in seconds."""
CACHE: Final = "cache"
"""The folder of compiled kernels, next to those of the cards."""
STATES: Final = ("not tried", "interrupted", "failed", "of other sources", "done")
"""The states of a slice; those that are not done are run in this order."""


def sources() -> str:
    """A digest of the sources that decide the results, in hex."""
    hasher = sha256()
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
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


def held(folder: Path, name: str) -> dict[str, Any]:
    """A slice's file; empty if there is none."""
    path = folder / f"{name}.json"
    document: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return document


def state_of(folder: Path, name: str, digest: str) -> str:
    """The state of a slice by its file in the folder of a card."""
    document = held(folder, name)
    if not document:
        return "not tried"
    if "problem" in document:
        return "failed"
    if not document["finished"]:
        return "interrupted"
    return "done" if document["environment"]["sources"] == digest else "of other sources"


class Measurement:
    """The slices of one card, in one folder."""

    def __init__(self, device: str, folder: Path, cache: Path) -> None:
        self.device = device
        self.card = torch.cuda.get_device_name(0) if device == "cuda" else "trial on a CPU"
        self.folder, self.cache = folder.resolve() / re.sub(r"\W+", "-", self.card), cache.resolve()
        self.told = {"card": self.card, "sources": sources(), "commit": commit()}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cache.mkdir(parents=True, exist_ok=True)

    def state(self, name: str) -> str:
        return state_of(self.folder, name, self.told["sources"])

    def run(self, name: str) -> str:
        """Runs a slice; returns its state, and why, if it failed."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        interpreted = self.device == "cpu" and slices_on(self.device)[name].interpreted
        environment = os.environ | caches(self.cache) | {"TRITON_INTERPRET": str(int(interpreted))}
        limit = LIMIT if self.device == "cuda" else TRIAL_LIMIT
        command = "-m", "benchmarks.gpu.slices", name, self.device, str(self.folder), json.dumps(self.told)
        log, ended = self.cache / f"{name}.log", ""
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=file,
                stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                ended = f"ended after {limit} s"
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed = log.read_text("utf-8", errors="replace").strip()
        document = held(self.folder, name)
        rows = [Row(**row) for row in document.get("rows", [])]
        show(name, rows, predicted=document.get("predicted"))
        if document.get("finished"):
            return f"done: {len(rows)} rows in {document['environment']['seconds']} s"
        why = ended or f"exit code {process.returncode}"
        more = {name: document[name] for name in ("predicted", "finished") if document}
        more["problem"] = f"{printed[-SHOWN:]}\n{why}"
        write(name, rows, "", environment=document.get("environment", self.told), folder=self.folder, **more)
        return f"failed with {len(rows)} rows, {why}: {(printed or 'no message').splitlines()[-1]}"


def listed(folder: Path) -> None:
    """Prints what became of each slice, by card, and what is next."""
    digest = sources()
    for card in sorted(path for path in folder.glob("*") if path.name != CACHE) or [folder / "no card yet"]:
        table = Table(title=card.name, title_justify="left", header_style="dim")
        for column in ("slice", "state", "rows", "seconds"):
            table.add_column(column)
        states = {each.name: state_of(card, each.name, digest) for each in SLICES}
        for name, state in states.items():
            document = held(card, name)
            rows, seconds = document.get("rows", ()), document.get("environment", {}).get("seconds", "")
            table.add_row(name, state, str(len(rows)), seconds)
        Console(width=130).print(table)
        click.echo(f"next: {', '.join(in_order(states)[:3]) or 'nothing'}\n")


def in_order(states: dict[str, str]) -> list[str]:
    """The slices that are not done, in the order in which they are run."""
    names = [name for name, state in states.items() if state != "done"]
    return sorted(names, key=lambda name: max(1, STATES.index(states[name])))


@click.command(help=__doc__)
@click.argument("slices", nargs=-1, type=click.Choice([each.name for each in SLICES]))
@click.option("--device", type=click.Choice(("cuda", "cpu")), default="cuda", show_default=True,
              help="cpu: try out, on tiny models.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0), default=15, show_default=True,
              help="Start no slice that may take longer.")  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="Run nothing; say what is done, what is next, how long it took.")
@placed
def main(slices: tuple[str, ...], device: str, minutes: float, listing: bool, folder: Path) -> None:
    if listing:
        listed(folder / "gpu")
        return
    if device == "cpu" and folder == RESULTS:
        raise click.UsageError("--commit is for a GPU's results, not for a trial on the CPU")
    if device == "cuda" and not torch.cuda.is_available():
        raise click.ClickException("expected a GPU that torch can use, got none; --device cpu tries out the benchmark")
    ends = time.monotonic() + 60 * minutes
    measurement = Measurement(device, folder / "gpu", (OUTPUT if folder == RESULTS else folder) / "gpu" / CACHE)
    wanted = [name for name in slices_on(device) if name in (slices or slices_on(device))]
    states = {name: measurement.state(name) for name in wanted}
    for name in in_order(states):
        left = ends - time.monotonic()
        if left < LIMIT and device == "cuda":
            click.echo(f"{name}: left, {left:.0f} s remain and it may take {LIMIT}")
            break
        states[name] = measurement.run(name)
        click.echo(f"{name}: {states[name]}\n")
    click.echo(f"{measurement.folder}, {', '.join(f'{name} {value}' for name, value in measurement.told.items())}")
    for name, state in states.items():
        click.echo(f"    {name:<20}{state}")
    if missing := [name for name, state in states.items() if not state.startswith("done")]:
        click.echo(f"not done: {', '.join(missing)}; the same command goes on with these", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
