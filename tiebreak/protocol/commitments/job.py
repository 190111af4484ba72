"""Jobs, the heads that their trainers sign, and the files of both (SPEC section 8).

Files are canonical msgpack (`tiebreak.protocol.packing`); 256-bit numbers are bin 32, big-endian:

    job file   [1, chain id (bin 32), contract (bin 20), [27 fields of Job], client's signature, trainer's signature];
               an offer's has no bytes for the trainer's signature yet
    head file  [1, job id (bin 32), count (uint), run root (bin 32), trainer's signature]
    receipt file, under policy `logged`: the same with the client's signature

Numbered plan of `SignedJob.verify`, `SignedHead.verify` and `LogReceipt.verify`: (1) every field is in its range
(checked when the object is constructed), (2) the head is for this job and has no more checkpoints than the job, (3) the
signatures are by the parties that the job names.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

from tiebreak.protocol import codec, trees
from tiebreak.protocol.commitments import keys, terms
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address, Domain, TypedData, hash_struct, typed_digest
from tiebreak.protocol.commitments.records import StepRecord, checkpoint_count, initial_record
from tiebreak.protocol.errors import ForbiddenLoss, VerificationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION, is_finite, to_float
from tiebreak.protocol.packing import U32, Fields, OneOf, Raw, Record, Root, Uint, pack, unpack
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import Policy, check_tolerances
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

PRECISION_F32: Final = MAX_PRECISION
MAX_DESCENT_LEVELS: Final = 5
MAX_SEATS: Final = 16
MAX_JOB_BYTES: Final = 2048
FINITE_LOSSES: Final = 1 << 24
"""The bit of a job's tolerances by which it demands finite losses: it tolerates no other."""
FILE_VERSION: Final = 1

Account = Annotated[Address, Raw(ADDRESS_BYTES)]
MAX_ENTRIES: Final = 1 << 20
"""The most instructions, state entries or data entries that a job may name; programs have fewer (`isa`)."""
Count = Annotated[int, Uint(32, 1, MAX_ENTRIES)]
Steps = Annotated[int, Uint(64, 1)]
Wei = Annotated[int, Uint(256, 0, (1 << 128) - 1)]
Seconds = Annotated[int, Uint(64, 1, terms.MAX_SECONDS)]


