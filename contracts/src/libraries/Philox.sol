// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Float32} from "./Float32.sol";

/// @title Random numbers as a function of position (SPEC section 7): Philox4x32-10 and a keyed shuffle
/// @notice A shuffle walks a cycle of a permutation of 0 ... 4^w - 1 until it is below n, and 4^w < 4n but for n <= 2
/// (4 elements): each walk ends it with a probability of more than 1/4. How often it walks has no limit here, and needs
/// none. It is never more than 4^w - n + 1 times; and if the eight rounds are as good as a random permutation, it is
/// more than k times with a probability below (3/4)^k. A walk takes about 9,000 gas, so that 1,000 walks fit into one
/// transaction (EIP-7825: 2^24 gas); of all 2^208 choices of n, index, seed, epoch and stream, the chance that there
/// is one that takes more is below 2^208 · (3/4)^1000 < 2^-207. No leaf is beyond proof, whoever chose the seed.
library Philox {
    uint256 private constant MASK = 0xffffffff;
    uint256 private constant MASK64 = 0xffffffffffffffff;
    uint256 private constant ROUNDS = 8;
    /// Second counter word of a shuffle's blocks; `random` cannot reach it (2^40 elements / 4 / 2^32 < 2^31).
    uint256 private constant SHUFFLE_MARK = 1 << 31;

    /// @dev The block of four 32-bit words at a counter of words below 2^32; key = the seed as u64.
    /// Ten rounds (c0, c1, c2, c3) <- (high(p1) ^ c1 ^ k0, low(p1), high(p0) ^ c3 ^ k1, low(p0)) with p0 = c0 · M0 and
    /// p1 = c2 · M1, written out two by two so that no word moves. What is kept is wider than 32 bits where the next
    /// round cuts it anyway: whole products in place of their low halves, and round keys as sums that do not wrap.
    function block_(uint256 c0, uint256 c1, uint256 c2, uint256 c3, uint256 key)
        internal
        pure
        returns (uint256 w0, uint256 w1, uint256 w2, uint256 w3)
    {
        assembly ("memory-safe") {
            let high := shr(32, key)
            let p0 := mul(c0, 0xd2511f53)
            let p1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, p1), c1), key), 0xffffffff)
            c2 := and(xor(xor(shr(32, p0), c3), high), 0xffffffff)
            c3 := mul(c0, 0xd2511f53)
            c1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, c1), p1), add(key, 0x9e3779b9)), 0xffffffff)
            c2 := and(xor(xor(shr(32, c3), p0), add(high, 0xbb67ae85)), 0xffffffff)
            p0 := mul(c0, 0xd2511f53)
            p1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, p1), c1), add(key, 0x13c6ef372)), 0xffffffff)
            c2 := and(xor(xor(shr(32, p0), c3), add(high, 0x176cf5d0a)), 0xffffffff)
            c3 := mul(c0, 0xd2511f53)
            c1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, c1), p1), add(key, 0x1daa66d2b)), 0xffffffff)
            c2 := and(xor(xor(shr(32, c3), p0), add(high, 0x232370b8f)), 0xffffffff)
            p0 := mul(c0, 0xd2511f53)
            p1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, p1), c1), add(key, 0x278dde6e4)), 0xffffffff)
            c2 := and(xor(xor(shr(32, p0), c3), add(high, 0x2ed9eba14)), 0xffffffff)
            c3 := mul(c0, 0xd2511f53)
            c1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, c1), p1), add(key, 0x31715609d)), 0xffffffff)
            c2 := and(xor(xor(shr(32, c3), p0), add(high, 0x3a9066899)), 0xffffffff)
            p0 := mul(c0, 0xd2511f53)
            p1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, p1), c1), add(key, 0x3b54cda56)), 0xffffffff)
            c2 := and(xor(xor(shr(32, p0), c3), add(high, 0x4646e171e)), 0xffffffff)
            c3 := mul(c0, 0xd2511f53)
            c1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, c1), p1), add(key, 0x45384540f)), 0xffffffff)
            c2 := and(xor(xor(shr(32, c3), p0), add(high, 0x51fd5c5a3)), 0xffffffff)
            p0 := mul(c0, 0xd2511f53)
            p1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, p1), c1), add(key, 0x4f1bbcdc8)), 0xffffffff)
            c2 := and(xor(xor(shr(32, p0), c3), add(high, 0x5db3d7428)), 0xffffffff)
            c3 := mul(c0, 0xd2511f53)
            c1 := mul(c2, 0xcd9e8d57)
            c0 := and(xor(xor(shr(32, c1), p1), add(key, 0x58ff34781)), 0xffffffff)
            c2 := and(xor(xor(shr(32, c3), p0), add(high, 0x696a522ad)), 0xffffffff)
            w0 := c0
            w1 := and(c1, 0xffffffff)
            w2 := c2
            w3 := and(c3, 0xffffffff)
        }
    }

    /// @dev f32 bits of element `index` < 2^40 of a `random`: a multiple of 2^-24 in [0, 1). i64s as two's complement.
    function random(uint256 seed, uint256 step, uint256 stream, uint256 index) internal pure returns (uint256) {
        (uint256 w0, uint256 w1, uint256 w2, uint256 w3) =
            block_((index >> 2) & MASK, index >> 34, step & MASK, stream, seed & MASK64);
        uint256 word = index & 3;
        word = word < 2 ? (word == 0 ? w0 : w1) : (word == 2 ? w2 : w3);
        return Float32.round(false, word >> 8, -24);
    }

    /// @dev Where the permutation of 0 ... n-1 takes `index`, in two's complement; -1 outside. n <= 2^64.
    function shuffle(uint256 index, uint256 seed, uint256 epoch, uint256 n, uint256 stream)
        internal
        pure
        returns (uint256)
    {
        index &= MASK64;
        // A negative index is above any n <= 2^40, and outside as well.
        if (index >= n || index >> 63 != 0) return MASK64;
        (seed, epoch) = (seed & MASK64, epoch & MASK);
        unchecked {
            uint256 width = (Float32.bitLength(n - 1) + 1) / 2;
            if (width == 0) width = 1;
            do {
                index = _permute(index, width, seed, epoch, stream);
            } while (index >= n);
        }
        return index;
    }

    /// @dev Eight Feistel rounds over halves of `width` <= 32 bits.
    function _permute(uint256 x, uint256 width, uint256 seed, uint256 epoch, uint256 stream)
        private
        pure
        returns (uint256)
    {
        unchecked {
            uint256 mask = (1 << width) - 1;
            (uint256 left, uint256 right) = (x >> width, x & mask);
            for (uint256 q = SHUFFLE_MARK; q < SHUFFLE_MARK + ROUNDS; ++q) {
                (uint256 word,,,) = block_(right, q, epoch, stream, seed);
                (left, right) = (right, left ^ (word & mask));
            }
            return left << width | right;
        }
    }
}
