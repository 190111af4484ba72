"""The published sizes: GPT-2 124M on 8 x 64 tokens, ResNet-50 on images of 32 and of 224 pixels. Minutes, gigabytes.

Not collected by default; `make models` names this file.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from tests.engine.models.harness import check, task_of, tokens

pytestmark = [pytest.mark.timeout(1800)]


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids=x, use_cache=False).logits.flatten(0, 1), y.flatten())


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=x).logits, y)


def test_gpt2_124m_is_trained_audited_and_refereed(cases: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    data = {key: tokens(seed, 16, 64, vocabulary=50257) for seed, key in enumerate("xy")}
    found = check(task_of(model.train(), next_token, data, 8), cases)
    assert sum(t.numel() for name, t in found.captured.state.items() if name.startswith("model.")) > 124_000_000


@pytest.mark.parametrize(("pixels", "size"), [(32, 16), (224, 2)])
def test_resnet50_is_trained_audited_and_refereed(pixels: int, size: int, cases: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    generator = torch.Generator().manual_seed(pixels)
    data = {
        "x": torch.randn(2 * size, 3, pixels, pixels, generator=generator),
        "y": torch.randint(0, 2, (2 * size,), generator=generator),
    }
    check(task_of(model.train(), classify, data, size), cases)
