"""The calls for what parties ask for."""

import pytest

from tests.chain.support import CHALLENGER
from tests.vectors.posts import GAME, HEAD, JOB, transactions
from tiebreak.protocol.chain import Call, Reverted
from tiebreak.protocol.chain.calls import call_of
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Concede
from tiebreak.protocol.parties import transactions as tx
from tiebreak.protocol.parties.board import Board, PublicGame, PublicJob

ON_BOARD = {
    tx.AcceptJob(job_id=JOB.id): "WrongJobStatus",
    tx.Challenge(head=HEAD, nonce=0): "WrongJobStatus",
    tx.SealRoot(job_id=JOB.id, seat=0, seal=GAME): "WrongJobStatus",
    tx.MakeMove(game_id=GAME, sequence=0, move=Concede()): "NoSuchGame",
}


def board() -> Board:
    found, state = Board(), rules.start(JOB, HEAD.head, GAME, 0)
    found.jobs[JOB.id] = job = PublicJob(job=JOB, last_progress=0)
    found.begin(PublicGame(id=GAME, job=job, challenger=CHALLENGER.address, head=HEAD, state=state, started=0))
    return found


def test_every_transaction_encodes_to_one_contract_call() -> None:
    for wanted in transactions():
        call = call_of(wanted, board())
        assert (call.kind, call.heads) == (wanted.function, wanted.heads)
        assert Call.decode(call.data).data == call.data


@pytest.mark.parametrize("wanted", ON_BOARD, ids=lambda wanted: type(wanted).__name__)
def test_transaction_on_a_vanished_job_is_refused_like_the_contract(wanted: tx.Transaction) -> None:
    with pytest.raises(Reverted) as refused:
        call_of(wanted, Board())
    assert refused.value.name == ON_BOARD[wanted]


def test_calls_send_the_stakes_that_the_board_requires() -> None:
    assert call_of(tx.AcceptJob(job_id=JOB.id), board()) == Call("acceptJob", (JOB.id,), JOB.trainer_stake)
    one_is_open = 2 * JOB.challenger_stake
    assert call_of(tx.Challenge(head=HEAD, nonce=3, more=2), board()).value == 4 * one_is_open
    assert call_of(tx.JoinPool(bond=5), board()) == Call("joinPool", (0,), 5)
    assert call_of(tx.Withdraw(to=CHALLENGER.address), board()) == Call("withdraw", (CHALLENGER.address,))
