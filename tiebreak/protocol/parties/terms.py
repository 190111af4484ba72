"""The terms of a job are judged before a key signs them: they have to leave an honest party the time that it needs.

Nobody is protected from what it signs, or from a game that it starts. A clock shorter than a block takes a challenger's
stake whoever is right; a window shorter than a segment takes a trainer's. So an honest party keeps out of a job that it
could lose by the terms alone.
"""

from dataclasses import dataclass
from typing import Final

from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.records import chunk_count
from tiebreak.protocol.game.rules import walk_moves
from tiebreak.protocol.program.isa import TERMS_PER_LEAF
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of

MISSED_BLOCKS: Final = 3
"""Of one side's transactions in a game, or for a segment, this many may each have to wait for one block more."""
REPLAYS: Final = 3
"""Moves of one side in a game that need re-execution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What things take, in seconds: a block of the chain, and a step of the job for this party."""

    block_seconds: int
    step_seconds: int
    """On ordinary data."""
    slowdown: int = 1
    """How many times as long a step takes on the worst data there can be: a client may have chosen them.

    `tiebreak doctor --worst` measures it on a machine.
    """

    def sending(self, transactions: int) -> int:
        """Until so many transactions, one after another, stand in blocks."""
        return (transactions + MISSED_BLOCKS) * self.block_seconds


def turns(job: Job, program: Program) -> int:
    """Moves of one side in the longest game about this job's program."""
    values = program.body
    leaves = max((-(-value.terms // TERMS_PER_LEAF) for value in values if value.is_reduction), default=1)
    moves = walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=depth_of(max(chunk_count(value.dtype, value.shape) for value in values)),
        terms=depth_of(leaves),
    )
    return -(-moves // 2)


def objections(job: Job, program: Program, pace: Pace) -> tuple[str, ...]:
    """Why nobody honest should be a side of this job's games; empty if there is no reason."""
    replay = _segment_seconds(job, pace)
    needed = pace.sending(turns(job, program)) + REPLAYS * max(0, replay - job.replay_time)
    if job.clock < needed:
        return (f"expected a clock of at least {needed} seconds for the longest game, got {job.clock}",)
    return ()


def objections_to_training(job: Job, program: Program, pace: Pace) -> tuple[str, ...]:
    """Why no trainer should sign this job: it could lose its stake though it does as agreed."""
    needed = _segment_seconds(job, pace) + pace.sending(1)
    found = objections(job, program, pace)
    if job.challenge_window < needed:
        found += (f"expected a window of at least {needed} seconds for a head, got {job.challenge_window}",)
    return found


def objections_to_auditing(job: Job, program: Program, pace: Pace) -> tuple[str, ...]:
    """Why no auditor should challenge in this job: it has to lose, or has nothing to win.

    A window in which nobody can replay the run is no reason: an auditor that comes too late loses nothing, the client
    does.
    """
    found = objections(job, program, pace)
    if job.trainer_stake < 2:
        found += (f"expected a trainer's stake of which half can be won, got {job.trainer_stake} wei",)
    return found


def _segment_seconds(job: Job, pace: Pace) -> int:
    """By the slowest data: a window that holds only ordinary steps is a trap."""
    return job.checkpoint_interval * pace.step_seconds * pace.slowdown
