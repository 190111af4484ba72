// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {GameId} from "../interfaces/IGame.sol";
import {IJobBoard, JobId} from "../interfaces/IJobBoard.sol";

/// @title What is signed, and by whom (SPEC section 8, EIP-712)
library Signatures {
    bytes32 internal constant DOMAIN_TYPE =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 internal constant JOB_TYPE = keccak256(
        "Job(address client,address trainer,bytes32 programRoot,uint32 bodyCount,uint32 stateCount,uint32 dataCount,"
        "bytes32 initialStateRoot,bytes32 dataRoot,uint64 steps,uint64 checkpointInterval,uint8 policy,uint8 precision,"
        "uint32 tolerances,uint256 reward,uint256 trainerStake,uint256 challengerStake,uint64 challengeWindow,uint64 clock,"
        "uint64 replayTime,uint64 talkTime,uint64 auditTime,uint64 deadline,uint8 seats,uint256 seatFee,"
        "uint256 seatBond,uint8 descentLevels,uint256 nonce)"
    );
    bytes32 internal constant HEAD_TYPE = keccak256("Head(bytes32 jobId,uint64 count,bytes32 runRoot)");
    bytes32 internal constant RECEIPT_TYPE = keccak256("Receipt(bytes32 jobId,uint64 count,bytes32 runRoot)");
    bytes32 internal constant CONCESSION_TYPE =
        keccak256("Concession(bytes32 jobId,uint64 count,bytes32 runRoot,address prover)");
    bytes32 internal constant STATE_TYPE = keccak256("State(bytes32 gameId,uint32 sequence,bytes32 snapshot)");

    /// n/2 of secp256k1: of the two valid s of a signature only the lower is accepted.
    uint256 internal constant HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    /// @dev The chain id is read at each call: after a fork of the chain, old signatures count on one side only.
    function domainSeparator(address board) internal view returns (bytes32) {
        return
            keccak256(
                abi.encode(DOMAIN_TYPE, keccak256(bytes("Tiebreak")), keccak256(bytes("1")), block.chainid, board)
            );
    }

    /// @dev A static struct: its ABI encoding is the EIP-712 `encodeData`, one word a field.
    function hashJob(IJobBoard.Job calldata job) internal pure returns (JobId) {
        return JobId.wrap(keccak256(abi.encode(JOB_TYPE, job)));
    }

    function hashHead(IJobBoard.Head memory head) internal pure returns (bytes32) {
        return keccak256(abi.encode(HEAD_TYPE, head));
    }

    /// @dev What the client signs of a head: it holds the logs of all segments up to there, and they hash to it.
    function hashReceipt(IJobBoard.Head memory head) internal pure returns (bytes32) {
        return keccak256(abi.encode(RECEIPT_TYPE, head));
    }

    /// @dev What the trainer signs of a head that it gives up: it is false, and `prover` is paid for it.
    function hashConcession(IJobBoard.Head memory head, address prover) internal pure returns (bytes32) {
        return keccak256(abi.encode(CONCESSION_TYPE, head, prover));
    }

    /// @dev What the board itself verifies.
    function digest(bytes32 structHash) internal view returns (bytes32) {
        return digest(address(this), structHash);
    }

    function digest(address board, bytes32 structHash) internal view returns (bytes32) {
        return keccak256(abi.encodePacked(hex"1901", domainSeparator(board), structHash));
    }

    /// @dev What a side of a game signs: the snapshot with this id stands after `sequence` moves.
    function stateDigest(address board, GameId gameId, uint32 sequence, bytes32 snapshot)
        internal
        view
        returns (bytes32)
    {
        return digest(board, keccak256(abi.encode(STATE_TYPE, gameId, sequence, snapshot)));
    }

    /// @notice Reverts unless `signature` (65 bytes r ‖ s ‖ v) over `hash` is by `signer`.
    function check(bytes32 hash, bytes calldata signature, address signer) internal pure {
        address found = recover(hash, signature);
        if (found != signer) revert IJobBoard.WrongSigner(signer, found);
    }

    /// @return found whose signature it is; reverts if it is none
    function recover(bytes32 hash, bytes calldata signature) internal pure returns (address found) {
        if (signature.length != 65) revert IJobBoard.MalformedSignature();
        bytes32 r = bytes32(signature[:32]);
        bytes32 s = bytes32(signature[32:64]);
        uint8 v = uint8(signature[64]);
        // SAFETY: one signature per message and nonce (EIP-2); nothing here counts signatures, but others may.
        if (uint256(s) > HALF_ORDER || (v != 27 && v != 28)) revert IJobBoard.MalformedSignature();
        found = ecrecover(hash, v, r, s);
        // SAFETY: ecrecover answers zero for what no key signed; zero must not match any signer.
        if (found == address(0)) revert IJobBoard.MalformedSignature();
    }
}
