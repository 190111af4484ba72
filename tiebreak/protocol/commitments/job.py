"""Jobs, the heads that their trainers sign, and the files of both (SPEC section 8).

Files are canonical msgpack (`tiebreak.protocol.packing`); 256-bit numbers are bin 32, big-endian:

    job file   [1, chain id (bin 32), contract (bin 20), [21 fields of Job], client's signature, trainer's signature]
    head file  [1, job id (bin 32), count (uint), run root (bin 32), trainer's signature]

Numbered plan of `SignedJob.verify` and `SignedHead.verify`: (1) every field is in its range (checked when the object is
constructed), (2) the head is for this job and has no more checkpoints than the job, (3) the signatures are by the
parties that the job names.
"""

from dataclasses import dataclass, fields
from typing import Final

from tiebreak.protocol.codec import check_bytes, check_uint
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import HEAD_TYPE, JOB_TYPE, Address, Domain, hash_struct, typed_digest
from tiebreak.protocol.commitments.records import StepRecord, checkpoint_count, initial_record
from tiebreak.protocol.commitments.terms import MAX_SECONDS
from tiebreak.protocol.errors import EncodingError, VerificationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.packing import Fields, Packed, pack, unpack
from tiebreak.protocol.program.isa import MAX_INSTRUCTIONS
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy, check_tolerances
from tiebreak.protocol.tags import Digest, Tag, tagged_hash
from tiebreak.protocol.trees import depth_of

PRECISION_F32: Final = MAX_PRECISION
MAX_DESCENT_LEVELS: Final = 5
MAX_JOB_BYTES: Final = 2048
FILE_VERSION: Final = 1

