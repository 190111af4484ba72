"""Key files for commands. The passphrase comes from TIEBREAK_PASSPHRASE or a prompt, never from an argument.

Every user of a machine can see the arguments of all its processes.
"""

import os
from pathlib import Path
from typing import Final

import click

from tiebreak.api import keys
from tiebreak.protocol.commitments.keys import PrivateKey

PASSPHRASE_VARIABLE: Final = "TIEBREAK_PASSPHRASE"  # noqa: S105 (a name, not a secret)


def passphrase(path: Path, *, confirm: bool = False) -> str:
    """The passphrase of a key file. With `confirm`, for a new key, it is asked for twice."""
    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    asked: str = click.prompt(f"Passphrase of {path}", hide_input=True, confirmation_prompt=confirm, err=True)
    return asked


def load_key(path: Path) -> PrivateKey:
    """Loads the key. Raises `ConfigurationError` if the file cannot be read or decrypted, or if others may read it."""
    return keys.load_key(path, passphrase(path))


def new_key(path: Path) -> PrivateKey:
    """Makes a key and stores it in a new encrypted file that only its owner can read."""
    key = keys.new_key()
    keys.save_key(key, path, passphrase(path, confirm=True))
    return key
