"""Integers of fewer than 64 bits as data of a job: rows of whole 8-byte words are committed to as they are.

A program has no narrower integer than i64. So an array whose rows fill words becomes an array of words i64 with the
same bytes, on the disk and under the data root, and the step takes its examples apart (`capture.compile`). An
array whose rows do not fill words (labels, tokens) becomes i64, element by element.
"""

from dataclasses import replace
from math import prod
from typing import Final

import torch
from torch import Tensor

from tiebreak.engine.data.elements import Element
from tiebreak.engine.data.mapped import map_array, source_of

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
