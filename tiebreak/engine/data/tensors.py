"""Torch tensors as the protocol's bytes: row-major, little-endian, with one canonical NaN."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.data.elements import Element
from tiebreak.engine.data.hashing import hasher
from tiebreak.engine.dtypes import PROTOCOL_DTYPES, TORCH_DTYPES
from tiebreak.protocol.commitments.records import TensorData, TensorStream, identify_all
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.hashing import PLAIN, one_nan
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest

_INTEGERS: Final = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
PIECE: Final = 1 << 22
"""The number of elements that are widened or narrowed at once."""

Spec = Mapping[str, tuple[DType, tuple[int, ...]]]
"""Dtype and shape by name."""


def canonical(tensor: Tensor) -> Tensor:
    """The tensor with every NaN, whatever its payload, replaced by the canonical one. Copies only if there is a NaN."""
    # A sum with a NaN in it is NaN, so one pass without writing usually suffices. Infinities may give NaN as well, so
    # the elements are examined if the sum is NaN.
    if tensor.dtype not in _INTEGERS or not bool(torch.isnan(tensor.sum())):
        return tensor
    nan = torch.isnan(tensor)
    if not bool(nan.any()):
        return tensor
    bits, nan_bits = tensor.contiguous().view(_INTEGERS[tensor.dtype]), NAN_BITS >> (32 - 8 * tensor.itemsize)
    return torch.where(nan, torch.tensor(nan_bits, dtype=bits.dtype, device=tensor.device), bits).view(tensor.dtype)


def widened(tensor: Tensor) -> Tensor:
    """The f32 numbers, bit for bit, of a tensor that holds them in bfloat16; any other tensor as it is."""
    return tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor


def memory_of(tensor: Tensor) -> memoryview:
    """The tensor's own bytes, without changing NaN: a view of its memory if it is contiguous and on the CPU."""
    host = tensor.detach().to("cpu").contiguous()
    array = (host.view(torch.int16) if host.dtype == torch.bfloat16 else host).numpy()
    if array.dtype.byteorder == ">":  # pragma: no cover - no supported device is big-endian
        array = array.astype(array.dtype.newbyteorder("<"))
    return memoryview(array.reshape(-1).view(np.uint8).data)


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The tensor's data as committed; a view of its memory where possible."""
    # With numpy alone: beside the main thread, torch would start threads of its own.
    data = memory_of(tensor)
    if tensor.dtype != torch.float32:
        return data
    with np.errstate(all="ignore"):
        total = np.frombuffer(data, dtype="<f4").sum()
    return one_nan(data) if np.isnan(total) else data


def from_bytes(data: bytes, dtype: DType, shape: Sequence[int]) -> Tensor:
    """The inverse of `tensor_bytes`.

    Refuses wrong lengths, bools other than 0 and 1, and NaN other than the canonical one.
    """
    expected = prod(shape) * dtype.size
    if len(data) != expected:
        raise EncodingError(f"expected {expected} bytes for {dtype.name} {tuple(shape)}, got {len(data)}")
    array = np.frombuffer(data, dtype=Element[dtype.name].numpy).reshape(tuple(shape)).copy()
    if dtype == DType.BOOL:
        if array.max() > 1:
            raise EncodingError(f"expected bools of 0 and 1, got {int(array.max())}")
        return torch.from_numpy(array).to(torch.bool)
    if dtype == DType.F32 and bool(((array != array) & (array.view("<u4") != NAN_BITS)).any()):
        raise EncodingError(f"expected NaN as {NAN_BITS:#x} only, got another pattern")
    return torch.from_numpy(array)


def identity(tensor: Tensor) -> Digest:
    return identities({"": tensor})[""]


def identities(tensors: Mapping[str, Tensor], *, compiled: bool = True) -> dict[str, Digest]:
    """The id of each tensor by name. They are hashed together, by as many threads as torch has, or in Python.

    One that is held in bfloat16 is hashed as the f32 numbers that it stands for, piece by piece.
    """
    entries = {
        name: TensorData(dtype=PROTOCOL_DTYPES[tensor.dtype], shape=tuple(tensor.shape), data=memory_of(tensor))
        for name, tensor in tensors.items()
        if tensor.dtype != torch.bfloat16
    }
    hashing = hasher(torch.get_num_threads()) if compiled else PLAIN
    ids = dict(zip(entries, identify_all([*entries.values()], hasher=hashing), strict=True))
    for name in tensors.keys() - ids.keys():
        stream = TensorStream(DType.F32, tensors[name].shape, hasher=hashing)
        flat = tensors[name].reshape(-1)
        for start in range(0, flat.numel(), PIECE):
            stream.update(memory_of(widened(flat[start : start + PIECE])))
        ids[name] = stream.identity()
    return {name: ids[name] for name in tensors}


def check_spec(what: str, tensors: Mapping[str, Tensor], spec: Spec, *, narrow: bool = False) -> None:
    """Raises `EncodingError` unless names, dtypes and shapes are those of `spec`, and bools are 0 or 1.

    narrow: whether f32 tensors may be held in bfloat16.
    Torch loads any byte as a bool, but no proof may open a value other than 0 or 1 (SPEC section 9).
    """
    if sorted(tensors) != sorted(spec):
        missing, extra = sorted(set(spec) - set(tensors)), sorted(set(tensors) - set(spec))
        raise EncodingError(f"{what}: expected {len(spec)} entries; missing {missing[:3]}, unexpected {extra[:3]}")
    for name, (dtype, shape) in spec.items():
        tensor = tensors[name]
        held = torch.float32 if narrow and tensor.dtype == torch.bfloat16 else tensor.dtype
        if held != TORCH_DTYPES[dtype] or tuple(tensor.shape) != shape:
            raise EncodingError(
                f"{what}, {name}: expected {dtype.name} {shape}, got {tensor.dtype} {tuple(tensor.shape)}"
            )
        if tensor.dtype == torch.bool and int(tensor.view(torch.uint8).max()) > 1:
            raise EncodingError(f"{what}, {name}: expected bools of 0 and 1, got another byte")
