"""The public state of the board: its jobs, games and credits, derived from its transactions and events.

A Python referee runs beside each game. Every move that the contract accepts is also made there, and every move that the
contract refuses must be illegal there. `disagreements` lists the places where the two differ.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from tiebreak.protocol.chain import Event, GameRecord, Outcome, Receipt, Reverted
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import verify
from tiebreak.protocol.errors import IllegalMove, VerificationError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Concede, Move, Phase, Side
from tiebreak.protocol.game.snapshot import Standing
from tiebreak.protocol.game.state import GameState, Level, Reason
from tiebreak.protocol.parties import board
from tiebreak.protocol.parties.board import JobStatus, PublicGame, PublicJob, Seating, Slot
from tiebreak.protocol.tags import Digest, Tag, tagged_hash

_ENDINGS: Final = {
    "JobCancelled": JobStatus.CANCELLED,
    "JobSettled": JobStatus.SETTLED,
    "JobSlashed": JobStatus.SLASHED,
    "JobAbandoned": JobStatus.ABANDONED,
    "JobParted": JobStatus.PARTED,
}
BURN_ADDRESS: Final = Address(bytes(18) + b"\xde\xad")


TalkOf = Callable[[PublicGame, int, bytes], tuple[GameState, list[Move]]]
"""Finds a state and the line that led to it, by a game, its number of moves and its snapshot's id."""


Known = TypeVar("Known", PublicJob, PublicGame)
_LINES: Final = 1 << 16
"""From here on count the lines of games that begin with a vanished block, so that each has a number of its own."""


def _kept(value: Any) -> Any:
    """The value with containers, slots and seats of its own, however deep. Jobs and games stay the same objects."""
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_kept(item) for item in value]
    if isinstance(value, Slot | Seating):
        return replace(value, **{name: _kept(getattr(value, name)) for name in value.__slots__})
    return set(value) if isinstance(value, set) else value


