"""Sides of a game that talk to no good end: silent, with two tongues, or about states that have been left behind.

In these games the sides may talk for half an hour if the terms say nothing else. Whatever is said, entered or held
back, a false run is convicted and a challenge without ground is lost: an honest side signs each state once, and only
what the rules lead to, and it goes on from whatever stands on the chain.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from tiebreak.lab.sim.adversaries.base import EARLY, Catch, between, challenger, false_sum, last_call, one_of, trainer
from tiebreak.lab.sim.adversaries.challengers import Strolling, Wanderer
from tiebreak.lab.sim.adversaries.openings import other_nodes, scene_of
from tiebreak.lab.sim.world.agents import Agent, Process, TrainerAgent
from tiebreak.lab.sim.world.game import Cast
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.game.messages import Message, Transcript, leads_on, open_wire, sign
from tiebreak.protocol.game.moves import Concede, Move, Opening, Phase, Select, Side
from tiebreak.protocol.game.sides import Defender, choose
from tiebreak.protocol.game.snapshot import SignedStanding, Standing
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.parties.player import GameView, Player, Reply

TALK: Final = 1800
COPIES: Final = 3
"""The number of copies of a statement that must arrive: the post loses some."""


def with_a_talk(cast: Cast, _rng: Random) -> None:
    """Lets the sides of games talk, if the terms do not."""
    if not cast.terms.talk_time:
        cast.terms = replace(cast.terms, talk_time=TALK)


def while_they_talk(agent: Agent, game: PublicGame, ready: Callable[[], object]) -> Process:
    """Wait until `ready()`. Returns whether it is while the sides of the game may still talk."""
    while not game.is_stopped and game.state.talks(agent.world.now):
        if ready():
            return True
        yield from agent.sleep(agent.world.block_seconds)
    return False


class Aside(Agent):
    """A side of a game that also does something else while the game is played."""

    def enter(self, game: PublicGame) -> None:
        super().enter(game)
        self.spawn(self.aside(game))

    def aside(self, game: PublicGame) -> Process:
        raise NotImplementedError


# ---------------------------------------------------------------- held back


class FallingSilent(Player):
    """Sends no messages from move `after` on, and plays on by transactions."""

    after: int

    def wire(self, view: GameView, move: Move) -> bytes | None:
        return None if view.state.moves >= self.after else super().wire(view, move)


class WithholdingTalker(FallingSilent, TrainerAgent):
    """Neither sends nor acknowledges messages from move `after` on."""

    def acknowledges(self, view: GameView) -> bool:
        return view.state.moves < self.after


class Unacknowledging(TrainerAgent):
    """Sends every move, but does not acknowledge the state in which the answer to its lie is sealed."""

    def acknowledges(self, view: GameView) -> bool:  # noqa: ARG002
        return False


class WithholdingChallenger(FallingSilent, Wanderer):
    """Challenges a true head, sends no messages from move `after` on, and plays random moves on the chain."""


class Unproving(Strolling):
    """Challenges a true head, seals an answer, and then neither proves nor sends anything."""

    def answers(self, view: GameView) -> bool:
        return view.state.phase is not Phase.PROVE


class Conceding(TrainerAgent):
    """Sends a concession as a message from move `after` on, and never as a transaction, which alone would count."""

    after: int

    def reply(self, view: GameView) -> Reply:
        plain = super().reply(view)
        if view.talk is None or view.state.moves < self.after:
            return plain
        wire = self.transcript(view.game).sign(Concede(), self.key)
        for _ in range(COPIES):
            self._deliver(view.game, wire)
        return Reply(move=None)


# ---------------------------------------------------------------- signed twice


class ForkingTrainer(Aside, TrainerAgent):
    """Acknowledges another state with the same number as one that it has signed."""

    after: int

    def aside(self, game: PublicGame) -> Process:
        talk = self.transcript(game)
        if (yield from while_they_talk(self, game, lambda: talk.state.moves > self.after)):
            state, _ = self.rng.choice(talk.signed(Side.DEFENDER))
            standing = Standing.of(replace(state, position=state.position ^ 1))
            receipt = SignedStanding.under(standing, self.key.sign(standing.digest(self.domain)))
            for _ in range(COPIES):
                self._send(game, receipt=receipt.encode())


class ForkingChallenger(Aside, Strolling):
    """Reads the trainer's openings after one selection, and then signs another selection in the same state."""

    after: int

    def aside(self, game: PublicGame) -> Process:
        if (yield from while_they_talk(self, game, lambda: self._second(game) is not None)):
            wire = self._second(game)
            for _ in range(COPIES if wire is not None else 0):
                self._deliver(game, wire or b"")

    def _second(self, game: PublicGame) -> bytes | None:
        """A conflicting message for the first of its selections from move `after` on."""
        talk = self.transcript(game)
        for state, other in forks_in(talk):
            if state.moves >= self.after:
                previous = Message.decode(open_wire(talk.wires[state.moves - 1])[0]).hash
                message = replace(talk.next_message(other), sequence=state.moves, previous=previous)
                return sign(message, self.domain, self.key, leads_on(state, other))
        return None


def forks_in(talk: Transcript) -> list[tuple[GameState, Select]]:
    """The states of a talk in which another node could have been selected, with a selection that plays on."""
    found = []
    for state, _ in talk.signed(Side.DEFENDER):
        shown, chosen = (talk.line[n] if n < len(talk.line) else None for n in (state.moves - 1, state.moves))
        if isinstance(shown, Opening) and isinstance(chosen, Select):
            ways = [choose(shown.nodes, n, chosen.seal) for n in range(len(shown.nodes)) if n != chosen.index]
            found += [(state, way) for way in ways if leads_on(state, way) is not None][:1]
    return found


