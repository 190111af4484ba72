"""Layers, one small module each, grouped by the shape they read: see `lowering_bench`."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import Bench, check_modules, executed, make_task, run_engine, run_integers, same_bits
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.lowering import Context
from tiebreak.engine.lowering.builder import Builder, Ref
from tiebreak.engine.lowering.convolution import _spread_gradient, input_gradient
from tiebreak.protocol.program.isa import DType, Opcode

ACTIVATIONS: dict[str, nn.Module] = {
    "relu": nn.ReLU(), "leaky_relu": nn.LeakyReLU(0.1), "prelu": nn.PReLU(3), "elu": nn.ELU(0.7), "selu": nn.SELU(),
    "celu": nn.CELU(0.7), "silu": nn.SiLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU("tanh"), "sigmoid": nn.Sigmoid(),
    "softplus": nn.Softplus(2.0, 3.0), "hardswish": nn.Hardswish(), "hardsigmoid": nn.Hardsigmoid(),
    "hardtanh": nn.Hardtanh(-0.5, 0.7), "relu6": nn.ReLU6(), "mish": nn.Mish(), "tanh": nn.Tanh(),
    "softsign": nn.Softsign(), "logsigmoid": nn.LogSigmoid(), "softshrink": nn.Softshrink(), "glu": nn.GLU(-1),
    "tanhshrink": nn.Tanhshrink(), "hardshrink": nn.Hardshrink(), "threshold": nn.Threshold(0.1, 0.5),
    "softmax": nn.Softmax(1), "log_softmax": nn.LogSoftmax(1), "softmin": nn.Softmin(2),
}  # fmt: skip


@pytest.mark.slow
def test_activation_layers_match_eager_pytorch(cases: CaseCounter) -> None:
    check_modules(ACTIVATIONS, (3, 4))
    cases(len(ACTIVATIONS))


class Evaluated(nn.Module):
    """Stays in evaluation mode: a frozen batch norm."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def train(self, mode: bool = True) -> "Evaluated":
        super().train(mode)
        self.inner.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result


def _stirred(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, buffer in norm.named_buffers():
            if name.startswith("running"):
                buffer.copy_(torch.rand(buffer.shape) + 0.5)
    return norm


@pytest.mark.slow
def test_normalization_layers_match_eager_pytorch(cases: CaseCounter) -> None:
    modules: dict[str, nn.Module] = {
        "batch": nn.BatchNorm2d(4), "batch, not affine": nn.BatchNorm2d(4, affine=False, momentum=0.3),
        "batch, no statistics": nn.BatchNorm2d(4, track_running_stats=False),
        "batch, frozen": Evaluated(_stirred(nn.BatchNorm2d(4))), "group": nn.GroupNorm(2, 4),
        "one group": nn.GroupNorm(1, 4, affine=False), "instance": nn.InstanceNorm2d(4, affine=True),
        "instance, statistics": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        "layer": nn.LayerNorm([3, 2]), "layer, no bias": nn.LayerNorm(2, bias=False), "rms": nn.RMSNorm(2),
        "weight norm": nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 2, 2)),
    }  # fmt: skip
    check_modules(modules, (4, 3, 2))
    check_modules({"batch": nn.BatchNorm1d(4), "instance": nn.InstanceNorm1d(4)}, (4, 5))
    check_modules({"batch": nn.BatchNorm1d(4)}, (4,), batch=3)
    cases(len(modules) + 3)


CONVOLUTIONS: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"stride": (2, 1), "bias": False}, {"padding": 1}, {"padding": "same", "kernel_size": 3},
    {"padding": 1, "padding_mode": "reflect"}, {"padding": 1, "padding_mode": "replicate"},
    {"padding": 1, "padding_mode": "circular"}, {"groups": 3}, {"dilation": 2}, {"stride": 2, "dilation": 2},
    {"stride": 3, "padding": 1}, {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 3}, {"kernel_size": 1, "stride": 2},
    {"kernel_size": 2, "stride": 3, "padding": 1}, {"kernel_size": 4, "stride": 2, "padding": 3},
]  # fmt: skip
TRANSPOSED: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"stride": 2, "padding": 1, "output_padding": 1, "kernel_size": 3},
    {"stride": (2, 3), "output_padding": (0, 1)}, {"groups": 3, "stride": 2}, {"dilation": 2},
    {"stride": 3, "output_padding": 2}, {"stride": 2, "dilation": 2},
]  # fmt: skip


