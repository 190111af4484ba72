// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @notice What halmos understands of Foundry's cheat codes.
interface SymbolicVm {
    function assume(bool condition) external pure;
}

/// @title For contracts whose `check_` functions halmos proves for all arguments
/// @dev A check fails by `assert`. An argument that cannot be is left out by `vm.assume`.
abstract contract SymbolicBase {
    SymbolicVm internal constant vm = SymbolicVm(address(uint160(uint256(keccak256("hevm cheat code")))));

    /// @dev Without a branch, so that a proof of many conditions is one formula and not one path for each.
    function boolOr(bool a, bool b) internal pure returns (bool c) {
        assembly ("memory-safe") {
            c := or(a, b)
        }
    }

    /// @dev The same for "and".
    function boolAnd(bool a, bool b) internal pure returns (bool c) {
        assembly ("memory-safe") {
            c := and(a, b)
        }
    }
}
