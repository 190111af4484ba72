"""The command `tiebreak`. Each command lives in a module of `tiebreak.cli`, which is imported when it is called.

A package registers commands of its own by an entry point of the group `tiebreak.commands`, which names a `CommandSet`;
the help shows all sets as one.

Our own errors take one line, and so do a disk that is full or closed to us, and a missing library of an extra. Any
other exception is a bug and keeps its traceback. The help of `tiebreak` lists the exit codes.
"""

import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, entry_points
from importlib.util import find_spec
from typing import IO, Any, Final

import click

from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.protocol.errors import TiebreakError, VerificationError

ENTRY_POINTS: Final = "tiebreak.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSet:
    """Commands of one package. Command `a-b` is the function `a_b` of the module that has its name, or of `modules`."""

    package: str
    groups: Mapping[str, Mapping[str, str]]
    """Title of a group in the help -> command -> the first sentence of its help."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Command -> its module in `package`, if that is not the command's own name."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Command, or command and subcommand -> the extras that it always needs, separated by commas."""

    @property
    def commands(self) -> dict[str, str]:
        """Command -> the first sentence of its help."""
        return {name: line for group in self.groups.values() for name, line in group.items()}

    def load(self, name: str) -> click.Command:
        """Imports the command from its module."""
        command = getattr(import_module(f"{self.package}.{self.modules.get(name, name)}"), name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@cache
def registered() -> tuple[CommandSet, ...]:
    """The sets of all packages that are installed; a package that is gone, but for its entry point, has none."""
    found = []
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        with suppress(ModuleNotFoundError):
            found.append(point.load())
    return tuple(found)


CONFIGURATION: Final = 1
VERIFICATION: Final = 2
INTERRUPTED: Final = 130
_DISK: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS])
"""Disk errors that are the user's to solve, not bugs."""
CORE: Final = CommandSet(
    package="tiebreak.cli",
    groups={
        "Start": {
            "doctor": "Check that this machine computes exactly; show its environment.",
            "corpus": "Compute programs of known roots, and check others' results.",
            "key": "Make a signing key in FILE and print its address.",
        },
        "Train": {
            "finetune": "Fine-tune a model by LoRA, as a run that anyone can check.",
            "evaluate": "Score MODEL on examples, as a run that anyone can check.",
            "serve": "Run a fine-tuning service for OpenAI's clients.",
            "data": "Import datasets, show ids of arrays, prove what a run's data had.",
            "capture": "Capture TASK as a program that runs anywhere without its code.",
            "calibrate": "Measure how far sums differ between machines, for a policy.",
            "agree": "Sign a job over a captured task: both parties, or one at a time.",
            "train": "Train the signed job in the folder RUN (see `tiebreak agree`).",
            "show": "Show how a run, an offer or a party stands, by its FOLDER.",
            "weights": "Write the final weights of a settled RUN as .safetensors.",
        },
        "Audit and dispute": {
            "audit": "Replay RUN, or a sample of it, and compare with what is signed.",
            "monitor": "Watch what RUN measures of itself, while it trains or later.",
            "dispute": "Find where RUN leaves its program, by a game against REPLAY.",
            "judge": "Judge a job without a chain by the TRANSCRIPTs of its hub.",
        },
        "Certificates": {
            "certify": "Certify that weights are what RUN ended with.",
            "verify": "Check that MODEL is what its CERTIFICATE says.",
            "ownership": "Prove that a run is one's own, or check such a proof.",
            "receipt": "Check that a fine-tuning service trained what was ordered.",
        },
        "Parties on a network": {
            "client": "Offer jobs, pay for what is right, and receive the weights.",
            "trainer": "Take offers, train, commit, and defend what was committed.",
            "auditor": "Replay what trainers commit, and challenge what is false.",
            "watcher": "Replay what trainers commit, and warn of what is false.",
            "hub": "Run a hub for the signed messages and files of parties.",
            "publish": "Put what others need of RUN on a hub or into a folder.",
            "fetch": "Fetch what is published of JOB from a hub into a folder.",
        },
        "Chain": {
            "devnet": "Run a chain for development, with the contracts and money.",
            "chain": "Deploy contracts, list jobs and games, send what a job needs.",
        },
    },
    modules={"judge": "dispute", "devnet": "chain"}
    | dict.fromkeys(["verify", "ownership"], "certify")
    | dict.fromkeys(["publish", "fetch", "weights"], "share")
    | dict.fromkeys(["client", "trainer", "auditor", "watcher", "hub"], "party"),
    needs={"finetune": "finetune", "evaluate": "finetune", "hub": "node", "serve": "serve"}
    | dict.fromkeys(
        ["doctor", "corpus run", "data import", "data root", "capture", "calibrate", "agree", "train", "weights"],
        "train",
    )
    | dict.fromkeys(["data unlearn", "audit", "monitor", "dispute", "certify", "ownership prove"], "train")
    | dict.fromkeys(["client", "trainer", "auditor", "watcher", "publish", "fetch"], "node,train"),
)
"""The commands of the core, by what one does, in the order of the help. Each line fits into 80 columns."""
EXTRAS: Final = {
    "torch": "train",
    **dict.fromkeys(["eth", "eth_abi", "eth_account", "eth_bloom", "eth_keys", "eth_tester"], "chain"),
    **dict.fromkeys(["eth_typing", "eth_utils", "rlp", "trie", "web3"], "chain"),
    "simpy": "sim",
    **dict.fromkeys(["psutil", "pynvml"], "monitor"),
    "psycopg": "postgres",
    "ray": "ray",
    **dict.fromkeys(["jinja2", "markupsafe", "sklearn"], "demo"),
    **dict.fromkeys(["anyio", "h11", "prometheus_client", "sqlalchemy", "starlette", "uvicorn"], "node"),
    **dict.fromkeys(["datasets", "pyarrow", "tokenizers", "transformers"], "hf"),
    **dict.fromkeys(["peft", "trl", "yaml"], "finetune"),
    "lm_eval": "lm-eval",
    **dict.fromkeys(["jsonschema", "multipart", "python_multipart"], "serve"),
}
"""Optional libraries, and the extra of the package that installs each."""


