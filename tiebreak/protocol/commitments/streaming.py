"""The id of a tensor whose bytes arrive piece by piece (SPEC section 3), in memory of constant size.

The chunk tree is cut into subtrees of 4096 chunks. Each subtree is hashed as soon as its bytes have arrived, and only
its root is kept; a growing tree over those roots, with one node per level, gives the root of the whole.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from tiebreak.protocol.commitments.records import tensor_id
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES, PLAIN, Hasher, HashInput
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Frontier, depth_of, pad

SUBTREE_HEIGHT: Final = 12
SUBTREE_BYTES: Final = CHUNK_BYTES << SUBTREE_HEIGHT
"""2 MiB; also the most that is buffered while waiting for more."""


class TensorStream:
    """Takes a tensor's data (little-endian, row-major) in pieces of any length and returns its id at the end.

    Any f32 NaN counts as `0x7fc00000`. Bytes of bools are hashed unchanged.
    """

    def __init__(self, dtype: DType, shape: Sequence[int], *, hasher: Hasher = PLAIN) -> None:
        self._dtype, self._shape, self._hasher = dtype, tuple(shape), hasher
        self._expected = prod(shape) * dtype.size
        self._taken = 0
        self._held = bytearray()
        self._subtrees = Frontier(SUBTREE_HEIGHT)

    def update(self, piece: bytes | memoryview) -> None:
        """Add the next bytes. The caller may reuse the memory afterwards. Raises `EncodingError` for too many bytes."""
        view = memoryview(piece).cast("B")
        self._taken += view.nbytes
        if self._taken > self._expected:
            raise EncodingError(f"expected {self._expected} bytes for {self._what()}, got more")
        if self._held:
            missing = SUBTREE_BYTES - len(self._held)
            self._held += view[:missing]
            view = view[missing:]
            if len(self._held) < SUBTREE_BYTES:
                return
            self._append([memoryview(self._held)])
            self._held = bytearray()
        whole = view.nbytes // SUBTREE_BYTES * SUBTREE_BYTES
        self._append([view[start : start + SUBTREE_BYTES] for start in range(0, whole, SUBTREE_BYTES)])
        self._held += view[whole:]

    def identity(self) -> Digest:
        """The tensor's id, once all of its bytes have arrived. Raises `EncodingError` before that."""
        if self._taken != self._expected:
            raise EncodingError(f"expected {self._expected} bytes for {self._what()}, got {self._taken}")
        return tensor_id(self._dtype, self._shape, self._root())

    def _root(self) -> Digest:
        chunks = -(-self._expected // CHUNK_BYTES)
        if self._held:
            (last,) = self._roots([memoryview(self._held)])
            if not self._subtrees.count:
                return last
            height = depth_of(-(-len(self._held) // CHUNK_BYTES))
            self._subtrees.append(pad(last, height, SUBTREE_HEIGHT))
            self._held = bytearray()
        return self._subtrees.root(max(SUBTREE_HEIGHT, depth_of(chunks)) - SUBTREE_HEIGHT)

    def _append(self, pieces: Sequence[memoryview]) -> None:
        for root in self._roots(pieces):
            self._subtrees.append(root)

    def _roots(self, pieces: Sequence[memoryview]) -> list[Digest]:
        roots = self._hasher.roots([HashInput(piece, floats=self._dtype == DType.F32) for piece in pieces])
        return [Digest(root) for root in roots]

    def _what(self) -> str:
        return f"{self._dtype.name} {self._shape}"
