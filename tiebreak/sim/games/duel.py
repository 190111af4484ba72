"""A whole game between two parties: first off the chain as signed messages, then on the chain move by move."""

import secrets
from dataclasses import dataclass, replace
from itertools import count

from tiebreak.protocol.chain import GameRecord, Outcome
from tiebreak.protocol.commitments.job import SignedHead, SignedJob, game_id
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.game import match, rules
from tiebreak.protocol.game.match import Courier, Match, by_hand, by_message, by_rules
from tiebreak.protocol.game.messages import Transcript
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.sides import Challenger, Defender, Oracle
from tiebreak.protocol.tags import Digest
from tiebreak.sim.games.local_chain import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVerdict:
    """What the contract decided, and each party's gain or loss in wei (gas not counted)."""

    record: GameRecord
    start_gas: int
    trainer_gain: int
    challenger_gain: int

    @property
    def loser(self) -> Side:
        return Side.DEFENDER if self.record.verdict is Outcome.DEFENDER_LOST else Side.CHALLENGER


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainMatch(Match):
    """A match that was also played on the chain."""

    chain: ChainVerdict


def game_of(market: Market, agreement: SignedJob, head: SignedHead, nonce: int = 0) -> Digest:
    """The id of the game that the market's challenger starts against a head."""
    return game_id(head.head, agreement.domain, market.parties.challenger.address, nonce)


def signed_messages(market: Market, agreement: SignedJob, head: SignedHead, nonce: int = 0) -> Courier:
    """Carries moves as messages signed by the market's trainer and challenger."""
    keys = market.parties
    transcript = Transcript(
        job_id=agreement.job.id,
        game_id=game_of(market, agreement, head, nonce),
        domain=agreement.domain,
        defender=agreement.job.trainer,
        challenger=keys.challenger.address,
    )
    return by_message(transcript, {Side.DEFENDER: keys.trainer, Side.CHALLENGER: keys.challenger})


def play(
    agreement: SignedJob,
    head: SignedHead,
    defender: Oracle,
    challenger: Oracle,
    courier: Courier = by_hand,
    *,
    identity: Digest | None = None,
    secret: bytes | None = None,
) -> Match:
    """Plays a game to its end, refereed in Python. A second passes with every move.

    identity: the game's id, if the game is played elsewhere too, since the challenger's seals are bound to it. The
    default is the id for a challenger with the zero address. secret: derives the challenger's seals; a new one by
    default.
    """
    head.verify(agreement.job, agreement.domain)
    identity = game_id(head.head, agreement.domain, bytes(20), 0) if identity is None else identity
    return match.play(
        rules.start(agreement.job, head.head, identity, 0),
        defender=Defender(defender),
        challenger=Challenger(challenger, secrets.token_bytes(32) if secret is None else secret),
        judge=by_rules(count(1).__next__),
        courier=courier,
    )


def replay_on_chain(
    market: Market, agreement: SignedJob, head: SignedHead, played: Match, *, nonce: int = 0
) -> ChainMatch:
    """Plays the same moves as transactions, with the contract's own step check deciding.

    The job must be on the board.
    """
    chain, keys = market.chain, market.parties
    before = market.worth(keys.trainer), market.worth(keys.challenger)
    stake = agreement.job.challenger_stake
    identity, started = chain.challenge(keys.challenger, head, nonce)
    if identity != played.final.game_id:
        raise StateError(f"expected a match of game {identity.hex()}, got one of {played.final.game_id.hex()}")
    signers = {Side.DEFENDER: keys.trainer, Side.CHALLENGER: keys.challenger}
    moves = []
    for item in played.moves:
        receipt = chain.play(signers[item.by], item.before, item.move)
        moves.append(replace(item, gas=receipt.gas_used))
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
    return ChainMatch(moves=tuple(moves), chain=verdict)
