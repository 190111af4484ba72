"""Proofs about a job's data (SPEC section 13): that a row is in them, or that none of an entry's rows is a given one.

A part of a proof opens elements of an entry of the data: the 512-byte chunks that hold them, whole, and the nodes that
lead from these to the entry's id. Absence is proven in an index, a tree over the sorted ids of all rows of an entry,
each as a tensor of its own, between 32 bytes 0 and 32 bytes 255: two neighbours in it, with the id of the missing row
between them, show that no row has that id. Who makes an index can leave rows out, so its root has to be compared with
that of somebody who has computed it from the data.

Numbered plan of `DataProof.check`: (1) each opening lies inside its tensor and has the bytes of exactly its chunks
(when it is made); (2) these and its nodes lead to the chunk root, which with type and shape gives the tensor's id; (3)
the ids at their places lead to the data root; (4) all parts that are whole rows are the same row; (5) elements are
shown of all parts, or, for an absence, of the only one none; (6) an absence is of a row as a run could hold it, and its
id lies between two neighbours of an index of all rows.
"""

import zlib
from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Final, Self

from tiebreak.protocol import trees
from tiebreak.protocol.commitments.job import MAX_ENTRIES
from tiebreak.protocol.commitments.records import chunk_count, chunk_digest, data_leaf, data_tree, identify, tensor_id
from tiebreak.protocol.errors import EncodingError, ProofError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.packing import Data, EnumMember, Fields, ListOf, OneOf, Raw, Record, Uint, pack, unpack
from tiebreak.protocol.program import reference
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_RANK, DType
from tiebreak.protocol.tags import Digest

VERSION: Final = 1
MAX_PROOF_BYTES: Final = 1 << 22
"""The most bytes of a proof, compressed or not."""
INDEX_ENDS: Final = (Digest(bytes(32)), Digest(b"\xff" * 32))
"""The first and the last leaf of an index, around all ids."""

Bytes = Annotated[bytes, Data(MAX_PROOF_BYTES)]
Nodes = Annotated[tuple[Digest, ...], ListOf(Raw(32), 128)]
Elements = Annotated[int, Uint(64, 0, MAX_NUMEL)]


class DataPart(Record):
    """Elements of a tensor, `count` from `first` on, in whole chunks. place, name: of its entry among the data."""

    place: Annotated[int, Uint(32, 0, MAX_ENTRIES)]
    name: Annotated[bytes, Data(255)]
    dtype: Annotated[DType, EnumMember(DType)]
    shape: Annotated[tuple[int, ...], ListOf(Uint(64, 1, MAX_NUMEL), MAX_RANK)]
    first: Elements
    count: Elements
    data: Bytes
    nodes: Nodes

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        end, size = self.first + self.count, min(prod(self.shape), MAX_NUMEL)
        if end > size or len(self.data) != len(self.shown) * self.dtype.size:  # (1)
            raise EncodingError(f"proof: expected chunks of elements {self.first} to {end} of {size}, got others")

    @classmethod
    def of(cls, tree: trees.Tree, data: memoryview, *fields: Any) -> Self:
        """Opens elements of a tensor, by its data and the tree over its chunks. fields: from `place` to `count`."""
        known = dict(zip(cls.kinds(), fields, strict=False))
        chunks = _chunks(known["dtype"], known["first"], known["count"])
        shown = bytes(data[chunks.start * CHUNK_BYTES : chunks.stop * CHUNK_BYTES])
        return cls(data=shown, nodes=tuple(trees.hidden_nodes(tree, tree.count, chunks)), **known)

    @property
    def shown(self) -> range:
        """All elements in the chunks of these elements."""
        each, chunks = CHUNK_BYTES // self.dtype.size, _chunks(self.dtype, self.first, self.count)
        return range(prod(self.shape))[chunks.start * each : chunks.stop * each]

    @property
    def elements(self) -> bytes:
        """The bytes of the elements, without others of their chunks."""
        start = (self.first - self.shown.start) * self.dtype.size
        return self.data[start : start + self.count * self.dtype.size]

    @property
    def also(self) -> str:
        """The rows whose elements the chunks show in addition, in words; empty if there are none."""
        each, shown = prod(self.shape[1:]), self.shown
        words = f"parts of rows {shown.start // each} to {(shown.stop - 1) // each}"
        return words if len(shown) > self.count else ""

    @property
    def row(self) -> int | None:
        """The number of the row that the elements are; None if they are no whole row."""
        each = prod(self.shape[1:])
        return self.first // each if self.count == each and not self.first % each else None

    @property
    def identity(self) -> Digest:
        """The id of the tensor to which chunks and nodes lead. Raises `VerificationError` if there is none."""
        pieces = [self.data[at : at + CHUNK_BYTES] for at in range(0, len(self.data), CHUNK_BYTES)]
        chunks = _chunks(self.dtype, self.first, self.count)
        leaves = dict(zip(chunks, map(chunk_digest, pieces), strict=True))
        root = trees.root_of_shown(chunk_count(self.dtype, self.shape), leaves, self.nodes)
        return tensor_id(self.dtype, self.shape, root)  # (2)


