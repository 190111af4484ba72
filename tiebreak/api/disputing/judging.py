"""Judging without a chain: the outcome of a job and its games, from posts with a hub's receipts alone.

Numbered plan of `judge`, which takes files from anybody: (1) each entry has its one encoding, (2) the hub signed for
the place and the instant of each, and for no two posts in one place; later places have no earlier instants, (3) each
sender signed its post, (4) the ledger applies the rules, (5) the posts of each job are all that the hub has, as it
signed for the whole of them, (6) each job has ended, after which no post changes it. Whatever fails (1) or (2) is not
this hub's statement, and the judgement is refused. If an entry fails (3) or cannot be read, a job fails (5) or (6), or
nobody says which hub is meant, something may be missing: that is reported, and what is owed is not.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tiebreak.protocol.commitments import keys, terms
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.packing import Fields, unpack
from tiebreak.protocol.parties.board import BURNED, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.ledger import Ledger, Refusal
from tiebreak.protocol.parties.posts import Complete, Received, ReceivedPost, SignedPost
from tiebreak.protocol.tags import Digest

_SIDES: Final = {Side.DEFENDER: "trainer", Side.CHALLENGER: "challenger"}
MAX_FILE_BYTES: Final = 1 << 30
MAX_END_AGE: Final = 3600
"""The age in seconds at which a hub's statement that a job continues is stale, because the job may have ended since."""


def read_transcripts(paths: Sequence[Path]) -> tuple[list[ReceivedPost], list[Complete]]:
    """The contents of files from a hub: posts (`GET /posts`) by place, and its signed number of all posts of a job.

    Raises `VerificationError`.
    """
    found: dict[int, ReceivedPost] = {}
    ends = []
    for path in paths:
        data = path.read_bytes()
        try:
            rows = unpack(data, MAX_FILE_BYTES)  # (1)
            if not isinstance(rows, list):
                raise EncodingError("expected a list of posts, got something else")
            if rows and isinstance(rows[0], bytes):
                ends.append(Complete.unpack("end", rows))
                continue
            fields = Fields("posts", rows, len(rows))
            read = [ReceivedPost.unpack(*fields.next()) for _ in rows]
        except EncodingError as error:
            raise EncodingError(f"{path}: {error}") from error
        for post in read:
            if found.setdefault(post.place, post) != post:
                raise VerificationError(f"{path}: expected one post in place {post.place}, got two")  # (2)
    return [found[place] for place in sorted(found)], ends


def judge(
    posts: Sequence[ReceivedPost], ends: Sequence[Complete], domain: Domain, hub: Address | None = None, *, now: int
) -> dict[str, Any]:
    """The judgement by the posts, as a document. `problems` says why posts may be missing; empty if none are.

    Without a hub's address, all must be signed by one, which is named. now: the reader's own clock, in seconds.
    """
    ledger, last = Ledger(domain), 0
    refused: Counter[str] = Counter()
    problems = [] if hub else ["expected the address of the hub that the parties used (--hub), got none"]
    numbers: set[tuple[bytes, bytes, int]] = set()
    received: dict[Digest, list[Received]] = {end.job_id: [] for end in ends}
    for entry in posts:
        signed = SignedPost.decode(entry.wire)  # (1)
        named = Received(content=signed.post.content, place=entry.place, at=entry.at)
        hub = keys.recover(named.digest(domain), entry.signature) if hub is None else hub
        keys.verify(named.digest(domain), entry.signature, hub)  # (2)
        if entry.at < last:
            raise VerificationError(f"place {entry.place}: expected an instant of {last} or later, got {entry.at}")
        last, post = entry.at, signed.post
        if (name := (post.job_id, post.sender, post.number)) in numbers:
            raise VerificationError(f"place {entry.place}: expected one post of a sender and a number, got another")
        numbers.add(name)
        received.setdefault(post.job_id, []).append(named)
        try:
            ledger.read(post, signed.verify(domain), entry.at)  # (3), (4)
        except Refusal as error:
            refused[error.name] += 1
        except Exception as error:  # what one post raises must not keep the others from being judged
            problems.append(f"place {entry.place}: {str(error) or repr(error)}")
    until = last
    if hub is not None:
        said = {end.job_id: end for end in sorted(ends, key=lambda end: end.at)}
        for end in ends:
            keys.verify(end.digest(domain), end.signature, hub)
        problems += [
            f"job {job.hex()}: {problem}"
            for job, all_ in received.items()
            if (problem := _missing(all_, said.get(job)) or _unfinished(ledger.board.jobs.get(job), said[job].at, now))
        ]  # (5), (6)
        until = max(last, min((end.at for end in said.values()), default=0))
    board = ledger.board
    found = {
        "complete": not problems,
        "problems": problems,
        "posts": len(posts),
        "hub": None if hub is None else f"0x{hub.hex()}",
        "until": until,
        "jobs": [_job(job) for job in board.jobs.values()],
        "games": [_game(game, until) for game in board.games.values()],
        "refused": dict(sorted(refused.items())),
    }
    if not problems:
        gains = ledger.gains()
        found["claims"] = {_name(account): terms.ether(wei) for account, wei in gains.items() if wei > 0}
        found["debts"] = {_name(account): terms.ether(-wei) for account, wei in gains.items() if wei < 0}
    return found


