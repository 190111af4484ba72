"""Proofs about the data of a run: openings of rows, the steps that read them, and rows that are absent. Needs no torch.

The proofs are those of `tiebreak.protocol.commitments.data_proofs`; docs/data.md says what each shows, and what not.
"""

from bisect import bisect
from collections.abc import Iterator
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path

from tiebreak.api.training.settings import TUNING
from tiebreak.engine.data.arrays import open_safetensors, safetensors_in
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.run.directory import DATA, RunDirectory, check_root
from tiebreak.protocol.commitments.data_proofs import INDEX_ENDS, DataPart, DataProof
from tiebreak.protocol.commitments.records import data_tree, identify, tensor_id
from tiebreak.protocol.errors import ConfigurationError, EncodingError, own_file
from tiebreak.protocol.hashing import HashInput
from tiebreak.protocol.program.example_order import example_order
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.trees import Tree, hidden_nodes


class JobData:
    """The data of a run, mapped, and compared with the job's data root."""

    def __init__(self, run: RunDirectory) -> None:
        """Hashes all data. Raises `VerificationError` if they are not the job's."""
        self.run, self.spec, path = run, run.program.data_spec(), run.path / DATA
        self.order, self.elements = example_order(run.program)
        with run.folder() as folder, folder.reading(DATA) as (file, stamp):
            arrays, self._file = safetensors_in(path, file, stamp), mmap(file.fileno(), 0, access=ACCESS_READ)
        if {name: (array.committed, array.shape) for name, array in arrays.items()} != self.spec:
            raise EncodingError(f"{path}: expected the entries of the program, got others")
        self._at = {name: range(one.offset, one.offset + one.nbytes) for name, one in arrays.items()}
        self._views = {name: memoryview(self._file)[one.start : one.stop] for name, one in self._at.items()}
        inputs = {name: HashInput(self._views[name], dtype == DType.F32) for name, (dtype, _) in self.spec.items()}
        self._trees = {name: Tree(hasher().leaf_level(one), hasher=hasher()) for name, one in inputs.items()}
        self._ids = {name: tensor_id(*self.spec[name], tree.root) for name, tree in self._trees.items()}
        check_root(str(path), run.job.data_root, data_tree(self._ids).root)

    def _opened(self, name: str, first: int, count: int) -> DataPart:
        fields = list(self.spec).index(name), name.encode(), *self.spec[name], first, count
        return DataPart.of(self._trees[name], self._views[name], *fields)

    def _rows(self, name: str) -> list[memoryview]:
        """The bytes of an entry in each row."""
        (first, stride, count), size, view = self.elements[name], self.spec[name][0].size, self._views[name]
        starts = range(first * size, len(view) - count * size + 1, stride * size)
        return [view[at : at + count * size] for at in starts]

    @own_file()
    def values(self, path: Path) -> tuple[str, bytes]:
        """The entry and the bytes of the one array in a .safetensors file. Raises `ConfigurationError` for others."""
        arrays = open_safetensors(path)
        name, size = ", ".join(arrays), sum(one.nbytes for one in arrays.values())
        wrong = name not in self.elements or arrays[name].committed != self.spec[name][0]
        if wrong or not 0 < size <= len(self._views[name]):
            wanted = ", ".join(f"{name} ({self.spec[name][0].name})" for name in self.elements)
            raise ConfigurationError(f"{path}: expected one array, of values of {wanted}, got {name}")
        return name, b"".join(map(bytes, arrays[name].blocks()))

    @property
    def count(self) -> int:
        """The number of rows that examples are read from, so that of the shortest entry."""
        return min(len(self._rows(name)) for name in self.elements)

    def windows(self, name: str) -> bool:
        """Whether a row of an entry is a window, such as of packed text: what a row has may go on in the next one."""
        shape = self.spec[name][1]
        return len(self._rows(name)) != shape[0] or (len(shape) == 2 and (self.run.path / TUNING).exists())

    def places(self, values: Path) -> Iterator[tuple[range, DataPart | None]]:
        """The rows of each place where values stand one after the other; of windows, with these elements opened."""
        name, wanted = self.values(values)
        (first, stride, count), size, inside = self.elements[name], self.spec[name][0].size, self._at[name]
        found, length, windows, last = inside.start - 1, len(wanted) // size, self.windows(name), self.count
        while (found := self._file.find(wanted, found + 1, inside.stop)) >= 0:
            at, rest = divmod(found - inside.start, size)
            rows = range(max(0, (at - first - count) // stride + 1), min(last, (at - first + length - 1) // stride + 1))
            if not rest and (windows or len(rows) == 1):
                yield rows, self._opened(name, at, length) if windows else None

    def find(self, row: int | None, values: Path | None) -> tuple[range, DataPart | None]:
        """The row of a number, or the first place of `places`."""
        found = range(row, row + 1) if row is not None and row < self.count else range(0)
        place = (found, None) if values is None else next(self.places(values), (found, None))
        if not place[0]:
            raise ConfigurationError(f"expected --row or --values of one of {self.count:,} rows, got {row}")
        return place

    def prove(self, row: int, span: DataPart | None = None) -> DataProof:
        """Opens a row under the data root: its elements in each entry, with the digests that lead to the root.

        span: instead of these, elements that `find` opened.
        """
        parts = (self._opened(name, at + row * stride, count) for name, (at, stride, count) in self.elements.items())
        return DataProof.of(self._ids, *([span] if span else parts))

    def exposure(self, row: int) -> list[dict[str, int]]:
        """The reads of a row in all steps of the job."""
        seed = int.from_bytes(self._views[self.order.seed], "little", signed=True) if self.order.seed else 0
        listed = self._views[self.order.listed].cast("q") if self.order.listed else ()
        reads = self.order.reads(row, self.run.job.steps, seed, listed)
        return [{"step": step, "epoch": epoch, "place": place} for step, epoch, place in reads]

    def row_ids(self) -> list[bytes]:
        """A digest of each row, over all entries."""
        rows = zip(*(self._rows(name) for name in self.elements), strict=False)
        return [sha256(b"".join(row)).digest() for row in rows]

    def index(self, name: str) -> list[bytes]:
        """The index of an entry's rows. Raises `ConfigurationError` for rows that are not examples."""
        dtype, shape = self.spec[name]
        if self.windows(name):
            raise ConfigurationError(
                f"expected an entry whose rows are examples, got {name} with windows of packed text: a text may stand "
                "across two of them, so that the absence of a window says nothing about a text"
            )
        roots = hasher().roots([HashInput(row, dtype == DType.F32) for row in self._rows(name)])
        return [INDEX_ENDS[0], *sorted(tensor_id(dtype, shape[1:], root) for root in roots), INDEX_ENDS[1]]

    @own_file()
    def absent(self, values: Path) -> DataProof:
        """The proof that no row of an entry is these values. Raises `ConfigurationError` if one is."""
        name, missing = self.values(values)
        index, (dtype, shape) = self.index(name), self.spec[name]
        if (row := identify(dtype, shape[1:], missing)) in index:
            (found, *_), _ = self.find(None, values)
            raise ConfigurationError(f"{values}: expected values of no row, got those of row {found}")
        at = bisect(index, row) - 1
        nodes = tuple(hidden_nodes(Tree(index), len(index), (at, at + 1)))
        return DataProof.of(
            self._ids, self._opened(name, 0, 0), missing=missing, at=at, neighbours=tuple(index[at : at + 2]),
            index_nodes=nodes,
        )  # fmt: skip

    def check_index(self, proof: DataProof) -> None:
        """Raises `VerificationError` unless the index of a proof of absence is that of these data."""
        name = proof.parts[0].name.decode()
        check_root(f"index of {name}", Tree(self.index(name)).root, proof.index_root)
