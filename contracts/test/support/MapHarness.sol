// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Transcendentals} from "../../src/Transcendentals.sol";
import {ITranscendentals} from "../../src/interfaces/ITranscendentals.sol";
import {MapFunctions, Scalars} from "../../src/libraries/MapFunctions.sol";

/// @notice A scalar function made callable from outside.
contract MapHarness {
    ITranscendentals private immutable TRANSCENDENTALS = new Transcendentals();

    function apply_(uint256 func, uint256 dtype, Scalars calldata scalars, uint256 precision)
        external
        view
        returns (uint256)
    {
        Scalars memory copy = scalars;
        // As when they are read from a tensor: a NaN of any payload is the one NaN.
        for (uint256 k = 0; k < 3; ++k) {
            copy.bits[k] = MapFunctions.normal(copy.dtypes[k], copy.bits[k]);
        }
        if (!MapFunctions.isTranscendental(func)) return MapFunctions.apply_(func, dtype, copy);
        MapFunctions.requireTypes(func, dtype, copy);
        return TRANSCENDENTALS.evaluate(uint8(func), uint32(copy.bits[0]), uint8(precision));
    }
}
