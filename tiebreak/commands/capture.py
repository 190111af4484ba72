"""`tiebreak capture`: from a task to a program, an initial state and data, as files."""

from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

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
    """Print what a bundle holds."""
    kinds = Counter(instruction.opcode.name.lower() for instruction in bundle.program.body)
    table = Table.grid(padding=(0, 2))
    table.add_row("job", bundle.name)
    table.add_row("steps", f"{bundle.steps}, a checkpoint every {bundle.checkpoint_interval}")
    table.add_row("program", f"{len(bundle.program.body)} instructions, {len(bundle.state)} state entries")
    table.add_row("", ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    for name, root in bundle.roots().items():
        table.add_row(name.replace("_", " "), root)
    table.add_row("folder", str(folder))
    Console(soft_wrap=True, highlight=False).print(table)
