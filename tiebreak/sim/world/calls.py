"""The transactions of the simulated parties: the board's calls, with the stake taken from the job."""

from tiebreak.protocol.chain import calls
from tiebreak.protocol.chain.calls import Call, create_job, post_head, reclaim, timeout, withdraw
from tiebreak.protocol.chain.calls import move_call as make_move
from tiebreak.protocol.chain.calls import report_equivocation as report
from tiebreak.protocol.commitments.job import Job, SignedHead

__all__ = [
    "Call",
    "abandon",
    "accept_job",
    "cancel_job",
    "challenge",
    "create_job",
    "make_move",
    "post_head",
    "reclaim",
    "report",
    "settle",
    "timeout",
    "withdraw",
]


def cancel_job(job: Job) -> Call:
    return calls.cancel_job(job.id)


def accept_job(job: Job) -> Call:
    """Accept an offer and pay the trainer's stake."""
    return calls.accept_job(job.id, job.trainer_stake)


def settle(job: Job) -> Call:
    """End a job whose final head was not refuted."""
    return calls.settle(job.id)


def abandon(job: Job) -> Call:
    """End a job whose trainer has gone silent."""
    return calls.abandon(job.id)


def challenge(job: Job, head: SignedHead, nonce: int = 0) -> Call:
    """Start a game against a head and pay the challenger's stake."""
    return calls.challenge(head, nonce, job.challenger_stake)
