"""`random` and `shuffle` (SPEC section 7): Philox4x32-10 in numpy on the host, whatever the device.

Kernels draw in chains, and GPUs with Triton have a kernel for `shuffle`; where they do not, few numbers are drawn here.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tiebreak.engine.arithmetic.plan.chains import first_of
from tiebreak.engine.arithmetic.plan.views import View
from tiebreak.protocol.numbers.philox import M0, M1, MASK, ROUNDS, SHUFFLE_MARK, SHUFFLE_ROUNDS, W0, W1, half_width
from tiebreak.protocol.program.isa import Instruction, RandomParams, ShuffleParams

TABLE: Final = 1 << 14
"""Permutations of up to this length are computed whole."""
TABLES: Final = 4
"""A permutation is computed whole if an instruction needs at most this many epochs."""
BLOCKS: Final = 1 << 14
"""The most blocks, of four u32 words each, drawn at once: they stay in a CPU's cache."""

Words = NDArray[np.uint64]


def philox(counter: Sequence[Words | int], seed: int) -> tuple[Words, Words, Words, Words]:
    """The four words of the blocks at the counters; u64 arrays of 32-bit values that broadcast.

    (c0, c2) and (c1, c3) form one array each, which halves the calls.
    """
    shape = np.broadcast_shapes(*(np.shape(word) for word in counter))
    even, odd, spare = (np.empty((2, *shape), dtype=np.uint64) for _ in range(3))
    even[0], odd[0], even[1], odd[1] = counter
    column = (2, *(1 for _ in shape))
    factors = np.array((M0, M1), dtype=np.uint64).reshape(column)
    keys = np.array((seed & MASK, seed >> 32 & MASK), np.uint64)
    steps, mask, half = np.array((W0, W1), dtype=np.uint64), np.uint64(MASK), np.uint64(32)
    for _ in range(ROUNDS):
        np.multiply(even, factors, out=spare)
        np.right_shift(spare, half, out=even)
        odd ^= keys.reshape(column)
        odd ^= even[::-1]
        np.bitwise_and(spare[::-1], mask, out=even)
        even, odd = odd, even
        keys = (keys + steps) & mask
    return even[0], odd[0], even[1], odd[1]


def scalar(base: Tensor, offset: int) -> Tensor:
    return base.reshape(-1)[offset : offset + 1]


def random(instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
    """The f32 result of a `random` instruction."""
    assert isinstance(instruction.params, RandomParams)
    seed, step = (int(scalar(base, a.offset)) for base, a in zip(operands, instruction.operands, strict=True))
    before, skip = divmod(first_of(instruction.params), 4)
    blocks = -(-(skip + instruction.numel) // 4)
    words = np.empty((blocks, 4), dtype=np.float32)
    for begin in range(0, blocks, BLOCKS):
        end = min(begin + BLOCKS, blocks)
        position = np.arange(before + begin, before + end, dtype=np.uint64)
        counter = position & np.uint64(MASK), position >> np.uint64(32), step & MASK, instruction.params.stream
        words[begin:end] = np.stack(philox(counter, seed), 1) >> np.uint64(8)
    # 24-bit integers times a power of two: exact.
    drawn = torch.from_numpy(words.reshape(-1)[skip : skip + instruction.numel] * np.float32(2.0**-24))
    return drawn.view(instruction.shape).to(operands[0].device)


def operands_of(shuffle: Instruction, operands: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Positions and epochs of a `shuffle`, each 1-d, and its seed, of one element."""
    index, epoch = (
        View.of_access(shuffle.operands[o], shuffle.shape).on(operands[o]).expand(shuffle.shape).reshape(-1)
        for o in (0, 2)
    )
    return index, epoch, scalar(operands[1], shuffle.operands[1].offset)


class Shuffles:
    """`shuffle` instructions. Small permutations are computed whole, once per epoch, and cached."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[int, int, ShuffleParams], Words] = OrderedDict()

    def run(self, instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
        """The i64 result of a `shuffle` instruction."""
        params = instruction.params
        assert isinstance(params, ShuffleParams)
        index, epoch, seed = (x.cpu().numpy() for x in operands_of(instruction, operands))
        inside = (index >= 0) & (index < params.n)
        x = np.where(inside, index, 0).astype(np.uint64)
        epochs = np.unique(epoch).tolist() if params.n <= TABLE else []
        if 0 < len(epochs) <= TABLES:
            drawn = np.zeros_like(x)
            for each in epochs:
                drawn = np.where(epoch == each, self._table(int(seed[0]), each, params)[x], drawn)
        else:
            third = (epoch & MASK).astype(np.uint64)
            drawn = _network(x, third, int(seed[0]), params)
            while len(at := (drawn >= params.n).nonzero()[0]):  # cycle walking
                drawn[at] = _network(drawn[at], third[at], int(seed[0]), params)
        found = torch.from_numpy(np.where(inside, drawn.astype(np.int64), -1))
        return found.view(instruction.shape).to(operands[0].device)

    def _table(self, seed: int, epoch: int, params: ShuffleParams) -> Words:
        key = seed, epoch, params
        if key not in self._tables:
            # The network permutes a domain of up to 4 n: one pass over that, and cycles are walked by looking up.
            image = _network(np.arange(1 << 2 * half_width(params.n), dtype=np.uint64), epoch & MASK, seed, params)
            drawn = image[: params.n]
            while (outside := drawn >= params.n).any():
                drawn = np.where(outside, image[drawn], drawn)
            self._tables[key] = drawn
            if len(self._tables) > 2 * TABLES:
                self._tables.popitem(last=False)
        return self._tables[key]


def _network(x: Words, epoch: Words | int, seed: int, params: ShuffleParams) -> Words:
    """One pass of the Feistel network over a domain of up to 4 n; epoch: its lower 32 bits."""
    width = np.uint64(half_width(params.n))
    mask = (np.uint64(1) << width) - np.uint64(1)
    left, right = x >> width, x & mask
    for q in range(SHUFFLE_ROUNDS):
        left, right = right, left ^ (philox((right, SHUFFLE_MARK + q, epoch, params.stream), seed)[0] & mask)
    return (left << width) | right
