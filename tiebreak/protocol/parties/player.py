"""Plays a party's games: talks as long as a game's sides may, and then moves on the chain and claims timeouts.

While they talk, the sides move by signed messages, and the defender acknowledges the state before a proof. A party
takes the talk to the chain where it must: it concedes or proves there, and when the talking phase is almost over, it
enters the newest state that its opponent has signed. From there, or if the chain is not on the line of the talk, it
makes its moves on the chain and signs nothing more.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.messages import MAX_MESSAGE_BYTES, Transcript, leads_on
from tiebreak.protocol.game.moves import AnyMove, Concede, Move, Phase, Prove, Side
from tiebreak.protocol.game.snapshot import Fork, Snapshot
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.events import Place
from tiebreak.protocol.parties.machine import PartyMachine
from tiebreak.protocol.parties.terms import ENTERING
from tiebreak.protocol.tags import Digest

PATIENCE_BLOCKS: Final = 2
"""Blocks without an answer after which a message is repeated, and then after twice as many, and so on."""
_MOVE: Final = AnyMove()
_UNTIED: Final = "expected a run that ties to its signed head, got another; put its files back and restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as seen by one of its sides."""

    game: PublicGame
    side: Side
    move: Move | None = None
    """The move that follows from the party's own run; None until it has been gathered."""
    talk: Transcript | None = None
    """The messages so far, if the turn is one in the talk; None for a turn on the chain."""

    @property
    def state(self) -> GameState:
        return self.game.state if self.talk is None else self.talk.state

    @property
    def answered(self) -> Move | None:
        """The opponent's last move."""
        line = self.game.moves if self.talk is None else self.talk.line
        return line[-1] if line else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A party's answer in its turn. If `move` is None, it does nothing."""

    move: Move | None
    wait: int = 0
    """Seconds to wait before sending the move."""
    untried: bool = False
    """Whether to send the move even though it would revert; no honest party wants that."""


Turn = tuple[Digest, int, Digest, bool]
"""A game, the number of moves so far, the snapshot that they led to, and whether the turn is one in the talk."""


