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
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.program.isa import DType
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
