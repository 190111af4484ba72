"""Complex numbers within a step, as pairs, and Fourier transforms, against torch and against the integers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine.lowering_bench import make_task, run_engine, run_integers, same_bits
from tests.parts import slow_except
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.lowering.more.complexes import circle
from tiebreak.protocol.errors import ConfigurationError

Function = Callable[[Tensor], Tensor]


def rotated(x: Tensor) -> Tensor:
    """Llama's original rotary embedding."""
    turns = torch.polar(torch.ones(5, 3), torch.outer(torch.arange(5.0), 10000.0 ** -(torch.arange(3) / 3)))
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], 3, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


def spectral(x: Tensor) -> Tensor:
    """A layer of a Fourier neural operator, whose weights are pairs: it mixes channels, and keeps few frequencies."""
    weights = torch.view_as_complex(torch.stack([x[0, :3, :3], x[1, 1:4, 2:5]], -1))
    found = torch.zeros(4, 5, 4, dtype=torch.cfloat)
    found[..., :3] = torch.einsum("bcf,cf->bcf", torch.fft.rfft(x)[..., :3], weights[:1].expand(5, 3))
    return torch.fft.irfft(found, n=6)


def complexes(x: Tensor) -> Tensor:
    return torch.complex(x, x.flip(-1) + 0.5)


FUNCTIONS: dict[str, Function] = {
    "rotary": rotated,
    "spectral": spectral,
    "product with its conjugate": lambda x: (complexes(x) * torch.fft.fft(x).conj()).real,
    "imaginary part of numbers": lambda x: ((x + 2j) * (1 - 1j) / 3).imag,
    "of other shapes": lambda x: torch.complex(x, x[:, :1]).abs() + torch.polar(x[:1].exp(), x).imag,
    "exp": lambda x: torch.exp(1j * x).real * torch.exp(complexes(x)).imag,
    "matrices": lambda x: torch.view_as_real(complexes(x) @ complexes(x).mH),
    "where": lambda x: torch.where(x > 0, complexes(x), -2 * complexes(x)).abs(),
    "parts put together": lambda x: torch.cat([complexes(x), torch.fft.fft(x)], -1)[..., ::2].abs(),
    "sums": lambda x: torch.fft.fft(x).sum(-1).abs() + torch.fft.fft(x).mean(0).real.sum(),
    "sign": lambda x: torch.view_as_real(torch.sgn(complexes(x))),
    "spectrogram": lambda x: torch.stft(x[0], 4, 2, window=torch.hann_window(4), return_complex=True).abs(),
    "there and back": lambda x: torch.istft(
        torch.stft(x[0], 4, 1, window=torch.ones(4), return_complex=True), 4, 1, window=torch.ones(4)
    ),
    "convolution": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=12) * torch.fft.rfft(x[:1], n=12), n=12),
    "mixing": lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    "analytic signal": lambda x: torch.fft.ifft(torch.fft.fft(x) * torch.tensor([1.0, 2, 2, 1, 0, 0])).abs(),
    "hermitian": lambda x: torch.fft.hfft(complexes(x)),
    "quotient": lambda x: torch.view_as_real(complexes(x) / (complexes(x).conj() + 2j) + x / complexes(x) + 1j / x),
    "reciprocal": lambda x: 1e30 * (1 / (1e30 * complexes(x))).abs() + 1e-30 * (1 / (1e-30 * complexes(x))).abs(),
    "angle": lambda x: complexes(x).angle(),
    "logarithm": lambda x: torch.view_as_real(complexes(x).log()),
    "powers": lambda x: torch.view_as_real(complexes(x) ** 2 + complexes(x) ** -1.5 + complexes(x) ** 3),
    "roots": lambda x: torch.view_as_real(complexes(x).sqrt() + complexes(x).rsqrt()),
    "equal": lambda x: torch.where(complexes(x) == complexes(x).conj().conj(), x, 0.0),
    "shifted": lambda x: torch.fft.ifft2(torch.fft.ifftshift(torch.fft.fft2(x))).real,
}


class Through(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6), function

    def forward(self, x: Tensor) -> Tensor:
        result = self.function(self.linear(x))
        return result.square().mean() + 0.1 * (self.function(self.linear(x) + 1)).sum()


@pytest.mark.parametrize("case", slow_except(FUNCTIONS, "spectral"))
def test_a_step_with_complex_numbers_matches_eager_pytorch(case: str) -> None:
    torch.manual_seed(0)
    assert checked(make_task(Through(FUNCTIONS[case]), {"x": torch.randn(8, 5, 6)}, 4, rate=0.1)).check == "full"


