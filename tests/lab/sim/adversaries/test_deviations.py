"""How a trainer that computes something else takes its place, and tries until something false is committed."""

import struct
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import convict, deviation, job_of
from tiebreak.lab.sim.adversaries.base import TRIES, tried
from tiebreak.lab.sim.adversaries.catalogue import adversary
from tiebreak.lab.sim.adversaries.training import poisoned_label
from tiebreak.lab.sim.world.cast import Cast
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Deviation, Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import NAN_BITS


def test_a_deviating_adversary_replaces_the_trainers_computation() -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    kind = adversary("poisoned label")
    kind.join(cast, Random(1))
    assert cast.deviation is deviation(kind.name).work
    assert cast.dishonest == {"trainer": "poisoned label"}
    assert cast.workshop is Workshop.open("exact")


@pytest.mark.parametrize("name", ["log entry far from a tie", "logs withheld"])
def test_adversaries_that_lie_in_logs_get_a_job_with_logs(name: str) -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    adversary(name).join(cast, Random(1))
    assert cast.workshop is Workshop.open("logged")


def hesitant(at: int) -> tuple[Deviation, list[int]]:
    """Deviates at try `at`, and the tries so far."""
    tries = list[int]()

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        tries.append(len(tries) + 1)
        return poisoned_label(workshop, job, rng) if tries[-1] >= at else workshop.honest(job)

    return tried(attempt), tries


def test_a_cheat_without_effect_is_redrawn(workshop: Workshop) -> None:
    (third, tries), (never, _) = hesitant(3), hesitant(TRIES + 1)
    assert third(workshop, job_of(workshop), Random(0)).lie is not None
    assert tries == [1, 2, 3]
    with pytest.raises(ConfigurationError, match=f"expected something committed to change in {TRIES} tries"):
        never(workshop, job_of(workshop), Random(0))


def test_the_same_choices_give_the_same_work() -> None:
    workshop = Workshop.open("logged")
    for name in ("backdoor trigger", "silent rounding", "products in TF32"):
        first, second = (deviation(name).work(workshop, job_of(workshop), Random(5)) for _ in range(2))
        assert (first.records, first.lie, first.logs) == (second.records, second.lie, second.logs)


def test_a_payload_in_a_nan_is_judged_by_its_bytes() -> None:
    (bits,) = struct.unpack("<I", convict("payload in a NaN", 0).match.final.claimed)
    assert bits & 0x7F800000 == 0x7F800000
    assert bits & 0x7FFFFF
    assert bits != NAN_BITS
