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
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.protocol.commitments.records import tensor_id
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import empty_root

OPTIONS: Final[dict[str, Any]] = {"BLOCK": 128, "num_warps": 4, "enable_fp_fusion": False}
"""Lanes of a program, each of which hashes one chunk or node, and the compiler's options."""
_HEIGHTS: Final = 64
_CONSTANTS: Final = bytes.fromhex(
    "428a2f98 71374491 b5c0fbcf e9b5dba5 3956c25b 59f111f1 923f82a4 ab1c5ed5 d807aa98 12835b01 243185be 550c7dc3"
    "72be5d74 80deb1fe 9bdc06a7 c19bf174 e49b69c1 efbe4786 0fc19dc6 240ca1cc 2de92c6f 4a7484aa 5cb0a9dc 76f988da"
    "983e5152 a831c66d b00327c8 bf597fc7 c6e00bf3 d5a79147 06ca6351 14292967 27b70a85 2e1b2138 4d2c6dfc 53380d13"
    "650a7354 766a0abb 81c2c92e 92722c85 a2bfe8a1 a81a664b c24b8b70 c76c51a3 d192e819 d6990624 f40e3585 106aa070"
    "19a4c116 1e376c08 2748774c 34b0bcb5 391c0cb3 4ed8aa4a 5b9cca4f 682e6ff3 748f82ee 78a5636f 84c87814 8cc70208"
    "90befffa a4506ceb bef9a3f7 c67178f2"
)
"""The constants of SHA-256 (FIPS 180-4, 4.2.2) as big-endian words."""


def identities(tensors: Mapping[str, Tensor]) -> dict[str, Digest]:
    """The id of each tensor by name; all are on one device."""
    return {
        name: tensor_id(PROTOCOL_DTYPES[tensor.dtype], tuple(tensor.shape), root)
        for (name, tensor), root in zip(tensors.items(), roots([*tensors.values()]), strict=True)
    }


def roots(tensors: Sequence[Tensor]) -> list[bytes]:
    """The roots of the chunk trees of some tensors on one device, none of them empty."""
    device, found = tensors[0].device, kernels("hashing")
    held = [_words(tensor) for tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    starts, tops = _layout([ceil(size / CHUNK_BYTES) for size in sizes])
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
    empties = b"".join(empty_root(height) for height in range(_HEIGHTS))
    words, empty = (np.frombuffer(data, dtype=">i4").astype(np.int32) for data in (_CONSTANTS, empties))
    return torch.from_numpy(words).to(device), torch.from_numpy(empty.reshape(_HEIGHTS, 8)).to(device)
