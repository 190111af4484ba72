"""Ownership of a run: shown to one checker by opening a few of its states, between which the checker replays.

The owner makes a folder, the checker a challenge, the owner completes the folder:

    claim       a run folder with the signed job, the program, the records and the signed head, and in `changes.bin` the
                largest change of a weight in each segment (u32 bits of an f32, little-endian). No state, no data.
    challenge   {"type", "job", "runRoot", "count", "changes" (SHA-256 of the file), "top", "uniform", "nonce"}, roots
                and the nonce of 32 bytes in hex, in this order and without spaces. The checker makes it once it has the
                claim, keeps it, and sends it.
    answer      in the same folder: the data, the states before the drawn segments, and in `answer.json` the challenge
                in a DSSE envelope, signed by the trainer or the client of the job.

Drawn are the first and the last segment, of the others the `top` with the largest claimed changes, and `uniform` of the
rest, by the nonce and the run root (`draw_segments`). The owner has fixed all that a draw depends on, except the nonce,
when it shows its claim. A false claim about a change can keep a segment out of the top, but not out of the rest, so the
chance that a lie goes unseen (`unseen`) counts the uniform draws alone.

Numbered plan of `check`: (1) client and trainer signed the job, the program is the job's, and the records are those of
a head that the trainer signed; (2) there is one finite change for each of them; (3) this is the claim that the
checker's challenge was made for; (4) trainer or client signed this challenge; (5) the state before each drawn segment
is there and has the root in its record, and the data are the job's; (6) a replay of each gives the committed record,
bit for bit; (7) its change is the one that was claimed; (8) the disputed weights, if given, are the final state of the
same head (`tiebreak.api.certification.certificates`). There is no threshold in any of them.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from pathlib import Path
from struct import unpack
from typing import Final, Self

from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.segments import detection_probability, draw_segments, signed_records
from tiebreak.protocol import errors
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.parties.posts import HeadBody, ReceivedPost
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest
from tiebreak.protocol.trees import Frontier

CHANGES: Final = "changes.bin"
ANSWER: Final = "answer.json"
TYPE: Final = "urn:tiebreak:ownership-challenge:1"
PAYLOAD_TYPE: Final = "application/vnd.tiebreak.ownership-challenge+json"
MAX_CHALLENGE_BYTES: Final = 4096
MAX_COUNT: Final = (1 << 63) - 1
NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipChallenge:
    """A checker's question to the owner of a claim. nonce: secret until the claim is there."""

    job: Digest
    run_root: Digest
    count: int
    changes: Digest
    top: int
    uniform: int
    nonce: bytes

    def encode(self) -> bytes:
        return json.dumps(
            {"type": TYPE, "job": self.job.hex(), "runRoot": self.run_root.hex(), "count": self.count,
             "changes": self.changes.hex(), "top": self.top, "uniform": self.uniform, "nonce": self.nonce.hex()},
            separators=(",", ":"),
        ).encode("ascii")  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a challenge. Raises `EncodingError` that names the file."""
        data = read_file(path, MAX_CHALLENGE_BYTES)
        found = JsonObject.parse(str(path), data, 1)
        found.same("type", TYPE)
        roots = {name: found.data(name, 32, "") for name in ("job", "runRoot", "changes", "nonce")}
        made = cls(
            job=Digest(roots["job"]), run_root=Digest(roots["runRoot"]), changes=Digest(roots["changes"]),
            nonce=roots["nonce"], count=found.integer("count", 1, MAX_COUNT), top=found.integer("top", 0, MAX_COUNT),
            uniform=found.integer("uniform", 0, MAX_COUNT),
        )  # fmt: skip
        if made.encode() != data:
            raise EncodingError(f"{path}: expected a challenge in its one spelling, got another")
        return made

    def draw(self, changes: Sequence[float]) -> tuple[int, ...]:
        """The segments to open, ascending. changes: the claimed one of each segment."""
        fixed = {0, self.count - 1}
        ranked = sorted(set(range(self.count)) - fixed, key=lambda place: (-changes[place], place))
        fixed.update(ranked[: self.top])
        rest, number = sorted(ranked[self.top :]), min(self.uniform, len(ranked[self.top :]))
        if number:
            fixed.update(rest[place] for place in draw_segments(len(rest), number, self.nonce, self.run_root))
        return tuple(sorted(fixed))


def unseen(count: int, top: int, uniform: int, false: int) -> float:
    """The probability that a check draws none of `false` wrong segments of `count`, if a cheat places them well.

    That is C(r - k, u) / C(r, u) for k false ones, u uniform draws, and r segments that are neither the first, nor the
    last, nor in the top; 0 if not all k fit into these.
    """
    rest = max(0, count - len({0, count - 1}) - top)
    return 1.0 - detection_probability(rest, min(uniform, rest), false)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaim:
    """A claim that holds by itself: steps (1) and (2) of the plan."""

    run: RunDirectory
    records: list[StepRecord]
    head: SignedHead
    changes: tuple[float, ...]
    digest: Digest
    """The SHA-256 of the file of changes."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises `VerificationError`, also for missing files, because the owner has to provide them."""
        run = RunDirectory.open(folder)
        require_exact(run)
        try:
            records, head = signed_records(run)  # (1)
        except (errors.CannotCheck, ConfigurationError) as error:
            raise VerificationError(str(error)) from error
        with run.folder() as opened:
            raw = opened.read(CHANGES, 4 * len(records))
        if len(raw) != 4 * len(records):  # (2)
            raise EncodingError(f"{folder / CHANGES}: expected {4 * len(records)} bytes, got {len(raw)}")
        changes = unpack(f"<{len(records)}f", raw)
        if worst := [change for change in changes if not 0 <= change < inf]:
            raise EncodingError(f"{folder / CHANGES}: expected finite changes, none negative, got {worst[0]}")
        return cls(
            run=run, records=records, head=head, changes=changes, digest=Digest(sha256(raw).digest())
        )  # fmt: skip

    def challenge(self, top: int, uniform: int, nonce: bytes) -> OwnershipChallenge:
        return OwnershipChallenge(
            job=self.run.job.id, run_root=self.head.head.run_root, count=len(self.records), changes=self.digest,
            top=top, uniform=uniform, nonce=nonce,
        )  # fmt: skip

    def drawn(self, challenge: OwnershipChallenge) -> tuple[int, ...]:
        """The segments that a challenge asks for. Raises `VerificationError` if it is for another claim: step (3)."""
        expected = self.challenge(challenge.top, challenge.uniform, challenge.nonce)
        for name in ("job", "run_root", "count", "changes"):
            asked, got = getattr(challenge, name), getattr(expected, name)
            if asked != got:
                shown = [value.hex() if isinstance(value, bytes) else value for value in (asked, got)]
                raise VerificationError(
                    f"{self.run.path}: expected the claim of {name} {shown[0]}, which was challenged, got {shown[1]}"
                )
        return challenge.draw(self.changes)


