"""A game that is talked: states that both sides signed enter the contract, are judged there at once, or convict."""

from dataclasses import replace

import pytest

from tests.chain.duel import Duel, lying_duel, new_job
from tests.chain.support import CHALLENGER, TRAINER
from tests.chain.tiny import EVERY, Run
from tests.parts import slow_except
from tests.protocol import runs
from tests.protocol.runs import DOMAIN, ordinary_element
from tests.protocol.town import BLOCK, TALKED_FALSE, Town
from tiebreak.protocol.chain import Call, EmbeddedChain, Outcome, Reverted
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.match import moves
from tiebreak.protocol.game.moves import Move, Phase, Prove, Side
from tiebreak.protocol.game.snapshot import Snapshot, Standing
from tiebreak.protocol.game.state import GameState, Reason
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.ledger import MAX_SEQUENCE, Refusal

TALK = 3000
SUM = max(k for k, i in enumerate(EVERY.program.body) if i.is_reduction and i.terms > 4)
LEAVES = [3, 24, SUM, EVERY.program.leaf_of_commit(0)]
"""A source, a map, a long sum and a commit."""


def talked(chain: EmbeddedChain, leaf: int = 24) -> tuple[Duel, list[tuple[GameState, Move]]]:
    """A game on the chain at its start, and the states and moves of its whole walk, none of which was sent."""
    honest = Run(EVERY, new_job(EVERY, levels=5))
    # Some values are no numbers in some steps: nothing to lie about there.
    step = next(step for step in (3, 4, 5, 2, 1) if ordinary_element(honest, step, leaf) is not None)
    duel, players = lying_duel(chain, EVERY, step, leaf, levels=5, talk_time=TALK)
    walk = []

    def judge(state: GameState, move: Move) -> GameState:
        walk.append((state, move))
        return game.apply(state, move, state.earliest)

    assert [played.after for played in moves(duel.state, players, judge)][-1].is_over
    return duel, walk


def sign(duel: Duel, key: PrivateKey, state: GameState) -> bytes:
    return key.sign(Standing.of(state).digest(duel.chain.domain))


def signer(state: GameState) -> PrivateKey:
    """The key of the side whose move led to the state: the one that is not to move."""
    return CHALLENGER if state.mover is Side.DEFENDER else TRAINER


@pytest.mark.parametrize("leaf", slow_except(LEAVES, 24))
def test_every_signed_state_of_a_game_can_enter_the_contract(chain: EmbeddedChain, leaf: int) -> None:
    """Every state of a walk enters in order; the contract then stores what its own moves would have led to."""
    duel, walk = talked(chain, leaf)
    for state, _ in walk[1:]:
        maker = signer(state)
        sender = TRAINER if maker is CHALLENGER else CHALLENGER
        receipt = chain.send(sender, Call.of(tx.Enter.of(state, sign(duel, maker, state))))
        duel.state = game.enter(duel.state, state, receipt.timestamp)
        duel.compare()
        entered = receipt.event("Entered").values
        assert (entered["sequence"], Snapshot.decode(entered["snapshot"])) == (state.moves, Snapshot.of(state))
    proof = walk[-1][1]
    duel.wait()
    assert duel.try_move(proof)
    assert duel.state.verdict is not None
    assert duel.state.verdict.winner is Side.CHALLENGER


@pytest.mark.parametrize("leaf", slow_except(LEAVES, 24, LEAVES[-1]))
def test_off_chain_dispute_takes_two_transactions(chain: EmbeddedChain, leaf: int) -> None:
    """The defender acknowledged the state in which the answer is sealed, and lost."""
    duel, walk = talked(chain, leaf)
    state, proof = walk[-1]
    assert isinstance(proof, Prove)
    if leaf == 24:  # nor does it matter when that is
        chain.travel_to(duel.started.timestamp + TALK)
    receipt = chain.send(CHALLENGER, Call.of(tx.EnterAndProve.of(state, sign(duel, TRAINER, state), proof)))
    assert receipt.event("GameEnded").values["verdict"] is Outcome.DEFENDER_LOST
    record = chain.game_state(duel.id)
    assert (record.phase, record.reason, record.step) == (Phase.OVER, Reason.RECOMPUTED, 0)
    assert duel.started.gas_used + receipt.gas_used < 500_000


def test_contract_and_ledger_share_the_highest_accepted_sequence(chain: EmbeddedChain) -> None:
    """The other side signs any number: the contract takes 2^15, and neither takes more. No posted moves lead there."""
    duel, walk = talked(chain)
    talk = Town(TALKED_FALSE)
    assert any(talk.play(seconds).board.games for seconds in range(0, 1200, BLOCK)), "until its game has begun"
    other = talk.game.first_state

    def entry(state: GameState, number: int, key: PrivateKey, domain: Domain) -> tx.Enter:
        numbered = replace(state, moves=number)
        return tx.Enter.of(numbered, key.sign(Standing.of(numbered).digest(domain)))

    for number, name in ((MAX_SEQUENCE + 1, "IndexOutOfRange"), (MAX_SEQUENCE, "UnknownState")):
        with pytest.raises(Refusal) as refused:
            talk.ledger.take(talk.game.challenger, entry(other, number, runs.TRAINER, DOMAIN), talk.now)
        assert refused.value.name == name
    with pytest.raises(Reverted) as reverted:
        chain.send(CHALLENGER, Call.of(entry(walk[1][0], MAX_SEQUENCE + 1, TRAINER, chain.domain)))
    assert reverted.value.name == "IndexOutOfRange"
    chain.send(CHALLENGER, Call.of(entry(walk[1][0], MAX_SEQUENCE, TRAINER, chain.domain)))
    assert chain.game_state(duel.id).sequence == MAX_SEQUENCE


def test_defender_can_concede_out_of_turn_on_chain(chain: EmbeddedChain) -> None:
    """The defender concedes, though it is the challenger's turn."""
    duel, walk = talked(chain)
    assert duel.try_move(walk[0][1])
    receipt = chain.send(TRAINER, Call("concede", (duel.id,)))
    duel.state = game.concede(duel.state, Side.DEFENDER, receipt.timestamp)
    duel.compare()
    assert duel.started.gas_used + receipt.gas_used < 300_000
