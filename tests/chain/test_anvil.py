"""What only a real node shows: HTTP, a mempool with its fees, blocks of several transactions, reorganisations."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.chain.duel import lying_duel, play
from tests.chain.support import CHALLENGER, CLIENT, ETHER, STRANGER, TRAINER, moves_in, numbered, offer
from tests.chain.tiny import EVERY, FUNCTIONS
from tests.waiting import free_port, until
from tiebreak.protocol.chain import Chain, JobStatus, NodeError, Reverted
from tiebreak.protocol.chain.calls import Call, move_call
from tiebreak.protocol.chain.devnet import MNEMONIC, RunningNode, dev_secrets, find_anvil, run_anvil
from tiebreak.protocol.chain.outbox import BLOCKS_TO_RAISE, Fate, Outbox
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.game import rules as game
from tiebreak.protocol.game.moves import Phase, Prove, Side
from tiebreak.protocol.game.rules import Reason
from tiebreak.protocol.parties import transactions as tx

LOSS = len(FUNCTIONS.program.body) - 1


@pytest.fixture(scope="module")
def chain(anvil: RunningNode) -> Chain:
    chain = Chain.connect(anvil.url)
    for key in (CLIENT, TRAINER, CHALLENGER, STRANGER):
        rpc(chain, "anvil_setBalance", "0x" + key.address.hex(), hex(10_000 * ETHER))
    # A second passes with every block, as on the embedded chain; else each proof would wait for one.
    rpc(chain, "anvil_setBlockTimestampInterval", 1)
    chain.deploy(PrivateKey.from_int(dev_secrets(1)[0]))
    return chain


@contextmanager
def mined_by_hand(chain: Chain) -> Iterator[None]:
    rpc(chain, "evm_setAutomine", False)
    try:
        yield
    finally:
        rpc(chain, "evm_setAutomine", True)


def rpc(chain: Chain, method: str, *params: object) -> object:
    return chain.node.web3.provider.make_request(method, list(params))["result"]  # type: ignore[arg-type]


def test_dispute_on_anvil_convicts_the_liar(chain: Chain) -> None:
    duel, players = lying_duel(chain, FUNCTIONS, 4, LOSS, levels=3, precision=24, bend_from=41)
    play(duel, players)
    assert duel.state.verdict is not None
    assert (duel.state.verdict.winner, duel.state.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    assert len(moves_in(chain, duel.id, duel.started.block)) == duel.state.moves


def test_proof_in_the_same_block_as_its_seal_is_too_early(chain: Chain) -> None:
    """The move that seals and the proof in one block: the first counts, the second does not, and does a clock later."""
    duel, players = lying_duel(chain, EVERY, 3, 24, levels=4)
    last = None
    while duel.state.phase is not Phase.SELECT_ELEMENT:
        last = players[duel.state.mover].move(duel.state, last)
        assert duel.try_move(last)
    choice = players[Side.CHALLENGER].move(duel.state, last)
    after = game.apply(duel.state, choice, duel.state.last + 1)
    proof = players[Side.CHALLENGER].move(after, last)
    assert isinstance(proof, Prove)
    games = chain.deployment.games
    with mined_by_hand(chain):
        outbox = chain.outbox(CHALLENGER)
        sealed = outbox.post(games, move_call(duel.state, choice).data, gas=3_000_000)
        early = outbox.post(games, move_call(after, proof).data, gas=3_000_000)
        rpc(chain, "evm_mine")
    assert outbox.look() == (sealed, early)
    assert (sealed.receipt["status"], early.receipt["status"]) == (1, 0)  # type: ignore[index]
    assert chain.game_state(duel.id).phase == Phase.PROVE
    with pytest.raises(Reverted) as unripe:
        chain.play(CHALLENGER, after, proof)
    assert unripe.value.name == "TooEarly"
    chain.pass_until(chain.game_state(duel.id).last + after.job.clock)
    with pytest.raises(Reverted) as wrong:
        chain.play(CHALLENGER, after, replace(proof, salt=bytes(32)))
    assert wrong.value.name == "WrongSeal"
    chain.play(CHALLENGER, after, proof)
    assert chain.game_state(duel.id).phase == Phase.OVER


def test_mempool_decoy_does_not_block_an_honest_transaction(chain: Chain) -> None:
    """The pending state refuses the honest transaction until the decoy is gone; the newest block alone takes it."""
    job = numbered(77)
    offer(chain, job)
    with mined_by_hand(chain):
        decoy = chain.post(CLIENT, Call.of(tx.CancelJob(job_id=job.id)))
        assert chain.job_state(job.id).status is JobStatus.OFFERED, "what waits is not there yet"
        with ThreadPoolExecutor(1) as pool:
            accepting = pool.submit(chain.send, TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))
            until(lambda: accepting.done() or int(rpc(chain, "txpool_status")["pending"], 16) == 2)  # type: ignore[index]
            rpc(chain, "anvil_dropTransaction", "0x" + decoy.hashes[-1].hex())
            chain.outbox(CLIENT).waiting.clear()
            rpc(chain, "evm_mine")
            assert [event.name for event in accepting.result(30).events] == ["JobAccepted"]
    with pytest.raises(Reverted, match="WrongJobStatus"):
        # Nothing waits: it is refused and not sent.
        chain.send(TRAINER, Call.of(tx.AcceptJob(job_id=job.id), job.trainer_stake))


def fresh_outbox(chain: Chain, secret: int, **settings: object) -> Outbox:
    key = PrivateKey.from_int(secret)
    rpc(chain, "anvil_setBalance", "0x" + key.address.hex(), hex(ETHER))
    return Outbox(chain.node, key, **settings)  # type: ignore[arg-type]


def test_underpriced_transaction_is_replaced_with_a_higher_bid(chain: Chain) -> None:
    box = fresh_outbox(chain, 0xF00D)
    with mined_by_hand(chain):
        sent = [box.post(TRAINER.address, b"", 1, gas=21_000) for _ in range(2)]
        first = [one.bid for one in sent]
        for _ in range(BLOCKS_TO_RAISE):
            rpc(chain, "anvil_setNextBlockBaseFeePerGas", hex(3 * first[0].most))
            rpc(chain, "evm_mine")
            assert box.look() == ()
        rpc(chain, "evm_mine")
        assert list(box.look()) == sent, "both, in one block"
        assert all(one.bid.most > 3 * bid.most for one, bid in zip(sent, first, strict=True))
        assert {one.receipt["status"] for one in sent if one.receipt is not None} == {1}


def test_a_reorganised_transaction_is_sent_again(chain: Chain) -> None:
    box = fresh_outbox(chain, 0xF00F, confirmations=2)
    sent = box.post(TRAINER.address, b"", 1, gas=21_000)
    while sent.receipt is None:  # anvil mines it at once, or a little later
        assert box.look() == ()
    with mined_by_hand(chain):
        rpc(chain, "anvil_reorg", 1, [])
        rpc(chain, "anvil_dropAllTransactions")
        assert box.look() == ()
        assert sent.receipt is None, "its block is gone"
        for _ in range(3):
            rpc(chain, "evm_mine")
            ended = box.look()
        assert (ended, sent.fate) == ((sent,), Fate.MINED)


@pytest.mark.parametrize(
    ("mnemonic", "is_busy", "message"),
    [("not a mnemonic", False, "ended with code"), (MNEMONIC, True, "choose another --port")],
    ids=["dead", "busy port"],
)
def test_anvil_startup_error_names_its_cause(anvil: RunningNode, mnemonic: str, is_busy: bool, message: str) -> None:
    binary = find_anvil()
    assert binary is not None
    port = int(anvil.url.rpartition(":")[2]) if is_busy else free_port()
    with pytest.raises(NodeError, match=message), run_anvil(binary, port=port, mnemonic=mnemonic, accounts=1):
        pass
