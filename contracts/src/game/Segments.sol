// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IJobBoard} from "../interfaces/IJobBoard.sol";

/// @title Which steps stand under which checkpoint (SPEC section 3)
/// @dev No sum here overflows, also with steps near 2^64.
library Segments {
    /// @return ceil(steps / k): leaves of the run tree
    function checkpoints(IJobBoard.JobState storage job) internal view returns (uint64) {
        return checkpoints(job.steps, job.checkpointInterval);
    }

    /// @return ceil(steps / k)
    function checkpoints(uint64 steps, uint64 interval) internal pure returns (uint64) {
        return (steps - 1) / interval + 1;
    }

    /// @return the number of the first step under checkpoint `segment` < checkpoints(job)
    function firstStep(uint64 interval, uint64 segment) internal pure returns (uint64) {
        return segment * interval + 1;
    }

    /// @return the number of the last step under checkpoint `segment`, or of the last step of all
    function lastStep(uint64 steps, uint64 interval, uint64 segment) internal pure returns (uint64) {
        unchecked {
            uint256 next = (uint256(segment) + 1) * interval;
            // Below 2^64.
            // forge-lint: disable-next-line(unsafe-typecast)
            return next < steps ? uint64(next) : steps;
        }
    }

    /// @return the steps under checkpoint `segment`: k, or what remains
    function length(uint64 steps, uint64 interval, uint64 segment) internal pure returns (uint64) {
        uint64 rest = steps - segment * interval;
        return rest < interval ? rest : interval;
    }
}
