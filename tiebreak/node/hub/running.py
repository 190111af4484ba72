"""Runs a hub from its folder: its configuration, the chain that it follows for the pages, and the server."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tiebreak.node.ground import ChainGround
from tiebreak.node.hub.app import HubSettings, make_app
from tiebreak.node.hub.blobs import Blobs
from tiebreak.node.hub.limits import HubLimits
from tiebreak.node.hub.serving import (
    CONFIGURATION,
    DEFAULTS,
    domain_of,
    proxies_of,
    read_configuration,
    serve,
    template,
)
from tiebreak.node.pages.feed import PageContext
from tiebreak.node.pages.routes import pages
from tiebreak.protocol.chain.client import Chain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.parties.terms import Pace

_PACE: Final = Pace(block_seconds=12, step_seconds=1)
"""Nothing is sent at this pace: the hub only follows."""


def write_configuration(folder: Path) -> Path:
    """Writes a new commented configuration file. Raises `FileExistsError` if there is one."""
    with (folder / CONFIGURATION).open("x", encoding="utf-8") as file:
        file.write(template())
    return folder / CONFIGURATION


def run_hub(
    folder: Path, key: PrivateKey, config: Path | None, given: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Serves until it is interrupted.

    config: the configuration file, else the folder's if it is there. given: settings that override it, unless None.
    """
    path = config or folder / CONFIGURATION
    found = read_configuration(path) if path.is_file() else {}
    settings: dict[str, Any] = dict(DEFAULTS) | found
    settings |= {name: value for name, value in given.items() if value is not None}
    limits, proxies = HubLimits(**settings.get("limits", {})), proxies_of(settings["proxies"])
    domain, ground = domain_of(settings["chain_id"], settings["contract"]), None
    if settings["chain"]:
        chain = Chain.connect(settings["chain"])
        chain.attach(domain.contract)
        domain = chain.domain
        ground = ChainGround(chain, pace=_PACE, first_block=settings["first_block"])
    if bool(domain.chain_id) != any(domain.contract):  # the folder would belong to that for good
        raise ConfigurationError(
            f"expected a chain's id and its board, or neither, got chain {domain.chain_id} and board "
            f"0x{domain.contract.hex()}; set chain_id and contract"
        )
    context = PageContext(
        domain=domain,
        blob=Blobs(folder / "blobs", free_bytes=0).path,
        now=lambda: int(time.time()),
        ground=ground,
        chain=f"chain {domain.chain_id}" if domain.chain_id else "",
    )
    hub_settings = HubSettings(folder=folder, domain=domain, key=key, database=settings["database"], limits=limits)
    app = make_app(hub_settings, pages=lambda store: pages(store, context))
    say(f"hub 0x{key.address.hex()} at http://{settings['host']}:{settings['port']}")
    serve(app, folder, host=settings["host"], port=settings["port"], limits=limits, proxies=proxies)
