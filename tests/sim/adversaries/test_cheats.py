"""The simple cheats: what each changes, and nothing else."""

import random
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.sim.yard import CLASSES, STEPS, Yard, any_cheat, sums_of
from tiebreak.engine.data.tensors import identity
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, Opcode, SourceKind
from tiebreak.sim.adversaries import tampering

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


def test_the_catalogue_names_what_it_changes(yard: Yard) -> None:
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


def test_what_is_not_there_cannot_be_tampered_with(yard: Yard) -> None:
    with pytest.raises(ConfigurationError, match=r"expected data named 'prices', got .*'labels'"):
        tampering.gathers_of(yard.program, "prices")
    with pytest.raises(ConfigurationError, match=r"expected a state entry, got 'model\.tail'"):
        tampering.flipped_weight_bit(yard.program, state="model.tail", step=1, element=0)


@pytest.mark.parametrize("terms", [1, 5, 13, 14, 1000])
def test_long_sums(yard: Yard, terms: int) -> None:
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
