"""Posts: one encoding of what parties say through a hub, who may say it, and blobs that are checked piece by piece."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from eth_hash.auto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, make_job
from tests.vectors.posts import CONCESSION, GAME, HEAD, HUB, JOB, bodies, signed_posts, transactions
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.blobs import (
    PIECE_BYTES,
    blob_root,
    check_piece,
    check_pieces,
    piece_count,
    piece_digest,
)
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.errors import EncodingError, ProofError, SignatureError, VerificationError
from tiebreak.protocol.game.snapshot import SignedStanding
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import posts
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.tags import Digest

VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "posts.json"
SPEC = Path(__file__).resolve().parents[2] / "docs/SPEC.md"
OTHER = make_job(nonce=8)


def test_specification_lists_every_transaction_with_number_and_fields() -> None:
    _, _, after = SPEC.read_text().partition("| number | transaction | fields |")
    table = re.findall(r"^\| (\d+) \| (\w+|a move of section 10) \| (.*) \|$", after, re.MULTILINE)
    assert [int(number) for number, _, _ in table] == list(range(len(tx.TRANSACTIONS)))
    for (_, name, fields), kind in zip(table, tx.TRANSACTIONS, strict=True):
        assert name == ("a move of section 10" if kind is tx.MakeMove else kind.FUNCTION)
        assert len(re.sub(r"\[[^]]*\]|\([^)]*\)", "", fields).split(",")) == len(kind.kinds())


def test_hub_completeness_signature_covers_an_eip712_array_of_posts() -> None:
    """EIP-712 says so; and only the hub can sign it."""
    found = json.loads(VECTORS.read_text())
    kind = keccak(b"Received(bytes32 content,uint64 place,uint64 at)")
    structs = [
        keccak(kind + bytes.fromhex(c["content"][2:]) + c["place"].to_bytes(32, "big") + c["at"].to_bytes(32, "big"))
        for c in found["cases"]
    ]
    end = found["complete"]
    assert keccak(b"".join(structs)).hex() == end["posts"][2:]
    said = posts.Complete(
        job_id=JOB.id, posts=Digest(bytes.fromhex(end["posts"][2:])), at=end["at"],
        signature=bytes.fromhex(end["signature"][2:]),
    )  # fmt: skip
    assert said.digest(DOMAIN).hex() == end["digest"][2:]
    keys.verify(said.digest(DOMAIN), said.signature, HUB.address)
    for other in (replace(said, at=said.at + 1), replace(said, job_id=OTHER.id), replace(said, posts=OTHER.id)):
        with pytest.raises(SignatureError):
            keys.verify(other.digest(DOMAIN), said.signature, HUB.address)


def test_every_kind_and_every_transaction_has_a_number() -> None:
    assert set(posts.BODIES) == set(posts.PostKind)
    declared = {kind for kind in vars(tx).values() if isinstance(kind, type) and issubclass(kind, tx.Transaction)}
    assert set(tx.TRANSACTIONS) == declared - {tx.Transaction, tx.OnSeats}
    assert [type(item) for item in transactions()] == list(tx.TRANSACTIONS)
    assert {type(body) for body, _ in bodies()} == set(posts.BODIES.values())


Tree = st.recursive(
    st.integers(0, (1 << 64) - 1) | st.binary(max_size=70), lambda inner: st.lists(inner, max_size=6), max_leaves=20
)


@given(st.sampled_from(posts.PostKind), st.integers(0, len(tx.TRANSACTIONS)), st.lists(Tree, max_size=6))
def test_post_body_is_refused_or_reencodes_identically(kind: posts.PostKind, number: int, tree: list[Any]) -> None:
    for body in (pack(tree), pack([[number, tree]])):  # the second is a transaction's
        post = posts.Post(job_id=JOB.id, game_id=JOB.id, kind=int(kind), number=0, body=body, sender=CLIENT.address)
        with suppress(VerificationError):
            assert post.read(DOMAIN).encode() == body
        with suppress(VerificationError):
            assert posts.TransactionBody.unpack("transaction", unpack(body, len(body))).encode() == body


def test_signature_recovery_byte_does_not_change_the_post_content() -> None:
    signed, body, _ = signed_posts()[0]
    flipped = replace(signed, signature=signed.signature[:64] + bytes([55 - signed.signature[64]]))
    assert flipped.verify(DOMAIN) == body
    assert flipped.post.content == signed.post.content
    with pytest.raises(SignatureError):
        replace(signed, signature=signed.signature[:64] + b"\0").verify(DOMAIN)


def signed(body: posts.Body, author: Any = CLIENT, **changes: Any) -> posts.SignedPost:
    post = posts.Post.of(body, job_id=JOB.id, number=0, sender=author.address)
    return posts.SignedPost.sign(replace(post, **changes), DOMAIN, author)


OFFER = posts.Post.of(posts.OfferBody(job=JOB), job_id=JOB.id, number=0, sender=CLIENT.address)
NO_GAME = SignedStanding(game_id=JOB.id, sequence=0, snapshot=Digest(bytes(32)), signature=bytes(64) + b"\x1b")
REFUSED: dict[str, tuple[posts.SignedPost, str]] = {
    "another job": (signed(posts.OfferBody(job=OTHER)), "expected job"),
    "an offer in a game": (signed(posts.OfferBody(job=JOB), game_id=GAME), "expected game"),
    "a game with another id": (signed(posts.GameBody(head=HEAD, nonce=6), CHALLENGER, game_id=GAME), "expected game"),
    "another's game": (signed(posts.GameBody(head=HEAD, nonce=5), TRAINER, game_id=GAME), "expected game"),
    "a move in no game": (signed(posts.MoveBody(wire=b"1")), "expected the id of a game"),
    "a receipt in no game": (signed(posts.ReceiptBody(receipt=NO_GAME.encode())), "expected the id of a game"),
    "a receipt of another game": (signed(bodies()[7][0], CHALLENGER, game_id=Digest(bytes(32))), "expected game"),
    "a body of another kind": (signed(posts.OfferBody(job=JOB), kind=2), "array of 2 fields"),
    "another sender": (posts.SignedPost.sign(OFFER, DOMAIN, TRAINER), "expected a signature by"),
    "another domain": (posts.SignedPost.sign(OFFER, OFF_CHAIN, CLIENT), "expected a signature by"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_post_with_a_wrong_job_game_kind_or_sender_is_refused(name: str) -> None:
    post, message = REFUSED[name]
    with pytest.raises(VerificationError, match=message):
        post.verify(DOMAIN)


FILE = posts.PublishedFile(name=b"a/b.tbp", size=1, root=Digest(bytes(32)))


@pytest.mark.parametrize(
    "name", [b"", b"/a", b"../a", b"a/../b", b"a//b", b"a/", b".a", b"a\\b", b"a\0", b"a\n", b"a" * 65, b"a/b/c/d/e"]
)
def test_a_published_file_has_a_plain_name(name: bytes) -> None:
    with pytest.raises(EncodingError, match="plain relative path"):
        replace(FILE, name=name)


def test_oversized_posts_and_unordered_files_are_refused() -> None:
    for changes, message in (
        ({"body": bytes(posts.MAX_BODY_BYTES + 1)}, "at most 262144 bytes"),
        ({"kind": 14}, "between 1 and 13, got 14"),
    ):
        with pytest.raises(EncodingError, match=message):
            replace(OFFER, **changes)  # type: ignore[arg-type]
    for files in ((FILE, FILE), (replace(FILE, name=b"b"), FILE)):
        with pytest.raises(EncodingError, match="different names in their order"):
            posts.LibraryBody(count=1, logs=0, files=files)
    largest = replace(OFFER, number=2**64 - 1, body=bytes(posts.MAX_BODY_BYTES))
    assert posts.SignedPost.decode(posts.SignedPost.sign(largest, DOMAIN, CLIENT).encode()).post == largest


AUTHORS = {
    posts.OfferBody: {CLIENT},
    posts.AnswerBody: {TRAINER},
    posts.HeadBody: {TRAINER},
    posts.LogReceiptBody: {CLIENT},
    posts.GameBody: {CLIENT, TRAINER, CHALLENGER},
    posts.MoveBody: {TRAINER, CHALLENGER},
    posts.ReceiptBody: {TRAINER, CHALLENGER},
    posts.LibraryBody: {CLIENT, TRAINER},
    posts.StepsBody: {TRAINER},
    posts.ReplayedBody: {CLIENT, TRAINER, CHALLENGER},
    posts.TransactionBody: {CLIENT, TRAINER, CHALLENGER},
    posts.ConcessionBody: {TRAINER},
    posts.AuditorsBody: {CLIENT},
}


@pytest.mark.parametrize("author", [CLIENT, TRAINER, CHALLENGER])
def test_each_post_kind_is_accepted_only_from_its_authors(author: Any, cases: Callable[[], None]) -> None:
    for signed, body, _ in signed_posts():
        post = replace(signed.post, sender=author.address)
        if author in AUTHORS[type(body)]:
            posts.check_author(post, body, JOB, CHALLENGER.address, DOMAIN)
        else:
            with pytest.raises(VerificationError, match=f"post of kind {post.kind}: expected one by 0x"):
                posts.check_author(post, body, JOB, CHALLENGER.address, DOMAIN)
        cases()


def test_game_posts_need_a_trainer_signed_head_and_an_opened_game() -> None:
    forged = replace(HEAD, signature=CHALLENGER.sign(HEAD.head.digest(DOMAIN)))
    post, move = signed_posts()[5][0].post, signed_posts()[6]
    with pytest.raises(SignatureError):
        posts.check_author(post, posts.GameBody(head=forged, nonce=5), JOB, None, DOMAIN)
    with pytest.raises(VerificationError, match="a game that was opened"):
        posts.check_author(move[0].post, move[1], JOB, None, DOMAIN)


def test_each_party_statement_arrives_as_its_event() -> None:
    job, head, receipt = JOB, HEAD, bodies()[4][0]
    told = [
        (e.OfferJob(job=job), e.JobOffered(at=9, job=job)),
        (e.SignJob(job=job, signature=b""), e.JobSigned(at=9, job=job, signature=b"")),
        (e.ShowHead(head=head), e.HeadShown(at=9, head=head)),
        (e.ShowLogReceipt(receipt=receipt.receipt), e.LogReceiptShown(at=9, receipt=receipt.receipt)),
        (e.ShowConcession(concession=CONCESSION), e.ConcessionShown(at=9, concession=CONCESSION)),
        (e.ShowMove(game_id=GAME, wire=b"1"), e.MoveShown(at=9, game_id=GAME, wire=b"1")),
        (e.ShowReceipt(game_id=GAME, receipt=b"2"), e.ReceiptShown(at=9, game_id=GAME, receipt=b"2")),
    ]
    assert {type(action) for action, _ in told} == set(get_args(e.Statement))
    for action, event in told:
        post = posts.Post.of(posts.body_of(action), job_id=JOB.id, number=1, sender=CLIENT.address, game_id=GAME)
        assert posts.event_of(post, posts.body_of(action), 9) == event
    post = signed_posts()[8][0].post
    for body, _ in bodies()[8:]:
        assert posts.event_of(post, body, 9) is None or isinstance(body, posts.ConcessionBody)
    contested = e.Contested(at=9, job_id=JOB.id, count=2, by=post.sender)
    assert posts.event_of(post, posts.ReplayedBody(count=2, run_root=HEAD.head.run_root, agrees=0), 9) == contested


def test_hub_receipt_with_a_wrong_signature_is_refused() -> None:
    for signed, body, _ in signed_posts():
        digest = posts.Received(content=signed.post.content, place=1, at=2).digest(DOMAIN)
        good = posts.ReceivedPost(place=1, at=2, wire=signed.encode(), signature=HUB.sign(digest))
        assert good.open(DOMAIN, HUB.address) == (signed, body)
    for signature in (HUB.sign(bytes(32)), bytes(65)):
        with pytest.raises(SignatureError):
            replace(good, signature=signature).open(DOMAIN, HUB.address)


@given(st.integers(0, 5), st.integers(0, 3), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_blob_root_commits_to_its_size_and_pieces(whole: int, rest: int, random: Any) -> None:
    size = whole * PIECE_BYTES + rest
    pieces = [Digest(random.randbytes(32)) for _ in range(piece_count(size))]
    root = blob_root(size, pieces)
    check_pieces(root, size, pieces)
    changed = bytes([pieces[-1][0] ^ 1]) + pieces[-1][1:]
    for other in ([*pieces[:-1], changed], [changed, *pieces[1:]]):
        with pytest.raises(ProofError, match="expected pieces of blob"):
            check_pieces(root, size, other)
    for count in (len(pieces) - 1, len(pieces) + 1):
        with pytest.raises(ProofError, match=f"expected {len(pieces)} pieces"):
            check_pieces(root, size, [*pieces, pieces[0]][:count])
    with pytest.raises(ProofError, match="digests of 32 bytes"):
        blob_root(size, [pieces[0][:-1], *pieces[1:]])
    if rest > 1:
        with pytest.raises(ProofError, match="expected pieces of blob"):
            check_pieces(root, size - 1, pieces)


def test_a_wrong_piece_is_found() -> None:
    pieces = [piece_digest(b"a"), piece_digest(b"b")]
    check_piece(pieces, 1, b"b")
    check_piece(pieces, 0, memoryview(b"a"))
    with pytest.raises(ProofError, match="piece 0: expected"):
        check_piece(pieces, 0, b"b")


def test_steps_post_round_trips_and_checks_its_ranges() -> None:
    body = posts.StepsBody(first_step=3, losses=(0, 1 << 31), millisteps=1, processor=1000, memory=2)
    assert posts.StepsBody.unpack("steps", unpack(body.encode(), 100)) == body
    with pytest.raises(EncodingError, match="between 0 and 1000"):
        replace(body, processor=1001)
