"""`tiebreak scale`: estimates what a job of any size costs, and which limit it meets first when it grows."""

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tiebreak import api
from tiebreak.cli.options import FILE, NEW_FILE, number, options, write_json
from tiebreak.engine.run.retention import Keep
from tiebreak.lab.incentives.costs import (
    MOST,
    WHAT,
    CostLimit,
    Equipment,
    Estimates,
    StepCounts,
    Workload,
    costs,
    counts_of,
    first_limit,
    loads,
    transformer_counts,
    transformer_near,
    transformer_work,
)
from tiebreak.lab.incentives.measured import FIGURES, WORST
from tiebreak.lab.incentives.workers import Shares, shares
from tiebreak.protocol.errors import ConfigurationError, own_file

POSITIVE: Final = click.FloatRange(0, min_open=True)
MEANS: Final = {
    "memory_bytes": ("--memory", "Bytes of memory of a machine."),
    "disk_bytes": ("--disk", "Bytes of disk of a party."),
    "days": ("--days", "Days to train one job, and to audit and settle all jobs."),
    "auditor_cores": ("--auditor-cores", "Cores that audit; devices, with --step-seconds."),
    "replay_time": ("--replay-time", "Seconds that the job allows for a move that replays a segment."),
    "block_gas": ("--block-gas", "Gas of a block."),
    "block_seconds": ("--block-seconds", "Seconds from block to block."),
    "chain_share": ("--chain-share", "Share of the chain's gas that these jobs may use."),
}


_means = options(*(
    click.option(MEANS[one.name][0], one.name, type=POSITIVE, default=one.default, show_default=True,
                 help=MEANS[one.name][1]) for one in fields(Equipment)
))  # fmt: skip


@click.command()
@number("--parameters", 1, 10**15, 124_439_808, "Size of the model: GPT-2 with AdamW, of about this many parameters.")
@click.option("--program", type=FILE, help="A captured program (program.tbp), instead of --parameters.")
@number("--sequence", 1, 1 << 20, 1024, "Tokens of a sequence, with --parameters.")
@number("--batch", 1, 1 << 20, 8, "Sequences of a step, with --parameters.")
@number("--steps", 1, 10**12, 10_000, "Steps of a job.")
@number("--checkpoint-interval", 1, 10**12, 10, "Steps from checkpoint to checkpoint.")
@number("--jobs", 1, 10**12, 1, "Jobs of this kind.")
@click.option("--disputed", type=click.FloatRange(0, 1), default=0.01, show_default=True,
              help="Share of the jobs with a dispute.")  # fmt: skip
@number("--levels", 1, 5, 5, "Levels of a tree that a move of a dispute shows.")
@number("--window", 1, 10**9, 24 * 3600, "Seconds within which a trainer has to post its next head, as in the job.")
@click.option("--keep", default="all", show_default=True, help="Checkpoints that stay on disk: all, every:M or last.")
@click.option("--workers", type=click.IntRange(1, 1 << 20),
              help="With --parameters: also show what each of this many workers sends and holds.")  # fmt: skip
@click.option("--step-seconds", type=POSITIVE,
              help="Seconds per step of your model in FP32 PyTorch, on your device [default: one core].")  # fmt: skip
@_means
@click.option("--json", "output", type=NEW_FILE, help="Write costs and limits into this file, too.")
def scale(**options: Any) -> None:
    """Estimate what a job of any size costs, and what gives way first when it grows.

    Sizes are counted from the program. Times, memory and gas follow from this repository's own measurements on one
    core of a CPU. For another device, give --step-seconds: times are then that, multiplied by the measured ratio to
    plain PyTorch. Estimates of models that were measured, but not used for the fit, were off by up to a factor of 2.

    With --workers, the step's batch is shared out among machines (docs/distributed.md): what a worker sends and holds
    is estimated from plans of 1 to 4 workers; for 8, which were held out, it was off by up to 7 %.

    The limits are your own means (memory, disk, days, a chain) and those of this version.
    """
    work = work_of(options)
    means = Equipment(**{field.name: options[field.name] for field in fields(Equipment)})
    found = costs(work)
    show(work, found)
    divided = shares_of(options)
    if divided is not None:
        for what, value in divided.told().items():
            click.echo(f"each of {divided.workers} workers: {what} {human(value, 'bytes')}")
    most = loads(work, means)[0]
    click.echo(f"Nearest to its limit: {most.name}, {100 * most.share:.3g} % of {human(most.limit, most.unit)}.")
    limits: dict[str, tuple[int | None, CostLimit | None]] = {}
    for direction, (start, grown) in directions(work, options).items():
        limits[direction] = first_limit(grown, start, MOST[direction], means)
    if most.share > 1:
        click.echo(f"That is over the limit already. To lift it: {most.lift}.")
    else:
        for direction, (at, load) in limits.items():
            click.echo(sentence(direction, at, load))
    if options["output"] is not None:
        document = {
            "name": "scale",
            "counts": asdict(work.counts),
            "means": asdict(means),
            "costs": {name: {"what": WHAT[name][0], "unit": WHAT[name][1], "value": value}
                      for name, value in found.named().items()},
            "limits": {direction: {"up to": at, "then": load and asdict(load)}
                       for direction, (at, load) in limits.items()},
            "workers": divided and {"number": divided.workers, **divided.told()},
        }  # fmt: skip
        write_json(options["output"], document)
        click.echo(f"wrote {options['output']}")


