"""Whole games of each adversary of `tiebreak.sim.adversaries.clients`."""

from random import Random

import pytest
import torch

from tests.sim.adversaries.playing import HALF, party, played, stage
from tiebreak.protocol.chain import Reverted
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries.base import TRAINER
from tiebreak.sim.adversaries.catalogue import adversary
from tiebreak.sim.adversaries.clients import diverging_workshop
from tiebreak.sim.world.agents import Trainer
from tiebreak.sim.world.board import Board
from tiebreak.sim.world.cast import TERMS, Cast
from tiebreak.sim.world.game import play
from tiebreak.sim.world.workshop import Workshop


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the contract refused in blocks: function and error."""
    seen: list[tuple[str, str]] = []
    plain = Board.refuse

    def refuse(board: Board, call, sender, error: Reverted, *rest):  # type: ignore[no-untyped-def]
        seen.append((call.kind, error.name))
        plain(board, call, sender, error, *rest)

    monkeypatch.setattr(Board, "refuse", refuse)
    return seen


@pytest.mark.slow
def test_no_job_is_abandoned_in_a_game(refusals: list[tuple[str, str]]) -> None:
    found, ends = set[str](), set[str]()
    for seed in (0, 1):
        result = played("abandons in a game", seed)
        ends.add(result.job_status)
        honest = "one false sum" not in result.catches
        assert party(result, TRAINER if honest else "auditor").wei == (
            TERMS.reward + TERMS.challenger_stake // 2 if honest else HALF
        )
    found |= {error for kind, error in refusals if kind == "abandon"}
    assert ends == {"slashed", "settled"}
    assert found <= {"WindowOpen", "FinalHeadPosted", "OpenGames", "WrongJobStatus"}
    assert "WindowOpen" in found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_accepted_job_is_not_cancelled(seed: int, refusals: list[tuple[str, str]]) -> None:
    result = played("cancels after acceptance", seed)
    assert result.job_status == "settled"
    assert party(result, TRAINER).wei == TERMS.reward
    assert set(refusals) == {("cancelJob", "WrongJobStatus")}


def test_who_does_not_withdraw_is_in_nobodys_way() -> None:
    result = played("never withdraws", 1)
    assert result.job_status == "slashed"
    assert party(result, "client").wei == 0, "its reward is its own still"
    assert party(result, "auditor").wei == HALF


@pytest.mark.parametrize("seed", [0, 1], ids=["slipped in", "told before"])
def test_a_trainer_does_not_sign_a_window_in_which_it_cannot_compute(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played("window too short for a segment", seed).job_status == "none"
    monkeypatch.setattr(Trainer, "objects", lambda *_: False)
    rng = Random(seed)
    cast = stage("window too short for a segment", rng)
    told = cast.terms.challenge_window < TERMS.challenge_window
    result = play(cast, "-", rng)
    assert (result.job_status == "abandoned") == told, "a trainer that signs what it is told loses its stake"
    assert bool(result.violations) == told


def test_what_diverges_is_computed_to_its_end_and_paid() -> None:
    run = diverging_workshop().run()
    last = run.state(run.job.steps).values()
    assert any(bool(torch.isnan(value).any()) for value in last if value.is_floating_point())
    result = played("program that diverges", 1)
    assert (result.job_status, party(result, TRAINER).wei) == ("settled", TERMS.reward)


@pytest.mark.slow
def test_a_cheat_in_a_run_of_nan_is_convicted_too() -> None:
    for seed in range(2):
        cast = stage("program that diverges", Random(seed))
        adversary("one false sum").join(cast, Random(seed))
        result = play(cast, "-", Random(seed))
        assert result.violations == ()
        assert result.job_status == "slashed"
        assert result.catches["one false sum"] == "timeout", "partial sums that are NaN do not round to its number"


def test_a_program_that_diverges_is_no_place_for_a_cheat_of_its_own() -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    adversary("poisoned label").join(cast, Random(0))
    with pytest.raises(ConfigurationError, match="expected a trainer that computes the job"):
        adversary("program that diverges").join(cast, Random(0))


def test_a_short_window_is_bait_for_an_honest_trainer_only() -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    adversary("poisoned label").join(cast, Random(0))
    with pytest.raises(ConfigurationError, match="expected an honest trainer"):
        adversary("window too short for a segment").join(cast, Random(0))


def test_one_signature_is_good_for_one_job(refusals: list[tuple[str, str]]) -> None:
    result = played("two jobs with one nonce", 1)
    assert result.job_status == "settled"
    assert party(result, "client").wei == -TERMS.reward, "it paid once"
    assert ("createJob", "JobExists") in refusals
    assert ("createJob", "WrongSigner") in refusals
    assert len(refusals) == 2
