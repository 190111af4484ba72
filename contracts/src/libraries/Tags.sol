// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// @title Hash tags (SPEC section 1)
/// @notice Every SHA-256 preimage begins with one of these. A test compares them with `tiebreak/protocol/tags.py`.
library Tags {
    bytes8 internal constant NODE = "tb.node.";
    bytes8 internal constant EMPTY = "tb.empty";
    bytes8 internal constant CHUNK = "tb.chunk";
    bytes8 internal constant TENSOR = "tb.tensr";
    bytes8 internal constant STATE_ENTRY = "tb.state";
    bytes8 internal constant DATA_ENTRY = "tb.data.";
    bytes8 internal constant STEP_RECORD = "tb.recrd";
    bytes8 internal constant INSTRUCTION = "tb.instr";
    bytes8 internal constant ACCUMULATOR = "tb.accum";
    bytes8 internal constant LOG_WORD = "tb.lgwrd";
    bytes8 internal constant GAME = "tb.game.";
    bytes8 internal constant MESSAGE = "tb.messg";
    bytes8 internal constant SEAL = "tb.seal.";
    bytes8 internal constant SNAPSHOT = "tb.snap.";
    bytes8 internal constant HEAD_SEAL = "tb.hseal";
    bytes8 internal constant ROOT_SEAL = "tb.rseal";
    bytes8 internal constant SECRET = "tb.secrt";
    bytes8 internal constant SEED = "tb.seed.";
    bytes8 internal constant SEAT = "tb.seat.";
    bytes8 internal constant POST = "tb.post.";
    bytes8 internal constant PIECE = "tb.piece";
    bytes8 internal constant BLOB = "tb.blob.";
}
