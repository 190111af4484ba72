"""The contract call for each transaction that a party asks for, with what the board says it costs now."""

from collections.abc import Callable
from typing import Any, Final

from tiebreak.protocol.chain import calls
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.errors import Reverted
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import Board, PublicGame, PublicJob
from tiebreak.protocol.tags import Digest

_CALLS: Final[dict[type[e.Transaction], Callable[[Any], Call]]] = {
    e.CreateJob: lambda wanted: calls.create_job(wanted.job, wanted.signature),
    e.CancelJob: lambda wanted: calls.cancel_job(wanted.job_id),
    e.PostHead: lambda wanted: calls.post_head(wanted.head),
    e.Report: lambda wanted: calls.report_equivocation(wanted.first, wanted.second),
    e.ReportInconsistency: lambda wanted: calls.report_inconsistency(
        wanted.position, *((one.head, one.leaf, one.siblings) for one in (wanted.first, wanted.second))
    ),
    e.ReportConcession: lambda wanted: calls.report_concession(wanted.concession),
    e.Settle: lambda wanted: calls.settle(wanted.job_id),
    e.Abandon: lambda wanted: calls.abandon(wanted.job_id),
    e.Acknowledge: lambda wanted: calls.acknowledge(wanted.receipt),
    e.Part: lambda wanted: calls.part(wanted.job_id),
    e.Enter: lambda wanted: Call("enter", _entered(wanted)),
    e.EnterAndProve: lambda wanted: Call(
        "enterAndProve", (*_entered(wanted.entered), calls.proof_argument(wanted.move), wanted.move.salt, wanted.opened)
    ),
    e.ReportFork: lambda wanted: calls.report_fork(wanted.fork),
    e.ClaimTimeout: lambda wanted: calls.timeout(wanted.game_id),
    e.Reclaim: lambda wanted: calls.reclaim(wanted.game_id),
    e.LeavePool: lambda wanted: calls.leave_pool(wanted.bond, wanted.slot),
    e.SealHead: lambda wanted: calls.seal_head(wanted.job_id, wanted.count, wanted.seal),
    e.DrawSeats: lambda wanted: calls.draw_seats(wanted.job, wanted.secret),
    e.OpenHead: lambda wanted: calls.open_head(wanted.head, wanted.salt),
    e.ClaimSeat: lambda wanted: calls.claim_seat(
        wanted.job_id, wanted.seat, wanted.auditor, wanted.run_root, wanted.salt
    ),
    e.CloseSeats: lambda wanted: calls.close_seats(wanted.job_id),
    e.Withdraw: lambda wanted: calls.withdraw(wanted.to),
}


def call_of(wanted: e.Transaction, board: Board) -> Call:
    """The call that carries out a transaction, with the stakes and bonds that it has to pay as the board stands.

    Raises `Reverted`, as the contract would, if the board does not show the job or game that it is about.
    """
    match wanted:
        case e.AcceptJob(job_id=job_id):
            return calls.accept_job(job_id, _job(board, job_id).job.trainer_stake)
        case e.Challenge(head=head, nonce=nonce, more=more):
            return calls.challenge(head, nonce, board.price(_job(board, head.head.job_id), more))
        case e.JoinPool(bond=bond):
            return calls.join_pool(board.free_slot(bond), bond)
        case e.SealRoot(job_id=job_id):
            return calls.seal_root(job_id, wanted.seat, wanted.seal, _job(board, job_id).job.seat_bond)
        case e.MakeMove():
            return calls.move_call(_game(board, wanted.game_id).state, wanted.move)
    return _CALLS[type(wanted)](wanted)


def _entered(wanted: e.Enter) -> tuple[Any, ...]:
    return (wanted.game_id, wanted.sequence, wanted.snapshot, wanted.signature)


def _job(board: Board, job_id: Digest) -> PublicJob:
    if job_id not in board.jobs:
        raise Reverted("WrongJobStatus", {"jobId": job_id})
    return board.jobs[job_id]


def _game(board: Board, game_id: Digest) -> PublicGame:
    if game_id not in board.games:
        raise Reverted("NoSuchGame", {"gameId": game_id})
    return board.games[game_id]
