"""Judges the terms of a job before a key signs them: they must leave an honest party enough time.

The protocol does not protect parties from what they sign, or from games that they start. If the clock is shorter than a
block, a challenger loses its stake even if it is right; if the window is shorter than a segment, a trainer does. So an
honest party stays out of a job that it could lose by the terms alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.game.rules import walk_moves
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.trees import depth_of

CONFIRMATIONS: Final = 2
"""Blocks on top of a transaction's after which it counts as sent for good, unless its owner chooses another number."""
MISSED_BLOCKS: Final = 3
"""Transactions of one side in a game, or for a segment, that may each have to wait for one extra block."""
ENTERING: Final = 3
"""Transactions for which a side leaves time when it enters the state it is to move in; its opponent leaves less."""
REPLAYS: Final = 3
"""Number of moves by one side in a game that need re-execution."""
PATIENCE: Final = 1 << 22
"""Seconds that a party lets its stake be held beyond the time of its own work: seven weeks."""
HELD_RUNS: Final = 4
"""The multiple of the run's own time that a party waits for its end, in addition to its patience."""
MAX_STAKE_RATIO: Final = 1000
"""The largest ratio of the trainer's stake to the challenger's, or the other way round.

A smaller stake than that makes games without ground too cheap a way to delay; a larger one risks much to win little.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The seconds that a block of the chain, and a step of the job on this party's machine, take."""

    block_seconds: int
    step_seconds: float
    """The seconds of a step on ordinary data."""
    slowdown: int = 1
    """The factor by which a step takes longer on the worst possible data, which a client may have chosen.

    `tiebreak worst` measures this on a machine.
    """
    start_seconds: float = 0
    """Seconds from a process's start to its first step: before the first head, and before the next after a restart."""
    step_wei: int = 0
    """The wei that a step of an audit costs its owner."""
    games: int = 1
    """The number of jobs in which this party may have games at once: their moves share its machine."""
    beside: float = 0
    """Seconds of the longest step, on the worst data, of all its jobs: it may be under way when a move is due."""

    def sending(self, transactions: int) -> int:
        """Seconds until this many transactions, sent one after another, are in blocks."""
        return (transactions + MISSED_BLOCKS) * self.block_seconds

    def measured(self) -> str:
        """The measured figures, for reasons that are given; empty if no start was measured."""
        found = f": here a start takes {self.start_seconds:.3g} s and a step {self.step_seconds:.3g} s"
        return found if self.start_seconds else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The wei that a party may put up; 0 sets no limit."""

    most_bond: int = 0
    """The largest bond of a seat, and so the largest deposit in a pool."""
    most_stake: int = 0
    """The most for one job. An auditor joins a pool or takes a seat only if as much is left for a challenge."""
    most_exposed: int = 0
    """The most for all jobs and pools together."""
    floor: int = 0
    """The account keeps this much to pay for the transactions of games."""
    balance: Callable[[], int | None] | None = None
    """Returns the account's wei; None where everybody can pay."""

    def objection(self, *, of_job: int, in_all: int) -> str:
        """The reason not to put up more, given the totals that would result; empty if there is none."""
        for what, most, found in (("for this job", self.most_stake, of_job), ("in all", self.most_exposed, in_all)):
            if most and found > most:
                return f"expected to put up at most {ether(most)} {what}, got {ether(found)}"
        return ""

    def shortage(self, wei: int) -> str:
        """The reason why the account cannot pay this much and keep its floor; empty if it can."""
        needed, balance = wei + self.floor, None if self.balance is None else self.balance()
        if balance is None or balance >= needed:
            return ""
        return f"expected a balance of at least {ether(needed)}, got {ether(balance)}; send money to the account"


