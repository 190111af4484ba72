"""Sealed jobs: program, state and data, encrypted to the keys of the parties, on a hub that sees ciphertext only.

This protects them in storage and in transit. It does not protect them from the trainer, who has to read them to train,
nor from an auditor who is among the readers; what a reader passes on is out. Sizes, heads and who
talks to whom stay in the open, and a dispute shows what its moves open, because the board and the game are public.
All roots are of the plaintext, so nothing else of the protocol changes: whoever opens a file checks it as any other.

    reader's key   X25519. Its secret is a hash of a signature that nobody sees, which the owner's key makes again at
                   any time; so it needs no file of its own, and every kind of key file and signer has one.
    card           0x || address (20) || X25519 public key (32) || signature (65) over EIP-712 `SealingKey(bytes32
                   key)` in the domain of chain 0: how a reader tells the key to others, who need not trust the channel
    seal.bin       msgpack [1, job id, [[address, HPKE ciphertext (80)], ...]]: the job's secret of 32 random bytes for
                   each reader. HPKE (RFC 9180) is DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305 in base
                   mode, with info = `tiebreak sealed job 1` || job id
    sealed file    salt (32) || boxes: each box with its tag, and the salt with the first, fills one piece of a blob
                   (1 MiB), the last one perhaps less. So a piece that was fetched alone can be checked and opened.
                   Key of a file: HKDF-SHA256 of the job's secret, with the salt, info = `tiebreak sealed file 1` ||
                   job id || name. Box i is ChaCha20-Poly1305 with nonce u88 i || u8 (1 for the last, else 0)

The salt is HMAC-SHA256(job's secret, name || 0 || SHA-256 of the plaintext). So the same file gives the same bytes
again, and an upload can go on after a break, while no nonce ever serves two plaintexts. Imports no torch.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from io import FileIO
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tiebreak.engine.data.disk import read_exactly, write_whole
from tiebreak.protocol.commitments import blobs, keys, seats
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, OFF_CHAIN, Address, TypedData
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.packing import Fields, Raw, pack, unpack
from tiebreak.protocol.tags import Digest

SEAL: Final = "seal.bin"
MAX_READERS: Final = 64
MAX_SEAL_BYTES: Final = 1 << 14
SECRET_BYTES: Final = 32
_KEY_BYTES: Final = 32
_CARD_BYTES: Final = ADDRESS_BYTES + _KEY_BYTES + keys.SIGNATURE_BYTES
_PURPOSE: Final = Digest(hashlib.sha256(b"tiebreak: the key that opens sealed jobs, 1").digest())
_JOB_INFO: Final = b"tiebreak sealed job 1"
_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
TAG_BYTES: Final = 16
_WRAPPED_BYTES: Final = _KEY_BYTES + SECRET_BYTES + TAG_BYTES
_VERSION: Final = 1

Unseal = Callable[[bytes, Digest], bytes]
"""Opens the `seal.bin` of a job: the job's secret. Raises as `opened_by` does."""


