"""Functions of several instructions where they end: zeros, infinities, NaN, poles and what lies beyond a domain."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, run_engine, run_integers, same_bits
from tests.engine.test_lowering_accuracy import Elementwise, values_of
from tests.parts import slow_except
from tiebreak.engine.capture.captured import capture_task
from tiebreak.protocol.errors import ConfigurationError

INFINITE, NOTHING = 777.0, 555.0
"""Stand for infinity and NaN, which no state holds before a step."""
NUMBERS = [0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, -2.5, 1e30, -1e30, 1e-40, 2.0**24, -(2.0**24) - 2.0, 3e38]
ALL = [*NUMBERS, INFINITE, -INFINITE, NOTHING]
ONE = {
    "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "lgamma": torch.lgamma, "digamma": torch.digamma,
    "x^0.7": lambda x: x**0.7, "x^-65": lambda x: x**-65.0,
    "expm1": torch.expm1, "log1p": torch.log1p, "sinh": torch.sinh, "cosh": torch.cosh, "exp2": torch.exp2,
    "erfc": torch.erfc, "sign": torch.sign,
    "x^65": lambda x: x**65.0, "0^x": lambda x: 0.0**x, "(-2)^x": lambda x: (-2.0) ** x,
}  # fmt: skip
TWO = {"pow": torch.pow, "atan2": torch.atan2, "fmax": torch.fmax, "floor": torch.floor_divide}
QUOTIENTS = {"remainder": torch.remainder, "fmod": torch.fmod}
TOLERANCE = 5e-5
"""Larger bounds where a value is the small difference of large ones: digamma at -1/2."""


def _meant(x: Tensor) -> Tensor:
    x = torch.where(x == INFINITE, math.inf, torch.where(x == -INFINITE, -math.inf, x))
    return torch.where(x == NOTHING, math.nan, x)


def _differ(function: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[float, float, float]]:
    """x, the value found and eager PyTorch's in FP64, rounded to FP32, where they differ."""
    task = make_task(Elementwise(lambda v: function(_meant(v)).detach() + v * 0, x), {"u": torch.zeros(1, 1)}, batch=1)
    found = values_of(capture_task(task))["model.y"]
    expected = function(_meant(x.double())).float()
    same = (
        (found == expected)
        | (found.isnan() & expected.isnan())
        | ((found - expected).abs() < TOLERANCE * (expected.abs() + 1e-30))
    )
    return [(x[k].item(), found[k].item(), expected[k].item()) for k in torch.nonzero(~same).flatten().tolist()]


@pytest.mark.parametrize("name", ONE)
def test_unary_functions_match_torch_at_edge_values(name: str, cases: CaseCounter) -> None:
    x = torch.tensor(ALL)
    assert _differ(ONE[name], x) == []
    cases(len(x))


@pytest.mark.parametrize("name", TWO)
def test_binary_functions_match_torch_at_edge_values(name: str, cases: CaseCounter) -> None:
    x, y = (part.flatten() for part in torch.meshgrid(torch.tensor(ALL), torch.tensor(ALL), indexing="ij"))
    assert _differ(lambda v: TWO[name](v, _meant(y.to(v.dtype))), x) == []
    cases(len(x))


@pytest.mark.parametrize("name", QUOTIENTS)
def test_remainders_match_torch_near_whole_quotients(name: str, cases: CaseCounter) -> None:
    """Multiples and their neighbours have rounded quotients that are whole. Remainders of large quotients are NaN."""
    g = torch.Generator().manual_seed(2)
    x, y = (part.flatten() for part in torch.meshgrid(torch.tensor(ALL), torch.tensor(ALL), indexing="ij"))
    steps = torch.randn(500, generator=g) * torch.ldexp(torch.ones(500), torch.randint(-60, 60, (500,), generator=g))
    multiples = steps * torch.randint(-(1 << 20), 1 << 20, (500,), generator=g)
    near = [multiples, *(multiples.nextafter(torch.tensor(end)) for end in (math.inf, -math.inf))]
    x, y = torch.cat([x, *near]), torch.cat([y, *(steps,) * 3])

    def function(v: Tensor) -> Tensor:
        divisor = _meant(y.to(v.dtype))
        found = QUOTIENTS[name](v, divisor)
        if v.dtype == torch.float64:
            large = ~((v / divisor).trunc().abs() < 2.0**24)
            found = torch.where(large & ~divisor.isinf(), math.nan, found)
        return found

    assert _differ(function, x) == []
    cases(len(x))


