"""Trainers that change single numbers, or make all of them another way."""

import struct
from random import Random

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import Duel, convict, job_of
from tiebreak.protocol.game.rules import Level
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.sim.adversaries.deviations import DeviatingTrainer
from tiebreak.sim.adversaries.numbers import (
    ADVERSARIES,
    BentPartialSum,
    BitOfALoss,
    NativeSums,
    NegativeZero,
    NotANumber,
    RoundedTowardZero,
    Tf32Products,
    UlpOfAWeight,
)
from tiebreak.sim.world.workshop import Workshop


@pytest.mark.parametrize("seed", slow_except([0, 1], 0))
@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_is_convicted_at_its_first_lie(kind: type[DeviatingTrainer], seed: int) -> None:
    duel = convict(kind, seed)
    if kind in (BentPartialSum, NativeSums):
        assert duel.match.final.level is Level.TERMS
    if kind is NotANumber:
        assert_payload(duel)


def assert_payload(duel: Duel) -> None:
    """The bytes that were judged are no canonical NaN."""
    (bits,) = struct.unpack("<I", duel.match.final.claimed)
    assert bits & 0x7F800000 == 0x7F800000
    assert bits & 0x7FFFFF
    assert bits != NAN_BITS


def bits_of(duel_work: object, step: int, leaf: int) -> list[int]:
    data = duel_work.tensor(step, leaf)  # type: ignore[attr-defined]
    return [value for (value,) in struct.iter_unpack("<I", data)]


def differences(kind: type[DeviatingTrainer], seed: int) -> list[tuple[int, int]]:
    """(committed, true) bits of what differs in the value where the lie is; of a commit, in what it commits."""
    workshop = Workshop.open("exact")
    job = job_of(workshop)
    work = kind().work(workshop, job, Random(seed))
    assert work.lie is not None
    lie, half = work.lie, 1 << workshop.program.half_depth
    if lie.leaf >= half:
        return []
    own, true = (bits_of(oracle, lie.step, lie.leaf) for oracle in (work.oracle, workshop.evidence()))
    return [(a, b) for a, b in zip(own, true, strict=True) if a != b]


def test_one_number_is_one_number() -> None:
    for kind in (UlpOfAWeight, BitOfALoss, NegativeZero):
        found = [pairs for seed in range(6) if (pairs := differences(kind, seed))]
        assert found
        for ((own, true),) in found:
            if kind is UlpOfAWeight:
                assert abs(own - true) == 1
            elif kind is BitOfALoss:
                assert (own ^ true).bit_count() == 1
            else:
                assert (own, true) == (1 << 31, 0)


def test_sums_toward_zero_are_smaller() -> None:
    pairs = [pair for seed in range(2) for pair in differences(RoundedTowardZero, seed)]
    assert pairs
    assert all(true - own == 1 for own, true in pairs)


def test_products_in_tf32_are_far_less_exact_than_native_sums() -> None:
    tf32, native = ([abs(own - true) for own, true in differences(kind, 0)] for kind in (Tf32Products, NativeSums))
    assert sorted(tf32)[len(tf32) // 2] > 100 * sorted(native)[len(native) // 2]


def test_a_sum_is_bent_at_any_place() -> None:
    workshop = Workshop.open("exact")
    places = set()
    for seed in range(6):
        duel = convict(BentPartialSum, 2 * seed)
        assert duel.workshop is workshop
        leaves = -(-workshop.program.body[duel.lie.leaf].terms // 4)
        places.add(duel.match.final.position / leaves)
    assert len(places) > 2
    assert min(places) < 0.5 <= max(places)
