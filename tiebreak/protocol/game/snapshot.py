"""The standing of a game, as 144 bytes that a party signs and that the chain takes (SPEC section 10.1).

A snapshot holds the state of a game as the contract keeps it: the current node, the numbers that later moves need, and
one digest of all that was opened. It leaves out what the chain knows by itself: the job, the head and the
challenger, which the game id names, the clocks, and the instant of the last move. A finished game has none.

A party signs a `Standing` after each of its moves, and may also sign one that its opponent's move led to. The opponent
can `enter` it on the chain. So a party signs only what its own state machine reached by legal moves, and never two
different snapshots of one sequence number: two such signatures (`Fork`) lose the game.

Two colluding parties can sign any 144 bytes. The contract takes those whose fields agree with each other and with the
job (`Snapshot.require_reachable`), so that every move from there has its rule. Whether lawful play led to the digests
takes the walk to tell.
"""

from functools import reduce
from typing import Annotated, Any, Final

from eth_hash.auto import keccak

from tiebreak.protocol import hashing, trees
from tiebreak.protocol.codec import Reader, check_bytes
from tiebreak.protocol.commitments import keys, records
from tiebreak.protocol.commitments.eip712 import Address, Domain, TypedData
from tiebreak.protocol.commitments.job import Head, Job
from tiebreak.protocol.errors import InvalidSnapshot, StateError, VerificationError
from tiebreak.protocol.game.moves import MAX_SIBLINGS, Phase
from tiebreak.protocol.game.seals import element_answer
from tiebreak.protocol.game.state import GameState, Level
from tiebreak.protocol.packing import U8, U32, U64, Bytes32, Raw, Record, Root, Uint, unpack
from tiebreak.protocol.program.accumulator import Kind, kind_of, leaf_count
from tiebreak.protocol.program.isa import MAX_NUMEL, MAX_TERMS, TERMS_PER_LEAF, DType, Opcode, ReduceFunction
from tiebreak.protocol.program.rounding import sum_kind
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

SNAPSHOT_BYTES: Final = 144
MAX_RECEIPT_BYTES: Final = 256
_MAX_FORK_BYTES: Final = 512
_WALK: Final = (Phase.DESCEND, Phase.SELECT)
_LEAF_PHASES: Final = {
    Level.RUN: (Phase.OPEN_STEPS,),
    Level.STEPS: (Phase.OPEN_VALUES,),
    Level.VALUES: (Phase.OPEN_TENSOR, Phase.PROVE),
    Level.CHUNKS: (Phase.OPEN_CHUNK, Phase.SELECT_ELEMENT, Phase.OPEN_TERMS, Phase.PROVE),
    Level.TERMS: (Phase.PROVE,),
}
"""The moves at a leaf of each tree. Above the leaves of all of them, the moves are those of a walk."""
Signature = Annotated[bytes, Raw(keys.SIGNATURE_BYTES)]


