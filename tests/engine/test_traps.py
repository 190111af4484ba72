"""Traps that have forked other people's runs, each with values on which falling into it shows.

| trap | tested |
| --- | --- |
| division by a number as a product with its reciprocal | here |
| alpha of add contracted into a fused multiply-add | here |
| pow(beta, step) in Adam's bias correction | test_optimizers: the emulation multiplies, and no program takes a power |
| rsqrt, and a square root that is only faithful | here |
| libm's sin and cos in rotary embeddings | test_arithmetic_map |
| flushed subnormals, TF32, FP32 products, -0 in max | test_qualify: such devices are refused |
| random numbers that depend on the launch geometry | test_arithmetic_indexing, test_random_draws |
| seeded initialisation that depends on the instruction set | test_matrix and test_golden start from bytes |
| running statistics of batch norm | test_lowering_layers |
| tied weights | models/test_language, tiebreak/test_huggingface |
| another default dtype (`torch.set_default_dtype`) in the process that trains | here |
| a check of 5 steps that passes where 20 fork | test_matrix runs 25 |
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task, run_engine, same_bits
from tests.engine.test_lowering_accuracy import Elementwise
from tiebreak.engine.capture.captured import capture_task
from tiebreak.protocol.numbers import float32


def bits(tensor: Tensor) -> list[int]:
    return [b & 0xFFFFFFFF for b in tensor.contiguous().view(torch.int32).flatten().tolist()]


def result_of(function: Callable[[Tensor], Tensor], x: Tensor) -> list[int]:
    task = make_task(Elementwise(lambda v: function(v).detach() + 0 * v, x), {"unused": torch.zeros(1, 1)}, 1)
    return bits(run_engine(capture_task(task))["model.y"])


X = torch.tensor([5.0, 7.0, 11.0, 0.1, 1e-39, 16777215.0, 0.99999994, 3.3333333])


def test_division_by_a_constant_is_not_a_reciprocal_multiplication() -> None:
    three, third = float32.divide(0x40400000, 0x3F800000), float32.divide(0x3F800000, 0x40400000)
    exact = [float32.divide(x, three) for x in bits(X)]
    by_reciprocal = [float32.multiply(x, third) for x in bits(X)]
    assert exact != by_reciprocal  # the values can tell
    assert result_of(lambda x: x / 3, X) == exact


def test_add_with_alpha_rounds_the_product_separately() -> None:
    many = torch.arange(1, 400, dtype=torch.float32) * 0.7
    tenth = bits(torch.tensor([0.1]))[0]
    squares = [float32.multiply(x, x) for x in bits(many)]
    exact = [float32.add(x, float32.multiply(tenth, s)) for x, s in zip(bits(many), squares, strict=True)]
    fused = bits((many.double() + torch.tensor([0.1]).double() * many.square().double()).float())
    assert exact != fused
    assert result_of(lambda x: torch.add(x, x * x, alpha=0.1), many) == exact


def test_sqrt_is_correctly_rounded_and_rsqrt_divides_one_by_it() -> None:
    roots = [float32.square_root(x) for x in bits(X)]
    assert result_of(torch.sqrt, X) == roots
    assert result_of(torch.rsqrt, X) == [float32.divide(0x3F800000, root) for root in roots]


@pytest.mark.usefixtures("kernel")
def test_the_default_dtype_of_the_process_changes_no_bit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Dropout(0.2), nn.Linear(4, 3), nn.LayerNorm(3), nn.GELU())
    data = {"x": torch.arange(24).reshape(8, 3) % 7}
    captured = capture_task(make_task(model, data, 4, loss=lambda m, x: (m(x).sort(1).values ** 2).cumsum(1).mean()))
    expected = run_engine(captured, 3)
    torch.set_default_dtype(torch.float64)
    try:
        found = run_engine(captured, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same_bits(found | {"loss": found["loss"].float()}, expected) == []
