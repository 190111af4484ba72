"""The jobs, games and credits that anyone can read from the board, as far as the chain has been followed.

The driver that reads the chain applies the rules of following (which log changes what). A machine only reads the
result, again at each event, so a log that came late, twice or not at all leaves no trace in its next plan.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job, SignedHead
from tiebreak.protocol.commitments.seats import ATTEMPTS, slot_of
from tiebreak.protocol.commitments.terms import MAX_GAMES, ether
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

BURNED: Final = Address(bytes(18) + b"\xde\xad")
"""Counts as the account of what burned: the contract owes that to nobody, and its events say how much it was."""


class JobStatus(IntEnum):
    """The status numbers of the contract."""

    NONE = 0
    OFFERED = 1
    ACTIVE = 2
    CANCELLED = 3
    SETTLED = 4
    SLASHED = 5
    ABANDONED = 6
    PARTED = 7


@dataclass(slots=True, kw_only=True)
class PoolSlot:
    """A place in a pool; a hole has no owner."""

    owner: Address | None
    since: int


@dataclass(slots=True, kw_only=True)
class Seating:
    """The seats of a job, as the board shows them."""

    sealed_at: int = 0
    """The instant at which the final head was sealed; 0 before."""
    pool_length: int = 0
    """Slots that the pool had when the final head was sealed: those added later are not drawn."""
    is_opened: bool = False
    seed: Digest | None = None
    """None until the seats are drawn."""
    seals: dict[int, tuple[Address, Digest]] = field(default_factory=dict)
    """The auditor and its seal, by seat."""
    claimed: dict[int, int] = field(default_factory=dict)
    """The wei that each claimed seat was paid."""
    is_closed: bool = False


@dataclass(slots=True, kw_only=True)
class PublicJob:
    """A job as the board shows it."""

    job: Job
    status: JobStatus = JobStatus.OFFERED
    head_count: int = 0
    last_progress: int
    """The instant at which the job was created or accepted, or its last head was posted."""
    accepted: int = 0
    audit_end: int = 0
    """The instant until which the segments of all posted heads can be replayed, one after the other."""
    crowd: int = 0
    """The most games that were open at once since none was."""
    receipts: int = 0
    """Policy `logged`: the count of the highest head for whose logs the client has signed on the board."""
    ended: int | None = None
    """The instant at which the job ended; None while it goes on."""
    equivocation: bool = False
    """Whether the job was slashed because its trainer signed two heads with the same count."""
    inconsistency: bool = False
    """Whether the job was slashed because its trainer signed two heads with different leaves in one place."""
    nonfinite: bool = False
    """Whether the job was slashed because its trainer signed a record whose loss is not finite."""
    conceded: bool = False
    """Whether the job was slashed because its trainer signed that a head is false."""
    auditors: tuple[Address, ...] = ()
    """The accounts that the client has named where there is no chain: each has a game that nobody else can take."""
    seating: Seating = field(default_factory=Seating)
    """Says nothing of a job without seats."""
    id: Digest = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.job.id  # hashes all fields of the job, so computed only once

    def accept(self, now: int) -> None:
        """The trainer has accepted the job: all its times count from now."""
        self.status = JobStatus.ACTIVE
        self.accepted = self.last_progress = self.audit_end = now

    def post(self, count: int, now: int) -> None:
        """A head was posted: the window starts again, and each of its new segments brings its audit time.

        In a job with seats that is the final head, which was sealed: its segments had their time when it was not open.
        """
        self.seating.is_opened = bool(self.job.seats)
        self.audit_end = max(self.audit_end, now) + (count - self.head_count) * self.job.audit_time
        self.head_count, self.last_progress = count, now

    def seal(self, count: int, now: int, pool_length: int) -> None:
        """A head was sealed: the window starts again, but nobody can audit yet. The final one fixes the pool."""
        self.audit_end = max(self.audit_end, now)
        self.head_count, self.last_progress = count, now
        if count == self.job.checkpoints:
            self.seating.sealed_at, self.seating.pool_length = now, pool_length

    def draw(self, seed: Digest, now: int) -> None:
        """The seats were drawn: the window starts again, and all segments bring their audit time."""
        self.seating.seed, self.last_progress = seed, now
        self.audit_end = max(self.audit_end, now) + self.head_count * self.job.audit_time

    @property
    def is_over(self) -> bool:
        """Whether the job has ended. Games of a slashed job may still be waiting to be reclaimed."""
        return self.status > JobStatus.ACTIVE

    @property
    def has_final_head(self) -> bool:
        """Whether the trainer has posted all heads of the job, and opened the last if they were sealed."""
        return self.head_count == self.job.checkpoints and not self.is_sealed

    @property
    def is_sealed(self) -> bool:
        """Whether the final head is sealed and not opened."""
        return self.seating.sealed_at > 0 and not self.seating.is_opened

    @property
    def claim_end(self) -> int:
        """The last instant at which the seats of a job that has ended can be claimed; 0 while it goes on."""
        return 0 if self.ended is None else self.ended + self.job.challenge_window

    @property
    def window_end(self) -> int:
        """The last instant at which a game may start; `settle` is legal after it."""
        return max(self.last_progress + self.job.challenge_window, self.audit_end)

    @property
    def lacks_receipts(self) -> bool:
        """Whether, under policy `logged`, a receipt is missing that the job needs to be settled."""
        return self.job.is_logged and self.receipts < self.job.checkpoints

    @property
    def earned(self) -> int:
        """The share of the reward that the trainer gets, in addition to its stake, if the two part now."""
        return self.job.reward * self.receipts // self.job.checkpoints

    @property
    def parting(self) -> int:
        """The instant after which the client may part."""
        return self.window_end if self.has_final_head else min(self.window_end, self.accepted + self.job.deadline)

    @property
    def due(self) -> int:
        """The last instant to post the next head, or to open the sealed one; after it, `abandon` is legal."""
        if self.is_sealed:
            return self.window_end + self.job.challenge_window
        return min(self.last_progress + self.job.challenge_window, self.accepted + self.job.deadline)

    @property
    def joining_end(self) -> int:
        """The last instant at which auditors can join the pool in time: the final head is sealed later."""
        return self.accepted + min(self.job.challenge_window, self.job.deadline) // 2

    @property
    def share(self) -> int:
        """The wei for whoever convicts the trainer, less the relief of others, and for each seat that saw the lie."""
        return self.job.trainer_stake // 2 // (1 + self.job.seats)

    @property
    def relief(self) -> int:
        """The wei, out of the prover's share, for a challenger whose game was open when the trainer was slashed."""
        return min(self.job.challenger_stake // 2, self.share // MAX_GAMES)

    @property
    def paid_fees(self) -> int:
        """The number of seats that got their fee, or a share in addition, and not only their bond."""
        return sum(amount > self.job.seat_bond for amount in self.seating.claimed.values())


def loss_of(job: Job, state: Any) -> str:
    """The reason why a job was given up or slashed, and what that cost; empty for others. state: as a board has it."""
    since, late = f"head {state.head_count}" if state.head_count else "acceptance", f"head {state.head_count + 1}"
    why = f"{late} did not come within {job.challenge_window} s of {since}"
    if state.last_progress + job.challenge_window > state.accepted + job.deadline:
        why = f"the final head did not come within {job.deadline} s of acceptance"
    if state.head_count == job.checkpoints:
        why = "its sealed head was not opened in time"
    if state.status not in (JobStatus.ABANDONED, JobStatus.SLASHED):
        return ""
    why = "its trainer was convicted" if state.status is JobStatus.SLASHED else why
    return f"{why}; the trainer lost its stake of {ether(job.trainer_stake)}"


@dataclass(slots=True, kw_only=True)
class PublicGame:
    """A game as its transactions show it."""

    id: Digest
    job: PublicJob
    challenger: Address
    head: SignedHead
    state: GameState
    """The state by the rules of `tiebreak.protocol.game`."""
    started: int
    rank: int = 0
    """The number of games of the job that were open when it started."""
    moves: list[Move] = field(default_factory=list)
    """The line that led to the state: moves made on the chain, or in the talk and then entered."""
    entries: int = 0
    """The number of states that entered and of vanished blocks about the game; each may have begun another line."""
    height: int = 0
    """The number of the block that last changed the game."""
    void: bool = False
    is_lost: bool = False
    """Whether the state is one of the past, because this follower lacks the data to know the present one."""
    costs: list[tuple[int, int]] = field(default_factory=list)
    """The number of moves after each transaction about the game, and the gas that it took."""
    ended: int = 0

    @property
    def gas(self) -> int:
        """The gas of all transactions about the game, as their receipts say; 0 where nobody saw receipts."""
        return sum(gas for _, gas in self.costs)

    @property
    def stake(self) -> int:
        """Wei that its challenger loses or gets back: the job's stake, doubled for each game open before it."""
        return self.job.job.challenger_stake << self.rank

    @property
    def answered(self) -> Move | None:
        """The last move, or None before the first."""
        return self.moves[-1] if self.moves else None

    @property
    def first_state(self) -> GameState:
        """The game's state before any move, at the instant at which it was started."""
        return rules.start(self.job.job, self.head.head, self.id, self.started)

    @property
    def is_over(self) -> bool:
        """Whether the game has a verdict or was voided."""
        return self.void or self.state.is_over

    @property
    def is_stopped(self) -> bool:
        """Whether moves have stopped counting, because the game or its job is over."""
        return self.is_over or self.job.status is not JobStatus.ACTIVE

    def mover(self) -> Address:
        return self.job.job.trainer if self.state.mover is Side.DEFENDER else self.challenger


class Board:
    """Jobs and games by id, in order of arrival, and the credit that the board owes to each account."""

    def __init__(self) -> None:
        self.jobs: dict[Digest, PublicJob] = {}
        self.games: dict[Digest, PublicGame] = {}
        self.credits: dict[Address, int] = {}
        self.height = 0
        """The number of the newest block."""
        self.pools: dict[int, list[PoolSlot]] = {}
        """The slots of each pool, by the bond of its seats."""

    def games_of(self, job_id: Digest) -> list[PublicGame]:
        return [found for found in self.games.values() if found.job.id == job_id]

    def open_games(self, job_id: Digest) -> list[PublicGame]:
        """Games about a job that have no verdict yet."""
        return [found for found in self.games_of(job_id) if not found.is_over]

    def begin(self, game: PublicGame) -> None:
        """Add a game that starts now. Its job's open games then all have the allowances of the larger crowd."""
        job, others = game.job, self.open_games(game.job.id)
        game.rank = len(others)
        job.crowd = max(job.crowd, game.rank + 1) if others else 1
        self.games[game.id] = game
        for played in (*others, game):
            played.state = replace(played.state, crowd=job.crowd)

    def price(self, job: PublicJob, more: int = 0) -> int:
        """Wei that a challenge costs now, or once `more` games are open in addition."""
        return job.job.challenger_stake << min(len(self.open_games(job.id)) + more, MAX_GAMES - 1)

    def stake_of(self, wanted: tx.Transaction) -> int:
        """Wei that a transaction puts up now: a stake, a bond or a deposit. Raises `KeyError` without its job."""
        match wanted:
            case tx.AcceptJob(job_id=job_id):
                return self.jobs[job_id].job.trainer_stake
            case tx.Challenge(head=head, more=more):
                return self.price(self.jobs[head.head.job_id], more)
            case tx.JoinPool(bond=bond):
                return bond
            case tx.SealRoot(job_id=job_id):
                return self.jobs[job_id].job.seat_bond
        return 0

    def credit(self, account: Address) -> int:
        """Wei that an account can withdraw."""
        return self.credits.get(account, 0)

    def exposure(self, account: Address, job_id: Digest | None = None) -> int:
        """Wei that an account has up for a job, as stake, bonds and challenges, or for all jobs, with its deposits."""
        wei = 0 if job_id else sum(bond for bond, _ in self.slots_of(account))
        for job in self.jobs.values() if job_id is None else [self.jobs[job_id]]:
            if job.status is JobStatus.ACTIVE:
                wei += job.job.trainer_stake * (job.job.trainer == account)
                wei += job.job.seat_bond * sum(owner == account for owner, _ in job.seating.seals.values())
        games = self.games.values() if job_id is None else self.games_of(job_id)
        return wei + sum(game.stake for game in games if game.challenger == account and not game.is_stopped)

    def seat_owner(self, job: PublicJob, seat: int) -> Address | None:
        """The owner of a seat; None before the draw, and if none of the slots that are drawn has an owner."""
        seating, pool = job.seating, self.pools.get(job.job.seat_bond, [])
        if seating.seed is None or not seating.pool_length:
            return None
        for attempt in range(ATTEMPTS):
            slot = pool[slot_of(seating.seed, seat, attempt, seating.pool_length)]
            if slot.owner is not None and slot.since < seating.sealed_at:
                return slot.owner
        return None

    def pool_of(self, job: PublicJob) -> tuple[int, int]:
        """(slots, own): the filled slots of its seats' pool, and of how many on its trainer gains by a lie.

        By a lie that saves the reward and brings nothing else, reported by the trainer itself once it is found: with
        f = own / slots, where (1 - f^n) (R + T - S) <= R + n f (1 - f^(n - 1)) S, S `share` (docs/economics.md). The
        difference of both sides grows with f. A lie that brings more pays from fewer slots on.
        """
        n, lost = job.job.seats, job.job.reward + job.job.trainer_stake - job.share
        slots = sum(slot.owner is not None for slot in self.pools.get(job.job.seat_bond, []))

        def pays(own: int) -> bool:
            gained: int = job.job.reward * slots**n + n * job.share * (own * slots ** (n - 1) - own**n)
            return bool(gained >= (slots**n - own**n) * lost)

        return slots, bisect_left(range(slots), True, key=pays)

    def free_slot(self, bond: int) -> int:
        """The first slot of a pool that can be taken."""
        pool = self.pools.get(bond, [])
        return next((number for number, slot in enumerate(pool) if slot.owner is None), len(pool))

    def slots_of(self, account: Address) -> list[tuple[int, int]]:
        """(bond, number) of every slot of an account."""
        return [
            (bond, number)
            for bond, pool in self.pools.items()
            for number, slot in enumerate(pool)
            if slot.owner == account
        ]
