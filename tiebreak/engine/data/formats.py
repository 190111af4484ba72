"""Named tensors in .safetensors files: written whole or not at all, read as exactly what they should be."""

import json
from collections.abc import Collection, Iterator, Mapping, Set
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.data.arrays import MAX_SAFETENSORS_HEADER, ArrayFile, check_bools, safetensors_in
from tiebreak.engine.data.disk import Folder, Stamp, read_exactly, write_whole
from tiebreak.engine.data.elements import Element
from tiebreak.engine.data.mapped import map_array
from tiebreak.engine.data.tensors import PIECE, Spec, memory_of, tensor_bytes
from tiebreak.engine.dtypes import PROTOCOL_DTYPES, TORCH_DTYPES
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.isa import DType


def write_tensors(folder: Folder, name: str, tensors: Mapping[str, Tensor], *, narrow: bool = False) -> None:
    """Writes tensors as one whole safetensors file or nothing, straight from their memory. Raises `StorageError`.

    narrow: whether an f32 tensor whose elements all end in 16 zero bits is written as BF16.
    """
    elements = {
        entry: Element.BF16 if narrow and _is_short(tensor) else Element[PROTOCOL_DTYPES[tensor.dtype].name]
        for entry, tensor in tensors.items()
    }
    kinds = {entry: (elements[entry], tuple(tensor.shape)) for entry, tensor in tensors.items()}
    with folder.replacing(name) as file:
        write_whole(file, memoryview(safetensors_header(kinds)))
        for entry in ordered(kinds):
            if tensors[entry].dtype == torch.bfloat16 or elements[entry] != Element.BF16:
                write_whole(file, tensor_bytes(tensors[entry]))
                continue
            for words in _words(tensors[entry]):
                write_whole(file, memoryview((words >> np.uint32(16)).astype("<u2").view(np.uint8).data))


Kinds = Mapping[str, tuple[Element, tuple[int, ...]]]
"""The element type and the shape of each tensor of a file, by name."""


def ordered(kinds: Kinds) -> list[str]:
    """The names in the order of the file.

    Widest first, which aligns each tensor to its elements; then by name, so that equal tensors give equal files.
    """
    return sorted(kinds, key=lambda name: (-kinds[name][0].size, name))


def safetensors_header(kinds: Kinds) -> bytes:
    """The bytes before the first tensor."""
    described, end = {}, 0
    for name in ordered(kinds):
        (element, shape), start = kinds[name], end
        end += prod(shape) * element.size
        described[name] = {"dtype": element, "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _words(tensor: Tensor) -> Iterator["np.ndarray[Any, np.dtype[np.uint32]]"]:
    """The bits of an f32 tensor as committed, in pieces."""
    words = np.frombuffer(tensor_bytes(tensor), "<u4")
    yield from (words[start : start + PIECE] for start in range(0, words.size, PIECE))


def _is_short(tensor: Tensor) -> bool:
    """Whether a tensor holds f32 numbers that all end in 16 zero bits."""
    if tensor.dtype != torch.float32:
        return tensor.dtype == torch.bfloat16
    return not any((words & np.uint32(0xFFFF)).any() for words in _words(tensor))


def read_tensors(
    folder: Folder, name: str, spec: Spec, *, wanted: Collection[str] | None = None,
    absent: Set[str] = frozenset(), narrow: Collection[str] = (),
) -> dict[str, Tensor]:  # fmt: skip
    """Reads exactly the tensors of `spec`; the header is checked against it before any tensor is made.

    An f32 tensor may be BF16 in the file. wanted: those to read [default: all]. absent: those that the file may lack,
    all or none of them. narrow: those that stay in bfloat16 if they are so in the file. Raises `EncodingError` for a
    file that is missing, truncated or oversized, or that holds other names, dtypes or shapes.
    """
    with folder.reading(name) as (file, stamp):
        entries = _of_spec(folder.path / name, file, stamp, spec, absent=absent, bf16=True)
        tensors = {}
        for entry in [entry for entry in spec if entry in entries and (wanted is None or entry in wanted)]:
            array, (dtype, shape) = entries[entry], spec[entry]
            stays = array.element == Element.BF16 and entry in narrow
            tensors[entry] = torch.empty(shape, dtype=torch.bfloat16 if stays else TORCH_DTYPES[dtype])
            memory = memory_of(tensors[entry])
            file.seek(array.offset)
            if array.element == Element.BF16 and not stays:
                _read_wide(file, array, np.frombuffer(memory, "<u4"))
            else:
                _read_whole(file, array, memory)
            if dtype == DType.BOOL:
                check_bools(array, memory)
    return tensors


def _read_wide(file: FileIO, array: ArrayFile, words: "np.ndarray[Any, np.dtype[np.uint32]]") -> None:
    """Reads BF16 into the bits of f32."""
    short = np.empty(min(PIECE, words.size), "<u2")
    for start in range(0, words.size, PIECE):
        into = words[start : start + PIECE]
        _read_whole(file, array, memoryview(short[: into.size].view(np.uint8).data))
        np.left_shift(short[: into.size], np.uint32(16), out=into, dtype=np.uint32)


def _read_whole(file: FileIO, array: ArrayFile, memory: memoryview) -> None:
    if (found := read_exactly(file, memory)) != len(memory):
        raise EncodingError(f"{array}: expected {len(memory)} bytes, got the end of the file after {found}")


def map_tensors(folder: Folder, name: str, spec: Spec) -> dict[str, Tensor]:
    """Like `read_tensors`, but the tensors stay in the file. Neither may be written to while they are in use."""
    with folder.reading(name) as (file, stamp):
        entries = _of_spec(folder.path / name, file, stamp, spec)
    # SAFETY: each file is opened once more by its path, and refused unless it is still the file of this stamp.
    return {entry: map_array(entries[entry]) for entry in spec}


def _of_spec(
    path: Path, file: FileIO, stamp: Stamp, spec: Spec, *, absent: Set[str] = frozenset(), bf16: bool = False
) -> dict[str, ArrayFile]:
    expected = sum(dtype.size * prod(shape) for dtype, shape in spec.values())
    if stamp.size > expected + MAX_SAFETENSORS_HEADER:
        raise EncodingError(f"{path}: expected about {expected} bytes, got {stamp.size}")
    entries = safetensors_in(path, file, stamp)
    expected_names = spec.keys() if entries.keys() & absent else spec.keys() - absent
    if entries.keys() != expected_names:
        missing, extra = sorted(expected_names - entries.keys()), sorted(entries.keys() - expected_names)
        raise EncodingError(
            f"{path}: expected {len(expected_names)} tensors; missing {missing[:3]}, unexpected {extra[:3]}"
        )
    for name, array in entries.items():
        dtype, shape = spec[name]
        fits = array.element == dtype.name or (bf16 and dtype == DType.F32 and array.element == Element.BF16)
        if not fits or array.shape != shape:
            raise EncodingError(f"{array}: expected {dtype.name} {shape}, got {array.element} {array.shape}")
    return entries
