"""Named tensors in .safetensors files: written whole or not at all, read as exactly what they should be."""

import json
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from tiebreak.engine.data.arrays import MAX_SAFETENSORS_HEADER, safetensors_in
from tiebreak.engine.data.disk import Folder, Stamp, read_exactly, write_whole
from tiebreak.engine.data.files import ArrayFile, check_bools
from tiebreak.engine.data.mapped import map_array
from tiebreak.engine.data.tensors import Spec, memory_of, tensor_bytes
from tiebreak.engine.dtypes import PROTOCOL_DTYPES, TORCH_DTYPES
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.isa import DType


def write_tensors(folder: Folder, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors as one whole safetensors file or nothing, straight from their memory. Raises `StorageError`."""
    # Widest first, which aligns each tensor to its elements; then by name, so that equal tensors give equal files.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    described, end = {}, 0
    for entry in order:
        tensor, start = tensors[entry], end
        end += tensor.numel() * tensor.element_size()
        dtype = PROTOCOL_DTYPES[tensor.dtype].name
        described[entry] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with folder.replacing(name) as file:
        write_whole(file, memoryview(len(header).to_bytes(8, "little") + header))
        for entry in order:
            write_whole(file, tensor_bytes(tensors[entry]))


Empty = Callable[[Sequence[int], torch.dtype], Tensor]
"""(shape, dtype) -> a contiguous tensor of undefined contents."""


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor in memory of its own."""
    return torch.empty(tuple(shape), dtype=dtype)


def read_tensors(folder: Folder, name: str, spec: Spec, empty: Empty = fresh) -> dict[str, Tensor]:
    """Reads exactly the tensors of `spec`; the header is checked against it before any tensor is made.

    empty: makes the tensors into which the file is read. Raises `EncodingError` for a file that is missing, truncated
    or oversized, or that holds other names, dtypes or shapes.
    """
    with folder.reading(name) as (file, stamp):
        entries = _of_spec(folder.path / name, file, stamp, spec)
        tensors = {}
        for entry, (dtype, shape) in spec.items():
            array, tensors[entry] = entries[entry], empty(shape, TORCH_DTYPES[dtype])
            memory = memory_of(tensors[entry])
            file.seek(array.offset)
            if (found := read_exactly(file, memory)) != len(memory):
                raise EncodingError(f"{array}: expected {len(memory)} bytes, got the end of the file after {found}")
            if dtype == DType.BOOL:
                check_bools(array, memory)
    return tensors


def map_tensors(folder: Folder, name: str, spec: Spec) -> dict[str, Tensor]:
    """Like `read_tensors`, but the tensors stay in the file. Neither may be written to while they are in use."""
    with folder.reading(name) as (file, stamp):
        entries = _of_spec(folder.path / name, file, stamp, spec)
    # SAFETY: each file is opened once more by its path, and refused unless it is still the file of this stamp.
    return {entry: map_array(entries[entry]) for entry in spec}


def _of_spec(path: Path, file: FileIO, stamp: Stamp, spec: Spec) -> dict[str, ArrayFile]:
    expected = sum(dtype.size * prod(shape) for dtype, shape in spec.values())
    if stamp.size > expected + MAX_SAFETENSORS_HEADER:
        raise EncodingError(f"{path}: expected about {expected} bytes, got {stamp.size}")
    entries = safetensors_in(path, file, stamp)
    if entries.keys() != spec.keys():
        missing, extra = sorted(set(spec) - set(entries)), sorted(set(entries) - set(spec))
        raise EncodingError(f"{path}: expected {len(spec)} tensors; missing {missing[:3]}, unexpected {extra[:3]}")
    for name, (dtype, shape) in spec.items():
        array = entries[name]
        if (array.element, array.shape) != (dtype.name, shape):
            raise EncodingError(f"{array}: expected {dtype.name} {shape}, got {array.element} {array.shape}")
    return entries