class Snapshot(Record):
    """The fields of a snapshot, in the order and with the names of the contract's. Fields not reached yet are zero."""

    phase: Annotated[int, Uint(8, Phase.DESCEND, Phase.PROVE)]
    level: Annotated[int, Uint(8, Level.RUN, Level.TERMS)]
    height: Annotated[int, Uint(8, 0, MAX_SIBLINGS)]
    fresh: Annotated[int, Uint(8, 0, 1)]
    """Whether nothing was chosen yet in the current tree: `height` is its depth."""
    dtype: U8
    summation: U8
    """Bits 0-3: the accumulation of an element (0 if it is judged at once, else 1 + its kind). Bits 4-5: 1 + the kind
    of a logged sum. Bits 6-7: the log's direction for the element."""
    last_chunk_bytes: Annotated[int, Uint(16)]
    position: U64
    element: Annotated[int, Uint(64, 0, MAX_NUMEL - 1)]
    leaves: U64
    """Leaves without padding: of the run tree; from its leaf on of the steps tree; from OPEN_TENSOR of the chunks."""
    step: U64
    """The first step of the segment from a leaf of RUN on; the disputed step from a leaf of STEPS on."""
    instruction: U32
    term_leaves: U32
    node: Bytes32
    """The current node; from SELECT_ELEMENT until OPEN_TERMS or PROVE, the claimed element's bits as a number."""
    opened: Root
    """t_n of SPEC section 11: the digest of what was opened and sealed."""
    log: Bytes32
    """The part of the rounding log that was opened last."""

    @classmethod
    def of(cls, state: GameState) -> "Snapshot":
        """The snapshot of a game that is not over. Raises `StateError` for one that is."""
        if state.is_over:
            raise StateError("a game that is over has no snapshot")
        job, in_segment = state.job, state.level is not Level.RUN or state.phase is Phase.OPEN_STEPS
        leaves = job.segment_steps(state.checkpoint) if in_segment else state.head.count
        dtype = last_chunk_bytes = 0
        if state.level in (Level.CHUNKS, Level.TERMS):
            leaves, dtype = records.chunk_count(state.dtype, state.shape), int(state.dtype)
            last_chunk_bytes = records.chunk_length(state.dtype, state.shape, leaves - 1)
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
        fields = zip(_WIDTHS, self.values, strict=True)
        return b"".join(value.to_bytes(width, "big") if isinstance(value, int) else value for width, value in fields)

    @classmethod
    def decode(cls, data: bytes) -> "Snapshot":
        """Read 144 bytes. Raises `EncodingError` for another length, `InvalidSnapshot` for a field out of range."""
        reader = Reader(check_bytes("snapshot", data, SNAPSHOT_BYTES))
        found: dict[str, Any] = {}
        for name, kind in cls.kinds().items():
            if not isinstance(kind, Uint):
                found[name] = reader.take(32)
                continue
            value = found[name] = reader.unsigned(kind.bits // 8)
            if value < kind.low or (kind.high is not None and value > kind.high):
                raise InvalidSnapshot(_OFFSETS[name], value)
        return cls(**found)

    def require_reachable(self, job: Job, head: Head) -> None:
        """Raise `InvalidSnapshot` unless the fields agree with each other and with the job, as they do in every walk.

        The checks, in their order, are those of the contract's `Snapshots.requireReachable`. Every move from here then
        has its rule, and every place its tree. Digests are not checked, nor what only the program says.
        """
        phase, level, height = Phase(self.phase), Level(self.level), self.height
        walks = phase in _WALK
        self._hold("level", walks or phase in _LEAF_PHASES[level])
        if level < Level.CHUNKS:
            self._require_no_tensor(walks)
        else:
            self._require_tensor(job)
        depth = self._require_tree(job, head)
        self._hold(
            "height", 1 <= height <= depth and (depth - height) % job.descent_levels == 0 if walks else not height
        )
        opens = phase is Phase.DESCEND and level is not Level.RUN
        self._hold("fresh", self.fresh == (height == depth) and not (self.fresh and opens))
        self._hold("position", not self.position >> (depth - height) if walks else self._is_leaf(job, head))
        has_log = job.is_logged and level is not Level.RUN and not (level is Level.STEPS and self.leaves == 1)
        self._hold("log", has_log or not any(self.log))

    def _hold(self, name: str, holds: bool) -> None:
        if not holds:
            value = getattr(self, name)
            raise InvalidSnapshot(_OFFSETS[name], value if isinstance(value, int) else int.from_bytes(value, "big"))

    def _require_no_tensor(self, walks: bool) -> None:
        """A snapshot before OPEN_TENSOR, or at a `source`, must say nothing of a tensor."""
        for name in ("dtype", "last_chunk_bytes", "term_leaves", "summation"):
            self._hold(name, getattr(self, name) == 0)
        self._hold("instruction", self.instruction == (0 if self.level < Level.VALUES or walks else self.position))
        self._hold("element", self.element == 0)
        is_root = self.level == Level.RUN and self.fresh
        self._hold("node", not is_root or self.node == self.opened)

    def _require_tensor(self, job: Job) -> None:
        """Check the fields of the tensor, its sum, and the element that was selected, if one was."""
        in_terms, proves = self.level == Level.TERMS, self.phase == Phase.PROVE
        selected = in_terms or proves or self.phase == Phase.OPEN_TERMS
        self._hold("dtype", self.dtype <= max(DType))
        size, last, terms = DType(self.dtype).size, self.last_chunk_bytes, self.term_leaves
        self._hold("last_chunk_bytes", 0 < last <= hashing.CHUNK_BYTES and last % size == 0)
        fits = terms != 1 and (not selected or (terms > 0) == (in_terms or not proves))
        self._hold("term_leaves", terms <= MAX_TERMS // TERMS_PER_LEAF and fits)
        accumulates, kind, code = self.summation & 15, self.summation >> 4 & 3, self.summation >> 6
        sums = (accumulates > 0) == (terms > 0) and accumulates <= len(Kind)
        logs = not kind or (job.is_logged and self.dtype == DType.F32)
        self._hold("summation", sums and logs and (not code or (selected and kind > 0 and code != 3)))
        self._hold("instruction", self.instruction < job.body_count)
        self._hold("leaves", 1 <= self.leaves <= MAX_NUMEL // hashing.CHUNK_BYTES * size)
        chunk, index = divmod(self.element, hashing.CHUNK_BYTES // size)
        inside = index < (last if chunk + 1 == self.leaves else hashing.CHUNK_BYTES) // size
        held = chunk < self.leaves and inside and (in_terms or chunk == self.position)
        self._hold("element", held if selected else self.element == 0)
        self._hold("node", not selected or in_terms or not any(self.node[:-size]))

    def _require_tree(self, job: Job, head: Head) -> int:
        """The depth of the tree in which the node stands, whose step and leaves must be the job's."""
        level, in_run = Level(self.level), self.level == Level.RUN
        if in_run and self.phase != Phase.OPEN_STEPS:
            self._hold("step", self.step == 0)
            self._hold("leaves", self.leaves == head.count)
            return job.run_depth
        self._hold("step", 1 <= self.step <= job.steps)
        segment, place = divmod(self.step - 1, job.checkpoint_interval)
        chosen = self.position if self.phase == Phase.OPEN_VALUES else 0
        fits = place == 0 and segment == self.position if in_run else level is not Level.STEPS or place == chosen
        self._hold("step", segment < head.count and fits)
        length = job.segment_steps(segment)
        if level < Level.CHUNKS:
            self._hold("leaves", self.leaves == length and not (in_run and length == 1))
        match level:
            case Level.RUN:
                return job.run_depth
            case Level.VALUES:
                return job.half_depth + 1
        return trees.depth_of(self.term_leaves if level is Level.TERMS else self.leaves)

    def _is_leaf(self, job: Job, head: Head) -> bool:
        """Whether the position is one of a leaf that is no padding."""
        leaves = {Level.RUN: head.count, Level.TERMS: self.term_leaves}
        if self.level != Level.VALUES:
            return self.position < leaves.get(Level(self.level), self.leaves)
        commit = self.position - (1 << job.half_depth)
        return self.position < job.body_count if commit < 0 else self.phase == Phase.PROVE and commit < job.state_count

    @property
    def id(self) -> Digest:
        """The digest that the chain keeps and that parties sign."""
        return tagged_hash(Tag.SNAPSHOT, self.encode())


_WIDTHS: Final = [kind.bits // 8 if isinstance(kind, Uint) else 32 for kind in Snapshot.kinds().values()]
_OFFSETS: Final = {name: sum(_WIDTHS[:place]) for place, name in enumerate(Snapshot.kinds())}
"""The offset of each field in the 144 bytes."""


def opened(state: GameState) -> tuple[bytes, ...]:
    """The run root and everything opened since, in the order in which it was fixed, which a proof shows again."""
    fixed = (state.steps_root, state.body_root, state.value_seal, state.instruction, state.accumulator_root, state.seal)
    return (state.head.run_root, *(item for item in fixed if item))


def opened_digest(state: GameState) -> Digest:
    """t_n of SPEC section 11: the hash of what `opened` gives."""
    return Digest(reduce(lambda digest, root: bytes(keccak(digest + root)), opened(state)))


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


class Standing(Record):
    """A signed statement on a game's state: after `sequence` moves it is at the snapshot with this id."""

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

    @classmethod
    def decode(cls, data: bytes) -> "SignedStanding":
        """Read a receipt. The signature is not checked yet. Raises `EncodingError`."""
        return cls.unpack("receipt", unpack(data, MAX_RECEIPT_BYTES))


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
        """Builds the evidence from two signed standings of one game and sequence number; `verify` checks it."""
        return cls(
            game_id=first.game_id,
            sequence=first.sequence,
            first=first.snapshot,
            first_signature=first.signature,
            second=second.snapshot,
            second_signature=second.signature,
        )

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
