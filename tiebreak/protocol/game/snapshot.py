"""Where a game stands, as 144 bytes that a party signs and that the chain takes (SPEC section 10.1).

A snapshot holds what a game has come to, as the contract keeps it: the current node, the numbers that later moves need,
and one digest of all that was opened. It leaves out what the chain knows by itself: the job, the head and the
challenger, which the game id names, the clocks, and the instant of the last move. A finished game has none.

A party signs a `Standing` after each of its moves, and may also sign one that its opponent's move led to. The opponent
can `enter` it on the chain. So a party signs only what its own state machine reached by legal moves, and never two
different snapshots of one sequence number: two such signatures (`Fork`) lose the game.

Whoever decodes a snapshot knows nothing about whether lawful play leads there. Two colluding parties can sign any
144 bytes that decode.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final

from eth_hash.auto import keccak

from tiebreak.protocol.codec import Reader, check_bytes
from tiebreak.protocol.commitments import keys
from tiebreak.protocol.commitments.eip712 import Address, Domain, TypedData
from tiebreak.protocol.commitments.records import chunk_count, chunk_length
from tiebreak.protocol.errors import StateError, VerificationError
from tiebreak.protocol.game.moves import MAX_SIBLINGS, Phase
from tiebreak.protocol.game.seals import element_answer
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.packing import U8, U32, U64, Bytes32, Raw, Record, Root, Uint, pack, unpack
from tiebreak.protocol.program.accumulator import Kind, kind_of, leaf_count
from tiebreak.protocol.program.isa import MAX_NUMEL, DType, Opcode, ReduceFunction
from tiebreak.protocol.program.rounding import sum_kind
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

SNAPSHOT_BYTES: Final = 144
MAX_RECEIPT_BYTES: Final = 256
_MAX_FORK_BYTES: Final = 512
Signature = Annotated[bytes, Raw(keys.SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Record):
    """The fields of a snapshot, in the order and with the names of the contract's. Fields not reached yet are zero."""

    phase: Annotated[int, Uint(8, Phase.DESCEND, Phase.PROVE)]
    level: Annotated[int, Uint(8, Level.RUN, Level.TERMS)]
    height: Annotated[int, Uint(8, 0, MAX_SIBLINGS)]
    fresh: Annotated[int, Uint(8, 0, 1)]
    """Whether nothing was chosen yet in the current tree: `height` is its depth."""
    dtype: U8
    summation: U8
    """Bits 0-3: what an element accumulates (0 if it is judged at once, else 1 + its kind). Bits 4-5: 1 + the kind of a
    logged sum. Bits 6-7: what the log says of the element."""
    last_chunk_bytes: Annotated[int, Uint(16)]
    position: U64
    element: Annotated[int, Uint(64, 0, MAX_NUMEL - 1)]
    leaves: U64
    """Of the run tree that are no padding; from its leaf on those of the steps tree, from OPEN_TENSOR of the chunks."""
    step: U64
    """From a leaf of RUN on the first step of its segment, from a leaf of STEPS on the disputed step."""
    instruction: U32
    term_leaves: U32
    node: Bytes32
    """From SELECT_ELEMENT until OPEN_TERMS or PROVE: the claimed element's bits as a number."""
    opened: Root
    """t_n of SPEC section 11: the digest of what was opened and sealed."""
    log: Bytes32
    """What of the rounding log was opened last."""

    @classmethod
    def of(cls, state: GameState) -> "Snapshot":
        """The snapshot of a game that is not over. Raises `StateError` for one that is."""
        if state.is_over:
            raise StateError("a game that is over has no snapshot")
        job, in_segment = state.job, state.level is not Level.RUN or state.phase is Phase.OPEN_STEPS
        leaves = job.segment_steps(state.checkpoint) if in_segment else state.head.count
        dtype = last_chunk_bytes = 0
        if state.level in (Level.CHUNKS, Level.TERMS):
            leaves, dtype = chunk_count(state.dtype, state.shape), int(state.dtype)
            last_chunk_bytes = chunk_length(state.dtype, state.shape, leaves - 1)
        is_element = state.level is Level.CHUNKS and state.claimed
        return cls(
            phase=int(state.phase),
            level=int(state.level),
            height=state.height,
            fresh=int(state.height == state.depth),
            dtype=dtype,
            summation=_summation(state),
            last_chunk_bytes=last_chunk_bytes,
            position=state.position,
            element=state.element,
            leaves=leaves,
            step=state.step or (job.first_step(state.checkpoint) if in_segment else 0),
            instruction=state.leaf,
            term_leaves=leaf_count(state.terms) if state.level in (Level.CHUNKS, Level.TERMS) else 0,
            node=element_answer(state.claimed) if is_element else state.node,
            opened=opened_digest(state),
            log=_log(state),
        )

    def encode(self) -> bytes:
        parts = []
        for kind, value in zip(self.kinds().values(), self.values, strict=True):
            parts.append(value.to_bytes(kind.bits // 8, "big") if isinstance(kind, Uint) else value)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "Snapshot":
        """Read 144 bytes. Raises `EncodingError` for another length, and for fields outside the ranges above."""
        reader = Reader(check_bytes("snapshot", data, SNAPSHOT_BYTES))
        found: dict[str, Any] = {}
        for name, kind in cls.kinds().items():
            found[name] = reader.unsigned(kind.bits // 8) if isinstance(kind, Uint) else reader.take(32)
        return cls(**found)

    @property
    def id(self) -> Digest:
        """What stands on the chain and is signed."""
        return tagged_hash(Tag.SNAPSHOT, self.encode())


def opened(state: GameState) -> tuple[bytes, ...]:
    """The run root and everything opened since, in the order in which it was fixed, which a proof shows again."""
    fixed = (state.steps_root, state.body_root, state.value_seal, state.instruction, state.accumulator_root, state.seal)
    return (state.head.run_root, *(item for item in fixed if item))


def opened_digest(state: GameState) -> Digest:
    """t_n of SPEC section 11: the hash of what `opened` gives."""
    digest, *roots = opened(state)
    for root in roots:
        digest = bytes(keccak(digest + root))
    return Digest(digest)


def _summation(state: GameState) -> int:
    instruction = state.operation
    if instruction is None or state.level not in (Level.CHUNKS, Level.TERMS):
        return 0
    accumulates = 0
    if state.terms:
        # The instruction of an argmax does not say what it is of, so all have one number.
        is_argmax = instruction.opcode == Opcode.REDUCE and instruction.function == ReduceFunction.ARGMAX
        kind = kind_of(instruction, DType.F32 if is_argmax else instruction.dtype)
        accumulates = 1 + list(Kind).index(kind)
    logged = sum_kind(instruction)
    return accumulates | (0 if logged is None or not state.job.is_logged else 1 + logged) << 4 | state.direction << 6


def _log(state: GameState) -> bytes:
    past_chunk = state.phase is Phase.SELECT_ELEMENT or state.claimed
    if past_chunk and state.is_logged_sum:
        return state.word
    return (state.step_log or state.log_root or b"").ljust(32, b"\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing(Record):
    """What is signed of a game's state: that after `sequence` moves the game stands at the snapshot with this id."""

    game_id: Root
    sequence: U32
    snapshot: Root

    @classmethod
    def of(cls, state: GameState) -> "Standing":
        """The standing of a game that is not over. Raises `StateError` for one that is."""
        return cls(game_id=Digest(state.game_id), sequence=state.moves, snapshot=Snapshot.of(state).id)

    def digest(self, domain: Domain) -> Digest:
        """The digest that is signed: EIP-712 `State(bytes32 gameId,uint32 sequence,bytes32 snapshot)`."""
        return self.typed(domain).digest

    def typed(self, domain: Domain) -> TypedData:
        return TypedData(domain=domain, name="State", kinds=self.kinds(), values=self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStanding(Record):
    """A standing with a signature that should be one of the parties'. Also travels by itself, as a receipt."""

    game_id: Root
    sequence: U32
    snapshot: Root
    signature: Signature

    @classmethod
    def under(cls, standing: Standing, signature: bytes) -> "SignedStanding":
        return cls(
            game_id=standing.game_id, sequence=standing.sequence, snapshot=standing.snapshot, signature=signature
        )

    @property
    def standing(self) -> Standing:
        """The statement under the signature, which is not checked here."""
        return Standing(game_id=self.game_id, sequence=self.sequence, snapshot=self.snapshot)

    def encode(self) -> bytes:
        return pack(self.pack())

    @classmethod
    def decode(cls, data: bytes) -> "SignedStanding":
        """Read a receipt. The signature is not checked yet. Raises `EncodingError`."""
        return cls.unpack("receipt", unpack(data, MAX_RECEIPT_BYTES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(Record):
    """Two snapshots of one sequence number in one game, both signed by one party, which loses the game by it."""

    game_id: Root
    sequence: U32
    first: Root
    first_signature: Signature
    second: Root
    second_signature: Signature

    @classmethod
    def of(cls, first: SignedStanding, second: SignedStanding) -> "Fork":
        """The evidence in two standings of one place in one game. `verify` says whether they are evidence."""
        return cls(
            game_id=first.game_id,
            sequence=first.sequence,
            first=first.snapshot,
            first_signature=first.signature,
            second=second.snapshot,
            second_signature=second.signature,
        )

    def encode(self) -> bytes:
        return pack(self.pack())

    @classmethod
    def decode(cls, data: bytes) -> "Fork":
        """Read what `encode` wrote. Raises `EncodingError`."""
        return cls.unpack("fork", unpack(data, _MAX_FORK_BYTES))

    def verify(self, domain: Domain, signer: Address) -> None:
        """Raise `VerificationError` unless the snapshots differ and both signatures are the signer's."""
        if self.first == self.second:
            raise VerificationError(f"expected two different snapshots, got {self.first.hex()} twice")
        for snapshot, signature in ((self.first, self.first_signature), (self.second, self.second_signature)):
            standing = Standing(game_id=self.game_id, sequence=self.sequence, snapshot=snapshot)
            keys.verify(standing.digest(domain), signature, signer)
