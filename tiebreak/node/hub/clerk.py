"""Takes posts: checks, places, signs and stores them, a batch in one transaction. The one writer of a hub.

Its work is arithmetic (signatures) and waiting for the disk, so it has a process of its own beside the one that speaks
HTTP; tests run it in a thread. Either way one batch is taken after another.

Numbered plan of a post: (1) it is well-formed and its sender signed it, (2) the sender keeps to its rate, (3) the same
post again is answered as before, and another one under its number is refused, (4) its job was offered here, (5) the
sender may write it there, (6) what it opens is within the limits, (7) it gets a place, an instant and a signature.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import Final

import sqlalchemy.exc
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from tiebreak.node.hub.limits import Buckets, Limits, Recent
from tiebreak.node.hub.store import Row, Store, Writer
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import SignatureError, StateError, VerificationError
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties.posts import (
    Body,
    GameBody,
    LibraryBody,
    OfferBody,
    Post,
    Received,
    SignedPost,
    check_author,
)

_KNOWN: Final = 10_000
"""Senders, jobs and games that are kept at hand."""
_VERIFY: Final = ec.ECDSA(utils.Prehashed(hashes.SHA256()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a post: a row if it has a place, else the status and the reason of its refusal."""

    row: Row | None = None
    is_new: bool = False
    status: int = 200
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a clerk works with. It can be sent to another process."""

    database: str
    domain: Domain
    pem: bytes
    """The hub's key, encrypted under a passphrase that only lives in memory."""
    passphrase: str
    limits: Limits

    def __repr__(self) -> str:
        return f"Desk({self.database})"


class _Refused(Exception):
    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status


class Signers:
    """Checks signatures by keys that were seen before without recovering them again: an eighth of the time.

    It takes exactly what `SignedPost.verify` takes, whatever the last byte is.
    """

    def __init__(self) -> None:
        self._known: Recent[bytes, ec.EllipticCurvePublicKey] = Recent(_KNOWN)

    def verify(self, digest: bytes, signature: bytes, address: bytes) -> None:
        """Raise `SignatureError` unless the key of this address signed."""
        key = self._known.get(address)
        if key is None:
            ends = (signature[64:], bytes([55 - signature[64]]) if signature[64] in (27, 28) else b"")
            made = (keys.recover_key(digest, signature[:64] + end) for end in ends)
            key = next((key for key in made if keys.address_of(key) == address), None)
            if key is None:
                raise SignatureError(f"expected a signature by 0x{address.hex()}, got another's")
            self._known.put(address, key)
            return
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
        try:
            if not 1 <= s <= keys.ORDER // 2 or signature[64] not in (27, 28):
                raise SignatureError("expected s in the lower half of the group order, and v of 27 or 28")
            key.verify(utils.encode_dss_signature(r, s), digest, _VERIFY)
        except (ValueError, InvalidSignature) as error:
            raise SignatureError(f"expected a signature by 0x{address.hex()}") from error


class Clerk:
    """Takes batches of posts. One object, one process, one thread at a time."""

    def __init__(self, desk: Desk, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._domain, self._limits, self._store, self._clock = desk.domain, desk.limits, store, clock
        self._key = keys.PrivateKey.from_pem(desk.pem, desk.passphrase)
        store.open_for_writing(
            {
                "hub": self._key.address.hex(),
                "chain": str(desk.domain.chain_id),
                "contract": desk.domain.contract.hex(),
            }
        )
        self._signers = Signers()
        rate = desk.limits.posts_per_minute
        self._buckets: Buckets[bytes] = Buckets(rate / 60, max(1, rate // 5))
        most = desk.limits.post_bytes_per_second
        self._bytes: Buckets[bytes] = Buckets(most, 128 * most)
        self._jobs: Recent[bytes, Job] = Recent(_KNOWN)
        self._challengers: Recent[bytes, Address] = Recent(_KNOWN)
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
            text = f"expected room and a database to store posts, got {type(error).__name__}; try again later"
            return [found if isinstance(found, Answer) else Answer(status=507, error=text) for found in checked]
        return answers

    def _checked(self, wire: bytes) -> tuple[SignedPost, Body] | Answer:
        try:
            signed = SignedPost.decode(wire)  # (1)
            body = signed.post.read(self._domain)
            self._signers.verify(signed.digest(self._domain), signed.signature, signed.post.sender)
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
                self._authorize(writer, post, body)
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

    def _authorize(self, writer: Writer, post: Post, body: Body) -> None:
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

    def _row(self, signed: SignedPost, wire: bytes) -> Row:  # (7)
        post = signed.post
        self._place, self._at = self._place + 1, max(self._at, int(self._clock()))
        received = Received(content=post.content, place=self._place, at=self._at)
        return Row(
            place=self._place,
            at=self._at,
            job_id=post.job_id,
            game_id=post.game_id,
            sender=post.sender,
            number=post.number,
            kind=post.kind,
            content=post.content,
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


# ---------------------------------------------------------------- in a thread, or in a process of its own

_own: list[Clerk] = []
"""The clerk of a process that was started for one."""


class _Thread(ThreadPoolExecutor):
    def __init__(self, store: Store) -> None:
        super().__init__(1, "clerk")
        self._store = store

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        self._store.close()


def in_thread(desk: Desk) -> tuple[Executor, Callable[[list[bytes]], list[Answer]]]:
    """An executor, and what to submit to it. Raises what `Store.open_for_writing` raises."""
    store = Store(desk.database)
    clerk = Clerk(desk, store)
    return _Thread(store), clerk.take


def in_process(desk: Desk) -> tuple[Executor, Callable[[list[bytes]], list[Answer]]]:
    """The same with the clerk in a process of its own, which ends with this one."""
    executor = ProcessPoolExecutor(1, get_context("spawn"), _open, (desk,))
    try:
        executor.submit(_take, []).result()
    except Exception as error:
        raise StateError("the process that takes posts did not start; the reason stands above") from error
    return executor, _take


def _open(desk: Desk) -> None:
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _own.append(Clerk(desk, Store(desk.database)))


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _take(wires: list[bytes]) -> list[Answer]:
    return _own[0].take(wires)
