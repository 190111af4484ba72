"""`tiebreak key`: makes a signing key in an encrypted file; and key files for other commands.

A passphrase comes from TIEBREAK_PASSPHRASE or a prompt, never from an argument: every user of a machine can see the
arguments of all its processes. Nor does it stay in the environment, which every process that a command starts inherits.
"""

import json
import os
import sys
from pathlib import Path

import click

from tiebreak import api
from tiebreak.api.signing import keys
from tiebreak.cli.options import PASSPHRASE_VARIABLE, json_option
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError


def passphrase(path: Path, *, confirm: bool = False) -> str:
    """The passphrase of a key file. With `confirm`, for a new key, it is asked for twice."""
    command = click.get_current_context(silent=True)
    given = command.meta.get(PASSPHRASE_VARIABLE) if command else os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    try:
        asked: str = click.prompt(f"Passphrase of {path}", hide_input=True, confirmation_prompt=confirm, err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        raise ConfigurationError(
            f"expected the passphrase of {path} in the environment variable {PASSPHRASE_VARIABLE}, since there is no "
            f'terminal to ask on, got none; set it, for instance: export {PASSPHRASE_VARIABLE}="$(cat FILE)"'
        ) from error
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
@click.option("--show", is_flag=True, help="Print the address of an existing key; make nothing.")
@click.option("--card", is_flag=True, help="Print the card of an existing key; make nothing.")
@click.option("--public", is_flag=True, help="Print the public key of an existing key for cosign and in-toto (PEM).")
@click.option("--request", is_flag=True, help="Print a request for an X.509 certificate of that public key (PEM).")
@json_option
def key(file: Path, show: bool, card: bool, public: bool, request: bool, as_json: bool) -> None:
    """Make a signing key in FILE and print its address.

    The address is who you are in a job: client, trainer or auditor. The key is a secp256k1 key, so that a contract can
    check what it signs. It is kept as encrypted PKCS#8, readable by its owner only; an existing file is never
    overwritten. The passphrase is asked for, or taken from the environment variable TIEBREAK_PASSPHRASE.

    Wherever a command takes a key file, it may also be an Ethereum keystore (JSON, version 3), or the Unix socket of a
    signer, which keeps the key in another process (tiebreak.api.signing.signers describes what is said there). With
    --card the command prints what others need to seal jobs to you (`tiebreak agree --seal-to`): it is public, and
    signed by you. With --public it prints the P-256 key by which other tools check your signature under a certificate;
    with --request, a CA can put a name to that key (`tiebreak certify --certificate-chain`).
    """
    found = load_key(file) if show or card or public or request else new_key(file)
    address = f"0x{found.address.hex()}"
    told = {"public": lambda: api.attesting.public_pem(found), "card": lambda: api.sealing.Card.of(found).text(found)}
    told["request"] = lambda: api.attesting.request_pem(found)
    kind = "public" if public else "card" if card else "request" if request else "address"
    text = told[kind]() if kind in told else address
    click.echo(json.dumps({"file": str(file), "address": address, kind: text}) if as_json else text.removesuffix("\n"))
