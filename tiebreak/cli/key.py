"""`tiebreak key`: makes a signing key in an encrypted file; and key files for other commands.

A passphrase comes from TIEBREAK_PASSPHRASE or a prompt, never from an argument: every user of a machine can see the
arguments of all its processes.
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
    """Loads the key from a file of either kind, or from a signer's socket, which needs no passphrase.

    Raises `ConfigurationError` if the file cannot be read or decrypted, or if others may read it.
    """
    return keys.load_key(path, "" if keys.is_signer(path) else passphrase(path))


def new_key(path: Path) -> PrivateKey:
    """Makes a key and stores it in a new encrypted file that only its owner can read."""
    key = keys.new_key()
    keys.save_key(key, path, passphrase(path, confirm=True))
    return key


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def key(file: Path) -> None:
    """Make a signing key in FILE and print its address.

    The address is who you are in a job: client, trainer or auditor. The key is a secp256k1 key, so that a contract can
    check what it signs. It is kept as encrypted PKCS#8, readable by its owner only; an existing file is never
    overwritten. The passphrase is asked for, or taken from the environment variable TIEBREAK_PASSPHRASE.
    """
    made = new_key(file)
    click.echo(f"0x{made.address.hex()}")
