"""`python -m tiebreak.lab.network.cheating_trainer NAME FOLDER`: the trainer of `up --cheat NAME`, which lies once.

It is no part of a trainer that `tiebreak trainer run` starts, which no setting and no variable makes cheat. This one
runs only where nobody has anything to lose: on a chain of this machine, with one of the accounts whose keys are public,
or without a chain.
"""

import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from socket import socket
from typing import Final
from urllib.parse import urlsplit

from tiebreak.api.signing.keys import load_key
from tiebreak.lab.network.parent_watch import hold
from tiebreak.node import process, settings
from tiebreak.node.tasks import WorkerSettings
from tiebreak.protocol.chain.devnet import dev_secrets
from tiebreak.protocol.chain.rpc import HOST
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

ACCOUNTS: Final = 20
"""The number of accounts of a development chain that are searched."""


def check(found: settings.Settings, key: PrivateKey) -> None:
    """Raises `ConfigurationError` unless the chain, if there is one, is one of `tiebreak up`."""
    urls = [] if not found.chain else found.chain.split(",")
    public = {PrivateKey.from_int(secret).address for secret in dev_secrets(ACCOUNTS)}
    if any(urlsplit(url).hostname != HOST for url in urls) or (urls and key.address not in public):
        raise ConfigurationError(
            f"expected the chain of `tiebreak up`, and one of its accounts, got {found.chain} and "
            f"0x{key.address.hex()}: nobody cheats for a stake"
        )


def serve(name: str, end: socket, given: WorkerSettings) -> None:
    """Runs in the process that computes. The module is imported by name, since it brings torch."""
    import_module("tiebreak.lab.network.cheating_worker").serve(name, end, given)


def main(name: str, folder: Path) -> None:
    """Run the trainer of a folder, which cheats."""
    found = settings.read("trainer", folder)
    key = load_key(folder / found.key, os.environ.pop("TIEBREAK_PASSPHRASE"))
    check(found, key)
    process.run(found, key, as_json=True, serve=partial(serve, name))


if __name__ == "__main__":
    hold()
    main(sys.argv[1], Path(sys.argv[2]))
