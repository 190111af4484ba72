"""Transactions as everyone sees them in the mempool: which function of the board, with what, and how many wei."""

from dataclasses import dataclass, replace
from typing import Any, cast

from tiebreak.protocol.chain import generated as g
from tiebreak.protocol.chain.abi import Function
from tiebreak.protocol.chain.calls import MOVES, head_struct, job_struct, move_call, read_move
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Head, Job, SignedHead
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.moves import MAX_ACCUMULATOR_BYTES, Move
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.isa import MAX_INSTRUCTION_BYTES
from tiebreak.protocol.tags import Digest


@dataclass(frozen=True, slots=True)
class Call:
    """What a transaction carries. `function` None: `raw` bytes that are no call of the board."""

    function: Function[Any] | None
    value: int = 0
    raw: bytes = b""

    @property
    def data(self) -> bytes:
        """Calldata."""
        return self.raw if self.function is None else self.function.data

    @property
    def kind(self) -> str:
        """The function's name; empty for none of the board's."""
        return "" if self.function is None else self.function.NAME

    @property
    def game_id(self) -> Digest | None:
        """The game that it is about, if any."""
        return getattr(self.function, "game_id", None)

    @property
    def move(self) -> Move | None:
        """The move that it makes, if any; None also for one that breaks the limits of SPEC section 9.

        Of an opening with more bytes than those limits allow it is the same opening with none: no message can carry it,
        but the contract takes the transaction, and to the rules both are the same broken tie.
        """
        if not self.is_move:
            return None
        try:
            return read_move(_without_excess(cast("Function[Any]", self.function)))
        except VerificationError:
            return None

    @property
    def is_move(self) -> bool:
        """Whether it is to be a move."""
        return isinstance(self.function, MOVES)

    @property
    def heads(self) -> tuple[SignedHead, ...]:
        """The signed heads that it shows."""
        match self.function:
            case g.PostHeadCall() | g.ChallengeCall():
                return (_signed(self.function.head, self.function.signature),)
            case g.ReportEquivocationCall() as f:
                pairs = ((f.first_root, f.first_signature), (f.second_root, f.second_signature))
                return tuple(_signed(g.Head(f.job_id, f.count, root), signature) for root, signature in pairs)
        return ()

    @property
    def job(self) -> Job | None:
        """The job that it offers, if any."""
        if not isinstance(self.function, g.CreateJobCall):
            return None
        offered = self.function.job_
        return Job(**{name: getattr(offered, name) for name in Job.__slots__})


def _without_excess(function: Function[Any]) -> Function[Any]:
    """An opening of more bytes than a message may carry, with none; others as they are."""
    match function:
        case g.OpenTensorCall() if len(function.instruction) > MAX_INSTRUCTION_BYTES:
            return replace(function, instruction=b"")
        case g.OpenChunkCall() if len(function.chunk) > CHUNK_BYTES:
            return replace(function, chunk=b"")
        case g.OpenTermsCall() if len(function.accumulator) > MAX_ACCUMULATOR_BYTES:
            return replace(function, accumulator=b"")
    return function


def _signed(head: g.Head, signature: bytes) -> SignedHead:
    return SignedHead(head=Head(job_id=head.job_id, count=head.count, run_root=head.run_root), signature=signature)


def create_job(job: Job, trainer_signature: bytes) -> Call:
    """Offer a job and pay its reward."""
    return Call(g.CreateJobCall(job_struct(job), trainer_signature), job.reward)


def cancel_job(job: Job) -> Call:
    """Take an offer back."""
    return Call(g.CancelJobCall(job.id))


def accept_job(job: Job) -> Call:
    """Accept an offer and pay the stake."""
    return Call(g.AcceptJobCall(job.id), job.trainer_stake)


def post_head(head: SignedHead) -> Call:
    """Post a signed head."""
    return Call(g.PostHeadCall(head_struct(head.head), head.signature))


def report(first: SignedHead, second: SignedHead) -> Call:
    """Report two heads of one count."""
    head = first.head
    call = g.ReportEquivocationCall(
        job_id=head.job_id,
        count=head.count,
        first_root=head.run_root,
        first_signature=first.signature,
        second_root=second.head.run_root,
        second_signature=second.signature,
    )
    return Call(call)


def settle(job: Job) -> Call:
    """End a job whose final head stood."""
    return Call(g.SettleCall(job.id))


def abandon(job: Job) -> Call:
    """End a job whose trainer is silent."""
    return Call(g.AbandonCall(job.id))


def challenge(job: Job, head: SignedHead, nonce: int = 0) -> Call:
    """Start a game against a head and pay the challenger's stake."""
    return Call(g.ChallengeCall(head_struct(head.head), head.signature, nonce), job.challenger_stake)


def make_move(state: GameState, move: Move) -> Call:
    """Make a move; `state` is the game before it."""
    return Call(move_call(state, move))


def timeout(game_id: Digest) -> Call:
    """Claim that the mover has run out of time."""
    return Call(g.TimeoutCall(game_id))


def reclaim(game_id: Digest) -> Call:
    """Take back the stake of a game whose job was slashed."""
    return Call(g.ReclaimCall(game_id))


def withdraw(to: Address) -> Call:
    """Pull one's credit."""
    return Call(g.WithdrawCall(to))
