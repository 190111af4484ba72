"""The public state of the board: its jobs, games and credits, derived from its transactions and events.

A Python referee runs beside each game. Every move that the contract accepts is also made there, and every move that the
contract refuses must be illegal there. `disagreements` lists the places where the two differ.
"""

from tiebreak.protocol.chain import Call, GameRecord, Outcome, Receipt, Reverted
from tiebreak.protocol.chain.board_state import FollowedBoard, Seen, TalkOf
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import verify
from tiebreak.protocol.errors import IllegalMove, InvalidSnapshot, VerificationError
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Phase, Side
from tiebreak.protocol.game.snapshot import Snapshot, Standing
from tiebreak.protocol.game.state import GameState, Level, Reason
from tiebreak.protocol.parties.board import PublicGame
from tiebreak.protocol.tags import Digest, Tag, tagged_hash


class WorldBoard(FollowedBoard):
    """The board's public state, kept up to date from transactions, and compared with the contract's."""

    def __init__(self, domain: Domain, talk_of: TalkOf) -> None:
        super().__init__()
        self.talk_of, self._domain = talk_of, domain

    def take_back(self) -> None:
        found = list(self.disagreements)
        super().take_back()
        self.disagreements[:] = found  # in a block that vanished, they are ours all the same

    # ------------------------------------------------------------------ transactions

    def record(self, call: Call, applied: Receipt, now: int, theirs: GameRecord | None) -> None:
        """Follow a transaction that was executed. `theirs` is the contract's record of the game after it."""
        self.follow(Seen(events=applied.events, at=now, call=call, gas=applied.gas_used))
        started = [event.values["gameId"] for event in applied.events if event.name == "GameStarted"]
        played = self.games.get(started[0] if started else call.game_id or Digest(b""))
        if theirs is not None and played is not None and not played.is_lost:
            where = f"game {played.id.hex()[:8]} after {len(played.moves)} moves"
            self.disagreements += [
                f"{where}: {difference}"
                for difference in differences(played, theirs, judged=call.kind == "enterAndProve")
            ]

    def refuse(self, call: Call, sender: Address, error: Reverted, now: int) -> None:
        """Follow a transaction that reverted.

        If it was a move made in the sender's turn, the Python referee must refuse it too.
        """
        if error.name in ("Panic", "Unknown"):
            self.disagreements.append(f"{call.kind}: expected an error of the contract, got {error}")
        found, move = self.games.get(call.game_id or Digest(b"")), call.move
        if found is not None and error.name == "InvalidSnapshot" and str(error) != _refusal(found, call):
            self.disagreements.append(f"{call.kind}: {error}, and Python said {_refusal(found, call)}")
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
        if other is None or call.value or found.is_stopped:
            return False
        sequence, snapshot, signature = call.arguments[1:4]
        try:
            later, _ = self.talk_of(found, sequence, tagged_hash(Tag.SNAPSHOT, snapshot))
            verify(Standing.of(later).digest(self._domain), signature, other)
            game.enter(found.state, later, now)
        except VerificationError:
            return False
        return True


# ---------------------------------------------------------------- both referees


def _refusal(found: PublicGame, call: Call) -> str:
    """The answer of Python to a snapshot that enters, in the words of an error of the contract."""
    try:
        Snapshot.decode(call.arguments[2]).require_reachable(found.job.job, found.head.head)
    except InvalidSnapshot as error:
        return f"the contract refused: {error}"
    return "nothing"


def differences(found: PublicGame, theirs: GameRecord, *, judged: bool = False) -> list[str]:
    """The differences between the contract's record of a game and the Python referee's state.

    judged: whether the contract entered and judged a state in memory, and stored the verdict alone.
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
