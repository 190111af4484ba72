"""Draws inside a step: bits by an oracle of many digits, distributions, and eager PyTorch on the same numbers."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import islice
from threading import Thread
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task, run_engine, run_integers, same_bits, stepped
from tests.engine.optimizer_cases import nearest, rounded
from tests.parts import slow_except
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.capture.task import Task
from tiebreak.engine.lowering import RULES, Context
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.philox import random_bits, shuffle
from tiebreak.protocol.program.isa import DType, Opcode, RandomParams, ShuffleParams

SEED = 77
MEAN, SPREAD = torch.tensor([-2.0, 0.5, 3.0]), torch.tensor([0.25, 1.0, 7.0])
CHANCES = torch.tensor([0.1, 0.0, 0.2, 0.7, 0.0])


class Drawing(nn.Module):
    def __init__(self, draw: Callable[[], Tensor]) -> None:
        super().__init__()
        self.draw = draw
        with torch.random.fork_rng(devices=[]):
            drawn = draw()
        self.register_buffer("seen", torch.zeros_like(drawn))
        self.weight = nn.Parameter(torch.ones(drawn.shape))

    def forward(self, x: Tensor) -> Tensor:
        drawn = self.draw()
        self.seen.copy_(drawn)
        return (self.weight * drawn).mean() + x.mean()


def task_of(model: nn.Module, steps: int = 3) -> Task:
    return make_task(model, {"x": torch.ones(4, 2)}, rate=1e-3, steps=steps, seed=SEED)


def seen(draw: Callable[[], Tensor], steps: int = 3) -> tuple[list[Tensor], int]:
    """What each step drew, and the stream that it was drawn from."""
    captured = capture_task(task_of(Drawing(draw), steps))
    params = [i.params for i in captured.program.body]
    streams = [p.stream for p in params if isinstance(p, RandomParams)]
    streams += [p.stream for p in params if isinstance(p, ShuffleParams) and not streams and p.n != 4]
    return [result.state["model.seen"].clone() for result in islice(stepped(captured), steps)], streams[0]


DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(3, 5),
    "uniform_": lambda: torch.empty(3, 5).uniform_(-2.0, 0.5),
    "randn": lambda: torch.randn(3, 5),
    "randn_like": lambda: torch.randn_like(torch.ones(3, 5)),
    "normal_": lambda: torch.empty(3, 5).normal_(1.5, 0.3),
    "normal, tensors": lambda: torch.normal(MEAN, SPREAD),
    "normal, numbers": lambda: torch.normal(1.0, 3.0, (4, 2)),
    "exponential_, rate": lambda: torch.empty(3, 5).exponential_(2.5),
    "randint": lambda: torch.randint(9, (3, 5)).float(),
    "randint, narrow": lambda: torch.randint(0, 1000, (3, 5), dtype=torch.int32).float(),
    "randint_like": lambda: torch.randint_like(torch.ones(3, 5), -5, 5),
    "randperm": lambda: torch.randperm(13).float(),
    "bernoulli_": lambda: torch.empty(3, 5).bernoulli_(0.3),
    "bernoulli": lambda: torch.bernoulli(SPREAD / 8),
    "multinomial": lambda: torch.multinomial(CHANCES * 9, 40, replacement=True).float(),
    "multinomial, in order": lambda: torch.multinomial(torch.stack([CHANCES, CHANCES.flip(0)]), 3).float(),
    "categorical": lambda: torch.distributions.Categorical(CHANCES.expand(6, 5)).sample((2,)).float(),
    "gamma": lambda: torch.distributions.Gamma(torch.arange(1.0, 4) / 4, 2.0).sample((2,)),
    "beta": lambda: torch.distributions.Beta(0.2, 0.4).sample((3,)),
    "dirichlet": lambda: torch.distributions.Dirichlet(SPREAD / 9).sample((2,)),
    "distribution": lambda: torch.distributions.Normal(MEAN, SPREAD, validate_args=False).rsample((2,)),
    "mixed": lambda: torch.randn(3, 2) * torch.rand(3, 2) + torch.randn(2)[torch.randperm(2)],
}


@pytest.mark.parametrize("name", slow_except(DRAWS, "normal, numbers", "randperm", "mixed"))
def test_a_step_with_random_draws_matches_eager_on_the_same_numbers(name: str) -> None:
    captured = checked(task_of(Drawing(DRAWS[name])))
    assert same_bits(run_engine(captured), run_integers(captured)) == []


def uniforms(step: int, stream: int, count: int) -> list[Fraction]:
    bits = [random_bits(SEED, step, stream, i) for i in range(count)]
    return [Fraction(float(x)) for x in np.array(bits, dtype=np.uint32).view(np.float32)]


def rn(value: Any) -> Fraction:
    """The FP32 number nearest to an exact fraction, or to a number of 200 bits, as a fraction."""
    size = rounded(abs(value)) if isinstance(value, mpmath.mpf) else nearest(abs(value))
    return Fraction(float(size)) * (-1 if value < 0 else 1)


def exact(x: Fraction) -> mpmath.mpf:
    return mpmath.mpf(x.numerator) / x.denominator


def test_normal_draws_follow_their_definition_bit_for_bit(cases: CaseCounter) -> None:
    found, stream = seen(lambda: torch.randn(40, 6))
    two_pi = rn(Fraction(2 * math.pi))
    with mpmath.workprec(200):
        for step, values in enumerate(found):
            drawn = uniforms(step, stream, 2 * 240)
            for u, v, z in zip(drawn[:240], drawn[240:], values.flatten().tolist(), strict=True):
                logarithm = rn(mpmath.log(exact(1 - u)))
                radius = rn(mpmath.sqrt(exact(-2 * logarithm)))
                assert Fraction(z) == rn(radius * rn(mpmath.cos(exact(rn(v * two_pi))))), (step, u, v)
                ideal = mpmath.sqrt(-2 * mpmath.log(exact(1 - u))) * mpmath.cos(2 * mpmath.pi * exact(v))
                assert abs(z - ideal) < 2.0**-20
                cases()


def test_uniform_exponential_and_shuffle_draws_follow_their_definitions(cases: CaseCounter) -> None:
    width = rn(Fraction(0.7 - -2.0))
    found, stream = seen(lambda: torch.empty(90).uniform_(-2.0, 0.7))
    for step, values in enumerate(found):
        expected = [rn(rn(u * width) - 2) for u in uniforms(step, stream, 90)]
        assert list(map(Fraction, values.tolist())) == expected
        cases(90)
    found, stream = seen(lambda: torch.empty(90).exponential_(2.5))
    with mpmath.workprec(200):
        for step, values in enumerate(found):
            rest = [min(1 - u, 1 - Fraction(1, 1 << 24)) for u in uniforms(step, stream, 90)]
            expected = [rn(-rn(mpmath.log(exact(x))) / Fraction(2.5)) for x in rest]
            assert list(map(Fraction, values.tolist())) == expected
            cases(90)
    found, stream = seen(lambda: torch.randint(-7, 1_000_003, (90,)))
    for step, values in enumerate(found):
        drawn = uniforms(step, stream, 180)
        wide = [int(u * (1 << 48)) + int(v * (1 << 24)) for u, v in zip(drawn[:90], drawn[90:], strict=True)]
        assert values.tolist() == [w % 1_000_010 - 7 for w in wide]
        cases(90)
    found, stream = seen(lambda: torch.randperm(90))
    for step, values in enumerate(found):
        assert values.tolist() == [shuffle(i, SEED, step, 90, stream) for i in range(90)]
        assert sorted(values.tolist()) == list(range(90))
        cases(90)


def test_multinomial_draws_have_the_given_frequencies() -> None:
    rows = torch.stack([CHANCES, torch.tensor([0.0, 0.0, 1.0, 1e-30, 0.0]), CHANCES * 1e-42, CHANCES * 3e38])
    (found,), _ = seen(lambda: torch.multinomial(rows, 20_000, replacement=True), 1)
    counts = F.one_hot(found, 5).sum(1)
    for row in (0, 2, 3):
        assert (counts[row] / 20_000 - CHANCES).abs().max() < 0.01
        assert counts[row, [1, 4]].tolist() == [0, 0]
    assert counts[1].tolist() == [0, 0, 20_000, 0, 0]
    (found,), _ = seen(lambda: torch.multinomial(CHANCES.expand(20_000, 5), 2), 1)
    pairs = [((found[:, 0] == i) & (found[:, 1] == j)).float().mean().item() for i, j in [(0, 2), (3, 0), (2, 3)]]
    assert pairs == pytest.approx([0.1 * 0.2 / 0.9, 0.7 * 0.1 / 0.3, 0.2 * 0.7 / 0.8], abs=0.01)
    assert sorted(found.unique().tolist()) == [0, 2, 3]


@pytest.mark.parametrize("a", [0.03, 0.9, 1.0, 6.0, 3e4])
def test_gamma_draws_follow_the_gamma_distribution(a: float) -> None:
    (found,), _ = seen(lambda: torch._standard_gamma(torch.full((20_000,), a)), 1)
    order = found.double().sort().values
    below = torch.special.gammainc(torch.tensor(a, dtype=torch.float64), order)
    apart = (below - torch.arange(20_000) / 20_000).abs()
    assert apart[order > 1e-37].max() < 1.63 / 20_000**0.5  # Kolmogorov and Smirnov, one in a hundred


def test_a_gamma_draw_with_no_accepted_try_takes_the_central_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebreak.engine.lowering.random.normal_numbers", lambda b, shape: b.full(shape, -9.0))
    (found,), _ = seen(lambda: torch._standard_gamma(torch.full((90,), 2.0)), 1)
    assert 2.6 < found.max() < 2.0 + 2 / 3


def test_draws_from_extreme_uniform_numbers_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules at u = 0 and the greatest u below 1, in place of numbers that a test would wait years for."""
    ends = torch.tensor([0.0, 1 - 2.0**-24])
    monkeypatch.setattr(Builder, "random", lambda b, shape: b.data(f"u{len(shape)}", DType.F32, tuple(shape)))
    b = Builder()
    z = RULES["randn.default"](Context(b, torch.zeros(2)))
    e = RULES["exponential.default"](Context(b, torch.zeros(2)), None)
    program = b.finish({"e": e, "z": z}, b.const(0.0))
    machine = Interpreter(program, Arithmetic())
    found = machine.step(1, {}, machine.to_device({"u1": ends, "u2": torch.stack([ends, torch.zeros(2)])})).state
    assert found["e"].tolist() == [pytest.approx(2.0**-24), pytest.approx(16.6355, abs=1e-3)]
    assert found["z"].abs().tolist() == [0.0, pytest.approx(5.768, abs=1e-3)]