def _chunks(dtype: DType, first: int, count: int) -> range:
    """The chunks that hold some elements."""
    return range(first * dtype.size // CHUNK_BYTES, -(-(first + count) * dtype.size // CHUNK_BYTES) if count else 0)


class DataProof(Record):
    """Parts of a job's data: those of a row, or an entry that lacks a row.

    missing: the bytes of that row. neighbours: two ids of the index, the first of which is at position `at`, with the
    nodes that lead from them to the root of the index; there are none in a proof of a row.
    """

    parts: Annotated[tuple[DataPart, ...], ListOf(OneOf((DataPart,)), 16)]
    nodes: Nodes
    missing: Bytes = b""
    at: Elements = 0
    neighbours: Annotated[tuple[Digest, ...], ListOf(Raw(32), 2)] = ()
    index_nodes: Nodes = ()

    @classmethod
    def of(cls, ids: Mapping[str, bytes], *parts: DataPart, **absence: Any) -> Self:
        """Puts parts under the data root. ids: of all entries of the data, by name. absence: fields."""
        nodes = trees.hidden_nodes(data_tree(ids), len(ids), [part.place for part in parts])
        return cls(parts=parts, nodes=tuple(nodes), **absence)

    def check(self, data_root: bytes, entries: int) -> None:
        """Raises `VerificationError` unless it holds for data of this root and count, and for some index."""
        leaves = {part.place: data_leaf(part.name.decode("latin-1"), part.identity) for part in self.parts}
        if not leaves or list(leaves) != sorted(part.place for part in self.parts):
            raise EncodingError(f"proof: expected parts in ascending places, got {list(leaves)}")
        if (found := trees.root_of_shown(entries, leaves, self.nodes)) != data_root:  # (3)
            raise ProofError(f"proof: expected data root {data_root.hex()}, got {found.hex()}")
        if len(rows := {part.row for part in self.parts} - {None}) > 1:  # (4)
            raise ProofError(f"proof: expected parts of one row, got rows {rows}")
        part, shows = self.parts[0], [part.count for part in self.parts]
        is_absence = (shows, len(self.neighbours)) == ([0], 2) and part.shape
        if not is_absence and (not all(shows) or self.missing or self.at or self.neighbours or self.index_nodes):  # (5)
            raise EncodingError(f"proof: expected elements of all parts, or of the only one none, got {shows}")
        if is_absence:  # (6)
            if reference.pack(part.dtype, reference.unpack(part.dtype, self.missing)) != self.missing:
                raise EncodingError("proof: expected NaN as 0x7fc00000 only, got another pattern")
            (before, after), row = self.neighbours, identify(part.dtype, part.shape[1:], self.missing)
            if not before < row < after or not self.index_root:
                raise ProofError(f"proof: expected ids around {row.hex()}, got {before.hex()} and {after.hex()}")

    @property
    def index_root(self) -> Digest:
        """The root to which the neighbours lead, of an index of all rows. Raises `ProofError` if there is none."""
        found = {self.at + place: id_ for place, id_ in enumerate(self.neighbours)}
        return trees.root_of_shown(self.parts[0].shape[0] + len(INDEX_ENDS), found, self.index_nodes)

    def encode(self) -> bytes:
        """The file of the proof: its version and its fields, compressed."""
        return zlib.compress(pack([VERSION, self.pack()]), 9)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reads the file of a proof. Nothing is checked against a root yet. Raises `VerificationError`."""
        inflater = zlib.decompressobj()
        try:
            packed = inflater.decompress(data, MAX_PROOF_BYTES)
        except zlib.error as error:
            raise EncodingError(f"proof: expected what zlib compressed, got {error}") from error
        if not inflater.eof or inflater.unused_data:
            raise EncodingError(f"proof: expected at most {MAX_PROOF_BYTES:,} bytes and nothing after them, got more")
        return cls.unpack(*Fields.versioned("proof", unpack(packed, MAX_PROOF_BYTES), 2, VERSION).next())
