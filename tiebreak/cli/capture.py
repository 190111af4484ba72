"""`tiebreak capture`: turns a task into a program, an initial state and data, as files."""

import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.text import Text

from tiebreak import api
from tiebreak.cli.options import json_option, output_option, tell
from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from tiebreak.api.training.bundle import Bundle
    from tiebreak.engine.capture.task import Task


@click.command()
@click.argument("task", metavar="TASK")
@output_option("captured", "New or empty folder for the captured job.")
@click.option("--steps", type=click.IntRange(1), help="Number of steps, instead of the task's own.")
@click.option("--device", default="cpu", show_default=True, help="Torch device for the check, if its memory suffices.")
@click.option("--check", type=click.Choice(["full", "slice", "none"]), default="full", show_default=True,
              help="Compare the program with eager PyTorch: all of it; a slice, three of each list of equal layers, in "
              "less memory; or not at all. The job says which.")  # fmt: skip
@json_option
def capture(task: str, output: Path, steps: int | None, device: str, check: str, as_json: bool) -> None:
    """Capture TASK as a program that runs anywhere without its code.

    TASK is digits, text, or a Python file of your own that defines task() and returns a `tiebreak.Task`. The file is
    run, so capture only what you wrote or read. The result is data: the training step as a list of instructions,
    the initial state and the data, named by the roots that a job is signed over. Give the folder to a trainer.

    The program is checked: captured again with other seeds and clocks, and its first step compared with the same step
    of eager PyTorch. An operator without an exact form is an error that lists every such operator with its place in
    the model.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigurationError(f"expected a new or empty folder, got {output}; choose another or empty it")
    loaded = api.loader.load_task(task, steps=steps)
    started = time.perf_counter()
    bundle = captured(loaded, check=check, device=device)
    seconds = time.perf_counter() - started
    bundle.save(output)
    if as_json:
        counts = {"parameters": bundle.parameters, "instructions": len(bundle.program.body), **asdict(bundle.cost)}
        tell({**bundle.manifest(), **counts, "seconds": round(seconds, 3), "folder": str(output)}, as_json=True)
        return
    show(bundle, output, f"{seconds:.1f} s")


def captured(task: "Task", *, check: str = "full", device: str = "cpu") -> "Bundle":
    """Captures the task; shows a spinner on a terminal, and one line elsewhere."""
    console, title = Console(stderr=True), f"capturing {task.name} ..."
    if not console.is_terminal:
        console.print(title, highlight=False, markup=False)
    with console.status(Text(title)) if console.is_terminal else nullcontext():
        return api.bundle.capture_bundle(task, check=check, device=device)


def show(bundle: "Bundle", folder: Path, seconds: str) -> None:
    """Prints a line for each part of a bundle. seconds: the time that its capture took."""
    program, cost = bundle.program, bundle.cost
    rows = {
        "job": bundle.name,
        "steps": f"{bundle.steps}, a checkpoint every {bundle.checkpoint_interval}",
        "program": f"{len(program.body)} instructions, {len(bundle.state)} state entries",
        "instructions": ", ".join(f"{count} {kind}" for kind, count in cost.kinds.items()),
        "model": f"{bundle.parameters:,} numbers; state {_size(cost.state_bytes)}, data {_size(cost.data_bytes)}",
        "a step": f"{cost.flops:.3g} operations, about {_size(cost.memory_bytes)} of memory",
        **({} if bundle.check == "full" else {"check": api.reading.CHECKS[bundle.check]}),
        "capture": seconds,
        **{name.replace("_", " "): root for name, root in bundle.roots().items()},
        "folder": str(folder),
    }
    tell(rows, as_json=False)


def _size(count: int) -> str:
    """Formats a number of bytes for people."""
    power = min(4, max(0, count.bit_length() - 1) // 10)
    return f"{count} B" if not power else f"{count / 1024**power:.3g} {'KMGT'[power - 1]}iB"
