"""Whole games of each adversary of `tiebreak.lab.sim.adversaries.clients`."""

from random import Random

import pytest
import torch

from tests.lab.sim.adversaries.playing import party, played, stage
from tiebreak.lab.sim.adversaries.base import TRAINER
from tiebreak.lab.sim.adversaries.clients import diverging_workshop
from tiebreak.lab.sim.games.playing import CATALOGUE
from tiebreak.lab.sim.world.agents import TrainerAgent
from tiebreak.lab.sim.world.game import TERMS, Cast, play
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.errors import ConfigurationError


@pytest.mark.parametrize("seed", [0, 1], ids=["slipped in", "told before"])
def test_a_trainer_does_not_sign_a_window_in_which_it_cannot_compute(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played("window too short for a segment", seed).job_status == "none"
    monkeypatch.setattr(TrainerAgent, "objects", lambda *_: False)
    rng = Random(seed)
    cast = stage("window too short for a segment", rng)
    told = cast.terms.challenge_window < TERMS.challenge_window
    result = play(cast, "-", rng)
    assert (result.job_status == "abandoned") == told, "a trainer that signs what it is told loses its stake"
    assert bool(result.violations) == told


def test_a_diverging_run_is_computed_to_its_end_and_paid() -> None:
    run = diverging_workshop().run
    last = run.state(run.job.steps).values()
    assert any(bool(torch.isnan(value).any()) for value in last if value.is_floating_point())
    result = played("program that diverges", 1)
    assert (result.job_status, party(result, TRAINER).wei) == ("settled", TERMS.reward)


@pytest.mark.slow
def test_a_cheat_in_a_run_of_nan_is_convicted_too() -> None:
    cast = stage("program that diverges", Random(0))
    CATALOGUE["one false sum"].join(cast, Random(0))
    result = play(cast, "-", Random(0))
    assert result.violations == ()
    assert result.job_status == "slashed"
    assert result.catches["one false sum"] == "timeout", "partial sums that are NaN do not round to its number"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("program that diverges", "expected a trainer that computes the job"),
        ("window too short for a segment", "expected an honest trainer"),
    ],
)
def test_cheating_clients_cannot_join_a_cheating_trainer(name: str, message: str) -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    CATALOGUE["poisoned label"].join(cast, Random(0))
    with pytest.raises(ConfigurationError, match=message):
        CATALOGUE[name].join(cast, Random(0))
