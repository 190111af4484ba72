"""Measures policy `logged`: logs, thresholds, time, what happens without the log, and what precision costs.

    python -m benchmarks.logged [--parts bytes,speed] [--models gpt2]
    python -m benchmarks.logged --quick                       tests the benchmark itself in seconds, on tiny models

Each part of each model is measured and written separately, and replaces its older rows in logged.json. So a killed run
loses at most one part of one model. `--missing` measures only what is not there yet. Part `thresholds` comes first: the
others use the policies that it saves in the folder logged/ beside the results.

    | part | what |
    | --- | --- |
    | thresholds | Algorithm 3: threshold and tolerance of each kind of sum; the tau that the paper would need |
    | bytes | logs of some steps at b = 32 ... 26 in every encoding; entries, and those that an auditor needed |
    | speed | a step of every party next to `exact` and eager FP32 |
    | divergence | weights of two runs without the log, with another order of the data, with the log |
    | accuracy | loss and accuracy on real data at each precision |
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
import torch

from benchmarks.logged.accuracy import accuracy
from benchmarks.logged.context import Context
from benchmarks.logged.divergence import divergence
from benchmarks.logged.logs import log_bytes
from benchmarks.logged.speed import speed
from benchmarks.logged.store import Store, Unit
from benchmarks.logged.thresholds import thresholds
from benchmarks.logged.workloads import FULL, QUICK, Sizes
from benchmarks.table import RESULTS, Row, placed
from tiebreak.engine.capture.task import Task
from tiebreak.engine.system import usable_cores

Part = Callable[[Context], list[Row]]
PARTS: Final[dict[str, Part]] = {
    "thresholds": thresholds,
    "bytes": log_bytes,
    "speed": speed,
    "accuracy": accuracy,
    "divergence": divergence,
}
MODELS: Final = (*FULL.models, *FULL.tasks)


def units(sizes: Sizes, parts: tuple[str, ...], models: tuple[str, ...]) -> Iterator[tuple[Unit, Callable[[], Task]]]:
    """The units to measure, with the parts in the order of `PARTS`."""
    for part in PARTS:
        made = sizes.tasks if part == "accuracy" else sizes.models
        if part == "thresholds":
            made = {**sizes.models, **sizes.tasks}
        for model, make in made.items():
            if part in parts and model in models:
                yield Unit(part=part, model=model), make


def measure(unit: Unit, make: Callable[[], Task], sizes: Sizes, store: Store) -> None:
    """Measures one unit and stores its rows."""
    started = time.perf_counter()
    context = Context(unit=unit, sizes=sizes, store=store, task=make())
    context.say("started")
    rows = PARTS[unit.part](context)
    store.merge(unit, rows, time.perf_counter() - started)
    del context
    gc.collect()  # models and states take gigabytes, and modules form reference cycles


class Names(click.ParamType[tuple[str, ...]]):
    """A comma-separated choice from a few names."""

    name = "names"

    def __init__(self, known: tuple[str, ...]) -> None:
        self._known = known

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(str(value).split(","))
        for name in names:
            if name not in self._known:
                self.fail(f"expected some of {', '.join(self._known)}, got {name!r}", param, ctx)
        return names


@click.command()
@click.option("--parts", type=Names(tuple(PARTS)), default=",".join(PARTS), show_default=True)
@click.option("--models", type=Names(MODELS), default=",".join(MODELS), show_default=True)
@click.option("--missing", is_flag=True, help="Only what has no results yet.")
@click.option("--quick", is_flag=True, help="Tiny models, to try the benchmark out.")
@click.option("--steps", type=click.IntRange(min=1), help="Of part divergence: compare after so many at most.")
@click.option("--threads", type=click.IntRange(min=1), default=usable_cores(), show_default="all cores")
@placed
def main(
    parts: tuple[str, ...],
    models: tuple[str, ...],
    missing: bool,
    quick: bool,
    folder: Path,
    steps: int | None,
    threads: int,
) -> None:
    """Measure; see the module."""
    if quick and folder == RESULTS:
        raise click.UsageError("--commit is for real models, not for --quick")
    torch.set_num_threads(threads)
    store, sizes = Store(folder), QUICK if quick else FULL
    if steps is not None:
        sizes = replace(sizes, marks=tuple(mark for mark in sizes.marks if mark <= steps))
    store.check_environment()
    for unit, make in units(sizes, parts, models):
        if not (missing and store.has(unit)):
            measure(unit, make, sizes, store)


if __name__ == "__main__":
    main()