class Transforms(nn.Module):
    """Keeps each transform of its weights in a buffer, as pairs."""

    def __init__(self, transforms: dict[str, Callable[[Tensor], Tensor]], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight, self.transforms = nn.Parameter(torch.randn(shape)), transforms
        for name, found in self.results(self.weight.detach()).items():
            self.register_buffer(name, torch.zeros(found.shape))

    def results(self, x: Tensor) -> dict[str, Tensor]:
        found = {name: transform(x) for name, transform in self.transforms.items()}
        return {name: torch.view_as_real(t) if t.is_complex() else t for name, t in found.items()}

    def forward(self, x: Tensor) -> Tensor:
        for name, found in self.results(self.weight).items():
            self.get_buffer(name).copy_(found.detach())
        return x.mean() * self.weight.sum()


def transforms(norm: str | None) -> dict[str, Callable[[Tensor], Tensor]]:
    f = torch.fft
    return {
        "fft": lambda x: f.fft(x, norm=norm),
        "ifft": lambda x: f.ifft(torch.complex(x, x.flip(-1)), norm=norm),
        "rfft": lambda x: f.rfft(x, norm=norm),
        "irfft": lambda x: f.irfft(f.rfft(x), n=x.shape[-1], norm=norm),
        "fft2": lambda x: f.fft2(x, norm=norm),
        "rfft2": lambda x: f.rfft2(x, norm=norm),
        "irfft2": lambda x: f.irfft2(f.rfft2(x), s=x.shape[-2:], norm=norm),
        "other_dim": lambda x: f.fft(x, dim=0, norm=norm),
        "padded": lambda x: f.rfft(x, n=x.shape[-1] + 3, norm=norm),
        "cut": lambda x: f.irfft(f.rfft(x), n=max(1, x.shape[-1] - 2), norm=norm),
    }


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("length", slow_except([1, 2, 3, 7, 8, 30, 129], 7))
def test_fourier_transforms_match_torch_in_double_precision(length: int, norm: str | None) -> None:
    torch.manual_seed(length)
    model = Transforms(transforms(norm), (3, 2, length))
    state = run_engine(capture_task(make_task(model, {"x": torch.ones(2)})))
    for name, wanted in model.results(model.weight.detach().double()).items():
        error = (state[f"model.{name}"] - wanted).norm() / wanted.norm()
        assert error < 3e-7, name  # some roundings of FP32: of the table, the sums, and the norm


def test_fourier_transforms_equal_the_integer_reference() -> None:
    torch.manual_seed(1)
    captured = capture_task(make_task(Transforms(transforms("ortho"), (2, 2, 5)), {"x": torch.ones(2)}))
    assert same_bits(run_engine(captured), run_integers(captured)) == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 64, 1000])
def test_the_cosine_table_is_rounded_and_exact_on_the_axes(n: int) -> None:
    found = circle(n).double()
    for m in range(4 * n):
        assert abs(found[m].item() - math.cos(math.pi * m / (2 * n))) <= 2.0**-25 + 1e-15
    assert found[::n].tolist() == [1.0, 0.0, -1.0, 0.0]
    assert not torch.signbit(found[n::n][[0, 2]]).any()


class WithParameter(nn.Module):
    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.linear, value = nn.Linear(6, 6), torch.ones(6, dtype=torch.cfloat)
        self.register_buffer("turns", value) if buffer else self.register_parameter("turns", nn.Parameter(value))


SIGNED = [(size * sign, part) for size in (4.0, 0.5) for sign in (1, -1) for part in (0.0, -0.0)]
"""Numbers on both sides of the real axis, by the signs of their parts."""
CUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "angle": lambda z: z.angle(), "log": lambda z: torch.view_as_real(z.log()),
    "sqrt": lambda z: torch.view_as_real(z.sqrt()), "rsqrt": lambda z: torch.view_as_real(z.rsqrt()),
    "pow": lambda z: torch.view_as_real(z**1.5), "root": lambda z: torch.view_as_real(z**0.5),
    "log of a reciprocal": lambda z: torch.view_as_real((z**-1).log()),
}  # fmt: skip
SQUARES = torch.arange(1, 9) ** 2 / 16
BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "alone": lambda z: z, "conjugate": lambda z: z.conj(), "negative": lambda z: -1 * z, "doubled": lambda z: z * 2.0,
    "a part": lambda z: z / -2, "a real part": lambda z: z / z.real, "reciprocal": lambda z: 1 / z,
    "a quotient": lambda z: z / z.flip(0).conj(), "a product": lambda z: z * z.flip(0), "less": lambda z: z - 9,
    "a sum": lambda z: z + 2 * z.flip(0), "a difference": lambda z: z - 3 * z.flip(0).conj(),
    "from a number": lambda z: 1 - z,
    "scaled sum": lambda z: torch.add(z, z.flip(0).conj(), alpha=-3), "turned": lambda z: z * 1j * 1j,
    "rfft": lambda z: torch.fft.rfft(z.real * SQUARES),
    "conjugate rfft": lambda z: torch.fft.rfft(z.real * SQUARES).conj(),
    "fft": lambda z: torch.fft.fft(torch.cat([z.real[:1], -z.real[1:2], z.real[:1]])),
    "real": lambda z: z.real.to(torch.cfloat), "summed": lambda z: torch.stack([z, z]).sum(0),
}  # fmt: skip
PAIRS = [
    ("alone", "sqrt"),
    *((before, cut) for k, before in enumerate(BEFORE) for cut in [*CUTS, *CUTS][k % 7 :: 3][:3]),
]
"""Three cuts, in turn, after each way to come to the axis."""
QUICK = (("alone", "sqrt"), ("conjugate rfft", "sqrt"))
OTHERS = [*PAIRS[2::3], *PAIRS[3::3]]
"""After each way, the two cuts that follow the first; `make nightly` tries them."""


