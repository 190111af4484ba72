"""The values that pages show, and their source. The functions that make them are in `views` and `walk`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tiebreak.api.watching.alarms import Rule
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPost:
    """A post that a hub has taken, read and checked."""

    place: int
    at: int
    post: p.Post
    body: p.Body


class PageSource(Protocol):
    """A source of the values that pages show. Several threads call it at once."""

    domain: Domain
    chain: str
    """The chain, ledger or paper on which transactions count, in words."""
    on_paper: bool
    """Whether nobody holds the money: the board's credits are what each account has gained or lost so far."""

    def now(self) -> int:
        """Seconds by the same clock as the board's times."""
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

    def offered(self, job_id: Digest) -> Job | None:
        """A job that was offered through the hub, without a look at its posts."""
        ...

    def name(self, job_id: Digest) -> str:
        """The name that its client or its trainer published for a job, if any: bound by nothing."""
        ...

    def posts(self, job_id: Digest, *, is_brief: bool = False) -> Sequence[ReadPost]:
        """The posts about a job and its games, in their order: the first and the newest, fewer of them if brief."""
        ...

    def job_of_game(self, game_id: Digest) -> Digest | None:
        """The job of a game that was opened through the hub."""
        ...

    def program(self, job_id: Digest) -> Program | None: ...

    def origins(self, job_id: Digest) -> Sequence[str]:
        """The origin of each body instruction in the client's model, if its files tell it: bound by nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    step: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The trainer's own account of its training; nothing of it is evidence."""

    points: tuple[Point, ...] = ()
    step: int = 0
    loss: float | None = None
    speed: float | None = None
    """Steps a second, as the trainer says."""
    processor: float | None = None
    """The share, from 0 to 1, of all processors of the trainer's machine, as the trainer says."""
    memory: int | None = None
    at: int = 0
    rules: tuple[Rule, ...] = ()
    """The results of the rules that need no more than posts: alarms, never a verdict."""


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
    """Unix time at which the hub got the signed head; None if it knows the head from the board alone."""
    on_board: bool
    has_receipt: bool
    replays: int
    """The number of auditors that say they got the same root."""
    contradictions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReplay:
    auditor: str
    count: int
    run_root: str
    agrees: bool
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """An amount in wei, its purpose, and the account that has it or gets it."""

    what: str
    who: str
    wei: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    at: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVerdict:
    """The ending of a game: its loser, in one line and in a sentence."""

    loser: str
    title: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSide:
    """A side of a game. rest: seconds on its clock; due: the last instant for its move, if a clock runs for it."""

    role: str
    account: str
    rest: int
    due: int | None
    allowance: int
    is_winner: bool | None


# ---------------------------------------------------------------- a game

Range = tuple[int, int]
"""Half open: the first place, and the one behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One tree of the walk. `cuts` are the ranges that selections left, each inside the one before."""

    name: str
    question: str
    total: int
    unit: str
    cuts: tuple[Range, ...]
    found: Range | None
    title: str
    detail: str = ""
    path: str = ""
    """Module path of the disputed instruction in the client's model. Display only: bound by nothing."""
    line: str = ""
    """The line of the client's source that made it. Display only, as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The content of the disputed place as a side claims it."""

    said: str
    hexadecimal: str
    decimal: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """An element that the referee read to recompute the disputed place."""

    name: str
    element: int
    hexadecimal: str
    decimal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of the referee's computation."""

    label: str
    factors: tuple[Factor, ...]
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The referee's computation: its terms, and the values before and after them."""

    operation: str
    terms: tuple[Term, ...]
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ply:
    """A move. gas: the gas of its transaction; 0 for one known from a signed message alone."""

    kind: str
    side: Side
    gas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Everything about where a game stands and how it got there."""

    stages: tuple[Stage, ...]
    plies: tuple[Ply, ...]
    trainer: Claim | None
    challenger: Claim | None
    computation: Computation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGame:
    id: str
    job_id: str
    name: str
    """The name that others chose for its run; perhaps empty."""
    head_count: int
    head_step: int
    status: str
    is_open: bool
    started: int
    ended: int
    talks_until: int | None
    """Unix time until which the sides talk and no clock runs; None afterwards."""
    defender: ShownSide
    challenger: ShownSide
    turn: str
    walk: Walk
    verdict: ShownVerdict | None
    gas: int
    other_gas: int
    """The part of `gas` for transactions that made no move: the challenge, or the end of a clock."""
    by_message: int
    """Moves that are known from signed messages and have not been made on the board."""
    money: tuple[Money, ...]
    where: str
    """The progress of the walk, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCard:
    id: str
    name: str
    """The name that others chose for it; perhaps empty."""
    status: str
    tone: str
    """The style of the status: live, good, bad or calm."""
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
    replays: tuple[ShownReplay, ...]
    games: tuple[ShownGame, ...]
    terms: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    money: tuple[Money, ...]
    happenings: tuple[Happening, ...]
    next_what: str
    """The next event that is awaited, if it has a time."""
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
class Asked:
    """The part of a list that a reader asked for: a page of it, from 1, and the text to look for."""

    page: int = 1
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of a list. found: the entries on all pages; searched: the newest that were looked at, if not all."""

    rows: tuple[Any, ...]
    page: int
    pages: int
    found: int
    searched: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    jobs: Listing
    games: tuple[ShownGame, ...]
    is_known: bool
    """Whether there is a board from which the numbers come; without one they are unknown, not zero."""
    running: int
    open_games: int
    at_stake: int
    convicted: int
