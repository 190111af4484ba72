"""How a party plays a game on the chain: moves in its turn, claims of timeouts, and the signed messages beside them."""

from dataclasses import dataclass

from tiebreak.protocol.chain import ChainError, JobStatus, Reverted
from tiebreak.protocol.game.messages import seal
from tiebreak.protocol.game.moves import Move, Prove, Side
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.game.sides import Party
from tiebreak.sim.world import calls
from tiebreak.sim.world.agents.agent import PASSING, Agent, Process
from tiebreak.sim.world.board import PublicGame
from tiebreak.sim.world.calls import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a party does in its turn. `move` None: silence."""

    move: Move | None
    wait: int = 0
    """Seconds before it is sent."""
    spam: tuple[Call, ...] = ()
    """Sent before it, untried."""
    untried: bool = False
    """Whether the move is sent though it would revert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as one of its two parties sees it."""

    game: PublicGame
    side: Side
    party: Party
    """What the party would honestly move by: `tiebreak.protocol.game.sides`'s, over its own run."""

    @property
    def state(self) -> GameState:
        """The state of the game."""
        return self.game.state

    @property
    def answered(self) -> Move | None:
        """The opponent's last move."""
        return self.game.answered


class Player(Agent):
    """A party that can be one side of a game."""

    def reply(self, game: GameView) -> Reply:
        """What to do in its turn: by default the move that follows from its own run, at once."""
        return Reply(move=game.party.move(game.state, game.answered))

    def claims_timeout(self, game: GameView) -> bool:  # noqa: ARG002  # for who does not
        """Whether to claim that the opponent's clock ran out."""
        return True

    def wire(self, game: GameView, move: Move) -> bytes | None:
        """The signed message that goes with a move that stands in a block; None: it sends none."""
        message = self.world.mail.transcript(game.game).next_message(move)
        return seal(message, self.world.domain, self.key)

    def play(self, view: GameView) -> Process:
        """Play a game to its end, or until no move counts any more."""
        while not view.game.is_stopped:
            if view.state.mover is view.side:
                yield from self._in_turn(view)
            else:
                yield from self._out_of_turn(view)

    # ------------------------------------------------------------------ inner workings

    def _in_turn(self, view: GameView) -> Process:
        before, reply = view.state, self.reply(view)

        def moved_on() -> bool:
            return view.game.is_stopped or view.state is not before

        if reply.wait and (yield from self.until(moved_on, self.world.now + reply.wait)):
            return
        for call in reply.spam:
            self.world.submit(self, call, untried=True)
        if reply.move is None:
            yield from self.until(moved_on)
            return
        refusal = yield from self._send_move(view, reply.move, untried=reply.untried)
        if refusal is None:
            return
        if isinstance(refusal, Reverted) and refusal.name in PASSING:
            if (yield from self.until(moved_on, self.world.next_block)):
                return
            call = calls.make_move(before, reply.move)
            if self.world.stands_alone(self, call):  # what was in its way did not come, and need never come
                yield from self._send_move(view, reply.move, untried=True)
                return
            if self.world.now <= before.deadline:
                return
        yield from self.until(moved_on)

    def _send_move(self, view: GameView, move: Move, *, untried: bool) -> Process:
        """Make a move; what it was refused with, or None. A proof waits for a later second than its seal's."""
        state, side = view.state, view.side
        if isinstance(move, Prove) and self.world.next_block <= state.last:
            yield from self.sleep(state.last + 1 - self.world.now)
        try:
            yield from self.send(calls.make_move(state, move), untried=untried)
        except ChainError as error:
            return error
        wire = self.wire(view, move)
        if wire is not None:
            self.world.mail.deliver(view.game, wire, side, self.account)
        return None

    def _out_of_turn(self, view: GameView) -> Process:
        before = view.state

        def moved_on() -> bool:
            return view.game.is_stopped or view.state is not before

        if (yield from self.until(moved_on, before.deadline + 1)):
            return
        if not self.claims_timeout(view):
            yield from self.until(moved_on)
        else:
            yield from self.press(calls.timeout(view.game.id))

    def reclaim(self, game: PublicGame) -> Process:
        """Take back the stake of a game whose job was slashed by somebody else's."""
        call = calls.reclaim(game.id)
        yield from self.insist(call, lambda: not game.is_over and game.job.status is JobStatus.SLASHED)
