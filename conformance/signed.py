"""Holds the vectors of what is signed, sealed or sent against the reference: needs more than NumPy (README.md)."""

from collections.abc import Sequence
from typing import Final

from conformance.vectors import Cases, Check, Json, fields, unhex
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.blobs import PIECE_BYTES, blob_root, piece_digest
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.commitments.seats import ATTEMPTS, head_seal, nonce_of, root_seal, seed_of, slot_of
from tiebreak.protocol.errors import EncodingError, InvalidSnapshot, VerificationError
from tiebreak.protocol.game.snapshot import Snapshot, Standing
from tiebreak.protocol.packing import camel_case
from tiebreak.protocol.parties.posts import Complete, PostKind, Received, SignedPost
from tiebreak.protocol.tags import Digest


def _digest(case: Json, key: str) -> Digest:
    return Digest(unhex(case[key]))


def _domain(case: Json) -> Domain:
    return Domain(chain_id=case["chainId"], contract=Address(unhex(case["contract"])))


def _is_signed(digest: bytes, signature: str, signer: str) -> bool:
    try:
        keys.verify(digest, unhex(signature), unhex(signer))
    except VerificationError:
        return False
    return True


def seats(found: Json) -> Cases:
    for number, case in enumerate(found["cases"]):
        job_id, root, salt, secret, entropy = (
            _digest(case, key) for key in ("jobId", "runRoot", "salt", "secret", "entropy")
        )
        seed, length = seed_of(job_id, entropy, secret), case["poolLength"]
        for name, computed in (
            ("headSeal", head_seal(job_id, int(case["headCount"]), root, salt)),
            ("rootSeal", root_seal(job_id, Address(unhex(case["auditor"])), root, salt)),
            ("nonce", nonce_of(secret).to_bytes(32, "big")),
            ("seed", seed),
        ):
            yield f"[{number}] {name}", unhex(case[name]), computed
        for place, slot in enumerate(case["slots"]):
            yield f"[{number}] slot {place}", slot, slot_of(seed, *divmod(place, ATTEMPTS), length)


def receipts(found: Json) -> Cases:
    for number, case in enumerate(found["cases"]):
        head = Head(job_id=_digest(case, "jobId"), count=int(case["headCount"]), run_root=_digest(case, "runRoot"))
        digest = head.receipt_digest(_domain(case))
        yield f"[{number}] digest", unhex(case["digest"]), digest
        yield f"[{number}] signature", True, _is_signed(digest, case["signature"], case["client"])


def _standing(game: Json) -> tuple[Job, Head]:
    """A job and a head with the numbers that a game's trees follow from; all else is filled in."""
    zero = Digest(bytes(32))
    job = Job(
        client=Address(b"\1" * 20), trainer=Address(b"\2" * 20), program_root=zero, body_count=game["bodyCount"],
        state_count=game["stateCount"], data_count=0, initial_state_root=zero, data_root=zero, steps=game["steps"],
        checkpoint_interval=game["checkpointInterval"], policy=game["policy"], reward=0, trainer_stake=0,
        challenger_stake=1, challenge_window=1, clock=1, replay_time=0, talk_time=0, audit_time=0, deadline=1,
        descent_levels=game["descentLevels"], nonce=0,
    )  # fmt: skip
    return job, Head(job_id=job.id, count=game["count"], run_root=zero)


def _refused_at(data: bytes, job: Job, head: Head) -> int:
    """The offset of the field for which the game refuses a snapshot; 255 if it takes it."""
    try:
        Snapshot.decode(data).require_reachable(job, head)
    except InvalidSnapshot as error:
        return error.offset
    return 255


def _is_snapshot(data: bytes) -> bool:
    try:
        Snapshot.decode(data)
    except EncodingError:
        return False
    return True


def _entered(game: Json, encoded: Sequence[bytes]) -> Cases:
    job, head = _standing(game)
    yield "depth of the game", game["depth"], job.half_depth
    for number in game["states"]:
        yield f"entered {number}", 255, _refused_at(encoded[number], job, head)
    changes = fields(game, "changes")
    while changes.remaining:
        number, offset, size, answer, value = *(changes.unsigned(1) for _ in range(4)), changes.take(8)
        old = encoded[number]
        changed = old[:offset] + value[:size] + old[offset + size :]
        yield f"entered {number}, changed at {offset}", answer, _refused_at(changed, job, head)


def _value(found: int | str) -> int | bytes:
    """A field of a snapshot: a number, also as a decimal string, or bytes."""
    return unhex(found) if isinstance(found, str) and found.startswith("0x") else int(found)


def snapshots(found: Json) -> Cases:
    for number, case in enumerate(found["cases"]):
        snapshot = Snapshot.decode(unhex(case["encoded"]))
        given = [_value(case[camel_case(name)]) for name in Snapshot.kinds()]
        yield f"[{number}] fields", given, list(snapshot.values)
        yield f"[{number}] id", unhex(case["id"]), snapshot.id
    for number, text in enumerate(found["refused"]):
        yield f"refused[{number}]", False, _is_snapshot(unhex(text))
    state = found["signed"]
    standing = Standing(
        game_id=_digest(state, "gameId"), sequence=state["sequence"], snapshot=_digest(state, "snapshot")
    )
    yield "signed", unhex(state["digest"]), standing.digest(_domain(state))
    encoded = [unhex(case["encoded"]) for case in found["cases"]]
    for game in found["entered"]:
        yield from _entered(game, encoded)


def posts(found: Json) -> Cases:
    domain, hub, received = _domain(found), found["hub"], []
    for number, case in enumerate(found["cases"]):
        name, wire = f"[{number}] {case['kind']}", unhex(case["wire"])
        signed = SignedPost.decode(wire)
        signed.verify(domain)
        post = signed.post
        received.append(Received(content=post.content, place=case["place"], at=case["at"]))
        yield f"{name}, kind", case["kind"], PostKind(post.kind).name.lower()
        yield f"{name}, content", unhex(case["content"]), post.content
        yield f"{name}, sender", unhex(case["sender"]), post.sender
        yield f"{name}, encoded again", wire, signed.encode()
        yield f"{name}, received", True, _is_signed(received[-1].digest(domain), case["received"], hub)
    end, job_id = found["complete"], SignedPost.decode(unhex(found["cases"][0]["wire"])).post.job_id
    complete = Complete(
        job_id=job_id, posts=Complete.hash_of(received), at=end["at"], signature=unhex(end["signature"])
    )
    yield "complete, posts", unhex(end["posts"]), complete.posts
    yield "complete, digest", unhex(end["digest"]), complete.digest(domain)
    yield "complete, signature", True, _is_signed(complete.digest(domain), end["signature"], hub)
    for blob in found["blobs"]:
        size = blob["size"]
        data = (bytes(range(251)) * (size // 251 + 1))[:size]
        pieces = [piece_digest(data[at : at + PIECE_BYTES]) for at in range(0, max(size, 1), PIECE_BYTES)]
        yield f"blob of {size} bytes, pieces", list(map(unhex, blob["pieces"])), pieces
        yield f"blob of {size} bytes, root", unhex(blob["root"]), blob_root(size, pieces)


CHECKS: Final[dict[str, Check]] = {"seats": seats, "receipts": receipts, "snapshots": snapshots, "posts": posts}
