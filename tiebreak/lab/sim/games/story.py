"""Tells one game move by move: who did what, when, for how much gas, and how it ended."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from tiebreak.lab.sim.world.game import GameResult
from tiebreak.lab.sim.world.mail import SaidInGame
from tiebreak.lab.sim.world.world import GENESIS, Included, World
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.records import Event, GameRecord
from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.game import moves
from tiebreak.protocol.game.moves import Move, Phase
from tiebreak.protocol.game.snapshot import SignedStanding
from tiebreak.protocol.game.state import Level
from tiebreak.protocol.parties.transactions import TRANSACTIONS, MakeMove

_WORDS: Final = {wanted.FUNCTION: wanted.WORDS for wanted in TRANSACTIONS if wanted is not MakeMove}


def tell(world: World, result: GameResult) -> Iterator[str]:
    """A finished game as lines of text: each event with its time and gas, the endings, and a table of the parties."""
    yield result.line
    yield from (f"{party.name}: {party.adversary or 'does as agreed'}" for party in result.parties)
    yield ""
    happened = [
        (known.at - GENESIS, 0, f"{known.by} shows a signed head of {known.head.head.count}, {_root(known.head.head)}")
        for known in world.mail.heads
    ]
    names = {bytes(party.address): name for name, party in world.parties.items()}
    games: dict[bytes, str] = {}
    number = {bytes(game_id): f"game {n}" for n, game_id in enumerate(world.board.games, start=1)}
    happened += [
        (said.at - GENESIS, 2, _said(said, number.get(said.game_id, "a game that vanished")))
        for said in world.mail.talks
    ]
    happened += [
        (block.timestamp - GENESIS, 1, _transaction(included, names, games))
        for block in world.blocks
        for included in block.transactions
    ]
    for at, _, text in sorted(happened, key=lambda event: event[:2]):
        yield f"{_clock(at):>10}  {text}"
    yield ""
    yield from _end(result)


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    return f"{f'{days}d ' if days else ''}{hours}:{rest // 60:02}:{rest % 60:02}"


def _root(head: Head) -> str:
    return f"run root {head.run_root.hex()[:8]}"


def _said(said: SaidInGame, game: str) -> str:
    match said.content:
        case SignedStanding(sequence=sequence):
            return f"{said.by} says in {game}: acknowledges the state after {sequence} moves"
        case None:
            return f"{said.by} says in {game}: something that is no message"
    return f"{said.by} says in {game}: {_move(said.content)}"


def _transaction(included: Included, names: dict[bytes, str], games: dict[bytes, str]) -> str:
    call, applied = included.pending.call, included.applied
    for event in applied.events:
        if event.name == "GameStarted":
            games[event.values["gameId"]] = f"game {len(games) + 1}"
    text = f"{included.pending.sender.name} {_act(call, included.record, games)} ({applied.gas_used:,} gas)"
    if applied.reverted is not None:
        return f"{text}: refused, {applied.reverted.name}"
    ends = [_event(event, names) for event in applied.events]
    return text + "".join(f"; {end}" for end in ends if end)


def _act(call: Call, record: GameRecord | None, games: dict[bytes, str]) -> str:
    where = f"{games[call.game_id]}: " if call.game_id in games else ""
    if call.kind == "postHead":
        head = call.values["head"]
        return f"posts the head of {head.count}, {_root(head)}"
    if call.kind == "challenge":
        return f"challenges the head of {call.values['head'].count} and pays its stake: game {len(games)}"
    if call.kind in ("enter", "enterAndProve"):
        proof = "" if call.entered_proof is None else f", and {_move(call.entered_proof)}"
        return f"{where}enters the state after {call.values['sequence']} moves{proof}"
    if call.move is not None:
        return f"{where}{_move(call.move)}{'' if record is None else _position(record)}"
    if not call.kind:
        return f"sends {len(call.raw)} bytes that are no call"
    return f"{where}{_WORDS.get(call.kind, call.kind)}"


_MOVES: Final[dict[type, str]] = {
    moves.Descend: "shows {nodes} nodes",
    moves.Select: "disputes the one with index {index}",
    moves.SelectElement: "disputes element {index} of the chunk",
    moves.OpenSteps: "opens the segment: {nodes} nodes over its steps",
    moves.OpenValues: "opens the step: {nodes} nodes over its values",
    moves.OpenTensor: "opens the value: {nodes} nodes over its chunks",
    moves.OpenChunk: "opens the chunk",
    moves.OpenTerms: "opens the sum: {nodes} nodes over its partial sums",
    moves.Prove: "proves: {tensors} tensors, {chunks} chunks opened",
    moves.Concede: "concedes",
}
"""The words for each kind of move, with its fields: a number, or the number of items."""


def _move(move: Move) -> str:
    fields = {name: getattr(move, name) for name in move.kinds()}
    shown = {name: len(value) if isinstance(value, bytes | tuple) else value for name, value in fields.items()}
    sealed = " and seals its answer" if any(fields.get("seal", b"")) else ""
    return _MOVES[type(move)].format(**shown) + sealed


def _position(record: GameRecord) -> str:
    """The game's place in the walk after a move, by the contract's record."""
    if record.phase in (Phase.DESCEND, Phase.SELECT):
        return f" -> {Level(record.level).name.lower()} tree, height {record.height}, position {record.position}"
    return ""


def _event(event: Event, names: dict[bytes, str]) -> str:
    said = event.values
    match event.name:
        case "GameEnded":
            return f"verdict: {_words(said['verdict'])}, {_words(said['reason'])}"
        case "JobSettled":
            return "the job is settled"
        case "JobSlashed":
            winner = names.get(said["prover"], "somebody")
            return f"the trainer is slashed, {winner} gets {ether(said['toProver'])}, {ether(said['burned'])} burn"
        case "JobAbandoned":
            return "the job is abandoned"
        case "ReceiptPosted":
            return f"the client has the logs up to head {said['count']}"
        case "JobParted":
            return f"the two part: {ether(said['toTrainer'])} to the trainer, {ether(said['toClient'])} to the client"
        case "Withdrawn":
            return ether(said["amount"])
    return ""


def _words(member: IntEnum) -> str:
    return member.name.lower().replace("_", " ")


def _end(result: GameResult) -> Iterator[str]:
    for number, duel in enumerate(result.duels, start=1):
        place = "" if duel.step is None else f" at step {duel.step}"
        if duel.leaf is not None:
            place += f", value {duel.leaf} ({duel.instruction})"
        winner = f"the {duel.verdict} wins" if duel.verdict in ("trainer", "challenger") else duel.verdict
        yield (
            f"game {number} by {duel.challenger}: {winner}, {duel.reason}{place}; "
            f"{duel.moves} moves, {duel.gas:,} gas, {_clock(duel.seconds)}"
        )
    yield f"the job: {result.job_status}, after {_clock(result.seconds)} and {result.blocks} blocks"
    for name in result.adversaries:
        yield f"{name}: {result.catches.get(name, 'nowhere')}"
    if result.false_head and not result.watched:
        yield "nobody watched: a false head was shown, and no diligent auditor with a stake to pay stood by"
    yield ""
    yield f"{'party':<40}{'ether':>26}{'gas':>13}{'steps':>7}{'messages':>10}{'bytes':>9}{'refused':>9}"
    for party in result.parties:
        name = party.name if party.adversary is None else f"{party.name} ({party.adversary})"
        amount = f"{'+' if party.wei > 0 else ''}{ether(party.wei)}".removesuffix(" ether")
        counts = f"{party.gas:>13,}{party.steps:>7}{party.messages:>10}{party.bytes:>9,}{party.refused:>9}"
        yield f"{name[:39]:<40}{amount:>26}{counts}"
    yield ""
    yield from (f"BROKEN PROMISE {violation}" for violation in result.violations)
    if not result.violations:
        yield "no promise was broken"
