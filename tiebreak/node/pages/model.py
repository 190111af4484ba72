"""What a page shows, as values, and where it comes from. The functions that make them stand in `views`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from tiebreak.node.pages.walk import Walk
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A post that a hub has taken, read and checked."""

    place: int
    at: int
    post: p.Post
    body: p.Body


class Source(Protocol):
    """Where pages find what they show. Called from several threads at once."""

    domain: Domain
    chain: str
    """What transactions count on, in words."""

    def now(self) -> int:
        """Seconds by the clock that the board's times are of."""
        ...

    def place(self) -> int:
        """The place of the newest post."""
        ...

    def reading(self) -> AbstractContextManager[Board | None]:
        """The board, which stays as it is meanwhile; None if none is followed."""
        ...

    def jobs(self) -> Sequence[Digest]:
        """The jobs that posts speak of, the newest first."""
        ...

    def posts(self, job_id: Digest) -> Sequence[Seen]:
        """The posts about a job and its games, in their order."""
        ...

    def program(self, job_id: Digest) -> Program | None: ...

    def origins(self, job_id: Digest) -> Sequence[str]:
        """Where in the client's model each body instruction comes from, if its files say so: bound by nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the trainer says of how training goes; nothing of it is evidence."""

    points: tuple[Point, ...] = ()
    step: int = 0
    loss: float | None = None
    speed: float | None = None
    """Steps a second, as the trainer says."""
    processor: float | None = None
    """From 0 to 1, of all processors of the trainer's machine, as the trainer says."""
    memory: int | None = None
    at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A point of a job's way from its offer to its end. state: done, now, next or failed."""

    name: str
    detail: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRow:
    count: int
    step: int
    run_root: str
    signed: int | None
    """When the hub got it; None if it knows it from the board alone."""
    on_board: bool
    has_receipt: bool
    replays: int
    """Auditors that say they got the same root."""
    contradictions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    auditor: str
    count: int
    run_root: str
    agrees: bool
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """An amount: what for, who has it or gets it, and how much in wei."""

    what: str
    who: str
    wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    at: int
    who: str
    what: str
    game: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a game ended: who lost, in one line and in a sentence."""

    loser: str
    title: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A side of a game. rest: seconds on its clock; due: the last instant for its move, if a clock runs for it."""

    role: str
    account: str
    rest: int
    due: int | None
    allowance: int
    is_winner: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    id: str
    job_id: str
    head_count: int
    head_step: int
    status: str
    is_open: bool
    started: int
    ended: int
    talks_until: int | None
    """Until when the sides talk and no clock runs; None afterwards."""
    defender: Player
    challenger: Player
    turn: str
    walk: Walk
    verdict: Verdict | None
    gas: int
    by_message: int
    """Moves that are known from signed messages and have not been made on the board."""
    money: tuple[Money, ...]
    where: str
    """How far the walk has come, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCard:
    id: str
    status: str
    tone: str
    """How a status is set: live, good, bad or calm."""
    client: str
    trainer: str
    steps: int
    training: Training
    checkpoints: int
    heads: int
    reward: int
    games: int
    open_games: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    card: JobCard
    stops: tuple[Stop, ...]
    heads: tuple[HeadRow, ...]
    replays: tuple[Replay, ...]
    games: tuple[GameView, ...]
    terms: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    money: tuple[Money, ...]
    happenings: tuple[Happening, ...]
    next_what: str
    """What is awaited next, if it has a time."""
    next_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartyRow:
    account: str
    roles: tuple[str, ...]
    jobs: int
    won: int
    lost: int
    credit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    jobs: tuple[JobCard, ...]
    games: tuple[GameView, ...]
    running: int
    open_games: int
    at_stake: int
    convicted: int
