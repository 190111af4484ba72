// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Snapshots} from "../../src/game/Snapshots.sol";
import {Duration, Instant} from "../../src/game/Time.sol";
import {Turns} from "../../src/game/Turns.sol";
import {IGame} from "../../src/interfaces/IGame.sol";
import {IJobBoard} from "../../src/interfaces/IJobBoard.sol";
import {SymbolicBase} from "./SymbolicBase.sol";

/// @title Proofs about what enters a game (`make -C contracts symbolic`)
contract TalkSymbolic is SymbolicBase {
    Turns.Game private _game;

    /// The 144 bytes, as words that a solver sees at once.
    struct Bytes {
        bytes32 first;
        bytes16 second;
        bytes32 node;
        bytes32 opened;
        bytes32 log;
    }

    function decode(bytes calldata snapshot) external pure returns (IGame.GameState memory) {
        return Snapshots.read(snapshot);
    }

    function pack(Bytes calldata b) private pure returns (bytes memory) {
        return abi.encodePacked(b.first, b.second, b.node, b.opened, b.log);
    }

    /// @dev Every field, at the place that SPEC section 10.1 gives it, in plain words.
    function check_whatDecodesIsWhatWasSigned(Bytes calldata b) external view {
        IGame.GameState memory s = this.decode(pack(b));
        bytes memory first =
            abi.encodePacked(uint8(s.phase), uint8(s.level), s.height, s.fresh, s.dtype, s.summation, s.lastChunkBytes);
        assert(bytes32(abi.encodePacked(first, s.position, s.element, s.leaves)) == b.first);
        assert(bytes16(abi.encodePacked(s.step, s.instruction, s.termLeaves)) == b.second);
        assert(s.node == b.node && s.opened == b.opened && s.log == b.log);
    }

    /// @dev It decodes exactly if the five fields are in their ranges; so a game that entered has a mover and can end.
    function check_whatIsRefused(Bytes calldata b) external view {
        (bool decoded,) = address(this).staticcall(abi.encodeCall(this.decode, (pack(b))));
        uint256 word = uint256(b.first);
        bool phase = word >> 248 >= 1 && word >> 248 <= 9;
        bool ranges = word >> 240 & 0xff <= 4 && word >> 232 & 0xff <= 64 && word >> 224 & 0xff <= 1;
        bool element = word >> 64 & 0xffffffffffffffff < 1 << 40;
        assert(decoded == (phase && ranges && element));
    }

    function talking(Turns.Turn memory turn, Instant current) external pure {
        Turns.requireTalk(turn, current);
    }

    function spend(Turns.Turn memory turn, Instant current) external view returns (Turns.Turn memory) {
        Turns.spend(_game, IJobBoard(address(this)), turn, current);
        return turn;
    }

    /// @dev A move during the talk costs nothing and leaves the end of the talk where it is; after it nothing enters.
    function check_aMoveLeavesTheTalk(uint40 last, uint32 talk, uint32 rest, uint40 now_, uint40 later) external view {
        vm.assume(now_ >= last && later >= now_);
        vm.assume(uint256(last) + talk < 1 << 40);
        Turns.Turn memory turn;
        turn.phase = IGame.Phase.DESCEND;
        turn.last = Instant.wrap(last);
        turn.talk = Duration.wrap(talk);
        turn.defenderRest = Duration.wrap(rest);
        uint256 end = uint256(last) + talk;
        vm.assume(now_ < end);
        Turns.Turn memory then = this.spend(turn, Instant.wrap(now_));
        assert(Duration.unwrap(then.defenderRest) == rest);
        assert(uint256(Instant.unwrap(then.last)) + Duration.unwrap(then.talk) == end);
        (bool enters,) = address(this).staticcall(abi.encodeCall(this.talking, (then, Instant.wrap(later))));
        assert(enters == (later < end));
    }

    /// @dev False: at the end of the talk a state still enters.
    function wrong_entersAtTheEnd(uint40 last, uint32 talk) external view {
        vm.assume(uint256(last) + talk < 1 << 40);
        Turns.Turn memory turn;
        turn.last = Instant.wrap(last);
        turn.talk = Duration.wrap(talk);
        (bool enters,) =
            address(this).staticcall(abi.encodeCall(this.talking, (turn, Instant.wrap(uint40(uint256(last) + talk)))));
        assert(enters);
    }
}
