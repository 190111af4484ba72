"""Trainers that change single numbers, or make all of them another way."""

import struct
from random import Random

from tests.lab.sim.adversaries.playing import convict, deviation, job_of
from tiebreak.lab.sim.world.workshop import Workshop


def bits_of(duel_work: object, step: int, leaf: int) -> list[int]:
    data = duel_work.tensor(step, leaf)  # type: ignore[attr-defined]
    return [value for (value,) in struct.iter_unpack("<I", data)]


def differences(name: str, seed: int) -> list[tuple[int, int]]:
    """(committed, true) bits of what differs in the value where the lie is; of a commit, in what it commits."""
    workshop = Workshop.open("exact")
    job = job_of(workshop)
    work = deviation(name).work(workshop, job, Random(seed))
    assert work.lie is not None
    lie, half = work.lie, 1 << workshop.program.half_depth
    if lie.leaf >= half:
        return []
    own, true = (bits_of(oracle, lie.step, lie.leaf) for oracle in (work.oracle, workshop.evidence()))
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


def test_sums_toward_zero_are_smaller() -> None:
    pairs = [pair for seed in range(2) for pair in differences("rounded toward zero", seed)]
    assert pairs
    assert all(true - own == 1 for own, true in pairs)


def test_products_in_tf32_are_far_less_exact_than_native_sums() -> None:
    tf32, native = (
        [abs(own - true) for own, true in differences(name, 0)]
        for name in ("products in TF32", "uncorrected FP32 sums")
    )
    assert sorted(tf32)[len(tf32) // 2] > 100 * sorted(native)[len(native) // 2]


def test_partial_sums_are_falsified_at_various_positions(workshop: Workshop) -> None:
    places = set()
    for seed in range(6):
        duel = convict("bent partial sum", 2 * seed)
        assert duel.workshop is workshop
        leaves = -(-workshop.program.body[duel.lie.leaf].terms // 4)
        places.add(duel.match.final.position / leaves)
    assert len(places) > 2
    assert min(places) < 0.5 <= max(places)
