"""Reuses the memory of large results: fresh memory costs a page fault for every 4 KiB.

A buffer returns to the pool when the last tensor over it dies, regardless of who holds that tensor or which thread
drops it, so callers need not know about the pool. A buffer that was not used during a whole step is freed.
"""

import weakref
from collections import deque
from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

SMALL: Final = 1 << 18
"""Below this many bytes the allocator itself reuses memory."""
_ALIGNMENT: Final = 64

Block = npt.NDArray[np.uint8]


class Buffers:
    """A pool of CPU memory, by exact size. One thread at a time may take buffers; any thread may return them."""

    def __init__(self) -> None:
        self._idle: dict[int, deque[tuple[int, Block]]] = {}
        self._lent: dict[int, tuple[weakref.ref[Block], Block]] = {}
        self._step = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous CPU tensor of undefined contents."""
        size = prod(shape) * dtype.itemsize
        if size < SMALL:
            return torch.empty(tuple(shape), dtype=dtype)
        idle = self._idle.setdefault(size, deque())
        block = idle.pop()[1] if idle else np.empty(size + _ALIGNMENT, dtype=np.uint8)
        start = -block.ctypes.data % _ALIGNMENT
        lease = block[start : start + size]
        tensor = torch.from_numpy(lease)  # holds `lease`, and so do all views of it
        self._lend(size, block, lease)
        return tensor.view(dtype).view(tuple(shape))

    def _lend(self, size: int, block: Block, lease: Block) -> None:
        key = id(lease)
        idle, lent = self._idle[size], self._lent

        def returned(_: weakref.ref[Block]) -> None:
            lent.pop(key, None)
            idle.append((self._step, block))

        lent[key] = weakref.ref(lease, returned), block

    def end_step(self) -> None:
        """Frees the buffers that have been idle since before the step that now ends."""
        for idle in self._idle.values():
            for _ in range(len(idle)):
                since, block = idle.popleft()
                if since >= self._step:
                    idle.append((since, block))
        self._step += 1
