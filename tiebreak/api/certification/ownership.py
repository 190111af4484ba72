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
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from pathlib import Path
from struct import pack, unpack
from typing import Final, Self

import torch
from torch import Tensor

from tiebreak.api.certification import certificates
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.data import check_unchanged
from tiebreak.engine.data.disk import Folder, read_file, storing, write_file
from tiebreak.engine.data.formats import write_tensors
from tiebreak.engine.run import directory as run_files
from tiebreak.engine.run.audit import detection_probability, draw_segments, signed_records
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.directory import RunDirectory, kept_steps
from tiebreak.engine.run.loop import exact, steps
from tiebreak.protocol import errors
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope, Payload
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord
from tiebreak.protocol.commitments.statement import sign
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
        _require_exact(run)
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


def _require_exact(run: RunDirectory) -> None:
    if run.job.is_logged:
        raise ConfigurationError("expected a job of policy exact, got one of policy logged: show it by an audit")


def largest_change(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """The largest |after - before| of one weight, in FP32: the same in any order of computation, unlike a norm."""
    weights = [name for name in sorted(before) if name.startswith(MODEL) and before[name].dtype == torch.float32]
    return max((float((after[name] - before[name]).abs().max()) for name in weights), default=0.0)


# ---------------------------------------------------------------- the owner


def claim(run: RunDirectory, folder: Path) -> OwnershipClaim:
    """Writes the claim of a run's owner into a new or empty folder.

    Each state is checked against its record. Raises `StateError` if one was not kept.
    """
    _require_exact(run)
    records, head = signed_records(run)
    ends = [0, *(record.step for record in records)]
    if missing := sorted(set(ends) - set(kept_steps(run, len(records)))):
        raise errors.StateError(
            f"{run.path}: expected the states of all checkpoints, got none after step {missing[0]}; train with --keep "
            "all, or replay with `tiebreak audit` and copy the states of the replay"
        )
    changes, before = list[float](), run.state(0)
    for record in records:
        after = run.state(record.step, record.state_root)
        changes.append(largest_change(before, after))
        before = after
    with Folder.make(folder) as made:
        if made.names():
            raise ConfigurationError(f"expected a new or empty folder, got {folder}; choose another or empty it")
        for name in (run_files.HEADS, run_files.STATES):
            made.add(name)
    write_file(folder / run_files.HEADS / run_files.head_name(head.head.count), head.encode())
    write_file(folder / run_files.RECORDS, b"".join(record.encode() for record in records))
    write_file(folder / CHANGES, pack(f"<{len(changes)}f", *changes))
    for name in (run_files.PROGRAM, run_files.JOB):
        _copy(run.path / name, folder / name)
    return OwnershipClaim.read(folder)


def opened(made: OwnershipClaim, challenge: OwnershipChallenge) -> list[int]:
    """The steps whose states an answer opens."""
    return [made.run.job.first_step(segment) - 1 for segment in made.drawn(challenge)]


def answer(run: RunDirectory, made: OwnershipClaim, challenge: OwnershipChallenge, key: PrivateKey) -> list[int]:
    """Adds data, opened states and a signature to a claim. Returns the steps after which the states are.

    Raises `ConfigurationError` if the key is not the trainer's or the client's.
    """
    if key.address not in (run.job.trainer, run.job.client):
        raise ConfigurationError(
            f"expected the key of trainer 0x{run.job.trainer.hex()} or client 0x{run.job.client.hex()}, got "
            f"0x{key.address.hex()}"
        )
    shown, folder = opened(made, challenge), made.run.path
    with Folder(folder, run_files.STATES, to_write=True) as states:
        for step in shown:  # whole, since the initial state is perhaps not among them
            write_tensors(states, run_files.state_name(step), run.state(step, narrow=True), narrow=True)
    _copy(run.path / run_files.DATA, folder / run_files.DATA)
    signed = sign(Envelope(payload=Payload(kind=PAYLOAD_TYPE, data=challenge.encode())), key)
    write_file(folder / ANSWER, signed.encode())
    return shown


def _copy(source: Path, target: Path) -> None:
    with storing(target):
        shutil.copyfile(source, target)


# ---------------------------------------------------------------- the checker


def make_challenge(made: OwnershipClaim, path: Path, top: int, uniform: int) -> OwnershipChallenge:
    """Writes a new challenge for a claim that holds. Raises `ConfigurationError` if the file is there."""
    if path.exists():
        raise ConfigurationError(f"{path} already exists; choose another file")
    challenge = made.challenge(top, uniform, secrets.token_bytes(NONCE_BYTES))
    write_file(path, challenge.encode())
    return challenge


@dataclass(kw_only=True)
class Ownership:
    """The result of a check. signer: the owner of the claim. drawn: the segments that were replayed, all of them true.

    moved: the distance of the final weights from the first state's, in units of the final weights' norm: the run's own
    work. The first state itself is not the run's work. linked: whether the disputed weights were given.
    """

    signer: Address
    drawn: tuple[int, ...]
    count: int
    steps: int = 0
    moved: float = 0.0
    seconds: float = 0.0
    linked: bool = False


def check(
    made: OwnershipClaim, challenge: OwnershipChallenge, machine: Machine, *, model: Path | None = None,
    certificate: Path | None = None,
) -> Ownership:  # fmt: skip
    """Checks an answer to this checker's own challenge. Raises `VerificationError` unless it holds.

    model, certificate: the disputed weights, as `tiebreak verify` takes them, and their certificate; both or neither.
    """
    if (model is None) != (certificate is None):
        raise ConfigurationError("expected the disputed weights and their certificate, or neither, got one")
    drawn = made.drawn(challenge)  # (3)
    found = Ownership(signer=_signer(made, challenge), drawn=drawn, count=len(made.records))  # (4)
    if model is not None and certificate is not None:
        signed, _ = certificates.verify(model, certificate, resaved=True, others=True)
        if signed.certificate.head.head != made.head.head:  # (8)
            raise VerificationError(
                f"{certificate}: expected the head of run root {made.head.head.run_root.hex()}, got one of "
                f"{signed.certificate.head.head.run_root.hex()}: these weights are of another run"
            )
        found.linked = True
    _replay(made, machine, found)
    return found


def _signer(made: OwnershipClaim, challenge: OwnershipChallenge) -> Address:
    path, job = made.run.path / ANSWER, made.run.job
    with made.run.folder() as folder:
        envelope = Envelope.decode(folder.read(ANSWER, MAX_ENVELOPE_BYTES))
    payload = Payload(kind=PAYLOAD_TYPE, data=challenge.encode())
    if envelope.payload != payload:
        raise VerificationError(f"{path}: expected an answer to the challenge of this check, got one to another")
    for key_id, signature in envelope.signatures:
        signer = keys.recover(payload.digest, signature)
        if key_id == f"0x{signer.hex()}" and signer in (job.trainer, job.client):
            return signer
    raise errors.SignatureError(
        f"{path}: expected a signature by trainer 0x{job.trainer.hex()} or client 0x{job.client.hex()}, got none"
    )


def _replay(made: OwnershipClaim, machine: Machine, found: Ownership) -> None:
    """Steps (5) to (7), for each drawn segment."""
    run, job, started = made.run, made.run.job, time.perf_counter()
    held = set(kept_steps(run, len(made.records)))
    if missing := [step for segment in found.drawn if (step := job.first_step(segment) - 1) not in held]:  # (5)
        raise VerificationError(f"{run.path}: expected the opened state after step {missing[0]}, got none")
    interpreter = make_interpreter(run.program, machine, job)
    data = interpreter.place_data(run.data())
    ends: list[Mapping[str, Tensor]] = []
    for segment in found.drawn:
        first, last = job.first_step(segment), job.last_step(segment)
        before = made.records[segment - 1].state_root if segment else job.initial_state_root
        start = run.state(first - 1, before)
        state, loss_bits = interpreter.to_device(start), 0
        for done in steps(interpreter, state, data, range(first, last + 1), sums=exact):
            state, loss_bits = done.result.state, done.result.loss_bits
            found.steps += 1
        check_unchanged(data.values())  # otherwise an honest record might seem false
        after = {name: tensor.to("cpu") for name, tensor in state.items()}
        replayed, signed = make_record(last, after, loss_bits), made.records[segment]
        if replayed != signed:  # (6)
            raise VerificationError(
                f"segment {segment}, steps {first} to {last}: expected record {replayed.digest.hex()}, to which the "
                f"opened state leads, got {signed.digest.hex()}, which is signed"
            )
        change, claimed = largest_change(start, after), made.changes[segment]
        if change != claimed:  # (7)
            raise VerificationError(f"segment {segment}: expected a largest change of {change!r}, got {claimed!r}")
        ends = [ends[0] if ends else start, after]
    found.moved = _moved(*ends)
    found.seconds = time.perf_counter() - started


def _moved(first: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> float:
    weights = [name for name in sorted(last) if name.startswith(MODEL) and last[name].dtype == torch.float32]
    away = sum(float((last[name].double() - first[name].double()).square().sum()) for name in weights)
    size = sum(float(last[name].double().square().sum()) for name in weights)
    return (away / size) ** 0.5 if size else 0.0


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
