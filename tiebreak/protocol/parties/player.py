"""How a party plays games on the chain: a move in its turn, a claim when the other's clock has run out."""

from dataclasses import dataclass, replace
from typing import Any, Final

from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.game.messages import Transcript, seal
from tiebreak.protocol.game.moves import Concede, Move, Prove, Side, unpack_move
from tiebreak.protocol.game.rules import GameState
from tiebreak.protocol.packing import Fields, pack, unpack
from tiebreak.protocol.parties.board import JobStatus, PublicGame
from tiebreak.protocol.parties.events import (
    ClaimTimeout,
    Done,
    Event,
    Gather,
    MakeMove,
    MoveShown,
    Place,
    Reclaim,
    ShowMove,
    Started,
)
from tiebreak.protocol.parties.machine import Machine
from tiebreak.protocol.tags import Digest

MAX_MOVE_BYTES: Final = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class GameView:
    """A game as one of its two sides sees it in its turn."""

    game: PublicGame
    side: Side
    move: Move | None = None
    """What follows from its own run; None before that was gathered."""

    @property
    def state(self) -> GameState:
        """The state of the game."""
        return self.game.state

    @property
    def answered(self) -> Move | None:
        """The opponent's last move."""
        return self.game.answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a party does in its turn. `move` None: nothing."""

    move: Move | None
    wait: int = 0
    """Seconds before it is sent."""
    untried: bool = False
    """Whether the move is sent though it would revert; no honest party wants that."""


class Player(Machine):
    """A party that can be one side of games."""

    def __init__(self, **known: Any) -> None:
        """As `Machine`."""
        super().__init__(**known)
        self._gathered: dict[tuple[Digest, int], Move] = {}
        self._replies: dict[tuple[Digest, int], tuple[Reply, int]] = {}
        self._transcripts: dict[Digest, Transcript] = {}
        self._unsaid: dict[tuple[Digest, int], Move] = {}
        """Moves of its own, by turn, that were not sent as messages yet."""
        for place, data in self.records.items():
            match place:
                case ("move", bytes(game_id), int(number)) if ("said", game_id, number) not in self.records:
                    self._unsaid[Digest(game_id), number] = move_in(data)

    def learn(self, event: Event) -> None:
        """Moves that were found, and messages of games."""
        super().learn(event)
        match event:
            case Done(work=Gather() as work) if event.move is not None:
                self._gathered[work.game_id, work.sequence] = event.move
            case Done(work=Gather() as work):
                self.alarm(f"game {work.game_id.hex()[:8]}: {event.problem}", is_error=True)
            case MoveShown(game_id=game_id) if game_id in self.board.games:
                game = self.board.games[game_id]
                self._keep(game, event.wire, self.side_in(game).other)
            case Started():
                said = [(place[1], wire) for place, wire in self.records.items() if place[0] == "said"]
                for number, wire in said:  # the last of them may have been lost with the machine
                    found = self.board.games.get(Digest(bytes(number))) if isinstance(number, bytes) else None
                    if found is not None and not found.is_over:
                        self.do(ShowMove(game_id=found.id, wire=wire))

    def side_in(self, game: PublicGame) -> Side:
        """Which side of a game it is."""
        return Side.DEFENDER if game.job.job.trainer == self.address else Side.CHALLENGER

    def _play(self, game: PublicGame, side: Side) -> None:
        """What ought to be under way in a game."""
        self._say(game, side)
        if game.is_stopped:
            waits = not game.is_over and game.job.status is JobStatus.SLASHED  # for another game's sake
            if waits and side is Side.CHALLENGER and self.reclaims(game):
                self.want(("reclaim", game.id), Reclaim(game_id=game.id))
            return
        if not self.plays(game):
            return
        view = GameView(game=game, side=side)
        if game.state.mover is side:
            self._in_turn(view)
        elif self.has_come(game.state.deadline + 1) and self.claims_timeout(view):
            self.want(("timeout", game.id, game.state.moves), ClaimTimeout(game_id=game.id))

    # ------------------------------------------------------------------ decisions

    def plays(self, game: PublicGame) -> bool:  # noqa: ARG002
        """Whether it plays a game of its own at all."""
        return True

    def concedes(self, view: GameView) -> bool:  # noqa: ARG002
        """Whether it gives up."""
        return False

    def answers(self, view: GameView) -> bool:  # noqa: ARG002
        """Whether it looks for a move in its turn; if not, its clock runs out."""
        return True

    def reply(self, view: GameView) -> Reply:
        """What to do in its turn, asked once a turn: by default the move that follows from its own run, at once."""
        return Reply(move=view.move)

    def claims_timeout(self, view: GameView) -> bool:  # noqa: ARG002
        """Whether to claim that the opponent's clock ran out."""
        return True

    def reclaims(self, game: PublicGame) -> bool:
        """Whether to take a stake back."""
        return self.plays(game)

    def wire(self, view: GameView, move: Move) -> bytes | None:
        """The signed message that goes with a move; None: it sends none."""
        return seal(self.transcript(view.game).next_message(move), self.domain, self.key)

    # ------------------------------------------------------------------ a turn

    def _in_turn(self, view: GameView) -> None:
        turn = (view.game.id, view.state.moves)
        place: Place = ("move", *turn)
        untried = False
        if place in self.records:
            move: Move | None = move_in(self.records[place])
        else:
            found = self._reply_once(turn, view)
            if found is None:
                return
            (reply, at), move = found, found[0].move
            if move is None or not self.has_come(at):
                return
            untried = reply.untried
        assert move is not None
        # A proof counts only in a later second than its seal: chains whose blocks share a second have to wait for one.
        if isinstance(move, Prove) and self.next_slot() <= view.state.last and not self.has_come(view.state.last + 1):
            return
        if self.now > view.state.deadline and not untried:
            self.alarm(f"game {view.game.id.hex()[:8]}: the clock ran out before the move was made", is_error=True)
            return
        if place not in self.records:
            self._unsaid[turn] = move
        if not untried:
            self.record(place, journal_move(move))  # from here on, in this turn, nothing else is ever said
        self.want(
            place,
            MakeMove(game_id=view.game.id, sequence=turn[1], move=move),
            deadline=view.state.deadline,
            untried=untried,
        )

    def _reply_once(self, turn: tuple[Digest, int], view: GameView) -> tuple[Reply, int] | None:
        """The reply of this turn and when to send it; None while its evidence is being gathered."""
        if turn in self._replies:
            return self._replies[turn]
        if self.concedes(view):
            reply = Reply(move=Concede())
        elif not self.answers(view):
            reply = Reply(move=None)
        elif turn in self._gathered:
            reply = self.reply(replace(view, move=self._gathered[turn]))
        else:
            self.begin(Gather(game_id=turn[0], sequence=turn[1]))
            return None
        self._replies[turn] = (reply, self.now + reply.wait)
        return self._replies[turn]

    # ------------------------------------------------------------------ messages

    def transcript(self, game: PublicGame) -> Transcript:
        """The messages of a game that it has, from either side."""
        if game.id not in self._transcripts:
            job = game.job.job
            found = self._transcripts[game.id] = Transcript(
                job_id=job.id, game_id=game.id, domain=self.domain, defender=job.trainer, challenger=game.challenger
            )
            while (kept := self.records.get(("wire", game.id, found.messages))) is not None:
                found.append(kept[1:], Side(kept[0]))
        return self._transcripts[game.id]

    def _keep(self, game: PublicGame, wire: bytes, sender: Side) -> bool:
        transcript = self.transcript(game)
        try:
            transcript.append(wire, sender)
        except VerificationError:
            return False  # anybody can send anything; what counts stands on the board
        self.record(("wire", game.id, transcript.messages - 1), bytes([sender]) + wire)
        return True

    def _say(self, game: PublicGame, side: Side) -> None:
        """Send the messages of its moves that count now.

        Not before: a message that shows a proof whose seal does not count yet would show too much.
        """
        for turn, move in list(self._unsaid.items()):
            number = turn[1]
            if turn[0] != game.id or number >= len(game.moves) or game.moves[number] != move:
                continue
            del self._unsaid[turn]
            wire = self.wire(GameView(game=game, side=side), move)
            if wire is not None:
                self._keep(game, wire, side)
                self.do(ShowMove(game_id=game.id, wire=self.record(("said", *turn), wire)))


def journal_move(move: Move) -> bytes:
    """A move as it lies in a journal: its kind, and its body as in a message."""
    return pack([int(move.KIND), move.pack()])


def move_in(data: bytes) -> Move:
    """The inverse of `journal_move`. Raises `VerificationError`."""
    fields = Fields("move", unpack(data, MAX_MOVE_BYTES), 2)
    return unpack_move(fields.uint(8), fields.next()[1])
