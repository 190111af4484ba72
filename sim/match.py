"""A whole game between two parties: off the chain as signed messages, then move by move on it, and what both cost."""

from collections.abc import Callable
from dataclasses import dataclass

from protocol import game
from protocol.chain import GameRecord, Outcome
from protocol.errors import StateError
from protocol.game import GameState, Level
from protocol.job import SignedHead, SignedJob, game_id
from protocol.messages import Transcript, seal
from protocol.moves import Move, Select, Side
from protocol.player import Challenger, Defender, Oracle, Party
from sim.market import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One choice on the way down: of the 2^levels nodes below `height`, the first that differs."""

    level: Level
    height: int
    levels: int
    index: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One move: its signed message's bytes and, if it was played on the chain too, its transaction's gas."""

    move: Move
    by: Side
    bytes: int
    gas: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What the contract decided, and what each party gained or lost by it in wei (gas not counted)."""

    record: GameRecord
    start_gas: int
    trainer_gain: int
    challenger_gain: int

    @property
    def loser(self) -> Side:
        """Who lost."""
        return Side.DEFENDER if self.record.verdict is Outcome.DEFENDER_LOST else Side.CHALLENGER


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A finished game. `before_last` is the state in which the last move was made: where the game ended."""

    final: GameState
    before_last: GameState
    moves: tuple[Played, ...]
    selections: tuple[Selection, ...]
    chain: ChainVerdict | None = None

    @property
    def loser(self) -> Side:
        """Who lost by the Python referee's verdict."""
        assert self.final.verdict is not None  # a Match is finished
        return self.final.verdict.winner.other


Courier = Callable[[Side, Move], tuple[Move, int]]
"""Takes a side's move to the other; what arrives, and how many bytes travelled."""


def by_hand(_side: Side, move: Move) -> tuple[Move, int]:
    """For parties that trust the process they share: nothing is signed, nothing travels."""
    return move, 0


def signed_messages(market: Market, agreement: SignedJob, head: SignedHead, nonce: int = 0) -> Courier:
    """Moves travel as signed messages; what arrives is what the receiver's transcript accepts."""
    domain, keys = agreement.domain, market.parties
    transcript = Transcript(
        job_id=agreement.job.id,
        game_id=game_id(head.head, domain, keys.challenger.address, nonce),
        domain=domain,
        defender=keys.trainer.address,
        challenger=keys.challenger.address,
    )
    signers = {Side.DEFENDER: keys.trainer, Side.CHALLENGER: keys.challenger}

    def carry(side: Side, move: Move) -> tuple[Move, int]:
        wire = seal(transcript.next_message(move), domain, signers[side])
        return transcript.append(wire), len(wire)

    return carry


def play(
    agreement: SignedJob, head: SignedHead, defender: Oracle, challenger: Oracle, courier: Courier = by_hand
) -> Match:
    """Plays a game to its end, refereed in Python; every move takes a second of its maker's clock."""
    head.verify(agreement.job, agreement.domain)
    players: dict[Side, Party] = {Side.DEFENDER: Defender(defender), Side.CHALLENGER: Challenger(challenger)}
    arrived: Move | None = None
    state = before = game.start(agreement.job, head.head, 0)
    moves: list[Played] = []
    selections: list[Selection] = []
    while not state.is_over:
        side = state.mover
        move, size = courier(side, players[side].move(state, arrived))
        before, state, arrived = state, game.apply(state, move, len(moves)), move
        moves.append(Played(move=move, by=side, bytes=size))
        if isinstance(move, Select):
            selections.append(_selection(before, move))
    return Match(final=state, before_last=before, moves=tuple(moves), selections=tuple(selections))


def _selection(before: GameState, move: Select) -> Selection:
    position = before.position << before.levels | move.index
    return Selection(
        level=before.level, height=before.height, levels=before.levels, index=move.index, position=position
    )


def replay_on_chain(market: Market, agreement: SignedJob, head: SignedHead, match: Match, *, nonce: int = 0) -> Match:
    """Plays the same moves as transactions; the contract's own step check decides. The job must be on the board."""
    chain, keys = market.chain, market.parties
    before = market.worth(keys.trainer), market.worth(keys.challenger)
    stake = agreement.job.challenger_stake
    identity, started = chain.challenge(keys.challenger, head, nonce)
    signers = {Side.DEFENDER: keys.trainer, Side.CHALLENGER: keys.challenger}
    played = []
    for item in match.moves:
        receipt = chain.play(signers[item.by], identity, item.move)
        played.append(Played(move=item.move, by=item.by, bytes=item.bytes, gas=receipt.gas_used))
    record = chain.game_state(identity)
    if record.verdict is Outcome.NONE:
        raise StateError("expected the contract to reach a verdict with the last move, got a game that goes on")
    slashed = agreement.job.trainer_stake if record.verdict is Outcome.DEFENDER_LOST else 0
    verdict = ChainVerdict(
        record=record,
        start_gas=started.gas_used,
        trainer_gain=market.worth(keys.trainer) - before[0] - slashed,
        challenger_gain=market.worth(keys.challenger) - before[1] - stake,
    )
    return Match(
        final=match.final,
        before_last=match.before_last,
        moves=tuple(played),
        selections=match.selections,
        chain=verdict,
    )
