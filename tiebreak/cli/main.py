"""The command `tiebreak`. Each command lives in a module of `tiebreak.cli`, which is imported when it is called.

Our own errors take one line, and so do a disk that is full or closed to us, and a missing library of an extra. Any
other exception is a bug and keeps its traceback. The help of `tiebreak` lists the exit codes.
"""

import errno
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution
from typing import Final

import click

from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.cli.registry import CommandSet, registered
from tiebreak.protocol.errors import TiebreakError, VerificationError

CONFIGURATION: Final = 1
VERIFICATION: Final = 2
INTERRUPTED: Final = 130
_DISK: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS])
"""Disk errors that are the user's to solve, not bugs."""
CORE: Final = CommandSet(
    package="tiebreak.cli",
    groups={
        "Start": {
            "doctor": "Run the conformance vectors on this machine and show its environment.",
            "corpus": "Compute programs whose roots are known, and check what other machines say of them.",
            "key": "Make a signing key in FILE and print its address.",
        },
        "Train": {
            "finetune": "Fine-tune the model in a folder by LoRA on conversations, as a run that anyone can check.",
            "data": "Import datasets, and show the ids of arrays.",
            "capture": "Capture TASK as a program that any party can run without its code.",
            "calibrate": "Measure how far sums differ between machines, and write the policy for `agree --policy`.",
            "agree": "Sign the CAPTURED job as client and trainer, into a new run folder.",
            "train": "Train the signed job in the folder RUN (see `tiebreak agree`).",
            "plan": "Say how several workers would share a step of RUN, and what each of them would send and hold.",
            "status": "Say how a run stands, or a party (client, trainer, auditor, watcher), by what is in FOLDER.",
            "show": "Show the job of the folder RUN at length: who agreed on what, by which roots, and its files.",
            "weights": "Write the final weights of RUN as .safetensors, once its job is settled.",
        },
        "Audit and dispute": {
            "audit": "Replay the trainer's RUN and compare its signed heads with what the program really produces.",
            "validate": "Recompute the committed losses of drawn steps of RUN by the forward part alone, bit for bit.",
            "monitor": "Watch the run in the folder RUN while it is trained, or look at it afterwards.",
            "dispute": "Play the verification game over a head of RUN against the auditor's REPLAY.",
            "judge": "Check the TRANSCRIPTs of a job without a chain, and say who was right and who owes what.",
        },
        "Certificates": {
            "certify": "Certify that weights are what RUN ended with, or sign the certificate that is there.",
            "verify": "Check that MODEL is what its CERTIFICATE says.",
            "prove-ownership": "Show a checker that RUN is one's own, by opening a few of its states and no more.",
            "check-ownership": "Challenge the owner of PROOF, and check the answer by replaying what was drawn.",
        },
        "Two parties, by hand": {
            "offer": "Draft a job over CAPTURED and sign it as its client, for a trainer to accept.",
            "accept": "Judge the offer in FOLDER as its trainer, and sign it.",
            "pack": "Copy what others need of RUN into a folder, and say how big it is.",
            "publish": "Put what others need of RUN on a hub, as its client or its trainer.",
            "fetch": "Fetch what is published of JOB from a hub into a folder, and check it.",
        },
        "Parties on a network": {
            "client": "Offer jobs, pay for what is right, and receive the weights.",
            "trainer": "Take offers, train, commit, and defend what was committed.",
            "auditor": "Replay what trainers commit, and challenge what is false.",
            "watch": "Replay what trainers commit, and raise an alarm for what is false.",
            "hub": "Run a hub until Ctrl-C: parties exchange signed messages and files through it.",
        },
        "Chain": {
            "devnet": "Run a chain for development until Ctrl-C, with the job board, the referee and funded accounts.",
            "deploy": "Put the four contracts on a chain, or verify that they stand there.",
            "jobs": "List jobs on a board, or show one of them.",
            "games": "List the games on a board, or show one of them.",
            "post": "Send the chain what the job in RUN needs next from the owner of a key.",
            "challenge": "Start a game on the chain against a signed head of RUN, and put up the challenger's stake.",
            "settle": "End the job of RUN on the chain.",
            "withdraw": "Withdraw all that a board owes to the account of a key.",
        },
    },
    modules={
        "plan": "train",
        "judge": "dispute",
        "deploy": "devnet",
        **dict.fromkeys(["accept", "agree"], "offer"),
        "validate": "audit",
        **dict.fromkeys(["verify", "prove-ownership", "check-ownership"], "certify"),
        **dict.fromkeys(["status", "show", "jobs", "games", "post", "challenge", "settle", "withdraw"], "reading"),
        **dict.fromkeys(["pack", "publish", "fetch", "weights"], "sharing"),
        **dict.fromkeys(["client", "trainer", "auditor", "watch"], "party"),
    },
    needs={"finetune": "finetune"}
    | dict.fromkeys(["hub", "client", "trainer", "auditor", "watch", "publish", "fetch"], "node"),
)
"""The commands of the core, by what one does, in the order of the help."""
EXTRAS: Final = {
    **dict.fromkeys(["eth", "eth_abi", "eth_account", "eth_bloom", "eth_keys", "eth_tester"], "chain"),
    **dict.fromkeys(["eth_typing", "eth_utils", "rlp", "trie", "web3"], "chain"),
    "simpy": "sim",
    "psutil": "monitor",
    "pynvml": "monitor",
    "psycopg": "postgres",
    "ray": "ray",
    **dict.fromkeys(["jinja2", "markupsafe", "sklearn"], "demo"),
    **dict.fromkeys(["anyio", "h11", "prometheus_client", "sqlalchemy", "starlette", "uvicorn"], "node"),
    **dict.fromkeys(["datasets", "pyarrow", "tokenizers", "transformers"], "hf"),
    **dict.fromkeys(["peft", "trl", "yaml"], "finetune"),
}
"""Optional libraries, and the extra of the package that installs each."""


