"""The source of all pages: a hub's own posts and blobs, and a board that this process follows.

Posts are read once, in the order of their places, and only those of the kinds that are kept; the hub has checked them
before it took them. What strangers can make this process keep is bounded in bytes, and the programs that it reads are
bounded in instructions. Where transactions count on a chain, its board is copied after each look at it, so that a page
never waits for a node and never sees half of a block. Where they are posts, the hub's receipts are the clock, and a
ledger makes the board of them.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tiebreak.node.hub.limits import Recent
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import TiebreakError, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.parties.board import Board, PublicGame
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.program.program import MAGIC, Program
from tiebreak.protocol.strict_json import parse_json
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from tiebreak.node.board_source import AnyBoardSource
    from tiebreak.node.hub.store import Store

PROGRAM: Final = b"program.tbp"
ORIGINS: Final = b"origins.json"
TITLE: Final = b"name.txt"
MAX_PROGRAM_BYTES: Final = 1 << 26
"""Bytes of the largest program that the board of a chain asks for."""
MAX_NAMED_BYTES, MAX_NAMED = 1 << 23, 1 << 15
"""Bytes and instructions of the largest program whose instructions pages name; those of a larger one have numbers."""
MAX_ORIGINS_BYTES: Final = 1 << 23
MAX_TITLE_BYTES: Final = 100
POLL_SECONDS: Final = 1.0
_PAGE: Final = 500
KEPT_BYTES: Final = 1 << 28
"""Bytes of memory, about, in which the posts of jobs stay."""
MAX_SEEN_BYTES: Final = 1 << 23
"""Bytes of posts of one job that stay in memory: the first and the newest of them."""
MAX_BRIEF, MAX_BRIEF_BYTES = 1000, 1 << 20
"""Posts of one job that a list of jobs reads: the first and the newest of them."""
_OVERHEAD: Final = 1 << 10
"""Bytes of the objects around a post in memory."""
_LISTING, _LISTS = 512, 16
"""Bytes that a list of files counts as, without them; and the newest lists that are read, as pages only name them."""
_BUT_LISTS: Final = frozenset(p.PostKind) - {p.PostKind.LIBRARY}
_FIRST: Final = 100
_KNOWN: Final = 10_000
"""Jobs and games that are known by their ids; the pages no longer list what strangers offered before these."""
_NAMED: Final = 8
"""Blobs of one name that are tried for a job, the newest first."""
KEPT_PROGRAM_BYTES, KEPT_ORIGINS_BYTES = 1 << 27, 1 << 26
_INSTRUCTION, _ORIGIN = 1 << 10, 64
"""Bytes of an instruction in memory beside its encoding, and of its origin beside the text."""
_KINDS: Final = (p.PostKind.OFFER, p.PostKind.GAME, p.PostKind.LIBRARY)
_KINDS_OF_LEDGER: Final = (p.PostKind.TRANSACTION, p.PostKind.MOVE, p.PostKind.RECEIPT)


_TALKS: Final[Recent[tuple[object, ...], Transcript]] = Recent(1 << 25)
"""The newest talks that were read, up to as many bytes of messages."""
_TALKS_LOCK: Final = threading.Lock()
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPost:
    """A post that a hub has taken, read and checked. The bytes of its body are left out of `post`."""

    place: int
    at: int
    post: p.Post
    body: p.Body


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContext:
    """The knowledge of pages besides posts: the chain followed (or None) and its name."""

    domain: Domain
    blob: Callable[[Digest], Path]
    """The path at which a whole blob is, or would be."""
    now: Callable[[], int]
    board_source: "AnyBoardSource | None" = None
    chain: str = ""


def snapshot(board: Board, owed: Mapping[Address, int] | None = None) -> Board:
    """The board as it is now: other jobs and games than those that go on changing, with the same contents.

    owed: instead of the credits of the board's own.
    """
    made = Board()
    made.jobs = {key: copy(job) for key, job in board.jobs.items()}
    made.games = {key: copy(game) for key, game in board.games.items()}
    for game in made.games.values():
        game.job, game.moves, game.costs = made.jobs[game.job.id], list(game.moves), list(game.costs)
    made.credits, made.height = dict(board.credits if owed is None else owed), board.height
    return made


def _bounded(seen: list[tuple[int, ReadPost]], most: int) -> list[tuple[int, ReadPost]]:
    """The first posts of a job and the newest ones, up to `most` bytes in all; lists of files without their files."""
    light = []
    for size, one in seen:
        if isinstance(one.body, p.LibraryBody):
            light.append((_LISTING, replace(one, body=replace(one.body, files=()))))
        else:
            light.append((size, one))
    held, start, first = sum(size for size, _ in light), 0, 0
    while start < min(len(light), _FIRST) and (first := first + light[start][0]) <= most // 2:
        start += 1
    end = start
    while held > most and end < len(light):
        held -= light[end][0]
        end += 1
    return light[:start] + light[end:]


def talk_of(domain: Domain, game: PublicGame, seen: Sequence[ReadPost]) -> Transcript:
    """The messages that the sides of a game have signed to each other, from the posts about its job."""
    wires = tuple(one.body.wire for one in seen if isinstance(one.body, p.MoveBody) and one.post.game_id == game.id)
    name = (domain, game.job.job, game.head.head, game.id, game.challenger, wires)
    with _TALKS_LOCK:
        known = _TALKS.get(name)
    if known is None:
        start = rules.start(game.job.job, game.head.head, game.id, 0)
        known = Transcript(start, domain=domain, challenger=game.challenger)
        for wire in wires:
            with suppress(VerificationError):
                known.append(wire)
        with _TALKS_LOCK:
            _TALKS.put(name, known, 1024 + 2 * sum(map(len, wires)))
    return known


class PageSource:
    """The data of all pages: a hub's posts and the board, which without a chain is made from the posts.

    Several threads call it at once. chain: in words; empty if none is followed. on_paper: whether nobody holds the
    money, so that the board's credits are what each account has gained or lost so far.
    """

    def __init__(self, posts: "Store", context: PageContext) -> None:
        self.domain, self.chain = context.domain, context.chain
        self._posts, self._context, self._board_source = posts, context, context.board_source
        self._lock = threading.Lock()
        self._place = self._shown = 0
        """The last post that was read, and the last one that the ledger's board shows."""
        self._seen: Recent[tuple[Digest, bool], tuple[int, list[tuple[int, ReadPost]]]] = Recent(KEPT_BYTES)
        """The place up to which a job's posts were read, briefly or not, and those that stay, with their bytes."""
        self._offered: dict[Digest, Job] = {}
        self._games: Recent[Digest, Digest] = Recent(_KNOWN)
        """The job of each game that was opened here."""
        self._files: Recent[tuple[Digest, bytes], list[Digest]] = Recent(_KNOWN)
        """The blobs that posts name as a job's file, by job and name."""
        self._refused: Recent[tuple[Digest, Digest], bool] = Recent(_KNOWN)
        """The blobs that are not what a job's files of that name are, by job: another job's they may be."""
        self._decoding = threading.Lock()
        """The lock of reading a program or its origins, so that one at a time takes memory for it."""
        self._programs: Recent[Digest, Program] = Recent(KEPT_PROGRAM_BYTES)
        self._origins: Recent[Digest, Sequence[str]] = Recent(KEPT_ORIGINS_BYTES)
        self._names: Recent[Digest, str] = Recent(_KNOWN)
        self._board: Board | None = None
        self.on_paper = self._board_source is None and self.domain == OFF_CHAIN
        self._ledger = Ledger(self.domain) if self.on_paper else None
        self._kinds = _KINDS + _KINDS_OF_LEDGER if self.on_paper else _KINDS
        board: Any = None if self._board_source is None else self._board_source.board
        if hasattr(board, "talk_of"):  # it asks for what logs leave out
            board.program_of, board.talk_of = lambda job: self.program(job.id, names_only=False), self._talk_of

    def start(self) -> None:
        """Read what is there, so that no page waits for it, and follow the board source, in a thread of its own."""
        threading.Thread(target=self._follow, daemon=True, name="pages").start()

    def _follow(self) -> None:
        rest, trouble, is_first = threading.Event(), "", True
        while is_first or self._board_source is not None:
            try:
                self.look()
            except Exception as error:  # the pages show the last state, and it is tried again
                if trouble != (trouble := repr(error)):
                    logging.getLogger(__name__).exception("the board cannot be followed")
            is_first = rest.wait(POLL_SECONDS if self._board_source is not None else 0)

    def look(self) -> None:
        """Read new posts and poll the board source. A node that does not answer is polled again the next time."""
        self._read_on()
        if (board_source := self._board_source) is None:
            return
        if hasattr(board_source, "learn"):
            for job in list(self._offered.values()):
                board_source.learn(job)
        with suppress(TiebreakError):
            if board_source.poll() or self._board is None:
                self._board = snapshot(board_source.board)

    # ------------------------------------------------------------------ what pages ask for

    def now(self) -> int:
        """Seconds by the same clock as the board's times."""
        return (self._board_source.now() if self._board_source is not None else 0) or self._context.now()

    def place(self) -> int:
        """The place of the newest post."""
        self._read_on()
        return self._place

    @property
    def board(self) -> Board | None:
        """The board as it is now, a copy that stays as it is; None if none is followed."""
        self._read_on()
        return self._board

    def jobs(self) -> Sequence[Digest]:
        """The jobs that were offered through this hub, the newest first."""
        self._read_on()
        with self._lock:
            return list(reversed(self._offered))

    def offered(self, job_id: Digest) -> Job | None:
        with self._lock:
            return self._offered.get(job_id)

    def job_of_game(self, game_id: Digest) -> Digest | None:
        """The job of a game that was opened through this hub."""
        self._read_on()
        with self._lock:
            return self._games.get(game_id)

    def posts(self, job_id: Digest, *, is_brief: bool = False) -> Sequence[ReadPost]:
        """The posts about a job and its games, in their order: the first and the newest, fewer of them if brief."""
        self._read_on()
        most, limit = (MAX_BRIEF_BYTES, MAX_BRIEF) if is_brief else (MAX_SEEN_BYTES, MAX_SEEN_BYTES)
        with self._lock:
            after, seen = self._seen.get((job_id, is_brief)) or (0, [])
            while after < self._place and (
                page := self._posts.posts(after, jobs=[job_id], limit=_FIRST, most=most // 2)
            ):
                newest = partial(self._posts.posts, page[-1].place, jobs=[job_id], newest=True)
                page += newest(kinds=_BUT_LISTS, limit=limit, most=most)
                page += newest(kinds=[p.PostKind.LIBRARY], limit=_LISTS, most=most // 2)
                page.sort(key=lambda one: one.place)
                after = page[-1].place
                read = ((len(received.wire), self._read(received)) for received in page)
                seen = _bounded(seen + [(size, one) for size, one in read if one is not None], most)
            self._seen.put((job_id, is_brief), (self._place, seen), sum(size + _OVERHEAD for size, _ in seen))
            return [one for _, one in seen]

    def program(self, job_id: Digest, *, names_only: bool = True) -> Program | None:
        """The program in a published file, if its root is that of the job that was offered.

        names_only: for the names of its instructions; those of one that is too large stay unknown.
        """
        if (job := self.offered(job_id)) is None:
            return None
        counts = (job.body_count, job.state_count)
        if names_only and sum(counts) > MAX_NAMED:
            return None

        def read(data: bytes) -> tuple[Program, int]:
            if not data.startswith(MAGIC + b"".join(count.to_bytes(4, "big") for count in counts)):
                raise VerificationError("expected a program of the job's size, got another")
            program = Program.decode(data)
            job.check_program(program)
            # A copy has none of the tree that was made for the root.
            return replace(program), len(data) + _INSTRUCTION * sum(counts)

        most = MAX_NAMED_BYTES if names_only else MAX_PROGRAM_BYTES
        return self._published(job_id, PROGRAM, most, self._programs, read)

    def origins(self, job_id: Digest) -> Sequence[str]:
        """The origin of each body instruction in the client's model, if its files tell it. Nobody signed them."""

        def read(data: bytes) -> tuple[Sequence[str], int]:
            found: Any = parse_json(data, 1)
            if not isinstance(found, list) or len(found) > MAX_NAMED or not all(isinstance(one, str) for one in found):
                raise VerificationError("expected a list of texts, got something else")
            return found, len(data) + _ORIGIN * len(found)

        return self._published(job_id, ORIGINS, MAX_ORIGINS_BYTES, self._origins, read) or ()

    def name(self, job_id: Digest) -> str:
        """The name that its client or its trainer published for a job, if any. Nobody signed it."""
        found = self._published(job_id, TITLE, MAX_TITLE_BYTES, self._names, lambda data: (data.decode().strip(), 1))
        return found or ""

    def _published(
        self, job_id: Digest, name: bytes, most: int, kept: Recent[Digest, V], read: Callable[[bytes], tuple[V, int]]
    ) -> V | None:
        """The newest of a job's published files of this name that `read` takes: its value, and its weight in memory.

        One file at a time is read. One that raises an error is not read again for this job.
        """
        with self._lock:
            known = kept.get(job_id)
            roots = [root for root in self._files.get((job_id, name)) or () if not self._refused.get((job_id, root))]
        if known is not None or not roots:
            return known
        with self._decoding:
            for root in roots:
                path = self._context.blob(root)
                try:
                    if path.stat().st_size > most:
                        continue
                    value, weight = read(path.read_bytes())
                except OSError:
                    continue  # nobody has uploaded it yet
                except (VerificationError, ValueError):
                    with self._lock:
                        self._refused.put((job_id, root), True)
                else:
                    with self._lock:
                        return kept.put(job_id, value, weight)
        return None

    # ------------------------------------------------------------------ reading

    def _read_on(self) -> None:
        with self._lock:
            last = self._posts.last_place()
            while self._place < last:
                page = self._posts.posts(self._place, kinds=self._kinds, limit=_PAGE)
                for received in page:
                    self._place = received.place
                    if (seen := self._read(received)) is not None:
                        self._take(seen)
                if not page:
                    self._place = last
            if self._ledger is not None and self._place > self._shown:
                self._board, self._shown = snapshot(self._ledger.board, self._ledger.gains()), self._place

    def _read(self, received: p.ReceivedPost) -> ReadPost | None:
        with suppress(VerificationError):
            post = p.SignedPost.decode(received.wire).post
            body = post.read(self.domain)
            return ReadPost(place=received.place, at=received.at, post=replace(post, body=b""), body=body)
        return None

    def _take(self, seen: ReadPost) -> None:
        post, body = seen.post, seen.body
        match body:
            case p.OfferBody(job=job):
                self._offered.setdefault(job.id, job)
                if len(self._offered) > _KNOWN:
                    del self._offered[next(iter(self._offered))]
            case p.GameBody():
                self._games.put(post.game_id, post.job_id)
            case p.LibraryBody(files=files):
                for file in files:
                    if file.name in (PROGRAM, ORIGINS, TITLE):
                        name = (post.job_id, file.name)
                        others = [root for root in self._files.get(name) or () if root != file.root]
                        self._files.put(name, [file.root, *others][:_NAMED])
        if self._ledger is not None:
            with suppress(Refusal):
                self._ledger.read(post, body, seen.at)

    def _talk_of(self, game: PublicGame, sequence: int, snapshot: bytes) -> tuple[GameState, list[Move]]:
        talk = talk_of(self.domain, game, self.posts(game.job.id))
        if (state := talk.stood(sequence, snapshot)) is None:
            raise VerificationError("expected a state of the talk that went through this hub, got another")
        return state, list(talk.line[:sequence])
