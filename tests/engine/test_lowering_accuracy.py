"""Functions of one number or two: their accuracy as docs/OPERATORS.md says, against mpmath, and their ends.

Ends are zeros, infinities, NaN, poles and what lies beyond a domain. The page is also compared with the registry.
"""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scripts.operators import ACCURACY, table
from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, run_engine, run_integers, same_bits, stepped
from tests.parts import slow_except
from tests.source_tree import ROOT
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.lowering import RULES, WHOLE
from tiebreak.protocol.errors import ConfigurationError

mp = mpmath.mp.clone()
mp.prec = 400
Exact = Callable[[mpmath.mpf], mpmath.mpf]
_SINGLE = float(torch.tensor(0.7))


def _sigmoid(x: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mp.exp(-x))


def _logistic(x: mpmath.mpf) -> mpmath.mpf:
    """The share of exp(x) in exp(x) + exp(1)."""
    return _sigmoid(x - 1)


def _log_sum(x: mpmath.mpf) -> mpmath.mpf:
    return mp.log(mp.exp(x) + mp.e)


def _beside(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of rows, of x and ones."""
    return lambda x: function(torch.stack([x, torch.ones_like(x)]))


def _sech2(x: mpmath.mpf) -> mpmath.mpf:
    return mp.sech(x) ** 2


def _normal(x: mpmath.mpf) -> mpmath.mpf:
    return mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)


def _tanh_form(x: mpmath.mpf) -> mpmath.mpf:
    return mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)


def _gelu_tanh(x: mpmath.mpf) -> mpmath.mpf:
    return x * _sigmoid(2 * _tanh_form(x))


def _gelu_tanh_slope(x: mpmath.mpf) -> mpmath.mpf:
    s, inner = _sigmoid(2 * _tanh_form(x)), mp.sqrt(2 / mp.pi) * (1 + 3 * mp.mpf("0.044715") * x**2)
    return s + x * s * (1 - s) * 2 * inner


def _deviation(x: mpmath.mpf) -> mpmath.mpf:
    return mp.sqrt(2 * (x * x - x + 1) / 9 + mp.mpf(2) ** -16)


def _mish_slope(x: mpmath.mpf) -> mpmath.mpf:
    t = mp.tanh(mp.log1p(mp.exp(x)))
    return t + x * (1 - t * t) * _sigmoid(x)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Exact, Exact]] = {
    "expm1": (torch.expm1, mp.expm1, mp.exp),
    "exp2": (torch.exp2, lambda x: mp.mpf(2) ** x, lambda x: mp.log(2) * mp.mpf(2) ** x),
    "log1p": (torch.log1p, mp.log1p, lambda x: 1 / (1 + x)),
    "log2": (torch.log2, lambda x: mp.log(x) / mp.log(2), lambda x: 1 / (x * mp.log(2))),
    "log10": (torch.log10, mp.log10, lambda x: 1 / (x * mp.log(10))),
    "sinh": (torch.sinh, mp.sinh, mp.cosh),
    "cosh": (torch.cosh, mp.cosh, mp.sinh),
    "tan": (torch.tan, mp.tan, lambda x: 1 + mp.tan(x) ** 2),
    "tanh": (torch.tanh, mp.tanh, _sech2),
    "erf": (torch.erf, mp.erf, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-x * x)),
    "erfc": (torch.erfc, mp.erfc, lambda x: -2 / mp.sqrt(mp.pi) * mp.exp(-x * x)),
    "rsqrt": (torch.rsqrt, lambda x: 1 / mp.sqrt(x), lambda x: -1 / (2 * x * mp.sqrt(x))),
    "sigmoid": (torch.sigmoid, _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    "logsigmoid": (F.logsigmoid, lambda x: -mp.log1p(mp.exp(-x)), lambda x: _sigmoid(-x)),
    "softplus": (lambda x: F.softplus(x, threshold=80.0), lambda x: mp.log1p(mp.exp(x)), _sigmoid),
    "silu": (F.silu, lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    "mish": (F.mish, lambda x: x * mp.tanh(mp.log1p(mp.exp(x))), _mish_slope),
    "gelu": (F.gelu, lambda x: x * mp.ncdf(x), lambda x: mp.ncdf(x) + x * _normal(x)),
    "gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), _gelu_tanh, _gelu_tanh_slope),
    "elu": (F.elu, lambda x: x if x > 0 else mp.expm1(x), lambda x: mp.mpf(1) if x > 0 else mp.exp(x)),
    "logit": (torch.logit, lambda x: mp.log(x / (1 - x)), lambda x: 1 / (x * (1 - x))),
    "logaddexp": (lambda x: torch.logaddexp(x, torch.ones(())), _log_sum, _logistic),
    "sinc": (torch.sinc, mp.sincpi, lambda x: (mp.cospi(x) - mp.sincpi(x)) / x if x else mp.mpf(0)),
    "softmax": (_beside(lambda rows: F.softmax(rows, 0)[0]), _logistic, lambda x: _logistic(x) * _logistic(2 - x)),
    "log_softmax": (
        _beside(lambda rows: F.log_softmax(rows, 0)[0]),
        lambda x: x - _log_sum(x),
        lambda x: _logistic(2 - x),
    ),
    "logsumexp": (_beside(lambda rows: torch.logsumexp(rows, 0)), _log_sum, _logistic),
    "mean": (
        lambda x: torch.stack([x, torch.ones_like(x), x]).mean(0),
        lambda x: (2 * x + 1) / 3,
        lambda _: mp.mpf(2) / 3,
    ),
    "var": (
        lambda x: torch.stack([x, torch.ones_like(x), torch.zeros_like(x)]).var(0),
        lambda x: (x * x - x + 1) / 3,
        lambda x: (2 * x - 1) / 3,
    ),
    "norm": (
        lambda x: torch.linalg.vector_norm(torch.stack([x, torch.ones_like(x)]), dim=0),
        lambda x: mp.sqrt(x * x + 1),
        lambda x: x / mp.sqrt(x * x + 1),
    ),
    "layer_norm": (
        lambda x: F.layer_norm(torch.stack([x, torch.ones_like(x), torch.zeros_like(x)], 1), (3,), eps=2.0**-16)[:, 0],
        lambda x: (2 * x - 1) / 3 / _deviation(x),
        lambda x: mp.mpf(2) / 3 / _deviation(x) - ((2 * x - 1) / 3) ** 2 / (3 * _deviation(x) ** 3),
    ),
    "x^1.5": (lambda x: x**1.5, lambda x: x * mp.sqrt(x), lambda x: mp.mpf(1.5) * mp.sqrt(x)),
    "x^-2": (lambda x: x**-2, lambda x: x**-2, lambda x: -2 * x**-3),
    "x^5": (lambda x: x**5, lambda x: x**5, lambda x: 5 * x**4),
    "x^0.7": (lambda x: x**0.7, lambda x: x ** mp.mpf(_SINGLE), lambda x: _SINGLE * x ** (mp.mpf(_SINGLE) - 1)),
    "3^x": (lambda x: 3.0**x, lambda x: mp.mpf(3) ** x, lambda x: mp.log(3) * mp.mpf(3) ** x),
    "atan": (torch.atan, mp.atan, lambda x: 1 / (1 + x * x)),
    "atan2": (lambda x: torch.atan2(x, torch.tensor(3.0)), lambda x: mp.atan(x / 3), lambda x: 3 / (9 + x * x)),
    "asin": (torch.asin, mp.asin, lambda x: 1 / mp.sqrt(1 - x * x)),
    "acos": (torch.acos, mp.acos, lambda x: -1 / mp.sqrt(1 - x * x)),
    "asinh": (torch.asinh, mp.asinh, lambda x: 1 / mp.sqrt(1 + x * x)),
    "acosh": (torch.acosh, mp.acosh, lambda x: 1 / mp.sqrt(x * x - 1)),
    "atanh": (torch.atanh, mp.atanh, lambda x: 1 / (1 - x * x)),
    "lgamma": (torch.lgamma, mp.loggamma, mp.digamma),
    "digamma": (torch.digamma, mp.digamma, lambda x: mp.polygamma(1, x)),
}
POSITIVE = {"log2", "log10", "rsqrt", "x^1.5", "x^-2", "x^0.7", "acosh", "lgamma", "digamma"}
WITHIN_ONE = {"asin", "acos", "atanh"}


def inputs(name: str, seed: int, count: int) -> Tensor:
    """Numbers of every binade, and more of them where functions overflow, underflow or turn."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=g)

    binades = torch.ldexp(1 + torch.rand(277, generator=g), torch.arange(-149, 128))
    x = torch.cat([binades, draw(0, 0.7), draw(0, 4), draw(0, 12), draw(0, 110), draw(86, 90)])
    if name == "rsqrt":  # below, the cube of the result, which the gradient takes, overflows
        return binades[binades > 2.0**-84]
    if name == "logit":
        return torch.cat([binades[binades < 0.9], draw(0, 1)])
    if name in WITHIN_ONE:
        x = torch.cat([binades[binades < 1], draw(0, 1), 1 - torch.exp2(-24 * draw(0, 1))])
    if name == "acosh":
        x = torch.cat([binades[binades > 1], draw(1, 2), 1 + torch.exp2(-23 * draw(0, 1))])
    x = x if name in POSITIVE else torch.cat([x, torch.zeros(1), draw(-1, 0) if name == "log1p" else -x])
    return x[x.abs() <= REACH.get(name, math.inf)]


REACH = {
    "sinc": 2.0**120,
    "softplus": 79.0,
    "mean": 2.0**126,
    **dict.fromkeys(("var", "norm", "layer_norm", "asinh", "acosh"), 2.0**62),
    **dict.fromkeys(WITHIN_ONE, 1 - 2.0**-24),
}
"""The limit up to which a function keeps its accuracy; beyond, parts overflow, here as in eager FP32."""


UNITS: dict[str, Callable[[float], float]] = {
    "x": abs,
    "1 + 1/x": lambda x: 1 + 1 / abs(x) if x else 1.0,
    "(1 - x^2)^-1.5": lambda x: (1 - x * x) ** -1.5,
    "(x^2 - 1)^-1.5": lambda x: (x * x - 1) ** -1.5,
    "(1 - x^2)^-2": lambda x: (1 - x * x) ** -2,
}


class Elementwise(nn.Module):
    """f at fixed places: its values become a buffer, and its gradient is that of a parameter of zeros."""

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        super().__init__()
        self.function = function
        self.zero = nn.Parameter(torch.zeros(x.shape))
        self.register_buffer("x", x)
        self.register_buffer("y", torch.zeros(x.shape))

    def forward(self, unused: Tensor) -> Tensor:
        y = self.function(self.x + self.zero)
        self.y.copy_(y.detach())
        return y.sum() + 0 * unused.sum()


def values_of(captured: Captured) -> dict[str, Tensor]:
    """The new state, which may hold what is not finite."""
    return next(stepped(captured, check_finite=False)).state


def values_and_gradients(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    task = make_task(Elementwise(FUNCTIONS[name][0], x), {"u": torch.zeros(1, 1)}, batch=1)
    state = values_of(capture_task(task))
    return state["model.y"], -state["model.zero"]


def error(found: float, exact: mpmath.mpf, unit: float) -> float:
    """The error in ulp of the greatest of the exact value, `unit` and 2^-126; infinity stands for 2^128."""
    if math.isnan(found):
        return math.inf
    value, exact = (mp.sign(v) * min(abs(v), mp.mpf(2) ** 128) for v in (mp.mpf(found), exact))
    size = max(abs(exact), mp.mpf(unit), mp.mpf(2) ** -126)
    return float(abs(value - exact) / mp.mpf(2) ** (mp.floor(mp.log(size, 2)) - 23))


def far(name: str, seed: int, count: int) -> list[str]:
    """Whether the function or its gradient has a greater error than is said, and where."""
    x = inputs(name, seed, count)
    stated, found = ACCURACY[name], []
    for values, exact, limit, unit in zip(
        values_and_gradients(name, x), FUNCTIONS[name][1:], stated[::2], stated[1::2], strict=True
    ):
        units = [UNITS[unit](v) if isinstance(unit, str) else unit for v in x.tolist()]
        errors = [error(y, exact(mp.mpf(v)), u) for y, v, u in zip(values.tolist(), x.tolist(), units, strict=True)]
        worst = max(errors)
        if worst > limit:
            found.append(f"{name}: {worst} ulp at {x[errors.index(worst)].item()}, not {limit}")
    return found


@pytest.mark.parametrize("name", slow_except(FUNCTIONS, "expm1", "exp2", "log1p", "sinh", "erfc"))
def test_composed_functions_are_as_accurate_as_documented(name: str, cases: CaseCounter) -> None:
    assert far(name, 2, 8) == []
    cases(2)


def test_the_operators_page_names_the_measured_functions() -> None:
    assert list(FUNCTIONS) == list(ACCURACY)


def test_the_operators_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "OPERATORS.md").read_text() == table(), "run python -m scripts.operators docs/OPERATORS.md"


def test_every_operator_is_documented_on_the_operators_page() -> None:
    page = table()
    assert all(f"`{operator.rpartition('.')[0]}" in page for operator in RULES)
    assert RULES.keys() >= WHOLE
    bare = [operator for operator, rule in RULES.items() if not rule.__doc__]
    assert not bare, f"rules without a docstring: {bare}"


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
