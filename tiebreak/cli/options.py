"""Arguments and options that several commands share, so that they look the same everywhere."""

import json
import re
from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final

import click

from tiebreak.api.machine import Machine

PASSPHRASE_VARIABLE: Final = "TIEBREAK_PASSPHRASE"  # noqa: S105 (a name, not a secret)
AnyFunction = Callable[..., Any]
AnyDecorator = Callable[[AnyFunction], AnyFunction]
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


def options(*declared: AnyDecorator) -> AnyDecorator:
    """Several options, in the order of the help."""
    return lambda function: reduce(lambda made, option: option(made), reversed(declared), function)


def number(option: str, low: int, high: int | None, default: int, text: str) -> AnyDecorator:
    """An option for an integer from `low` to `high`, if there is a highest."""
    return click.option(option, type=click.IntRange(low, high), default=default, show_default=True, help=text)


def output_option(default: str, what: str) -> AnyDecorator:
    """--output: a folder, which is created if it does not exist."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--output", "-o", type=kind, default=Path(default), show_default=True, help=what)


class _Bytes(click.ParamType["int"]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?) ?([kMGT])(i?)B", value)
        if found is None:
            self.fail(
                f"expected a number of kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 8GB, got {value!r}", param, ctx
            )
        return int(float(found[1]) * (1024 if found[3] else 1000) ** (1 + "kMGT".index(found[2])))


_MACHINE: Final[dict[str, dict[str, Any]]] = {
    "threads": {
        "type": click.IntRange(1),
        "help": "Threads torch may use [default: torch's choice]. The result does not depend on it.",
    },
    "permute": {
        "type": click.IntRange(0),
        "help": "Take the terms of every reduction in a random order with this seed. The result does not depend on it.",
    },
    "device": {"default": "cpu", "show_default": True, "help": "Torch device, such as cuda:0. It is tested first."},
    "graphs": {
        "default": True,
        "help": "On CUDA devices, replay steps as CUDA graphs where nothing prevents it. The result does not depend on "
        "it.  [default: graphs]",
    },
    "memory": {
        "type": _Bytes(),
        "metavar": "SIZE",
        "help": "Memory that this process may take, such as 8GB; other values wait in a file in TMPDIR or /var/tmp.  "
        "[default: no limit]",
    },
    "policy": {
        "type": FILE,
        "help": "Policy `logged`: your own thresholds (see `tiebreak calibrate`).  [default: the proven bounds]",
    },
}
"""The options for fields of `Machine`."""


def _flags(name: str) -> str:
    flag = f"--{name.replace('_', '-')}"
    return f"{flag}/--no-{flag[2:]}" if _MACHINE[name].get("default") is True else flag


def machine_options(*names: str) -> AnyDecorator:
    """Options for these fields of `Machine`. The command gets all of them as one argument, `machine`."""

    def decorate(function: AnyFunction) -> AnyFunction:
        @wraps(function)
        def called(**given: Any) -> Any:
            return function(machine=Machine(**{name: given.pop(name) for name in names}), **given)

        return options(*(click.option(_flags(name), **_MACHINE[name]) for name in names))(called)

    return decorate


def json_option(function: AnyFunction) -> AnyFunction:
    """--json: one document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of words.")(function)


def rpc_option(*, required: bool) -> AnyDecorator:
    """--rpc: the node of a chain. Its URL may hold a secret, so it may also come from the environment."""
    text = "The chain: an http(s) URL or a node's IPC path; also from TIEBREAK_CHAIN."
    return click.option("--rpc", required=required, envvar="TIEBREAK_CHAIN", help=text)


def tell(document: Any, *, as_json: bool) -> None:
    """Prints what a command found: as JSON, or a name and a value on each line; rows as a table, texts on lines."""
    if as_json:
        click.echo(json.dumps(document, indent=1))
    elif isinstance(document, list):
        rows = [list(document[0]), *(list(row.values()) for row in document)] if document else [["none"]]
        cells = [["-" if value is None else str(value) for value in row] for row in rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        for row in cells:
            click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    else:
        width = max(map(len, document), default=0) + 2
        for name, value in document.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                click.echo(f"{name}:")
                tell(value, as_json=False)
            elif isinstance(value, list) and value:
                click.echo("\n".join(f"{name:<{width}}{line}" for line in value))
            else:
                click.echo(f"{name:<{width}}{'-' if value is None else value}")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes the document of a --json option, in place of what the file held."""
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
