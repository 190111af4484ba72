"""`tiebreak hub`: a mailbox and a library for the parties of jobs, and the pages."""

import time
from pathlib import Path
from typing import Any

import click

from tiebreak.cli.key import load_key, new_key
from tiebreak.node.ground import ChainGround
from tiebreak.node.hub.app import HubSettings, make_app
from tiebreak.node.hub.blobs import Blobs
from tiebreak.node.hub.limits import Limits
from tiebreak.node.hub.serving import CONFIGURATION, DEFAULTS, domain_of, read_configuration, serve, template
from tiebreak.node.pages.feeding import Outlook, pages
from tiebreak.protocol.chain.client import Chain
from tiebreak.protocol.parties.terms import Pace

_PACE = Pace(block_seconds=12, step_seconds=1)
"""Nothing is sent at this pace: the hub only follows."""


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("hub"), show_default=True,
              help="Where its key, its posts and its blobs are.")  # fmt: skip
@click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Configuration file [default: hub.toml in the folder, if it is there].")  # fmt: skip
@click.option("--init", "is_init", is_flag=True, help="Make the folder, a key and a commented hub.toml, and end.")
@click.option("--host", help="Address to listen on [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on [default: 8787].")
@click.option("--database", metavar="URL", help="PostgreSQL instead of a file, as postgresql+psycopg://USER@HOST/NAME.")
@click.option("--chain", metavar="URL", help="A node of the chain whose jobs it serves, for the pages.")
@click.option("--first-block", type=click.IntRange(0), help="The board's own block there [default: 0].")
@click.option("--chain-id", type=click.IntRange(0), help="Of the chain whose jobs it serves [default: 0, for none].")
@click.option("--contract", help="Address of the board there.")
def hub(folder: Path, config: Path | None, is_init: bool, **given: Any) -> None:
    """Run a hub until Ctrl-C: signed posts by job, blobs by root, what is new as events.

    Nobody has to trust it. What goes through it is signed or hashed by those who write it, so a hub that lies, forgets
    or goes away costs time, never money. It needs a key only to sign when it received what: FOLDER/hub.pem, made by
    --init, with the passphrase of TIEBREAK_PASSPHRASE or a prompt.
    """
    if is_init:
        folder.mkdir(parents=True, exist_ok=True)
        key = new_key(folder / "hub.pem")
        with (folder / CONFIGURATION).open("x", encoding="utf-8") as file:
            file.write(template())
        click.echo(f"0x{key.address.hex()} is this hub's address; {folder / CONFIGURATION} is its configuration")
        return
    path = config or folder / CONFIGURATION
    found = read_configuration(path) if path.is_file() else {}
    settings: dict[str, Any] = dict(DEFAULTS) | found
    settings |= {name: value for name, value in given.items() if value is not None}
    limits = Limits(**settings.get("limits", {}))
    key = load_key(folder / "hub.pem")
    domain, ground = domain_of(settings["chain_id"], settings["contract"]), None
    if settings["chain"]:
        chain = Chain.connect(settings["chain"])
        chain.attach(domain.contract)
        domain = chain.domain
        ground = ChainGround(chain, pace=_PACE, first_block=settings["first_block"])
    outlook = Outlook(
        domain=domain,
        blob=Blobs(folder / "blobs", free_bytes=0).path,
        now=lambda: int(time.time()),
        ground=ground,
        chain=f"chain {domain.chain_id}" if domain.chain_id else "",
    )
    hub_settings = HubSettings(folder=folder, domain=domain, key=key, database=settings["database"], limits=limits)
    app = make_app(hub_settings, pages=lambda store: pages(store, outlook))
    click.echo(f"hub 0x{key.address.hex()} at http://{settings['host']}:{settings['port']}", err=True)
    serve(app, folder, host=settings["host"], port=settings["port"], limits=limits)
