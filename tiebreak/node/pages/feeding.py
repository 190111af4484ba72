"""Feeds the pages from a hub's own store and library, and from a board that this process follows.

Posts are read once, in the order of their places; the hub has checked them before it took them. Where transactions
count on a chain, its board is copied after each look at it, so that a page never waits for a node and never sees half
of a block. Where they are posts, the hub's receipts are the clock, and a ledger makes the board of them.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import BaseRoute

from tiebreak.node.hub.limits import Recent
from tiebreak.node.pages.games import talk_of
from tiebreak.node.pages.model import ReadPost
from tiebreak.node.pages.routes import routes
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN, Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import TiebreakError, VerificationError
from tiebreak.protocol.game.moves import Move
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties.board import Board, PublicGame
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.parties.posts import GameBody, LibraryBody, OfferBody, ReceivedPost, SignedPost
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.strict_json import parse_json
from tiebreak.protocol.tags import Digest

if TYPE_CHECKING:
    from tiebreak.node.ground import AnyGround
    from tiebreak.node.hub.store import Store

PROGRAM: Final = b"program.tbp"
ORIGINS: Final = b"origins.json"
TITLE: Final = b"name.txt"
MAX_PROGRAM_BYTES: Final = 1 << 26
"""Bytes of the largest program whose instructions pages name; those of a larger one have numbers only."""
MAX_ORIGINS_BYTES: Final = 1 << 24
MAX_TITLE_BYTES: Final = 100
POLL_SECONDS: Final = 1.0
_PAGE: Final = 500
_KEPT: Final = 64
"""Jobs whose posts stay in memory."""
MAX_SEEN_BYTES: Final = 1 << 23
"""Bytes of posts of one job that stay in memory: the first and the newest of them."""
_FIRST: Final = 100
_KNOWN: Final = 10_000
"""Jobs and games that are known by their ids; the pages no longer list what strangers offered before these."""
_NAMED: Final = 8
"""Blobs of one name that are tried for a job, the newest first."""
_PROGRAMS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The knowledge of pages beyond a hub's posts. ground: None if posts are all there is. chain: in words."""

    domain: Domain
    blob: Callable[[Digest], Path]
    """The path at which a whole blob is, or would be."""
    now: Callable[[], int]
    ground: "AnyGround | None" = None
    chain: str = ""


def pages(posts: "Store", outlook: Outlook) -> Sequence[BaseRoute]:
    """The routes of the pages of a hub. A thread follows the board for as long as the process lives."""
    feed = Feed(posts, outlook)
    feed.start()
    return routes(feed)


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


def _bounded(seen: list[tuple[int, ReadPost]]) -> list[tuple[int, ReadPost]]:
    """The first posts of a job and the newest ones, as many as stay in memory; lists of files without their files."""
    light = [
        (0, replace(one, body=replace(one.body, files=()))) if isinstance(one.body, LibraryBody) else (size, one)
        for size, one in seen
    ]
    held, start = sum(size for size, _ in light), min(len(light), _FIRST)
    end = start
    while held > MAX_SEEN_BYTES and end < len(light):
        held -= light[end][0]
        end += 1
    return light[:start] + light[end:]


