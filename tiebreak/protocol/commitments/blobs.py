"""Blobs: files of any kind and size, named by a root under which each piece can be checked alone (SPEC section 12).

    piece   H(`tb.piece` || the bytes of one piece: 1 MiB, or what is left for the last one)
    root    H(`tb.blob.` || u64 size || root of the tree over the pieces)

The list of pieces fixes the root together with the size, so a reader with a checked list can check each piece as it
comes, from any place of the blob and from any number of sources. An empty blob has one empty piece.
"""

from collections.abc import Sequence
from typing import Final

from tiebreak.protocol import codec, hashing
from tiebreak.protocol.errors import ProofError
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import Tree

PIECE_BYTES: Final = 1 << 20
MAX_BLOB_BYTES: Final = 1 << 44


def piece_count(size: int) -> int:
    return max(1, -(-size // PIECE_BYTES))


def piece_digest(data: bytes | memoryview) -> Digest:
    return tagged_hash(Tag.PIECE, data)


def blob_root(size: int, pieces: Sequence[bytes]) -> Digest:
    """The root of a blob of this size from the digests of its pieces. Raises `ProofError` for too many or too few."""
    codec.check_uint("size of a blob", size, 64)
    if size > MAX_BLOB_BYTES or len(pieces) != piece_count(size):
        raise ProofError(f"expected {piece_count(size)} pieces for {size} bytes, got {len(pieces)}")
    if any(len(piece) != hashing.DIGEST_BYTES for piece in pieces):
        raise ProofError(f"expected digests of {hashing.DIGEST_BYTES} bytes, got other lengths")
    return tagged_hash(Tag.BLOB, size.to_bytes(8, "big"), Tree(pieces).root)


def check_pieces(root: bytes, size: int, pieces: Sequence[bytes]) -> None:
    """Raise `ProofError` unless these are the digests of the pieces of the blob with this root and size."""
    if (found := blob_root(size, pieces)) != root:
        raise ProofError(f"expected pieces of blob {root.hex()}, got those of {found.hex()}")


def check_piece(pieces: Sequence[bytes], number: int, data: bytes | memoryview) -> None:
    """Raise `ProofError` unless these are the bytes of a piece."""
    if (found := piece_digest(data)) != pieces[number]:
        raise ProofError(f"piece {number}: expected {pieces[number].hex()}, got {found.hex()}")
