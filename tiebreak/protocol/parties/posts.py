"""Posts: the signed envelope of everything that parties say to each other through a hub (SPEC section 12).

    post      msgpack array [job id, game id (the job id if it is about no game), kind, number, body, sender]
    content   H(`tb.post.` || post)
    on wire   msgpack array [post (bin), signature (bin 65) over EIP-712 `Post(bytes32 content)`]
    received  the hub's answer: EIP-712 `Received(bytes32 content,uint64 place,uint64 at)`, signed by its key
    complete  its word on all posts of a job: EIP-712 `Complete(bytes32 jobId,bytes32 posts,uint64 at)`, by its key

A hub is trusted by nobody. The content of a post is checked by each reader, as if it came by any other way; the
envelope only says who sent it, so that a hub can refuse what strangers write. Its number is the sender's own, counted
within a job: one sender gives one number one content.

Numbered plan of `SignedPost.verify`, which takes untrusted bytes: (1) there is one canonical encoding within the size
limit, (2) the body is what its kind asks for, (3) it is about the job and the game that the envelope names, (4) the
sender signed the content. `check_author` then decides (5) whether this sender may write this into the job.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, Self

from eth_hash.auto import keccak

from tiebreak.protocol import packing
from tiebreak.protocol.commitments import blobs, keys
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address, Domain, TypedData, hash_struct, typed_digest
from tiebreak.protocol.commitments.job import Account, Job, game_id
from tiebreak.protocol.errors import EncodingError, SignatureError, VerificationError
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES
from tiebreak.protocol.game.snapshot import MAX_RECEIPT_BYTES, Signature, SignedStanding
from tiebreak.protocol.packing import U64, AnyOf, Data, Fields, ListOf, OneOf, Raw, Record, Root, Uint
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

MAX_BODY_BYTES: Final = 1 << 18
MAX_POST_BYTES: Final = MAX_BODY_BYTES + 512
"""Limit on the wire."""
MAX_LEAVES: Final = 7_000
"""Leaves of a run tree in one post. A longer run is shown without its leaves; they are in the files it publishes."""
MAX_FILES: Final = 1_500
MAX_LOSSES: Final = 4_096
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,63}){0,3}")


class PostKind(IntEnum):
    OFFER = 1
    ANSWER = 2
    HEAD = 3
    LOG_RECEIPT = 4
    GAME = 5
    MOVE = 6
    RECEIPT = 7
    LIBRARY = 8
    STEPS = 9
    REPLAYED = 10
    TRANSACTION = 11
    CONCESSION = 12
    AUDITORS = 13


# ---------------------------------------------------------------- bodies


class Body(Record):
    """Base class of what posts carry."""

    KIND: ClassVar[PostKind]


class OfferBody(Body, kind=PostKind.OFFER):
    """A client's job that asks for its trainer's signature."""

    job: tx.AnyJob


class AnswerBody(Body, kind=PostKind.ANSWER):
    """The trainer's signature under a job, or an empty one that declines."""

    job: tx.AnyJob
    signature: Annotated[bytes, Data(keys.SIGNATURE_BYTES)]


class HeadBody(Body, kind=PostKind.HEAD):
    """The trainer's head, perhaps with the leaves of its run tree."""

    head: tx.AnyHead
    leaves: Annotated[tuple[Digest, ...], ListOf(Raw(32), MAX_LEAVES)] = ()


class LogReceiptBody(Body, kind=PostKind.LOG_RECEIPT):
    """The client's receipt for the logs of a head."""

    receipt: tx.AnyReceipt


class GameBody(Body, kind=PostKind.GAME):
    """A challenger's choice of a head, and the nonce of its game. It opens the game's mailbox."""

    head: tx.AnyHead
    nonce: U64


class MoveBody(Body, kind=PostKind.MOVE):
    """A signed message by a side of a game (section 9)."""

    wire: Annotated[bytes, Data(MAX_MESSAGE_BYTES)]