def test_gamma_functions_match_torch_between_their_poles(cases: CaseCounter) -> None:
    g = torch.Generator().manual_seed(1)
    wide = torch.ldexp(1 + torch.rand(97, generator=g), torch.arange(-75, 22))
    x = -torch.cat([12 * torch.rand(300, generator=g), wide])
    assert _differ(lambda v: torch.lgamma(v) + 20 * v.abs() + 20, x) == []  # there are zeros
    x = x[(x != x.round()) & (x < -0.001)]
    sine = torch.sin(math.pi * (x.double() - x.double().round()))
    assert _differ(lambda v: sine.to(v.dtype) * torch.digamma(v) + 20, x) == []
    assert _differ(lambda v: sine.to(v.dtype) ** 2 * torch.special.polygamma(1, v), x) == []
    cases(3 * len(x))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x.long() ** x.long()).float() + x, "pow of integers by a tensor"),
        (lambda x: torch.special.polygamma(2, x), "polygamma of an order above 1"),
        *[(lambda x: x.norm(p=-1), "vector norm of a negative order")] * (torch.__version__ < "2.14"),  # then composed
        (lambda x: x + torch.arange(0, 0.2, 0.1), "arange with fractions other than multiples of 2"),
    ],
)
def test_functions_without_a_lowering_are_refused(function: Callable[[Tensor], Tensor], message: str) -> None:
    task = make_task(Elementwise(function, torch.ones(2)), {"u": torch.zeros(1, 1)}, batch=1)
    with pytest.raises(ConfigurationError, match=message):
        capture_task(task)


DTYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs, with the ends of the type among them, and distances to shift by, some of them out of range."""
    ends = torch.iinfo(dtype)
    drawn = torch.randint(ends.min, ends.max, (24,), dtype=dtype, generator=torch.Generator().manual_seed(1))
    x = torch.cat([torch.tensor([ends.min, ends.min + 1, 0, 1, ends.max - 1, ends.max], dtype=dtype), drawn])
    out_of_range = [ends.bits, ends.bits + 1, -1 if ends.min else 200]
    return x[:, None], x, torch.tensor([*range(ends.bits), *out_of_range], dtype=dtype)


class Bits(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.parameter = nn.Parameter(torch.zeros(1))
        for name, value in zip(("x", "y", "by"), operands(dtype), strict=True):
            self.register_buffer(name, value.long())  # a state holds no other integers
        for number, result in enumerate(self.results()):
            self.register_buffer(f"result_{number}", torch.zeros_like(result.long()))

    def results(self) -> list[Tensor]:
        x, y, by = (v.to(self.dtype) for v in (self.x, self.y, self.by))
        shifts = [x << by, x >> by, x << 3, x >> 2, 5 << by, 100 >> by]
        return [x & y, x | y, x ^ y, ~x, x & 7, x | 64, x ^ 85, 12 & x, *shifts]

    def forward(self, unused: Tensor) -> Tensor:
        for number, result in enumerate(self.results()):
            getattr(self, f"result_{number}").copy_(result)
        return (self.parameter * unused).sum()


@pytest.mark.parametrize("dtype", slow_except(DTYPES, torch.uint8), ids=str)
def test_bitwise_operations_match_torch_and_the_integer_reference(dtype: torch.dtype, cases: CaseCounter) -> None:
    model = Bits(dtype)
    captured = capture_task(make_task(model, {"u": torch.ones(1, 1)}, batch=1))
    found = run_engine(captured)
    for number, expected in enumerate(model.results()):
        assert found[f"model.result_{number}"].equal(expected.long()), f"result {number} of {dtype}"
        cases(expected.numel())
    assert same_bits(found, run_integers(captured)) == []