def require_exact(run: RunDirectory) -> None:
    if run.job.is_logged:
        raise ConfigurationError("expected a job of policy exact, got one of policy logged: show it by an audit")


def opened(made: OwnershipClaim, challenge: OwnershipChallenge) -> list[int]:
    """The steps whose states an answer opens."""
    return [made.run.job.first_step(segment) - 1 for segment in made.drawn(challenge)]


def make_challenge(made: OwnershipClaim, path: Path, top: int, uniform: int) -> OwnershipChallenge:
    """Writes a new challenge for a claim that holds. Raises `ConfigurationError` if the file is there."""
    if path.exists():
        raise ConfigurationError(f"{path} already exists; choose another file")
    challenge = made.challenge(top, uniform, secrets.token_bytes(NONCE_BYTES))
    write_file(path, challenge.encode())
    return challenge


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """A witness's statement of when a head was posted. when: the time and the witness's name, as text."""

    count: int
    run_root: Digest
    when: str


def received(made: OwnershipClaim, posts: Sequence[ReceivedPost], hub: Address) -> list[Posting]:
    """The times at which a hub received heads of the job from its trainer; other posts are passed over.

    Raises `VerificationError` if the hub, a sender, or a head's trainer did not sign.
    """
    found, job, domain = list[Posting](), made.run.job, made.run.agreement.domain
    for post in posts:
        signed, body = post.open(domain, hub)
        if isinstance(body, HeadBody) and signed.post.job_id == job.id:
            body.head.verify(job, domain)
            when = f"{datetime.fromtimestamp(post.at, UTC).isoformat()} (hub 0x{hub.hex()}, place {post.place})"
            found.append(Posting(count=body.head.head.count, run_root=body.head.head.run_root, when=when))
    return found


def check_posted(made: OwnershipClaim, postings: Sequence[Posting]) -> None:
    """Raises `VerificationError` if a head that was posted is not one of this run."""
    grown, roots = Frontier(), list[Digest]()
    for record in made.records:
        grown.append(record.digest)
        roots.append(grown.root(made.run.job.run_depth))
    for one in postings:
        if one.count <= len(roots) and roots[one.count - 1] != one.run_root:
            raise VerificationError(
                f"head of {one.count} checkpoints, {one.when}: expected root {roots[one.count - 1].hex()} of this run, "
                f"got {one.run_root.hex()}: the trainer has signed for two runs"
            )
