"""Ids of tensors on GPUs, hashed where they lie by Triton kernels (`kernels/hashing.py`), so only roots are moved."""

from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tiebreak.engine.arithmetic.gpu.launching import kernels, launch
from tiebreak.engine.data.tensors import widened
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.protocol import hashing, trees
from tiebreak.protocol.commitments.records import tensor_id
from tiebreak.protocol.tags import Digest

OPTIONS: Final[dict[str, Any]] = {"BLOCK": 128, "num_warps": 4, "enable_fp_fusion": False}
"""Lanes of a program, each of which hashes one chunk or node, and the compiler's options."""
_HEIGHTS: Final = 64


def identities(tensors: Mapping[str, Tensor]) -> dict[str, Digest]:
    """The id of each tensor by name; all are on one device. One in bfloat16 is widened, and hashed alone."""
    found = {n: identities({n: widened(x)})[n] for n, x in tensors.items() if x.dtype == torch.bfloat16}
    held = {name: tensor for name, tensor in tensors.items() if name not in found}
    return found | {
        name: tensor_id(PROTOCOL_DTYPES[tensor.dtype], tuple(tensor.shape), root)
        for (name, tensor), root in zip(held.items(), roots([*held.values()]) if held else (), strict=True)
    }


def roots(tensors: Sequence[Tensor]) -> list[bytes]:
    """The roots of the chunk trees of some tensors on one device, none of them empty."""
    device, found = tensors[0].device, kernels("hashing")
    held = [_words(tensor) for tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts, tops = _layout([ceil(size / hashing.CHUNK_BYTES) for size in sizes])
    count, levels = len(tensors), len(starts)
    rows = np.zeros((levels + 4, count + 1), dtype=np.int64)
    rows[:levels] = starts
    rows[levels:, :count] = [data.data_ptr() for data in held], sizes, [t.is_floating_point() for t in tensors], tops
    table = torch.from_numpy(rows).to(device)
    constants, empties = _constants(device)
    digests = torch.empty((int(rows[levels - 1, -1]), 8), dtype=torch.int32, device=device)
    for level in range(levels):
        programs = ceil(int(rows[level, -1] - rows[level, 0]) / OPTIONS["BLOCK"])
        if level == 0:
            launch(
                found.hash_chunks, programs, digests, constants, *table[[0, levels, levels + 1, levels + 2]].unbind(),
                count, count.bit_length(), **OPTIONS,
            )  # fmt: skip
        else:
            launch(
                found.hash_nodes, programs, digests, constants, table[level - 1], table[level], empties[level - 1],
                count, count.bit_length(), **OPTIONS,
            )  # fmt: skip
    words = digests[table[-1, :count]].cpu().numpy()  # the only thing that the host reads, and waits for
    return [row.tobytes() for row in words.astype(">i4")]


def _words(tensor: Tensor) -> Tensor:
    """A tensor's bytes where the kernel can read them: in row-major order, and in whole words."""
    data = tensor.detach().contiguous()
    data = data.as_strided((data.numel(),), (1,)).view(torch.uint8)  # a contiguous tensor of size 1 has any strides
    if data.numel() % 4 == 0 and data.data_ptr() % 4 == 0:
        return data
    return pad(data, (0, -data.numel() % 4 or 4))


def _layout(counts: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """The starts of each tensor's nodes, and the end, at each level, the levels one after the other; and each root."""
    starts, tops, nodes, at = [], [0] * len(counts), list(counts), 0
    while any(nodes):
        row = [at]
        for number, count in enumerate(nodes):
            if count == 1:
                tops[number] = row[-1]
            row.append(row[-1] + count)
        at = row[-1]
        starts.append(row)
        nodes = [0 if count <= 1 else (count + 1) // 2 for count in nodes]
    return starts, tops


@cache
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    """The words of SHA-256, i32 (64,), and the roots of empty trees by height, i32 (heights, 8), on a device."""
    # The words are the first 32 bits of the fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
    primes = (n for n in range(2, 312) if all(n % divisor for divisor in range(2, n)))
    words = np.array([int(n ** (1 / 3) % 1 * 2**32) for n in primes], dtype=np.uint32).view(np.int32)
    empties = b"".join(trees.empty_root(height) for height in range(_HEIGHTS))
    empty = np.frombuffer(empties, dtype=">i4").astype(np.int32)
    return torch.from_numpy(words).to(device), torch.from_numpy(empty.reshape(_HEIGHTS, 8)).to(device)
