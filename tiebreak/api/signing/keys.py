"""The parties' keys: their making and their files.

A key is in an encrypted PEM file of ours, in an Ethereum keystore, or in a signer behind a Unix socket
(`tiebreak.api.signing.signers`). Wherever a command takes a key file, it takes any of them.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path

from tiebreak.api.signing.keystore import MAX_KEYSTORE_BYTES, read_keystore
from tiebreak.api.signing.signers import SignerKey
from tiebreak.engine.data.disk import Folder
from tiebreak.protocol.arguments import PASSPHRASE, PATH, instance, taking
from tiebreak.protocol.commitments.keys import RANDOM_BYTES, PrivateKey
from tiebreak.protocol.errors import ConfigurationError


def new_key() -> PrivateKey:
    """Makes a key from the operating system's random numbers."""
    return PrivateKey.generate(secrets.token_bytes(RANDOM_BYTES))


@taking(key=instance("a key (tiebreak.new_key makes one)", PrivateKey), path=PATH, passphrase=PASSPHRASE)
def save_key(key: PrivateKey, path: str | Path, passphrase: str) -> None:
    """Writes a new file of mode 0600 durably, whole or not at all. Raises `ConfigurationError` if the file exists."""
    path, pem = Path(path), key.to_pem(passphrase)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    if not path.parent.is_dir():
        raise ConfigurationError(f"expected a folder for the key file, got none at {path.parent}; make it first")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        # A hard link, unlike a rename, never replaces a key that is already there.
        os.link(temporary, path)
        with Folder(path.parent, to_write=True) as folder:
            folder.sync()
    except FileExistsError as error:
        raise ConfigurationError(f"{path} already exists; choose another name for the new key") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def is_signer(path: str | Path) -> bool:
    """Whether the key is one of a signer, which needs no passphrase here."""
    return Path(path).is_socket()


@taking(path=PATH, passphrase=PASSPHRASE)
def load_key(path: str | Path, passphrase: str) -> PrivateKey:
    """Reads a key file, or connects to a signer.

    Raises `ConfigurationError` if anyone but its owner may read or write the file.
    """
    if is_signer(path):
        return SignerKey(Path(path))
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigurationError(f"expected mode 0600, got {mode:04o}; run chmod 600 {path}")
            content = file.read(MAX_KEYSTORE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read key file {path}: {error.strerror}") from error
    try:
        is_keystore = content.lstrip().startswith(b"{")
        return read_keystore(content, passphrase) if is_keystore else PrivateKey.from_pem(content, passphrase)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
