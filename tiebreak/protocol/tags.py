"""The registry of hash tags (SPEC section 1). Every SHA-256 preimage of the protocol starts with one of them."""

from enum import Enum
from hashlib import sha256
from typing import NewType

Digest = NewType("Digest", bytes)
"""32 bytes: a SHA-256 digest."""


class Tag(bytes, Enum):
    """Eight ASCII bytes that name a kind of hashed data. The fixed length means that no tag is a prefix of another."""

    NODE = b"tb.node."
    EMPTY = b"tb.empty"
    CHUNK = b"tb.chunk"
    TENSOR = b"tb.tensr"
    STATE_ENTRY = b"tb.state"
    DATA_ENTRY = b"tb.data."
    STEP_RECORD = b"tb.recrd"
    INSTRUCTION = b"tb.instr"
    ACCUMULATOR = b"tb.accum"
    LOG_WORD = b"tb.lgwrd"
    GAME = b"tb.game."
    MESSAGE = b"tb.messg"
    SEAL = b"tb.seal."
    SNAPSHOT = b"tb.snap."
    HEAD_SEAL = b"tb.hseal"
    ROOT_SEAL = b"tb.rseal"
    SECRET = b"tb.secrt"
    SEED = b"tb.seed."
    SEAT = b"tb.seat."
    POST = b"tb.post."
    PIECE = b"tb.piece"
    BLOB = b"tb.blob."


def tagged_hash(tag: Tag, *parts: bytes | memoryview) -> Digest:
    """SHA-256 of the tag followed by the parts."""
    hasher = sha256(tag.value)
    for part in parts:
        hasher.update(part)
    return Digest(hasher.digest())


EMPTY = tagged_hash(Tag.EMPTY)
"""The leaf of every unused position of a tree."""
