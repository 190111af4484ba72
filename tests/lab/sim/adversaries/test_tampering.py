"""What stands in the place of honest values, and what each simple cheat changes: nothing else."""

import struct
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.lab.sim.adversaries.playing import job_of
from tests.lab.sim.yard import CLASSES, STEPS, Yard, assert_caught_at, assert_same_end, sums_of
from tiebreak.engine.run.evidence import Evidence
from tiebreak.lab.sim.adversaries import tampering
from tiebreak.lab.sim.adversaries.tampering import Cheat, ForgedEvidence, Tampered, exact_units
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.game.rules import Reason
from tiebreak.protocol.program.accumulator import decode_for, finish
from tiebreak.protocol.program.isa import DType, Opcode, SourceKind

BITS = st.integers(0, (1 << 32) - 1)


def scalar(bits: int) -> Tensor:
    return torch.frombuffer(bytearray(struct.pack("<I", bits)), dtype=torch.float32).reshape(())


def bits_of(value: Tensor) -> int:
    assert (value.dtype, value.shape) == (torch.float32, ())
    return int(value.reshape(1).view(torch.int32).item()) & 0xFFFFFFFF


@given(BITS, st.integers(0, 31))
def test_flip_bit_flips_one_bit(bits: int, bit: int) -> None:
    assert bits_of(tampering.flip_bit(scalar(bits), bit)) == bits ^ (1 << bit)


@given(BITS)
def test_tf32_has_ten_fraction_bits(bits: int) -> None:
    assert bits_of(tampering.as_tf32(scalar(bits))) == bits & 0xFFFFE000


def test_catalogue_cheats_change_the_named_values(yard: Yard) -> None:
    program = yard.program
    label = tampering.poisoned_label(program, labels="labels", step=2, element=1, classes=CLASSES)
    rate = tampering.changed_learning_rate(program, step=2, factor=2)
    weight = tampering.flipped_weight_bit(program, state="model.hidden.weight", step=2, element=1)
    assert (program.body[label.leaf].opcode, program.body[label.leaf].dtype) == (Opcode.GATHER, DType.I64)
    for cheat, name in ((label, "labels"), (rate, "learning_rate")):
        source = program.body[program.body[cheat.leaf].operands[0].value]
        assert (source.function, source.params.name) == (SourceKind.DATA, name)  # type: ignore[union-attr]
    assert program.commits[weight.leaf - (1 << program.half_depth)].params.name == "model.hidden.weight"  # type: ignore[union-attr]
    assert [int(label.change(torch.tensor(c))) for c in range(CLASSES)] == [1, 2, 0]
    assert rate.change(torch.tensor(0.25)).item() == 0.5
    assert bits_of(weight.change(torch.tensor(0.0))) == 1


@pytest.mark.parametrize(
    ("held", "put"), [([1.0, 2.0], 2.0), ([0.5, float("nan")], float("nan")), ([1.0, 0.0], 0.0), ([1.0, -0.0], -0.0)]
)
def test_a_change_that_changes_nothing_is_an_error(held: list[float], put: float) -> None:
    cheat = tampering.Cheat(name="idle", step=1, leaf=4, element=1, change=lambda _: torch.tensor(put))
    observe = cheat.tamper(1)
    assert observe is not None
    assert [step for step in range(STEPS + 1) if cheat.tamper(step)] == [1]
    with pytest.raises(ConfigurationError, match="idle: expected the change to change something"):
        observe(4, torch.tensor(held))
    other = torch.tensor(held)
    assert observe(3, other) is other


def test_the_sign_of_a_zero_is_a_change() -> None:
    cheat = tampering.Cheat(name="sign", step=1, leaf=0, element=0, change=lambda zero: -zero)
    observe = cheat.tamper(1)
    assert observe is not None
    held = torch.tensor([0.0, 1.0])
    changed = observe(0, held)
    assert [bits_of(changed[0]), changed[1]] == [1 << 31, 1.0]
    assert bits_of(held[0]) == 0, "the honest tensor is left as it is"


