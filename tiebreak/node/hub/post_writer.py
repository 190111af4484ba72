"""Takes posts: checks, places, signs and stores them, a batch in one transaction. The one writer of a hub.

Half of its work is waiting for the disk, so it has a thread of its own; one batch is taken after another.

Numbered plan of a post: (1) it is well-formed and its sender signed it, (2) its address keeps to its rates, (3) the
same post again is answered as before, and another one under its number is refused, (4) its job was offered here, (5)
the sender may write it there, (6) what it opens is within the limits, it fits on the disk, and its sender keeps to its
rates, (7) it gets a place, the instant at which it arrived, and a signature. Of those that are placed out of turn,
later ones never count as earlier. Anybody may send a signed post again, so a key pays only for what gets a place.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy.exc

from tiebreak.node.hub.limits import Buckets, Budgets, HubLimits, Recent
from tiebreak.node.hub.store import LastPost, Row, Store, Writer
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import StateError, VerificationError
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties import posts as p
from tiebreak.protocol.tags import Digest

_LOG: Final = logging.getLogger(__name__)
_KNOWN: Final = 10_000
"""Jobs and games whose parties are kept in memory; others are read from the store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostResult:
    """The answer to a post: a row if it has a place, else the status and the reason of its refusal."""

    row: Row | None = None
    is_new: bool = False
    status: int = 200
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A post on its way to the post writer: its bytes and their envelope, and when and from where they came."""

    wire: bytes
    signed: p.SignedPost
    at: float
    """Unix time by the hub's clock. Posts of others that are taken before do not make it later."""
    address: str

    @property
    def is_of_game(self) -> bool:
        """Whether it may be a message that a game's clock waits for."""
        return self.signed.post.kind in OF_GAMES


OF_GAMES: Final = frozenset({p.PostKind.GAME, p.PostKind.MOVE, p.PostKind.RECEIPT, p.PostKind.TRANSACTION})
_WHEN_FULL: Final = OF_GAMES | {p.PostKind.ANSWER, p.PostKind.HEAD, p.PostKind.LOG_RECEIPT, p.PostKind.AUDITORS}
_DAY: Final = 86_400