class Board(board.Board):
    """The board's public state, kept up to date from transactions."""

    def __init__(self, domain: Domain, talk_of: TalkOf) -> None:
        super().__init__()
        self.disagreements: list[str] = []
        self._lines = _LINES
        self._gone: dict[Digest, PublicJob | PublicGame] = {}
        """What vanished with its block. The same object comes back, since scripts hold it."""
        self._domain, self._talk_of = domain, talk_of

    # ------------------------------------------------------------------ transactions

    def record(self, call: Call, applied: Receipt, now: int, theirs: GameRecord | None) -> None:
        """Follow a transaction that was executed. `theirs` is the contract's record of the game after it."""
        offered = call.job
        if offered is not None:
            self.jobs[offered.id] = self._same(PublicJob(job=offered, last_progress=now))
        self._advance(call, applied, now)
        for event in applied.events:
            self._follow(event, call, now)
        started = [event.values["gameId"] for event in applied.events if event.name == "GameStarted"]
        played = self.games.get(started[0] if started else call.game_id or Digest(b""))
        if played is None:
            return
        played.gas += applied.gas_used
        played.height = self.height
        if played.is_over and not played.ended:
            played.ended = now
        if theirs is not None:
            where = f"game {played.id.hex()[:8]} after {len(played.moves)} moves"
            self.disagreements += [
                f"{where}: {difference}"
                for difference in differences(played, theirs, judged=call.kind == "enterAndProve")
            ]

    def keep(self) -> Callable[[], None]:
        """Remember everything. The function that is returned makes it so again, and is called once."""
        own = {
            name: _kept(value)
            for name, value in vars(self).items()
            if name not in ("disagreements", "_gone", "_lines", "height")
        }
        known: list[PublicJob | PublicGame] = [*self.jobs.values(), *self.games.values()]
        fields = [(item, {slot: _kept(getattr(item, slot)) for slot in item.__slots__}) for item in known]

        def restore() -> None:
            self._gone |= {**self.jobs, **self.games}
            vars(self).update(own)
            for item, values in fields:
                for slot, value in values.items():
                    setattr(item, slot, value)
            for game_id in self.games:
                self._another_line(self.games[game_id])

        return restore

    def _same(self, made: Known) -> Known:
        """The object that vanished, as it is made again; else the new one."""
        found = self._gone.pop(made.id, None)
        if found is None:
            return made
        for slot in made.__slots__:
            setattr(found, slot, getattr(made, slot))
        if isinstance(found, PublicGame):
            self._another_line(found)
        return cast("Known", found)

    def _another_line(self, found: PublicGame) -> None:
        """Whoever remembers what it was shown in the game has to learn it anew."""
        found.entries = self._lines = self._lines + 1

    def refuse(self, call: Call, sender: Address, error: Reverted, now: int) -> None:
        """Follow a transaction that reverted.

        If it was a move made in the sender's turn, the Python referee must refuse it too.
        """
        if error.name in ("Panic", "Unknown"):
            self.disagreements.append(f"{call.kind}: expected an error of the contract, got {error}")
        found, move = self._game_of(call), call.move
        if found is not None and call.kind == "enter" and self._may_enter(found, call, sender, now):
            self.disagreements.append(f"{call.kind}: legal in Python, the contract said {error}")
        if found is None or move is None or found.is_stopped or found.mover() != sender or call.value:
            return  # refused for a reason that the referee's rules do not cover
        try:
            game.apply(found.state, move, now)
        except IllegalMove:
            return
        if call.kind == "prove" and error.name in ("WrongOpened", "WrongOpenedCount"):
            return  # only the contract gets to see again what was opened
        self.disagreements.append(f"{call.kind}: legal in Python, the contract said {error}")

    def _may_enter(self, found: PublicGame, call: Call, sender: Address, now: int) -> bool:
        """Whether a side may enter a state by the rules, with its opponent's signature."""
        other = {found.job.job.trainer: found.challenger, found.challenger: found.job.job.trainer}.get(sender)
        if other is None or call.value:
            return False
        sequence, snapshot, signature = call.arguments[1:4]
        try:
            later, _ = self._talk_of(found, sequence, tagged_hash(Tag.SNAPSHOT, snapshot))
            verify(Standing.of(later).digest(self._domain), signature, other)
            game.enter(found.state, later, now)
        except VerificationError:
            return False
        return True

    def _enter(self, found: PublicGame, call: Call, now: int) -> None:
        sequence, snapshot = call.arguments[1:3]
        later, line = self._talk_of(found, sequence, tagged_hash(Tag.SNAPSHOT, snapshot))
        found.state = game.enter(found.state, later, now)
        found.moves, found.entries = line, found.entries + 1

    def _game_of(self, call: Call) -> PublicGame | None:
        return None if call.game_id is None else self.games.get(call.game_id)

    def _advance(self, call: Call, applied: Receipt, now: int) -> None:
        found, move = self._game_of(call), call.move
        if found is None:
            return
        if call.kind in ("concede", "reportFork"):
            verdict = applied.event("GameEnded").values["verdict"]
            side = Side.DEFENDER if verdict is Outcome.DEFENDER_LOST else Side.CHALLENGER
            if call.kind == "reportFork":
                found.state = game.forked(found.state, side)
                return
            found.state = game.concede(found.state, side, now)
            found.moves.append(Concede())
            return
        if call.is_move and move is None:
            self.disagreements.append(f"{call.kind}: the contract took what is no move")
        try:
            if move is not None:
                found.state = game.apply(found.state, move, now)
                found.moves.append(move)
            elif call.kind == "timeout":
                found.state = game.timeout(found.state, now)
            elif call.kind in ("enter", "enterAndProve"):
                self._enter(found, call, now)
                if (proof := call.entered_proof) is not None:
                    found.state = game.apply(found.state, proof, now)
                    found.moves.append(proof)
        except VerificationError as error:
            self.disagreements.append(f"{call.kind}: the contract took it, Python says {error}")

    def _follow(self, event: Event, call: Call, now: int) -> None:
        said = event.values
        match event.name:
            case "JobAccepted":
                self.jobs[said["jobId"]].accept(now)
            case "HeadPosted":
                self.jobs[said["jobId"]].post(said["count"], now)
            case "ReceiptPosted":
                self.jobs[said["jobId"]].receipts = said["count"]
            case "JobCancelled" | "JobSettled" | "JobAbandoned" | "JobParted" | "JobSlashed":
                self.jobs[said["jobId"]].status = _ENDINGS[event.name]
                self.jobs[said["jobId"]].ended = now
            case "Equivocation":
                self.jobs[said["jobId"]].equivocation = True
            case "Inconsistency":
                self.jobs[said["jobId"]].inconsistency = True
            case "GameStarted":
                self._start(said, call, now)
            case "GameEnded":
                self.games[said["gameId"]].void = said["verdict"] is Outcome.VOID
            case "Credited" | "Withdrawn":
                change = said["amount"] if event.name == "Credited" else -said["amount"]
                self.credits[said["account"]] = self.credit(said["account"]) + change
            case _:
                self._follow_seats(event, now)

    def _follow_seats(self, event: Event, now: int) -> None:
        said = event.values
        match event.name:
            case "PoolJoined":
                pool = self.pools.setdefault(said["bond"], [])
                pool[said["slot"] : said["slot"] + 1] = [Slot(owner=said["owner"], since=now)]
            case "PoolLeft":
                self.pools[said["bond"]][said["slot"]].owner = None
            case "HeadSealed":
                job = self.jobs[said["jobId"]]
                job.seal(said["count"], now, len(self.pools.get(job.job.seat_bond, [])))
            case "SeatsDrawn":
                self.jobs[said["jobId"]].draw(said["seed"], now)
            case "RootSealed":
                self.jobs[said["jobId"]].seating.seals[said["seat"]] = (said["auditor"], said["rootSeal"])
            case "SeatClaimed":
                self.jobs[said["jobId"]].seating.claimed[said["seat"]] = said["amount"]
            case "SeatsClosed":
                self.jobs[said["jobId"]].seating.is_closed = True

    def _start(self, said: dict[str, Any], call: Call, now: int) -> None:
        game_id, job, (head,) = Digest(said["gameId"]), self.jobs[said["jobId"]], call.heads
        state = game.start(job.job, head.head, game_id, now)
        self.begin(
            self._same(
                PublicGame(id=game_id, job=job, challenger=said["challenger"], head=head, state=state, started=now)
            )
        )