# ---------------------------------------------------------------- entered at the wrong time


class Stale(Aside, WithholdingTalker):
    """Falls silent, and enters the oldest states that its opponent has signed, now or in the talk's last block."""

    late: bool

    def enters(self, view: GameView) -> bool:  # noqa: ARG002
        return False

    def aside(self, game: PublicGame) -> Process:
        talk = self.transcript(game)
        if (yield from while_they_talk(self, game, lambda: talk.state.moves >= self.after)):
            yield from self.sleep(last_call(self.world, game.state.last - 1) if self.late else 0)
            signed = talk.signed(Side.CHALLENGER)[:2]
            self.spam([Call.of(tx.Enter.of(state, found.signature)) for state, found in signed])


class EnteringTrainer(Aside, TrainerAgent):
    """Plays on the chain while it talks: enters each state of its opponent at once, and makes its moves there too."""

    def aside(self, game: PublicGame) -> Process:
        talk, defender = self.transcript(game), Defender(self.held()[1].oracle)
        while not game.is_stopped and game.state.talks(self.world.now):
            found = talk.latest(Side.CHALLENGER)
            if found is not None and found[0].moves > game.state.moves:
                self.spam([Call.of(tx.Enter.of(found[0], found[1].signature))])
            elif game.state.mover is Side.DEFENDER:
                self.spam([move_call(game.state, defender.move(game.state, game.answered))])
            yield from self.sleep(2 * self.world.block_seconds)


class TwoFaced(WithholdingTalker):
    """Opens its true commitments in messages until it falls silent, and others on the chain."""

    def reply(self, view: GameView) -> Reply:
        honest = super().reply(view)
        if honest.move is None or view.talk is not None:
            return honest
        other = other_nodes(scene_of(self, view.state, honest.move))
        if other is not None:
            self.spam([move_call(view.state, other)])
        return honest if other is None else Reply(move=None)


class TwoWays(Aside, Strolling):
    """Walks one way in the talk and another one on the chain, where it has entered an early state of the talk.

    If it goes `back`, it then enters a later state of the talk over the moves on the chain.
    """

    after: int
    back: bool

    def enters(self, view: GameView) -> bool:  # noqa: ARG002
        return False

    def aside(self, game: PublicGame) -> Process:
        talk = self.transcript(game)
        if not (yield from while_they_talk(self, game, lambda: talk.state.moves > 2 + self.after and forks_in(talk))):
            return
        state, other = forks_in(talk)[0]
        signed = next(found for at, found in talk.signed(Side.DEFENDER) if at is state)
        yield from self.attempt(Call.of(tx.Enter.of(state, signed.signature)))
        yield from self.attempt(move_call(state, other))
        yield from self.sleep(3 * self.world.block_seconds)
        latest, signed = talk.signed(Side.DEFENDER)[-1]
        if self.back:
            yield from self.attempt(Call.of(tx.Enter.of(latest, signed.signature)))


_STEPWISE: Final = false_sum(stepwise=True)
_LOST: Final = {Catch.RECOMPUTED, Catch.PADDING}
LAST: Final = 14
"""A talk about a partial sum has at least this many moves."""
# fmt: off
ADVERSARIES: Final = (
    trainer("silence in the talk", WithholdingTalker, "a challenger that waits for an answer until its time is over",
        before=with_a_talk, run=_STEPWISE, after=between(0, LAST)),
    trainer("acknowledgement withheld", Unacknowledging,
        "a sealed answer that nobody can prove, for want of a signature",
        before=with_a_talk, run=_STEPWISE),
    trainer("concession that is only said", Conceding, "a challenger that believes the game is over",
        before=with_a_talk, run=_STEPWISE, after=between(0, LAST)),
    trainer("two states acknowledged", ForkingTrainer, "a second state to go on from when the first is lost",
        {Catch.FORKED, Catch.RECOMPUTED}, before=with_a_talk, run=_STEPWISE, after=between(1, 3)),
    trainer("stale state entered", Stale, "a walk that begins anew as often as it comes to the lie",
        before=with_a_talk, run=_STEPWISE, after=between(4, LAST), late=one_of(False, True)),
    trainer("moves on the chain beside the talk", EnteringTrainer,
        "a challenger that loses its place between two games", before=with_a_talk, run=_STEPWISE),
    trainer("other openings on the chain than in the talk", TwoFaced, "an opening that is taken back",
        {Catch.TIMEOUT}, before=with_a_talk, run=_STEPWISE, after=between(0, EARLY)),
    challenger("challenge that falls silent in the talk", WithholdingChallenger, "the trainer's pay held up by a talk",
        _LOST, before=with_a_talk, after=between(0, EARLY)),
    challenger("answer sealed and not proved", Unproving, "a trainer that waits for a proof and misses its own time",
        {Catch.TIMEOUT}, before=with_a_talk),
    challenger("two ways in one talk", ForkingChallenger, "a look at what the trainer holds on every way",
        {Catch.FORKED}, before=with_a_talk, after=between(1, 3)),
    challenger("another way on the chain than in the talk", TwoWays, "a trainer that answers for the wrong place",
        _LOST, before=with_a_talk, after=between(2, 6), back=one_of(False)),
    challenger("state entered over moves on the chain", TwoWays, "a trainer that answers for the wrong place",
        _LOST, before=with_a_talk, after=between(4, 9), back=one_of(True)),
)
# fmt: on
