"""Posts as they travel, hubs' receipts for them, and blobs: posts.json."""

from functools import cache
from typing import Any

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, make_job
from tests.vectors.inputs import Stream
from tests.vectors.instructions import hex_of
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Concession, Head, LogReceipt, SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game.messages import Message, sign
from tiebreak.protocol.game.moves import Concede, Descend, Prove, TensorOpening
from tiebreak.protocol.game.snapshot import Fork, SignedStanding, Standing
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

HUB = PrivateKey.from_int(4)
JOB = make_job()


def _digest(name: str) -> Digest:
    return Digest(Stream(name).data(32))


HEAD = SignedHead.sign(Head(job_id=JOB.id, count=2, run_root=_digest("run")), DOMAIN, TRAINER)
GAME = game_id(HEAD.head, DOMAIN, CHALLENGER.address, 5)
CONCESSION = Concession.sign(HEAD.head, CHALLENGER.address, DOMAIN, TRAINER)
STATE = Standing(game_id=GAME, sequence=3, snapshot=_digest("snapshot"))
STANDING = SignedStanding.under(STATE, CHALLENGER.sign(STATE.digest(DOMAIN)))


def transactions() -> list[tx.Transaction]:
    """One of every type, in the order of their numbers."""
    receipt = LogReceipt.sign(HEAD.head, DOMAIN, CLIENT)
    opened = tx.OpenedHead(head=HEAD, leaf=_digest("leaf"), siblings=(_digest("a"), _digest("b")))
    entered = tx.Enter(game_id=GAME, sequence=3, snapshot=bytes(144), signature=bytes(65))
    tensor = TensorOpening(value=1, dtype=0, dims=(2, 3), chunk_root=_digest("c"), siblings=(_digest("d"),))
    proof = Prove(instruction=b"\1\2", tensors=(tensor,))
    fork = Fork.of(STANDING, STANDING)
    return [
        tx.CreateJob(job=JOB, signature=bytes(65)),
        tx.CancelJob(job_id=JOB.id),
        tx.AcceptJob(job_id=JOB.id),
        tx.PostHead(head=HEAD),
        tx.Report(first=HEAD, second=HEAD),
        tx.ReportInconsistency(position=1, first=opened, second=opened),
        tx.Acknowledge(receipt=receipt),
        tx.Settle(job_id=JOB.id),
        tx.Abandon(job_id=JOB.id),
        tx.Part(job_id=JOB.id),
        tx.JoinPool(bond=1 << 100),
        tx.LeavePool(bond=1 << 100, slot=7),
        tx.SealHead(job_id=JOB.id, count=2, seal=_digest("seal")),
        tx.DrawSeats(job=JOB, secret=_digest("secret")),
        tx.SealRoot(job_id=JOB.id, seat=1, seal=_digest("seal")),
        tx.OpenHead(head=HEAD, salt=_digest("salt")),
        tx.ClaimSeat(
            job_id=JOB.id, seat=1, auditor=CHALLENGER.address, run_root=_digest("run"), salt=_digest("salt")
        ),
        tx.CloseSeats(job_id=JOB.id),
        tx.Challenge(head=HEAD, nonce=5, more=1),
        tx.MakeMove(game_id=GAME, sequence=0, move=Descend(nodes=(_digest("n"), _digest("m")))),
        entered,
        tx.EnterAndProve(entered=entered, move=proof, opened=(_digest("run"), b"\1\2")),
        tx.ReportFork(fork=fork),
        tx.ClaimTimeout(game_id=GAME),
        tx.Reclaim(game_id=GAME),
        tx.Withdraw(to=Address(bytes(20))),
        tx.ReportConcession(concession=CONCESSION),
        tx.ReportLoss(
            head=HEAD, position=1, state_root=_digest("state"), loss_bits=0x7FC00000, log_root=_digest("log"),
            siblings=(_digest("a"), _digest("b")),
        ),
    ]  # fmt: skip


