"""The registry: everyone by name, and how a deviating trainer takes its place."""

from random import Random

import pytest

from tests.sim.adversaries.playing import job_of
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.catalogue import CATALOGUE, WEAKNESSES, adversary, by_name, of_role
from tiebreak.sim.adversaries.data import PoisonedLabel
from tiebreak.sim.adversaries.deviations import TRIES, DeviatingTrainer
from tiebreak.sim.adversaries.logs import BadEntry, WithheldLogs
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Workshop

EVERYONE = {**CATALOGUE, **WEAKNESSES}


@pytest.mark.parametrize("name", EVERYONE)
def test_everyone_can_be_asked_for(name: str) -> None:
    found = adversary(name)
    assert isinstance(found, Adversary)
    assert found.name == name == name.strip()
    assert len(found.gain) > 10
    assert isinstance(found.role, Role)
    assert type(found).__doc__ is not None
    assert type(found).__doc__ != Adversary.__doc__
    assert found.open == (name in WEAKNESSES)
    assert bool(found.caught) != found.open, "who is caught is caught somewhere; what is open is not"
    assert all(isinstance(catch, Catch) for catch in found.caught)


def test_there_are_at_least_twenty_five() -> None:
    assert len(CATALOGUE) >= 25
    assert len(of_role(Role.TRAINER)) >= 25
    assert set(of_role(Role.TRAINER)) <= set(CATALOGUE)
    assert not set(CATALOGUE) & set(WEAKNESSES)


def test_nobody_has_somebody_elses_name() -> None:
    with pytest.raises(ConfigurationError, match="expected adversaries of different names, got two named 'poisoned"):
        by_name([PoisonedLabel, BadEntry, PoisonedLabel])
    with pytest.raises(ConfigurationError, match=r"expected an adversary, one of .*poisoned label.*; got 'nobody'"):
        adversary("nobody")


def test_a_deviating_trainer_takes_the_place_of_the_computation() -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    kind = PoisonedLabel()
    kind.join(cast, Random(1))
    assert cast.deviation is kind
    assert cast.dishonest == {"trainer": "poisoned label"}
    assert cast.workshop is Workshop.open("exact")


@pytest.mark.parametrize("kind", [BadEntry, WithheldLogs])
def test_who_lies_in_logs_needs_a_job_that_has_some(kind: type[DeviatingTrainer]) -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    kind().join(cast, Random(1))
    assert cast.workshop is Workshop.open("logged")


class Hesitant(DeviatingTrainer):
    """Deviates at the third try, or never."""

    name = "hesitant"
    gain = "nothing at first"

    def __init__(self, at: int) -> None:
        self.at, self.tries = at, 0

    def attempt(self, workshop: Workshop, job: Job, rng: Random) -> Work:
        """Plays honest until then."""
        self.tries += 1
        return PoisonedLabel().attempt(workshop, job, rng) if self.tries >= self.at else workshop.honest(job)


def test_what_changes_nothing_is_chosen_again_and_never_silently_honest() -> None:
    workshop = Workshop.open("exact")
    third, never = Hesitant(3), Hesitant(TRIES + 1)
    assert third.work(workshop, job_of(workshop), Random(0)).lie is not None
    assert third.tries == 3
    with pytest.raises(ConfigurationError, match=f"hesitant: expected something committed to change in {TRIES} tries"):
        never.work(workshop, job_of(workshop), Random(0))


def test_the_same_choices_give_the_same_work() -> None:
    workshop = Workshop.open("logged")
    for name in ("backdoor trigger", "silent rounding", "products in TF32"):
        first, second = (adversary(name).work(workshop, job_of(workshop), Random(5)) for _ in range(2))  # type: ignore[attr-defined]
        assert (first.records, first.lie, first.logs) == (second.records, second.lie, second.logs)
