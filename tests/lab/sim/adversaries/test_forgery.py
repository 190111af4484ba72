"""Evidence that lies about how a sum came about: consistent with itself, and convicted one partial sum at a time."""

import struct
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.lab.sim.yard import Yard, assert_caught_at, assert_same_end, sums_of
from tiebreak.engine.run.evidence import Evidence
from tiebreak.lab.sim.adversaries.forgery import ForgedEvidence, exact_units
from tiebreak.lab.sim.adversaries.tampering import Cheat, Tampered
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.rules import Reason
from tiebreak.protocol.program.accumulator import decode_for, finish

FINITE = st.integers(0, (1 << 32) - 1).filter(lambda bits: bits >> 23 & 0xFF != 0xFF)


@given(FINITE)
def test_fp32_values_convert_exactly_to_integer_units(bits: int) -> None:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    assert exact_units(bits) == Fraction(value) * 2**298


def bits_at(evidence: Evidence, cheat: Cheat) -> int:
    data = evidence.tensor(cheat.step, cheat.leaf)
    return int.from_bytes(data[4 * cheat.element : 4 * cheat.element + 4], "little")


def set_to(leaf: int, element: int, value: float, step: int = 3) -> Cheat:
    return Cheat(name=f"to {value}", step=step, leaf=leaf, element=element, change=lambda _: torch.tensor(value))


@pytest.mark.parametrize("value", [0.0, 1e-45, -3.0e38])
def test_forged_accumulators_end_in_the_claim(yard: Yard, value: float) -> None:
    leaf = sums_of(yard.program, 12)[0]
    cheat = set_to(leaf, 7, value)
    run = yard.arena().run
    honest, forged = Evidence(run, yard.interpreter), ForgedEvidence(run, Tampered(yard.interpreter, cheat.tamper))
    true, bent = (e.accumulators(3, leaf, 7).block(0) for e in (honest, forged))
    assert len(true) == len(bent) == -(-yard.program.body[leaf].terms // 4)
    same = [a == b for a, b in zip(true, bent, strict=True)]
    assert same == [k < len(true) // 2 for k in range(len(true))]
    held = [decode_for(yard.program.body[leaf], a) for a in (*true, *bent)]
    steps = [b.value - a.value for a, b in pairwise(held)]
    middle = len(true) // 2
    assert steps[: middle - 1] == steps[len(true) : len(true) + middle - 1], "all but one step is an honest sum"
    claimed = bits_at(forged, cheat)
    assert finish(held[-1]) == claimed


def test_other_elements_values_and_steps_stay_honest(yard: Yard) -> None:
    first, second = sums_of(yard.program, 5)[:2]
    cheat = set_to(first, 3, 0.5)
    run = yard.arena().run
    honest, forged = Evidence(run, yard.interpreter), ForgedEvidence(run, Tampered(yard.interpreter, cheat.tamper))
    for step, leaf, element in ((3, first, 2), (2, first, 3)):
        assert forged.accumulators(step, leaf, element).root == honest.accumulators(step, leaf, element).root
    # What comes after the lie follows from it, summed honestly.
    later = forged.accumulators(3, second, 0)
    held = decode_for(yard.program.body[second], later.last)
    assert finish(held) == int.from_bytes(forged.tensor(3, second)[:4], "little")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -0.0])
def test_infinite_nan_or_negative_zero_claims_are_not_forged(yard: Yard, value: float) -> None:
    leaf = sums_of(yard.program, 12)[0]
    cheat = set_to(leaf, 7, value)
    run = yard.arena().run
    honest, forged = Evidence(run, yard.interpreter), ForgedEvidence(run, Tampered(yard.interpreter, cheat.tamper))
    assert forged.accumulators(3, leaf, 7).root == honest.accumulators(3, leaf, 7).root


def test_without_forgery_a_sum_loses_where_its_partial_sums_are_opened(yard: Yard) -> None:
    cheat = set_to(sums_of(yard.program, 12)[0], 7, 0.125)
    duel = yard.duel(cheat, forged=False)
    assert duel is not None
    assert_caught_at(duel.match, cheat)
    verdict = duel.match.final.verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (Side.CHALLENGER, Reason.CONCEDED)
    match = yard.settle(duel)
    assert_same_end(match)
    assert match.chain.record.reason is Reason.CONCEDED