@cache
def bodies() -> list[tuple[posts.Body, PrivateKey]]:
    """One of every kind with its author; transactions of every type."""
    message = Message(job_id=JOB.id, game_id=GAME, sequence=0, previous=GAME, move=Concede())
    file = posts.PublishedFile(name=b"program.tbp", size=3, root=blob_root(3, [piece_digest(b"abc")]))
    return [
        (posts.OfferBody(job=JOB), CLIENT),
        (posts.AnswerBody(job=JOB, signature=TRAINER.sign(JOB.digest(DOMAIN))), TRAINER),
        (posts.AnswerBody(job=JOB, signature=b""), TRAINER),
        (posts.HeadBody(head=HEAD, leaves=(_digest("a"), _digest("b"))), TRAINER),
        (posts.LogReceiptBody(receipt=LogReceipt.sign(HEAD.head, DOMAIN, CLIENT)), CLIENT),
        (posts.GameBody(head=HEAD, nonce=5), CHALLENGER),
        (posts.MoveBody(wire=sign(message, DOMAIN, TRAINER, None)), TRAINER),
        (posts.ReceiptBody(receipt=STANDING.encode()), CHALLENGER),
        (posts.LibraryBody(count=2, logs=0, files=(file,)), TRAINER),
        (posts.StepsBody(first_step=1, losses=(0x3F800000,), millisteps=2500, processor=900, memory=1 << 33), TRAINER),
        (posts.ReplayedBody(count=2, run_root=_digest("run"), agrees=1), CHALLENGER),
        (posts.ConcessionBody(concession=CONCESSION), TRAINER),
        *((posts.TransactionBody(transaction=item), CLIENT) for item in transactions()),
        (posts.AuditorsBody(accounts=(CHALLENGER.address, HUB.address)), CLIENT),
    ]


@cache
def signed_posts() -> list[tuple[posts.SignedPost, posts.Body, PrivateKey]]:
    found = []
    for number, (body, author) in enumerate(bodies()):
        in_game = isinstance(body, posts.GameBody | posts.MoveBody | posts.ReceiptBody)
        post = posts.Post.of(
            body, job_id=JOB.id, number=number, sender=author.address, game_id=GAME if in_game else None
        )
        found.append((posts.SignedPost.sign(post, DOMAIN, author), body, author))
    return found


def _post(signed: posts.SignedPost, place: int) -> dict[str, Any]:
    received = posts.Received(content=signed.post.content, place=place, at=1_700_000_000 + place)
    return {
        "kind": posts.PostKind(signed.post.kind).name.lower(),
        "sender": hex_of(signed.post.sender),
        "content": hex_of(signed.post.content),
        "wire": hex_of(signed.encode()),
        "place": place,
        "at": received.at,
        "received": hex_of(HUB.sign(received.digest(DOMAIN))),
    }


def _blob(size: int) -> dict[str, Any]:
    """A blob of bytes that count up, modulo 251."""
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    pieces = [piece_digest(data[at : at + PIECE_BYTES]) for at in range(0, max(size, 1), PIECE_BYTES)]
    return {"size": size, "pieces": [hex_of(piece) for piece in pieces], "root": hex_of(blob_root(size, pieces))}


def _complete() -> dict[str, Any]:
    """The hub's word on all of the cases."""
    received = [
        posts.Received(content=signed.post.content, place=place, at=1_700_000_000 + place)
        for place, (signed, _, _) in enumerate(signed_posts(), start=1)
    ]
    end = posts.Complete(job_id=JOB.id, posts=posts.Complete.hash_of(received), at=received[-1].at, signature=bytes(65))
    digest = end.digest(DOMAIN)
    return {"posts": hex_of(end.posts), "at": end.at, "digest": hex_of(digest), "signature": hex_of(HUB.sign(digest))}


def posted() -> dict[str, Any]:
    cases = [_post(signed, place) for place, (signed, _, _) in enumerate(signed_posts(), start=1)]
    blobs = [_blob(size) for size in (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5)]
    return {
        "count": len(cases),
        "chainId": DOMAIN.chain_id,
        "contract": hex_of(DOMAIN.contract),
        "hub": hex_of(HUB.address),
        "cases": cases,
        "complete": _complete(),
        "blobs": blobs,
    }
