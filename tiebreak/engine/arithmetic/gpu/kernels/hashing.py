"""SHA-256 of chunk trees on GPUs (SPEC sections 1 to 3): the Triton twin of `tiebreak/engine/data/hashing.c`.

A lane hashes one chunk, or one inner node, in 32-bit integers. The trees of all tensors grow together, one launch a
level. A digest is eight words i32; its bytes are theirs, each big-endian.
"""

import triton
import triton.language as tl

INITIAL: tl.constexpr = tl.constexpr((
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
))  # fmt: skip
CHUNK_TAG: tl.constexpr = tl.constexpr((0x74622E63, 0x68756E6B))
NODE_TAG: tl.constexpr = tl.constexpr((0x74622E6E, 0x6F64652E))


@triton.jit
def begin(zero):
    state = ()
    for i in tl.static_range(8):
        state = state + (zero + INITIAL[i],)
    return state


@triton.jit
def compress(state, w, constants):
    """The state after one block, of 16 words (FIPS 180-4, 6.2.2), in 16 passes of 4 rounds."""
    a, b, c, d, e, f, g, h = state
    for first in range(0, 64, 4):
        for t in tl.static_range(4):
            x = h + (g ^ (e & (f ^ g))) + tl.load(constants + (first + t)).to(tl.uint32, bitcast=True) + w[0]
            x += (e >> 6 | e << 26) ^ (e >> 11 | e << 21) ^ (e >> 25 | e << 7)
            y = (a >> 2 | a << 30) ^ (a >> 13 | a << 19) ^ (a >> 22 | a << 10)
            a, b, c, d, e, f, g, h = x + y + ((a & b) | (c & (a | b))), a, b, c, d + x, e, f, g
            x, y = w[1], w[14]  # of the word 16 rounds on
            x = w[0] + ((x >> 7 | x << 25) ^ (x >> 18 | x << 14) ^ (x >> 3))
            w = w[1:] + (x + w[9] + ((y >> 17 | y << 15) ^ (y >> 19 | y << 13) ^ (y >> 10)),)
    return (
        state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e, state[5] + f, state[6] + g, state[7] + h,
    )  # fmt: skip


@triton.jit
def owners(starts, places, tensors, steps):
    """The tensor of each place: the last whose start is not above it."""
    low, high = places * 0, places * 0 + tensors
    for _ in range(steps):
        middle = (low + high) >> 1
        above = tl.load(starts + middle) <= places
        low, high = tl.where(above, middle, low), tl.where(above, high, middle)
    return low


@triton.jit
def word_of(data, at, size, floats):
    """The big-endian word of a message at byte `at` of its data: data, then one bit, then zeros."""
    x = tl.load(data + at // 4, mask=(at >= 0) & (at < size), other=0).to(tl.uint32, bitcast=True)
    x = tl.where(floats & ((x & 0x7FFFFFFF) > 0x7F800000), 0x7FC00000, x)
    x = (x >> 24) | ((x >> 8) & 0xFF00) | ((x << 8) & 0xFF0000) | (x << 24)
    past = size - at
    end = tl.where((past >= 0) & (past < 4), (x * 0 + 0x80000000) >> ((past & 3) * 8).to(tl.uint32), x * 0)
    return x | end


@triton.jit(do_not_specialize=["tensors", "steps"])
def hash_chunks(digests, constants, starts, addresses, sizes, floats, tensors, steps, BLOCK: tl.constexpr):
    """The digests of the chunks of all tensors; chunk n of a tensor goes to its start + n.

    A tensor has sizes[t] bytes from addresses[t] on, a multiple of 4 bytes, padded with zeros to such a multiple.
    floats[t]: whether every NaN counts as the one NaN.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.load(starts + tensors)
    owner = owners(starts, place, tensors, steps)
    begins = (place - tl.load(starts + owner)) * 512
    size = tl.where(inside, tl.minimum(tl.load(sizes + owner) - begins, 512), 0).to(tl.int32)
    data = (tl.load(addresses + owner) + begins).to(tl.pointer_type(tl.int32), bitcast=True)
    canonical = tl.load(floats + owner) != 0
    blocks = (size + (8 + 1 + 8 + 63)) // 64  # tag, data, a bit, length
    state = begin((size * 0).to(tl.uint32))
    for block in range(tl.max(blocks, 0)):
        w = ()
        for i in tl.static_range(16):
            x = word_of(data, block * 64 + (4 * i - 8), size, canonical)
            if i < 2:
                x = tl.where(block == 0, CHUNK_TAG[i], x)
            if i == 15:
                x = x | tl.where(block == blocks - 1, 8 * (size + 8), 0).to(tl.uint32)
            w = w + (x,)
        after = compress(state, w, constants)
        kept = ()
        for i in tl.static_range(8):
            kept = kept + (tl.where(block < blocks, after[i], state[i]),)
        state = kept
    for i in tl.static_range(8):
        tl.store(digests + place * 8 + i, state[i].to(tl.int32, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["tensors", "steps"])
def hash_nodes(digests, constants, below, starts, empty, tensors, steps, BLOCK: tl.constexpr):
    """One level of the trees of all tensors, from the level below.

    below and starts: where each tensor's nodes of either level start in `digests`, and where the level ends. empty:
    the digest, eight words, that an odd last node is paired with.
    """
    place = tl.load(starts) + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.load(starts + tensors)
    owner = owners(starts, place, tensors, steps)
    left = tl.load(below + owner) + 2 * (place - tl.load(starts + owner))
    paired = inside & (left + 1 < tl.load(below + owner + 1))
    zero = (place * 0).to(tl.uint32)
    w = (zero + NODE_TAG[0], zero + NODE_TAG[1])
    for i in tl.static_range(8):
        w = w + (tl.load(digests + left * 8 + i, mask=inside, other=0).to(tl.uint32, bitcast=True),)
    for i in tl.static_range(8):
        x = tl.load(digests + left * 8 + (8 + i), mask=paired, other=0)
        w = w + (tl.where(paired, x, tl.load(empty + i)).to(tl.uint32, bitcast=True),)
    rest = w[16:] + (zero + 0x80000000,)
    for _ in tl.static_range(12):
        rest = rest + (zero,)
    state = compress(begin(zero), w[:16], constants)
    state = compress(state, rest + (zero + 8 * (8 + 64),), constants)
    for i in tl.static_range(8):
        tl.store(digests + place * 8 + i, state[i].to(tl.int32, bitcast=True), mask=inside)
