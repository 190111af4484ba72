"""`tiebreak capture`: from a task to a program, an initial state and data, as files."""

from collections import Counter
from pathlib import Path

import click

from engine.compile import compile_task
from tiebreak.bundle import Bundle
from tiebreak.commands.options import output_option, steps_option, task_argument
from tiebreak.tasks.loader import load_task


@click.command()
@task_argument
@output_option("captured", "New or empty folder for the captured job.")
@steps_option
def capture(task: str, output: Path, steps: int | None) -> None:
    """Capture TASK as a program that any party can run without its code.

    TASK is digits, text, or a Python file of your own that defines task() and returns an engine.task.Task. The file is
    run, so capture only what you wrote or read. What comes out is data: the training step as a list of instructions,
    the initial state and the data, named by the roots that a job is signed over. Give the folder to a trainer.

    An operator without an exact form is an error that lists every such operator with its place in the model.
    """
    loaded = load_task(task, steps=steps)
    bundle = Bundle.of(
        compile_task(loaded), name=loaded.name, steps=loaded.steps, checkpoint_interval=loaded.checkpoint_interval
    )
    bundle.save(output)
    show(bundle, output)


def show(bundle: Bundle, folder: Path) -> None:
    """Print what a bundle holds, a line for each thing."""
    kinds = Counter(instruction.opcode.name.lower() for instruction in bundle.program.body)
    rows = {
        "job": bundle.name,
        "steps": f"{bundle.steps}, a checkpoint every {bundle.checkpoint_interval}",
        "program": f"{len(bundle.program.body)} instructions, {len(bundle.state)} state entries",
        "instructions": ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
        **{name.replace("_", " "): root for name, root in bundle.roots().items()},
        "folder": str(folder),
    }
    for name, value in rows.items():
        click.echo(f"{name:<20}{value}")
