"""A whole game between two parties in one process, as the signed messages that would travel between them."""

from collections.abc import Callable
from dataclasses import dataclass

from protocol import game
from protocol.eip712 import Domain
from protocol.game import GameState
from protocol.job import Job, SignedHead, game_id
from protocol.keys import PrivateKey
from protocol.messages import Transcript, seal
from protocol.moves import Move, Side
from protocol.player import Clock, Party, Statistics


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
    """Play to the verdict. `clock` gives the instant of each move; `on_move` sees each new state and the move to it.

    Raises `VerificationError` if the head is not the job's or not signed by its trainer, or if the defender's key is
    not the trainer's; `IllegalMove` if a party makes an illegal move (a party's own bug, or a cheat: on a network the
    move would be refused and its clock would run on).
    """
    head.verify(job, domain)
    seats = {Side.DEFENDER: defender, Side.CHALLENGER: challenger}
    transcript = Transcript(
        job_id=job.id,
        game_id=game_id(head.head, domain, challenger.key.address, nonce),
        domain=domain,
        defender=job.trainer,
        challenger=challenger.key.address,
    )
    statistics = Statistics()
    state, answered = game.start(job, head.head, clock()), None
    while not state.is_over:
        seat = seats[state.mover]
        wire = seal(transcript.next_message(seat.party.move(state, answered)), domain, seat.key)
        answered = transcript.append(wire)
        state = game.apply(state, answered, clock())
        statistics.count(answered, len(wire))
        if on_move is not None:
            on_move(state, answered)
    return Match(state=state, transcript=transcript, statistics=statistics)


def replay(job: Job, head: SignedHead, transcript: Transcript, instants: list[int]) -> GameState:
    """The state that the messages of a transcript lead to; `instants` are those of the start and of each message.

    What a referee does who was not there. Raises `VerificationError` for what no honest transcript holds.
    """
    head.verify(job, transcript.domain)
    checked = Transcript(
        job_id=transcript.job_id,
        game_id=transcript.game_id,
        domain=transcript.domain,
        defender=job.trainer,
        challenger=transcript.challenger,
    )
    state = game.start(job, head.head, instants[0])
    for wire, now in zip(transcript.wires, instants[1:], strict=True):
        state = game.apply(state, checked.append(wire), now)
    return state
