"""Transactions to the board: one function per kind, and what can be read from anybody's."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from tiebreak.protocol.chain.abi import Entry, camel_case, entries, named, snake_case
from tiebreak.protocol.chain.errors import ChainError
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import MAX_ACCUMULATOR_BYTES, MOVES, Move, Prove, kind_name, unpack_move
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.packing import Packed
from tiebreak.protocol.program.isa import MAX_INSTRUCTION_BYTES
from tiebreak.protocol.tags import Digest

MOVE_KINDS: Final = {camel_case(kind_name(move)): kind for kind, move in MOVES.items()}
"""The board's functions that are moves -> the kinds of the moves: both have the same names and fields."""
_BYTES_SHOWN: Final = {
    "openTensor": (1, MAX_INSTRUCTION_BYTES),
    "openChunk": (1, CHUNK_BYTES),
    "openTerms": (2, MAX_ACCUMULATOR_BYTES),
}
"""Which argument of a defender's move is bytes, and how many of them a message may carry."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the contracts, its arguments in the ABI's order, and how many wei go with it.

    kind: the function's name; empty for `raw` bytes that call none.
    """

    kind: str
    arguments: tuple[Any, ...] = ()
    value: int = 0
    raw: bytes = b""

    @classmethod
    def decode(cls, data: bytes, value: int = 0) -> "Call":
        """From calldata. Raises `ChainError` if no function of the contracts has its selector.

        Raises `DecodingError` for arguments that are none of that function.
        """
        entry = _selectors().get(data[:4])
        if entry is None:
            raise ChainError(f"expected a function of the contracts, got the selector 0x{data[:4].hex()}")
        return cls(entry.name, entry.arguments(data), value)

    @property
    def data(self) -> bytes:
        """Calldata."""
        return entries("function")[self.kind].calldata(self.arguments) if self.kind else self.raw

    def result(self, data: bytes) -> Any:
        """What the function returned, read from its bytes. Raises `DecodingError`."""
        return entries("function")[self.kind].result(data)

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by the contract's names; structs are dictionaries."""
        return named(entries("function")[self.kind].inputs, self.arguments) if self.kind else {}

    # ---------------------------------------------------------------- what it says

    def _argument(self, name: str) -> Any:
        """One argument, None if the function has no such one."""
        inputs = entries("function")[self.kind].inputs if self.kind else ()
        return next((value for field, value in zip(inputs, self.arguments, strict=True) if field.name == name), None)

    @property
    def job_id(self) -> Digest | None:
        """The job that it names, or whose head it shows."""
        head = self._argument("head")
        found: Digest | None = self._argument("jobId") if head is None else head[0]
        return found

    @property
    def game_id(self) -> Digest | None:
        """The game that it is about."""
        found: Digest | None = self._argument("gameId")
        return found

    @property
    def is_move(self) -> bool:
        """Whether its function is a move's."""
        return self.kind in MOVE_KINDS

    @property
    def move(self) -> Move | None:
        """The move that it makes, if any; None also for one that breaks the limits of SPEC section 9.

        An opening with more bytes than those limits allow is read as the same opening with none: no message can carry
        it, but the contract takes the transaction, and to the rules both are the same broken tie.
        """
        if not self.is_move:
            return None
        arguments = list(self.arguments)
        at, limit = _BYTES_SHOWN.get(self.kind, (0, 0))
        if limit and len(arguments[at]) > limit:
            arguments[at] = b""
        try:
            return read_move(replace(self, arguments=tuple(arguments)))
        except EncodingError:
            return None

    @property
    def heads(self) -> tuple[SignedHead, ...]:
        """The signed heads that it shows."""
        v = self.values
        if "head" in v and "signature" in v:
            return (_signed(v["head"]["jobId"], v["head"]["count"], v["head"]["runRoot"], v["signature"]),)
        if self.kind == "reportEquivocation":
            shown = ((v["firstRoot"], v["firstSignature"]), (v["secondRoot"], v["secondSignature"]))
            return tuple(_signed(v["jobId"], v["count"], *one) for one in shown)
        return ()

    @property
    def job(self) -> Job | None:
        """The job that it offers, if any. Raises `VerificationError` for one that breaks SPEC section 8."""
        if self.kind != "createJob":
            return None
        return Job(**{snake_case(name): value for name, value in self.values["job_"].items()})


