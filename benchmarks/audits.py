"""An audit by several local processes: its time with two workers, with one, and in this process alone.

    python -m benchmarks.audits [WORKLOAD ...]

Each worker has one thread. The audits take turns, and each is timed whole: starting workers, conformance vectors,
reading states. `segments` is a job of 10,000 segments of one small step, where dividing is what costs.
"""

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.table import Row, interleaved, placed, publish, rows_of
from benchmarks.workloads import gpt2, rows_task
from tiebreak import SGD, Task
from tiebreak.api.auditing.audits import Workers, audit_chosen
from tiebreak.api.builtin.loader import load_task
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.engine.run import qualify
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import signed_records
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms

SEGMENTS: Final = "segments"
LENGTHS: Final = {SEGMENTS: (10_000, 1), "digits": (7_200, 12), "text": (2_000, 8), "gpt2": (12, 2)}
"""Steps of a run, and the steps between its checkpoints; the demo's jobs are made longer."""
REPEATS: Final = {"gpt2": 1}
ALONE, ONE, TWO = "this process", "one worker", "two workers"


def small() -> Task:
    """A softmax regression of 8 numbers."""
    torch.manual_seed(0)
    model, x, y = nn.Linear(8, 4), torch.randn(64, 8), torch.randint(0, 4, (64,))
    return rows_task(SEGMENTS, model, lambda model, x, y: F.cross_entropy(model(x), y), SGD(lr=0.1), x, y, batch=8)


def train(name: str, folder: Path) -> RunDirectory:
    """A run that is trained and signed, with all states kept."""
    steps, interval = LENGTHS[name]
    made = {SEGMENTS: small, "gpt2": gpt2}
    task = made[name]() if name in made else load_task(name, steps=steps)
    bundle = capture_bundle(replace(task, steps=steps, checkpoint_interval=interval), check="none")
    key = PrivateKey.from_int(1)
    run = agree_on(bundle, folder / name, client=key, trainer=key, terms=Terms(), domain=OFF_CHAIN)
    Worker(run, make_interpreter(run.program), key=key).work()
    return run


def measure(name: str, folder: Path) -> list[Row]:
    run = train(name, folder)
    records = signed_records(run)[0]
    every = tuple(range(len(records)))

    def audit(jobs: int | None, segments: tuple[int, ...] = every) -> None:
        qualify._vectors.cache_clear()
        workers = None if jobs is None else Workers(jobs=jobs, ledger=folder / f"{name}-{time.monotonic_ns()}")
        assert audit_chosen(run, segments, records, Machine(threads=1), workers=workers, quiet=True).agrees

    audits = {ALONE: None, ONE: 1, TWO: 2}
    seconds = interleaved({who: partial(audit, jobs) for who, jobs in audits.items()}, REPEATS.get(name, 3), warmup=0)
    first = interleaved({who: partial(audit, jobs, every[:1]) for who, jobs in audits.items()}, 3, warmup=0)
    case = f"{name}, {len(every)} segments of {run.job.checkpoint_interval} steps"
    rows = rows_of(case, "s", {f"an audit by {who}": seconds[who] for who in seconds})
    rows += rows_of(case, "s", {"of which starting a worker": first[ONE] - first[ALONE]})
    target = {"one worker / this process": "<= 1.05"} if name == SEGMENTS else {"one worker / two": ">= 1.8"}
    return rows + rows_of(case, "x", {
        "one worker / two": seconds[ONE] / seconds[TWO], "one worker / this process": seconds[ONE] / seconds[ALONE],
    }, target)  # fmt: skip


@click.command()
@click.argument("workloads", nargs=-1, type=click.Choice(sorted(LENGTHS)))
@placed
def main(workloads: tuple[str, ...], folder: Path) -> None:
    """Measure WORKLOADS (default: all)."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        rows = [row for name in workloads or LENGTHS for row in measure(name, Path(place))]
    publish("audits", rows, "policy exact, medians", folder=folder)


if __name__ == "__main__":
    main()
