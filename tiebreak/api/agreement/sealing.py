"""Sealed jobs: program, state and data, encrypted to the keys of the parties, on a hub that sees ciphertext only.

This protects them in storage and in transit. It does not protect them from the trainer, who has to read them to train,
nor from an auditor who is among the readers (`readers`); what a reader passes on is out. Sizes, heads and who
talks to whom stay in the open, and a dispute shows what its moves open, because the board and the game are public.
All roots are of the plaintext, so nothing else of the protocol changes: whoever opens a file checks it as any other.

    sealed file    salt (32) || boxes: each box with its tag, and the salt with the first, fills one piece of a blob
                   (1 MiB), the last one perhaps less. So a piece that was fetched alone can be checked and opened.
                   Key of a file: HKDF-SHA256 of the job's secret, with the salt, info = `tiebreak sealed file 1` ||
                   job id || name. Box i is ChaCha20-Poly1305 with nonce u88 i || u8 (1 for the last, else 0)

The salt is HMAC-SHA256(job's secret, name || 0 || SHA-256 of the plaintext). So the same file gives the same bytes
again, and an upload can go on after a break, while no nonce ever serves two plaintexts.
"""

import hashlib
import hmac
from dataclasses import dataclass
from io import FileIO
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tiebreak.engine.data.disk import read_exactly, write_whole
from tiebreak.protocol.commitments.blobs import PIECE_BYTES
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.tags import Digest

SUFFIX: Final = ".sealed"
"""Follows the name of a file whose published bytes are sealed."""
SALT_BYTES: Final = 32
TAG_BYTES: Final = 16
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
        """Writes what a sealed file of `size` bytes holds. Raises `VerificationError` for any other bytes."""
        source.seek(0)
        salt, left, number = _take(name, source, min(SALT_BYTES, size)), size - SALT_BYTES, 0
        box = self._cipher(name, salt)
        while number == 0 or left > 0:
            piece = _take(name, source, min(_room(number) + TAG_BYTES, max(left, 0)))
            left -= len(piece)
            write_whole(target, memoryview(_opened(name, box, number, piece, is_last=left <= 0)))
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
    return PIECE_BYTES - TAG_BYTES - (0 if number else SALT_BYTES)


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _opened(name: str, box: ChaCha20Poly1305, number: int, piece: bytes, *, is_last: bool) -> bytes:
    try:
        return box.decrypt(_nonce(number, is_last), piece, None)
    except (InvalidTag, ValueError) as error:
        raise VerificationError(f"{name}: expected piece {number} as its publisher sealed it, got another") from error


def _digest_of(name: str, source: FileIO, size: int) -> bytes:
    hasher, left = hashlib.sha256(), size
    source.seek(0)
    while left:
        data = _take(name, source, min(left, PIECE_BYTES))
        hasher.update(data)
        left -= len(data)
    return hasher.digest()


def _take(name: str, source: FileIO, size: int) -> bytes:
    data = bytearray(size)
    if (found := read_exactly(source, memoryview(data))) != size:
        raise EncodingError(f"{name}: expected {size} bytes more, got {found}")
    return bytes(data)
