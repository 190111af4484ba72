"""Takes posts: checks, places, signs and stores them, a batch in one transaction. The one writer of a hub.

Half of its work is waiting for the disk, so it has a thread of its own; one batch is taken after another.

Numbered plan of a post: (1) it is well-formed and its sender signed it, (2) its address keeps to its rates, (3) the
same post again is answered as before, and another one under its number is refused, (4) its job was offered here, (5)
the sender may write it there, (6) what it opens is within the limits, it fits on the disk, and its sender keeps to its
rates, (7) it gets a place, the instant at which it arrived, and a signature. Of those that are placed out of turn,
later ones never count as earlier. Anybody may send a signed post again, so a key pays only for what gets a place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy.exc

from tiebreak.node.hub.limits import Buckets, Budgets, HubLimits, Recent
from tiebreak.node.hub.store import Row, Store, Writer
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties.posts import (
    Body,
    Complete,
    GameBody,
    LibraryBody,
    OfferBody,
    Post,
    PostKind,
    Received,
    SignedPost,
    check_author,
)
from tiebreak.protocol.tags import Digest

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
    """A post on its way to the clerk: its bytes and their envelope, and when and from where they came."""

    wire: bytes
    signed: SignedPost
    at: float
    """Unix time by the hub's clock. Posts of others that are taken before do not make it later."""
    address: str

    @property
    def is_of_game(self) -> bool:
        """Whether it may be a message that a game's clock waits for."""
        return self.signed.post.kind in OF_GAMES


OF_GAMES: Final = frozenset({PostKind.GAME, PostKind.MOVE, PostKind.RECEIPT, PostKind.TRANSACTION})
_WHEN_FULL: Final = OF_GAMES | {PostKind.ANSWER, PostKind.HEAD, PostKind.LOG_RECEIPT, PostKind.AUDITORS}
_DAY: Final = 86_400


