"""Hashing in bulk, level by level. `PLAIN` computes in Python, and says what every other `Hasher` must compute.

A *level* is the digests of one height of a tree, 32 bytes each, one after the other. Whatever hashes in bulk takes a
`Hasher`: those who can run compiled code hand a faster one in (`tiebreak.engine.data.hashing`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

import numpy as np

from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.tags import EMPTY, Tag

DIGEST_BYTES: Final = 32
CHUNK_BYTES: Final = 512
"""Bytes of tensor data in one leaf of a chunk tree."""


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes to hash, at least one. With `floats`, every NaN counts as the one NaN. Must not change until hashed."""

    view: memoryview
    floats: bool = False


class Hasher(Protocol):
    """Hashes in bulk."""

    def roots(self, inputs: Sequence[Data]) -> list[bytes]:
        """The root of the chunk tree of each input."""

    def leaf_level(self, data: Data) -> bytes:
        """The digests of the chunks of `data`."""

    def parent_level(self, below: bytes, empty: bytes) -> bytes:
        """The level above one of at least one digest; `empty` is what an odd last one is paired with."""

    def record_level(self, tag: Tag, records: bytes, width: int) -> bytes:
        """The digests under a tag of records of `width` bytes that stand one after the other."""


def one_nan(data: memoryview) -> memoryview:
    """Little-endian f32 data in which every NaN, whatever its payload, is the one NaN. Copied only if there is one."""
    words = np.frombuffer(data, dtype="<u4")
    nan = (words & 0x7FFFFFFF) > 0x7F800000
    if not nan.any():
        return data
    return memoryview(np.where(nan, np.uint32(NAN_BITS), words).astype("<u4").view(np.uint8).data)


class PlainHasher:
    """`Hasher` in Python, on one core."""

    def roots(self, inputs: Sequence[Data]) -> list[bytes]:
        """As `Hasher.roots`."""
        return [self._root(self.leaf_level(data)) for data in inputs]

    def _root(self, level: bytes) -> bytes:
        empty: bytes = EMPTY
        while len(level) > DIGEST_BYTES:
            level, empty = self.parent_level(level, empty), self.parent_level(empty, empty)
        return level

    def leaf_level(self, data: Data) -> bytes:
        """As `Hasher.leaf_level`."""
        view, start = one_nan(data.view) if data.floats else data.view, sha256(Tag.CHUNK.value)
        leaves = []
        for offset in range(0, view.nbytes, CHUNK_BYTES):
            hasher = start.copy()
            hasher.update(view[offset : offset + CHUNK_BYTES])
            leaves.append(hasher.digest())
        return b"".join(leaves)

    def parent_level(self, below: bytes, empty: bytes) -> bytes:
        """As `Hasher.parent_level`."""
        if len(below) // DIGEST_BYTES % 2:
            below += empty
        start = sha256(Tag.NODE.value)
        nodes = []
        for offset in range(0, len(below), 2 * DIGEST_BYTES):
            hasher = start.copy()
            hasher.update(below[offset : offset + 2 * DIGEST_BYTES])
            nodes.append(hasher.digest())
        return b"".join(nodes)

    def record_level(self, tag: Tag, records: bytes, width: int) -> bytes:
        """As `Hasher.record_level`."""
        start = tag.value
        return b"".join([sha256(start + records[at : at + width]).digest() for at in range(0, len(records), width)])


PLAIN: Final = PlainHasher()