@cache
def _selectors() -> dict[bytes, Entry]:
    return {entry.selector: entry for entry in entries("function").values()}


def _signed(job_id: bytes, count: int, run_root: bytes, signature: bytes) -> SignedHead:
    head = Head(job_id=Digest(job_id), count=count, run_root=Digest(run_root))
    return SignedHead(head=head, signature=signature)


# ---------------------------------------------------------------- jobs


def create_job(job: Job, trainer_signature: bytes) -> Call:
    """Offer a job and pay its reward."""
    return Call("createJob", (job.values, trainer_signature), job.reward)


def cancel_job(job_id: Digest) -> Call:
    """Take back an offer that was not accepted."""
    return Call("cancelJob", (job_id,))


def accept_job(job_id: Digest, trainer_stake: int) -> Call:
    """Accept an offer and pay the trainer's stake."""
    return Call("acceptJob", (job_id,), trainer_stake)


def post_head(head: SignedHead) -> Call:
    """Post a head that the trainer signed."""
    return Call("postHead", (head.head.values, head.signature))


def report_equivocation(first: SignedHead, second: SignedHead) -> Call:
    """Report two heads of one count with different roots."""
    job_id, count, root = first.head.values
    return Call("reportEquivocation", (job_id, count, root, first.signature, second.head.run_root, second.signature))


def settle(job_id: Digest) -> Call:
    """End a job whose final head stood a whole window."""
    return Call("settle", (job_id,))


def abandon(job_id: Digest) -> Call:
    """End a job whose trainer posts no heads."""
    return Call("abandon", (job_id,))


def withdraw(to: Address) -> Call:
    """Pull one's whole credit."""
    return Call("withdraw", (to,))


# ---------------------------------------------------------------- games


def read_game(game_id: Digest) -> Call:
    """What the board keeps of a game: a `GameRecord`."""
    return Call("game", (game_id,))


def challenge(head: SignedHead, nonce: int, challenger_stake: int) -> Call:
    """Start a game against a head and pay the challenger's stake."""
    return Call("challenge", (head.head.values, head.signature, nonce), challenger_stake)


def timeout(game_id: Digest) -> Call:
    """Claim that the side to move has run out of time."""
    return Call("timeout", (game_id,))


def reclaim(game_id: Digest) -> Call:
    """Give back the challenger's stake of a game whose job was slashed meanwhile."""
    return Call("reclaim", (game_id,))


def move_call(state: GameState, move: Move) -> Call:
    """Make a move; `state` is the game before it."""
    body = move.pack()
    if isinstance(move, Prove):
        body = (proof_argument(move), move.salt, opened(state))
    return Call(camel_case(kind_name(move)), (state.game_id, *body))


def opened(state: GameState) -> tuple[bytes, ...]:
    """What the board's digest of a game in phase PROVE is over: the run root, and what was opened since (SPEC 11)."""
    fixed = (state.steps_root, state.body_root, state.value_seal, state.instruction, state.accumulator_root, state.seal)
    return (state.head.run_root, *(item for item in fixed if item))


_NO_WITNESS: Final = (0, ZERO_DIGEST, 0, ZERO_DIGEST, (), ZERO_DIGEST, ())
"""The contract's one struct serves three kinds of witness; unused fields are zero and empty."""


def proof_argument(move: Prove) -> tuple[Packed, ...]:
    """`IReferee.Proof`: the fields of the move before its salt."""
    *fields, witness, _ = move.pack()
    assert isinstance(witness, tuple)  # a record's array
    return (*fields, (*_NO_WITNESS[: 7 - len(witness)], *witness))


def read_move(call: Call) -> Move:
    """The inverse of `move_call`. Raises `ChainError` for another function, `EncodingError` beyond SPEC 9's limits."""
    if not call.is_move:
        raise ChainError(f"expected a move of the game, got a call of {call.kind or 'no function'}")
    body = call.arguments[1:]
    if call.kind == "prove":
        (*fields, witness), salt, _ = body
        body = (*fields, _read_witness(witness), salt)
    return unpack_move(MOVE_KINDS[call.kind], body)


def _read_witness(witness: Any) -> tuple[Any, ...]:
    _, state_root, _, _, record_siblings, tensor_id, siblings = witness
    if state_root != ZERO_DIGEST or record_siblings:
        return tuple(witness)
    return (tensor_id, siblings) if tensor_id != ZERO_DIGEST or siblings else ()
