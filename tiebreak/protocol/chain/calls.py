"""Calls of the contracts: made from transactions as they are declared, and read from anybody's calldata."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tiebreak.protocol.chain.abi import Entry, entries, function_owners, named
from tiebreak.protocol.chain.artifacts import BOARD
from tiebreak.protocol.chain.errors import ChainError, Reverted
from tiebreak.protocol.commitments.job import Concession, Head, Job, LogReceipt, SignedHead
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import MOVES, Move, Prove, kind_name, unpack_move
from tiebreak.protocol.game.snapshot import Fork, opened
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.packing import Packed, camel_case
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.tags import Digest

MOVE_KINDS: Final = {camel_case(kind_name(move)): kind for kind, move in MOVES.items()}
"""The move kind for each function of the board that is a move. Moves and functions have the same names and fields."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a contract function: its arguments in ABI order, and the wei to send with it.

    `kind` is the function's name, or empty for `raw` bytes that call no function.
    """

    kind: str
    arguments: tuple[Any, ...] = ()
    value: int = 0
    raw: bytes = b""

    @classmethod
    def of(cls, wanted: tx.Transaction, value: int | None = None) -> "Call":
        """The call for a transaction. value: the wei to send, if the board says how many.

        A slot of the pool (`call_of`) and what a proof shows again (`move_call`) are asked for elsewhere.
        """
        return cls(wanted.function, _arguments(wanted), wanted.wei if value is None else value)

    @classmethod
    def decode(cls, data: bytes, value: int = 0) -> "Call":
        """Decode calldata.

        Raises `ChainError` for an unknown selector, and `DecodingError` for arguments that do not fit.
        """
        if (entry := _selectors().get(data[:4])) is None:
            raise ChainError(f"expected a function of the contracts, got the selector 0x{data[:4].hex()}")
        return cls(entry.name, entry.arguments(data), value)

    @property
    def contract(self) -> str:
        """The contract that the call is made to; of raw bytes the board."""
        return function_owners().get(self.kind, BOARD)

    @property
    def data(self) -> bytes:
        return entries("function")[self.kind].calldata(self.arguments) if self.kind else self.raw

    def result(self, data: bytes) -> Any:
        """Decode what the function returned. Raises `DecodingError`."""
        return entries("function")[self.kind].result(data)

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by the contract's names."""
        return named(entries("function")[self.kind].inputs, self.arguments) if self.kind else {}

    # ---------------------------------------------------------------- what it says

    def _argument(self, name: str) -> Any:
        """One argument by name, or None if the function does not have it."""
        inputs = entries("function")[self.kind].inputs if self.kind else ()
        return next((value for field, value in zip(inputs, self.arguments, strict=True) if field.name == name), None)

    @property
    def job_id(self) -> Digest | None:
        """The job that the call names, or whose head it shows; None if there is none."""
        head = self._argument("head")
        found: Digest | None = self._argument("jobId") if head is None else head[0]
        return found

    @property
    def game_id(self) -> Digest | None:
        """The game that the call names; None if there is none."""
        found: Digest | None = self._argument("gameId")
        return found

    @property
    def is_move(self) -> bool:
        """Whether the function makes a move in a game."""
        return self.kind in MOVE_KINDS

    @property
    def move(self) -> Move | None:
        """The move that the call makes; None if it makes none, or one that exceeds the limits of SPEC section 9."""
        if not self.is_move:
            return None
        try:
            return read_move(self)
        except EncodingError:
            return None

    @property
    def entered_proof(self) -> Prove | None:
        """The proof that comes with a state that enters; None for every other call. Raises `EncodingError`."""
        if self.kind != "enterAndProve":
            return None
        found = read_move(Call("prove", (self.arguments[0], *self.arguments[4:])))
        assert isinstance(found, Prove), "a move's kind is its function's"
        return found

    @property
    def heads(self) -> tuple[SignedHead, ...]:
        v = self.values
        if "head" in v and "signature" in v:
            head = v["head"]
            return (_signed(head.job_id, head.count, head.run_root, v["signature"]),)
        if self.kind == "reportInconsistency":
            opened = (v["first"], v["second"])
            return tuple(_signed(v["jobId"], one.count, one.run_root, one.signature) for one in opened)
        if self.kind == "reportEquivocation":
            shown = ((v["firstRoot"], v["firstSignature"]), (v["secondRoot"], v["secondSignature"]))
            return tuple(_signed(v["jobId"], v["count"], *one) for one in shown)
        return ()

    @property
    def job(self) -> Job | None:
        """The job that the call offers, or None. Raises `VerificationError` for a job that breaks SPEC section 8."""
        return Job(**vars(self.values["job_"])) if self.kind == "createJob" else None