def missing_of(extra: str) -> list[str]:
    """The distributions that an extra of this package asks for and that are not installed."""
    found: list[str] = []
    for line in (line for own in Distribution.discover(name="tiebreak") for line in own.requires or []):
        if f'extra == "{extra}"' in line:
            name, *parts = re.findall(r"[\w.-]+", re.split("[<>=!~;]", line)[0])
            found += [one for part in parts for one in missing_of(part)] if name == "tiebreak" else [name]
    return [name for name in dict.fromkeys(found) if not any(Distribution.discover(name=name))]


def command_groups() -> dict[str, dict[str, CommandSet]]:
    """Title of a group -> command -> the set that has it. Of one group, commands of other packages come first."""
    titles = list(CORE.groups) + [title for commands in registered() for title in commands.groups]
    sets = (*registered(), CORE)
    return {
        title: {name: commands for commands in sets for name in commands.groups.get(title, ())}
        for title in dict.fromkeys(titles)
    }


def all_commands() -> dict[str, CommandSet]:
    """Command -> the set that has it, in the order of the help."""
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Writes a table for each group, without importing the commands."""
        for title, group in command_groups().items():
            with formatter.section(title):
                formatter.write_dl([(name, found.commands[name]) for name, found in group.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; of an unknown name, the error suggests the nearest ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=all_commands(), ctx=ctx) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tiebreak")
@click.pass_context
def tiebreak(context: click.Context) -> None:
    """Train models so that anyone can check the result, bit by bit.

    A training run is fixed by its program, its initial state and its data: every result is the correctly rounded value
    of its exact one, so two honest parties always get the same bytes. `tiebreak demo` shows the whole path.

    Exit codes: 0 done, or checked and right; 1 not possible as asked; 2 false, or not what a party signed; 3 could
    not be checked; 4 nothing to dispute; 130 interrupted.
    """
    if (given := os.environ.pop(PASSPHRASE_VARIABLE, None)) is not None:
        # For `tiebreak.cli.key` alone, not for processes that a command starts.
        context.meta[PASSPHRASE_VARIABLE] = given
        context.call_on_close(lambda: os.environ.setdefault(PASSPHRASE_VARIABLE, given))


def run(group: click.Group, arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code. Exceptions that are neither ours nor click's pass through."""
    try:
        code = group.main(
            args=None if arguments is None else list(arguments), prog_name="tiebreak", standalone_mode=False
        )
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
        given = sys.argv[1:] if arguments is None else arguments
        needs = next((found.needs.get(word) for word in given if (found := all_commands().get(word))), None)
        extra = needs or EXTRAS[library]
        names = ", ".join(missing_of(extra) or [library])
        click.echo(f"this needs what is not installed: {names}; in a checkout: pip install '.[{extra}]'", err=True)
        return CONFIGURATION
    except OSError as error:
        if error.errno not in _DISK:
            raise
        click.echo(
            f"{error.strerror}: {error.filename or 'while writing'}; free space or choose another folder", err=True
        )
        return CONFIGURATION
    return code if isinstance(code, int) else 0


def main() -> None:
    sys.exit(run(tiebreak))