def work_of(options: dict[str, Any]) -> Workload:
    """The work that the options describe."""
    steps, interval = options["steps"], options["checkpoint_interval"]
    return Workload(counts=counts_from(options), steps=steps, interval=interval, jobs=options["jobs"],
                levels=options["levels"], keep=Keep.parse(options["keep"]), window=options["window"],
                disputed=options["disputed"], step_seconds=options["step_seconds"])  # fmt: skip


def shares_of(options: dict[str, Any]) -> Shares | None:
    """The shares of a worker; None unless --workers is given. Raises `ConfigurationError` for a captured program."""
    if options["workers"] is None:
        return None
    if options["program"] is not None:
        raise ConfigurationError("expected --parameters with --workers, got --program; see `tiebreak plan` for a run")
    model = transformer_near(options["parameters"], sequence=options["sequence"], batch=options["batch"])
    return shares(model, options["workers"])


def counts_from(options: dict[str, Any]) -> StepCounts:
    """Counts a captured program, or GPT-2 with about as many parameters as asked for, and names its source."""
    path: Path | None = options["program"]
    if path is not None:
        with own_file():
            counts = counts_of(api.bundle.read_program(path))
        name = str(path)
    else:
        model = transformer_near(options["parameters"], sequence=options["sequence"], batch=options["batch"])
        counts = transformer_counts(model, steps=options["steps"], interval=options["checkpoint_interval"])
        name = f"GPT-2 with {model.layers} layers of width {model.width}, {model.parameters:,} parameters"
    click.echo(f"{name}: {counts.instructions:,} instructions and {counts.products:.3g} floating-point operations "
               "of products in a step")  # fmt: skip
    return counts


def directions(work: Workload, options: dict[str, Any]) -> dict[str, tuple[int, Callable[[int], Workload]]]:
    """The present size and the work at another size, by direction of growth. A captured program cannot grow."""
    grown: dict[str, tuple[int, Callable[[int], Workload]]] = {
        "steps": (work.steps, lambda size: replace(work, steps=size)),
        "jobs": (work.jobs, lambda size: replace(work, jobs=size)),
    }
    if options["program"] is None:
        model = partial(transformer_work, work, sequence=options["sequence"], batch=options["batch"])
        grown = {"parameters": (options["parameters"], model), **grown}
    return grown


def show(work: Workload, found: Estimates) -> None:
    """Prints the table of costs and the measurements that it rests on."""
    click.echo(f"{work.jobs:,} jobs of {work.steps:,} steps, a checkpoint every {work.interval:,}, keep {work.keep}")
    table = Table("cost", "value", header_style="dim")
    table.columns[1].justify = "right"
    for name, value in found.named().items():
        what, unit = WHAT[name]
        table.add_row(what, human(value, unit))
    Console(width=80).print(table)
    click.echo(f"The worst data that were found slow a step by a factor of {float(WORST):g}.")
    if work.counts.products > FIGURES["largest step"]:
        click.echo(f"Times were fitted to steps of up to {FIGURES['largest step']:.3g} operations; beyond that they "
                   "assume that costs go on growing as they did.")  # fmt: skip


def sentence(direction: str, at: int | None, load: CostLimit | None) -> str:
    """One sentence that says how far the work can grow in a direction."""
    if load is None:
        return f"{direction}: within every limit up to {at:.3g}"
    return f"{direction}: up to {at:,}; then {load.name} ({human(load.limit, load.unit)}). To lift it: {load.lift}."


SECONDS: Final = ((86_400 * 365.25, "years"), (86_400, "days"), (3600, "h"), (60, "min"))


def human(value: float, unit: str) -> str:
    """Formats a number for people."""
    if unit == "s":
        size, name = next(((size, name) for size, name in SECONDS if value >= 2 * size), (1, "s"))
        return f"{value / size:.3g} {name}"
    if unit == "bytes":
        size, name = 1.0, "B"
        for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
            if value < 1000 * size:
                break
            size, name = size * 1000, larger
        return f"{value / size:.3g} {name}"
    text = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".strip()
