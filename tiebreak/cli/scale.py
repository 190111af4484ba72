"""`tiebreak scale`: what a job of any size costs, and what gives way first when it grows."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.run.directory import MAX_PROGRAM_BYTES
from tiebreak.engine.run.retention import Keep
from tiebreak.protocol.program.program import Program
from tiebreak.sim.scale.bottleneck import Bottleneck, Budgets, Growth, bottlenecks, budgets_of
from tiebreak.sim.scale.curves import BATCH, INTERVAL, PARAMETERS, SEQUENCE, STEPS, bottleneck_told, document, told
from tiebreak.sim.scale.fitting import Prediction
from tiebreak.sim.scale.measurements import RESULTS, Measurements
from tiebreak.sim.scale.model import WHAT, CostModel, Costs, Setting
from tiebreak.sim.scale.subjects import Subject, program_subject, transformer_subject

FILE = click.Path(dir_okay=False, path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)
DEFAULTS = Budgets()


@click.command()
@click.option(
    "--parameters",
    type=click.IntRange(1000, 10**15),
    default=PARAMETERS,
    show_default=True,
    help="Size of the model: GPT-2 with AdamW, of about so many parameters.",
)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A captured program (program.tbp), instead of --parameters.",
)
@click.option(
    "--sequence",
    type=click.IntRange(1, 1 << 20),
    default=SEQUENCE,
    show_default=True,
    help="Tokens of a sequence, with --parameters.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 20),
    default=BATCH,
    show_default=True,
    help="Sequences of a step, with --parameters.",
)
@click.option("--steps", type=click.IntRange(1, 10**12), default=STEPS, show_default=True, help="Steps of a job.")
@click.option(
    "--checkpoint-interval",
    "interval",
    type=click.IntRange(1),
    default=INTERVAL,
    show_default=True,
    help="Steps from checkpoint to checkpoint.",
)
@click.option("--jobs", type=click.IntRange(1, 10**12), default=1, show_default=True, help="Jobs of this kind.")
@click.option(
    "--disputed", type=click.FloatRange(0, 1), default=0.01, show_default=True, help="Share of the jobs with a dispute."
)
@click.option(
    "--levels",
    type=click.IntRange(1, 5),
    default=5,
    show_default=True,
    help="Levels of a tree that a move of a dispute shows (r).",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    default=24 * 3600,
    show_default=True,
    help="Seconds within which a trainer has to post its next head, as in the job.",
)
@click.option("--keep", default="all", show_default=True, help="Checkpoints that stay on disk: all, every:M or last.")
@click.option("--logged", is_flag=True, help="Policy logged, with proven bounds: count the rounding logs.")
@click.option(
    "--step-seconds",
    type=POSITIVE,
    help="Seconds of a step of yours in plain FP32 PyTorch, on your device [default: as fitted, one core].",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=POSITIVE,
    default=DEFAULTS.memory_bytes,
    show_default=True,
    help="Bytes of memory of a machine.",
)
@click.option(
    "--disk",
    "disk_bytes",
    type=POSITIVE,
    default=DEFAULTS.disk_bytes,
    show_default=True,
    help="Bytes of disk of a party.",
)
@click.option(
    "--days",
    type=POSITIVE,
    default=DEFAULTS.days,
    show_default=True,
    help="Days within which a job is trained, and all jobs are audited and settled.",
)
@click.option(
    "--auditor-cores",
    type=POSITIVE,
    default=DEFAULTS.auditor_cores,
    show_default=True,
    help="Cores (or devices, with --step-seconds) that audit.",
)
@click.option(
    "--replay-time",
    type=POSITIVE,
    default=DEFAULTS.replay_time,
    show_default=True,
    help="Seconds for a move of a dispute that needs re-execution, as in the job.",
)
@click.option("--block-gas", type=POSITIVE, default=DEFAULTS.block_gas, show_default=True, help="Gas of a block.")
@click.option(
    "--block-seconds",
    type=POSITIVE,
    default=DEFAULTS.block_seconds,
    show_default=True,
    help="Seconds from block to block.",
)
@click.option(
    "--chain-share",
    type=click.FloatRange(0, 1, min_open=True),
    default=DEFAULTS.chain_share,
    show_default=True,
    help="Share of the chain's gas that these jobs may use.",
)
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    help="Folder of measurements [default: those of this repository].",
)
@click.option("--json", "output", type=FILE, help="Write costs and bottlenecks into this file, too.")
@click.option("--curves", type=FILE, help="Write the curves of the report (10^6 to 10^12 parameters, 10^2 to 10^7 "
              "steps, 1 to 10^5 jobs; of the default job) into this file, too.")  # fmt: skip
def scale(**options: Any) -> None:
    """What a job costs at any size, and what gives way first when it grows.

    Time, memory, disk, messages and gas, for figures of yours: from formulas where they can be counted (=), and
    from fits to this repository's own measurements where they cannot, with bounds of 90 %. What lies beyond the
    range that was measured is marked (*): there the bounds hold only if costs go on growing as they did.

    Measured was one core of a CPU, and no GPU. So times are CPU seconds of one core; for another device give
    --step-seconds, and times are that, times the measured ratio to plain PyTorch, which need not be your device's.

    Then, for each direction (parameters, steps, jobs), the size up to which all budgets hold, and the one that is
    spent first. Budgets are your own (memory, disk, days, a chain) and the limits of this version.
    """
    m = Measurements.read(options["results"])
    budgets = Budgets(**{name: options[name] for name in Budgets.__slots__})
    setting = setting_of(options)
    growth = Growth(
        model=CostModel.of(m), budgets=budgets_of(budgets), sequence=options["sequence"], batch=options["batch"]
    )
    costs, found = growth.model.costs(setting), bottlenecks(growth, setting)
    show(setting, costs, growth, found)
    if options["output"] is not None:
        write_json(options["output"], report(m, setting, costs, found, budgets))
    if options["curves"] is not None:
        write_json(options["curves"], document(m, budgets))


def setting_of(options: dict[str, Any]) -> Setting:
    """The user's figures."""
    steps, interval = options["steps"], options["interval"]
    return Setting(
        subject=subject_of(options),
        steps=steps,
        interval=interval,
        jobs=options["jobs"],
        levels=options["levels"],
        keep=Keep.parse(options["keep"]),
        logged=options["logged"],
        window=options["window"],
        disputed=options["disputed"],
        step_seconds=options["step_seconds"],
    )