def test_recomputing_with_the_same_operands_changes_nothing(workshop: Workshop) -> None:
    program, clock, seed = (
        workshop.program,
        tampering.clock(workshop.program),
        tampering.stored(workshop.program, "seed"),
    )
    shuffle, random = tampering.only(program, Opcode.SHUFFLE), tampering.only(program, Opcode.RANDOM)

    def redone(**changes: dict[int, Tensor]) -> Work:
        wanted = {shuffle: changes.get("shuffle", {}), random: changes["random"]}
        observer = tampering.redoing(program, workshop.interpreter.arithmetic, 3, wanted)
        return tampering.altered(workshop, job_of(workshop), (3,), lambda _: observer)

    assert redone(shuffle={seed: torch.tensor(11)}, random={clock: torch.tensor(2)}).lie is None
    lie = redone(random={clock: torch.tensor(3)}).lie
    assert lie is not None
    assert (lie.step, lie.leaf) == (3, random)


def test_looking_up_a_missing_or_ambiguous_instruction_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="expected one REDUCE of any name, got "):
        tampering.only(workshop.program, Opcode.REDUCE)
    with pytest.raises(ConfigurationError, match="expected one SOURCE of prices, got 0"):
        tampering.drawn(workshop.program, "prices")


# ---------------------------------------------------------------- evidence that lies about how a sum came about

FINITE = st.integers(0, (1 << 32) - 1).filter(lambda bits: bits >> 23 & 0xFF != 0xFF)


@given(FINITE)
def test_fp32_values_convert_exactly_to_integer_units(bits: int) -> None:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    assert exact_units(bits) == Fraction(value) * 2**298


def set_to(yard: Yard, value: float) -> Cheat:
    leaf = sums_of(yard.program, 12)[0]
    return Cheat(name=f"to {value}", step=3, leaf=leaf, element=7, change=lambda _: torch.tensor(value))


def both(yard: Yard, value: float) -> tuple[int, Cheat, Evidence, ForgedEvidence]:
    """The leaf and the cheat that sets one of its elements, and honest and forged evidence of it."""
    cheat, run = set_to(yard, value), yard.arena().run
    forged = ForgedEvidence(run, Tampered(yard.interpreter, cheat.tamper))
    return cheat.leaf, cheat, Evidence(run, yard.interpreter), forged


@pytest.mark.parametrize("value", [0.0, 1e-45, -3.0e38])
def test_forged_accumulators_end_in_the_claim(yard: Yard, value: float) -> None:
    leaf, cheat, honest, forged = both(yard, value)
    true, bent = (e.accumulators(3, leaf, 7).block(0) for e in (honest, forged))
    assert len(true) == len(bent) == -(-yard.program.body[leaf].terms // 4)
    same = [a == b for a, b in zip(true, bent, strict=True)]
    assert same == [k < len(true) // 2 for k in range(len(true))]
    held = [decode_for(yard.program.body[leaf], a) for a in (*true, *bent)]
    steps = [b.value - a.value for a, b in pairwise(held)]
    middle = len(true) // 2
    assert steps[: middle - 1] == steps[len(true) : len(true) + middle - 1], "all but one step is an honest sum"
    assert finish(held[-1]) == int.from_bytes(forged.tensor(3, leaf)[4 * cheat.element :][:4], "little")


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -0.0])
def test_infinite_nan_or_negative_zero_claims_are_not_forged(yard: Yard, value: float) -> None:
    leaf, _, honest, forged = both(yard, value)
    assert forged.accumulators(3, leaf, 7).root == honest.accumulators(3, leaf, 7).root


def test_without_forgery_a_sum_loses_where_its_partial_sums_are_opened(yard: Yard) -> None:
    cheat = set_to(yard, 0.125)
    duel = yard.duel(cheat, forged=False)
    assert duel is not None
    assert_caught_at(duel.match, cheat)
    verdict = duel.match.final.verdict
    assert verdict is not None
    assert (verdict.winner, verdict.reason) == (Side.CHALLENGER, Reason.CONCEDED)
    match = yard.settle(duel)
    assert_same_end(match)
    assert match.chain.record.reason is Reason.CONCEDED