def test_unused_draws_do_not_shift_the_others() -> None:
    def draw() -> Tensor:
        torch.randn(3)
        torch.empty(2).uniform_()
        torch.randperm(4)
        return torch.randn(3)

    captured = checked(task_of(Drawing(draw)))
    assert [value is None for value in captured.phases[0].draws] == [True, True, True, False]


REFUSED: dict[str, tuple[Callable[[], Tensor], str]] = {
    "poisson": (lambda: torch.poisson(SPREAD), "poisson.*of draws only uniform, normal, exponential"),
    "a write to what is made of a constant": (
        lambda: torch.bernoulli(SPREAD / 8).clamp_(0.5),
        "writes in place to what was made of a tensor that is not the model's; make that a buffer",
    ),
    "cauchy": (lambda: torch.empty(3).cauchy_(), "cauchy.*of draws only"),
    "without bounds": (lambda: torch.empty(3, dtype=torch.int64).random_(), "random.default.*of draws only"),
    "a wide range": (lambda: torch.randint(0, 1 << 33, (3,)), "range of 8589934592: only of 1 ... 2.32"),
    "bounds in place": (lambda: torch.empty(3).random_(1, 5), "torch.randint.low, high, shape"),
    "a generator": (lambda: torch.randn(3, generator=torch.Generator()), "draws from a generator of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_random_draws_are_refused(name: str) -> None:
    draw, message = REFUSED[name]
    with pytest.raises(ConfigurationError, match=message):
        capture_task(task_of(Drawing(draw)))


def restored(*, by: Callable[[], Any] = torch.get_rng_state, put: Callable[[Any], Any] = torch.set_rng_state) -> Tensor:
    state = by()
    first = F.dropout(torch.ones(3, 5))
    put(state)
    return first - F.dropout(torch.ones(3, 5))


def forked() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        first = torch.randn(3, 5)
    return first - torch.randn(3, 5)


def in_turn() -> Tensor:
    """The draws a, b and then b, a, b again."""
    start, a, middle = torch.get_rng_state(), torch.rand(7), torch.get_rng_state()
    b = torch.rand(7)
    torch.set_rng_state(middle)
    c = torch.rand(7)
    torch.set_rng_state(start)
    return (b - c) + (a - torch.rand(7)) + (b - torch.rand(7))


def unread_at_first() -> Tensor:
    """Nothing reads the first draw; one of another shape follows it."""
    state = torch.get_rng_state()
    torch.rand(7)
    other, after = torch.rand(2).sum(), torch.get_rng_state()
    torch.set_rng_state(state)
    a = torch.rand(7)
    torch.set_rng_state(state)
    b = torch.rand(7)
    torch.set_rng_state(after)
    return torch.stack([*(a - b), *(0 * other * torch.rand(7))])


def with_moving_bounds() -> Tensor:
    state, p = torch.get_rng_state(), torch.arange(5.0) / 4
    a = torch.bernoulli(p) + torch.normal(p, 2.0)
    torch.set_rng_state(state)
    return a - torch.bernoulli(p * 1) - torch.normal(p + 1, 2.0) + 1


GENERATOR = torch.default_generator
EQUAL: dict[str, tuple[Callable[[], Tensor], int]] = {
    "set": (restored, 1),
    "generator": (partial(restored, by=GENERATOR.get_state, put=GENERATOR.set_state), 1),
    "copied": (partial(restored, by=GENERATOR.clone_state, put=lambda g: GENERATOR.set_state(g.get_state())), 1),
    "forked": (forked, 1),
    "in turn": (in_turn, 2),
    "unread at first": (unread_at_first, 3),
    "other numbers, same state": (with_moving_bounds, 2),
}
"""Draws that cancel, and the number of draws in the program."""


def random_numbers(captured: Captured) -> int:
    return sum(i.opcode == Opcode.RANDOM for i in captured.program.body)


@pytest.mark.parametrize("name", slow_except(EQUAL, "set", "unread at first"))
def test_draws_repeated_from_one_rng_state_are_one_draw(name: str) -> None:
    draw, count = EQUAL[name]
    found, _ = seen(draw)
    assert all(values.abs().max() < 1e-6 for values in found)
    captured = checked(replace(task_of(Drawing(draw)), accumulation=2))
    assert random_numbers(captured) == 2 * count
    assert same_bits(run_engine(captured), run_integers(captured)) == []


def test_separate_draws_are_not_merged() -> None:
    found, _ = seen(lambda: torch.rand(9) - torch.rand(9))
    assert all(values.abs().max() > 0.1 for values in found)


class Again(torch.autograd.Function):
    """A checkpoint by hand, whose backward pass runs a module again, from the state of its forward or not."""

    @staticmethod
    def forward(ctx: Any, module: nn.Module, keep: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.module, ctx.keep, ctx.parameters, ctx.state = module, keep, parameters, torch.get_rng_state()
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.random.fork_rng(devices=[], enabled=ctx.keep), torch.enable_grad():
            if ctx.keep:
                torch.set_rng_state(ctx.state)
            result = ctx.module(x)
        return None, None, *torch.autograd.grad(result, (x, *ctx.parameters), grad)


class Behind(Again):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.module(x).backward(grad)
        return None, None, x.grad, *(None for _ in ctx.parameters)


class Part(nn.Module):
    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(2, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 2))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.part, x).mean()


def by_hand(keep: bool) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda part, x: Again.apply(part, keep, x, *part.parameters())


def parted(reentrant: bool, **settings: Any) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda part, x: checkpoint(part, x.clone().requires_grad_(), use_reentrant=reentrant, **settings)


COMPUTED_AGAIN: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], int]] = {
    "by hand": (by_hand(True), 1),
    "by hand, drawn anew": (by_hand(False), 2),
    "checkpoint": (parted(False), 1),
    "reentrant": (parted(True), 1),
}
"""Ways to run a part with dropout, and the masks that PyTorch draws."""


