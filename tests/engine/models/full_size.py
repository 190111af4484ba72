"""The published sizes: GPT-2 124M on 8 x 64 tokens, ResNet-50 on images of 32 and of 224 pixels. Minutes, gigabytes.

Not collected by default; `make models` names this file.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.engine.models.harness import OPTIMIZER_FOR_TESTS, check, tokens
from tiebreak.engine.capture.task import Batch, Rows, Task

pytestmark = [pytest.mark.timeout(1800)]


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids=x, use_cache=False).logits.flatten(0, 1), y.flatten())


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=x).logits, y)


def task(name: str, model: nn.Module, loss: Callable[..., Tensor], data: dict[str, Tensor], size: int) -> Task:
    return Task(
        name=name,
        model=model.train(),
        loss=loss,
        optimizer=OPTIMIZER_FOR_TESTS,
        data=data,
        batch=Batch(size=size, examples=Rows(names=("x", "y"))),
        steps=4,
        checkpoint_interval=2,
    )


def test_gpt2_124m(cases: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    data = {key: tokens(seed, 16, 64, vocabulary=50257) for seed, key in enumerate("xy")}
    found = check(task("gpt2-124m", model, next_token, data, 8), cases)
    assert sum(t.numel() for name, t in found.compiled.state.items() if name.startswith("model.")) > 124_000_000


@pytest.mark.parametrize(("pixels", "size"), [(32, 16), (224, 2)])
def test_resnet50(pixels: int, size: int, cases: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    generator = torch.Generator().manual_seed(pixels)
    data = {
        "x": torch.randn(2 * size, 3, pixels, pixels, generator=generator),
        "y": torch.randint(0, 2, (2 * size,), generator=generator),
    }
    # Untrained, it amplifies rounding: eager FP32's own gradients are 1 to 3 % from FP64's.
    check(task(f"resnet50-{pixels}", model, classify, data, size), cases, close=5e-2)
