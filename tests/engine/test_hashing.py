"""The compiled hasher against plain Python, byte for byte, around every boundary of chunks, pieces and trees."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol import test_merkle as trees
from tiebreak.engine.data import hashing
from tiebreak.engine.data.hashing import LEAST_NODES, MAX_RECORD_BYTES, HashKernel, agrees, hasher
from tiebreak.protocol.commitments.records import TensorData, identify, identify_all, tensor_tree
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES, PLAIN, Hasher, HashInput, one_nan
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import EMPTY, Tag
from tiebreak.protocol.trees import Tree

SOURCE = Path(hashing.__file__).with_name("hashing.c")
SPAN = 256
"""Chunks of a piece."""


def naive_tree(data: bytes) -> list[list[bytes]]:
    """All levels, by the words of SPEC sections 1 to 3 alone."""

    def sha(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(parts)).digest()

    level = [sha(b"tb.chunk", data[at : at + 512]) for at in range(0, len(data), 512)]
    while len(level) & (len(level) - 1):
        level.append(sha(b"tb.empty"))
    levels = [level]
    while len(levels[-1]) > 1:
        below = levels[-1]
        levels.append([sha(b"tb.node.", below[i], below[i + 1]) for i in range(0, len(below), 2)])
    return levels


def compiled(path: Path) -> HashKernel:
    found = hashing._checked(library) if (library := hashing.build(path).library) else None
    assert found is not None, hashing.build(path).reason
    return found


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[HashKernel]:
    portable = tmp_path_factory.mktemp("portable") / "portable.c"
    portable.write_text("#define PORTABLE 1\n" + SOURCE.read_text())
    found = [compiled(SOURCE), compiled(portable)]
    assert [found[0].span, found[1].span, found[1].implementation] == [SPAN, SPAN, "portable C"]
    return found


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


BOUNDARIES = sorted(
    {max(1, at + d) for at in (0, 48, 56, 64, 504, 512, 1024, 1536, 2048, 32768, SPAN * 512) for d in (-1, 0, 1, 5)}
    | {SPAN * 512 * 2 + 1, SPAN * 512 * 3 - 512, SPAN * 512 * 5 + 2049}
)


def test_compiled_hash_trees_match_python_around_size_boundaries(
    kernels: list[HashKernel], cases: Callable[[], None]
) -> None:
    for size in BOUNDARIES:
        data = noise(size, size)
        expected = naive_tree(data)
        for kernel in kernels:
            assert kernel.roots([HashInput(memoryview(data))], 2) == [expected[-1][0]], size
            level = kernel.leaf_level(HashInput(memoryview(data)), 2)
            assert level == PLAIN.leaf_level(HashInput(memoryview(data))) == b"".join(expected[0])[: len(level)]
            cases()


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 99))
def test_hashing_many_tensors_at_once_matches_python(sizes: list[int], threads: int, seed: int) -> None:
    fast = compiled(SOURCE)
    inputs = [noise(size, seed + n) for n, size in enumerate(sizes)]
    found = fast.roots([HashInput(memoryview(data)) for data in inputs], threads)
    assert found == [naive_tree(data)[-1][0] for data in inputs]


def test_multithreaded_hashing_of_megabytes_matches_python(kernels: list[HashKernel]) -> None:
    data = noise(5 << 20)
    inputs = [data, data[: 3 << 20], data[:4], data[1 << 20 :]]
    views = [HashInput(memoryview(one)) for one in inputs]
    expected = [Tree(PLAIN.leaf_level(view)).root for view in views]
    for threads in (1, 2, 3, 16):
        assert kernels[0].roots(views, threads) == expected
        assert kernels[0].leaf_level(views[0], threads) == PLAIN.leaf_level(views[0])
    assert kernels[1].roots(views, 2) == expected


def test_parent_levels_of_any_count_match_python(kernels: list[HashKernel], cases: Callable[[], None]) -> None:
    for count in (1, 2, 3, 4, 5, 63, 64, 65, 129):
        level = noise(32 * count, count)
        for kernel in kernels:
            assert kernel.parent_level(level, EMPTY) == PLAIN.parent_level(level, EMPTY)
            cases()


def test_record_hashes_of_every_width_match_python(kernels: list[HashKernel], cases: Callable[[], None]) -> None:
    for width in range(1, MAX_RECORD_BYTES + 1):
        data = noise(5 * width, width)
        naive = [hashlib.sha256(b"tb.accum" + data[at : at + width]).digest() for at in range(0, len(data), width)]
        assert PLAIN.record_level(Tag.ACCUMULATOR, data, width) == b"".join(naive)
        for kernel in kernels:
            for count in (0, 1, 2, 5):
                found = kernel.record_level(Tag.ACCUMULATOR, data[: count * width], width)
                assert found == b"".join(naive[:count])
        cases()
    for size, width in ((112, 112), (0, 0), (5, 2)):
        with pytest.raises(ValueError, match=f"1 to 111 bytes, got {size} bytes of records of {width}"):
            kernels[0].record_level(Tag.ACCUMULATOR, bytes(size), width)


NANS = (0x7F800001, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF)
NUMBERS = (0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x80000000, 1, 0x80000001, 0)


def test_every_nan_is_hashed_as_the_canonical_nan_at_any_position(
    kernels: list[HashKernel], cases: Callable[[], None]
) -> None:
    size = 3 * CHUNK_BYTES + 40
    clean = np.frombuffer(noise(size), dtype="<u4") & 0xBFFFFFFF  # no exponent of all ones
    for place in (0, 1, 2, 13, 14, 15, 125, 126, 127, 128, 255, 256, 383, 384, 393):
        for bits in (*NANS, *NUMBERS):
            words = clean.copy()
            words[place] = bits
            wanted = words.copy()
            wanted[place] = 0x7FC00000 if bits in NANS else bits
            expected, view = naive_tree(wanted.tobytes())[-1][0], memoryview(words.tobytes())
            assert one_nan(view).tobytes() == wanted.tobytes()
            for kernel in kernels:
                assert kernel.roots([HashInput(view, floats=True)], 1) == [expected], (place, hex(bits))
                assert kernel.roots([HashInput(view)], 1) == [naive_tree(words.tobytes())[-1][0]]
            cases()


@pytest.mark.slow
def test_a_faulty_hash_kernel_is_refused(tmp_path: Path, cases: Callable[[], None]) -> None:
    for number, (right, wrong) in enumerate(
        {
            "0x428a2f98": "0x428a2f99",  # a constant of SHA-256
            "x = 0x7fc00000": "x = 0x7fc00001",
            "empties + h * DIGEST": "empties",
            "message[j][length] = 0x80": "message[j][length] = 0x81",
        }.items()
    ):
        path = tmp_path / f"wrong{number}.c"
        text = SOURCE.read_text()
        assert right in text
        path.write_text(text.replace(right, wrong))
        library = hashing.build(path).library
        assert library is not None
        assert hashing._checked(library) is None
        cases()
    assert agrees(compiled(SOURCE))


def test_the_compiled_hasher_is_used_and_can_be_disabled(
    monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]
) -> None:
    assert hashing.kernel() is not None, "expected a C compiler"
    tensors = [
        TensorData(dtype=DType.F32, shape=(5, 1000), data=memoryview(noise(20000))),
        TensorData(dtype=DType.F32, shape=(), data=memoryview(struct.pack("<I", 0xFFC00001))),
        TensorData(dtype=DType.I64, shape=(3,), data=memoryview(b"\xff" * 24)),
        TensorData(dtype=DType.BOOL, shape=(3000,), data=memoryview(b"\1" * 3000)),
    ]
    data, leaves = noise(300_000), [noise(32, n) for n in range(200)]

    def digests(by: Hasher) -> list[bytes]:
        records = by.record_level(Tag.ACCUMULATOR, data, 48), by.record_level(Tag.ACCUMULATOR, data, 200)
        trees = tensor_tree(data, hasher=by).root, Tree(leaves, hasher=by).root
        return [*identify_all(tensors, hasher=by), *trees, *records]

    used = digests(hasher(2))
    assert used == digests(PLAIN)
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    assert hashing.kernel() is None
    assert hasher() is PLAIN
    for tensor, found in zip(tensors, used, strict=False):
        data = one_nan(tensor.data) if tensor.dtype == DType.F32 else tensor.data
        assert found == identify(tensor.dtype, tensor.shape, data)
        cases()


def test_tensor_bytes_that_do_not_match_the_shape_are_refused() -> None:
    for shape, size in (((2,), 4), ((), 8), ((0,), 0)):
        with pytest.raises(EncodingError, match="F32"):
            identify_all([TensorData(dtype=DType.F32, shape=shape, data=memoryview(bytes(size)))])


@given(st.integers(2 * LEAST_NODES - 3, 4 * LEAST_NODES + 3), st.integers(0, 9), st.sampled_from([PLAIN, hasher()]))
def test_wide_merkle_trees_equal_the_naive_construction(count: int, seed: int, by: Hasher) -> None:
    leaves = [hashlib.sha256(bytes([seed]) + n.to_bytes(2, "big")).digest() for n in range(count)]
    tree = Tree(leaves, hasher=by)
    naive = trees.naive_root(trees.padded(leaves, tree.depth))
    assert tree.root == naive == Tree(b"".join(leaves), hasher=by).root
    assert Tree(leaves, 12).proof(count - 1)[tree.depth :] == [trees.empty_root(h) for h in range(tree.depth, 12)]
