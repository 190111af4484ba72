"""ResNet of `transformers`, with both of its blocks."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ResNetConfig, ResNetForImageClassification

from tests.conftest import CaseCounter
from tests.engine.models.harness import check, randomised, task_of, tokens
from tests.parts import slow_except
from tiebreak.engine.capture.task import Task


def classify(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=pixels).logits, labels)


def image_task(layer: str) -> Task:
    """ResNet-50's blocks, or those of smaller ones, fewer and narrower."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2], num_labels=5, layer_type=layer)
    pixels = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 3, 32, 32), dtype=np.float32))
    data = {"pixels": pixels, "labels": tokens(2, 4, vocabulary=5)}
    return task_of(randomised(ResNetForImageClassification(config), seed=3), classify, data)


@pytest.mark.parametrize("layer", slow_except(["bottleneck", "basic"], "basic"))
def test_resnet(layer: str, cases: CaseCounter) -> None:
    trained = check(image_task(layer), cases)
    assert {"SCATTER_SUM 0 FI->F", "REDUCE 2 F->I"} <= trained.kinds  # max pooling
    steps = {name for name in trained.program.state_spec() if name.endswith("num_batches_tracked")}
    assert len(steps) > 5
