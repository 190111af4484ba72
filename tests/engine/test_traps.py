"""Traps that have forked other people's runs, each with values on which falling into it shows.

| trap | tested |
| --- | --- |
| division by a number as a product with its reciprocal | here |
| alpha of add contracted into a fused multiply-add | here |
| pow(beta, step) in Adam's bias correction | here |
| rsqrt, and a square root that is only faithful | here |
| libm's sin and cos in rotary embeddings | here, and test_arithmetic_map |
| flushed subnormals, TF32, FP32 products, -0 in max | test_qualify: such devices are refused |
| random numbers that depend on the launch geometry | here |
| seeded initialisation that depends on the instruction set | here; test_matrix and test_golden start from bytes |
| running statistics of batch norm | test_lowering_layers |
| tied weights | test_capture |
| a check of 5 steps that passes where 20 fork | test_matrix runs 25 |
"""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task, run_engine
from tests.engine.test_lowering_accuracy import Elementwise
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.compile import compile_task
from tiebreak.engine.capture.task import AdamW
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.numbers import float32, transcendental
from tiebreak.protocol.numbers.philox import random_bits
from tiebreak.protocol.program.isa import MapFunction, Opcode


def bits(tensor: Tensor) -> list[int]:
    return [b & 0xFFFFFFFF for b in tensor.contiguous().view(torch.int32).flatten().tolist()]


def result_of(function: Callable[[Tensor], Tensor], x: Tensor) -> list[int]:
    """Bits of an operation's result after one step of the captured program."""
    task = make_task(Elementwise(lambda v: function(v).detach() + 0 * v, x), {"unused": torch.zeros(1, 1)}, 1)
    return bits(run_engine(compile_task(task))["model.y"])


X = torch.tensor([5.0, 7.0, 11.0, 0.1, 1e-39, 16777215.0, 0.99999994, 3.3333333])


def test_division_by_a_number_is_a_division() -> None:
    three, third = float32.divide(0x40400000, 0x3F800000), float32.divide(0x3F800000, 0x40400000)
    exact = [float32.divide(x, three) for x in bits(X)]
    by_reciprocal = [float32.multiply(x, third) for x in bits(X)]
    assert exact != by_reciprocal  # the values can tell
    assert result_of(lambda x: x / 3, X) == exact


def test_alpha_is_an_instruction_of_its_own() -> None:
    many = torch.arange(1, 400, dtype=torch.float32) * 0.7
    tenth = bits(torch.tensor([0.1]))[0]
    squares = [float32.multiply(x, x) for x in bits(many)]
    exact = [float32.add(x, float32.multiply(tenth, s)) for x, s in zip(bits(many), squares, strict=True)]
    fused = bits((many.double() + torch.tensor([0.1]).double() * many.square().double()).float())
    assert exact != fused
    assert result_of(lambda x: torch.add(x, x * x, alpha=0.1), many) == exact


def test_roots_are_correctly_rounded_and_the_inverse_one_is_a_quotient() -> None:
    roots = [float32.square_root(x) for x in bits(X)]
    assert result_of(torch.sqrt, X) == roots
    assert result_of(torch.rsqrt, X) == [float32.divide(0x3F800000, root) for root in roots]


def test_rotary_embeddings_do_not_ask_libm() -> None:
    angles = torch.arange(4000, dtype=torch.float32) * 0.37
    exact_sin = [transcendental.sin(x) for x in bits(angles)]
    assert bits(torch.sin(angles)) != exact_sin  # FP32 libraries are faithful at best
    exact = [float32.add(s, transcendental.cos(x)) for s, x in zip(exact_sin, bits(angles), strict=True)]
    assert result_of(lambda x: torch.sin(x) + torch.cos(x), angles) == exact


def test_bias_correction_multiplies_and_never_takes_a_power() -> None:
    compiled = compile_task(make_task(nn.Linear(3, 1), {"x": torch.ones(4, 3)}, optimizer=AdamW(lr=0.1),
                                      loss=lambda model, x: model(x).sum(), steps=30))  # fmt: skip
    used = {MapFunction(i.function) for i in compiled.program.body if i.opcode == Opcode.MAP}
    assert not used & {MapFunction.EXP, MapFunction.LOG}
    beta, power = bits(torch.tensor([0.999]))[0], 0x3F800000
    for _ in range(30):
        power = float32.multiply(power, beta)
    assert bits(run_engine(compiled, 30)["optimizer.beta2_power"][None]) == [power]
    assert power != bits(torch.tensor([0.999**30]))[0]  # what pow would have given


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4)])
def test_random_numbers_depend_on_the_element_and_nothing_else(shape: tuple[int, ...]) -> None:
    b = Builder()
    drawn = b.random(shape)
    program = b.finish({"drawn": drawn}, b.sum(drawn))
    machine = Interpreter(program, Arithmetic())
    state = machine.to_device({"drawn": torch.zeros(shape)})
    result = machine.step(5, state, {"seed": torch.tensor(99)})
    assert bits(result.state["drawn"]) == [random_bits(99, 4, 0, i) for i in range(24)]


@pytest.mark.slow
def test_seeded_initialisation_forks_so_the_initial_state_is_bytes() -> None:
    script = (
        "import torch, hashlib; torch.manual_seed(0); "
        "print(torch.backends.cpu.get_cpu_capability(), "
        "hashlib.sha256(torch.empty(4096).normal_().numpy().tobytes()).hexdigest())"
    )
    own = {k: v for k, v in os.environ.items() if k != "ATEN_CPU_CAPABILITY"}
    digests = dict(
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for environment in (own, own | {"ATEN_CPU_CAPABILITY": "default"})
    )
    # If this ever fails, torch has made its generators portable: then the trap is gone, not the reason for bytes.
    assert len(set(digests.values())) == len(digests)  # one digest where a machine has one instruction set
