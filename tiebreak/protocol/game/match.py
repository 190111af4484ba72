"""Plays a game between two parties in one process. The caller chooses who judges the moves and how they travel."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Move, Phase, Select, Side
from tiebreak.protocol.game.sides import Party
from tiebreak.protocol.game.state import GameState

Judge = Callable[[GameState, Move], GameState]
"""Applies a move to a state. Raises `IllegalMove`."""
Courier = Callable[[Side, Move], tuple[Move, int]]
"""Delivers a side's move to the opponent. Returns the move as it arrived and the number of bytes sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A move with the states before and after it. `bytes` is the size of the message that carried it."""

    before: GameState
    move: Move
    after: GameState
    bytes: int = 0
    gas: int | None = None
    """Gas used by the move's transaction, if it was also played on the chain."""

    @property
    def by(self) -> Side:
        return self.before.mover


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A finished game, move by move."""

    moves: tuple[Played, ...]

    @property
    def final(self) -> GameState:
        return self.moves[-1].after

    @property
    def loser(self) -> Side:
        """The side that lost by the verdict."""
        assert self.final.verdict is not None  # a match is finished
        return self.final.verdict.winner.other

    @property
    def selections(self) -> tuple[tuple[GameState, Select], ...]:
        """The choices that led from the root of the run tree to the disputed leaf, each with the state before it."""
        return tuple((played.before, played.move) for played in self.moves if isinstance(played.move, Select))


def by_rules(clock: Callable[[], int]) -> Judge:
    """A judge that applies the rules of the game. `clock` returns the instant of each move, in seconds.

    A proof waits for as long as the rules say.
    """

    def judge(state: GameState, move: Move) -> GameState:
        return rules.apply(state, move, max(clock(), state.earliest if move.KIND is Phase.PROVE else 0))

    return judge


def by_hand(_side: Side, move: Move) -> tuple[Move, int]:
    """A courier for parties in one trusted process: it signs nothing and sends no bytes."""
    return move, 0


def moves(
    start: GameState, parties: Mapping[Side, Party], judge: Judge, courier: Courier = by_hand
) -> Iterator[Played]:
    """Play a game from a given state to its verdict, yielding each move as it is made.

    An exception from the judge (for a party's own bug, or a cheat) propagates. On a network the move would be refused
    instead, and the mover's clock would keep running.
    """
    state, answered = start, None
    while not state.is_over:
        answered, size = courier(state.mover, parties[state.mover].move(state, answered))
        before, state = state, judge(state, answered)
        yield Played(before=before, move=answered, after=state, bytes=size)


def play(start: GameState, *, defender: Party, challenger: Party, judge: Judge, courier: Courier = by_hand) -> Match:
    """Play a started game to its verdict. Raises all that `moves` raises."""
    return Match(moves=tuple(moves(start, {Side.DEFENDER: defender, Side.CHALLENGER: challenger}, judge, courier)))
