"""Philox4x32-10 in 32-bit integers, and `shuffle` on GPUs in one launch (SPEC section 7)."""

import triton
import triton.language as tl


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    """The four words of the blocks at some counters; all are u32 tensors of one shape."""
    for _ in range(10):
        high0, high1 = tl.umulhi(c0, c0 * 0 + 0xD2511F53), tl.umulhi(c2, c2 * 0 + 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, c2 * 0xCD9E8D57, high0 ^ c3 ^ k1, c0 * 0xD2511F53
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def network(x, epoch, stream, k0, k1, width):
    """The Feistel network on numbers of twice `width` bits, i64."""
    mask, zero = (x * 0 + 1 << width) - 1, (x * 0).to(tl.uint32)
    left, right = x >> width, x & mask
    for q in range(8):
        word, _, _, _ = philox(right.to(tl.uint32), zero + 0x80000000 + q, epoch, zero + stream, k0, k1)
        left, right = right, left ^ (word.to(tl.int64) & mask)
    return (left << width) | right


@triton.jit(do_not_specialize=["stream", "n", "width", "count"])
def permute(out, index, epoch, seed, stream, n, width, count, BLOCK: tl.constexpr):
    """Where the permutations of 0 ... n - 1 take each index; -1 outside."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(index + at, mask=at < count, other=-1)
    inside = (x >= 0) & (x < n)
    zero, key = (at * 0).to(tl.uint32), tl.load(seed)
    third = tl.load(epoch + at, mask=inside, other=0).to(tl.uint32)
    k0, k1, fourth = zero + key.to(tl.uint32), zero + (key >> 32).to(tl.uint32), stream.to(tl.uint32)
    x = network(tl.where(inside, x, 0), third, fourth, k0, k1, width)
    while tl.max((inside & (x >= n)).to(tl.int32), 0) > 0:  # cycle walking
        x = tl.where(x >= n, network(x, third, fourth, k0, k1, width), x)
    tl.store(out + at, tl.where(inside, x, -1), mask=at < count)
