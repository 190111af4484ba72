"""`tiebreak hub`: a mailbox and a library for the parties of jobs, and the pages."""

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tiebreak.cli.key import load_key, new_key


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("hub"), show_default=True,
              help="Folder of its key, messages (posts) and files (blobs).")  # fmt: skip
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Configuration file [default: hub.toml in the folder, if it is there].")  # fmt: skip
@click.option("--init", "is_init", is_flag=True, help="Make the folder, a key and a commented hub.toml, and end.")
@click.option("--host", help="Address to listen on [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8787].")
@click.option("--database", metavar="URL", help="PostgreSQL instead of a file, as postgresql+psycopg://USER@HOST/NAME.")
@click.option("--chain", metavar="URL", help="Node of the chain whose jobs it serves; the pages follow it.")
@click.option("--first-block", type=click.IntRange(0), help="Block in which the board was deployed [default: 0].")
@click.option("--chain-id", type=click.IntRange(0), help="Id of the chain whose jobs it serves [default: 0, for none].")
@click.option("--contract", help="Address of the job board on that chain.")
def hub(folder: Path, config: Path | None, is_init: bool, **given: Any) -> None:
    """Run a hub until Ctrl-C: parties exchange signed messages and files through it.

    It also serves pages that show all jobs and disputes. Nobody has to trust it: all that goes through it is signed or
    hashed by those who write it, so a hub that lies, forgets or goes away costs time, never money. It needs a key only
    to sign what it received when: FOLDER/hub.pem, made by --init, with the passphrase of TIEBREAK_PASSPHRASE or a
    prompt. Needs the extra `node`.
    """
    # The server's libraries take a second to import, which --help does not wait for.
    running = import_module("tiebreak.node.hub.running")
    if is_init:
        folder.mkdir(parents=True, exist_ok=True)
        key = new_key(folder / "hub.pem")
        made = running.write_configuration(folder)
        click.echo(f"0x{key.address.hex()} is this hub's address; {made} is its configuration")
        return
    running.run_hub(folder, load_key(folder / "hub.pem"), config, given, lambda text: click.echo(text, err=True))
