"""A whole game between two parties in one process, as the signed messages that would travel between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job, SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.messages import Transcript, seal
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.game.sides import Clock, Party, Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A party and the key it signs with."""

    party: Party
    key: PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A finished game: the last state, the signed messages, and what they cost."""

    state: GameState
    transcript: Transcript
    statistics: Statistics


Courier = Callable[[Side, Move], tuple[Move, int]]
"""Takes a side's move to the other side: what arrives, and how many bytes travelled."""


def by_hand(_side: Side, move: Move) -> tuple[Move, int]:
    """For parties that trust the process they share: nothing is signed, nothing travels."""
    return move, 0


def signed_courier(transcript: Transcript, signers: Mapping[Side, PrivateKey]) -> Courier:
    """Moves travel as signed messages; what arrives is what the transcript accepted."""

    def carry(side: Side, move: Move) -> tuple[Move, int]:
        wire = seal(transcript.next_message(move), transcript.domain, signers[side])
        return transcript.append(wire, side), len(wire)

    return carry


def contest(
    start: GameState,
    *,
    defender: Party,
    challenger: Party,
    clock: Clock,
    courier: Courier = by_hand,
    on_move: Callable[[GameState, Move, GameState, int], None] | None = None,
) -> GameState:
    """Play a started game to its verdict; `on_move` sees each move between the states around it, and its bytes.

    Raises `IllegalMove` if a party makes an illegal move (a party's own bug, or a cheat: on a network the move would be
    refused and its clock would run on).
    """
    parties = {Side.DEFENDER: defender, Side.CHALLENGER: challenger}
    state, answered = start, None
    while not state.is_over:
        answered, size = courier(state.mover, parties[state.mover].move(state, answered))
        before, state = state, game.apply(state, answered, clock())
        if on_move is not None:
            on_move(before, answered, state, size)
    return state


def play(
    job: Job,
    head: SignedHead,
    domain: Domain,
    *,
    defender: Seat,
    challenger: Seat,
    nonce: int = 0,
    clock: Clock,
    on_move: Callable[[GameState, Move], None] | None = None,
) -> Match:
    """Play to the verdict as signed messages. `clock` gives the instant of each move; `on_move` sees each new state.

    Raises `VerificationError` if the head is not the job's or not signed by its trainer, or if the defender's key is
    not the trainer's; `IllegalMove` as `contest` does.
    """
    head.verify(job, domain)
    transcript = Transcript(
        job_id=job.id,
        game_id=game_id(head.head, domain, challenger.key.address, nonce),
        domain=domain,
        defender=job.trainer,
        challenger=challenger.key.address,
    )
    statistics = Statistics()

    def count(before: GameState, move: Move, after: GameState, size: int) -> None:
        statistics.count(before.mover, move, size)
        if on_move is not None:
            on_move(after, move)

    state = contest(
        game.start(job, head.head, transcript.game_id, clock()),
        defender=defender.party,
        challenger=challenger.party,
        clock=clock,
        courier=signed_courier(transcript, {Side.DEFENDER: defender.key, Side.CHALLENGER: challenger.key}),
        on_move=count,
    )
    return Match(state=state, transcript=transcript, statistics=statistics)


def replay(job: Job, head: SignedHead, transcript: Transcript, instants: Sequence[int], *, nonce: int = 0) -> GameState:
    """The state that the messages of a transcript lead to; `instants` are those of the start and of each message.

    What a referee does who was not there. Raises `VerificationError` for what no honest transcript holds, another
    game's id among it: under the id of someone else's game, its seals could be copied.
    """
    head.verify(job, transcript.domain)
    expected = game_id(head.head, transcript.domain, transcript.challenger, nonce)
    if transcript.game_id != expected:
        raise VerificationError(f"game: expected {expected.hex()}, got {transcript.game_id.hex()}")
    checked = Transcript(
        job_id=transcript.job_id,
        game_id=transcript.game_id,
        domain=transcript.domain,
        defender=job.trainer,
        challenger=transcript.challenger,
    )
    state = game.start(job, head.head, transcript.game_id, instants[0])
    for wire, now in zip(transcript.wires, instants[1:], strict=True):
        if state.is_over:
            raise IllegalMove("expected no message after the verdict, got one")
        state = game.apply(state, checked.append(wire, state.mover), now)
    return state
