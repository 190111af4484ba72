"""Digests of chunks and of inner nodes, level by level, in plain Python: the oracle of the compiled hasher.

A *level* is the digests of one height of a tree, 32 bytes each, one after the other.
"""

from hashlib import sha256
from typing import Final

import numpy as np

from tiebreak.protocol.program.isa import CHUNK_BYTES, NAN_BITS
from tiebreak.protocol.tags import Tag

DIGEST_BYTES: Final = 32


def one_nan(data: memoryview) -> memoryview:
    """Little-endian f32 data in which every NaN, whatever its payload, is the one NaN. Copied only if there is one."""
    words = np.frombuffer(data, dtype="<u4")
    nan = (words & 0x7FFFFFFF) > 0x7F800000
    if not nan.any():
        return data
    return memoryview(np.where(nan, np.uint32(NAN_BITS), words).astype("<u4").view(np.uint8).data)


def leaf_level(data: memoryview) -> bytes:
    """The digests of the chunks of at least one byte."""
    start = sha256(Tag.CHUNK.value)
    leaves = []
    for offset in range(0, data.nbytes, CHUNK_BYTES):
        hasher = start.copy()
        hasher.update(data[offset : offset + CHUNK_BYTES])
        leaves.append(hasher.digest())
    return b"".join(leaves)


def parent_level(below: bytes, empty: bytes) -> bytes:
    """The level above one of at least one digest; `empty` is what an odd last one is paired with."""
    if len(below) // DIGEST_BYTES % 2:
        below += empty
    start = sha256(Tag.NODE.value)
    nodes = []
    for offset in range(0, len(below), 2 * DIGEST_BYTES):
        hasher = start.copy()
        hasher.update(below[offset : offset + 2 * DIGEST_BYTES])
        nodes.append(hasher.digest())
    return b"".join(nodes)


def record_level(tag: Tag, records: bytes, width: int) -> bytes:
    """The digests under a tag of records of one width that stand one after the other."""
    start = tag.value
    return b"".join([sha256(start + records[at : at + width]).digest() for at in range(0, len(records), width)])
