"""Runs a hub from its folder: its configuration, the chain that it follows for the pages, and the server."""

import gc
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import filelock
import uvicorn
from starlette.applications import Starlette

from tiebreak.engine import system
from tiebreak.node.board_source import ChainSource
from tiebreak.node.hub.app import make_app
from tiebreak.node.hub.blobs import Blobs
from tiebreak.node.hub.connection import Connection, OpenConnections
from tiebreak.node.hub.limits import HubLimits, Network, networks_in
from tiebreak.node.hub.service import HubSettings
from tiebreak.node.pages.routes import pages
from tiebreak.node.pages.source import PageContext
from tiebreak.protocol.chain.client import Chain
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.parties.terms import Pace

_PACE: Final = Pace(block_seconds=12, step_seconds=1)
"""Nothing is sent at this pace: the hub only follows."""
CONFIGURATION: Final = "hub.toml"
FILES_EACH: Final = 4
"""Open files that a connection may need: its socket and a blob, with as many to spare."""
_TEXT: Final = """# A hub: a mailbox and a library that nobody has to trust. The command line may say otherwise.

# Where it listens. Put a reverse proxy with TLS in front of it for the public internet, and name its address in
# `proxies` (or several, or networks, separated by commas), or else all who come through it share one address's limits.
# It must set X-Forwarded-For to the address that it was asked from, in place of what stood there. Nobody else is
# believed.
host = "127.0.0.1"
port = 8787
proxies = ""

# Where the posts are: empty for an SQLite file in this folder, or postgresql+psycopg://USER@HOST/NAME
# (a password comes from PGPASSWORD or ~/.pgpass, never from this file).
database = ""

# The chain and the board that signatures are valid for; zeros where there is no chain. With the URL of a node, the
# pages show what stands on that board, from its first block on.
chain_id = 0
chain = ""
first_block = 0
contract = "0x0000000000000000000000000000000000000000"

# What strangers may use up. These are the defaults.
[limits]
"""

DEFAULTS: Final = tomllib.loads(_TEXT)


def template() -> str:
    """The commented configuration file."""
    limits = HubLimits()
    return _TEXT + "".join(f"# {field.name} = {getattr(limits, field.name)}\n" for field in fields(HubLimits))


def write_configuration(folder: Path) -> Path:
    """Writes a new commented configuration file. Raises `FileExistsError` if there is one."""
    with (folder / CONFIGURATION).open("x", encoding="utf-8") as file:
        file.write(template())
    return folder / CONFIGURATION


def read_configuration(path: Path) -> dict[str, Any]:
    """The values of a configuration file. Raises `ConfigurationError` for unknown names and other types."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    kinds = {name: type(value) for name, value in DEFAULTS.items()}
    for name, value in found.items():
        if type(value) is not kinds.get(name):
            raise ConfigurationError(f"{path}: expected {', '.join(kinds)}, got {name} = {value!r}")
    names = {field.name for field in fields(HubLimits)}
    for name, value in found.get("limits", {}).items():
        if name not in names or type(value) is not int or value < 0:
            raise ConfigurationError(f"{path}: expected a number for one of {', '.join(sorted(names))}, got {name}")
    return found


def domain_of(chain_id: int, contract: str) -> Domain:
    """The domain of signatures, as a configuration gives it."""
    try:
        return Domain(chain_id=chain_id, contract=Address(bytes.fromhex(contract.removeprefix("0x"))))
    except (ValueError, EncodingError) as error:
        text = f"expected a chain id and the address of a board, got {chain_id}, {contract}"
        raise ConfigurationError(text) from error


def proxies_of(text: str) -> tuple[Network, ...]:
    """The trusted proxies, as a configuration names them."""
    try:
        return networks_in(text)
    except ValueError as error:
        raise ConfigurationError(f"proxies: expected addresses or networks, got {text!r}: {error}") from error


def run_hub(
    folder: Path, key: PrivateKey, config: Path | None, given: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Serves until it is interrupted.

    config: the configuration file, else the folder's if it is there. given: settings that override it, unless None.
    """
    path = config or folder / CONFIGURATION
    found = read_configuration(path) if path.is_file() else {}
    settings = DEFAULTS | found | {name: value for name, value in given.items() if value is not None}
    limits, proxies = HubLimits(**settings["limits"]), proxies_of(settings["proxies"])
    domain, board_source = domain_of(settings["chain_id"], settings["contract"]), None
    if settings["chain"]:
        chain = Chain.connect(settings["chain"])
        chain.attach(domain.contract)
        domain = chain.domain
        board_source = ChainSource(chain, pace=_PACE, first_block=settings["first_block"])
    if bool(domain.chain_id) != any(domain.contract):  # the folder would belong to that for good
        raise ConfigurationError(
            f"expected a chain's id and its board, or neither, got chain {domain.chain_id} and board "
            f"0x{domain.contract.hex()}; set chain_id and contract"
        )
    chain_name = f"chain {domain.chain_id}" if domain.chain_id else ""
    blob = Blobs(folder / "blobs", free_bytes=0).path
    now = lambda: int(time.time())  # noqa: E731
    context = PageContext(domain=domain, blob=blob, now=now, board_source=board_source, chain=chain_name)
    hub_settings = HubSettings(folder=folder, domain=domain, key=key, database=settings["database"], limits=limits)
    app = make_app(hub_settings, pages=lambda store: pages(store, context))
    system.allow_files(FILES_EACH * limits.connections)
    say(f"hub 0x{key.address.hex()} at http://{settings['host']}:{settings['port']}")
    serve(folder, configure(app, host=settings["host"], port=settings["port"], limits=limits, proxies=proxies))


def serve(folder: Path, config: uvicorn.Config) -> None:
    """Serve until SIGINT or SIGTERM. Raises `StateError` if another hub works in this folder."""
    # All that is loaded now stays, and each full collection would walk over it while nobody is served.
    gc.collect()
    gc.freeze()
    try:
        with filelock.FileLock(folder / "lock", timeout=0):
            uvicorn.Server(config).run()
    except filelock.Timeout as error:
        raise StateError(f"another hub works in {folder}; stop it first, or choose another folder") from error


def configure(
    app: Starlette, *, host: str, port: int, limits: HubLimits, proxies: Sequence[Network] = ()
) -> uvicorn.Config:
    """The server of a hub, with as many connections as its limits and the open files of this process allow."""
    files = system.allowed_files()
    most = limits.connections if files < 0 else min(limits.connections, max(1, files // FILES_EACH))
    counted = OpenConnections(most, limits.connections_per_address)
    connection = partial(Connection, open_connections=counted, proxies=proxies)
    # No `proxy_headers`: uvicorn believes whatever comes from this machine; see `limits.address_of`.
    return uvicorn.Config(
        app, host=host, port=port, http=cast("type[Connection]", connection), ws="none", loop="asyncio", lifespan="on",
        log_level="warning", access_log=False, server_header=False, proxy_headers=False, backlog=limits.connections,
        timeout_keep_alive=60, timeout_graceful_shutdown=2,
    )  # fmt: skip
