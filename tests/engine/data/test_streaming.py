"""Ids of tensors that come piece by piece are those of the whole, however they are cut, with the kernel or without."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebreak.engine.data.hashing import hasher
from tiebreak.protocol.commitments.records import SUBTREE_BYTES, TensorData, TensorStream, identify, identify_all
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import DType


def cut(data: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


def streamed(dtype: DType, shape: tuple[int, ...], pieces: Iterator[memoryview]) -> bytes:
    stream = TensorStream(dtype, shape, hasher=hasher(2))
    for piece in pieces:
        stream.update(piece)
    assert stream.identity() == stream.identity()
    return stream.identity()


C, S = CHUNK_BYTES, SUBTREE_BYTES
LENGTHS = (1, 8, C, C + 1, S - 1, S, S + 1, S + 3 * C, 2 * S, 2 * S + C, 3 * S + 5)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_streamed_tensor_id_does_not_depend_on_the_cuts(length: int, cases: Callable[[], None]) -> None:
    data = np.random.default_rng(length).integers(0, 2, length, dtype=np.uint8)
    view = memoryview(data)
    expected = identify(DType.BOOL, (length,), view)
    for sizes in ([], [0], [1], [length // 2], [SUBTREE_BYTES], [SUBTREE_BYTES - 1, 2], [length - 1]):
        assert streamed(DType.BOOL, (length,), cut(view, sizes)) == expected
        cases()


@given(st.integers(1, 2 * SUBTREE_BYTES // 4 + 300), st.lists(st.integers(0, SUBTREE_BYTES + 9), max_size=4))
@settings(max_examples=15)
def test_streamed_ids_canonicalize_nans_under_any_cuts(count: int, sizes: list[int]) -> None:
    words = np.arange(count, dtype=np.uint32) * np.uint32(2654435761)
    words[::97] = 0xFFC00001
    data = memoryview(words.astype("<u4").view(np.uint8).data)
    (expected,) = identify_all([TensorData(dtype=DType.F32, shape=(count,), data=data)])
    assert streamed(DType.F32, (count,), cut(data, sizes)) == expected


def test_streams_with_too_few_or_too_many_bytes_are_refused() -> None:
    stream = TensorStream(DType.I64, (2,))
    stream.update(bytes(15))
    with pytest.raises(EncodingError, match=r"expected 16 bytes for I64 \(2,\), got 15"):
        stream.identity()
    with pytest.raises(EncodingError, match=r"expected 16 bytes for I64 .*, got more"):
        stream.update(bytes(2))
