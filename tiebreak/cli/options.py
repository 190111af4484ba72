"""Arguments and options that several commands share, so that they read alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

AnyFunction = Callable[..., Any]


def task_argument(function: AnyFunction) -> AnyFunction:
    """TASK: a built-in name or a file."""
    return click.argument("task", metavar="TASK")(function)


def steps_option(function: AnyFunction) -> AnyFunction:
    """--steps: a shorter or longer run of the task."""
    return click.option("--steps", type=click.IntRange(1), help="Number of steps, instead of the task's own.")(function)


def threads_option(function: AnyFunction) -> AnyFunction:
    """--threads: of torch. The result does not depend on it."""
    text = "Threads torch may use [default: torch's choice]. The result does not depend on it."
    return click.option("--threads", type=click.IntRange(1), help=text)(function)


def output_option(default: str, what: str) -> Callable[[AnyFunction], AnyFunction]:
    """--output: a folder that is made if need be."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--output", "-o", type=kind, default=Path(default), show_default=True, help=what)


def permute_option(function: AnyFunction) -> AnyFunction:
    """--permute: random summation order."""
    text = "Take the terms of every reduction in a random order with this seed. The result does not depend on it."
    return click.option("--permute", type=click.IntRange(0), help=text)(function)


def device_option(function: AnyFunction) -> AnyFunction:
    """--device: where to compute."""
    text = "Torch device. It is qualified first."
    return click.option("--device", default="cpu", show_default=True, help=text)(function)
