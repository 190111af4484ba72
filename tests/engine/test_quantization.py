"""Fake quantization and quantization-aware training, against eager PyTorch."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao import quantization

from tests.engine.lowering_bench import make_task, run_engine
from tests.engine.optimizer_cases import against_torch
from tests.engine.test_lowering_accuracy import Elementwise
from tests.parts import slow_except
from tiebreak.api.training.tasks import capture as checked
from tiebreak.engine.capture.captured import capture_task
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError

EDGES = torch.tensor([-9.0, -4.5, -4.25, -0.25, 0.0, 0.25, 0.75, 1.25, 3.5, 3.75, 4.0, 1e9, -1e9])
SCALES, ZEROS = torch.tensor([0.5, 0.1, 0.07]), torch.tensor([0, 3, -5], dtype=torch.int32)
QUANTIZED: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 1, -8, 7),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[:1], ZEROS[1:2], 0, 15),
    "rows": lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 0, -8, 7),
    "columns": lambda x: torch.fake_quantize_per_channel_affine(x.T, SCALES, ZEROS, 1, -8, 7).T,
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_fake_quantization_and_its_gradients_equal_pytorchs(name: str) -> None:
    model = Elementwise(QUANTIZED[name], torch.stack([EDGES, EDGES / 3, EDGES * 0.14]))
    state = run_engine(capture_task(make_task(model, {"u": torch.zeros(1, 1)}, batch=1)))
    model(torch.zeros(1, 1)).backward()
    assert torch.equal(state["model.y"], model.y)
    assert torch.equal(-state["model.zero"], model.zero.grad)


def observing(qconfig: quantization.QConfig, *changes: Callable[[nn.Module], None]) -> Task:
    torch.manual_seed(0)
    data = {"x": torch.randn(16, 2, 6, 6), "y": torch.arange(16) % 3}
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    model.qconfig = qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of these functions' end, which is not near
        prepared = quantization.prepare_qat(model.train())
    prepared(data["x"])
    for change in changes:
        prepared.apply(change)
    return make_task(prepared, data, 8, loss=lambda m, x, y: F.cross_entropy(m(x), y), rate=0.05)


OBSERVING: dict[str, Callable[[], Task]] = {
    "x86": lambda: observing(quantization.get_default_qat_qconfig("x86")),
    "qnnpack": lambda: observing(quantization.get_default_qat_qconfig("qnnpack")),
    "levels stay": lambda: observing(quantization.get_default_qat_qconfig("x86"), quantization.disable_observer),
    "watching": lambda: observing(quantization.get_default_qat_qconfig("x86"), quantization.disable_fake_quant),
}


@pytest.mark.parametrize("name", slow_except(OBSERVING, "watching"))
def test_quantization_aware_training_matches_pytorch(name: str) -> None:
    made = OBSERVING[name]()
    assert checked(made).check == "full"
    ours, theirs = against_torch(replace(made, steps=20), torch.float32)
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key].to(tensor.dtype), tensor, rtol=1e-4, atol=1e-4)


def test_empty_or_branching_observers_are_refused() -> None:
    fused = quantization.get_default_qat_qconfig("x86")
    with pytest.raises(ConfigurationError, match=r"min_val .call the model once on a batch if an observer"):
        observing(fused, lambda m: m.reset_min_max_vals() if hasattr(m, "reset_min_max_vals") else None)
    with pytest.raises(ConfigurationError, match=r"needs the values.*use fused observers, as get_default_qat_qconfig"):
        capture_task(observing(quantization.get_default_qat_qconfig("x86", version=0)))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        for bits, dtype in ((8, torch.int8), (9, torch.uint8), (16, torch.int16), (32, torch.int32)):
            self.register_buffer(f"n{bits}", torch.full((2,), torch.iinfo(dtype).max - 30, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        for n in self.buffers():
            n += 7
        return (self.weight * x * self.n8).mean() * 1e-3


def test_buffers_of_narrow_integers_wrap_as_in_pytorch() -> None:
    made = make_task(Counting(), {"x": torch.ones(4, 2)}, loss=lambda m, x: m(x), steps=20)
    assert checked(made).check == "full"
    ours, theirs = against_torch(made, torch.float32)
    assert all(torch.equal(ours[name], theirs[name].to(torch.int64)) for name in ours if name != "weight")
    torch.testing.assert_close(ours["weight"], theirs["weight"])