def _layer(layer: type[nn.Module], settings: dict[str, Any]) -> nn.Module:
    return layer(3, 3, **({"kernel_size": 2} | settings))


@pytest.mark.slow
def test_convolution_layers_match_eager_pytorch(cases: CaseCounter) -> None:
    check_modules({str(s): _layer(nn.Conv2d, s) for s in CONVOLUTIONS}, (3, 4, 3))
    check_modules({"conv1d": nn.Conv1d(2, 3, 3, stride=2, padding=1)}, (2, 5))
    check_modules({"conv3d": nn.Conv3d(1, 2, 2, stride=2, padding=1)}, (1, 3, 2, 2))
    cases(len(CONVOLUTIONS) + 2)


@pytest.mark.slow
def test_transposed_convolution_layers_match_eager_pytorch(cases: CaseCounter) -> None:
    check_modules({str(s): _layer(nn.ConvTranspose2d, s) for s in TRANSPOSED}, (3, 2, 3))
    one = nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1)
    check_modules({"1d": one}, (2, 4))
    check_modules({"3d": nn.ConvTranspose3d(1, 2, 2, stride=2)}, (1, 2, 2, 1))
    cases(len(TRANSPOSED) + 2)


def _gradient(form: Any, grad: Tensor, weight: Tensor, shape: tuple[int, ...], settings: tuple[Any, ...]) -> Tensor:
    b = Builder()
    refs = [b.data(name, DType.F32, tuple(t.shape)) for name, t in (("grad", grad), ("weight", weight))]
    found: Ref = form(Context(b, None), *refs, shape, *settings)
    found = b.copy(found)
    return executed(b, grad, weight)[found.value].view(shape)


