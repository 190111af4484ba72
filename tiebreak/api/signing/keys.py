"""The parties' keys: their making and their files.

A key is in an encrypted PEM file of ours, in an Ethereum keystore, or in a signer behind a Unix socket
(`tiebreak.api.signing.signers`). Wherever a command takes a key file, it takes any of them.

A keystore is the encrypted JSON file of Ethereum's clients and wallets (Web3 Secret Storage, version 3):

    address    optional, 40 hex digits
    crypto     cipher "aes-128-ctr" with its iv; kdf "scrypt" (n, r, p) or "pbkdf2" (c, prf "hmac-sha256"), each with
               salt and dklen; ciphertext; mac = keccak256(derived key[16:32] || ciphertext)
    version    3

Fields that are not needed (id, names that wallets add) are ignored. The file says how much work a passphrase costs, so
that is limited here. https://ethereum.org/en/developers/docs/data-structures-and-encoding/web3-secret-storage/
"""

import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from eth_hash.auto import keccak

from tiebreak.api.signing.signers import SignerKey
from tiebreak.engine import system
from tiebreak.engine.data.disk import Folder
from tiebreak.protocol.arguments import PASSPHRASE, PATH, instance, taking
from tiebreak.protocol.commitments.keys import RANDOM_BYTES, PrivateKey
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.strict_json import JsonObject

MAX_KEYSTORE_BYTES: Final = 1 << 16
_DEPTH: Final = 6
_VERSION: Final = 3
_SECRET_BYTES: Final = 32
MAX_SCRYPT_BYTES: Final = 1 << 30
"""128 n r, the memory of scrypt. Geth's usual files take 256 MiB."""
MAX_SCRYPT_P: Final = 16
MAX_ROUNDS: Final = 1 << 24
_HEX: Final = "(?:0x)?(?:[0-9a-fA-F]{2})*"


def read_keystore(content: bytes, passphrase: str) -> PrivateKey:
    """Decrypts a key file. Raises `ConfigurationError` for a wrong passphrase, or for a file of another kind."""
    try:
        top = JsonObject.parse("keystore", content, _DEPTH)
        top.version("version", _VERSION)
        crypto = top.inner("Crypto" if "Crypto" in top else "crypto")
        crypto.same("cipher", "aes-128-ctr")
        iv, ciphertext = _hex(crypto.inner("cipherparams"), "iv", 16), _hex(crypto, "ciphertext", _SECRET_BYTES)
        mac = _hex(crypto, "mac", 32)
        derived = _derive(crypto, passphrase.encode("utf-8"))
        if not hmac.compare_digest(keccak(derived[16:32] + ciphertext), mac):
            raise ConfigurationError("the keystore does not decrypt: wrong passphrase or damaged file")
        decryptor = Cipher(algorithms.AES(derived[:16]), modes.CTR(iv)).decryptor()
        key = PrivateKey.from_int(int.from_bytes(decryptor.update(ciphertext) + decryptor.finalize(), "big"))
        if "address" in top and (named := _hex(top, "address", 20)) != key.address:
            raise ConfigurationError(
                f"expected the key of 0x{named.hex()}, which the file names, got 0x{key.address.hex()}"
            )
        return key
    except EncodingError as error:
        raise ConfigurationError(f"expected an Ethereum keystore of version 3: {error}") from error


def _derive(crypto: JsonObject, passphrase: bytes) -> bytes:
    kdf, parameters = crypto.text("kdf", "scrypt|pbkdf2", "scrypt or pbkdf2"), crypto.inner("kdfparams")
    length = parameters.integer("dklen", 32, 64)
    salt = bytes.fromhex(parameters.text("salt", _HEX, "hex digits").removeprefix("0x"))
    if kdf == "pbkdf2":
        parameters.same("prf", "hmac-sha256")
        return PBKDF2HMAC(hashes.SHA256(), length, salt, parameters.integer("c", 1, MAX_ROUNDS)).derive(passphrase)
    n, r = parameters.integer("n", 2, MAX_SCRYPT_BYTES), parameters.integer("r", 1, 1 << 10)
    p = parameters.integer("p", 1, MAX_SCRYPT_P)
    if n & (n - 1) or 128 * n * r > MAX_SCRYPT_BYTES:
        raise EncodingError(
            f"keystore: expected n a power of two and 128 n r at most {MAX_SCRYPT_BYTES}, got n {n}, r {r}"
        )
    return Scrypt(salt, length, n, r, p).derive(passphrase)


def _hex(of: JsonObject, name: str, length: int) -> bytes:
    text = of.text(name, f"(?:0x)?[0-9a-fA-F]{{{2 * length}}}", f"{2 * length} hex digits")
    return bytes.fromhex(text.removeprefix("0x"))


def new_key() -> PrivateKey:
    """Makes a key from the operating system's random numbers."""
    return PrivateKey.generate(secrets.token_bytes(RANDOM_BYTES))


@taking(key=instance("a key (tiebreak.new_key makes one)", PrivateKey), path=PATH, passphrase=PASSPHRASE)
def save_key(key: PrivateKey, path: str | Path, passphrase: str) -> None:
    """Writes a new file of mode 0600 durably, whole or not at all.

    key: that of `tiebreak.new_key`. path: of the new file. passphrase: it encrypts the key (PKCS#8, AES-256).

    Raises `ConfigurationError` if the file exists.
    """
    path, pem = Path(path), key.to_pem(passphrase)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    if not path.parent.is_dir():
        raise ConfigurationError(f"expected a folder for the key file, got none at {path.parent}; make it first")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.OPEN, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            system.synced(file.fileno())
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
    """Whether the path is the socket of a signer, which needs no passphrase here."""
    return Path(path).is_socket()


@taking(path=PATH, passphrase=PASSPHRASE)
def load_key(path: str | Path, passphrase: str) -> PrivateKey:
    """Reads a key file, or connects to a signer.

    path: a file of `save_key`, an Ethereum keystore, or the Unix socket of a signer. passphrase: that of the file; a
    signer needs none.

    Raises `ConfigurationError` for a wrong passphrase, or if anyone but its owner may read or write the file.
    """
    if is_signer(path):
        return SignerKey(Path(path))
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if system.others_may(status):
                mode = stat.S_IMODE(status.st_mode)
                raise ConfigurationError(f"expected mode 0600, got {mode:04o}; run chmod 600 {path}")
            content = file.read(MAX_KEYSTORE_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read key file {path}: {error.strerror}") from error
    try:
        is_keystore = content.lstrip().startswith(b"{")
        return read_keystore(content, passphrase) if is_keystore else PrivateKey.from_pem(content, passphrase)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