# ---------------------------------------------------------------- both referees


def differences(found: PublicGame, theirs: GameRecord, *, judged: bool = False) -> list[str]:
    """The differences between the contract's record of a game and the Python referee's state.

    judged: whether the contract entered and judged a state in memory, of which it stores the verdict alone.
    """
    ours = found.state
    if found.void:
        return _unequal([("verdict", Outcome.VOID, theirs.verdict), ("reason", Reason.JOB_SLASHED, theirs.reason)])
    if judged:
        return _unequal(_verdicts(ours, theirs))
    pairs: list[tuple[str, object, object]] = [
        ("phase", int(ours.phase), int(theirs.phase)),
        ("level", int(ours.level), int(theirs.level)),
        ("height", ours.height, theirs.height),
        ("position", ours.position, theirs.position),
        ("challenger", found.challenger, theirs.challenger),
        ("rank", found.rank, theirs.rank),
        *_verdicts(ours, theirs),
    ]
    if ours.verdict is None or ours.verdict.reason not in (Reason.TIMEOUT, Reason.CONCEDED):
        pairs += [
            ("last", ours.moved, theirs.last),
            ("talk", ours.last - ours.moved, theirs.talk),
            ("defender's rest", ours.defender_rest, theirs.defender_rest),
            ("challenger's rest", ours.challenger_rest, theirs.challenger_rest),
        ]
    return _unequal(pairs if ours.is_over else [*pairs, *_positions(ours, theirs)])


def _verdicts(ours: GameState, theirs: GameRecord) -> list[tuple[str, object, object]]:
    if ours.verdict is None:
        return [("verdict", Outcome.NONE, theirs.verdict), ("reason", Reason.NONE, theirs.reason)]
    lost = Outcome.CHALLENGER_LOST if ours.verdict.winner is Side.DEFENDER else Outcome.DEFENDER_LOST
    return [("verdict", lost, theirs.verdict), ("reason", int(ours.verdict.reason), int(theirs.reason))]


def _positions(ours: GameState, theirs: GameRecord) -> list[tuple[str, object, object]]:
    judged = ours.phase is Phase.PROVE and ours.level is Level.CHUNKS
    if ours.phase is Phase.OPEN_TERMS or judged:
        node: tuple[object, object] = int.from_bytes(ours.claimed, "little"), int.from_bytes(theirs.node, "big")
    else:
        node = bytes(ours.node), bytes(theirs.node)
    pairs: list[tuple[str, object, object]] = [("node", *node)]
    if ours.step:
        pairs.append(("step", ours.step, theirs.step))
    if ours.operation is not None:
        pairs += [("leaf", ours.leaf, theirs.instruction), ("element", ours.element, theirs.element)]
    return pairs


def _unequal(pairs: list[tuple[str, object, object]]) -> list[str]:
    return [f"{name}: {ours!r} in Python, {theirs!r} in the contract" for name, ours, theirs in pairs if ours != theirs]
