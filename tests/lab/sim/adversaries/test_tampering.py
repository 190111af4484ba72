"""What stands in the place of honest values, and what each simple cheat changes: nothing else."""

import random
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.lab.sim.adversaries.playing import job_of
from tests.lab.sim.yard import CLASSES, STEPS, Yard, any_cheat, sums_of
from tiebreak.engine.data.tensors import identity
from tiebreak.lab.sim.adversaries import tampering
from tiebreak.lab.sim.adversaries.forgery import deviating
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.errors import ConfigurationError
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


def test_tampering_with_unknown_data_or_state_is_refused(yard: Yard) -> None:
    with pytest.raises(ConfigurationError, match=r"expected data named 'prices', got .*'labels'"):
        tampering.gathers_of(yard.program, "prices")
    with pytest.raises(ConfigurationError, match=r"expected a state entry, got 'model\.tail'"):
        tampering.flipped_weight_bit(yard.program, state="model.tail", step=1, element=0)


@pytest.mark.parametrize("terms", [1, 5, 13, 14, 1000])
def test_long_sums_finds_fp32_sums_with_enough_terms(yard: Yard, terms: int) -> None:
    found = set(tampering.long_sums(yard.program, terms))
    for n, i in enumerate(yard.program.body):
        is_sum = i.opcode == Opcode.REDUCE and i.function == 0 and i.dtype == DType.F32
        assert (n in found) == (is_sum and i.terms >= terms)


def test_a_cheat_touches_one_element_of_one_value_of_one_step(yard: Yard) -> None:
    leaf = sums_of(yard.program, 4)[0]
    cheat = any_cheat(yard.program, leaf, step=2, rng=random.Random(1))
    machine, initial = yard.interpreter, yard.arena().run
    state, data = machine.to_device(initial.state(0)), machine.to_device(initial.data())
    assert [step for step in range(STEPS + 1) if cheat.tamper(step)] == [2]
    seen: dict[bool, list[Tensor]] = {True: [], False: []}

    def recorder(tampered: bool, number: int, value: Tensor) -> Tensor:
        given = cheat.tamper(2)(number, value) if tampered else value  # type: ignore[misc]
        seen[tampered].append(given.clone())
        return given

    for tampered in (True, False):
        machine.step(2, state, data, lambda n, v, t=tampered: recorder(t, n, v))  # type: ignore[misc]
    differing = [n for n, (a, b) in enumerate(zip(*seen.values(), strict=True)) if identity(a) != identity(b)]
    assert differing[0] == leaf
    changed = (seen[True][leaf] != seen[False][leaf]).flatten().nonzero().flatten().tolist()
    assert changed == [cheat.element]


@pytest.mark.parametrize(
    ("held", "put"), [([1.0, 2.0], 2.0), ([0.5, float("nan")], float("nan")), ([1.0, 0.0], 0.0), ([1.0, -0.0], -0.0)]
)
def test_a_change_that_changes_nothing_is_an_error(held: list[float], put: float) -> None:
    cheat = tampering.Cheat(name="idle", step=1, leaf=4, element=1, change=lambda _: torch.tensor(put))
    observe = cheat.tamper(1)
    assert observe is not None
    with pytest.raises(ConfigurationError, match="idle: expected the change to change something"):
        observe(4, torch.tensor(held))
    other = torch.tensor(held)
    assert observe(3, other) is other


def test_the_sign_of_a_zero_is_a_change() -> None:
    cheat = tampering.Cheat(name="sign", step=1, leaf=0, element=0, change=lambda zero: -zero)
    observe = cheat.tamper(1)
    assert observe is not None
    held = torch.tensor([0.0, 1.0])
    assert bits_of(observe(0, held)[0]) == 1 << 31
    assert bits_of(held[0]) == 0, "the honest tensor is left as it is"


def test_a_deviation_applies_only_to_its_steps() -> None:
    observer = tampering.putting({})
    tamper = tampering.during((2, 5), lambda _: observer)
    assert [step for step in range(8) if tamper(step)] == [2, 5]


def test_combined_observers_apply_in_order() -> None:
    both = tampering.together(
        tampering.putting({1: lambda x: x + 1}), tampering.putting({1: lambda x: x * 10, 2: lambda x: -x})
    )
    one = torch.tensor(1.0)
    assert [both(leaf, one).item() for leaf in (0, 1, 2)] == [1, 20, -1]
    assert one.item() == 1


def test_every_entry_of_the_state_is_read_and_committed(workshop: Workshop) -> None:
    names = list(workshop.program.state_spec())
    assert sorted(tampering.state_sources(workshop.program).values()) == names
    assert list(tampering.commits_by_leaf(workshop.program).values()) == names


def test_recomputing_with_the_same_operands_changes_nothing(workshop: Workshop) -> None:
    program, machine = workshop.program, workshop.interpreter.arithmetic
    clock, seed = tampering.source(program, SourceKind.STEP), tampering.source(program, SourceKind.DATA, "seed")
    shuffle, drawn = tampering.only(program, Opcode.SHUFFLE), tampering.only(program, Opcode.RANDOM)
    same = tampering.during(
        (3,),
        lambda step: tampering.redoing(
            program, machine, step, {shuffle: {seed: torch.tensor(11)}, drawn: {clock: torch.tensor(step - 1)}}
        ),
    )
    assert deviating(workshop, job_of(workshop), same, first_step=3).lie is None
    other = tampering.during(
        (3,), lambda step: tampering.redoing(program, machine, step, {drawn: {clock: torch.tensor(step)}})
    )
    lie = deviating(workshop, job_of(workshop), other, first_step=3).lie
    assert lie is not None
    assert (lie.step, lie.leaf) == (3, drawn)


def test_committed_state_may_be_kept_from_the_step_before(workshop: Workshop) -> None:
    program = workshop.program
    new = tampering.during((4,), lambda _: tampering.committing(program, lambda _name, new, _old: new))
    assert deviating(workshop, job_of(workshop), new, first_step=4).lie is None
    old = tampering.during((4,), lambda _: tampering.committing(program, lambda _name, _new, old: old))
    work = deviating(workshop, job_of(workshop), old, first_step=4)
    assert work.oracle.record(4).state_root == work.oracle.record(3).state_root


def test_looking_up_a_missing_or_ambiguous_instruction_is_refused(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="expected one REDUCE of anything, got "):
        tampering.only(workshop.program, Opcode.REDUCE)
    with pytest.raises(ConfigurationError, match="expected one GATHER of prices, got 0"):
        tampering.only(workshop.program, Opcode.GATHER, "prices")
    with pytest.raises(ConfigurationError, match="expected one source DATA prices, got 0"):
        tampering.source(workshop.program, SourceKind.DATA, "prices")