@pytest.mark.parametrize("name", slow_except(COMPUTED_AGAIN, "by hand", "reentrant"))
def test_activation_checkpointing_repeats_dropout_masks_as_in_pytorch(name: str) -> None:
    torch.manual_seed(0)
    run, masks = COMPUTED_AGAIN[name]
    captured = checked(task_of(Part(run)))
    assert captured.check == "full"
    assert random_numbers(captured) == masks


def test_calling_backward_inside_a_backward_pass_is_refused() -> None:
    part = Part(lambda part, x: Behind.apply(part, False, x.clone().requires_grad_(), *part.parameters()))
    with pytest.raises(ConfigurationError, match=r"test_random_draws\.py:\d+\) it calls `backward` in a backward pass"):
        capture_task(task_of(part))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints_that_do_not_preserve_rng_are_refused(reentrant: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"preserve_rng_state=False at .*test_random_draws\.py:\d+"):
        capture_task(task_of(Part(parted(reentrant, preserve_rng_state=False))))
    capture_task(task_of(Part(lambda part, x: checkpoint(part[0], x, use_reentrant=False, preserve_rng_state=False))))


def after(*draws: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Two draws that begin in one state."""

    def draw() -> Tensor:
        state, a = torch.get_rng_state(), draws[0]()
        torch.set_rng_state(state)
        return a.sum() + draws[1]()

    return draw


def elsewhere() -> Tensor:
    thread = Thread(target=torch.manual_seed, args=(0,))  # which the rehearsal does not see
    thread.start()
    thread.join()
    return torch.rand(4)


BEFORE = torch.get_rng_state()
OTHER, NONE = "another draw began in", "none of this step's"
NO_DRAW: dict[str, tuple[Callable[[], Tensor], str]] = {
    "shape": (after(lambda: torch.rand(3), lambda: torch.rand(4)), OTHER),
    "strides": (after(lambda: torch.empty(2, 3).normal_(), lambda: torch.empty(3, 2).T.normal_()), OTHER),  # noqa: PLW0108
    "probability": (after(lambda: torch.empty(4).bernoulli_(0.3), lambda: torch.empty(4).bernoulli_(0.5)), OTHER),
    "kind": (after(lambda: torch.rand(4), lambda: torch.randn(4)), OTHER),
    "of before": (lambda: (torch.set_rng_state(BEFORE), torch.rand(4))[1], NONE),
    "a seed elsewhere": (elsewhere, NONE),
}


@pytest.mark.parametrize("name", NO_DRAW)
def test_rng_states_that_would_mix_draws_are_refused_with_the_line(name: str) -> None:
    draw, message = NO_DRAW[name]
    with pytest.raises(ConfigurationError, match=rf"test_random_draws\.py:\d+ it draws from a state .*{message}"):
        capture_task(task_of(Drawing(draw)))


D = torch.distributions
SHAPED: dict[str, tuple[Callable[[Tensor], Any], str, Callable[[Tensor], Any]]] = {
    "gamma": (
        lambda w: D.Gamma(w.exp(), 1.0), "_standard_gamma_grad.* draw from Weibull or LogNormal",
        lambda w: D.Weibull(w.exp(), w.exp()),
    ),
    "student": (
        lambda w: D.StudentT(w.exp(), w), "_standard_gamma_grad.*location and scale may be trained",
        lambda w: D.StudentT(w.detach().exp() + 2, w, w.exp()),
    ),
    "beta": (
        lambda w: D.Beta(w.exp(), w.exp()), "_dirichlet_grad.* draw from Kumaraswamy",
        lambda w: D.Kumaraswamy(w.exp(), w.exp()),
    ),
    "dirichlet": (
        lambda w: D.Dirichlet(w.exp()), "_dirichlet_grad.* softmax of normal numbers",
        lambda w: D.LogisticNormal(w, w.exp()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_except(SHAPED))
def test_unsupported_distribution_gradients_are_refused_with_alternatives(name: str) -> None:
    made, words, instead = SHAPED[name]

    def task_by(distribution: Callable[[Tensor], Any]) -> Task:
        return make_task(
            nn.Linear(2, 4), {"x": torch.ones(4, 2)}, loss=lambda m, x: distribution(m.weight).rsample().mean()
        )

    with pytest.raises(ConfigurationError, match=words):
        capture_task(task_by(made))
    assert checked(task_by(instead)).check == "full"


def test_a_step_that_reads_no_data_is_checked() -> None:
    task = make_task(nn.Linear(2, 4), {"x": torch.ones(4, 2)}, loss=lambda m, x: (m.weight * torch.rand(4, 2)).mean())
    assert checked(task).check == "full"