class Job(Record):
    """The agreement between client and trainer. Amounts are in wei, times in seconds, fields in EIP-712 order."""

    client: Account
    trainer: Account
    program_root: Root
    body_count: Count
    state_count: Count
    data_count: Annotated[int, Uint(32, 0, MAX_ENTRIES)]
    initial_state_root: Root
    data_root: Root
    steps: Steps
    checkpoint_interval: Steps
    policy: Annotated[int, Uint(8, Policy.EXACT, Policy.LOGGED)] = int(Policy.EXACT)
    precision: Annotated[int, Uint(8, MIN_PRECISION, MAX_PRECISION)] = PRECISION_F32
    tolerances: U32 = 0
    """One byte for each kind of logged sum (`tiebreak.protocol.program.rounding`), and the bit `FINITE_LOSSES`; 0 under
    policy `exact`."""
    reward: Wei
    trainer_stake: Wei
    challenger_stake: Annotated[int, Uint(256, 1, (1 << 128) - 1)]
    challenge_window: Seconds
    clock: Annotated[int, Uint(64, 1, terms.MAX_GAME_SECONDS)]
    replay_time: Annotated[int, Uint(64, 0, terms.MAX_GAME_SECONDS)]
    talk_time: Annotated[int, Uint(64, 0, terms.MAX_GAME_SECONDS)]
    audit_time: Annotated[int, Uint(64, 0, terms.MAX_SECONDS)]
    deadline: Seconds
    seats: Annotated[int, Uint(8, 0, MAX_SEATS)] = 0
    """Receipts of audits that the client pays for, none under policy `logged`; without them fee and bond are 0."""
    seat_fee: Wei = 0
    seat_bond: Wei = 0
    descent_levels: Annotated[int, Uint(8, 1, MAX_DESCENT_LEVELS)]
    nonce: Annotated[int, Uint(256)]

    @classmethod
    def over(cls, program: Program, **fields: Any) -> Self:
        """A job over a program, with its root and its numbers of instructions and entries. fields: all others."""
        return cls(
            program_root=program.root, body_count=len(program.body), state_count=len(program.commits),
            data_count=len(program.data_slots), **fields,
        )  # fmt: skip

    def __post_init__(self) -> None:
        Record.__post_init__(self)
        for name in ("client", "trainer"):
            if getattr(self, name) == bytes(ADDRESS_BYTES):
                raise VerificationError(f"job: expected a {name} address, got zero")
        check_tolerances(self.sum_tolerances)
        if self.demands_finite_losses and not self.is_logged:  # under `exact` a run that diverges could not be parted
            raise VerificationError("job: expected policy logged if finite losses are demanded, got policy exact")
        if self.tolerances and not self.is_logged:
            raise VerificationError(f"job: expected tolerances 0 under policy exact, got {self.tolerances:#x}")
        self._check_seats()
        least = terms.least_challenger_stake(
            reward=self.reward, trainer_stake=self.trainer_stake, seats=self.seats, seat_fee=self.seat_fee,
            seat_bond=self.seat_bond,
        )  # fmt: skip
        if self.challenger_stake < least:
            raise VerificationError(
                f"job: expected a challenger's stake of at least {least} wei, got {self.challenger_stake}: for less a "
                f"trainer could fill the job with {terms.MAX_GAMES} games of its own and shut challengers out"
            )
        if self.game_seconds > terms.MAX_GAME_SECONDS:
            raise VerificationError(
                f"job: expected a game of at most {terms.MAX_GAME_SECONDS} seconds, got {self.game_seconds}: talk, "
                f"three clocks, and six allowances, each for {terms.MAX_GAMES} games"
            )
        if self.checkpoint_interval > self.steps:
            raise VerificationError(
                f"job: expected a checkpoint interval of at most {self.steps} steps, got {self.checkpoint_interval}"
            )
        if (audits := self.checkpoints * self.audit_time) > terms.MAX_SECONDS:
            raise VerificationError(
                f"job: expected an audit of all segments of at most {terms.MAX_SECONDS} seconds, got {audits}"
            )

    def _check_seats(self) -> None:
        if self.seats and self.is_logged:
            raise VerificationError(f"job: expected no seats under policy logged, got {self.seats}")
        if self.seat_fee and not self.seats:
            raise VerificationError(f"job: expected a seat fee of 0 without seats, got {self.seat_fee}")
        if bool(self.seat_bond) != bool(self.seats):
            what = "of at least 1 with seats" if self.seats else "of 0 without seats"
            raise VerificationError(f"job: expected a seat bond {what}, got {self.seat_bond}")
        if (named := terms.pool_bond(self.seat_bond)) != self.seat_bond:
            raise VerificationError(
                f"job: expected a seat bond that is a power of two, such as {named} wei ({terms.ether(named)}), got "
                f"{self.seat_bond}: jobs of one bond share a pool"
            )

    @property
    def games_that_burn_its_worth(self) -> int:
        """The fewest games that, all of them lost by challengers, burn as much as a false run can win or keep."""
        worth = self.reward + self.trainer_stake + self.seats * (self.seat_fee + self.seat_bond)
        return (-(-2 * worth // self.challenger_stake)).bit_length()

    @property
    def id(self) -> Digest:
        """EIP-712 `hashStruct(Job)`."""
        return hash_struct("Job", self.kinds(), self.values)

    @property
    def is_logged(self) -> bool:
        return self.policy == Policy.LOGGED

    @property
    def sum_tolerances(self) -> int:
        """The tolerances of sums alone."""
        return self.tolerances & ~FINITE_LOSSES

    @property
    def demands_finite_losses(self) -> bool:
        """Whether a checkpoint whose record has an infinite loss, or NaN, convicts the trainer that signed it."""
        return bool(self.tolerances & FINITE_LOSSES)

    def check_loss(self, record: StepRecord) -> None:
        """Raise `ForbiddenLoss` for a record that breaks the job's demand of finite losses, whatever led to it."""
        if self.demands_finite_losses and not is_finite(bits := record.loss_bits):
            raise ForbiddenLoss(
                f"step {record.step}: expected a finite loss, as the job demands, got {to_float(bits)} ({bits:#010x})"
            )

    @property
    def game_seconds(self) -> int:
        """Seconds from a game's start after which it can be ended, whatever anybody does (invariant 12 of the game)."""
        return self.lone_game_seconds + 6 * (terms.MAX_GAMES - 1) * self.replay_time

    @property
    def lone_game_seconds(self) -> int:
        """Seconds after which a game can be ended if no others are open: two clocks, and one for which its proof waits.

        Each other game adds six allowances.
        """
        return self.talk_time + 3 * self.clock + 6 * self.replay_time

    @property
    def checkpoints(self) -> int:
        """Number of checkpoints of the run: the leaves of the run tree."""
        return checkpoint_count(self.steps, self.checkpoint_interval)

    @property
    def run_depth(self) -> int:
        return trees.depth_of(self.checkpoints)

    @property
    def half_depth(self) -> int:
        """Depth of each half of the program tree and of the value tree; D in the SPEC."""
        return max(trees.depth_of(self.body_count), self.state_depth)

    @property
    def state_depth(self) -> int:
        return trees.depth_of(self.state_count)

    @property
    def data_depth(self) -> int:
        """Depth of the data tree. A job without data has a tree of one empty leaf."""
        return trees.depth_of(max(1, self.data_count))

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

    def ends_segment(self, step: int) -> bool:
        """Whether the state after a step is a checkpoint."""
        return step == self.last_step(self.checkpoint_of(step))

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

    def typed(self, domain: Domain) -> TypedData:
        """The typed data that client and trainer sign."""
        return TypedData(domain=domain, name="Job", kinds=self.kinds(), values=self.values)

    def sign(self, domain: Domain, key: keys.PrivateKey) -> bytes:
        """The signature of its client or its trainer."""
        return key.sign(self.digest(domain), self.typed(domain))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedJob:
    """A job signed by both parties, with the domain in which it is valid; an offer is signed by its client alone."""

    domain: Domain
    job: Job
    client_signature: bytes
    trainer_signature: bytes = b""

    def verify(self) -> None:
        """Raise `SignatureError` unless client and trainer signed. The caller checks the domain."""
        self.verify_offer()
        keys.verify(self.job.digest(self.domain), self.trainer_signature, self.job.trainer)

    def verify_offer(self) -> None:
        """Raise `SignatureError` unless the client signed."""
        keys.verify(self.job.digest(self.domain), self.client_signature, self.job.client)  # (3)

    def encode(self) -> bytes:
        chain = self.domain.chain_id.to_bytes(32, "big")
        signatures = (self.client_signature, self.trainer_signature)
        return pack([FILE_VERSION, chain, self.domain.contract, self.job.pack(), *signatures])

    @classmethod
    def decode(cls, data: bytes) -> "SignedJob":
        """Read a job file. The signatures are not checked yet. Raises `VerificationError`."""
        top = Fields.versioned("job file", unpack(data, MAX_JOB_BYTES), 6, FILE_VERSION)
        domain = Domain(chain_id=top.take(Uint(256)), contract=top.take(Raw(ADDRESS_BYTES)))
        job = Job.unpack(*top.next())
        client, (name, trainer) = top.take(Raw(keys.SIGNATURE_BYTES)), top.next()
        if trainer != b"":
            Raw(keys.SIGNATURE_BYTES).check(name, trainer)
        return cls(domain=domain, job=job, client_signature=client, trainer_signature=trainer)


class Head(Record):
    """The trainer's claim that the run tree with the first `count` checkpoints has this root."""

    job_id: Root
    count: Steps
    run_root: Root

    def check_job(self, job: Job) -> None:
        """Raise `VerificationError` unless this could be a head of the job."""
        if self.job_id != job.id:  # (2)
            raise VerificationError(f"head: expected job {job.id.hex()}, got {self.job_id.hex()}")
        if self.count > job.checkpoints:
            raise VerificationError(f"head: expected at most {job.checkpoints} checkpoints, got {self.count}")

    def digest(self, domain: Domain) -> Digest:
        """The digest that the trainer signs. It also goes into a game id as the *head digest*."""
        return self.typed(domain).digest

    def typed(self, domain: Domain, name: str = "Head") -> TypedData:
        """The typed data that the trainer signs, or the client, whose receipt has the same fields."""
        return TypedData(domain=domain, name=name, kinds=self.kinds(), values=self.values)

    def receipt_digest(self, domain: Domain) -> Digest:
        """The digest that the client signs under policy `logged`, when it holds the logs of this head."""
        return self.typed(domain, "Receipt").digest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signed:
    """A head and somebody's signature over its fields. Both kinds have one file format."""

    head: Head
    signature: bytes
    _TYPE: ClassVar[str]
    """The name of the EIP-712 type that is signed."""

    @classmethod
    def sign(cls, head: Head, domain: Domain, key: keys.PrivateKey) -> Self:
        typed = head.typed(domain, cls._TYPE)
        return cls(head=head, signature=key.sign(typed.digest, typed))

    def encode(self) -> bytes:
        return pack([FILE_VERSION, *self.head.pack(), self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a file. The signature is not checked yet. Raises `VerificationError`."""
        top = Fields.versioned(f"{cls._TYPE.lower()} file", unpack(data, MAX_JOB_BYTES), 5, FILE_VERSION)
        head = Head.unpack("head", [top.next()[1] for _ in range(3)])
        return cls(head=head, signature=top.take(Raw(keys.SIGNATURE_BYTES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead(_Signed):
    """A head with a signature that should be its trainer's."""

    _TYPE = "Head"

    def verify(self, job: Job, domain: Domain) -> None:
        """Raise `VerificationError` unless this is a head of the job, signed by its trainer."""
        self.head.check_job(job)
        keys.verify(self.head.digest(domain), self.signature, job.trainer)  # (3)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReceipt(_Signed):
    """A head of policy `logged` with a signature that should be its client's (EIP-712 `Receipt`).

    It says: I hold the logs of all segments up to this head, and they hash to it. It does not say that the head is
    true; that is for a replay to find out.
    """

    _TYPE = "Receipt"

    def verify(self, job: Job, domain: Domain) -> None:
        """Raise `VerificationError` unless this is for a head of the job, signed by its client."""
        self.head.check_job(job)
        if not job.is_logged:
            raise VerificationError("receipt: expected a job of policy logged, got policy exact")
        keys.verify(self.head.receipt_digest(domain), self.signature, job.client)  # (3)


class Concession(Record):
    """A head that its trainer gives up: it is false, and this prover is to be paid for it (EIP-712 `Concession`)."""

    head: Annotated[Head, OneOf((Head,))]
    prover: Account
    signature: Annotated[bytes, Raw(keys.SIGNATURE_BYTES)]

    @classmethod
    def sign(cls, head: Head, prover: Address, domain: Domain, key: keys.PrivateKey) -> Self:
        typed = cls.typed(head, prover, domain)
        return cls(head=head, prover=prover, signature=key.sign(typed.digest, typed))

    @classmethod
    def typed(cls, head: Head, prover: Address, domain: Domain) -> TypedData:
        """The statement that the trainer signs."""
        kinds = {**Head.kinds(), "prover": cls.kinds()["prover"]}
        return TypedData(domain=domain, name="Concession", kinds=kinds, values=(*head.values, prover))

    def verify(self, job: Job, domain: Domain) -> None:
        """Raise `VerificationError` unless this is about the job, and signed by its trainer."""
        if self.head.job_id != job.id:
            raise VerificationError(f"concession: expected job {job.id.hex()}, got {self.head.job_id.hex()}")
        keys.verify(self.typed(self.head, self.prover, domain).digest, self.signature, job.trainer)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote. Raises `EncodingError`."""
        return cls.unpack("concession", unpack(data, MAX_JOB_BYTES))


def game_id(head: Head, domain: Domain, challenger: bytes, nonce: int) -> Digest:
    """The id of the game that a challenger starts against a head. The nonce tells several such games apart."""
    codec.check_bytes("challenger", challenger, 20)
    encoded_nonce = codec.check_uint("nonce", nonce, 64).to_bytes(8, "big")
    return tagged_hash(Tag.GAME, head.job_id, head.digest(domain), challenger, encoded_nonce)
