"""The contract call for each transaction that a party asks for, with what the board says it costs now."""

from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, PublicGame, PublicJob
from tiebreak.protocol.tags import Digest


def call_of(wanted: tx.Transaction, board: Board) -> Call:
    """The call that carries out a transaction, with the stakes and bonds that it has to pay as the board stands.

    Raises `Reverted`, as the contract would, if the board does not show the job or game that it is about.
    """
    match wanted:
        case tx.AcceptJob(job_id=job_id):
            return Call.of(wanted, _job(board, job_id).job.trainer_stake)
        case tx.Challenge(head=head, more=more):
            return Call.of(wanted, board.price(_job(board, head.head.job_id), more))
        case tx.JoinPool(bond=bond):
            return Call(wanted.function, (board.free_slot(bond),), bond)
        case tx.SealRoot(job_id=job_id):
            return Call.of(wanted, _job(board, job_id).job.seat_bond)
        case tx.MakeMove(game_id=game_id, move=move):
            return move_call(_game(board, game_id).state, move)
    return Call.of(wanted)


def _job(board: Board, job_id: Digest) -> PublicJob:
    if job_id not in board.jobs:
        raise Reverted("WrongJobStatus", {"jobId": job_id})
    return board.jobs[job_id]


def _game(board: Board, game_id: Digest) -> PublicGame:
    if game_id not in board.games:
        raise Reverted("NoSuchGame", {"gameId": game_id})
    return board.games[game_id]