def reader_key(key: PrivateKey) -> X25519PrivateKey:
    """The X25519 key, derived from a signing key, to which jobs are sealed for its owner."""
    return X25519PrivateKey.from_private_bytes(seats.salt_of(key, _PURPOSE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A reader of sealed jobs: an account, and the public key to encrypt to."""

    address: Address
    public: bytes

    @classmethod
    def of(cls, key: PrivateKey) -> Self:
        return cls(address=key.address, public=reader_key(key).public_key().public_bytes_raw())

    def text(self, key: PrivateKey) -> str:
        """The card as text, signed by the account."""
        typed = self._typed()
        return "0x" + (self.address + self.public + key.sign(typed.digest, typed)).hex()

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads a card. Raises `VerificationError` unless the account that it names has signed it."""
        try:
            data = bytes.fromhex(text.strip().removeprefix("0x"))
        except ValueError as error:
            raise EncodingError(f"expected a card in hex digits, got {text[:40]!r}") from error
        if len(data) != _CARD_BYTES:
            raise EncodingError(f"expected a card of {_CARD_BYTES} bytes (tiebreak key --card), got {len(data)}")
        end = ADDRESS_BYTES + _KEY_BYTES
        card = cls(address=Address(data[:ADDRESS_BYTES]), public=data[ADDRESS_BYTES:end])
        keys.verify(card._typed().digest, data[end:], card.address)
        return card

    def _typed(self) -> TypedData:
        return TypedData(domain=OFF_CHAIN, name="SealingKey", kinds={"key": Raw(_KEY_BYTES)}, values=(self.public,))


# ---------------------------------------------------------------- the secret of one job


def wrapped(secret: bytes, job_id: Digest, readers: Sequence[Card]) -> bytes:
    """`seal.bin`: a job's secret for each reader."""
    found = {card.address: card for card in readers}
    if not 1 <= len(found) <= MAX_READERS:
        raise ConfigurationError(f"expected 1 to {MAX_READERS} readers, got {len(found)}")
    rows = []
    for address in sorted(found):
        try:
            public = X25519PublicKey.from_public_bytes(found[address].public)
            rows.append((address, _SUITE.encrypt(secret, public, info=_JOB_INFO + job_id)))
        except ValueError as error:  # a point of small order, with which everybody would share the secret
            raise VerificationError(f"0x{address.hex()}: expected a key on X25519, got a bad point") from error
    return pack([_VERSION, job_id, rows])


def opened_by(key: PrivateKey) -> Unseal:
    """A function by which a key's owner opens `seal.bin`; the reader's key is derived once, when it is needed.

    It raises `CannotCheck` for a job that is sealed to others only, `VerificationError` for a malformed file.
    """
    derived = cache(partial(reader_key, key))

    def unseal(data: bytes, job_id: Digest) -> bytes:
        rows = dict(readers_of(data, job_id))
        if key.address not in rows:
            raise CannotCheck(f"the job is sealed to {len(rows)} readers, and 0x{key.address.hex()} is not among them")
        try:
            secret = _SUITE.decrypt(rows[key.address], derived(), info=_JOB_INFO + job_id)
        except (InvalidTag, ValueError) as error:
            raise VerificationError(f"{SEAL}: expected the job's secret for this reader, got something else") from error
        if len(secret) != SECRET_BYTES:
            raise EncodingError(f"{SEAL}: expected a secret of {SECRET_BYTES} bytes, got {len(secret)}")
        return secret

    return unseal


def readers_of(data: bytes, job_id: Digest) -> list[tuple[Address, bytes]]:
    """The readers that `seal.bin` names, each with what only it can open. Raises `VerificationError`."""
    top = Fields.versioned(SEAL, unpack(data, MAX_SEAL_BYTES), 3, _VERSION)
    if (found := top.take(Raw(32))) != job_id:
        raise VerificationError(f"{SEAL}: expected job {job_id.hex()}, got {found.hex()}")
    name, rows = top.next()
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_READERS:
        raise EncodingError(f"{name}: expected 1 to {MAX_READERS} readers, got something else")
    fields = [Fields(name, row, 2) for row in rows]
    return [(Address(row.take(Raw(ADDRESS_BYTES))), row.take(Raw(_WRAPPED_BYTES))) for row in fields]


SUFFIX: Final = ".sealed"
"""Follows the name of a file whose published bytes are sealed."""
SALT_BYTES: Final = 32
_FILE_INFO: Final = b"tiebreak sealed file 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """A job's secret, which opens and seals all its files."""

    job_id: Digest
    secret: bytes

    def __repr__(self) -> str:
        return f"Sealed(job_id={self.job_id.hex()})"

    def seal(self, name: str, source: FileIO, size: int, target: FileIO) -> int:
        """Writes the sealed form of the first `size` bytes of a file; returns how many bytes that are."""
        salt = hmac.digest(self.secret, name.encode() + b"\0" + _digest_of(name, source, size), "sha256")
        box, at, number = self._cipher(name, salt), 0, 0
        write_whole(target, memoryview(salt))
        source.seek(0)
        while number == 0 or at < size:
            plain = _take(name, source, min(_room(number), size - at))
            at += len(plain)
            write_whole(target, memoryview(box.encrypt(_nonce(number, at == size), plain, None)))
            number += 1
        return sealed_bytes(size)

    def open(self, name: str, source: FileIO, size: int, target: FileIO) -> None:
        """Writes the plaintext of a sealed file of `size` bytes. Raises `VerificationError` for any other bytes."""
        source.seek(0)
        salt, left, number = _take(name, source, min(SALT_BYTES, size)), size - SALT_BYTES, 0
        box = self._cipher(name, salt)
        while number == 0 or left > 0:
            piece = _take(name, source, min(_room(number) + TAG_BYTES, max(left, 0)))
            left -= len(piece)
            try:
                plain = box.decrypt(_nonce(number, left <= 0), piece, None)
            except (InvalidTag, ValueError) as error:
                expected = f"expected piece {number} as its publisher sealed it, got another"
                raise VerificationError(f"{name}: {expected}") from error
            write_whole(target, memoryview(plain))
            number += 1

    def _cipher(self, name: str, salt: bytes) -> ChaCha20Poly1305:
        info = _FILE_INFO + self.job_id + name.encode()
        return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, salt, info).derive(self.secret))


def sealed_bytes(size: int) -> int:
    """The number of bytes in the sealed form of a file of this size."""
    boxes = 1 + max(0, -(-(size - _room(0)) // _room(1)))
    return SALT_BYTES + size + boxes * TAG_BYTES


def _room(number: int) -> int:
    """The bytes of plaintext that fit into a box."""
    return blobs.PIECE_BYTES - TAG_BYTES - (0 if number else SALT_BYTES)


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _digest_of(name: str, source: FileIO, size: int) -> bytes:
    hasher, left = hashlib.sha256(), size
    source.seek(0)
    while left:
        data = _take(name, source, min(left, blobs.PIECE_BYTES))
        hasher.update(data)
        left -= len(data)
    return hasher.digest()


def _take(name: str, source: FileIO, size: int) -> bytes:
    data = bytearray(size)
    if (found := read_exactly(source, memoryview(data))) != size:
        raise EncodingError(f"{name}: expected {size} bytes more, got {found}")
    return bytes(data)