def test_both_forms_of_a_convolution_input_gradient_are_equal(cases: CaseCounter) -> None:
    generator = torch.Generator().manual_seed(9)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    for _ in range(60):
        k, s, p, h, w = draw(1, 5), draw(1, 4), draw(0, 4), draw(3, 9), draw(3, 9)
        groups, e = draw(1, 2), 1 if s > 1 else draw(1, 2)
        out = [(n + 2 * p - e * (k - 1) - 1) // s + 1 for n in (h, w)]
        if min(out) < 1:
            continue
        grad = torch.randn((2, 2 * groups, *out), generator=generator)
        weight = torch.randn((2 * groups, 3, k, k), generator=generator)
        settings = ((s, s), (p, p), (e, e), groups)
        shape = (2, 3 * groups, h, w)
        one, other = (_gradient(form, grad, weight, shape, settings) for form in (input_gradient, _spread_gradient))
        assert torch.equal(one, other), (k, s, p, h, w, groups, e)
        cases()


def test_a_strided_convolution_gradient_wastes_few_multiplications() -> None:
    # 3x3 taps in 2x2 phases: 16 products per output of the layer, where 9 are needed and a spread gradient takes 36.
    program = check_modules({"conv": nn.Conv2d(2, 2, 3, stride=2, padding=1)}, (2, 4, 4), batch=1)
    terms = [i.numel * i.terms for i in program.body if i.opcode == Opcode.REDUCE and len(i.operands) == 2]
    outputs = 2 * 2 * 2 * 2  # places, channels in and out
    assert sorted(terms) == [outputs * 9, outputs * 9, outputs * 16]


POOLS: dict[str, nn.Module] = {
    "max": nn.MaxPool2d(2), "max 3 2 1": nn.MaxPool2d(3, 2, 1), "max ceil": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "max dilated": nn.MaxPool2d(2, 1, 0, 2), "mean": nn.AvgPool2d(2), "mean 3 2 1": nn.AvgPool2d(3, 2, 1),
    "mean, padding not counted": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "mean ceil": nn.AvgPool2d(3, 2, 1, ceil_mode=True), "mean ceil, plain": nn.AvgPool2d(2, ceil_mode=True),
    "mean ceil, not counted": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "mean by 3": nn.AvgPool2d(2, divisor_override=3), "global": nn.AdaptiveAvgPool2d(1),
    "adaptive": nn.AdaptiveAvgPool2d((2, 3)), "adaptive, uneven": nn.AdaptiveAvgPool2d((3, 2)),
    "adaptive, larger": nn.AdaptiveAvgPool2d((5, 4)), "adaptive max": nn.AdaptiveMaxPool2d((2, 3)),
    "adaptive max, uneven": nn.AdaptiveMaxPool2d((3, 2)),
}  # fmt: skip


@pytest.mark.slow
def test_pooling_layers_match_eager_pytorch(cases: CaseCounter) -> None:
    check_modules(POOLS, (1, 4, 3))
    one = {"max": nn.MaxPool1d(2), "mean": nn.AvgPool1d(3, 2, 1), "adaptive": nn.AdaptiveAvgPool1d(3),
           "adaptive max": nn.AdaptiveMaxPool1d(3)}  # fmt: skip
    check_modules(one, (1, 7))
    three = {"max": nn.MaxPool3d(2, 1, 1), "mean": nn.AvgPool3d(2), "adaptive": nn.AdaptiveAvgPool3d((2, 1, 2)),
             "adaptive max": nn.AdaptiveMaxPool3d((2, 1, 2))}  # fmt: skip
    check_modules(three, (1, 3, 2, 2), batch=1)
    cases(len(POOLS) + len(one) + len(three))


RESAMPLED: dict[str, nn.Module] = {
    "nearest 2": nn.Upsample(scale_factor=2), "nearest 1.5": nn.Upsample(scale_factor=1.5),
    "nearest to a size": nn.Upsample(size=(5, 2)), "nearest exact": nn.Upsample(scale_factor=1.5, mode="nearest-exact"),
    "bilinear 2": nn.Upsample(scale_factor=2, mode="bilinear"),
    "bilinear down": nn.Upsample(size=(3, 2), mode="bilinear"),
    "bilinear aligned": nn.Upsample(size=(5, 4), mode="bilinear", align_corners=True),
    "pixel shuffle": nn.Sequential(nn.Conv2d(1, 4, 1), nn.PixelShuffle(2)), "unfold": nn.Unfold(2, padding=1, stride=2),
    "fold": nn.Sequential(nn.Unfold(2, padding=1), nn.Fold((4, 3), 2, padding=1)),
    "zeros": nn.ZeroPad2d(1), "constant": nn.ConstantPad2d((-1, 2, 0, -1), 0.5),
    "reflected": nn.ReflectionPad2d((1, 2, 0, 1)), "repeated": nn.ReplicationPad2d((1, 2, 0, 1)),
    "circular": nn.CircularPad2d(1),
}  # fmt: skip


@pytest.mark.slow
def test_upsampling_and_padding_layers_match_eager_pytorch(cases: CaseCounter) -> None:
    check_modules(RESAMPLED, (1, 4, 3))
    one = {"nearest": nn.Upsample(scale_factor=2), "linear": nn.Upsample(scale_factor=2, mode="linear"),
           "reflected": nn.ReflectionPad1d(2), "repeated": nn.ReplicationPad1d(2)}  # fmt: skip
    check_modules(one, (1, 4))
    three = {"nearest": nn.Upsample(scale_factor=2), "trilinear": nn.Upsample(scale_factor=2, mode="trilinear"),
             "reflected": nn.ReflectionPad3d(1), "repeated": nn.ReplicationPad3d(1)}  # fmt: skip
    check_modules(three, (1, 2, 2, 2), batch=1)
    cases(len(RESAMPLED) + len(one) + len(three))


def test_pooling_windows_beyond_the_image_cost_few_terms(cases: CaseCounter) -> None:
    modules: dict[str, Any] = {
        f"{settings}": lambda x, settings=settings: F.avg_pool2d(x, **settings)
        for settings in (
            {"kernel_size": 2560, "ceil_mode": True}, {"kernel_size": (9, 3), "ceil_mode": True},
            {"kernel_size": 13, "padding": 6, "ceil_mode": True}, {"kernel_size": 13, "padding": (5, 6), "stride": 40,
             "ceil_mode": True, "count_include_pad": False},
        )
    }  # fmt: skip
    program = check_modules(modules, (3, 4, 5))
    assert max(i.terms for i in program.body) < 1000
    cases(len(modules))


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.5), nn.AlphaDropout(0.5)], ids=str)
def test_dropout_layers_equal_eager_pytorch_and_the_integer_reference(layer: nn.Module) -> None:
    captured = checked(make_task(Bench({"dropout": layer}, (8, 2, 2)), {"x": torch.ones(2, 8, 2, 2)}))
    assert not same_bits(run_engine(captured, 2), run_integers(captured, 2))