def subject_of(options: dict[str, Any]) -> Subject:
    """What is trained."""
    path: Path | None = options["program"]
    if path is not None:
        return program_subject(Program.decode(read_file(path, MAX_PROGRAM_BYTES)), path.name)
    return transformer_subject(
        options["parameters"],
        sequence=options["sequence"],
        batch=options["batch"],
        steps=options["steps"],
        interval=options["interval"],
    )


def report(
    m: Measurements, setting: Setting, costs: Costs, found: list[Bottleneck], budgets: Budgets
) -> dict[str, Any]:
    """What is printed, as JSON."""
    return {
        "name": "scale",
        "environment": m.table.environment,
        "subject": {
            "name": setting.subject.name,
            "parameters": setting.subject.parameters,
            "counts": asdict(setting.subject.counts),
        },
        "setting": {
            "steps": setting.steps,
            "checkpoint_interval": setting.interval,
            "jobs": setting.jobs,
            "levels": setting.levels,
            "keep": str(setting.keep),
            "logged": setting.logged,
            "window": setting.window,
            "disputed": setting.disputed,
            "step_seconds": setting.step_seconds,
        },
        "budgets": asdict(budgets),
        "costs": {name: {"what": WHAT[name][0], "unit": WHAT[name][1], **told(p)} for name, p in costs.named().items()},
        "bottlenecks": [bottleneck_told(bottleneck) for bottleneck in found],
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, whole or not at all."""
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())
    click.echo(f"wrote {path}")


# ---------------------------------------------------------------- for people


def show(setting: Setting, costs: Costs, growth: Growth, found: list[Bottleneck]) -> None:
    """The table of costs, and the bottlenecks."""
    s = setting.subject
    click.echo(f"{s.name}: {s.parameters:,} parameters, {s.counts.instructions:,} instructions, "
               f"{s.counts.products:.3g} operations of products a step")  # fmt: skip
    click.echo(f"{setting.jobs:,} jobs of {setting.steps:,} steps, a checkpoint every {setting.interval:,}, "
               f"keep {setting.keep}; r = {setting.levels}")  # fmt: skip
    table = Table(header_style="dim")
    for column in ("cost", "", "value", "from", "to"):
        table.add_column(column, justify="left" if column == "cost" else "right")
    for name, prediction in costs.named().items():
        what, unit = WHAT[name]
        table.add_row(what, mark(prediction), *bounds(prediction, unit))
    console = Console(width=110)
    console.print(table)
    click.echo("= counted   * beyond what was measured; bounds are of 90 %, if costs go on growing as they did")
    most = growth.spent(setting)[0]
    click.echo(f"most used: {most.budget}, {100 * most.share:.3g} % of {human(most.limit, most.unit)}")
    for bottleneck in found:
        click.echo(sentence(bottleneck))


def sentence(b: Bottleneck) -> str:
    """A bottleneck as a line."""
    if b.first is None:
        return f"{b.direction:<11}within all budgets up to {b.at:.3g}"
    over = f"{b.first.budget} ({human(b.first.limit, b.first.unit)})"
    own = ", a limit of this version" if b.first.own else ""
    if b.at is None:
        return f"{b.direction:<11}over already: {over}, by {b.first.share:.3g} times{own}; {b.first.lift}"
    star = " *" if b.extrapolated else ""
    return f"{b.direction:<11}up to {b.at:,}{star}; then {over}{own}. To lift it: {b.first.lift}"


def mark(prediction: Prediction) -> str:
    """How a value was found."""
    return "=" if prediction.is_exact else "*" if prediction.extrapolated else ""


def bounds(prediction: Prediction, unit: str) -> tuple[str, str, str]:
    """A value and its bounds."""
    low, high = ("", "") if prediction.is_exact else (human(prediction.low, unit), human(prediction.high, unit))
    return human(prediction.value, unit), low, high


SECONDS = ((86_400 * 365.25, "years"), (86_400, "days"), (3600, "h"), (60, "min"))


def human(value: float, unit: str) -> str:
    """A number as people write it."""
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
