"""`tiebreak key`: makes a signing key in an encrypted file."""

from pathlib import Path

import click

from tiebreak.cli.keyfiles import new_key


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
