"""Image models: ResNet and ViT of `transformers`, a U-Net in plain torch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

from tests.conftest import CaseCounter
from tests.engine.models.harness import check, randomised, task_of, tokens
from tests.parts import slow_except
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.program.isa import Opcode


def images(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def classify(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=pixels).logits, labels)


def image_task(model: nn.Module, size: int) -> Task:
    data = {"pixels": images(1, 4, 3, size, size), "labels": tokens(2, 4, vocabulary=5)}
    return task_of(model, classify, data)


def resnet(**changes: object) -> nn.Module:
    """ResNet-50's blocks, with fewer and narrower ones."""
    settings = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2], "num_labels": 5}
    return randomised(ResNetForImageClassification(ResNetConfig(**(settings | changes))), seed=3)


@pytest.mark.parametrize("layer", slow_except(["bottleneck", "basic"], "basic"))
def test_resnet(layer: str, cases: CaseCounter) -> None:
    trained = check(image_task(resnet(layer_type=layer), 32), cases)
    assert {"SCATTER_SUM 0 FI->F", "REDUCE 2 F->I"} <= trained.kinds  # max pooling
    steps = {name for name in trained.program.state_spec() if name.endswith("num_batches_tracked")}
    assert len(steps) > 5


@pytest.mark.slow
def test_vit(cases: CaseCounter) -> None:
    config = ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        image_size=16,
        patch_size=4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        num_labels=5,
    )
    trained = check(image_task(randomised(ViTForImageClassification(config), seed=4), 16), cases)
    assert sum(i.opcode == Opcode.RANDOM for i in trained.program.body) == 7  # embeddings; two layers of three


class Twice(nn.Sequential):
    """Two convolutions, each normalised."""

    def __init__(self, channels: int, out: int, norm: str) -> None:
        def normal() -> nn.Module:
            return nn.BatchNorm2d(out) if norm == "batch" else nn.GroupNorm(2, out)

        first, second = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        super().__init__(first, normal(), nn.SiLU(), second, normal(), nn.ReLU())


class UNet(nn.Module):
    """Down twice, up twice; what goes down is concatenated to what comes up."""

    def __init__(self, norm: str, ups: tuple[str, str]) -> None:
        super().__init__()
        self.down = nn.ModuleList([Twice(3, 4, norm), Twice(4, 6, norm)])
        self.shrink = nn.ModuleList([nn.MaxPool2d(2), nn.Conv2d(6, 6, 3, stride=2, padding=1)])
        self.middle = Twice(6, 8, norm)
        self.grow = nn.ModuleList([self._grow(8, 6, ups[0]), self._grow(6, 4, ups[1])])
        self.up = nn.ModuleList([Twice(12, 6, norm), Twice(8, 4, norm)])
        self.head = nn.Conv2d(4, 5, 1)

    @staticmethod
    def _grow(channels: int, out: int, up: str) -> nn.Module:
        if up == "transposed":
            return nn.ConvTranspose2d(channels, out, 2, stride=2)
        return nn.Sequential(nn.Upsample(scale_factor=2, mode=up), nn.Conv2d(channels, out, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down, shrink in zip(self.down, self.shrink, strict=True):
            x = down(x)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x)
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), kept.pop()], dim=1))
        logits: Tensor = self.head(x)
        return logits


def segment(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    logits = model(pixels)
    smoothed = F.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.1)
    return smoothed + 0.1 * F.mse_loss(logits.softmax(1)[:, 1], (labels == 1).to(logits.dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "ups"),
    [("batch", ("transposed", "transposed")), ("group", ("nearest", "bilinear"))],
    ids=["batch", "group"],
)
def test_unet(norm: str, ups: tuple[str, str], cases: CaseCounter) -> None:
    data = {"pixels": images(6, 4, 3, 12, 8), "labels": tokens(7, 4, 12, 8, vocabulary=5)}
    check(task_of(randomised(UNet(norm, ups), seed=8, scale=0.1), segment, data), cases)
