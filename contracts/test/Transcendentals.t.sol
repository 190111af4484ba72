// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Transcendentals} from "../src/Transcendentals.sol";
import {ITranscendentals} from "../src/interfaces/ITranscendentals.sol";
import {Float32} from "../src/libraries/Float32.sol";
import {Isa} from "../src/libraries/Isa.sol";
import {Decision, Estimate} from "../src/libraries/transcendental/Decision.sol";
import {ErrorFunction} from "../src/libraries/transcendental/ErrorFunction.sol";
import {Exponential} from "../src/libraries/transcendental/Exponential.sol";
import {Logarithm} from "../src/libraries/transcendental/Logarithm.sol";
import {Sine} from "../src/libraries/transcendental/Sine.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice The same contract with a bound on the error that decides nothing.
contract Undecisive is Transcendentals {
    function _estimated(Estimate memory value, bool negative, uint256 precision)
        internal
        pure
        override
        returns (bool, uint256)
    {
        value.err = value.n >> 20;
        return super._estimated(value, negative, precision);
    }
}

/// @notice The six functions against the integer reference, and their bounds on the error against the hardest arguments.
/// (The cases of scalars.json, at every edge and threshold, are in Vectors.t.sol.)
contract TranscendentalsTest is TestBase {
    Transcendentals private immutable CONTRACT = new Transcendentals();

    uint32 private constant SIGN = 0x80000000;
    string private constant BULK = "transcendentals.json";
    string private constant HARDEST = "hardest.json";
    /// Bytes of a record of hardest.json.
    uint256 private constant RECORD = 43;

    /// Of each function: the ranges of hardest.json, pair by pair, and how near to a boundary its values come.
    uint256[][6] private ends;
    uint256[6] private bits;

    error RunDiffers(uint256 func, uint256 firstCase, bytes4 expected, bytes4 actual);

    function setUp() public {
        string memory json = vectors(HARDEST);
        for (uint256 k = 0; k < 6; ++k) {
            ends[k] = vm.parseJsonUintArray(json, _group(json, Isa.EXP + k, "ranges"));
            bits[k] = vm.parseJsonUint(json, _group(json, Isa.EXP + k, "bits"));
        }
    }

    function _group(string memory json, uint256 func, string memory key) private pure returns (string memory) {
        string memory name = vm.parseJsonStringArray(json, ".names")[func - Isa.EXP];
        string memory group = string.concat(".", name, ".");
        assertEq(vm.parseJsonUint(json, string.concat(group, "function")), func, "the groups in order");
        return string.concat(group, key);
    }

    /// @dev The case as drawn by tests/vectors/transcendentals.py.
    function _draw(uint256 func, uint256 index, bytes memory anchors, uint256[] memory exponents)
        private
        pure
        returns (uint32 x, uint8 precision)
    {
        bytes32 h = sha256(abi.encodePacked(uint8(func), uint32(index)));
        x = uint32(bytes4(h));
        precision = 16 + uint8(h[5]) % 17;
        uint256 shape = uint8(h[4]) % 8;
        if (shape == 0) return (x, precision);
        if (func == Isa.LOG) x &= 0x7fffffff;
        if (shape < 5) {
            uint256 exponent = exponents[0] + uint8(h[6]) % exponents[1];
            return (x & 0x807fffff | uint32(exponent << 23), precision);
        }
        uint256 drawn = uint16(bytes2(h << 48));
        uint256 near = word(anchors, 4 * (drawn % (anchors.length / 4)), 4);
        if (shape > 5) near = near + 0x80000000 + uint8(h[8]) % 17 - 8;
        x = x & 0x80000000 | uint32(near & 0x7fffffff);
    }

    function _bulk(uint256 func) private view {
        string memory json = vectors(BULK);
        bytes memory anchors = vm.parseJsonBytes(json, _group(json, func, "anchors"));
        bytes memory digests = vm.parseJsonBytes(json, _group(json, func, "digests"));
        uint256[] memory exponents = vm.parseJsonUintArray(json, _group(json, func, "exponents"));
        uint256 run = vm.parseJsonUint(json, ".run");
        uint256 cases = vm.parseJsonUint(json, ".cases");
        assertTrue(cases >= 5000 && anchors.length > 400, "cases and anchors");
        assertEq(digests.length, cases / run * 4, "a digest a run");
        for (uint256 first = 0; first < cases; first += run) {
            bytes memory results;
            for (uint256 k = 0; k < run; ++k) {
                (uint32 x, uint8 precision) = _draw(func, first + k, anchors, exponents);
                results = bytes.concat(results, bytes4(CONTRACT.evaluate(uint8(func), x, precision)));
            }
            bytes4 expected = bytes4(uint32(word(digests, first / run * 4, 4)));
            bytes4 actual = bytes4(sha256(results));
            if (actual != expected) revert RunDiffers(func, first, expected, actual);
        }
    }

    function test_bulk() public view {
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            _bulk(func);
        }
    }

    /// @dev What the contract evaluates, for x in the ranges of tests/hardest.
    function _estimate(uint256 func, uint256 x) private pure returns (Estimate memory value) {
        (uint256 m, int256 e) = Float32.unpack(x);
        if (func == Isa.EXP) return Exponential.exp(x & Float32.SIGN != 0, m, e);
        if (func == Isa.LOG) return Logarithm.ln(m, e);
        if (func == Isa.TANH) return Exponential.tanh(m, e);
        if (func == Isa.ERF) return ErrorFunction.erf(m, e);
        (value,) = Sine.sin(m, e, func == Isa.COS ? 1 : 0);
    }

    /// @dev err / n < 2^-(bits + 1): smaller than half the distance from a boundary of any value.
    function _assertDecides(uint256 func, uint256 x) private view {
        Estimate memory value = _estimate(func, x);
        assertTrue(value.err < value.n >> (bits[func - Isa.EXP] + 1), "an error below half the least distance");
    }

    /// @dev Records of hardest.json: x, precision, result, and the magnitude from v · 2^e to (v + 1) · 2^e.
    function test_hardest() public view {
        string memory json = vectors(HARDEST);
        uint256 total = 0;
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            bytes memory data = vm.parseJsonBytes(json, _group(json, func, "cases"));
            assertTrue(bits[func - Isa.EXP] > 50 && bits[func - Isa.EXP] < 80, "bits");
            assertEq(data.length, RECORD * vm.parseJsonUint(json, _group(json, func, "count")), "records");
            for (uint256 pos = 0; pos < data.length; pos += RECORD) {
                uint32 x = uint32(word(data, pos, 4));
                uint32 found = CONTRACT.evaluate(uint8(func), x, uint8(word(data, pos + 4, 1)));
                assertEq(found, word(data, pos + 5, 4), "a hard case");
                _assertDecides(func, x);
                _assertHolds(_estimate(func, x), word(data, pos + 9, 32), int16(uint16(word(data, pos + 41, 2))));
                ++total;
            }
        }
        assertTrue(total > 300, "cases");
    }

    /// @dev The exact magnitude, between v and v + 1 units of 2^e, is inside the estimate's interval.
    function _assertHolds(Estimate memory value, uint256 v, int256 e) private pure {
        // v has 255 bits, n at most 249.
        uint256 exact = v >> uint256(value.e - e);
        assertTrue(value.n - value.err <= exact && exact < value.n + value.err, "the value inside the bound");
    }

    /// @dev The bound, for any argument that is evaluated.
    /// forge-config: ci.fuzz.runs = 2000
    function testFuzz_boundDecides(uint256 seed) public view {
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            uint256[] storage range = ends[func - Isa.EXP];
            uint256 k = seed % (range.length / 2) * 2;
            _assertDecides(func, bound(seed >> 8, range[k], range[k + 1]));
        }
    }

    /// @dev The bound at the ends of the ranges and at the argument whose value has the least magnitude.
    function test_boundDecidesAtTheEnds() public view {
        string memory json = vectors(HARDEST);
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            for (uint256 k = 0; k < ends[func - Isa.EXP].length; ++k) {
                _assertDecides(func, ends[func - Isa.EXP][k]);
            }
            _assertDecides(func, vm.parseJsonUint(json, _group(json, func, "least")));
        }
    }

    function _f(uint256 func, uint32 x, uint256 precision) private view returns (uint32) {
        return CONTRACT.evaluate(uint8(func), x, uint8(precision));
    }

    /// @dev At less than 32 bits the argument itself may be a tie, and the result lies just below it.
    function testFuzz_nextToATieOfTheFormat(uint256 seed, uint256 b) public view {
        b = bound(b, 16, 31);
        uint32 place = uint32(1 << (32 - b));
        uint32 kept = uint32(bound(seed, 0, 0x38ffffff)) & ~(place - 1);
        uint32 tie = kept | place >> 1;
        uint32 sign = uint32(seed >> 64) & SIGN;
        assertEq(_f(Isa.SIN, tie | sign, b), kept | sign, "sin of a tie rounds toward zero");
        assertEq(_f(Isa.TANH, tie | sign, b), kept | sign, "tanh of a tie rounds toward zero");
        assertEq(_f(Isa.SIN, (tie + 1) | sign, b), (kept + place) | sign, "sin of the next number");
        assertEq(_f(Isa.TANH, (tie + 1) | sign, b), (kept + place) | sign, "tanh of the next number");
    }

    /// @dev The longest series, the largest reductions, the hardest arguments: gas of a call, the call itself included.
    function test_gas() public view {
        uint32[6] memory dearest = [0xc2cf0001, 0x00000001, 0x411fffff, 0x407fffff, 0x7f7fffff, 0x6f79be45];
        for (uint256 k = 0; k < 6; ++k) {
            uint8 func = uint8(Isa.EXP + k);
            CONTRACT.evaluate(func, 0, 16); // the address is warm from here
            uint256 before = gasleft();
            CONTRACT.evaluate(func, dearest[k], 16);
            uint256 gas = before - gasleft();
            assertTrue(gas > 1000 && gas < (func == Isa.ERF ? 15000 : 8000), "gas of an evaluation");
        }
    }

    function testFuzz_roundTo(uint256 magnitude, uint256 width, uint256 exponent) public pure {
        magnitude = magnitude >> 256 - bound(width, 1, 256) | 1;
        int256 e = int256(bound(exponent, 0, 700)) - 500;
        assertEq(Decision.roundTo(magnitude, e, 32), Float32.round(false, magnitude, e), "as the other rounding at 32");
    }

    /// @dev Exactly between two neighbours of the format, and one unit of 2^-8 places to either side.
    function testFuzz_roundToTies(uint256 x, uint256 b) public pure {
        uint256 place = 1 << (32 - bound(b, 16, 32));
        x = bound(x, 0, 0x7f7fffff) / place * place;
        (uint256 low, int256 e) = Float32.unpack(x);
        uint256 tie = (low << 9) + (place << 8); // in 2^(e - 9)
        uint256 even = x / place % 2 == 0 ? x : x + place;
        assertEq(Decision.roundTo(tie, e - 9, 32 - _log2(place)), even, "ties to even");
        assertEq(Decision.roundTo(tie - 1, e - 9, 32 - _log2(place)), x, "below the tie");
        assertEq(Decision.roundTo(tie + 1, e - 9, 32 - _log2(place)), x + place, "above the tie");
    }

    function _log2(uint256 powerOfTwo) private pure returns (uint256) {
        return Float32.bitLength(powerOfTwo) - 1;
    }

    function testFuzz_unknownFunction(uint8 func, uint32 x) public {
        vm.assume(func < Isa.EXP || func > Isa.COS);
        vm.expectRevert(abi.encodeWithSelector(ITranscendentals.UnknownFunction.selector, func));
        CONTRACT.evaluate(func, x, 32);
    }

    function testFuzz_precisionOutOfRange(uint8 precision, uint32 x) public {
        vm.assume(precision < 16 || precision > 32);
        vm.expectRevert(abi.encodeWithSelector(ITranscendentals.PrecisionOutOfRange.selector, precision));
        CONTRACT.evaluate(uint8(Isa.EXP), x, precision);
    }

    function test_undecided() public {
        Undecisive other = new Undecisive();
        for (uint256 func = Isa.EXP; func <= Isa.COS; ++func) {
            // 0.7: none of the six is constant around it.
            vm.expectRevert(
                abi.encodeWithSelector(ITranscendentals.Undecided.selector, uint8(func), uint32(0x3f333333), uint8(32))
            );
            other.evaluate(uint8(func), 0x3f333333, 32);
        }
    }
}