def missing_of(extra: str) -> list[str]:
    """The distributions that extras of this package, separated by commas, ask for and that are not installed."""
    found, own = list[str](), [*Distribution.discover(name="tiebreak")]
    if not own:  # a plain copy of the sources: by the libraries that are named here
        return [name for name, one in EXTRAS.items() if one in extra.split(",") and find_spec(name) is None]
    for line in (line for one in own for line in one.requires or []):
        if any(f'extra == "{one}"' in line for one in extra.split(",")):
            name, *parts = re.findall(r"[\w.-]+", re.split("[<>=!~;]", line)[0])
            found += [one for part in parts for one in missing_of(part)] if name == "tiebreak" else [name]
    return [name for name in dict.fromkeys(found) if not any(Distribution.discover(name=name))]


class MissingExtra(click.ClickException):
    """Says in one sentence what is not installed, with the command that installs it."""

    def __init__(self, extra: str, names: Sequence[str]) -> None:
        super().__init__(
            f"this needs what is not installed: {', '.join(names)}; install it by: pip install 'tiebreak[{extra}]'"
        )

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=True)


def command_groups() -> dict[str, dict[str, CommandSet]]:
    """Title of a group -> command -> the set that has it. Of one group, commands of other packages come first."""
    titles = list(CORE.groups) + [title for commands in registered() for title in commands.groups]
    sets = (*registered(), CORE)
    return {
        title: {name: commands for commands in sets for name in commands.groups.get(title, ())}
        for title in dict.fromkeys(titles)
    }


def all_commands() -> dict[str, CommandSet]:
    """The name of each command -> the set that provides it, in the order of the help."""
    return {name: found for group in command_groups().values() for name, found in group.items()}


class Commands(click.Group):
    """A group that imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's)
        """The names of the commands, in the order of the help."""
        return list(all_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        """Imports the command from its own module; None if there is no command of that name."""
        found = CORE if cmd_name in CORE.commands else all_commands().get(cmd_name)
        return None if found is None else found.load(cmd_name)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Writes a table for each group, without importing the commands, on one screen."""
        formatter.write("\n")
        for title, group in command_groups().items():
            formatter.write(f"{title}:\n")
            with formatter.indentation():
                formatter.write_dl([(f"{name:<9}", found.commands[name]) for name, found in group.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; of an unknown name, the error suggests the nearest ones."""
        try:
            found = super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=all_commands(), ctx=ctx) from None
        extra = needed(args)
        if extra and not ctx.resilient_parsing and not {"-h", "--help"} & set(args) and (names := missing_of(extra)):
            raise MissingExtra(extra, names)
        return found


def needed(words: Sequence[str]) -> str:
    """The extras that the command of a command line always needs; empty if none are, or if there is no command."""
    if not words or (found := CORE if words[0] in CORE.commands else all_commands().get(words[0])) is None:
        return ""
    return found.needs.get(words[0]) or found.needs.get(" ".join(words[:2]), "")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tiebreak")
@click.pass_context
def tiebreak(context: click.Context) -> None:
    """Train models so that anyone can check the result; `tiebreak demo` shows how, and `tiebreak COMMAND -h` a command.

    Exit codes: 0 done or right; 1 not possible as asked; 2 false; 3 could not be checked; 4 nothing to dispute, or an
    alarm; 130 interrupted.
    """
    if (given := os.environ.pop(PASSPHRASE_VARIABLE, None)) is not None:
        # For `tiebreak.cli.key` alone, not for processes that a command starts.
        context.meta[PASSPHRASE_VARIABLE] = given
        context.call_on_close(lambda: os.environ.setdefault(PASSPHRASE_VARIABLE, given))


def run(group: click.Group, arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code. Exceptions that are neither ours nor click's pass through."""
    try:
        words = None if arguments is None else list(arguments)
        code = group.main(args=words, prog_name="tiebreak", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return CONFIGURATION
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except TiebreakError as error:
        line = " ".join(str(error).split())
        click.echo(f"{type(error).__name__}: {line}", err=True)
        return VERIFICATION if isinstance(error, VerificationError) else CONFIGURATION
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        extra = needed(sys.argv[1:] if arguments is None else arguments)
        names = missing_of(extra) if extra else []
        MissingExtra(extra if names else EXTRAS[library], names or [library]).show()
        return CONFIGURATION
    except OSError as error:
        if error.errno not in _DISK:
            raise
        place = error.filename or "while writing"
        click.echo(f"{error.strerror}: {place}; free space or choose another folder", err=True)
        return CONFIGURATION
    return code if isinstance(code, int) else 0


def main() -> None:
    sys.exit(run(tiebreak))
