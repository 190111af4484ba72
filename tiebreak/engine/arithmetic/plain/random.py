"""`random` and `shuffle` (SPEC section 7) in torch: Philox4x32-10 in integer operations, the same on every device."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tiebreak.engine.arithmetic.plan.chains import first_of
from tiebreak.engine.arithmetic.plan.options import Pieces
from tiebreak.engine.arithmetic.plan.views import View
from tiebreak.protocol.numbers.philox import M0, M1, MASK, ROUNDS, SHUFFLE_MARK, SHUFFLE_ROUNDS, W0, W1, half_width
from tiebreak.protocol.program.isa import Instruction, RandomParams, ShuffleParams

TABLE: Final = 1 << 14
"""Permutations of up to this length are computed whole."""
TABLES: Final = 4
"""A permutation is computed whole if an instruction needs at most this many epochs."""

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor], *, on_host: bool) -> Words:
    """The four words of the blocks at the counters; i64 tensors of unsigned 32-bit values that broadcast."""
    if on_host:
        return _philox_on_host(counter, (int(key[0].item()), int(key[1].item())))
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # An i64 product wraps to the right 64 bits. The shift is arithmetic, so the high word is masked.
        p0, p1 = c0 * M0, c2 * M1
        c0, c1 = (p1 >> 32).bitwise_and_(MASK) ^ c1 ^ k0, p1.bitwise_and_(MASK)
        c2, c3 = (p0 >> 32).bitwise_and_(MASK) ^ c3 ^ k1, p0.bitwise_and_(MASK)
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def _philox_on_host(counter: Words, key: tuple[int, int]) -> Words:
    """`philox` with half the calls: (c0, c2) and (c1, c3) form one array each, and products are unsigned."""
    shape = np.broadcast_shapes(*(tuple(word.shape) for word in counter))
    even, odd, spare = (np.empty((2, *shape), dtype=np.uint64) for _ in range(3))
    even[0], odd[0], even[1], odd[1] = (word.numpy() for word in counter)
    column = (2, *(1 for _ in shape))
    factors, keys = np.array((M0, M1), dtype=np.uint64).reshape(column), np.array(key, dtype=np.uint64)
    steps, mask, half = np.array((W0, W1), dtype=np.uint64), np.uint64(MASK), np.uint64(32)
    for _ in range(ROUNDS):
        np.multiply(even, factors, out=spare)
        np.right_shift(spare, half, out=even)
        odd ^= keys.reshape(column)
        odd ^= even[::-1]
        np.bitwise_and(spare[::-1], mask, out=even)
        even, odd = odd, even
        keys = (keys + steps) & mask
    c0, c1, c2, c3 = (torch.from_numpy(x.view(np.int64)) for x in (even[0], odd[0], even[1], odd[1]))
    return c0, c1, c2, c3


def key_of(seed: Tensor) -> tuple[Tensor, Tensor]:
    """Key words of an i64 seed."""
    return seed & MASK, (seed >> 32) & MASK


def scalar(base: Tensor, offset: int) -> Tensor:
    return base.reshape(-1)[offset : offset + 1]


def random(instruction: Instruction, operands: Sequence[Tensor], pieces: Pieces) -> Tensor:
    """The f32 result of a `random` instruction."""
    assert isinstance(instruction.params, RandomParams)
    seed, step = (scalar(base, a.offset) for base, a in zip(operands, instruction.operands, strict=True))
    before, skip = divmod(first_of(instruction.params), 4)
    blocks = -(-(skip + instruction.numel) // 4)
    key, third = key_of(seed), step & MASK
    fourth = torch.full_like(third, instruction.params.stream)
    words = torch.empty((blocks, 4), dtype=torch.float32, device=seed.device)
    for begin in range(0, blocks, pieces.blocks):
        end = min(begin + pieces.blocks, blocks)
        position = torch.arange(before + begin, before + end, dtype=torch.int64, device=seed.device)
        drawn = philox((position & MASK, position >> 32, third, fourth), key, on_host=pieces.on_host)
        for column, word in enumerate(drawn):
            words[begin:end, column] = (word >> 8).to(torch.float32)
    # 24-bit integers times a power of two: exact.
    return words.view(-1)[skip : skip + instruction.numel].mul(2.0**-24).view(instruction.shape)


def operands_of(shuffle: Instruction, operands: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Positions and epochs of a `shuffle`, each 1-d, and its seed, of one element."""
    index, epoch = (
        View.of_access(shuffle.operands[o], shuffle.shape).on(operands[o]).expand(shuffle.shape).reshape(-1)
        for o in (0, 2)
    )
    return index, epoch, scalar(operands[1], shuffle.operands[1].offset)


class Shuffles:
    """`shuffle` instructions on one device. Small permutations are computed whole, once per epoch, and cached."""

    def __init__(self, *, on_host: bool) -> None:
        self._on_host = on_host
        self._tables: OrderedDict[tuple[int, int, ShuffleParams], Tensor] = OrderedDict()

    def run(self, instruction: Instruction, operands: Sequence[Tensor]) -> Tensor:
        """The i64 result of a `shuffle` instruction."""
        params = instruction.params
        assert isinstance(params, ShuffleParams)
        index, epoch, seed = operands_of(instruction, operands)
        inside = (index >= 0) & (index < params.n)
        x = torch.where(inside, index, 0)
        epochs = torch.unique(epoch).tolist() if params.n <= TABLE else []
        if 0 < len(epochs) <= TABLES:
            drawn = torch.zeros_like(x)
            for each in epochs:
                drawn = torch.where(epoch == each, self._table(seed, each, params)[x], drawn)
        else:
            drawn = self._permute(x, epoch, seed, params)
        return torch.where(inside, drawn, -1).view(instruction.shape)

    def _table(self, seed: Tensor, epoch: int, params: ShuffleParams) -> Tensor:
        key = int(seed.item()), epoch, params
        if key not in self._tables:
            # The network permutes a domain of up to 4 n: one pass over that, and cycles are walked by looking up.
            every = torch.arange(1 << 2 * half_width(params.n), dtype=torch.int64, device=seed.device)
            image = self._network(every, torch.full_like(every, epoch & MASK), key_of(seed), params)
            drawn = image[: params.n]
            while bool((outside := drawn >= params.n).any()):
                drawn = torch.where(outside, image[drawn], drawn)
            self._tables[key] = drawn
            if len(self._tables) > 2 * TABLES:
                self._tables.popitem(last=False)
        return self._tables[key]

    def _permute(self, x: Tensor, epoch: Tensor, seed: Tensor, params: ShuffleParams) -> Tensor:
        """The permutation of x, 0 <= x < n, 1-d."""
        key, third = key_of(seed), epoch & MASK
        x = self._network(x, third, key, params)
        while bool((outside := x >= params.n).any()):  # cycle walking
            at = outside.nonzero().view(-1)
            x[at] = self._network(x[at], third[at], key, params)
        return x

    def _network(self, x: Tensor, epoch: Tensor, key: tuple[Tensor, Tensor], params: ShuffleParams) -> Tensor:
        width = half_width(params.n)
        mask = (1 << width) - 1
        left, right = x >> width, x & mask
        stream = torch.full_like(epoch, params.stream)
        for q in range(SHUFFLE_ROUNDS):
            counter = right, torch.full_like(right, SHUFFLE_MARK + q), epoch, stream
            word = philox(counter, key, on_host=self._on_host)[0]
            left, right = right, left ^ (word & mask)
        return (left << width) | right
