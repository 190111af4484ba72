"""Takes posts: checks, places, signs and stores them, a batch in one transaction. The one writer of a hub.

Half of its work is waiting for the disk, so it has a thread of its own; one batch is taken after another.

Numbered plan of a post: (1) it is well-formed and its sender signed it, (2) the sender keeps to its rate, (3) the same
post again is answered as before, and another one under its number is refused, (4) its job was offered here, (5) the
sender may write it there, (6) what it opens is within the limits, (7) it gets a place, an instant and a signature.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy.exc

from tiebreak.node.hub.limits import Buckets, Limits, Recent
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
    Received,
    SignedPost,
    check_author,
)
from tiebreak.protocol.tags import Digest

_KNOWN: Final = 10_000
"""Jobs and games whose parties are kept in memory; others are read from the store again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a post: a row if it has a place, else the status and the reason of its refusal."""

    row: Row | None = None
    is_new: bool = False
    status: int = 200
    error: str = ""


class _Refused(Exception):
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class Clerk:
    """Takes batches of posts, in one thread at a time. Raises what `Store.open_for_writing` raises."""

    def __init__(
        self, store: Store, domain: Domain, key: keys.PrivateKey, limits: Limits,
        *, clock: Callable[[], float] = time.time, has_room: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self._has_room = has_room
        self._store, self._domain, self._key, self._limits, self._clock = store, domain, key, limits, clock
        store.open_for_writing(
            {"hub": key.address.hex(), "chain": str(domain.chain_id), "contract": domain.contract.hex()}
        )
        rate = limits.posts_per_minute
        self._buckets: Buckets[bytes] = Buckets(rate / 60, max(1, rate // 5))
        most = limits.post_bytes_per_second
        self._bytes: Buckets[bytes] = Buckets(most, 128 * most)
        self._jobs: Recent[bytes, Job] = Recent(_KNOWN)
        self._challengers: Recent[bytes, Address] = Recent(_KNOWN)
        self._strangers: Recent[tuple[bytes, bytes], int] = Recent(_KNOWN)
        """The bytes that a sender has in a job of which it is no party."""
        self._highest: Recent[tuple[bytes, bytes], int] = Recent(_KNOWN)
        """The highest number of a sender within a job; -1 if it has posted nothing there."""
        with store.writing() as writer:
            self._place, self._at = writer.last()

    def take(self, wires: Sequence[bytes]) -> list[Answer]:
        """The answer to each post. What is answered with a place is on the disk."""
        place, at = self._place, self._at
        checked = [self._checked(wire) for wire in wires]
        try:
            with self._store.writing() as writer:
                answers = self._placed(writer, wires, checked)
        except sqlalchemy.exc.SQLAlchemyError as error:
            # A full disk, or a database that is away: nothing of this batch counts.
            self._place, self._at = place, at
            self._jobs.clear()
            self._challengers.clear()
            self._highest.clear()
            self._strangers.clear()
            text = f"expected room and a database to store posts, got {type(error).__name__}; try again later"
            return [found if isinstance(found, Answer) else Answer(status=507, error=text) for found in checked]
        return answers

    def stand(self) -> tuple[int, int]:
        """The last place, and an instant before which no further post counts. To be asked between two batches."""
        self._at = max(self._at, int(self._clock()))
        return self._place, self._at

    def complete(self, job_id: Digest, stand: tuple[int, int]) -> Complete:
        """The hub's word on the posts of a job, as things stood. In any thread."""
        place, at = stand
        posts = Complete.hash_of(self._store.received(job_id, place))
        said = Complete(job_id=job_id, posts=posts, at=at, signature=bytes(keys.SIGNATURE_BYTES))
        return replace(said, signature=self._key.sign(said.digest(self._domain)))

    def _checked(self, wire: bytes) -> tuple[SignedPost, Body] | Answer:
        try:
            signed = SignedPost.decode(wire)  # (1)
            body = signed.verify(self._domain)
        except VerificationError as error:
            return Answer(status=400, error=str(error))
        if not self._buckets.take(signed.post.sender):  # (2)
            rate = self._limits.posts_per_minute
            return Answer(status=429, error=f"expected at most {rate} posts a minute by one key, got more")
        if not self._bytes.take(signed.post.sender, len(wire)):
            most = self._limits.post_bytes_per_second
            return Answer(status=429, error=f"expected at most {most} bytes a second of posts by one key, got more")
        return signed, body

    def _placed(
        self, writer: Writer, wires: Sequence[bytes], checked: Sequence[tuple[SignedPost, Body] | Answer]
    ) -> list[Answer]:
        answers, new = [], dict[tuple[bytes, bytes, int], Row]()
        for wire, found in zip(wires, checked, strict=True):
            if isinstance(found, Answer):
                answers.append(found)
                continue
            signed, body = found
            post = signed.post
            name = (post.job_id, post.sender, post.number)
            try:
                before = new.get(name) or self._found(writer, name)
                if before is not None:
                    answers.append(Answer(row=_same(before, post)))  # (3)
                    continue
                self._authorize(writer, post, body, len(wire))
            except VerificationError as error:
                answers.append(Answer(status=403, error=str(error)))
            except _Refused as error:
                answers.append(Answer(status=error.status, error=str(error)))
            else:
                new[name] = self._row(signed, wire)
                self._highest.put(name[:2], max(post.number, self._highest.get(name[:2]) or 0))
                self._keep(writer, post, body)
                answers.append(Answer(row=new[name], is_new=True))
        writer.add(list(new.values()))
        return answers

    def _found(self, writer: Writer, name: tuple[bytes, bytes, int]) -> Row | None:
        """The post of this job, sender and number. Numbers mostly count up, so few are looked for."""
        highest = self._highest.get(name[:2])
        if highest is None:
            highest = self._highest.put(name[:2], writer.highest(*name[:2]))
        return writer.found(*name) if name[2] <= highest else None

    def _authorize(self, writer: Writer, post: Post, body: Body, size: int) -> None:
        limits = self._limits
        job = body.job if isinstance(body, OfferBody) else self._jobs.get(post.job_id) or writer.job(post.job_id)
        if job is None:  # (4)
            raise _Refused(403, f"expected a job that its client offered here, got {post.job_id.hex()}")
        challenger = None
        if post.game_id != post.job_id:
            challenger = self._challengers.get(post.game_id) or writer.challenger(post.game_id)
        check_author(post, body, job, challenger, self._domain)  # (5)
        if isinstance(body, OfferBody) and writer.job(post.job_id) is None:  # (6)
            if writer.jobs_of(post.sender) >= limits.jobs_per_key:
                raise _Refused(429, f"expected at most {limits.jobs_per_key} jobs by one key, got another")
        elif isinstance(body, GameBody) and challenger is None:
            if writer.games_of(post.sender) >= limits.games_per_key:
                raise _Refused(429, f"expected at most {limits.games_per_key} games by one key, got another")
        elif isinstance(body, LibraryBody):
            largest = max((file.size for file in body.files), default=0)
            if largest > limits.blob_bytes:
                raise _Refused(413, f"expected files of at most {limits.blob_bytes} bytes, got one of {largest}")
        self._jobs.put(post.job_id, job)
        if post.sender not in (job.client, job.trainer):
            self._charge(writer, post, size)

    def _charge(self, writer: Writer, post: Post, size: int) -> None:
        """Charge a post to a sender who is no party of the job. Keys cost nothing, so the disk has a limit, too."""
        if not self._has_room():
            raise _Refused(507, "expected a disk with room for posts by others than client and trainer, got a full one")
        name, most = (post.job_id, post.sender), self._limits.stranger_bytes
        held = self._strangers.get(name)
        held = (writer.bytes_of(*name) if held is None else held) + size
        if held > most:
            raise _Refused(403, f"expected at most {most} bytes in one job by a key that is no party of it, got {held}")
        self._strangers.put(name, held)

    def _row(self, signed: SignedPost, wire: bytes) -> Row:  # (7)
        post = signed.post
        self._place, self._at = self._place + 1, max(self._at, int(self._clock()))
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
            wire=wire,
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


def _same(before: Row, post: Post) -> Row:
    if before.content != post.content:
        text = f"post {post.number} of this sender in this job: expected content {before.content.hex()}"
        raise _Refused(409, f"{text}, got {post.content.hex()}")
    return before