_RANGES: Final[dict[str, tuple[int, int]]] = {
    "body_count": (1, MAX_INSTRUCTIONS),
    "state_count": (1, MAX_INSTRUCTIONS),
    "data_count": (0, MAX_INSTRUCTIONS),
    "steps": (1, (1 << 64) - 1),
    "checkpoint_interval": (1, (1 << 64) - 1),
    "policy": (Policy.EXACT, Policy.LOGGED),
    "precision": (MIN_PRECISION, MAX_PRECISION),
    "tolerances": (0, (1 << 32) - 1),
    "reward": (0, (1 << 128) - 1),
    "trainer_stake": (0, (1 << 128) - 1),
    "challenger_stake": (0, (1 << 128) - 1),
    "challenge_window": (1, MAX_SECONDS),
    "clock": (1, MAX_SECONDS),
    "replay_time": (0, MAX_SECONDS),
    "descent_levels": (1, MAX_DESCENT_LEVELS),
    "nonce": (0, (1 << 256) - 1),
}
_ADDRESSES: Final = ("client", "trainer")
_ROOTS: Final = ("program_root", "initial_state_root", "data_root")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The agreement between client and trainer. Amounts are in wei, times in seconds, fields in EIP-712 order."""

    client: Address
    trainer: Address
    program_root: Digest
    body_count: int
    state_count: int
    data_count: int
    initial_state_root: Digest
    data_root: Digest
    steps: int
    checkpoint_interval: int
    policy: int = int(Policy.EXACT)
    precision: int = PRECISION_F32
    tolerances: int = 0
    """One byte for each kind of logged sum (`tiebreak.protocol.program.rounding`); 0 under policy `exact`."""
    reward: int
    trainer_stake: int
    challenger_stake: int
    challenge_window: int
    clock: int
    replay_time: int
    descent_levels: int
    nonce: int

    def __post_init__(self) -> None:
        for name in _ADDRESSES:
            if check_bytes(name, getattr(self, name), 20) == bytes(20):
                raise VerificationError(f"job: expected a {name} address, got zero")
        for name in _ROOTS:
            check_bytes(name, getattr(self, name), 32)
        for name, (low, high) in _RANGES.items():
            value = check_uint(name, getattr(self, name), 256)
            if not low <= value <= high:
                raise VerificationError(f"job: expected {name} between {low} and {high}, got {value}")
        check_tolerances(self.tolerances)
        if self.tolerances and not self.is_logged:
            raise VerificationError(f"job: expected tolerances 0 under policy exact, got {self.tolerances:#x}")
        if self.checkpoint_interval > self.steps:
            raise VerificationError(
                f"job: expected a checkpoint interval of at most {self.steps} steps, got {self.checkpoint_interval}"
            )

    @property
    def values(self) -> tuple[int | bytes, ...]:
        """The fields in EIP-712 order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def id(self) -> Digest:
        """EIP-712 `hashStruct(Job)`."""
        return hash_struct(JOB_TYPE, self.values)

    @property
    def is_logged(self) -> bool:
        return self.policy == Policy.LOGGED

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints of the run: the leaves of the run tree."""
        return checkpoint_count(self.steps, self.checkpoint_interval)

    @property
    def run_depth(self) -> int:
        return depth_of(self.checkpoints)

    @property
    def half_depth(self) -> int:
        """Depth of each half of the program tree and of the value tree; D in the SPEC."""
        return max(depth_of(self.body_count), self.state_depth)

    @property
    def state_depth(self) -> int:
        return depth_of(self.state_count)

    @property
    def data_depth(self) -> int:
        """Depth of the data tree. A job without data has a tree of one empty leaf."""
        return depth_of(max(1, self.data_count))

    @property
    def initial_record(self) -> StepRecord:
        """Record 0, which holds the initial state."""
        return initial_record(self.initial_state_root)

    def first_step(self, checkpoint: int) -> int:
        """Number of the first step in a checkpoint's segment, counted from 1."""
        return checkpoint * self.checkpoint_interval + 1

    def last_step(self, checkpoint: int) -> int:
        """Number of the step whose record is the checkpoint."""
        return min((checkpoint + 1) * self.checkpoint_interval, self.steps)

    def segment_steps(self, checkpoint: int) -> int:
        """Number of steps in a checkpoint's segment: the leaves of its steps tree."""
        return self.last_step(checkpoint) - self.first_step(checkpoint) + 1

    def checkpoint_of(self, step: int) -> int:
        """The checkpoint whose segment contains a step. Raises `ValueError` unless 1 <= step <= `steps`."""
        if not 1 <= step <= self.steps:
            raise ValueError(f"expected a step between 1 and {self.steps}, got {step}")
        return (step - 1) // self.checkpoint_interval

    def check_program(self, program: Program) -> None:
        """Raise `VerificationError` unless the job is about this program."""
        found = (program.root, len(program.body), len(program.commits), len(program.data_slots))
        expected = (self.program_root, self.body_count, self.state_count, self.data_count)
        for name, want, got in zip(("root", "body", "state", "data"), expected, found, strict=True):
            if want != got:
                shown = [x.hex() if isinstance(x, bytes) else x for x in (want, got)]
                raise VerificationError(f"program {name}: expected {shown[0]} as in the job, got {shown[1]}")

    def digest(self, domain: Domain) -> Digest:
        """The digest that client and trainer sign."""
        return typed_digest(domain, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedJob:
    """A job signed by both parties, with the domain in which it is valid."""

    domain: Domain
    job: Job
    client_signature: bytes
    trainer_signature: bytes

    def verify(self) -> None:
        """Raise `SignatureError` unless client and trainer signed. The caller checks the domain."""
        digest = self.job.digest(self.domain)  # (3)
        keys.verify(digest, self.client_signature, self.job.client)
        keys.verify(digest, self.trainer_signature, self.job.trainer)

    def encode(self) -> bytes:
        """Encode as a job file."""
        values: list[Packed] = [
            value.to_bytes(32, "big") if isinstance(value, int) and kind == "uint256" else value
            for (kind, _), value in zip(JOB_TYPE.fields, self.job.values, strict=True)
        ]
        chain = self.domain.chain_id.to_bytes(32, "big")
        signatures = (self.client_signature, self.trainer_signature)
        return pack([FILE_VERSION, chain, self.domain.contract, values, *signatures])

    @classmethod
    def decode(cls, data: bytes) -> "SignedJob":
        """Read a job file. The signatures are not checked yet. Raises `VerificationError`."""
        top = Fields("job file", unpack(data, MAX_JOB_BYTES), 6)
        _check_version(top)
        domain = Domain(chain_id=int.from_bytes(top.raw(32), "big"), contract=Address(top.raw(20)))
        name, body = top.next()
        inner = Fields(name, body, len(JOB_TYPE.fields))
        values = [_read(kind, inner) for kind, _ in JOB_TYPE.fields]
        job = Job(**dict(zip((field.name for field in fields(Job)), values, strict=True)))  # type: ignore[arg-type]
        signatures = [top.raw(keys.SIGNATURE_BYTES) for _ in range(2)]
        return cls(domain=domain, job=job, client_signature=signatures[0], trainer_signature=signatures[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The trainer's claim that the run tree with the first `count` checkpoints has this root."""

    job_id: Digest
    count: int
    run_root: Digest

    def __post_init__(self) -> None:
        check_bytes("job id", self.job_id, 32)
        check_bytes("run root", self.run_root, 32)
        if check_uint("count", self.count, 64) < 1:
            raise VerificationError("head: expected a count of at least 1, got 0")

    @property
    def values(self) -> tuple[Digest, int, Digest]:
        """The fields in EIP-712 order."""
        return self.job_id, self.count, self.run_root

    def check_job(self, job: Job) -> None:
        """Raise `VerificationError` unless this could be a head of the job."""
        if self.job_id != job.id:  # (2)
            raise VerificationError(f"head: expected job {job.id.hex()}, got {self.job_id.hex()}")
        if self.count > job.checkpoints:
            raise VerificationError(f"head: expected at most {job.checkpoints} checkpoints, got {self.count}")

    def digest(self, domain: Domain) -> Digest:
        """The digest that the trainer signs. It also goes into a game id as the *head digest*."""
        return typed_digest(domain, hash_struct(HEAD_TYPE, self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """A head with a signature that should be its trainer's."""

    head: Head
    signature: bytes

    @classmethod
    def sign(cls, head: Head, domain: Domain, key: keys.PrivateKey) -> "SignedHead":
        return cls(head=head, signature=key.sign(head.digest(domain)))

    def verify(self, job: Job, domain: Domain) -> None:
        """Raise `VerificationError` unless this is a head of the job, signed by its trainer."""
        self.head.check_job(job)
        keys.verify(self.head.digest(domain), self.signature, job.trainer)  # (3)

    def encode(self) -> bytes:
        """Encode as a head file."""
        return pack([FILE_VERSION, self.head.job_id, self.head.count, self.head.run_root, self.signature])

    @classmethod
    def decode(cls, data: bytes) -> "SignedHead":
        """Read a head file. The signature is not checked yet. Raises `VerificationError`."""
        top = Fields("head file", unpack(data, MAX_JOB_BYTES), 5)
        _check_version(top)
        head = Head(job_id=Digest(top.raw(32)), count=top.uint(), run_root=Digest(top.raw(32)))
        return cls(head=head, signature=top.raw(keys.SIGNATURE_BYTES))


def game_id(head: Head, domain: Domain, challenger: bytes, nonce: int) -> Digest:
    """The id of the game that a challenger starts against a head. The nonce tells several such games apart."""
    check_bytes("challenger", challenger, 20)
    encoded_nonce = check_uint("nonce", nonce, 64).to_bytes(8, "big")
    return tagged_hash(Tag.GAME, head.job_id, head.digest(domain), challenger, encoded_nonce)


def _check_version(top: Fields) -> None:
    if (version := top.uint()) != FILE_VERSION:
        raise EncodingError(f"file version: expected {FILE_VERSION}, got {version}")


def _read(kind: str, source: Fields) -> int | bytes:
    """Read one field of a job, by its Solidity type."""
    if kind == "uint256":
        return int.from_bytes(source.raw(32), "big")
    if kind.startswith("uint"):
        return source.uint(int(kind[4:]))
    return source.raw(20 if kind == "address" else 32)
