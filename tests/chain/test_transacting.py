"""The calls for what parties ask for."""

from typing import get_args

import pytest

from tests.chain.support import CHALLENGER, JOB, RUN
from tiebreak.protocol.chain import Reverted, calls
from tiebreak.protocol.chain.transacting import _CALLS, call_of
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.game.moves import Concede
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import Board, PublicJob

HEAD = SignedHead(head=Head(job_id=JOB.id, count=1, run_root=RUN), signature=bytes(65))
ON_BOARD = {
    e.AcceptJob(job_id=JOB.id): "WrongJobStatus",
    e.Challenge(head=HEAD, nonce=0): "WrongJobStatus",
    e.SealRoot(job_id=JOB.id, seat=0, seal=RUN): "WrongJobStatus",
    e.MakeMove(game_id=RUN, sequence=0, move=Concede()): "NoSuchGame",
}


def test_every_transaction_has_one_way_to_a_call() -> None:
    asked = {type(wanted) for wanted in ON_BOARD} | {e.JoinPool}
    assert _CALLS.keys() | asked == set(get_args(e.Transaction))
    assert not _CALLS.keys() & asked


@pytest.mark.parametrize("wanted", ON_BOARD, ids=lambda wanted: type(wanted).__name__)
def test_what_vanished_from_the_board_is_refused_as_the_contract_would(wanted: e.Transaction) -> None:
    with pytest.raises(Reverted) as refused:
        call_of(wanted, Board())
    assert refused.value.name == ON_BOARD[wanted]


def test_stakes_are_those_of_the_board() -> None:
    board = Board()
    board.jobs[JOB.id] = PublicJob(job=JOB, last_progress=0)
    assert call_of(e.AcceptJob(job_id=JOB.id), board) == calls.accept_job(JOB.id, JOB.trainer_stake)
    assert call_of(e.Challenge(head=HEAD, nonce=3, more=2), board).value == 4 * JOB.challenger_stake
    assert call_of(e.JoinPool(bond=5), board) == calls.join_pool(0, 5)
    assert call_of(e.Withdraw(to=CHALLENGER.address), board) == calls.withdraw(CHALLENGER.address)
