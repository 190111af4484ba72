"""The interpreter: what it is given and keeps, frees and refuses."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import Compiled
from tiebreak.engine.data.tensors import check_spec
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.isa import DType, MapFunction, Opcode
from tiebreak.protocol.program.program import Program


def chain(length: int) -> Program:
    """x -> x + 1 -> ... ; only the last of the chain is committed."""
    b = Builder()
    x = b.state("x", DType.F32, (64,))
    y = x
    for _ in range(length):
        y = b.add(y, b.const(1.0))
    return b.finish({"x": y}, b.sum(y))


def test_a_value_is_freed_after_its_last_use() -> None:
    program = chain(40)
    machine = Interpreter(program, Arithmetic())
    alive: dict[int, weakref.ref[Tensor]] = {}
    most = 0

    def observe(leaf: int, tensor: Tensor) -> Tensor:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive.values()))
        alive[leaf] = weakref.ref(tensor)
        return tensor

    gc.disable()  # freed by reference counts alone, not when the collector happens to run
    try:
        machine.step(1, {"x": torch.zeros(64)}, {}, observe)
    finally:
        gc.enable()
    assert len(program.body) > 40
    assert most <= 5  # state, constant, an operand, a result, the one before


def test_steps_do_not_write_into_what_they_were_given(tiny: Compiled) -> None:
    machine = Interpreter(tiny.program, Arithmetic())
    state, data = machine.to_device(tiny.state), machine.to_device(tiny.data)
    copies = {name: t.clone() for name, t in {**state, **data}.items()}
    first = machine.step(1, state, data)
    second = machine.step(1, state, data)
    assert all(torch.equal(t, copies[name]) for name, t in {**state, **data}.items())
    assert first.loss_bits == second.loss_bits
    assert all(torch.equal(first.state[name], second.state[name]) for name in state)


def test_what_an_observer_returns_is_used_from_then_on() -> None:
    program = chain(3)
    machine = Interpreter(program, Arithmetic())
    first_sum = next(n for n, i in enumerate(program.body) if i.opcode == Opcode.MAP and i.function == MapFunction.ADD)
    result = machine.step(
        1, {"x": torch.zeros(64)}, {}, lambda leaf, tensor: tensor + 10 if leaf == first_sum else tensor
    )
    assert result.state["x"].tolist() == [13.0] * 64
    assert result.loss == 13.0 * 64


def test_a_state_that_is_not_finite_names_step_and_tensor() -> None:
    b = Builder()
    x = b.state("x", DType.F32, ())
    program = b.finish({"x": b.mul(x, x), "y": b.add(b.state("y", DType.F32, ()), b.const(1.0))}, x)
    machine = Interpreter(program, Arithmetic())
    state = {"x": torch.tensor(1e30), "y": torch.tensor(0.0)}
    with pytest.raises(NotFiniteError, match="step 7: x is no longer finite"):
        machine.step(7, state, {})
    assert machine.step(7, state, {}, check_finite=False).state["x"].item() == float("inf")


def test_inputs_that_do_not_fit_are_refused_by_name(tiny: Compiled) -> None:
    check_spec("state", tiny.state, tiny.program.state_spec())
    check_spec("data", tiny.data, tiny.program.data_spec())
    name = next(iter(tiny.state))
    for state in (
        {k: v for k, v in tiny.state.items() if k != name},
        tiny.state | {"other": torch.zeros(1)},
        tiny.state | {name: tiny.state[name].double()},
        tiny.state | {name: tiny.state[name].reshape(-1)},
    ):
        with pytest.raises(EncodingError, match="state"):
            check_spec("state", state, tiny.program.state_spec())
