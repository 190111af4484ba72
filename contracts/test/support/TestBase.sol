// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @notice The cheat codes of Foundry that these tests use.
interface Vm {
    struct Gas {
        uint64 gasLimit;
        uint64 gasTotalUsed;
        uint64 gasMemoryUsed;
        int64 gasRefunded;
        uint64 gasRemaining;
    }

    function addr(uint256 key) external pure returns (address);
    function assume(bool condition) external pure;
    function chainId(uint256 id) external;
    function computeCreateAddress(address deployer, uint256 nonce) external pure returns (address);
    function deal(address account, uint256 balance) external;
    function etch(address target, bytes calldata code) external;
    function expectRevert(bytes calldata data) external;
    function expectPartialRevert(bytes4 selector) external;
    function getNonce(address account) external view returns (uint64);
    /// Of an isolated test: each call is a transaction of its own.
    function lastCallGas() external view returns (Gas memory);
    function pauseGasMetering() external view;
    function prank(address sender) external;
    function prevrandao(bytes32 entropy) external;
    function revertToState(uint256 id) external returns (bool success);
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function snapshotState() external returns (uint256 id);
    function snapshotValue(string calldata group, string calldata name, uint256 value) external;
    function warp(uint256 timestamp) external;
    function resumeGasMetering() external view;
    function readFile(string calldata path) external view returns (string memory);
    function readLine(string calldata path) external returns (string memory);
    function readFileBinary(string calldata path) external view returns (bytes memory);
    function parseJsonBytes(string calldata json, string calldata key) external pure returns (bytes memory);
    function parseJsonBytesArray(string calldata json, string calldata key) external pure returns (bytes[] memory);
    function parseJsonBytes32(string calldata json, string calldata key) external pure returns (bytes32);
    function parseJsonUint(string calldata json, string calldata key) external pure returns (uint256);
    function parseJsonUintArray(string calldata json, string calldata key) external pure returns (uint256[] memory);
    function parseJsonString(string calldata json, string calldata key) external pure returns (string memory);
    function parseJsonStringArray(string calldata json, string calldata key) external pure returns (string[] memory);
    function split(string calldata input, string calldata delimiter) external pure returns (string[] memory);
    function toString(uint256 value) external pure returns (string memory);
}

/// @notice Assertions that say what was expected and what came, and readers of the shared vectors.
abstract contract TestBase {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    error NotEqual(string what, uint256 expected, uint256 actual);
    error NotEqualBytes(string what, bytes expected, bytes actual);
    error Untrue(string what);

    function assertEq(uint256 actual, uint256 expected, string memory what) internal pure {
        if (actual != expected) revert NotEqual(what, expected, actual);
    }

    function assertEq(bytes32 actual, bytes32 expected, string memory what) internal pure {
        assertEq(uint256(actual), uint256(expected), what);
    }

    function assertEq(bytes memory actual, bytes memory expected, string memory what) internal pure {
        if (keccak256(actual) != keccak256(expected)) revert NotEqualBytes(what, expected, actual);
    }

    function assertTrue(bool holds, string memory what) internal pure {
        if (!holds) revert Untrue(what);
    }

    function bound(uint256 x, uint256 least, uint256 most) internal pure returns (uint256) {
        return least + x % (most - least + 1);
    }

    function vectors(string memory file) internal view returns (string memory) {
        return vm.readFile(string.concat("../tests/vectors/", file));
    }

    /// @dev The big-endian integer of `width` <= 32 bytes at `offset`.
    function word(bytes memory data, uint256 offset, uint256 width) internal pure returns (uint256 value) {
        if (offset + width > data.length) revert Untrue("a word inside the data");
        assembly ("memory-safe") {
            value := mload(add(add(data, 0x20), offset))
        }
        return value >> (256 - 8 * width);
    }

    function slice(bytes memory data, uint256 offset, uint256 length) internal pure returns (bytes memory part) {
        if (offset + length > data.length) revert Untrue("a slice inside the data");
        part = new bytes(length);
        assembly ("memory-safe") {
            mcopy(add(part, 0x20), add(add(data, 0x20), offset), length)
        }
    }
}
