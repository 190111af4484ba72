"""Arrays as tensors of a job's data: on mapped files, and narrow integers as whole words.

Only the scattered reads of training use a mapping; a pass over a whole array reads it in blocks (`arrays`). The mapping
is shared and read-only. Whatever its size, it takes no memory of its own, because the system may drop its pages at any
time. Writing into such a tensor ends the process, and so does reading a part that was cut off the file.

A program has no narrower integer than i64. So an array of narrower integers whose rows fill words becomes an array of
words i64 with the same bytes, on the disk and under the data root, and the step takes its examples apart. One whose
rows do not fill words (labels, tokens) becomes i64, element by element.
"""

import mmap
import warnings
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tiebreak.engine.data.arrays import ArrayFile, check_bools
from tiebreak.engine.data.elements import Element
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType


def map_array(array: ArrayFile) -> Tensor:
    """The array as a tensor on the mapped file: float32, int64, a narrower integer or bool.

    Only bools are read at once, to check them. The tensor must not be written to. Raises `ConfigurationError` for
    elements that have to be converted first, `StateError` if the file has changed, and `EncodingError` for bools other
    than 0 and 1.
    """
    usable = array.element.mapped and not array.big_endian
    if not usable or array.offset % array.element.size:
        got = "elements that are not aligned" if usable else f"{'big-endian ' * array.big_endian}{array.element}"
        raise ConfigurationError(
            f"{array}: expected little-endian F32, I64, I32, I16, I8, U8 or BOOL, got {got}; convert it with "
            "`tiebreak data import`"
        )
    if array.committed == DType.BOOL:
        for block in array.blocks():
            check_bools(array, block)
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    with array.opened() as file:
        length = array.offset - start + array.nbytes
        mapping = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
    elements = np.frombuffer(mapping, array.element.numpy, prod(array.shape), array.offset - start)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # it is read-only, on purpose
        tensor = torch.from_numpy(elements.reshape(array.shape))
    if array.committed == DType.BOOL:
        tensor = tensor.view(torch.bool)
    _SOURCES[tensor] = array
    return tensor


_SOURCES: Final = WeakTensorKeyDictionary()


def source_of(tensor: Tensor) -> ArrayFile | None:
    """The array behind a mapped tensor, if the tensor is the whole array; otherwise None."""
    found = _SOURCES.get(tensor)  # type: ignore[no-untyped-call]
    assert found is None or isinstance(found, ArrayFile)
    return found


def check_unchanged(tensors: Iterable[Tensor]) -> None:
    """Raises `StateError` if the file of a mapped tensor was written to since it was opened.

    Results computed from it since may belong to another run, so none of them may be signed.
    """
    arrays = {array.path: array for tensor in tensors if (array := source_of(tensor)) is not None}
    for array in arrays.values():
        with array.opened():
            pass


NARROW: Final = (torch.uint8, torch.int8, torch.int16, torch.int32)
_WORD: Final = 8
"""The bytes of an i64."""


def fills_words(array: Tensor) -> bool:
    """Whether an array of narrow integers has rows of whole words."""
    return array.dtype in NARROW and array.ndim > 1 and prod(array.shape[1:]) * array.element_size() % _WORD == 0


def words_of(array: Tensor) -> tuple[int, int]:
    """The shape of such an array's words: rows, and words of a row."""
    return array.shape[0], prod(array.shape[1:]) * array.element_size() // _WORD


def stored(array: Tensor) -> Tensor:
    """The array as data of a job: words i64 [N, words of a row], i64, or the array itself if it is not narrow.

    A mapped array that begins at a multiple of 8 bytes stays in its file.
    """
    if array.dtype not in NARROW:
        return array
    if not fills_words(array):
        return array.to(torch.int64)
    if (source := source_of(array)) is not None and source.offset % _WORD == 0:
        return map_array(replace(source, element=Element.I64, shape=words_of(array)))
    # A copy begins at a multiple of 64 bytes, as torch allocates; a view of the user's memory may not.
    return array.contiguous().clone().flatten().view(torch.int64).view(words_of(array))
