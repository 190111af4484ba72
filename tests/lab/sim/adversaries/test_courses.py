"""Whole games whose course matters: how long they take, and what is refused or paid on the way."""

import pytest

from tests.lab.sim.adversaries.playing import duel, of, party, played, result_of
from tests.lab.sim.beside import whole
from tests.parts import slow_except
from tiebreak.lab.sim.adversaries.base import TRAINER, between, challenger
from tiebreak.lab.sim.adversaries.challengers import Swarm, with_one_machine
from tiebreak.lab.sim.adversaries.heads import CHECKPOINTS
from tiebreak.lab.sim.world.game import TERMS
from tiebreak.lab.sim.world.small_task import STEPS
from tiebreak.lab.sim.world.world import BLOCK_SECONDS, STEP_SECONDS

SEGMENT = TERMS.reward // CHECKPOINTS
LONGEST = 3 * TERMS.clock + 6 * TERMS.replay_time + 1
"""Invariant 12."""

# ---------------------------------------------------------------- heads and openings


@pytest.mark.slow
def test_late_heads_prolong_a_job_only_to_its_windows_or_deadline() -> None:
    window, run = TERMS.challenge_window, STEPS * STEP_SECONDS
    assert abs(whole("heads at the last second").result.seconds - 5 * window) < 200
    assert 3 * run < whole("heads at the last second, past the deadline").result.seconds < 3 * run + 200
    assert whole("false head swapped in late").result.seconds > window, "it has a window of its own"


def test_heads_posted_at_once_extend_the_window_by_each_audit_time() -> None:
    """Whenever it is posted; without audit times the window alone is too short, and the lie is paid."""
    name = "true heads at the last second, then the rest at once"
    result = whole(name).result
    assert (result.watched, result.false_head, result.job_status) == (True, True, "slashed")
    assert result_of(name, 1, audit_time=0).job_status == "settled"


@pytest.mark.slow
def test_endless_openings_cost_their_sender_more_than_the_auditor() -> None:
    result = whole("endless openings").result
    trainer, auditor = party(result, TRAINER), party(result, "auditor")
    assert trainer.refused >= 20, "transactions and messages"
    assert auditor.gas < 600_000 < trainer.gas
    assert duel(result, "auditor").seconds <= TERMS.clock + TERMS.replay_time + 200


@pytest.mark.slow
def test_a_stalled_defence_takes_its_clock_and_three_allowances_and_loses() -> None:
    found = duel(played("stalled defence of a false run", 3, descent_levels=1), "auditor")
    longest = TERMS.clock + 3 * TERMS.replay_time + found.rounds * BLOCK_SECONDS
    assert 2 * TERMS.clock < found.seconds <= longest + TERMS.clock, "the proof waits for a clock"


# ---------------------------------------------------------------- logs and receipts


WITHOUT_LOGS = "code 3 in a log", "logs withheld", "other logs than committed", "codes of padding in a log"


@pytest.mark.parametrize("name", slow_except(WITHOUT_LOGS, "logs withheld"))
def test_who_shows_no_logs_is_not_paid_for_them(name: str) -> None:
    result = whole(name).result
    assert result.job_status == "parted"
    assert of(result, name).wei == -party(result, "client").wei < TERMS.reward
    assert result.duels == ()


def test_a_lie_in_a_segment_without_logs_is_not_paid() -> None:
    assert party(whole("logs of the last segment withheld").result, "client").wei == -(CHECKPOINTS - 1) * SEGMENT


def test_a_client_without_receipts_gets_one_segment() -> None:
    """It costs its trainer one segment, wherever it stops: the honest one computes no further."""
    first, last = (whole(name).result for name in ("receipts withheld", "receipt of the last head withheld"))
    assert (party(first, TRAINER).wei, party(first, TRAINER).steps) == (0, 3)
    assert party(last, TRAINER).wei == (CHECKPOINTS - 1) * SEGMENT == -party(last, "client").wei


def test_nobody_takes_the_stake_of_a_trainer_that_waits() -> None:
    game = whole("abandons instead of signing")
    assert party(game.result, TRAINER).wei == 0
    assert ("abandon", "HeadsPosted") in game.refusals
    assert {kind for kind, _ in game.refusals} == {"abandon"}


def test_a_receipt_in_the_last_block_costs_the_trainer_no_stake() -> None:
    game = whole("receipt in the last block")
    assert set(game.refusals) == {("abandon", "WrongJobStatus")}, "its trainer has parted"
    assert (game.result.job_status, party(game.result, TRAINER).wei) == ("parted", SEGMENT)


def test_a_challenge_does_not_extend_the_time_for_a_head() -> None:
    game = whole("self-challenge to win time")
    assert game.result.job_status == "abandoned"
    assert ("postHead", "WindowClosed") in game.refusals


# ---------------------------------------------------------------- challenges without ground


@pytest.mark.slow
def test_griefers_pay_for_each_game_and_delay_by_one() -> None:
    result = whole("griefing in series").result
    griefers = [found for found in result.parties if found.name.startswith("challenger")]
    lost = -sum(griefer.wei for griefer in griefers)
    assert 1 < len(griefers) < len(result.duels)
    assert lost >= len(result.duels) * TERMS.challenger_stake
    assert party(result, TRAINER).wei == TERMS.reward + lost // 2, "the other half burned"
    assert party(result, TRAINER).fees_wei < lost // 100, "what it costs the trainer"
    assert result.seconds <= STEPS * STEP_SECONDS + 100 + TERMS.challenge_window + LONGEST


@pytest.mark.slow
def test_a_stalled_challenge_ends_within_the_bound() -> None:
    assert TERMS.clock < duel(whole("stalled challenge").result, "challenger 1").seconds <= LONGEST


@pytest.mark.slow
def test_an_honest_trainer_with_one_machine_wins_simultaneous_challenges() -> None:
    """Clock and one allowance hold three of the four replays; each of its games alone would lose."""
    result = whole("all segments challenged at once").result
    assert (result.job_status, result.false_head, len(result.duels)) == ("settled", False, 4)
    assert {found.verdict for found in result.duels} == {"trainer"}
    assert party(result, "challenger 1").wei == -15 * TERMS.challenger_stake
    assert party(result, TRAINER).wei == TERMS.reward + 15 * TERMS.challenger_stake // 2
    alone = challenger("one at a time", Swarm, "-", (), before=with_one_machine, games=between(1, 1))
    assert party(result_of(alone, 1), TRAINER).wei == TERMS.reward + TERMS.challenger_stake // 2


# ---------------------------------------------------------------- clients


def test_contracts_refuse_late_cancels_reused_nonces_and_early_abandons() -> None:
    assert set(whole("cancels after acceptance").refusals) == {("cancelJob", "WrongJobStatus")}
    twice = whole("two jobs with one nonce").refusals
    assert sorted(twice) == [("createJob", "JobExists"), ("createJob", "WrongSigner")]
    early = {error for kind, error in whole("abandons in a game").refusals if kind == "abandon"}
    assert early
    assert early <= {"WindowOpen", "FinalHeadPosted", "OpenGames", "WrongJobStatus"}