class OnTheAxis(nn.Module):
    """Keeps what a function makes of numbers on the real axis, which are its weights."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.tensor(SIGNED)), function
        self.register_buffer("held", torch.zeros(self.result().shape))

    def result(self) -> Tensor:
        return self.function(torch.view_as_complex(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        found = self.result()
        self.held.copy_(found.detach())
        factors = torch.linspace(0.5, 1.5, found.numel()).reshape(found.shape)
        return (found * factors).sum() * x.mean()


@pytest.mark.parametrize(("before", "cut"), slow_except(PAIRS, *QUICK, nightly=OTHERS, several=True))
def test_branch_cuts_follow_the_sign_of_zero_as_in_pytorch(before: str, cut: str) -> None:
    model = OnTheAxis(lambda z: CUTS[cut](BEFORE[before](z)))
    model(torch.ones(2)).backward()
    after = run_engine(capture_task(make_task(model, {"x": torch.ones(2)}, rate=1.0)))
    torch.testing.assert_close(after["model.held"], model.held, rtol=2e-5, atol=2e-6)
    assert model.weight.grad is not None
    wanted = model.weight.detach() - model.weight.grad
    torch.testing.assert_close(after["model.weight"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", slow_except(CUTS, "log"))
def test_branch_cuts_at_a_zero_of_undefined_sign_are_refused(cut: str) -> None:
    task = make_task(OnTheAxis(lambda z: CUTS[cut](2 + torch.stack([-z, z]))), {"x": torch.ones(2)})
    with pytest.raises(
        ConfigurationError, match=r"(default|Scalar) .*of `-x`, a zero has either sign in PyTorch; write"
    ):
        capture_task(task)
    assert capture_task(make_task(OnTheAxis(lambda z: torch.view_as_real((-z) ** 2)), {"x": torch.ones(2)})).program


def task_of(model: nn.Module, loss: Any = None, data: Tensor | None = None) -> Any:
    given = {"x": torch.randn(4, 6) if data is None else data}
    return make_task(model, given, loss=loss or (lambda m, x: F.relu(m.linear(x)).mean()))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "parameter": (lambda: task_of(WithParameter(buffer=False)), r"turns to be one of .* got torch.complex64"),
    "buffer": (lambda: task_of(WithParameter(buffer=True)), r"turns to be one of .*plain attribute.*got torch.com"),
    "data": (lambda: task_of(nn.Linear(6, 6), data=torch.ones(4, 6, dtype=torch.cfloat)), "in data 'x'.*complex64"),
    "loss": (
        lambda: capture_task(task_of(Through(lambda x: x), lambda m, x: torch.fft.fft(m.linear(x)).mean())),
        "expected a real loss, got torch.complex64; return its `.real`",
    ),
    "function": (
        lambda: capture_task(task_of(Through(lambda x: x), lambda m, x: complexes(m.linear(x)).tan().abs().sum())),
        r"tan.default .* of complex numbers it has no form; use sums",
    ),
    "exponent": (
        lambda: capture_task(task_of(Through(lambda x: x), lambda m, x: (complexes(m.linear(x)) ** 1j).real.sum())),
        "a complex exponent; write it as `exp` of a product with `log`",
    ),
    "wide": (
        lambda: capture_task(task_of(Through(lambda x: x), lambda m, x: m.linear(x).to(torch.cdouble).abs().sum())),
        "only complex64 has a form",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_uses_of_complex_numbers_are_refused(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(ConfigurationError, match=words):
        make()
