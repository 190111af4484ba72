"""Plays a party's games on the chain: moves in its turn, and claims a timeout when the opponent's clock runs out."""

from dataclasses import dataclass, replace
from typing import Any, Final

from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import AnyMove, Concede, Move, Prove, Side
from tiebreak.protocol.game.state import GameState
from tiebreak.protocol.packing import pack, unpack
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.events import Place
from tiebreak.protocol.parties.machine import Machine
from tiebreak.protocol.tags import Digest

MAX_MOVE_BYTES: Final = 1 << 17
_MOVE: Final = AnyMove()


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as seen by one of its sides."""

    game: PublicGame
    side: Side
    move: Move | None = None
    """The move that follows from the party's own run; None until it has been gathered."""

    @property
    def state(self) -> GameState:
        return self.game.state

    @property
    def answered(self) -> Move | None:
        """The opponent's last move."""
        return self.game.answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a party does in its turn. If `move` is None, it does nothing."""

    move: Move | None
    wait: int = 0
    """Seconds to wait before sending the move."""
    untried: bool = False
    """Whether to send the move even though it would revert; no honest party wants that."""


class Player(Machine):
    """A party that can be one of the sides in games."""

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self._gathered: dict[tuple[Digest, int], Move] = {}
        self._replies: dict[tuple[Digest, int], tuple[Reply, int]] = {}
        self._transcripts: dict[Digest, Transcript] = {}
        self._unsaid: dict[tuple[Digest, int], Move] = {}
        """Its own moves, by turn, that have not been sent as messages yet."""
        for place, data in self.records.items():
            match place:
                case ("move", bytes(game_id), int(number)) if ("said", game_id, number) not in self.records:
                    self._unsaid[Digest(game_id), number] = _move_in(data)

    def learn(self, event: e.Event) -> None:
        """Record gathered moves and the messages of games."""
        super().learn(event)
        match event:
            case e.Done(work=e.Gather() as work) if event.move is not None:
                self._gathered[work.game_id, work.sequence] = event.move
            case e.Done(work=e.Gather() as work):
                self.alarm(f"game {work.game_id.hex()[:8]}: {event.problem}", is_error=True)
            case e.MoveShown(game_id=game_id) if game_id in self.board.games:
                self._keep(self.board.games[game_id], event.wire)
            case e.Started():
                said = [(place[1], wire) for place, wire in self.records.items() if place[0] == "said"]
                for number, wire in said:  # repeat them: the last may have been lost in a crash
                    found = self.board.games.get(Digest(bytes(number))) if isinstance(number, bytes) else None
                    if found is not None and not found.is_over:
                        self.do(e.ShowMove(game_id=found.id, wire=wire))

    def side_in(self, game: PublicGame) -> Side:
        """Which side of a game this party is."""
        return Side.DEFENDER if game.job.job.trainer == self.address else Side.CHALLENGER

    def _play(self, game: PublicGame, side: Side) -> None:
        self._say(game, side)
        if game.is_stopped:
            waits = not game.is_over and game.job.status is JobStatus.SLASHED  # by another game or a report
            if waits and side is Side.CHALLENGER and self.reclaims(game):
                self.want(("reclaim", game.id), e.Reclaim(game_id=game.id))
            return
        if not self.plays(game):
            return
        view = GameView(game=game, side=side)
        if game.state.mover is side:
            self._in_turn(view)
        elif self.has_come(game.state.deadline + 1) and self.claims_timeout(view):
            self.want(("timeout", game.id, game.state.moves), e.ClaimTimeout(game_id=game.id))

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
        """Choose what to do in a turn; asked once per turn. By default, play the move from its own run at once."""
        return Reply(move=view.move)

    def claims_timeout(self, view: GameView) -> bool:  # noqa: ARG002
        """Decide whether to claim that the opponent's clock ran out."""
        return True

    def reclaims(self, game: PublicGame) -> bool:
        """Decide whether to reclaim the stake of a game whose job was slashed."""
        return self.plays(game)

    def wire(self, view: GameView, move: Move) -> bytes | None:
        """The signed message to send along with a move, or None to send none, as after a move that went unsaid."""
        try:
            return self.transcript(view.game).seal(move, self.key)
        except VerificationError:
            return None

    # ------------------------------------------------------------------ a turn

    def _in_turn(self, view: GameView) -> None:
        turn = (view.game.id, view.state.moves)
        place: Place = ("move", *turn)
        untried = False
        if place in self.records:
            move: Move | None = _move_in(self.records[place])
        else:
            found = self._reply_once(turn, view)
            if found is None:
                return
            (reply, at), move = found, found[0].move
            if move is None or not self.has_come(at):
                return
            untried = reply.untried
        assert move is not None
        # A proof counts only in a later second than its seal, so it waits where blocks can share a second.
        if isinstance(move, Prove) and self.next_slot() <= view.state.last and not self.has_come(view.state.last + 1):
            return
        if self.now > view.state.deadline and not untried:
            self.alarm(f"game {view.game.id.hex()[:8]}: the clock ran out before the move was made", is_error=True)
            return
        if place not in self.records:
            self._unsaid[turn] = move
        if not untried:
            self.record(place, pack(_MOVE.pack(move)))  # from here on, the party never makes another move in this turn
        self.want(
            place,
            e.MakeMove(game_id=view.game.id, sequence=turn[1], move=move),
            deadline=view.state.deadline,
            untried=untried,
        )

    def _reply_once(self, turn: tuple[Digest, int], view: GameView) -> tuple[Reply, int] | None:
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
            self.begin(e.Gather(game_id=turn[0], sequence=turn[1]))
            return None
        self._replies[turn] = (reply, self.now + reply.wait)
        return self._replies[turn]

    # ------------------------------------------------------------------ messages

    def transcript(self, game: PublicGame) -> Transcript:
        """The messages of a game that this party has, from both sides."""
        if game.id not in self._transcripts:
            start = rules.start(game.job.job, game.head.head, game.id, game.started)
            found = Transcript(start, domain=self.domain, challenger=game.challenger)
            self._transcripts[game.id] = found
            while (kept := self.records.get(("wire", game.id, found.messages))) is not None:
                found.append(kept)
        return self._transcripts[game.id]

    def _keep(self, game: PublicGame, wire: bytes) -> bool:
        transcript = self.transcript(game)
        try:
            transcript.append(wire)
        except VerificationError:
            return False  # anybody can send anything; only moves on the board count
        self.record(("wire", game.id, transcript.messages - 1), wire)
        return True

    def _say(self, game: PublicGame, side: Side) -> None:
        """Send the messages for those of its moves that count by now.

        They are not sent earlier: a proof must not be shown before its seal counts.
        """
        for turn, move in list(self._unsaid.items()):
            number = turn[1]
            if turn[0] != game.id or number >= len(game.moves) or game.moves[number] != move:
                continue
            del self._unsaid[turn]
            wire = self.wire(GameView(game=game, side=side), move)
            if wire is not None:
                self._keep(game, wire)
                self.do(e.ShowMove(game_id=game.id, wire=self.record(("said", *turn), wire)))


def _move_in(data: bytes) -> Move:
    found: Move = _MOVE.unpack("move", unpack(data, MAX_MOVE_BYTES))
    return found