class ReceiptBody(Body, kind=PostKind.RECEIPT):
    """A receipt for a state of a game by one of its sides (section 9)."""

    receipt: Annotated[bytes, Data(MAX_RECEIPT_BYTES)]


@dataclass(frozen=True, slots=True)
class FileName(packing.FieldType):
    """A relative path of at most four parts, none of which begins with a dot; as ASCII bytes."""

    def check(self, name: str, value: Any) -> None:
        if type(value) is not bytes or not _NAME.fullmatch(value.decode("latin-1")):
            raise EncodingError(f"{name}: expected a plain relative path, got {value!r:.80}")


class PublishedFile(Record):
    """A file of a run, and the blob that holds it."""

    name: Annotated[bytes, FileName()]
    size: Annotated[int, Uint(64, 0, blobs.MAX_BLOB_BYTES)]
    root: Root


class LibraryBody(Body, kind=PostKind.LIBRARY):
    """The published files of a run up to `count` checkpoints, by the client or the trainer."""

    count: U64
    logs: Annotated[int, Uint(8, 0, 1)]
    """Whether the rounding logs are among them."""
    files: Annotated[tuple[PublishedFile, ...], ListOf(OneOf((PublishedFile,)), MAX_FILES)]

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        names = [file.name for file in self.files]
        if names != sorted(set(names)):
            raise EncodingError("library: expected different names in their order, got others")


class StepsBody(Body, kind=PostKind.STEPS):
    """The trainer's account of its training, for those who watch. It proves nothing and binds nobody."""

    first_step: U64
    losses: Annotated[tuple[int, ...], ListOf(Uint(32), MAX_LOSSES)]
    """The loss of each step from `first_step` on, as the 32 bits of an FP32 number."""
    millisteps: U64
    """Speed, in steps in 1,000 seconds, so that a whole number tells slow steps apart."""
    processor: Annotated[int, Uint(16, 0, 1000)]
    """The share of all processors of the machine, in thousandths."""
    memory: U64
    """The most bytes of memory that the training process has held."""


class ReplayedBody(Body, kind=PostKind.REPLAYED):
    """The result of an auditor's replay, for those who watch. It proves nothing and binds nobody."""

    count: U64
    run_root: Root
    agrees: Annotated[int, Uint(8, 0, 1)]


class TransactionBody(Body, kind=PostKind.TRANSACTION):
    """A transaction that anybody would have sent to a chain, where there is none."""

    transaction: Annotated[tx.Transaction, AnyOf(tx.TRANSACTIONS)]


class ConcessionBody(Body, kind=PostKind.CONCESSION):
    """The trainer gives up a head, and names whom to pay for it."""

    concession: tx.AnyConcession


class AuditorsBody(Body, kind=PostKind.AUDITORS):
    """Accounts that the client names as auditors, for whom there is always a game in a job without a chain."""

    accounts: Annotated[tuple[Address, ...], ListOf(Raw(ADDRESS_BYTES), 32)]


BODIES: Final[dict[int, type[Body]]] = {
    body.KIND: body
    for body in (
        OfferBody, AnswerBody, HeadBody, LogReceiptBody, GameBody, MoveBody, ReceiptBody, LibraryBody, StepsBody,
        ReplayedBody, TransactionBody, ConcessionBody, AuditorsBody,
    )
}  # fmt: skip


# ---------------------------------------------------------------- the envelope


