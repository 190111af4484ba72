"""Converts array files of any element type to the two of a job, block by block."""

from collections.abc import Mapping

from tiebreak.api.datasets.folder import Import, OnBytes
from tiebreak.engine.data import ArrayFile


def import_arrays(made: Import, arrays: Mapping[str, ArrayFile], on_bytes: OnBytes) -> None:
    """Writes each array as float32 or int64 (see `data.elements`). An array of rank 0 becomes one of shape [1]."""
    for name, array in arrays.items():
        writer = made.array(name, array.element.converted, array.shape[1:])
        for block in array.blocks():
            writer.extend(array.element.convert(array.element.read(block, big_endian=array.big_endian)))
            on_bytes(len(block))