def turns(job: Job, program: Program) -> int:
    """Number of moves by one side in the longest game about this job's program."""
    chunks, terms = program.heights
    moves = walk_moves(
        job.descent_levels,
        run=job.run_depth,
        steps=depth_of(job.checkpoint_interval),
        values=job.half_depth + 1,
        chunks=chunks,
        terms=terms,
    )
    return -(-moves // 2)


def objections(job: Job, program: Program | None, pace: Pace) -> tuple[str, ...]:
    """Reasons why an honest party should not be a side in this job's games; empty if there are none."""
    if program is None:
        return ("it does not have the program",)
    replay = ceil(_segment_seconds(job, pace) * pace.games + pace.beside)
    first = replay + ceil(pace.start_seconds * pace.games)  # a game's process starts once
    needed = pace.sending(turns(job, program)) + max(0, first - job.replay_time)
    needed += (REPLAYS - 1) * max(0, replay - job.replay_time)
    least, longest = pace.sending(ENTERING), job.lone_game_seconds
    clock = f"expected a clock of at least {needed} seconds for the longest game, got {job.clock}{pace.measured()}"
    talk = f"expected no talk, or one of more than {least} seconds to say and enter something, got {job.talk_time}"
    held = f"expected a game of at most {PATIENCE} seconds, got {longest}: it holds stakes for so long"
    return _broken((job.clock < needed, clock), (0 < job.talk_time <= least, talk), (longest > PATIENCE, held))[:1]


def objections_to_seats(job: Job, domain: Domain) -> tuple[str, ...]:
    """Reasons why nobody should offer or sign this job there: seats need a draw and bonds that only a chain has."""
    reason = f"expected a job without seats, because there is no chain to draw them, got one with {job.seats}"
    return _broken((job.seats > 0 and not domain.chain_id, reason))


def objections_to_training(job: Job, program: Program | None, pace: Pace) -> tuple[str, ...]:
    """Reasons why a trainer should not sign this job: it could lose its stake despite doing what was agreed."""
    needed, start = _segment_seconds(job, pace) + pace.sending(1), ceil(pace.start_seconds)
    first, run, measured = start + needed, start + job.checkpoints * needed, pace.measured()
    held, most = max(job.challenge_window, job.checkpoints * job.audit_time), HELD_RUNS * run + PATIENCE
    least = -(-job.trainer_stake // MAX_STAKE_RATIO)
    window = f"expected a window of at least {first} seconds for a head, got {job.challenge_window}{measured}"
    deadline = f"expected a deadline of at least {run} seconds for the run, got {job.deadline}{measured}"
    stake = f"expected a challenger's stake of at least {least} wei, got {job.challenger_stake}"
    single = "expected two checkpoints or more under policy logged, got one: a client may keep the pay of one"
    return objections(job, program, pace) + _broken(
        (job.challenge_window < first, window),
        (job.deadline < run, deadline),
        (held > most, f"expected the stake back at most {most} seconds after the last head, got {held}"),
        (job.is_logged and job.checkpoints == 1, single),
        (job.challenger_stake < least, stake),
    )


def objections_to_auditing(job: Job, program: Program | None, pace: Pace) -> tuple[str, ...]:
    """Reasons why an auditor should not challenge in this job: it would have to lose, or has nothing to win.

    A time too short to replay the run is not a reason: an auditor that comes too late loses nothing, while the client
    does.
    """
    least = max(2, -(-job.challenger_stake // MAX_STAKE_RATIO))
    stake = f"expected a trainer's stake of at least {least} wei, of which half can be won, got {job.trainer_stake}"
    return objections(job, program, pace) + _broken((job.trainer_stake < least, stake))


def objections_to_paying(job: Job, pace: Pace) -> tuple[str, ...]:
    """Reasons why a client should not offer this job: a false run could be paid, or hold the reward for too long."""
    most = HELD_RUNS * job.checkpoints * (_segment_seconds(job, pace) + pace.sending(1)) + PATIENCE
    # The data are the client's own. With this much time for each segment, it has checked all posted ones at the end.
    needed = ceil(job.checkpoint_interval * pace.step_seconds) + pace.sending(1)
    is_short = job.audit_time < needed and job.challenge_window < job.checkpoints * needed
    return _broken(
        (is_short, f"expected an audit time of at least {needed} seconds for a segment, got {job.audit_time}"),
        (job.deadline > most, f"expected a deadline of at most {most} seconds, got {job.deadline}"),
    )


def objections_to_sitting(job: Job, program: Program | None, pace: Pace) -> tuple[str, ...]:
    """Reasons why an auditor should not take a seat: it could not audit the job in time, or not for the fee."""
    if program is None:
        return ("it does not have the program",)
    replay = ceil(pace.start_seconds) + job.checkpoints * _segment_seconds(job, pace) + pace.sending(1)
    time, fee = max(job.challenge_window, job.checkpoints * job.audit_time), job.steps * pace.step_wei
    most = HELD_RUNS * replay + PATIENCE
    held = f"expected a deadline of at most {most} seconds, for which a deposit is held, got {job.deadline}"
    return _broken(
        (time < replay, f"expected at least {replay} seconds for an audit of the whole run, got {time}"),
        (job.seat_fee < fee, f"expected a seat fee of at least {fee} wei, got {job.seat_fee}"),
        (job.deadline > most, held),
    )


def _broken(*terms: tuple[bool, str]) -> tuple[str, ...]:
    """The reasons of the terms that are broken."""
    return tuple(reason for is_broken, reason in terms if is_broken)


def _segment_seconds(job: Job, pace: Pace) -> int:
    """Seconds for one segment on the slowest data: a window that only holds ordinary steps is a trap."""
    return ceil(job.checkpoint_interval * pace.step_seconds * pace.slowdown)
