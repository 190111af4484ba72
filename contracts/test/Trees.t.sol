// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../src/interfaces/IReferee.sol";
import {Commitments} from "../src/libraries/Commitments.sol";
import {Tags} from "../src/libraries/Tags.sol";
import {Trees} from "../src/libraries/Trees.sol";
import {TreesHarness} from "./support/Harness.sol";
import {TestBase} from "./support/TestBase.sol";

/// @notice Trees and commitments against the shared vectors and against naive twins.
contract TreesTest is TestBase {
    TreesHarness private harness;
    string private json;

    function setUp() public {
        harness = new TreesHarness();
        json = vectors("trees.json");
    }

    function _digests(bytes memory data) private pure returns (bytes32[] memory digests) {
        digests = new bytes32[](data.length / 32);
        for (uint256 k = 0; k < digests.length; ++k) {
            digests[k] = bytes32(word(data, 32 * k, 32));
        }
    }

    /// @dev Naive twin of `parent`.
    function _parent(bytes32 left, bytes32 right) private pure returns (bytes32) {
        return sha256(abi.encodePacked("tb.node.", left, right));
    }

    function _at(string memory list, uint256 k, string memory key) private pure returns (string memory) {
        return string.concat(".", list, "[", vm.toString(k), "].", key);
    }

    function test_vectorTrees() public view {
        uint256 proofs = 0;
        for (uint256 k = 0; k < 9; ++k) {
            bytes32[] memory leaves = _digests(vm.parseJsonBytes(json, _at("trees", k, "leaves")));
            bytes32 root = vm.parseJsonBytes32(json, _at("trees", k, "root"));
            uint256 depth = vm.parseJsonUint(json, _at("trees", k, "depth"));
            assertTrue(leaves.length == 0 || harness.depthOf(leaves.length) <= depth, "deep enough"); // some are deeper than they need to be
            assertEq(
                harness.pad(root, depth, depth + 3), vm.parseJsonBytes32(json, _at("trees", k, "paddedBy3")), "padded"
            );
            bytes[] memory siblings = vm.parseJsonBytesArray(json, _at("trees", k, "proofs"));
            assertEq(siblings.length, 1 << depth, "a proof for each position");
            bytes32[] memory level = new bytes32[](1 << depth);
            for (uint256 p = 0; p < siblings.length; ++p) {
                level[p] = p < leaves.length ? leaves[p] : Trees.EMPTY;
                harness.verify(root, depth, p, level[p], _digests(siblings[p]));
                ++proofs;
            }
            assertEq(harness.foldNodes(level), root, "root over the level");
        }
        assertTrue(proofs > 40, "proofs checked");
    }

    function test_vectorTensors() public view {
        for (uint256 k = 0; k < 7; ++k) {
            bytes memory data = vm.parseJsonBytes(json, _at("tensors", k, "data"));
            uint256[] memory dims = vm.parseJsonUintArray(json, _at("tensors", k, "dims"));
            bytes memory encoded;
            for (uint256 d = 0; d < dims.length; ++d) {
                encoded = bytes.concat(encoded, bytes8(uint64(dims[d])));
            }
            bytes32 root = vm.parseJsonBytes32(json, _at("tensors", k, "chunkRoot"));
            uint256 count = Commitments.chunkCount(data.length);
            bytes32[] memory level = new bytes32[](1 << Trees.depthOf(count));
            for (uint256 c = 0; c < level.length; ++c) {
                level[c] = Trees.EMPTY;
                if (c >= count) continue;
                level[c] = harness.chunkLeaf(slice(data, 512 * c, Commitments.chunkLength(data.length, c)));
            }
            assertEq(harness.foldNodes(level), root, "chunk root");
            uint256 dtype = vm.parseJsonUint(json, _at("tensors", k, "dtype"));
            bytes32 id = vm.parseJsonBytes32(json, _at("tensors", k, "id"));
            assertEq(Commitments.tensorId(dtype, encoded, root), id, "tensor id");
            assertEq(harness.tensorIdAt(dtype, encoded, root), id, "tensor id, dims in calldata");
        }
    }

    function test_vectorLeaves() public view {
        for (uint256 k = 0; k < 3; ++k) {
            bytes memory name = bytes(vm.parseJsonString(json, _at("entries", k, "name")));
            name = bytes.concat(bytes2(uint16(name.length)), name);
            bytes32 id = vm.parseJsonBytes32(json, _at("entries", k, "tensor"));
            bytes32 stateLeaf = vm.parseJsonBytes32(json, _at("entries", k, "stateLeaf"));
            assertEq(harness.entry(Tags.STATE_ENTRY, name, id), stateLeaf, "state leaf");
            bytes32 dataLeaf = vm.parseJsonBytes32(json, _at("entries", k, "dataLeaf"));
            assertEq(harness.entry(Tags.DATA_ENTRY, name, id), dataLeaf, "data leaf");
            bytes32 record = Commitments.record(
                uint64(vm.parseJsonUint(json, _at("records", k, "step"))),
                vm.parseJsonBytes32(json, _at("records", k, "stateRoot")),
                uint32(vm.parseJsonUint(json, _at("records", k, "lossBits"))),
                vm.parseJsonBytes32(json, _at("records", k, "logRoot"))
            );
            assertEq(record, vm.parseJsonBytes32(json, _at("records", k, "digest")), "record");
        }
        for (uint256 k = 0; k < 6; ++k) {
            bytes memory instruction = vm.parseJsonBytes(json, _at("instructions", k, "instruction"));
            bytes32 leaf = vm.parseJsonBytes32(json, _at("instructions", k, "leaf"));
            assertEq(harness.instructionLeaf(instruction), leaf, "instruction leaf");
        }
    }

    function test_emptyRoots() public pure {
        bytes32 empty = sha256("tb.empty");
        assertEq(Trees.EMPTY_ROOTS.length, 20 * 32, "20 depths");
        for (uint256 depth = 0; depth < 20; ++depth) {
            assertEq(bytes32(word(Trees.EMPTY_ROOTS, 32 * depth, 32)), empty, "empty tree");
            empty = _parent(empty, empty);
        }
    }

    function test_bugsOfACallerPanic() public {
        bytes memory panic = abi.encodeWithSignature("Panic(uint256)", 1);
        harness.pad(0, 19, 20);
        vm.expectRevert(panic);
        harness.pad(0, 19, 21);
        vm.expectRevert(panic);
        harness.depthOf(0);
        vm.expectRevert(panic);
        harness.foldNodes(new bytes32[](3));
    }

    function test_depthOfEdges() public view {
        for (uint256 d = 1; d < 64; ++d) {
            assertEq(harness.depthOf(1 << d), d, "2^d leaves");
            assertEq(harness.depthOf((1 << d) + 1), d + 1, "one more");
            assertEq(harness.depthOf((1 << d) - 1), d == 1 ? 0 : d, "one fewer");
        }
    }

    function testFuzz_verifyRefusesAnotherLeaf(bytes32 leaf, bytes32 other, bytes32[3] calldata s, uint256 p) public {
        vm.assume(leaf != other);
        p = bound(p, 0, 7);
        bytes32[] memory siblings = new bytes32[](3);
        for (uint256 k = 0; k < 3; ++k) {
            siblings[k] = s[k];
        }
        bytes32 root = harness.fold(leaf, p, siblings);
        harness.verify(root, 3, p, leaf, siblings);
        bytes32 found = harness.fold(other, p, siblings);
        vm.expectRevert(abi.encodeWithSelector(IReferee.WrongRoot.selector, root, found));
        harness.verify(root, 3, p, other, siblings);
    }

    function test_verifyRefusesAnotherDepthOrAPositionOutside() public {
        vm.expectRevert(abi.encodeWithSelector(IReferee.PositionOutOfRange.selector, 8, 3));
        harness.verify(0, 3, 8, 0, new bytes32[](3));
        vm.expectRevert(abi.encodeWithSelector(IReferee.WrongSiblingCount.selector, 3, 2));
        harness.verify(0, 3, 7, 0, new bytes32[](2));
    }
}