class Post(Record):
    """The envelope, before it is signed."""

    job_id: Root
    game_id: Root
    kind: Annotated[int, Uint(8, min(PostKind), max(PostKind))]
    number: U64
    body: Annotated[bytes, Data(MAX_BODY_BYTES)]
    sender: Account

    @classmethod
    def of(cls, body: Body, *, job_id: Digest, number: int, sender: Address, game_id: Digest | None = None) -> Self:
        return cls(
            job_id=job_id,
            game_id=game_id or job_id,
            kind=int(body.KIND),
            number=number,
            body=body.encode(),
            sender=sender,
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote. Raises `EncodingError`."""
        return cls.unpack("post", packing.unpack(data, MAX_POST_BYTES))

    @property
    def content(self) -> Digest:
        return tagged_hash(Tag.POST, self.encode())

    def read(self, domain: Domain) -> Body:
        """The body of the post. Raises `VerificationError` unless it is about the job and the game that it names."""
        kind = BODIES[self.kind]
        body = kind.unpack(kind.__name__, packing.unpack(self.body, MAX_BODY_BYTES))  # (2)
        job, game = tx.subject_of(body)
        match body:
            case GameBody():
                game = game_id(body.head.head, domain, self.sender, body.nonce)
            case ReceiptBody():
                game = SignedStanding.decode(body.receipt).game_id
            case _ if not isinstance(body, MoveBody):
                game = self.job_id
        for what, named, found in (("job", self.job_id, job), ("game", self.game_id, game)):
            if found is not None and found != named:  # (3)
                raise VerificationError(f"post: expected {what} {named.hex()}, got a body about {found.hex()}")
        if isinstance(body, MoveBody | ReceiptBody) and self.game_id == self.job_id:
            raise VerificationError("post: expected the id of a game, got that of its job twice")
        return body


def content_data(domain: Domain, content: bytes) -> TypedData:
    """The typed data that the sender of a post signs."""
    return TypedData(domain=domain, name="Post", kinds={"content": Raw(32)}, values=(content,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPost:
    """A post with a signature that should be its sender's."""

    post: Post
    signature: bytes

    @classmethod
    def sign(cls, post: Post, domain: Domain, key: keys.PrivateKey) -> Self:
        typed = content_data(domain, post.content)
        return cls(post=post, signature=key.sign(typed.digest, typed))

    def encode(self) -> bytes:
        return packing.pack([self.post.encode(), self.signature])

    @classmethod
    def decode(cls, wire: bytes) -> Self:
        """Read a post from the wire. Its signature and its body are not checked yet. Raises `EncodingError`."""
        found = Fields("wire post", packing.unpack(wire, MAX_POST_BYTES), 2)  # (1)
        post = Post.decode(found.take(Data(MAX_POST_BYTES)))
        return cls(post=post, signature=found.take(Raw(keys.SIGNATURE_BYTES)))

    def digest(self, domain: Domain) -> Digest:
        """The digest under the signature."""
        return content_data(domain, self.post.content).digest

    def verify(self, domain: Domain) -> Body:
        """The body of the post. Raises `VerificationError` unless it is well-formed and its sender signed it."""
        body = self.post.read(domain)
        _verify(self.digest(domain), self.signature, self.post.sender)  # (4)
        return body


def _verify(digest: bytes, signature: bytes, sender: Address) -> None:
    """Raise `SignatureError` unless the sender made r and s. Their last byte may be either of its two values.

    It only helps to recover the key, which the sender's address names anyway. A reader that knows the key may skip the
    recovery and still takes exactly what every other reader takes.
    """
    try:
        keys.verify(digest, signature, sender)
    except SignatureError:
        if signature[64] not in (27, 28):
            raise
        keys.verify(digest, signature[:64] + bytes([55 - signature[64]]), sender)


def check_author(post: Post, body: Body, job: Job, challenger: Address | None, domain: Domain) -> None:  # (5)
    """Raise `VerificationError` unless this sender may write this into the job.

    challenger: that of the game that the post names, if it is known. For a game that is being opened the head has to be
    one of the job's, so that nobody opens mailboxes about nothing.
    """
    allowed: tuple[bytes, ...]
    match body:
        case ReplayedBody() | TransactionBody():
            return
        case GameBody(head=head):
            head.verify(job, domain)
            return
        case OfferBody() | LogReceiptBody() | AuditorsBody():
            allowed = (job.client,)
        case AnswerBody() | HeadBody() | StepsBody() | ConcessionBody():
            allowed = (job.trainer,)
        case MoveBody() | ReceiptBody():
            if challenger is None:
                raise VerificationError(f"post: expected a game that was opened, got {post.game_id.hex()}")
            allowed = (challenger, job.trainer)
        case _:
            allowed = (job.client, job.trainer)
    if post.sender not in allowed:
        named = " or ".join(f"0x{address.hex()}" for address in allowed)
        raise VerificationError(f"post of kind {post.kind}: expected one by {named}, got one by 0x{post.sender.hex()}")


class Received(Record):
    """A hub's statement about a post: it stands at `place` of all that the hub has taken, since its instant `at`."""

    content: Root
    place: U64
    at: U64
    """Seconds by the hub's clock. Later places have no earlier instants."""

    def digest(self, domain: Domain) -> Digest:
        """The digest that the hub signs."""
        return typed_digest(domain, hash_struct("Received", self.kinds(), self.values))


class ReceivedPost(Record):
    """A post as a hub hands it out: with its place, its instant and the hub's signature."""

    place: U64
    at: U64
    wire: Annotated[bytes, Data(MAX_POST_BYTES)]
    signature: Signature

    def open(self, domain: Domain, hub: bytes) -> tuple[SignedPost, Body]:
        """The post and what it carries. Raises `VerificationError` unless sender and hub signed what they should."""
        signed = SignedPost.decode(self.wire)
        received = Received(content=signed.post.content, place=self.place, at=self.at)
        keys.verify(received.digest(domain), self.signature, hub)
        return signed, signed.verify(domain)


class Complete(Record):
    """A hub's signed statement that these are all posts of a job up to an instant."""

    job_id: Root
    posts: Root
    """EIP-712's hash of an array of `Received`, in the order of places (`hash_of`)."""
    at: U64
    signature: Signature

    @staticmethod
    def hash_of(posts: Iterable[Received]) -> Digest:
        return Digest(keccak(b"".join(hash_struct("Received", Received.kinds(), one.values) for one in posts)))

    def digest(self, domain: Domain) -> Digest:
        """The digest that the hub signs."""
        *kinds, _ = self.kinds().items()
        return typed_digest(domain, hash_struct("Complete", dict(kinds), self.values[:-1]))


# ---------------------------------------------------------------- between machines and posts


_CARRIED: Final[dict[type[Any], tuple[type[Body], type[Any]]]] = {
    e.OfferJob: (OfferBody, e.JobOffered),
    e.SignJob: (AnswerBody, e.JobSigned),
    e.ShowHead: (HeadBody, e.HeadShown),
    e.ShowLogReceipt: (LogReceiptBody, e.LogReceiptShown),
    e.ShowConcession: (ConcessionBody, e.ConcessionShown),
    e.ShowMove: (MoveBody, e.MoveShown),
    e.ShowReceipt: (ReceiptBody, e.ReceiptShown),
}
"""The body that carries each statement, and the event by which others hear it. Their fields have the same names."""
_HEARD: Final = dict(_CARRIED.values())


def body_of(action: e.Statement) -> Body:
    """The post body for a machine's statement."""
    kind, _ = _CARRIED[type(action)]
    return kind(**{name: getattr(action, name) for name in kind.kinds() if hasattr(action, name)})


def event_of(post: Post, body: Body, at: int) -> e.Message | None:
    """The event by which a machine learns of a post; None if that is the business of its driver."""
    if isinstance(body, ReplayedBody) and not body.agrees:
        return e.Contested(at=at, job_id=post.job_id, count=body.count, by=post.sender)
    if type(body) not in _HEARD:
        return None
    game = {"game_id": post.game_id} if isinstance(body, MoveBody | ReceiptBody) else {}
    found: e.Message = _HEARD[type(body)](at=at, **game, **dict(zip(body.kinds(), body.values, strict=True)))
    return found
