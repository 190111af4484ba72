"""The moves of a game from the contracts' logs, no matter who sent them and how.

An account may be a contract, or delegate to code (EIP-7702), or have its transaction forwarded by others: its moves
then stand in no transaction's calldata, but always in the log. A log leaves out only siblings that the contract has
checked, so such a move is followed by `rules.follow`; a party answers it as any other.
"""

from collections.abc import Sequence

from tiebreak.protocol.chain.errors import ChainError
from tiebreak.protocol.chain.records import Event
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.game import moves, sides
from tiebreak.protocol.game.moves import Move, Opening
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.program import Program


def move_in(  # noqa: C901  # one case an event
    events: Sequence[Event], state: GameState, answered: Move | None, program: Program
) -> Move | None:
    """The move that a transaction made in a game, by its events of that game; None if it made none, or the last.

    `state` is the game before it, `answered` the move before it. A proof and what else ends a game is told by the
    event `GameEnded` alone. Raises `ChainError` for a log that the contract cannot have written in this state.
    """
    shown = {event.name: event.values for event in events}
    if "GameEnded" in shown:
        return None
    log = shown.get("LogOpened", {}).get("log", ZERO_DIGEST)
    nodes = answered.nodes if isinstance(answered, Opening) else ()
    for name, said in shown.items():
        match name, answered:
            case "Descended", _:
                return moves.Descend(nodes=said["nodes"])
            case "Selected", _ if said["index"] < len(nodes):
                return sides.choose(nodes, said["index"], said["seal"])
            case "StepsOpened", _:
                return moves.OpenSteps(nodes=said["nodes"], siblings=(), log_root=log)
            case "ValuesOpened", _:
                # The record of a segment of one step commits to that step's log directly.
                is_long = state.job.segment_steps(state.checkpoint) > 1
                return moves.OpenValues(
                    state_root=said["stateRoot"], loss_bits=said["lossBits"], nodes=said["nodes"], siblings=(),
                    log_root=(state.log_root if is_long and state.job.is_logged else log), step_log=log,
                )  # fmt: skip
            case "TensorOpened", _:
                siblings = tuple(program.tree.proof(state.leaf))
                encoded = program.encoded_at(state.leaf)
                return moves.OpenTensor(instruction=encoded, siblings=siblings, nodes=said["nodes"])
            case "ChunkOpened", _:
                return moves.OpenChunk(chunk=said["chunk"], word=log)
            case "ElementSelected", moves.OpenChunk(chunk=chunk):
                index = said["element"] % (CHUNK_BYTES // state.dtype.size)
                return moves.SelectElement(index=index, chunk=chunk, seal=said["seal"])
            case "TermsOpened", _:
                return moves.OpenTerms(
                    step=state.step, value=state.leaf, element=state.element, nodes=said["nodes"],
                    accumulator=said["accumulator"], siblings=(),
                )  # fmt: skip
            case (("Selected" | "ElementSelected"), _):
                raise ChainError(f"expected {name} after what the defender showed, got it after {answered}")
    return None
