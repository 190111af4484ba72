"""`tiebreak client`, `trainer`, `auditor`, `watcher`, `hub`: what runs until it is told to stop, from its own folder.

A party's folder holds `party.toml`, the key file, the journal, and the files of jobs. It belongs to one board and one
key. A hub's holds `hub.toml`, its key, and what parties gave it.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key, new_key
from tiebreak.node import settings as party_settings

_NEEDED: Final = {"trainer": ": set clients and most_stake in it", "auditor": ": set most_stake in it"}
_ABOUT: Final = {
    "client": """Offer jobs, pay for what is right, and receive the weights.

    A job that `tiebreak agree` put into the folder (--client FOLDER) is offered to its trainer through the hub, created
    on the board, and followed to its end: a trainer that falls silent is given up, and what the board owes is
    withdrawn.
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
    "watcher": """Replay what trainers commit, and warn of what is false.

    It does what an auditor does, without a key: it sends nothing and stakes nothing. Its log and its metrics are its
    alarm.
    """,
}


def _group(role: str) -> click.Group:
    """The commands of one kind of party, `init` and `run`."""

    @click.group(name=role, help=_ABOUT[role])
    def party() -> None:
        pass

    more = "." if role == "watcher" else " and a key. A key that is there stays."

    @party.command("init", help=f"Make FOLDER for the {role}: a commented party.toml{more}")
    @click.argument("folder", type=opt.NEW_FOLDER)
    @click.option("--hub", help="URL of the hub.  [default: http://127.0.0.1:8787]")
    @click.option("--chain", help="Node of the chain, as an http(s) URL or an IPC path.  [default: no chain]")
    @click.option("--board", help="Address of the job board on that chain; with --chain.")
    def init(folder: Path, **given: str | None) -> None:
        found = party_settings.write(role, folder, **{name: value for name, value in given.items() if value})
        click.echo(f"wrote {found.path}" + _NEEDED.get(role, ""))
        key = folder / found.key
        if role != "watcher":
            made = load_key(key) if key.exists() else new_key(key)
            click.echo(f"the {role} is 0x{made.address.hex()}, with its key in {key}: keep a copy of that file")

    @party.command("run", help=f"Run the {role} whose party.toml is in FOLDER until Ctrl-C. It may be killed at any "
                   "time, and goes on where it was.")  # fmt: skip
    @click.argument("folder", type=opt.NEW_FOLDER)
    @click.option("--json", "as_json", is_flag=True, help="Log one JSON object a line.")
    @click.option("--verbose", is_flag=True, help="Log details, too.")
    def run(folder: Path, *, as_json: bool, verbose: bool) -> None:
        found = party_settings.read(role, folder)
        key = None if role == "watcher" else load_key(folder / found.key)
        import_module("tiebreak.node.process").run(found, key, as_json=as_json or found.json_log, verbose=verbose)

    return party


client, trainer, auditor, watcher = (_group(role) for role in ("client", "trainer", "auditor", "watcher"))


@click.command()
@click.option("--folder", type=opt.NEW_FOLDER, default=Path("hub"), show_default=True,
              help="Folder of its key, messages (posts) and files (blobs).")  # fmt: skip
@click.option("--config", type=opt.FILE, help="Configuration file [default: hub.toml in the folder, if it is there].")
@click.option("--init", "is_init", is_flag=True, help="Make the folder, a key and a commented hub.toml, and end.")
@click.option("--host", help="Address to listen on [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8787].")
@click.option("--database", metavar="URL", help="PostgreSQL instead of a file, as postgresql+psycopg://USER@HOST/NAME.")
@click.option("--chain", metavar="URL", help="Node of the chain whose jobs it serves; the pages follow it.")
@click.option("--first-block", type=click.IntRange(0), help="Block in which the board was deployed [default: 0].")
@click.option("--chain-id", type=click.IntRange(0), help="Id of the chain whose jobs it serves [default: 0, for none].")
@click.option("--board", "contract", help="Address of the job board on that chain.")
def hub(folder: Path, config: Path | None, is_init: bool, **given: Any) -> None:
    """Run a hub for the signed messages and files of parties.

    It runs until Ctrl-C and also serves pages that show all jobs and disputes. Nobody has to trust it: all that goes
    through it is signed or hashed by those who write it, so a hub that lies, forgets or goes away costs time, never
    money. It needs a key only to sign what it received when: FOLDER/hub.pem, made by --init, with the passphrase of
    TIEBREAK_PASSPHRASE or a prompt. Needs the extra `node`.
    """
    # The server's libraries take a second to import, which --help does not wait for.
    running = import_module("tiebreak.node.hub.process")
    if is_init:
        folder.mkdir(parents=True, exist_ok=True)
        key = new_key(folder / "hub.pem")
        made = running.write_configuration(folder)
        click.echo(f"0x{key.address.hex()} is this hub's address; {made} is its configuration")
        return
    running.run_hub(folder, load_key(folder / "hub.pem"), config, given, lambda text: click.echo(text, err=True))
