"""Key files for commands: the passphrase comes from TIEBREAK_PASSPHRASE or is asked for, never from an argument.

Arguments are visible to every user of a machine in its list of processes.
"""

import os
from pathlib import Path
from typing import Final

import click

from tiebreak.api import keys
from tiebreak.protocol.commitments.keys import PrivateKey

PASSPHRASE_VARIABLE: Final = "TIEBREAK_PASSPHRASE"  # noqa: S105 (a name, not a secret)


def passphrase(path: Path, *, confirm: bool = False) -> str:
    """The passphrase of a key file; asked for twice if it is to be a new one's."""
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    asked: str = click.prompt(f"Passphrase of {path}", hide_input=True, confirmation_prompt=confirm, err=True)
    return asked


def load_key(path: Path) -> PrivateKey:
    """The key in a file. Raises `ConfigurationError` if it cannot be read, decrypted, or others may read it."""
    return keys.load_key(path, passphrase(path))


def new_key(path: Path) -> PrivateKey:
    """A new key in a new file, encrypted, for its owner only."""
    key = keys.new_key()
    keys.save_key(key, path, passphrase(path, confirm=True))
    return key
