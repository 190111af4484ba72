// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IJobBoard} from "../interfaces/IJobBoard.sol";

/// @title Which steps stand under which checkpoint (SPEC section 3)
/// @dev No sum here overflows, also with steps near 2^64.
library Segments {
    /// @return ceil(steps / k): leaves of the run tree
    function checkpoints(IJobBoard.JobState storage job) internal view returns (uint64) {
        return (job.steps - 1) / job.checkpointInterval + 1;
    }

    /// @return the number of the first step under checkpoint `segment` < checkpoints(job)
    function firstStep(IJobBoard.JobState storage job, uint64 segment) internal view returns (uint64) {
        return segment * job.checkpointInterval + 1;
    }

    /// @return the steps under checkpoint `segment`: k, or what remains
    function length(IJobBoard.JobState storage job, uint64 segment) internal view returns (uint64) {
        uint64 interval = job.checkpointInterval;
        uint64 rest = job.steps - segment * interval;
        return rest < interval ? rest : interval;
    }
}