@cache
def _selectors() -> dict[bytes, Entry]:
    return {entry.selector: entry for entry in entries("function").values()}


def _signed(job_id: bytes, count: int, run_root: bytes, signature: bytes) -> SignedHead:
    return SignedHead(head=Head(job_id=Digest(job_id), count=count, run_root=Digest(run_root)), signature=signature)


# ---------------------------------------------------------------- arguments


def call_of(wanted: tx.Transaction, board: Board) -> Call:
    """The call that carries out a transaction, with the stakes and bonds that it has to pay as the board stands.

    Raises `Reverted`, as the contract would, if the board does not show the job or game that it is about.
    """
    match wanted:
        case tx.JoinPool(bond=bond):
            return Call(wanted.function, (board.free_slot(bond),), bond)
        case tx.MakeMove(game_id=game_id, move=move):
            if game_id not in board.games:
                raise Reverted("NoSuchGame", {"gameId": game_id})
            return move_call(board.games[game_id].state, move)
    try:
        return Call.of(wanted, wanted.wei + board.stake_of(wanted))
    except KeyError:
        raise Reverted("WrongJobStatus", {"jobId": tx.subject_of(wanted)[0]}) from None


def _arguments(wanted: tx.Transaction) -> tuple[Any, ...]:
    """A transaction's arguments in ABI order: its fields, unless its function asks for something else."""
    match wanted:
        case tx.Report(first=first, second=second):
            return (*first.head.values, first.signature, second.head.run_root, second.signature)
        case tx.ReportInconsistency(position=position, first=first, second=second):
            shown = (
                (one.head.head.count, one.head.head.run_root, one.head.signature, one.leaf, one.siblings)
                for one in (first, second)
            )
            return (first.head.head.job_id, position, *shown)
        case tx.Challenge(head=head, nonce=nonce):
            return (head.head.values, head.signature, nonce)
        case tx.JoinPool() | tx.MakeMove():
            raise TypeError(f"expected a transaction that names all its arguments, got {type(wanted).__name__}")
    return tuple(argument for value in wanted.values for argument in _spread(value))


def _spread(value: Any) -> tuple[Any, ...]:
    """The arguments for one field: a struct, the parts of what somebody signed, or the value itself."""
    match value:
        case Job():
            return (value.values,)
        case SignedHead() | LogReceipt():
            return value.head.values, value.signature
        case Concession():
            return value.head.values, value.prover, value.signature
        case Fork() | tx.Enter():
            return value.values
        case Prove():
            return proof_argument(value), value.salt
    return (value,)


def move_call(state: GameState, move: Move) -> Call:
    """Make a move. `state` is the game before the move."""
    body = (proof_argument(move), move.salt, opened(state)) if isinstance(move, Prove) else move.pack()
    return Call(camel_case(kind_name(move)), (state.game_id, *body))


_NO_WITNESS: Final = (0, ZERO_DIGEST, 0, ZERO_DIGEST, (), ZERO_DIGEST, ())
"""The contract has one struct for three kinds of witness; unused fields are zero or empty."""


def proof_argument(move: Prove) -> tuple[Packed, ...]:
    """The `IReferee.Proof` argument: all fields of the move except its salt."""
    *fields, witness, _ = move.pack()
    assert isinstance(witness, tuple)  # a record's array
    return (*fields, (*_NO_WITNESS[: 7 - len(witness)], *witness))


def read_move(call: Call) -> Move:
    """Invert `move_call`. Raises `ChainError` for other functions and `EncodingError` beyond the limits of SPEC 9."""
    if not call.is_move:
        raise ChainError(f"expected a move of the game, got a call of {call.kind or 'no function'}")
    body = call.arguments[1:]
    if call.kind == "prove":
        (*fields, witness), salt, _ = body
        _, state_root, _, _, record_siblings, tensor_id, siblings = witness
        if state_root == ZERO_DIGEST and not record_siblings:
            witness = (tensor_id, siblings) if tensor_id != ZERO_DIGEST or siblings else ()
        body = (*fields, tuple(witness), salt)
    return unpack_move(MOVE_KINDS[call.kind], body)
