"""The hashes of SPEC section 3: chunks, tensors, state and data entries, step records, runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from tiebreak.protocol.codec import Reader, encode_name, unsigned
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES, PLAIN, Hasher, HashInput
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_RANK, DType
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import Frontier, Tree, depth_of, pad

ZERO_DIGEST = Digest(bytes(32))
"""The log root of a step under policy `exact`, which has no rounding log."""
SUBTREE_HEIGHT: Final = 12
SUBTREE_BYTES: Final = CHUNK_BYTES << SUBTREE_HEIGHT
"""2 MiB; also the most that is buffered while waiting for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorData:
    """A tensor to identify. `data` is little-endian and row-major, and must not change until it is hashed."""

    dtype: DType
    shape: tuple[int, ...]
    data: memoryview


def chunk_count(dtype: DType, shape: Sequence[int]) -> int:
    """Number of chunks of a tensor: the leaves of its chunk tree."""
    return -(-prod(shape) * dtype.size // CHUNK_BYTES)


def chunk_length(dtype: DType, shape: Sequence[int], chunk: int) -> int:
    """Bytes in chunk number `chunk`: 512, or fewer in the last."""
    return min(CHUNK_BYTES, prod(shape) * dtype.size - chunk * CHUNK_BYTES)


def chunk_digest(data: bytes | memoryview) -> Digest:
    return tagged_hash(Tag.CHUNK, bytes(data))


def tensor_tree(data: bytes | memoryview, *, hasher: Hasher = PLAIN) -> Tree:
    """The chunk tree of tensor data (little-endian, row-major, NaN canonical). Raises `EncodingError` if empty."""
    view = memoryview(data).cast("B")
    if not view.nbytes:
        raise EncodingError("expected a tensor with at least one element, got none")
    return Tree(hasher.leaf_level(HashInput(view)), hasher=hasher)


def tensor_id(dtype: DType, shape: Sequence[int], root: bytes) -> Digest:
    """The id of a tensor, by its chunk root. Raises `EncodingError` above rank 8 or 2^40 elements, or for a dim < 1."""
    if len(shape) > MAX_RANK or any(dim < 1 for dim in shape) or prod(shape) > MAX_NUMEL:
        raise EncodingError(f"expected rank <= {MAX_RANK}, dims >= 1, at most 2^40 elements; got {tuple(shape)}")
    dims = b"".join(unsigned(dim, 8) for dim in shape)
    return tagged_hash(Tag.TENSOR, unsigned(dtype, 1), unsigned(len(shape), 1), dims, root)


def identify(dtype: DType, shape: Sequence[int], data: bytes | memoryview) -> Digest:
    """The id of a tensor, by its data. Raises `EncodingError` if shape and data disagree in size."""
    expected = prod(shape) * dtype.size
    if memoryview(data).nbytes != expected:
        raise EncodingError(f"expected {expected} bytes for {dtype.name} {tuple(shape)}, got {memoryview(data).nbytes}")
    return tensor_id(dtype, shape, tensor_tree(data).root)


def identify_all(tensors: Sequence[TensorData], *, hasher: Hasher = PLAIN) -> list[Digest]:
    """The ids of many tensors. Any f32 NaN counts as `0x7fc00000`. Raises `EncodingError` for a wrong data size."""
    for tensor in tensors:
        if tensor.data.nbytes != prod(tensor.shape) * tensor.dtype.size or not tensor.data.nbytes:
            raise EncodingError(f"{tensor.dtype.name} {tuple(tensor.shape)}: got {tensor.data.nbytes} bytes")
    roots = hasher.roots([HashInput(tensor.data, floats=tensor.dtype == DType.F32) for tensor in tensors])
    return [tensor_id(tensor.dtype, tensor.shape, root) for tensor, root in zip(tensors, roots, strict=True)]


class TensorStream:
    """Takes a tensor's data (little-endian, row-major) in pieces of any length and returns its id at the end.

    Any f32 NaN counts as `0x7fc00000`. Bytes of bools are hashed unchanged. The memory is of constant size: the chunk
    tree is cut into subtrees of 4096 chunks, of which only the roots are kept, in a tree with one node per level.
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


def state_leaf(name: str, tensor: bytes) -> Digest:
    """The leaf of a state entry in the state tree."""
    return tagged_hash(Tag.STATE_ENTRY, encode_name(name), tensor)


def data_leaf(name: str, tensor: bytes) -> Digest:
    """The leaf of a data entry in the data tree."""
    return tagged_hash(Tag.DATA_ENTRY, encode_name(name), tensor)


def state_tree(ids: Mapping[str, bytes]) -> Tree:
    """The tree over the entries of a state, ordered by name."""
    return Tree([state_leaf(name, ids[name]) for name in sorted(ids)])


def data_tree(ids: Mapping[str, bytes]) -> Tree:
    """The tree over the entries of a job's data, ordered by name. A job without data has the root of one empty leaf."""
    return Tree([data_leaf(name, ids[name]) for name in sorted(ids)])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The commitment to one step: the state after it, its loss, and its rounding log."""

    step: int
    state_root: Digest
    loss_bits: int
    log_root: Digest = ZERO_DIGEST

    @property
    def digest(self) -> Digest:
        """The record's digest, which is its leaf in the steps tree and in the run tree."""
        return tagged_hash(Tag.STEP_RECORD, self.encode())

    def encode(self) -> bytes:
        """The 76 bytes that are hashed, and stored: u64 step, state root, u32 loss bits, log root."""
        return unsigned(self.step, 8) + self.state_root + unsigned(self.loss_bits, 4) + self.log_root

    @classmethod
    def decode(cls, data: bytes) -> "StepRecord":
        """Inverts `encode`. Raises `EncodingError` for another length."""
        reader = Reader(data)
        step, state_root = reader.unsigned(8), Digest(reader.take(32))
        record = cls(step=step, state_root=state_root, loss_bits=reader.unsigned(4), log_root=Digest(reader.take(32)))
        reader.finish()
        return record


def initial_record(state_root: bytes) -> StepRecord:
    """Record 0: the initial state, with NaN as its loss."""
    return StepRecord(step=0, state_root=Digest(bytes(state_root)), loss_bits=NAN_BITS)


def loss_id(loss_bits: int) -> Digest:
    """The id of the loss value, an f32 of rank 0."""
    return identify(DType.F32, (), loss_bits.to_bytes(4, "little"))


def checkpoint_count(steps: int, interval: int) -> int:
    """Number of checkpoints of a run: the leaves of the run tree."""
    return -(-steps // interval)


def run_tree(records: Sequence[bytes], steps: int, interval: int, *, hasher: Hasher = PLAIN) -> Tree:
    """The run tree of a head whose count is len(records)."""
    return Tree(records, depth_of(checkpoint_count(steps, interval)), hasher=hasher)
