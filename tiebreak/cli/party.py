"""`tiebreak client`, `trainer`, `auditor`, `watch`: a party that runs until it is told to stop, from its own folder.

The folder holds `party.toml`, the key file, the journal, and the files of jobs. It belongs to one board and one key.
"""

from importlib import import_module
from pathlib import Path
from typing import Final

import click

from tiebreak.cli.key import load_key, new_key
from tiebreak.cli.sharing import weights
from tiebreak.node import settings as party_settings

PARTY: Final = click.Path(file_okay=False, path_type=Path)
_NEEDED: Final = {"trainer": ": set clients and most_stake in it", "auditor": ": set most_stake in it"}
_ABOUT: Final = {
    "client": """Offer jobs, pay for what is right, and receive the weights.

    A job that `tiebreak offer --client` put into the folder is offered to its trainer through the hub, created on the
    board, and followed to its end: a trainer that falls silent is given up, and what the board owes is withdrawn.
    """,
    "trainer": """Take offers, train, commit, and defend what was committed.

    It judges each offer by `party.toml` and by its terms before it signs, fetches program, state and data and checks
    them by their roots, qualifies this machine, trains, posts a signed head at every checkpoint, publishes what
    auditors need, defends games, settles, and withdraws.
    """,
    "auditor": """Replay what trainers commit, and challenge what is false.

    It replays every job that it follows while the trainer still trains. A head that disagrees is replayed again on
    other settings before a stake is risked; then it is challenged, and the game is played to its end.
    """,
    "watch": """Replay what trainers commit, and raise an alarm for what is false.

    It does what an auditor does, without a key: it sends nothing and stakes nothing. Its log and its metrics are its
    alarm.
    """,
}


_CALLED: Final = {"client": "a client", "trainer": "a trainer", "auditor": "an auditor", "watch": "a watcher"}


def group(role: str) -> click.Group:
    """The commands of one kind of party."""

    @click.group(name=role, help=_ABOUT[role])
    def party() -> None:
        pass

    party.add_command(_init(role))
    party.add_command(_run(role))
    if role == "client":
        party.add_command(weights)
    return party


def _init(role: str) -> click.Command:
    @click.command("init", help=f"Make FOLDER for {_CALLED[role]}: a commented party.toml" +
                   ("." if role == "watch" else ", and a key if it has none."))  # fmt: skip
    @click.argument("folder", type=PARTY)
    @click.option("--hub", help="URL of the hub.  [default: http://127.0.0.1:8787]")
    @click.option("--chain", help="Node of the chain, as an http(s) URL or an IPC path.  [default: no chain]")
    @click.option("--board", help="Address of the job board on that chain; with --chain.")
    def init(folder: Path, **given: str | None) -> None:
        found = party_settings.write(role, folder, **{name: value for name, value in given.items() if value})
        click.echo(f"wrote {found.path}" + _NEEDED.get(role, ""))
        key = folder / found.key
        if role != "watch":
            made = load_key(key) if key.exists() else new_key(key)
            click.echo(f"the {role} is 0x{made.address.hex()}, with its key in {key}: keep a copy of that file")

    return init


def _run(role: str) -> click.Command:
    @click.command("run", help=f"Run the {_CALLED[role].split()[-1]} whose party.toml is in FOLDER until Ctrl-C. "
                   "It may be killed at any time, and goes on where it was.")  # fmt: skip
    @click.argument("folder", type=PARTY)
    @click.option("--json", "as_json", is_flag=True, help="Log one JSON object a line.")
    @click.option("--verbose", is_flag=True, help="Log details, too.")
    def run(folder: Path, *, as_json: bool, verbose: bool) -> None:
        found = party_settings.read(role, folder)
        key = None if role == "watch" else load_key(folder / found.key)
        running = import_module("tiebreak.node.running")
        running.run(found, key, as_json=as_json or found.json_log, verbose=verbose)

    return run


client, trainer, auditor, watch = (group(role) for role in ("client", "trainer", "auditor", "watch"))
