"""What everyone can read off the board: jobs, games and credits, as far as the chain is followed.

The rules of following (which log changes what) belong to whoever reads the chain. A machine only reads the result, anew
at each event, so a log that came late, twice or not at all leaves no trace in what it plans next.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.tags import Digest


class JobStatus(IntEnum):
    """The contract's, number by number."""

    NONE = 0
    OFFERED = 1
    ACTIVE = 2
    CANCELLED = 3
    SETTLED = 4
    SLASHED = 5
    ABANDONED = 6


_ENDED: Final = (JobStatus.CANCELLED, JobStatus.SETTLED, JobStatus.ABANDONED, JobStatus.SLASHED)


@dataclass(slots=True, kw_only=True)
class PublicJob:
    """A job as the board shows it."""

    job: Job
    status: JobStatus = JobStatus.OFFERED
    head_count: int = 0
    last_progress: int
    """When it was created, accepted, or its last head was posted."""
    ended: int | None = None
    """When it was over."""
    equivocation: bool = False
    """Whether it was slashed for two heads of one count."""
    id: Digest = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.job.id  # a hash of all the job's fields: made once

    @property
    def is_over(self) -> bool:
        """Whether nothing more can happen to it; games of a slashed job may still wait to be reclaimed."""
        return self.status in _ENDED

    @property
    def has_final_head(self) -> bool:
        """Whether the trainer posted all its heads."""
        return self.head_count == self.job.checkpoints

    @property
    def window_end(self) -> int:
        """The last instant at which a game may start; `settle` and `abandon` are legal after it."""
        return self.last_progress + self.job.challenge_window


@dataclass(slots=True, kw_only=True)
class PublicGame:
    """A game as its transactions show it."""

    id: Digest
    job: PublicJob
    challenger: Address
    head: SignedHead
    state: GameState
    """By the rules of `tiebreak.protocol.game`."""
    started: int
    moves: list[Move] = field(default_factory=list)
    void: bool = False
    gas: int = 0
    ended: int = 0

    @property
    def answered(self) -> Move | None:
        """The last move."""
        return self.moves[-1] if self.moves else None

    @property
    def is_over(self) -> bool:
        """Whether it has a verdict, or was voided."""
        return self.void or self.state.is_over

    @property
    def is_stopped(self) -> bool:
        """Whether no move counts any more."""
        return self.is_over or self.job.status is not JobStatus.ACTIVE

    def mover(self) -> Address:
        """Whose move it is."""
        return self.job.job.trainer if self.state.mover is Side.DEFENDER else self.challenger


class Board:
    """Jobs and games by id, in the order in which they came, and what the board owes to each account."""

    def __init__(self) -> None:
        self.jobs: dict[Digest, PublicJob] = {}
        self.games: dict[Digest, PublicGame] = {}
        self.credits: dict[Address, int] = {}

    def games_of(self, job_id: Digest) -> list[PublicGame]:
        """The games about a job, oldest first."""
        return [found for found in self.games.values() if found.job.id == job_id]

    def open_games(self, job_id: Digest) -> list[PublicGame]:
        """Those that have no verdict."""
        return [found for found in self.games_of(job_id) if not found.is_over]

    def credit(self, account: Address) -> int:
        """Wei that an account can withdraw."""
        return self.credits.get(account, 0)