class _Refused(Exception):
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class Clerk:
    """Takes batches of posts, in one thread at a time. Raises what `Store.open_for_writing` raises."""

    def __init__(
        self, store: Store, domain: Domain, key: keys.PrivateKey, limits: HubLimits,
        *, has_room: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """has_room: whether more than `free_bytes` are free on the disk."""
        self._has_room = has_room
        self._store, self._domain, self._key, self._limits = store, domain, key, limits
        store.open_for_writing(
            {"hub": key.address.hex(), "chain": str(domain.chain_id), "contract": domain.contract.hex()}
        )
        self._budgets = Budgets(limits)
        self._when_full: Buckets[bytes | str] = Buckets(limits.full_bytes / _DAY, limits.full_bytes)
        self._jobs: Recent[bytes, Job] = Recent(_KNOWN)
        self._challengers: Recent[bytes, Address] = Recent(_KNOWN)
        self._strangers: Recent[tuple[bytes, bytes], int] = Recent(_KNOWN)
        """The bytes that a sender has in a job without being a party to it, by job and sender."""
        self._highest: Recent[tuple[bytes, bytes], int] = Recent(_KNOWN)
        """The highest number of a sender within a job; -1 if it has posted nothing there."""
        with store.writing() as writer:
            self._place, self._at = writer.last()

    def take(self, arrived: Sequence[Arrival]) -> list[PostResult]:
        """The answer to each post. A post that gets a place is on the disk."""
        place, at = self._place, self._at
        checked = [self._checked(arrival) for arrival in arrived]
        try:
            with self._store.writing() as writer:
                answers = self._placed(writer, arrived, checked)
        except sqlalchemy.exc.SQLAlchemyError as error:
            # A full disk, or a database that is away: nothing of this batch counts.
            self._place, self._at = place, at
            self._jobs.clear()
            self._challengers.clear()
            self._highest.clear()
            self._strangers.clear()
            text = f"expected room and a database to store posts, got {type(error).__name__}; try again later"
            return [found if isinstance(found, PostResult) else PostResult(status=507, error=text) for found in checked]
        return answers

    def stand(self, at: float) -> tuple[int, int]:
        """The last place, and an instant before which no further post counts. Call it between two batches.

        at: an instant before which no post arrived that still waits.
        """
        self._at = max(self._at, int(at))
        return self._place, self._at

    def complete(self, job_id: Digest, stand: tuple[int, int]) -> Complete:
        """The hub's word on the posts of a job, as things stood. May be called in any thread."""
        place, at = stand
        posts = Complete.hash_of(self._store.received(job_id, place))
        said = Complete(job_id=job_id, posts=posts, at=at, signature=bytes(keys.SIGNATURE_BYTES))
        return replace(said, signature=self._key.sign(said.digest(self._domain)))

    def _checked(self, arrival: Arrival) -> Body | PostResult:
        try:
            body = arrival.signed.verify(self._domain)  # (1)
        except VerificationError as error:
            return PostResult(status=400, error=str(error))
        excess = ""
        if arrival.address:  # (2) whose posts and bytes were charged when they came
            excess = self._budgets.excess(arrival.address, self._limits.keys_per_address, 0, 0, _rows(body))
        return PostResult(status=429, error=excess) if excess else body

    def _placed(
        self, writer: Writer, arrived: Sequence[Arrival], checked: Sequence[Body | PostResult]
    ) -> list[PostResult]:
        answers, new = [], dict[tuple[bytes, bytes, int], Row]()
        for arrival, body in zip(arrived, checked, strict=True):
            if isinstance(body, PostResult):
                answers.append(body)
                continue
            post = arrival.signed.post
            name = (post.job_id, post.sender, post.number)
            try:
                before = new.get(name) or self._found(writer, name)
                if before is not None:
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
                new[name] = self._row(arrival)
                self._highest.put(name[:2], max(post.number, self._highest.get(name[:2]) or 0))
                self._keep(writer, post, body)
                answers.append(PostResult(row=new[name], is_new=True))
        writer.add(list(new.values()))
        return answers

    def _found(self, writer: Writer, name: tuple[bytes, bytes, int]) -> Row | None:
        """The post of this job, sender and number. Numbers mostly count up, so few are looked for."""
        highest = self._highest.get(name[:2])
        if highest is None:
            highest = self._highest.put(name[:2], writer.highest(*name[:2]))
        return writer.found(*name) if name[2] <= highest else None

    def _authorize(self, writer: Writer, post: Post, body: Body, arrival: Arrival) -> None:
        job = body.job if isinstance(body, OfferBody) else self._jobs.get(post.job_id) or writer.job(post.job_id)
        if job is None:  # (4)
            raise _Refused(403, f"expected a job that its client offered here, got {post.job_id.hex()}")
        challenger = None
        if post.game_id != post.job_id:
            challenger = self._challengers.get(post.game_id) or writer.challenger(post.game_id)
        check_author(post, body, job, challenger, self._domain)  # (5)
        self._check_opening(writer, post, body, is_new_game=challenger is None)  # (6)
        self._charge(writer, arrival, body, is_stranger=post.sender not in (job.client, job.trainer))
        self._jobs.put(post.job_id, job)

    def _check_opening(self, writer: Writer, post: Post, body: Body, *, is_new_game: bool) -> None:
        """Raise `_Refused` for a job, a game or a list of files above the limits."""
        limits = self._limits
        if isinstance(body, OfferBody) and writer.job(post.job_id) is None:
            if writer.jobs_of(post.sender) >= limits.jobs_per_key:
                raise _Refused(429, f"expected at most {limits.jobs_per_key} jobs by one key, got another")
        elif isinstance(body, GameBody) and is_new_game:
            if writer.games_of(post.sender) >= limits.games_per_key:
                raise _Refused(429, f"expected at most {limits.games_per_key} games by one key, got another")
        elif isinstance(body, LibraryBody):
            largest = max((file.size for file in body.files), default=0)
            if largest > limits.blob_bytes:
                raise _Refused(413, f"expected files of at most {limits.blob_bytes} bytes, got one of {largest}")

    def _charge(self, writer: Writer, arrival: Arrival, body: Body, *, is_stranger: bool) -> None:
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

    def _row(self, arrival: Arrival) -> Row:  # (7)
        post = arrival.signed.post
        self._place, self._at = self._place + 1, max(self._at, int(arrival.at))
        content = post.content
        received = Received(content=content, place=self._place, at=self._at)
        return Row(
            place=self._place,
            at=self._at,
            job_id=post.job_id,
            game_id=post.game_id,
            sender=post.sender,
            number=post.number,
            kind=post.kind,
            content=content,
            wire=arrival.wire,
            signature=self._key.sign(received.digest(self._domain)),
        )

    def _keep(self, writer: Writer, post: Post, body: Body) -> None:
        match body:
            case OfferBody(job=job) if writer.job(post.job_id) is None:
                writer.add_job(post.job_id, job.client, self._place, pack(job.pack()))
            case GameBody() if writer.challenger(post.game_id) is None:
                writer.add_game(post.game_id, post.job_id, post.sender, self._place)
                self._challengers.put(post.game_id, post.sender)
            case LibraryBody(files=files):
                writer.name([(file.root, file.size) for file in files], post.sender)


def _rows(body: Body) -> int:
    """Rows of the database that a post fills."""
    return 1 + len(body.files) if isinstance(body, LibraryBody) else 1
