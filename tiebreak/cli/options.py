"""Kinds of values, and the options that several commands share: each is declared once and means the same everywhere."""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal, InvalidOperation
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Domain
from tiebreak.protocol.errors import ConfigurationError

PASSPHRASE_VARIABLE: Final = "TIEBREAK_PASSPHRASE"  # noqa: S105 (a name, not a secret)
AnyFunction = Callable[..., Any]
AnyDecorator = Callable[[AnyFunction], AnyFunction]
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
WEI: Final = 10**18


class Ether(click.ParamType[int]):
    """An amount in ether as people write it (0.25), converted exactly to whole wei."""

    name = "ether"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Refuses an amount with a fraction of a wei."""
        if isinstance(value, int):
            return value
        try:
            wei = Decimal(value) * WEI
        except InvalidOperation:
            self.fail(f"expected an amount such as 0.25, got {value!r}", param, ctx)
        if not wei.is_finite() or wei < 0 or wei != wei.to_integral_value():
            self.fail(f"expected an amount >= 0 in whole wei, got {value!r}", param, ctx)
        return int(wei)


class HexType(click.ParamType[Any]):
    """Bytes in hex digits of upper or lower case, with or without 0x."""

    def __init__(self, name: str, what: str, digits: int) -> None:
        self.name, self._what, self._digits = name, what, digits

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        if not re.fullmatch(f"(?:0x)?[0-9a-fA-F]{{{self._digits}}}", str(value)):
            self.fail(f"expected {self._what} of {self._digits} hex digits, got {value!r}", param, ctx)
        return bytes.fromhex(str(value).removeprefix("0x"))


ADDRESS: Final = HexType("address", "an address", 40)
DIGEST: Final = HexType("id", "an id", 64)
"""The id of a job or a game."""


def options(*declared: AnyDecorator) -> AnyDecorator:
    """Several options, in the order of the help."""
    return lambda function: reduce(lambda made, option: option(made), reversed(declared), function)


def number(option: str, low: int, high: int | None, default: int, text: str) -> AnyDecorator:
    """An option for an integer from `low` to `high`, if there is a highest."""
    return click.option(option, type=click.IntRange(low, high), default=default, show_default=True, help=text)


def output_option(default: str, what: str, kind: click.Path[Path] = NEW_FOLDER) -> AnyDecorator:
    """--output: a folder, which is created if it does not exist, or a file."""
    return click.option("--output", "-o", type=kind, default=Path(default), show_default=True, help=what)


_MACHINE: Final[dict[str, AnyDecorator]] = {
    "threads": click.option("--threads", type=click.IntRange(1), help="Threads torch may use [default: torch's "
                            "choice]. The result does not depend on it."),
    "permute": click.option("--permute", type=click.IntRange(0), help="Take the terms of every reduction in a random "
                            "order with this seed. The result does not depend on it."),
    "device": click.option("--device", default="cpu", show_default=True, help="Torch device, such as cuda:0. It is "
                           "tested first."),
    "graphs": click.option("--graphs/--no-graphs", default=True, help="On CUDA devices, replay steps as CUDA graphs "
                           "where nothing prevents it. The result does not depend on it.  [default: graphs]"),
    "policy": click.option("--policy", type=FILE, help="Policy `logged`: your own thresholds (see `tiebreak "
                           "calibrate`).  [default: the proven bounds]"),
}  # fmt: skip
"""The options for fields of `Machine`."""


def options_for(argument: str, make: AnyFunction, declared: Mapping[str, AnyDecorator]) -> AnyDecorator:
    """Options, by their names, that a command gets as one argument, which is made of their values."""

    def decorate(function: AnyFunction) -> AnyFunction:
        @wraps(function)
        def called(**given: Any) -> Any:
            return function(**{argument: make(**{name: given.pop(name) for name in declared})}, **given)

        return options(*declared.values())(called)

    return decorate


def machine_options(*names: str) -> AnyDecorator:
    """Options for these fields of `Machine`. The command gets all of them as one argument, `machine`."""
    return options_for("machine", Machine, {name: _MACHINE[name] for name in names})


def refuse(names: Collection[str], expected: str) -> None:
    """Raises `ConfigurationError` if one of these options is on the command line."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is ParameterSource.COMMANDLINE:
            raise ConfigurationError(f"expected {expected}, got {parameter.opts[0]}")


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of words.")
"""--json: one document on stdout."""


def rpc_option(*, required: bool) -> AnyDecorator:
    """--rpc: the node of a chain. Its URL may hold a secret, so it may also come from the environment."""
    text = "The chain: an http(s) URL or a node's IPC path; also from TIEBREAK_CHAIN."
    return click.option("--rpc", required=required, envvar="TIEBREAK_CHAIN", help=text)


def key_option(text: str, *, required: bool = True) -> AnyDecorator:
    """--key: the key file of whoever signs or pays."""
    return click.option("--key", type=FILE, required=required, help=text)


def hub_option(*, required: bool, variable: str | None = "TIEBREAK_HUB") -> AnyDecorator:
    text = f"URL of the hub; also from {variable}." if variable else "URL of a hub whose jobs have no chain."
    return click.option("--hub", required=required, envvar=variable, help=text)


def board_option(*, required: bool, variable: str | None = "TIEBREAK_BOARD") -> AnyDecorator:
    """--board: the contract that holds jobs and money."""
    text = "Address of the job board" + (f"; also from {variable}." if variable else " on that chain.  [default: none]")
    return click.option("--board", type=ADDRESS, required=required, envvar=variable, help=text)


require_option: Final = click.option("--require", type=ADDRESS, multiple=True, help="Ask for a signature by this "
                                     "address, too; may be repeated.")  # fmt: skip
"""--require: whose signatures a certificate or statement must have."""


def from_block_option(text: str) -> AnyDecorator:
    """--from-block: where to begin to read events, which some nodes serve slowly."""
    return number("--from-block", 0, None, 0, text)


def count_option(text: str) -> AnyDecorator:
    """--count: a signed head, by the number of its checkpoints."""
    return click.option("--count", type=click.IntRange(0), help=f"{text}  [default: the last signed]")


def keep_option(default: str) -> AnyDecorator:
    """--keep: a text that `Keep.parse` reads."""
    return click.option("--keep", default=default, show_default=True, metavar="all|every:M|last",
                        help="Checkpoints that stay on disk; others are computed again when needed.")  # fmt: skip


domain_options: Final = options_for(
    "domain",
    lambda chain_id, board: Domain(chain_id=chain_id, contract=board or OFF_CHAIN.contract),
    {
        "chain_id": number("--chain-id", 0, None, OFF_CHAIN.chain_id, "Id of the chain that the job is on; 0: none."),
        "board": board_option(required=False, variable=None),
    },
)
"""--chain-id and --board, as one argument, `domain`: where a job is valid. No variable moves a job to a chain."""


def log_artifacts(run: Path, files: list[Path], kind: str) -> None:
    """Logs files to the trackers of the run's training, if this user has any, and says so on stderr."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # by default, a server that is down takes 4 minutes
    for line in api.trackers.log_artifacts(run, *files, kind=kind):
        click.echo(line, err=True)


def tell(document: Any, *, as_json: bool) -> None:
    """Prints a document: as JSON, or a name and a value on each line; a list of dicts as a table."""
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
