"""Trainers that change single numbers, or make all of them another way; and try until something false is committed."""

import struct
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import convict, job_of, lied
from tiebreak.lab.sim.adversaries.base import TRIES, tried
from tiebreak.lab.sim.adversaries.training import poisoned_label
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import NAN_BITS


def differences(name: str, seed: int) -> list[tuple[int, int]]:
    """(committed, true) bits of what differs in the value where the lie is; of a commit, in what it commits."""
    workshop = Workshop.open("exact")
    work, lie = lied(name, seed)
    if lie.leaf >= 1 << workshop.program.half_depth:
        return []
    shown = (oracle.tensor(lie.step, lie.leaf) for oracle in (work.oracle, workshop.evidence))
    own, true = ([value for (value,) in struct.iter_unpack("<I", data)] for data in shown)
    return [(a, b) for a, b in zip(own, true, strict=True) if a != b]


def test_single_number_cheats_change_exactly_one_number() -> None:
    for name in ("one ulp of a weight", "one bit of a loss", "negative zero"):
        found = [pairs for seed in range(6) if (pairs := differences(name, seed))]
        assert found
        for ((own, true),) in found:
            if name == "one ulp of a weight":
                assert abs(own - true) == 1
            elif name == "one bit of a loss":
                assert (own ^ true).bit_count() == 1
            else:
                assert (own, true) == (1 << 31, 0)


def test_partial_sums_are_falsified_at_various_positions(workshop: Workshop) -> None:
    places = set()
    for seed in range(6):
        own, lie, match = convict("bent partial sum", 2 * seed)
        assert own is workshop
        places.add(match.final.position / -(-workshop.program.body[lie.leaf].terms // 4))
    assert len(places) > 2
    assert min(places) < 0.5 <= max(places)


def test_a_cheat_without_effect_is_redrawn(workshop: Workshop) -> None:
    tries = list[int]()

    def attempt(workshop: Workshop, job: Job, rng: Random) -> Work:
        tries.append(len(tries) + 1)
        return poisoned_label(workshop, job, rng) if len(tries) == 3 else workshop.honest(job)

    assert tried(attempt)(workshop, job_of(workshop), Random(0)).lie is not None
    assert tries == [1, 2, 3]
    with pytest.raises(ConfigurationError, match=f"expected something committed to change in {TRIES} tries"):
        tried(attempt)(workshop, job_of(workshop), Random(0))


def test_a_payload_in_a_nan_is_judged_by_its_bytes() -> None:
    (bits,) = struct.unpack("<I", convict("payload in a NaN", 0)[2].final.claimed)
    assert bits & 0x7F800000 == 0x7F800000
    assert bits & 0x7FFFFF
    assert bits != NAN_BITS