class _Refused(Exception):
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class PostWriter:
    """Takes batches of posts, in one thread at a time. Raises what `Store.open_for_writing` raises."""

    def __init__(
        self, store: Store, domain: Domain, key: keys.PrivateKey, limits: HubLimits,
        *, has_room: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """has_room: whether more than `free_bytes` are free on the disk."""
        self._has_room = has_room
        self._store, self._domain, self._key, self._limits = store, domain, key, limits
        facts = {"hub": key.address.hex(), "chain": str(domain.chain_id), "contract": domain.contract.hex()}
        self._last = store.open_for_writing(facts)
        """The last post that is on the disk for certain."""
        self._at = self._last.at
        self._written = list[Row]()
        """The posts of the last transaction, until it is certain that they count."""
        self.found: list[Row] = []
        """Posts of an earlier batch that count in spite of an error, as the last `take` found out."""
        self.trouble = ""
        """The reason why posts cannot be stored; empty if they can."""
        self._budgets = Budgets(limits)
        self._when_full: Buckets[bytes | str] = Buckets(limits.full_bytes / _DAY, limits.full_bytes)
        self._jobs: Recent[bytes, Job] = Recent(_KNOWN)
        self._challengers: Recent[bytes, Address] = Recent(_KNOWN)
        self._strangers: Recent[tuple[bytes, bytes], int] = Recent(_KNOWN)
        """The bytes that a sender has in a job without being a party to it, by job and sender."""
        self._highest: Recent[tuple[bytes, bytes], int] = Recent(_KNOWN)
        """The highest number of a sender within a job; -1 if it has posted nothing there."""

    def take(self, arrived: Sequence[Arrival]) -> list[PostResult]:
        """The answer to each post. A post that gets a place is on the disk."""
        self.found, checked = [], [self._checked(arrival) for arrival in arrived]
        try:
            with self._store.writing() as writer:
                if self.trouble:
                    self._look_again(writer)
                answers = self._placed(writer, arrived, checked)
        except sqlalchemy.exc.SQLAlchemyError as error:  # a full disk, or a database that is away
            cause = getattr(error, "orig", error)
            if not self.trouble:
                _LOG.error("posts cannot be stored, and it is tried again: %s", cause)
            self.trouble = f"expected room and a database to store posts, got {type(cause).__name__}; try again later"
            for known in (self._jobs, self._challengers, self._highest, self._strangers):
                known.clear()
            refused = PostResult(status=507, error=self.trouble)
            return [found if isinstance(found, PostResult) else refused for found in checked]
        if self.trouble:
            _LOG.warning("posts are stored again")
        self.trouble = ""
        self._count()
        return answers

    def _look_again(self, writer: Writer) -> None:
        """Find out what became of the last transaction: its error may have been a lost answer to its COMMIT.

        Raises `StateError` if the database has other posts: this post writer would sign for a place that is taken.
        """
        writer.try_out()
        last = writer.last()
        if self._written and (last.place, last.signature) == (self._written[-1].place, self._written[-1].signature):
            self.found = self._written
            self._count()
        elif last != self._last:
            raise StateError(
                f"expected post {self._last.place} of this hub to be the last, got post {last.place}: another hub "
                "wrote, or the database lost posts; stop the other, or restore the database, and start this one again"
            )
        self._written = []

    def _count(self) -> None:
        """Make the newest written post the last one: all written posts are on disk."""
        if self._written:
            newest = self._written[-1]
            self._last = LastPost(newest.place, newest.at, newest.signature)
            self._at = max(self._at, newest.at)
        self._written = []

    def stand(self, at: float) -> tuple[int, int]:
        """The last place, and an instant before which no further post counts. Call it between two batches.

        at: an instant before which no post arrived that still waits. Raises `StateError` while it is unknown which
        posts count.
        """
        if self.trouble:
            raise StateError(self.trouble)
        self._at = max(self._at, int(at))
        return self._last.place, self._at

    def complete(self, job_id: Digest, stand: tuple[int, int]) -> p.Complete:
        """The hub's signature over the complete list of a job's posts. May be called in any thread.

        stand: the last place and the instant up to which the list is complete.
        """
        place, at = stand
        posts = p.Complete.hash_of(self._store.received(job_id, place))
        said = p.Complete(job_id=job_id, posts=posts, at=at, signature=bytes(keys.SIGNATURE_BYTES))
        return replace(said, signature=self._key.sign(said.digest(self._domain)))

    def _checked(self, arrival: Arrival) -> p.Body | PostResult:
        try:
            body = arrival.signed.verify(self._domain)  # (1)
        except VerificationError as error:
            return PostResult(status=400, error=str(error))
        excess = ""
        if arrival.address:  # (2) whose posts and bytes were charged when they came
            excess = self._budgets.excess(arrival.address, self._limits.keys_per_address, 0, 0, _rows(body))
        return PostResult(status=429, error=excess) if excess else body

    def _placed(
        self, writer: Writer, arrived: Sequence[Arrival], checked: Sequence[p.Body | PostResult]
    ) -> list[PostResult]:
        answers, new, at = [], dict[tuple[bytes, bytes, int], Row](), self._at
        for arrival, body in zip(arrived, checked, strict=True):
            if isinstance(body, PostResult):
                answers.append(body)
                continue
            post = arrival.signed.post
            name = (post.job_id, post.sender, post.number)
            try:
                if (before := new.get(name) or self._found(writer, name)) is not None:
                    if before.content != post.content:
                        text = f"post {post.number} of this sender in this job: expected content {before.content.hex()}"
                        raise _Refused(409, f"{text}, got {post.content.hex()}")
                    answers.append(PostResult(row=before))  # (3)
                    continue
                self._authorize(writer, post, body, arrival)
            except VerificationError as error:
                answers.append(PostResult(status=403, error=str(error)))
            except _Refused as error:
                answers.append(PostResult(status=error.status, error=str(error)))
            else:
                at = max(at, int(arrival.at))
                row = new[name] = self._row(arrival, self._last.place + 1 + len(new), at)
                self._highest.put(name[:2], max(post.number, self._highest.get(name[:2]) or 0))
                self._keep(writer, post, body, row.place)
                answers.append(PostResult(row=row, is_new=True))
        self._written = list(new.values())
        writer.add(self._written)
        return answers

    def _found(self, writer: Writer, name: tuple[bytes, bytes, int]) -> Row | None:
        """The post of this job, sender and number. Numbers mostly count up, so few are looked for."""
        if (highest := self._highest.get(name[:2])) is None:
            highest = self._highest.put(name[:2], writer.highest(*name[:2]))
        return writer.found(*name) if name[2] <= highest else None

    def _authorize(self, writer: Writer, post: p.Post, body: p.Body, arrival: Arrival) -> None:
        job = body.job if isinstance(body, p.OfferBody) else self._jobs.get(post.job_id) or writer.job(post.job_id)
        if job is None:  # (4)
            raise _Refused(403, f"expected a job that its client offered here, got {post.job_id.hex()}")
        challenger = None
        if post.game_id != post.job_id:
            challenger = self._challengers.get(post.game_id) or writer.challenger(post.game_id)
        p.check_author(post, body, job, challenger, self._domain)  # (5)
        self._check_opening(writer, post, body, is_new_game=challenger is None)  # (6)
        self._charge(writer, arrival, body, is_stranger=post.sender not in (job.client, job.trainer))
        self._jobs.put(post.job_id, job)

    def _check_opening(self, writer: Writer, post: p.Post, body: p.Body, *, is_new_game: bool) -> None:
        """Raise `_Refused` for a job, a game or a list of files above the limits."""
        limits = self._limits
        if isinstance(body, p.OfferBody) and writer.job(post.job_id) is None:
            if writer.jobs_of(post.sender) >= limits.jobs_per_key:
                raise _Refused(429, f"expected at most {limits.jobs_per_key} jobs by one key, got another")
        elif isinstance(body, p.GameBody) and is_new_game:
            if writer.games_of(post.sender) >= limits.games_per_key:
                raise _Refused(429, f"expected at most {limits.games_per_key} games by one key, got another")
        elif isinstance(body, p.LibraryBody):
            largest = max((file.size for file in body.files), default=0)
            if largest > limits.blob_bytes:
                raise _Refused(413, f"expected files of at most {limits.blob_bytes} bytes, got one of {largest}")

    def _charge(self, writer: Writer, arrival: Arrival, body: p.Body, *, is_stranger: bool) -> None:
        """Charge a post to its sender. Raises `_Refused` for one above a limit, and then charges nothing.

        is_stranger: whether the sender is no party of the job. On a full disk that makes no difference: anybody is the
        client of a job of its own.
        """
        post, size, limits = arrival.signed.post, len(arrival.wire), self._limits
        rations: list[tuple[bytes | str, float]] = []
        if not self._has_room():
            if post.kind not in _WHEN_FULL:
                raise _Refused(507, "expected a disk with room for more than heads and games, got a full one")
            rations = [(post.sender, size), (arrival.address, size / limits.keys_per_address)]
        if any(self._when_full.tokens(who) < amount for who, amount in rations):
            most = limits.full_bytes
            raise _Refused(507, f"expected at most {most} bytes a day by one key on a full disk, got {size} more")
        name, held = (post.job_id, post.sender), size
        if is_stranger:
            before = self._strangers.get(name)
            held += writer.bytes_of(*name) if before is None else before
            if held > (most := limits.stranger_bytes):
                text = f"expected at most {most} bytes in one job by a key that is no party of it, got {held}"
                raise _Refused(403, text)
        if excess := self._budgets.excess(post.sender, 1, 1, size, _rows(body)):
            raise _Refused(429, excess)
        for who, amount in rations:
            self._when_full.take(who, amount)
        if is_stranger:
            self._strangers.put(name, held)

    def _row(self, arrival: Arrival, place: int, at: int) -> Row:  # (7)
        post = arrival.signed.post
        received = p.Received(content=post.content, place=place, at=at)
        return Row(
            place=place, at=at, job_id=post.job_id, game_id=post.game_id, sender=post.sender, number=post.number,
            kind=post.kind, content=received.content, wire=arrival.wire,
            signature=self._key.sign(received.digest(self._domain)),
        )  # fmt: skip

    def _keep(self, writer: Writer, post: p.Post, body: p.Body, place: int) -> None:
        match body:
            case p.OfferBody(job=job) if writer.job(post.job_id) is None:
                writer.add_job(post.job_id, job.client, place, pack(job.pack()))
            case p.GameBody() if writer.challenger(post.game_id) is None:
                writer.add_game(post.game_id, post.job_id, post.sender, place)
                self._challengers.put(post.game_id, post.sender)
            case p.LibraryBody(files=files):
                writer.name([(file.root, file.size) for file in files], post.sender)


def _rows(body: p.Body) -> int:
    """Rows of the database that a post fills."""
    return 1 + len(body.files) if isinstance(body, p.LibraryBody) else 1
