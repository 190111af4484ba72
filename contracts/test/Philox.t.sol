// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Philox} from "../src/libraries/Philox.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice Philox4x32-10 and the shuffle against a twin that is written as the paper writes it, in 32-bit words.
contract PhiloxTest is TestBase {
    function _high(uint32 a, uint32 b) private pure returns (uint32) {
        return uint32(uint64(a) * uint64(b) >> 32);
    }

    function _low(uint32 a, uint32 b) private pure returns (uint32 product) {
        unchecked {
            product = a * b;
        }
    }

    /// @dev The naive twin of `block_`.
    function _block(uint32[4] memory c, uint32 k0, uint32 k1) private pure returns (uint32[4] memory) {
        unchecked {
            for (uint256 round = 0; round < 10; ++round) {
                c = [
                    _high(0xcd9e8d57, c[2]) ^ c[1] ^ k0,
                    _low(0xcd9e8d57, c[2]),
                    _high(0xd2511f53, c[0]) ^ c[3] ^ k1,
                    _low(0xd2511f53, c[0])
                ];
                k0 += 0x9e3779b9;
                k1 += 0xbb67ae85;
            }
        }
        return c;
    }

    function testFuzz_block(uint32[4] memory counter, uint64 key) public pure {
        (uint256 a, uint256 b, uint256 c, uint256 d) =
            Philox.block_(counter[0], counter[1], counter[2], counter[3], key);
        uint32[4] memory expected = _block(counter, uint32(key), uint32(key >> 32));
        assertEq(a, expected[0], "word 0");
        assertEq(b, expected[1], "word 1");
        assertEq(c, expected[2], "word 2");
        assertEq(d, expected[3], "word 3");
    }

    /// @dev 24 bits of the word, as a number: bits * 2^-24 = bits, written as an f32 mantissa.
    function testFuzz_random(uint64 seed, uint64 step, uint32 stream, uint256 index, uint256 cut) public pure {
        index = bound(index, 0, 1 << 40) >> bound(cut, 0, 39);
        if (index == 1 << 40) --index;
        uint256 q = index / 4;
        uint32[4] memory counter = [uint32(q), uint32(q >> 32), uint32(step), stream];
        uint256 bits = _block(counter, uint32(seed), uint32(seed >> 32))[index % 4] >> 8;
        uint256 found = Philox.random(seed, step, stream, index);
        assertTrue(found < 0x3f800000, "below 1");
        // The f32 is mantissa * 2^(biased - 150); times 2^24 that is the 24 bits.
        uint256 biased = found >> 23;
        uint256 mantissa = biased == 0 ? 0 : (found & 0x7fffff) | 0x800000;
        assertEq(biased == 0 ? 0 : mantissa >> (126 - biased), bits, "the 24 bits");
        assertTrue(biased == 0 ? found == 0 : mantissa & ((1 << (126 - biased)) - 1) == 0, "no others");
    }

    /// @dev Least w >= 1 with 4^w >= n: as w is written in SPEC section 7, without its logarithm.
    function _width(uint256 n) private pure returns (uint256 width) {
        width = 1;
        while (1 << (2 * width) < n) {
            ++width;
        }
    }

    /// @dev The naive twin of `shuffle`, for index < n, and how often it walks.
    function _shuffle(uint256 x, uint64 seed, uint64 epoch, uint256 n, uint32 stream)
        private
        pure
        returns (uint256, uint256 walks)
    {
        uint256 side = 1 << _width(n);
        do {
            (uint256 left, uint256 right) = (x / side, x % side);
            for (uint32 q = 0; q < 8; ++q) {
                uint32[4] memory counter = [uint32(right), (1 << 31) + q, uint32(epoch), stream];
                uint32 word_ = _block(counter, uint32(seed), uint32(seed >> 32))[0];
                (left, right) = (right, left ^ (word_ % side));
            }
            x = left * side + right;
            ++walks;
        } while (x >= n);
        return (x, walks);
    }

    function _n(uint256 seed) private pure returns (uint256) {
        uint256 power = 1 << bound(seed >> 8, 0, 39);
        uint256 style = seed % 4;
        if (style == 0) return bound(seed >> 16, 1, 1 << 40);
        if (style == 1) return power;
        return style == 2 ? power + 1 : (power > 1 ? power - 1 : 1);
    }

    function testFuzz_shuffle(uint64 seed, uint64 epoch, uint32 stream, uint256 n, uint256 index) public pure {
        n = _n(n);
        index = bound(index, 0, n - 1);
        (uint256 expected,) = _shuffle(index, seed, epoch, n, stream);
        assertEq(Philox.shuffle(index, seed, epoch, n, stream), expected, "shuffle");
    }

    function testFuzz_shuffleIsAPermutation(uint64 seed, uint64 epoch, uint32 stream, uint256 n) public pure {
        n = bound(n, 1, 40);
        uint256 seen = 0;
        for (uint256 k = 0; k < n; ++k) {
            seen |= 1 << Philox.shuffle(k, seed, epoch, n, stream);
        }
        assertEq(seen, (1 << n) - 1, "each place once");
    }

    function testFuzz_outside(uint64 seed, uint64 epoch, uint32 stream, uint256 n, uint64 index) public pure {
        n = _n(n);
        if (index < n) index = uint64(n) + index; // still below 2^63
        assertEq(Philox.shuffle(index, seed, epoch, n, stream), type(uint64).max, "-1");
    }

    /// @dev Never more than 4^w - n + 1 walks, and 4^w <= 4n - 4 for n >= 3: for the least n that is all there is.
    function testFuzz_walksAreBounded(uint64 seed, uint64 epoch, uint32 stream, uint256 n, uint256 index) public pure {
        n = bound(n, 1, 17);
        uint256 all = 1 << (2 * _width(n));
        (, uint256 walks) = _shuffle(bound(index, 0, n - 1), seed, epoch, n, stream);
        assertTrue(walks <= all - n + 1, "walks");
        assertTrue(n < 3 || all <= 4 * n - 4, "width");
    }

    function test_leastShuffles() public pure {
        assertEq(Philox.shuffle(0, 1, 2, 1, 3), 0, "n = 1");
        assertEq(Philox.shuffle(0, 1, 2, 2, 3) + Philox.shuffle(1, 1, 2, 2, 3), 1, "n = 2");
        assertEq(Philox.shuffle(type(uint64).max, 1, 2, 1 << 40, 3), type(uint64).max, "index -1");
    }
}
