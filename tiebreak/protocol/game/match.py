"""The driver of a game between two parties in one process, whoever judges its moves and however they travel."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiebreak.protocol.commitments.job import Job, SignedHead, game_id
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript, seal
from tiebreak.protocol.game.moves import Move, Select, Side
from tiebreak.protocol.game.rules import GameState, Level
from tiebreak.protocol.game.sides import Party

Judge = Callable[[GameState, Move], GameState]
"""Applies a move to a state. Raises `IllegalMove`."""
Courier = Callable[[Side, Move], tuple[Move, int]]
"""Takes a side's move to the other side: what arrives, and how many bytes travelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One choice on the way down: of the 2^levels nodes below `height`, the one at `index`."""

    level: Level
    height: int
    levels: int
    index: int
    position: int
    """Of the chosen node in its level of the tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One move between the states around it; `bytes` is the size of the message that carried it."""

    before: GameState
    move: Move
    after: GameState
    bytes: int = 0
    gas: int | None = None
    """Of its transaction, if it was played on the chain too."""

    @property
    def by(self) -> Side:
        """Whose move it is."""
        return self.before.mover


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A finished game, move by move."""

    moves: tuple[Played, ...]

    @property
    def final(self) -> GameState:
        """The last state."""
        return self.moves[-1].after

    @property
    def loser(self) -> Side:
        """Who lost by the verdict."""
        assert self.final.verdict is not None  # a match is finished
        return self.final.verdict.winner.other

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The walk from the root of the run tree to what was disputed."""
        chosen = [(played.before, played.move) for played in self.moves]
        return tuple(
            Selection(
                level=state.level,
                height=state.height,
                levels=state.levels,
                index=move.index,
                position=state.position << state.levels | move.index,
            )
            for state, move in chosen
            if isinstance(move, Select)
        )


def by_rules(clock: Callable[[], int]) -> Judge:
    """The rules of the game; `clock` gives the instant of each move, in seconds."""
    return lambda state, move: rules.apply(state, move, clock())


def by_hand(_side: Side, move: Move) -> tuple[Move, int]:
    """For parties that trust the process they share: nothing is signed, nothing travels."""
    return move, 0


def by_message(transcript: Transcript, signers: Mapping[Side, PrivateKey]) -> Courier:
    """Moves travel as signed messages; what arrives is what the transcript accepted."""

    def carry(side: Side, move: Move) -> tuple[Move, int]:
        wire = seal(transcript.next_message(move), transcript.domain, signers[side])
        return transcript.append(wire, side), len(wire)

    return carry


def moves(
    start: GameState, parties: Mapping[Side, Party], judge: Judge, courier: Courier = by_hand
) -> Iterator[Played]:
    """The moves of a game from a state of it to the verdict, made as they are asked for.

    What the judge refuses (a party's own bug, or a cheat) is raised: on a network the move would be refused and the
    clock of its side would run on.
    """
    state, answered = start, None
    while not state.is_over:
        answered, size = courier(state.mover, parties[state.mover].move(state, answered))
        before, state = state, judge(state, answered)
        yield Played(before=before, move=answered, after=state, bytes=size)


def play(start: GameState, *, defender: Party, challenger: Party, judge: Judge, courier: Courier = by_hand) -> Match:
    """Plays a started game to its verdict. Raises what `moves` raises."""
    return Match(moves=tuple(moves(start, {Side.DEFENDER: defender, Side.CHALLENGER: challenger}, judge, courier)))


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
    state = rules.start(job, head.head, transcript.game_id, instants[0])
    for wire, now in zip(transcript.wires, instants[1:], strict=True):
        if state.is_over:
            raise IllegalMove("expected no message after the verdict, got one")
        state = rules.apply(state, checked.append(wire, state.mover), now)
    return state