class Player(PartyMachine):
    """A party that can be one of the sides in games."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._gathered: dict[Turn, Move] = {}
        self._replies: dict[Turn, tuple[Reply, int]] = {}
        self._transcripts: dict[Digest, Transcript] = {}
        self._repeats: dict[Digest, tuple[int, int, int]] = {}
        """The messages of each talk at the last look, the instant to repeat some, and the wait before that."""
        self._unsaid: dict[tuple[Digest, int], Move] = {}
        """Its own moves on the chain, by game and number, that have not been sent as messages yet."""
        for place, data in self.records.items():
            match place:
                case ("move", bytes(game_id), int(number), _) if ("said", game_id, number) not in self.records:
                    self._unsaid[Digest(game_id), number] = _move_in(data)

    def learn(self, event: e.Event) -> None:
        """Record gathered moves, and the messages and receipts of games."""
        super().learn(event)
        match event:
            case e.Done(work=e.Gather() as work) if event.move is not None:
                self._gathered[work.game_id, work.sequence, work.snapshot, work.said is not None] = event.move
            case e.Done(work=e.Gather() as work):
                self.alarm(f"game {work.game_id.hex()[:8]}: {event.problem}", is_error=True)
            case e.MoveShown(game_id=game_id) if game_id in self.board.games:
                self._keep(self.board.games[game_id], event.wire)
            case e.ReceiptShown(game_id=game_id) if game_id in self.board.games:
                self._keep_receipt(self.board.games[game_id], event.receipt)
            case e.Started():
                for game in self.board.games.values():  # repeat all: the last may have been lost in a crash
                    if not game.is_over:
                        with self.apart(name_of(game)):
                            self._say_again(game)

    def side_in(self, game: PublicGame) -> Side:
        """The side of a game that this party is."""
        return Side.DEFENDER if game.job.job.trainer == self.address else Side.CHALLENGER

    def play(self, game: PublicGame, side: Side) -> None:
        """Do what is due in a game. Nothing that it raises keeps the other games from their moves."""
        with self.apart(name_of(game)):
            if game.is_lost:
                self.alarm(f"{name_of(game)}: where it stands on the chain cannot be known here", is_error=True)
            self._play(game, side)

    def _play(self, game: PublicGame, side: Side) -> None:
        if not game.job.job.talk_time:
            self._say_moves(game, side)
        if game.is_stopped:
            waits = not game.is_over and game.job.status is JobStatus.SLASHED  # by another game or a report
            if waits and side is Side.CHALLENGER and self.reclaims(game):
                self.want(("reclaim", game.id), tx.Reclaim(game_id=game.id))
            return
        if not self.plays(game) or self._talk(game, side):
            return
        view = GameView(game=game, side=side)
        if game.state.mover is side:
            self._in_turn(view)
        elif self.has_come(game.state.deadline + 1) and self.claims_timeout(view):
            self.want(("timeout", game.id, game.state.moves), tx.ClaimTimeout(game_id=game.id))

    # ------------------------------------------------------------------ decisions

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        """Decide whether to play one of its own games at all."""
        return True

    def concedes(self, view: GameView) -> bool:  # noqa: ARG002
        return False

    def answers(self, view: GameView) -> bool:  # noqa: ARG002
        """Decide whether to look for a move in its turn. If not, its clock runs out."""
        return True

    def reply(self, view: GameView) -> Reply:
        """Choose what to do in a turn; asked once per turn. By default, play the move from its own run at once.

        A defender with nothing to show leaves the rest of the clock to its owner, who may have a backup.
        """
        if view.side is Side.CHALLENGER or not isinstance(view.move, Concede):
            return Reply(move=view.move)
        self.alarm(f"{name_of(view.game)}: {_UNTIED}", is_error=True)
        return Reply(move=None)

    def acknowledges(self, view: GameView) -> bool:  # noqa: ARG002
        """Decide whether a defender signs the state before a proof, so that the proof can enter with it."""
        return True

    def enters(self, view: GameView) -> bool:  # noqa: ARG002
        """Decide whether to enter the newest state that the opponent has signed, when the talk is almost over."""
        return True

    def claims_timeout(self, view: GameView) -> bool:  # noqa: ARG002
        """Decide whether to claim that the opponent's clock ran out."""
        return True

    def reclaims(self, game: PublicGame) -> bool:
        """Decide whether to reclaim the stake of a game whose job was slashed."""
        return self.plays(game)

    def wire(self, view: GameView, move: Move) -> bytes | None:
        """The signed message to send along with a move, or None to send none, as after a move that went unsaid."""
        try:
            return self.transcript(view.game).sign(move, self.key)
        except VerificationError:
            return None

    # ------------------------------------------------------------------ a turn

    def _in_turn(self, view: GameView) -> None:
        """Make the move that is due on the chain, or wait for what it needs: a replay, or a later block."""
        turn = _turn_in(view)
        place: Place = ("move", *turn[:3])
        if place in self.records:
            reply, at = Reply(move=_move_in(self.records[place])), 0
        elif (found := self._reply_once(turn, view)) is not None:
            reply, at = found
        else:
            return
        move, untried = reply.move, reply.untried
        if move is None or not self.has_come(at):
            return
        # The next block is to take a proof. The wait for it, a clock, outlasts every block that may vanish.
        ripe = view.state.earliest
        if isinstance(move, Prove) and self.next_slot() < ripe and not self.has_come(ripe - 1):
            return
        if self.now > view.state.deadline and not untried:
            self.alarm(f"game {view.game.id.hex()[:8]}: the clock ran out before the move was made", is_error=True)
            return
        if place not in self.records:
            self._unsaid[turn[:2]] = move
        if not untried:
            self.record(place, pack(_MOVE.pack(move)))  # from here on, the party never makes another move in this turn
        making = tx.MakeMove(game_id=view.game.id, sequence=turn[1], move=move)
        self.want(place, making, deadline=view.state.deadline, untried=untried)

    def _reply_once(self, turn: Turn, view: GameView) -> tuple[Reply, int] | None:
        """The reply for this turn and when to send it; None while the move is still being gathered."""
        if turn in self._replies:
            return self._replies[turn]
        if self.concedes(view):
            reply = Reply(move=Concede())
        elif not self.answers(view):
            reply = Reply(move=None)
        elif turn in self._gathered:
            reply = self.reply(replace(view, move=self._gathered[turn]))
        else:
            game_id, sequence, snapshot, is_talk = turn
            said = view.talk.line if is_talk and view.talk is not None else None
            self.begin(e.Gather(game_id=game_id, sequence=sequence, snapshot=snapshot, said=said))
            return None
        self._replies[turn] = (reply, self.now + reply.wait)
        return self._replies[turn]

    # ------------------------------------------------------------------ the talk

    def _talk(self, game: PublicGame, side: Side) -> bool:
        """Continue the talk, or enter its newest state. Returns False if the party should now move on the chain."""
        if evidence := self.records.get(("fork", game.id)):
            self.want(("forked", game.id), tx.ReportFork(fork=Fork.decode(evidence)))
        chain, talk = game.state, self.transcript(game)
        view = GameView(game=game, side=side, talk=talk)
        if not chain.talks(self.now) or not talk.passed(chain):
            return self._may_still_prove(view)
        if side is Side.DEFENDER and talk.state.phase is Phase.PROVE and self.acknowledges(view):
            self._acknowledge(view)
        if not talk.is_closed and self._speaks(view):
            return True
        found = talk.latest(side.other)
        if found is None or found[0].moves <= chain.moves or not self.enters(view):
            return False
        place: Place = ("enter", game.id, found[0].moves)
        self.want(place, tx.Enter.of(found[0], found[1].signature), deadline=chain.last - 1)
        self.has_come(chain.last)
        return not self.is_given_up(place)

    def _speaks(self, view: GameView) -> bool:
        """Send the message that is due, or wait for an answer. Returns False once the game has to go to the chain."""
        assert view.talk is not None
        state, chain = view.state, view.game.state
        is_over = self.has_come(chain.last - self.pace.sending(ENTERING if state.mover is view.side else 1))
        move = self._due_in_talk(view)
        if isinstance(move, Concede):
            self.want(("concede", view.game.id), tx.MakeMove(game_id=view.game.id, sequence=chain.moves, move=move))
            return True
        if isinstance(move, Prove):
            if (proves := self._proves(view, move)) is not None:
                return proves
        elif move is not None and leads_on(state, move) is None:
            return False  # a message cannot end a game
        elif move is not None and not is_over and (wire := self.wire(view, move)) is not None:
            self._keep(view.game, wire)
            self.do(e.ShowMove(game_id=view.game.id, wire=self.record(("said", view.game.id, state.moves), wire)))
            return True
        self._repeat(view)
        return not is_over

    def _proves(self, view: GameView, move: Prove) -> bool | None:
        """Prove from the state that the defender has acknowledged. None if it has not; False if that is refused."""
        assert view.talk is not None
        if (signed := view.talk.latest(Side.DEFENDER)) is None or signed[0].moves < view.state.moves:
            return False if view.game.state.moves == view.state.moves else None
        place: Place = ("prove", view.game.id, view.state.moves)
        proof = tx.EnterAndProve.of(signed[0], signed[1].signature, move)
        # A party that sees it and seals its answer can prove that a clock later.
        self.want(place, proof, deadline=self.now + view.game.job.job.clock)
        return not self.is_given_up(place)

    def _due_in_talk(self, view: GameView) -> Move | None:
        found = self._reply_once(_turn_in(view), view) if view.state.mover is view.side else None
        return found[0].move if found is not None and self.has_come(found[1]) else None

    def _may_still_prove(self, view: GameView) -> bool:
        """Go on proving from an acknowledged state when the talk is over: that is legal until the verdict."""
        assert view.talk is not None
        if view.side is Side.DEFENDER or view.talk.is_closed or view.state.phase is not Phase.PROVE:
            return False
        move = self._due_in_talk(view)
        return isinstance(move, Prove) and bool(self._proves(view, move))

    def _acknowledge(self, view: GameView) -> None:
        assert view.talk is not None
        place: Place = ("acknowledged", view.game.id, view.state.moves)
        if place not in self.records:
            self.do(e.ShowReceipt(game_id=view.game.id, receipt=self.record(place, view.talk.receipt(self.key))))

    def _repeat(self, view: GameView) -> None:
        """Resend the last messages after a while without an answer, since they may have been lost."""
        assert view.talk is not None
        game_id, heard = view.game.id, view.talk.messages
        count, at, wait = self._repeats.get(game_id, (-1, 0, 0))
        if count != heard:
            wait = PATIENCE_BLOCKS * self.pace.block_seconds
        elif self.has_come(at):
            for wire in view.talk.unanswered(view.side):
                self.do(e.ShowMove(game_id=game_id, wire=wire))
            if receipt := self.records.get(("acknowledged", game_id, view.state.moves)):
                self.do(e.ShowReceipt(game_id=game_id, receipt=receipt))
            wait *= 2
        else:
            return
        self._repeats[game_id] = (heard, self.now + wait, wait)
        self.wake(self.now + wait)

    # ------------------------------------------------------------------ messages

    def talk_of(self, game: PublicGame, sequence: int, snapshot: bytes) -> tuple[GameState, list[Move]]:
        """The state of this snapshot, and the line that led to it, as this side of a game has it from the talk.

        Raises `VerificationError` if it has not heard of such a state.
        """
        is_side = self.address in (game.challenger, game.job.job.trainer)
        state = self.transcript(game).stood(sequence, snapshot) if is_side else None
        if state is None:
            raise VerificationError("expected a state of the talk, got another")
        return state, list(self.transcript(game).line[:sequence])

    def transcript(self, game: PublicGame) -> Transcript:
        """All messages of a game that this party has, its own and the opponent's."""
        if game.id not in self._transcripts:
            found = Transcript(game.first_state, domain=self.domain, challenger=game.challenger)
            self._transcripts[game.id] = found
            while (kept := self.records.get(("wire", game.id, found.messages))) is not None:
                found.append(kept)
            for number in range(found.state.moves + 1):
                if (receipt := self.records.get(("receipt", game.id, number))) is not None:
                    found.acknowledge(receipt)
        return self._transcripts[game.id]

    def _keep(self, game: PublicGame, wire: bytes) -> None:
        transcript = self.transcript(game)
        try:
            transcript.append(wire)
        except VerificationError:  # anybody can send anything; only moves on the board count
            self._look_for_fork(game)
        else:
            self.record(("wire", game.id, transcript.messages - 1), wire)

    def _keep_receipt(self, game: PublicGame, receipt: bytes) -> None:
        transcript, other = self.transcript(game), self.side_in(game).other
        before = transcript.latest(other)
        with suppress(VerificationError):
            transcript.acknowledge(receipt)
        if (after := transcript.latest(other)) is not None and after != before:
            self.record(("receipt", game.id, after[0].moves), receipt)
        self._look_for_fork(game)

    def _look_for_fork(self, game: PublicGame) -> None:
        """Keep the evidence that the opponent signed two states in one place."""
        fork, is_defender = self.transcript(game).fork, self.side_in(game) is Side.DEFENDER
        with suppress(VerificationError):
            if fork is not None:
                fork.verify(self.domain, game.challenger if is_defender else game.job.job.trainer)
                self.record(("fork", game.id), fork.encode())

    def _say_again(self, game: PublicGame) -> None:
        for place, data in list(self.records.items()):
            match place:
                case ("said", game.id, _):
                    self.do(e.ShowMove(game_id=game.id, wire=data))
                case ("acknowledged", game.id, _):
                    self.do(e.ShowReceipt(game_id=game.id, receipt=data))

    def _say_moves(self, game: PublicGame, side: Side) -> None:
        """Send the messages for those of its moves that count by now, where there is no talk.

        They are not sent earlier: a proof must not be shown before its seal counts.
        """
        for turn, move in list(self._unsaid.items()):
            number = turn[1]
            if turn[0] != game.id or number >= len(game.moves) or game.moves[number] != move:
                continue
            del self._unsaid[turn]
            if (wire := self.wire(GameView(game=game, side=side), move)) is not None:
                self._keep(game, wire)
                self.do(e.ShowMove(game_id=game.id, wire=self.record(("said", *turn), wire)))


def name_of(game: PublicGame) -> str:
    return f"game {game.id.hex()[:8]}"


def _turn_in(view: GameView) -> Turn:
    return (view.game.id, view.state.moves, Snapshot.of(view.state).id, view.talk is not None)


def _move_in(data: bytes) -> Move:
    found: Move = _MOVE.unpack("move", unpack(data, MAX_MESSAGE_BYTES))
    return found
