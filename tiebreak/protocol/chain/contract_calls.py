"""The contract call for each transaction that a party asks for, with what the board says it costs now."""

from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board


def call_of(wanted: tx.Transaction, board: Board) -> Call:
    """The call that carries out a transaction, with the stakes and bonds that it has to pay as the board stands.

    Raises `Reverted`, as the contract would, if the board does not show the job or game that it is about.
    """
    match wanted:
        case tx.JoinPool(bond=bond):
            return Call(wanted.function, (board.free_slot(bond),), bond)
        case tx.MakeMove(game_id=game_id, move=move):
            if game_id not in board.games:
                raise Reverted("NoSuchGame", {"gameId": game_id})
            return move_call(board.games[game_id].state, move)
    try:
        return Call.of(wanted, wanted.wei + board.stake_of(wanted))
    except KeyError:
        raise Reverted("WrongJobStatus", {"jobId": tx.subject_of(wanted)[0]}) from None
