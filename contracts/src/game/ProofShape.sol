// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IGame} from "../interfaces/IGame.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {Isa} from "../libraries/Isa.sol";

/// @title A proof has only the parts that its leaf has a use for (SPEC section 10, phase PROVE)
/// @notice What the referee would not read must be empty or zero, so that a proof is legal here exactly if it is
/// legal off chain.
library ProofShape {
    /// @notice Reverts with `IGame.UnusedPart` for a part that should be empty.
    function check(IReferee.Context memory context, IReferee.Proof calldata proof) internal pure {
        if (context.target == IReferee.Target.TERMS) {
            if (context.termsLeaf == 0) _noPrevious(proof);
            _noWitness(proof.witness);
        } else if (context.target == IReferee.Target.ELEMENT) {
            _noPrevious(proof);
            _noWitness(proof.witness);
        } else {
            _require(proof.previous.length == 0, "previous");
            _require(proof.tensors.length == 0, "tensors");
            _require(proof.chunks.length == 0, "chunks");
            // A commit's instruction is opened by `siblings`; a source's is known.
            bool commit = context.position >> context.depth != 0;
            if (!commit) _require(proof.siblings.length == 0, "siblings");
            _checkValueWitness(commit, proof);
        }
    }

    /// @dev By the instruction's function: bytes 0 and 1 of its encoding. The referee refuses other instructions.
    function _checkValueWitness(bool commit, IReferee.Proof calldata proof) private pure {
        uint256 func = proof.instruction.length > 1 ? uint8(proof.instruction[1]) : Isa.SOURCE_CONST;
        if (commit || func == Isa.SOURCE_DATA) _noRecord(proof.witness);
        else if (func != Isa.SOURCE_STATE) _noWitness(proof.witness);
    }

    function _noPrevious(IReferee.Proof calldata proof) private pure {
        _require(proof.previous.length == 0, "previous");
        _require(proof.siblings.length == 0, "siblings");
    }

    function _noWitness(IReferee.Witness calldata witness) private pure {
        _noRecord(witness);
        _require(witness.tensorId == bytes32(0), "tensorId");
        _require(witness.siblings.length == 0, "witness siblings");
    }

    function _noRecord(IReferee.Witness calldata witness) private pure {
        bool zero = witness.step == 0 && witness.stateRoot == bytes32(0) && witness.lossBits == 0
            && witness.logRoot == bytes32(0) && witness.recordSiblings.length == 0;
        _require(zero, "record");
    }

    function _require(bool holds, string memory part) private pure {
        if (!holds) revert IGame.UnusedPart(part);
    }
}
