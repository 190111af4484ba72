"""Random numbers as a function of position (SPEC section 7): Philox4x32-10 (Salmon et al. 2011) and a keyed shuffle."""

from functools import lru_cache
from typing import Final

from tiebreak.protocol.numbers.float32 import round_f32

Block = tuple[int, int, int, int]

M0: Final = 0xD2511F53
M1: Final = 0xCD9E8D57
W0: Final = 0x9E3779B9
W1: Final = 0xBB67AE85
MASK: Final = 0xFFFFFFFF
ROUNDS: Final = 10
SHUFFLE_ROUNDS: Final = 8
SHUFFLE_MARK: Final = 1 << 31
"""Second counter word of shuffle blocks. `random` cannot reach it, since 2^40 elements / 4 / 2^32 < 2^31."""


@lru_cache(maxsize=16)  # neighbouring elements share a block
def philox4x32(counter: Block, key: tuple[int, int]) -> Block:
    """The block of four 32-bit words at a counter, with the constants and rounds of Random123."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = divmod(M0 * c0, 1 << 32)
        high1, low1 = divmod(M1 * c2, 1 << 32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def key_of(seed: int) -> tuple[int, int]:
    """The key for an i64 seed."""
    return seed & MASK, seed >> 32 & MASK


def random_bits(seed: int, step: int, stream: int, index: int) -> int:
    """f32 bits of element `index` of a `random` instruction: a multiple of 2^-24 in [0, 1)."""
    block = index // 4
    words = philox4x32((block & MASK, block >> 32 & MASK, step & MASK, stream), key_of(seed))
    return round_f32(words[index % 4] >> 8, -24)


def half_width(n: int) -> int:
    """Number of bits in each half of the Feistel network for a permutation of 0 ... n-1."""
    return max(1, ((n - 1).bit_length() + 1) // 2)


def shuffle(index: int, seed: int, epoch: int, n: int, stream: int, *, inverse: bool = False) -> int:
    """The image of `index` under the permutation of 0 ... n-1 keyed by (seed, epoch, stream); -1 if it is out of range.

    A Feistel network permutes 0 ... 4^w - 1 >= n, so following its cycle from an index below n returns below n. 4^w is
    at most 4n (8 for n = 1 or 2), so few steps are expected. inverse: returns the index whose image is given instead,
    by the rounds in reverse on swapped halves.
    """
    if not 0 <= index < n:
        return -1
    width = half_width(n)
    mask = (1 << width) - 1
    key = key_of(seed)
    x = index
    while True:
        left, right = (x & mask, x >> width) if inverse else (x >> width, x & mask)
        for q in reversed(range(SHUFFLE_ROUNDS)) if inverse else range(SHUFFLE_ROUNDS):
            left, right = right, left ^ philox4x32((right, SHUFFLE_MARK + q, epoch & MASK, stream), key)[0] & mask
        x = right << width | left if inverse else left << width | right
        if x < n:
            return x
