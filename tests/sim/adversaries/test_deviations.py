"""Every trainer that computes something false is convicted at its first lie; how one takes its place and tries."""

import struct
from random import Random

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import Duel, convict, deviation, job_of
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.rules import Level
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.program.isa import Opcode, SourceKind
from tiebreak.sim.adversaries.base import TRIES, Catch, Deviating, tried
from tiebreak.sim.adversaries.catalogue import CATALOGUE, adversary
from tiebreak.sim.adversaries.tampering import only, source
from tiebreak.sim.adversaries.training import poisoned_label
from tiebreak.sim.world.cast import Cast
from tiebreak.sim.world.small_task import IMAGES, LABELS
from tiebreak.sim.world.work import Work
from tiebreak.sim.world.workshop import Deviation, Workshop

FALSE = [kind.name for kind in CATALOGUE.values() if isinstance(kind, Deviating) and kind.caught == {Catch.RECOMPUTED}]
DATA = ("poisoned label", "poisoned image", "backdoor trigger", "changed data order", "same batch repeated")
BOTH = [(name, seed) for name in FALSE for seed in (0, 1)]


@pytest.mark.parametrize(
    ("name", "seed"), slow_except(BOTH, *[pair for n, pair in enumerate(BOTH) if n % 8 in (0, 5)], several=True)
)
def test_it_is_convicted_at_its_first_lie(name: str, seed: int) -> None:
    """Even seeds play under policy `exact`, odd ones under policy `logged`, where both can be."""
    duel = convict(name, seed)
    lie, program = duel.lie, duel.workshop.program
    if name in DATA:
        sources = {source(program, SourceKind.DATA, entry) for entry in (IMAGES, LABELS)}
        drawn = {only(program, Opcode.GATHER, entry) for entry in (IMAGES, LABELS)}
        assert lie.leaf in {*sources, *drawn, *range(only(program, Opcode.SHUFFLE) + 1)}
        assert duel.work.computed_steps == duel.work.oracle.job.steps
    if name == "changed initialisation":
        assert (lie.step, lie.element) == (1, None)
    if name == "changed optimizer beta":
        assert program.instruction_at(lie.leaf).origin.startswith("optimizer.")
    if name in ("bent partial sum", "uncorrected FP32 sums"):
        assert duel.match.final.level is Level.TERMS
    if name == "payload in a NaN":
        assert_payload(duel)


def assert_payload(duel: Duel) -> None:
    """The bytes that were judged are no canonical NaN."""
    (bits,) = struct.unpack("<I", duel.match.final.claimed)
    assert bits & 0x7F800000 == 0x7F800000
    assert bits & 0x7FFFFF
    assert bits != NAN_BITS


def test_all_of_them_are_tried() -> None:
    assert len(FALSE) == 40


def test_a_deviating_trainer_takes_the_place_of_the_computation() -> None:
    cast = Cast(workshop=Workshop.open("exact"))
    kind = adversary("poisoned label")
    kind.join(cast, Random(1))
    assert cast.deviation is deviation(kind.name).work
    assert cast.dishonest == {"trainer": "poisoned label"}
    assert cast.workshop is Workshop.open("exact")


@pytest.mark.parametrize("name", ["log entry far from a tie", "logs withheld"])
def test_who_lies_in_logs_needs_a_job_that_has_some(name: str) -> None:
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


def test_what_changes_nothing_is_chosen_again_and_never_silently_honest() -> None:
    workshop = Workshop.open("exact")
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