def _missing(received: Sequence[Received], end: Complete | None) -> str:
    """The reason why these may not be all posts of a job; empty if its hub says that they are."""
    if end is None:
        return "expected the hub's word on its end (GET /posts/end?job=ID), got none"
    if end.posts != Complete.hash_of(received):
        return (
            f"expected the posts that the hub had at {end.at}, got {len(received)} that are fewer, more or others; "
            "fetch all pages, then the end"
        )
    return ""


def _unfinished(job: PublicJob | None, until: int, now: int) -> str:
    """The reason why later posts may change what a job leaves owed; empty once it has ended.

    A game of a slashed job that nobody reclaims, say one of the trainer's own, cannot keep its debt from being shown.
    """
    if job is not None and job.is_over:
        return ""
    status = "not begun" if job is None else JobStatus(job.status).name.lower()
    old = f", {now - until} seconds ago; fetch all pages again, then the end" if now - until > MAX_END_AGE else ""
    return f"expected one that has ended, got one that was {status} at {until}{old}"


def _job(job: PublicJob) -> dict[str, Any]:
    return {
        "job": job.id.hex(),
        "status": JobStatus(job.status).name.lower(),
        "heads": f"{job.head_count} of {job.job.checkpoints}",
        "client": f"0x{job.job.client.hex()}",
        "trainer": f"0x{job.job.trainer.hex()}",
        "ended": job.ended,
    }


def _game(game: PublicGame, until: int) -> dict[str, Any]:
    right, reason = _outcome(game, until)
    return {
        "game": game.id.hex(),
        "job": game.job.id.hex(),
        "challenger": f"0x{game.challenger.hex()}",
        "right": right,
        "reason": reason,
        "step": game.state.step or None,
        "deadline": None if game.is_over else game.state.deadline,
    }


def _outcome(game: PublicGame, until: int) -> tuple[str | None, str]:
    """The side that was right, as far as the posts tell, and the reason."""
    state, verdict = game.state, game.state.verdict
    if game.void:
        return None, "the job ended otherwise"
    if verdict is not None:
        return _SIDES[verdict.winner], f"{verdict.reason.name.lower().replace('_', ' ')}: {verdict.detail}"
    phase = state.phase.name.lower().replace("_", " ")
    if until > state.deadline:
        return _SIDES[state.mover.other], f"the {_SIDES[state.mover]} let its time run out ({phase})"
    return None, f"the {_SIDES[state.mover]} is to move ({phase})"


def _name(account: Address) -> str:
    return "nobody" if account == BURNED else f"0x{account.hex()}"
