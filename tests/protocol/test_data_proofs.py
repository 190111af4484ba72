"""Proofs about a job's data: what holds is accepted, and nothing false is, however a proof is changed."""

import random
import tracemalloc
import zlib
from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.protocol.commitments import data_proofs
from tiebreak.protocol.commitments.data_proofs import INDEX_ENDS, MAX_PROOF_BYTES, DataPart, DataProof
from tiebreak.protocol.commitments.records import data_tree, identify, tensor_tree
from tiebreak.protocol.errors import EncodingError, ProofError, VerificationError
from tiebreak.protocol.packing import pack
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.trees import Tree, hidden_nodes

NUMPY = {DType.F32: "<f4", DType.I64: "<i8", DType.BOOL: "u1"}
KINDS = {np.dtype(text): dtype for dtype, text in NUMPY.items()}


class Entries:
    """Data of a job in memory, and proofs about them."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = {name: arrays[name] for name in sorted(arrays)}
        self.ids = {name: identify(KINDS[a.dtype], a.shape, a.tobytes()) for name, a in self.arrays.items()}
        self.root = data_tree(self.ids).root, len(arrays)

    def part(self, name: str, first: int, count: int) -> DataPart:
        array = self.arrays[name]
        data, place = array.tobytes(), list(self.arrays).index(name)
        fields = place, name.encode(), KINDS[array.dtype], array.shape, first, count
        return DataPart.of(tensor_tree(data), memoryview(data), *fields)

    def row(self, row: int, *names: str) -> DataProof:
        sizes = {name: self.arrays[name][0].size for name in names}
        return DataProof.of(self.ids, *(self.part(name, row * size, size) for name, size in sizes.items()))

    def index(self, name: str, without: int | None = None) -> list[bytes]:
        rows = [row for number, row in enumerate(self.arrays[name]) if number != without]
        ids = sorted(identify(KINDS[row.dtype], row.shape, row.tobytes()) for row in rows)
        return [INDEX_ENDS[0], *ids, INDEX_ENDS[1]]

    def absent(self, name: str, missing: Any, index: list[bytes] | None = None, at: int | None = None) -> DataProof:
        index = self.index(name) if index is None else index
        place = (
            bisect(index, identify(KINDS[missing.dtype], missing.shape, missing.tobytes())) - 1 if at is None else at
        )
        return DataProof.of(
            self.ids, self.part(name, 0, 0), missing=missing.tobytes(), at=place,
            neighbours=tuple(index[place : place + 2]),
            index_nodes=tuple(hidden_nodes(Tree(index), len(index), (place, place + 1))),
        )  # fmt: skip

    def is_true(self, proof: DataProof) -> bool:
        """Whether what a proof says is so, by the arrays themselves."""
        names = [part.name.decode("latin-1") for part in proof.parts]
        if not {*names} <= {*self.arrays}:
            return False
        arrays = [self.arrays[name] for name in names]
        shapes = [(part.dtype, part.shape) for part in proof.parts]
        if shapes != [(KINDS[array.dtype], array.shape) for array in arrays]:
            return False
        if proof.neighbours:  # whoever knows the root of the index is not deceived by another one
            lacks = all(row.tobytes() != proof.missing for row in arrays[0])
            return lacks or proof.index_root != Tree(self.index(names[0])).root
        shown = zip(proof.parts, arrays, strict=True)
        return all(p.elements == a.reshape(-1)[p.first : p.first + p.count].tobytes() for p, a in shown)


def entries() -> Entries:
    """Windows of tokens with labels, small rows that share chunks, and what no row is of."""
    drawn = np.random.default_rng(1)
    ids = drawn.integers(0, 32_000, (37, 128))
    return Entries(
        input_ids=ids, labels=np.where(np.arange(128) < 60, -100, ids), x=drawn.standard_normal((37, 9), "f4"),
        flag=drawn.integers(0, 2, 37).astype("u1"), seed=np.array(7), table=drawn.standard_normal(1000, "f4"),
    )  # fmt: skip


ENTRIES = entries()


def missing(name: str) -> Any:
    """A row of an entry that differs from row 5 in one element."""
    found = ENTRIES.arrays[name][5].copy()
    found[3] += 1
    return found


@given(st.sampled_from([*NUMPY]), st.lists(st.integers(1, 40), min_size=1, max_size=3), st.data())
def test_elements_of_any_tensor_are_opened_and_read_back(dtype: DType, shape: list[int], data: st.DataObject) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(NUMPY[dtype])
    array = array % 2 if dtype == DType.BOOL else array
    made = Entries(a=array, b=np.zeros(3, "f4"))
    first = data.draw(st.integers(0, array.size - 1))
    count = data.draw(st.integers(1, array.size - first))
    proof = DataProof.of(made.ids, made.part("a", first, count), made.part("b", 1, 2))
    read = DataProof.decode(proof.encode())
    read.check(*made.root)
    assert (read, read.parts[0].elements) == (proof, array.reshape(-1)[first : first + count].tobytes())
    assert made.is_true(read)


def test_a_row_that_fills_its_chunks_shows_no_other_and_one_that_does_not_says_so() -> None:
    proof = ENTRIES.row(11, "flag", "input_ids", "labels", "x")
    proof.check(*ENTRIES.root)
    assert {part.row for part in proof.parts} == {11}
    assert [part.also for part in proof.parts] == ["parts of rows 0 to 36", "", "", "parts of rows 0 to 14"]
    alone = ENTRIES.row(11, "input_ids", "labels").encode()
    assert len(alone) <= 2000
    assert all(ENTRIES.arrays["input_ids"][n].tobytes() not in zlib.decompress(alone) for n in range(37) if n != 11)


@pytest.mark.parametrize("row", [0, 5, 36])
def test_the_absence_of_a_row_is_proven_and_that_of_a_present_one_is_not(row: int) -> None:
    proof = DataProof.decode(ENTRIES.absent("x", missing("x")).encode())
    proof.check(*ENTRIES.root)
    assert proof.index_root == Tree(ENTRIES.index("x")).root
    present = ENTRIES.arrays["x"][row]
    for at in range(len(ENTRIES.index("x")) - 1):
        with pytest.raises(ProofError, match="expected ids around"):
            ENTRIES.absent("x", present, at=at).check(*ENTRIES.root)
    assert ENTRIES.absent("x", present, index=ENTRIES.index("x", without=row)).index_root != proof.index_root


@pytest.mark.parametrize("at", [39, 40, 63, 64, 1 << 30])
def test_neighbours_outside_the_index_prove_nothing(at: int) -> None:
    """All nodes of the true index, which hang together without them."""
    index = ENTRIES.index("x")
    whole = tuple(hidden_nodes(Tree(index), len(index), ()))
    false = replace(ENTRIES.absent("x", ENTRIES.arrays["x"][5], at=3), neighbours=INDEX_ENDS, index_nodes=whole, at=at)
    with pytest.raises(ProofError, match="expected places below 39"):
        false.check(*ENTRIES.root)


@pytest.mark.parametrize("count", [1, 2, 5, 7, 8, 1 << 20])
def test_the_number_of_entries_is_the_jobs(count: int) -> None:
    with pytest.raises(VerificationError):
        ENTRIES.row(3, "x").check(ENTRIES.root[0], count)


def test_an_index_that_hides_a_row_has_another_root() -> None:
    """With an id in the place of the hidden one, such a proof holds; only the root of the true index tells."""
    index = ENTRIES.index("x", without=5)
    false = ENTRIES.absent("x", ENTRIES.arrays["x"][5], index=sorted([*index, bytes([1] * 32)]))
    false.check(*ENTRIES.root)
    assert false.index_root != Tree(ENTRIES.index("x")).root


NAN = ENTRIES.arrays["x"][5].copy()
NAN.view("<u4")[2] = 0x7FC00001
ROW, TOKENS, ABSENCE = ENTRIES.row(3, "x"), ENTRIES.row(3, "input_ids", "labels"), ENTRIES.absent("x", missing("x"))
WRONG: dict[str, tuple[DataProof, str]] = {
    "two rows": (replace(TOKENS, parts=(TOKENS.parts[0], ENTRIES.row(5, "labels").parts[0])), "parts of one row"),
    "descending": (replace(TOKENS, parts=TOKENS.parts[::-1]), "ascending places"),
    "one part twice": (replace(ROW, parts=ROW.parts * 2), "ascending places"),
    "no part": (replace(ROW, parts=()), "ascending places"),
    "nothing shown": (replace(ABSENCE, neighbours=(), missing=b"", at=0, index_nodes=()), "elements of all parts"),
    "another's row": (replace(ROW, missing=b"x"), "elements of all parts"),
    "another's index": (replace(ROW, index_nodes=ABSENCE.index_nodes), "elements of all parts"),
    "a place in no index": (replace(ROW, at=1), "elements of all parts"),
    "shown and absent": (replace(ABSENCE, parts=ROW.parts, nodes=ROW.nodes), "elements of all parts"),
    "of no rows": (
        replace(DataProof.of(ENTRIES.ids, ENTRIES.part("seed", 0, 0)), neighbours=INDEX_ENDS, missing=bytes(8)),
        "elements of all parts",
    ),
    "another NaN": (ENTRIES.absent("x", NAN), "NaN as 0x7fc00000 only"),
    "a bool of 2": (replace(ENTRIES.absent("flag", np.array(1, "u1"), at=0), missing=b"\2"), "bools of 0 or 1"),
    "a node too many": (replace(ROW, nodes=(*ROW.nodes, ROW.nodes[0])), r"expected \d nodes, got \d"),
    "a node too few": (replace(ROW, nodes=ROW.nodes[:-1]), "expected a node at height"),
}  # fmt: skip


@pytest.mark.parametrize(("proof", "words"), WRONG.values(), ids=WRONG)
def test_each_rule_refuses_what_only_it_can(proof: DataProof, words: str) -> None:
    with pytest.raises(VerificationError, match=words):
        DataProof.decode(proof.encode()).check(*ENTRIES.root)


def changed(proof: DataProof, draw: random.Random) -> DataProof:
    """A proof with one change of those that a forger has."""
    other = ENTRIES.row(draw.randrange(37), draw.choice(["input_ids", "labels", "x"]))
    if not proof.parts:
        return replace(proof, parts=other.parts)
    number = draw.randrange(len(proof.parts))
    part = proof.parts[number]

    def flipped(data: bytes) -> bytes:
        at, found = draw.randrange(max(1, len(data))), bytearray(data or b"\0")
        found[at] ^= 1 << draw.randrange(8)
        return bytes(found)

    def nodes(found: tuple[bytes, ...]) -> tuple[bytes, ...]:
        at, made = draw.randrange(max(1, len(found))), list(found) or [bytes(32)]
        return tuple(draw.choice([
            [*made[:at], flipped(made[at]), *made[at + 1 :]], made[::-1], made[1:], [*made, made[0]], [*other.nodes],
        ]))  # fmt: skip

    fields: list[dict[str, Any]] = [
        {"data": flipped(part.data)}, {"data": other.parts[0].data}, {"nodes": nodes(part.nodes)},
        {"first": draw.randrange(40 * 128)}, {"count": draw.randrange(200)}, {"place": draw.randrange(8)},
        {"name": draw.choice([b"x", b"labels", b"", b"\n", b"input_ids"])}, {"dtype": draw.choice(list(DType))},
        {"shape": draw.choice([(37 * 128,), (128, 37), (37, 64, 2), (1, 37, 128), (36, 128), (), (37, 9), (333,)])},
        {"first": part.first + draw.choice([-64, 64, 9, -9]), "count": part.count},
    ]  # fmt: skip
    whole: list[dict[str, Any]] = [
        {"nodes": nodes(proof.nodes)}, {"parts": proof.parts[::-1]},
        {"parts": (*proof.parts[1:], other.parts[0])}, {"parts": proof.parts[1:]}, {"parts": other.parts},
        {"missing": flipped(proof.missing)}, {"at": draw.randrange(45)}, {"index_nodes": nodes(proof.index_nodes)},
        {"missing": ENTRIES.arrays["x"][draw.randrange(37)].tobytes()},
        {"neighbours": tuple(draw.sample(ENTRIES.index("x"), 2))}, {"neighbours": proof.neighbours[1:]},
    ]  # fmt: skip
    if draw.random() < 0.6:
        return replace(
            proof, parts=(*proof.parts[:number], replace(part, **draw.choice(fields)), *proof.parts[number + 1 :])
        )
    return replace(proof, **draw.choice(whole))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda n: ENTRIES.row(n, *(["input_ids", "labels"] if n % 2 else ["flag", "x"])),
        lambda n: ENTRIES.absent("x", missing("x") + np.float32(n)),
    ],
    ids=["row", "absence"],
)
def test_a_thousand_forged_proofs_are_refused_and_what_is_accepted_is_true(
    make: Callable[[int], DataProof], cases: Callable[..., None]
) -> None:
    draw, refused = random.Random(5), 0
    honest = [make(n) for n in range(12)]
    while refused < 1000:
        proof = draw.choice(honest)
        try:
            for _ in range(draw.choice([1, 1, 2, 3])):
                proof = changed(proof, draw)
            forged = DataProof.decode(proof.encode())
            forged.check(*ENTRIES.root)
        except VerificationError:
            refused += 1
            continue
        assert ENTRIES.is_true(forged)
        cases()  # it was changed into a proof of something else that is so
    cases(refused)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_proof_or_refused(data: bytes) -> None:
    for content in (data, zlib.compress(data)):
        with pytest.raises(EncodingError):
            DataProof.decode(content)


FIELDS = pack(ENTRIES.row(3, "x").pack())
HOSTILE = {
    "a bomb": zlib.compress(bytes(16 * MAX_PROOF_BYTES)),
    "more after the end": ENTRIES.row(3, "x").encode() + b"x",
    "half": ENTRIES.row(3, "x").encode()[:-3],
    "too large": zlib.compress(random.Random(1).randbytes(MAX_PROOF_BYTES + 1), 0),
    "nested": zlib.compress(b"\x91" * 100_000 + b"\xc0"),
    "a later version": zlib.compress(pack([9, 1])),
    "no fields": zlib.compress(pack([1])),
    "another field": zlib.compress(pack([1, 1, 2])),
    "a map": zlib.compress(b"\x92\x01\x80"),
    "a count for 2^32 items": zlib.compress(b"\x92\x01\xdd\xff\xff\xff\xff"),
    "an integer beyond 64 bits": zlib.compress(b"\x92\x01\xcf" + b"\xff" * 9),
    "a longer form": zlib.compress(b"\x92\xcc\x01" + FIELDS),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_before_they_take_memory(content: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(EncodingError):
        DataProof.decode(content)
    assert tracemalloc.get_traced_memory()[1] < 6 * MAX_PROOF_BYTES
    tracemalloc.stop()


@pytest.mark.parametrize(
    "shape",
    [(1 << 40,), (1 << 40,) * 8, (2,) * 9, (0, 128), (1 << 41,), (1 << 39, 4)],
    ids=lambda shape: str(shape)[:30],
)
def test_huge_shapes_cost_nothing_and_lead_nowhere(shape: tuple[int, ...]) -> None:
    proof = ENTRIES.row(3, "input_ids")
    part = [*proof.parts[0].pack()]
    part[list(DataPart.kinds()).index("shape")] = shape
    fields = [*proof.pack()]
    fields[list(DataProof.kinds()).index("parts")] = (tuple(part),)
    with pytest.raises(VerificationError):
        DataProof.decode(zlib.compress(pack([1, tuple(fields)]))).check(*ENTRIES.root)


def test_a_version_is_in_every_proof() -> None:
    assert zlib.decompress(ENTRIES.row(0, "x").encode())[1] == data_proofs.VERSION