class Feed:
    """A `PageSource` over a hub's posts and its ground, which without a chain is the ledger that the posts make."""

    def __init__(self, posts: "Store", outlook: Outlook) -> None:
        self.domain, self.chain = outlook.domain, outlook.chain
        self._posts, self._outlook, self._ground = posts, outlook, outlook.ground
        self._lock = threading.Lock()
        self._place = self._shown = 0
        """The last post that was read, and the last one that the ledger's board shows."""
        self._seen: Recent[Digest, tuple[int, list[tuple[int, ReadPost]]]] = Recent(_KEPT)
        """The place up to which a job's posts were read, and those that stay, with their bytes."""
        self._offered: dict[Digest, Job] = {}
        self._games: Recent[Digest, Digest] = Recent(_KNOWN)
        """The job of each game that was opened here."""
        self._files: Recent[tuple[Digest, bytes], list[Digest]] = Recent(_KNOWN)
        """The blobs that posts name as a job's file, by job and name."""
        self._refused: Recent[Digest, bool] = Recent(_KNOWN)
        self._programs: Recent[Digest, Program] = Recent(_PROGRAMS)
        self._origins: Recent[Digest, Sequence[str]] = Recent(_PROGRAMS)
        self._names: Recent[Digest, str] = Recent(_KNOWN)
        self._board: Board | None = None
        self.on_paper = self._ground is None and self.domain == OFF_CHAIN
        self._ledger = Ledger(self.domain) if self.on_paper else None
        board: Any = None if self._ground is None else self._ground.board
        if hasattr(board, "talk_of"):  # it asks for what logs leave out
            board.program_of, board.talk_of = lambda job: self.program(job.id), self._talk_of

    def start(self) -> None:
        """Follow the ground in a thread of its own."""
        if self._ground is not None:
            threading.Thread(target=self._follow, args=(self._ground,), daemon=True, name="pages").start()

    def _follow(self, ground: "AnyGround") -> None:
        rest, trouble = threading.Event(), ""
        while True:
            try:
                self.look(ground)
            except Exception as error:  # the pages show the last state, and it is tried again
                if trouble != (trouble := repr(error)):
                    logging.getLogger(__name__).exception("the board cannot be followed")
            rest.wait(POLL_SECONDS)

    def look(self, ground: "AnyGround") -> None:
        """Follow what is new on the ground. A node that does not answer is asked again the next time."""
        self._read_on()
        if hasattr(ground, "learn"):
            for job in list(self._offered.values()):
                ground.learn(job)
        with suppress(TiebreakError):
            if ground.poll() or self._board is None:
                self._board = snapshot(ground.board)

    # ------------------------------------------------------------------ what pages ask for

    def now(self) -> int:
        return (self._ground.now() if self._ground is not None else 0) or self._outlook.now()

    def place(self) -> int:
        self._read_on()
        return self._place

    @contextmanager
    def reading(self) -> Iterator[Board | None]:
        self._read_on()
        yield self._board

    def jobs(self) -> Sequence[Digest]:
        self._read_on()
        with self._lock:
            return list(reversed(self._offered))

    def offered(self, job_id: Digest) -> Job | None:
        with self._lock:
            return self._offered.get(job_id)

    def job_of_game(self, game_id: Digest) -> Digest | None:
        self._read_on()
        with self._lock:
            return self._games.get(game_id)

    def posts(self, job_id: Digest) -> Sequence[ReadPost]:
        self._read_on()
        with self._lock:
            after, seen = self._seen.get(job_id) or (0, [])
            while after < self._place and (page := self._posts.posts(after, jobs=[job_id], limit=_PAGE)):
                after = page[-1].place
                read = ((len(received.wire), self._read(received)) for received in page)
                seen = _bounded(seen + [(size, one) for size, one in read if one is not None])
            self._seen.put(job_id, (self._place, seen))
            return [one for _, one in seen]

    def program(self, job_id: Digest) -> Program | None:
        """The program in a published file, if its root is that of the job that was offered."""
        with self._lock:
            job, known = self._offered.get(job_id), self._programs.get(job_id)
        if known is not None or job is None:
            return known
        for root, data in self._files_of(job_id, PROGRAM, MAX_PROGRAM_BYTES):
            try:
                program = Program.decode(data)
                job.check_program(program)
            except VerificationError:
                self._refuse(root)
            else:
                with self._lock:
                    return self._programs.put(job_id, program)
        return None

    def origins(self, job_id: Digest) -> Sequence[str]:
        with self._lock:
            known = self._origins.get(job_id)
        if known is None:
            for root, data in self._files_of(job_id, ORIGINS, MAX_ORIGINS_BYTES):
                found: Any = None
                with suppress(ValueError):
                    found = parse_json(data, 1)
                if isinstance(found, list) and all(isinstance(item, str) for item in found):
                    with self._lock:
                        return self._origins.put(job_id, found)
                self._refuse(root)
        return known or ()

    def name(self, job_id: Digest) -> str:
        with self._lock:
            known = self._names.get(job_id)
        if known is None:
            for root, data in self._files_of(job_id, TITLE, MAX_TITLE_BYTES):
                with suppress(UnicodeDecodeError):
                    name = data.decode("utf-8").strip()
                    with self._lock:
                        return self._names.put(job_id, name)
                self._refuse(root)
        return known or ""

    def _refuse(self, root: Digest) -> None:
        with self._lock:
            self._refused.put(root, True)

    # ------------------------------------------------------------------ reading

    def _read_on(self) -> None:
        with self._lock:
            while page := self._posts.posts(self._place, limit=_PAGE):
                for received in page:
                    self._place = received.place
                    if (seen := self._read(received)) is not None:
                        self._take(seen)
            if self._ledger is not None and self._place > self._shown:
                self._board, self._shown = snapshot(self._ledger.board, self._ledger.gains()), self._place

    def _read(self, received: ReceivedPost) -> ReadPost | None:
        with suppress(VerificationError):
            post = SignedPost.decode(received.wire).post
            body = post.read(self.domain)
            return ReadPost(place=received.place, at=received.at, post=replace(post, body=b""), body=body)
        return None

    def _take(self, seen: ReadPost) -> None:
        post, body = seen.post, seen.body
        match body:
            case OfferBody(job=job):
                self._offered.setdefault(job.id, job)
                if len(self._offered) > _KNOWN:
                    del self._offered[next(iter(self._offered))]
            case GameBody():
                self._games.put(post.game_id, post.job_id)
            case LibraryBody(files=files):
                for file in files:
                    if file.name in (PROGRAM, ORIGINS, TITLE):
                        name = (post.job_id, file.name)
                        others = [root for root in self._files.get(name) or () if root != file.root]
                        self._files.put(name, [file.root, *others][:_NAMED])
        if self._ledger is not None:
            with suppress(Refusal):
                self._ledger.read(post, body, seen.at)

    def _files_of(self, job_id: Digest, name: bytes, most: int) -> Iterator[tuple[Digest, bytes]]:
        """A job's published files of this name that are here, not too large and not refused before."""
        with self._lock:
            roots = [root for root in self._files.get((job_id, name)) or () if not self._refused.get(root)]
        for root in roots:
            path = self._outlook.blob(root)
            with suppress(OSError):
                if path.stat().st_size <= most:
                    yield root, path.read_bytes()

    def _talk_of(self, game: PublicGame, sequence: int, snapshot: bytes) -> tuple[GameState, list[Move]]:
        talk = talk_of(self.domain, game, self.posts(game.job.id))
        if (state := talk.stood(sequence, snapshot)) is None:
            raise VerificationError("expected a state of the talk that went through this hub, got another")
        return state, list(talk.line[:sequence])
