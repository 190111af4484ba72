"""Transactions to the board: a function to build each kind, and a class to read those of anyone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tiebreak.protocol.chain.abi import Entry, entries, function_owners, named
from tiebreak.protocol.chain.artifacts import BOARD
from tiebreak.protocol.chain.errors import ChainError
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Concession, Head, Job, LogReceipt, SignedHead
from tiebreak.protocol.commitments.records import ZERO_DIGEST
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.game.moves import MOVES, Move, Prove, kind_name, unpack_move
from tiebreak.protocol.game.snapshot import Fork, Snapshot, opened
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.packing import Packed, camel_case
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
    def decode(cls, data: bytes, value: int = 0) -> "Call":
        """Decode calldata.

        Raises `ChainError` for an unknown selector, and `DecodingError` for arguments that do not fit.
        """
        entry = _selectors().get(data[:4])
        if entry is None:
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
        if self.kind != "createJob":
            return None
        return Job(**vars(self.values["job_"]))


@cache
def _selectors() -> dict[bytes, Entry]:
    return {entry.selector: entry for entry in entries("function").values()}


def _signed(job_id: bytes, count: int, run_root: bytes, signature: bytes) -> SignedHead:
    head = Head(job_id=Digest(job_id), count=count, run_root=Digest(run_root))
    return SignedHead(head=head, signature=signature)


# ---------------------------------------------------------------- jobs


def create_job(job: Job, trainer_signature: bytes) -> Call:
    """Offer a job and pay its reward, and the fees of its seats."""
    return Call("createJob", (job.values, trainer_signature), job.reward + job.seats * job.seat_fee)


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
    """Report two heads with the same count and different roots."""
    job_id, count, root = first.head.values
    return Call("reportEquivocation", (job_id, count, root, first.signature, second.head.run_root, second.signature))


def report_inconsistency(position: int, *opened: tuple[SignedHead, Digest, Sequence[Digest]]) -> Call:
    """Report two heads, each with its leaf at this position and the siblings, whose leaves differ."""
    shown = ((h.head.count, h.head.run_root, h.signature, leaf, tuple(siblings)) for h, leaf, siblings in opened)
    return Call("reportInconsistency", (opened[0][0].head.job_id, position, *shown))


def report_concession(concession: Concession) -> Call:
    """Show that the trainer has conceded a head, for which whoever it names is paid."""
    return Call("reportConcession", (concession.head.values, concession.prover, concession.signature))


def settle(job_id: Digest) -> Call:
    """End a job whose final head stood through a whole challenge window."""
    return Call("settle", (job_id,))


def abandon(job_id: Digest) -> Call:
    """End a job whose trainer stopped posting heads."""
    return Call("abandon", (job_id,))


def acknowledge(receipt: LogReceipt) -> Call:
    """Show the client's receipt for the logs of a head that is on the board, or of an earlier one."""
    return Call("acknowledge", (receipt.head.values, receipt.signature))


def part(job_id: Digest) -> Call:
    """End a job of policy `logged` whose client did not sign for all its logs, or whose trainer stopped."""
    return Call("part", (job_id,))


def withdraw(to: Address) -> Call:
    """Withdraw the sender's whole credit."""
    return Call("withdraw", (to,))


# ---------------------------------------------------------------- seats


def join_pool(slot: int, bond: int) -> Call:
    """Deposit a bond for a slot of its pool: an empty one, or the next after the last."""
    return Call("joinPool", (slot,), bond)


def leave_pool(bond: int, slot: int) -> Call:
    """Take back the deposit of a slot that the sender has held for long enough."""
    return Call("leavePool", (bond, slot))


def seal_head(job_id: Digest, count: int, seal: Digest) -> Call:
    """Post progress on a job with seats, and with the final count what the head's root is sealed as."""
    return Call("sealHead", (job_id, count, seal))


def draw_seats(job: Job, secret: bytes) -> Call:
    """Draw the seats with the secret that the job's nonce commits to, once the final head is sealed."""
    return Call("drawSeats", (job.values, secret))


def seal_root(job_id: Digest, seat: int, seal: Digest, bond: int) -> Call:
    """Seal the root that the sender, whose seat it is, has computed, and put up the seat's bond."""
    return Call("sealRoot", (job_id, seat, seal), bond)


def open_head(head: SignedHead, salt: bytes) -> Call:
    """Post the final head that was sealed, after the time for audits."""
    return Call("openHead", (head.head.values, head.signature, salt))


def claim_seat(job_id: Digest, seat: int, auditor: Address, run_root: Digest, salt: bytes) -> Call:
    """Open what an auditor sealed, after the job's end, to have the auditor paid."""
    return Call("claimSeat", (job_id, seat, auditor, run_root, salt))


def close_seats(job_id: Digest) -> Call:
    """Pay out what no seat claimed in time."""
    return Call("closeSeats", (job_id,))


# ---------------------------------------------------------------- games


def read_game(game_id: Digest) -> Call:
    """Read what the board stores about a game; the result is a `GameRecord`."""
    return Call("game", (game_id,))


def challenge(head: SignedHead, nonce: int, challenger_stake: int) -> Call:
    """Start a game against a head and pay the challenger's stake."""
    return Call("challenge", (head.head.values, head.signature, nonce), challenger_stake)


def concede(game_id: Digest) -> Call:
    """Give up a game, whoever is to move in it. The sender is one of its sides."""
    return Call("concede", (game_id,))


def enter(state: GameState, signature: bytes) -> Call:
    """Go on from a state that the other side signed, and that is later than the one on the chain."""
    return Call("enter", _signed_state(state, signature))


def enter_and_prove(state: GameState, signature: bytes, move: Prove) -> Call:
    """Enter the state before a proof, which the defender signed, and have the proof judged at once."""
    return Call("enterAndProve", (*_signed_state(state, signature), proof_argument(move), move.salt, opened(state)))


def report_fork(fork: Fork) -> Call:
    """Show that one side signed two snapshots for one sequence number of a game."""
    return Call("reportFork", fork.values)


def _signed_state(state: GameState, signature: bytes) -> tuple[Any, ...]:
    return (state.game_id, state.moves, Snapshot.of(state).encode(), signature)


def timeout(game_id: Digest) -> Call:
    """Claim that the side to move has run out of time."""
    return Call("timeout", (game_id,))


def reclaim(game_id: Digest) -> Call:
    """Give back the challenger's stake of a game whose job was slashed in the meantime."""
    return Call("reclaim", (game_id,))


def move_call(state: GameState, move: Move) -> Call:
    """Make a move. `state` is the game before the move."""
    body = move.pack()
    if isinstance(move, Prove):
        body = (proof_argument(move), move.salt, opened(state))
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
        body = (*fields, _read_witness(witness), salt)
    return unpack_move(MOVE_KINDS[call.kind], body)


def _read_witness(witness: Any) -> tuple[Any, ...]:
    _, state_root, _, _, record_siblings, tensor_id, siblings = witness
    if state_root != ZERO_DIGEST or record_siblings:
        return tuple(witness)
    return (tensor_id, siblings) if tensor_id != ZERO_DIGEST or siblings else ()
