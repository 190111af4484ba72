"""Hashing in bulk, level by level. `PlainHasher` is the reference: every other `Hasher` must return the same bytes.

A *level* is the concatenation of all 32-byte digests at one height of a tree. Functions that hash in bulk take a
`Hasher`, so that a caller that may run compiled code can pass a faster one (`tiebreak.engine.data.hashing`).
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
class HashInput:
    """Bytes to hash, one or more, which must not change until then. With `floats`, NaNs count as the canonical NaN."""

    view: memoryview
    floats: bool = False


class Hasher(Protocol):
    """Bulk operations on chunks, records and tree levels."""

    def roots(self, inputs: Sequence[HashInput]) -> list[bytes]:
        """The root of the chunk tree of each input."""

    def leaf_level(self, data: HashInput) -> bytes:
        """The digests of the chunks of `data`, concatenated."""

    def parent_level(self, below: bytes, empty: bytes) -> bytes:
        """The level above `below`, which holds at least one digest; an odd last digest is paired with `empty`."""

    def record_level(self, tag: Tag, records: bytes, width: int) -> bytes:
        """The tagged digests of consecutive records, each `width` bytes long."""


def one_nan(data: memoryview) -> memoryview:
    """Little-endian f32 data in which every NaN is replaced by the canonical NaN. Copies only if there is a NaN."""
    words = np.frombuffer(data, dtype="<u4")
    nan = (words & 0x7FFFFFFF) > 0x7F800000
    if not nan.any():
        return data
    return memoryview(np.where(nan, np.uint32(NAN_BITS), words).astype("<u4").view(np.uint8).data)


class PlainHasher:
    """The `Hasher` in pure Python, on one core."""

    def roots(self, inputs: Sequence[HashInput]) -> list[bytes]:
        return [self._root(self.leaf_level(data)) for data in inputs]

    def _root(self, level: bytes) -> bytes:
        empty: bytes = EMPTY
        while len(level) > DIGEST_BYTES:
            level, empty = self.parent_level(level, empty), self.parent_level(empty, empty)
        return level

    def leaf_level(self, data: HashInput) -> bytes:
        # The tag is hashed once here; every chunk continues from a copy of that state.
        view, start = one_nan(data.view) if data.floats else data.view, sha256(Tag.CHUNK.value)
        leaves = []
        for offset in range(0, view.nbytes, CHUNK_BYTES):
            hasher = start.copy()
            hasher.update(view[offset : offset + CHUNK_BYTES])
            leaves.append(hasher.digest())
        return b"".join(leaves)

    def parent_level(self, below: bytes, empty: bytes) -> bytes:
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
        start = tag.value
        return b"".join([sha256(start + records[at : at + width]).digest() for at in range(0, len(records), width)])


PLAIN: Final = PlainHasher()
