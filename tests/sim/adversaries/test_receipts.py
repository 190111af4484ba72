"""Whole games of each adversary of `tiebreak.sim.adversaries.receipts`, and of the trainers that show no logs."""

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import of, party, played
from tests.sim.adversaries.test_clients import refusals
from tiebreak.sim.adversaries.base import TRAINER
from tiebreak.sim.adversaries.heads import CHECKPOINTS
from tiebreak.sim.world.cast import TERMS

__all__ = ["refusals"]
SEGMENT = TERMS.reward // CHECKPOINTS


@pytest.mark.parametrize(
    "name", ["code 3 in a log", "logs withheld", "other logs than committed", "codes of padding in a log"]
)
def test_who_shows_no_logs_is_not_paid_for_them(name: str) -> None:
    result = played(name, 1)
    assert result.job_status == "parted"
    assert of(result, name).wei == -party(result, "client").wei < TERMS.reward
    assert result.duels == ()


def test_a_lie_in_a_segment_without_logs_is_not_paid() -> None:
    result = played("logs of the last segment withheld", 1)
    assert party(result, "client").wei == -(CHECKPOINTS - 1) * SEGMENT


@pytest.mark.parametrize("seed", slow_except([0, 1], 0))
def test_a_client_without_receipts_gets_one_segment(seed: int) -> None:
    """It costs its trainer one segment, wherever it stops: the honest one computes no further."""
    first = played("receipts withheld", seed)
    assert (party(first, TRAINER).wei, party(first, TRAINER).steps) == (0, 3)
    last = played("receipt of the last head withheld", seed)
    assert party(last, TRAINER).wei == (CHECKPOINTS - 1) * SEGMENT == -party(last, "client").wei


def test_nobody_takes_the_stake_of_a_trainer_that_waits(refusals: list[tuple[str, str]]) -> None:
    assert party(played("abandons instead of signing", 0), TRAINER).wei == 0
    assert ("abandon", "HeadsPosted") in refusals
    assert not [error for kind, error in refusals if kind != "abandon"]


def test_a_receipt_in_the_last_block_makes_nobody_late(refusals: list[tuple[str, str]]) -> None:
    result = played("receipt in the last block", 0)
    assert set(refusals) == {("abandon", "HeadsPosted")}
    assert party(result, TRAINER).wei == SEGMENT
    assert party(result, TRAINER).steps == 6, "it went on when it had the receipt"
