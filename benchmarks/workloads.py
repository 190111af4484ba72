"""The training jobs that benchmarks measure: `transformers` models with random weights, and the demo's jobs."""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from tiebreak.demo.tasks.loader import load_task
from tiebreak.engine.capture.task import SGD, AdamW, Batch, Rows, Task

STEPS: Final = 100
SEQUENCE: Final = 64


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits_BTV: Tensor = model(input_ids=x, use_cache=False).logits
    return F.cross_entropy(logits_BTV.flatten(0, 1), y.flatten())


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=x).logits, y)


def gpt2(layers: int = 12) -> Task:
    """GPT-2 (124M with 12 layers) with its dropout, AdamW; 8 sequences of 64 tokens a step."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers)
    tokens = torch.randint(0, config.vocab_size, (64, SEQUENCE + 1))
    return Task(
        name="gpt2",
        model=GPT2LMHeadModel(config).train(),
        loss=next_token,
        optimizer=AdamW(lr=1e-4),
        data={"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()},
        batch=Batch(size=8, examples=Rows(names=("x", "y"))),
        steps=STEPS,
        checkpoint_interval=10,
    )


def resnet50(pixels: int, batch: int = 16) -> Task:
    """ResNet-50 (23.5M) on images of 3 x pixels x pixels, SGD with momentum."""
    torch.manual_seed(0)
    return Task(
        name=f"resnet50-{pixels}",
        model=ResNetForImageClassification(ResNetConfig()).train(),
        loss=classify,
        optimizer=SGD(lr=0.01, momentum=0.9),
        data={"x": torch.randn(2 * batch, 3, pixels, pixels), "y": torch.randint(0, 2, (2 * batch,))},
        batch=Batch(size=batch, examples=Rows(names=("x", "y"))),
        steps=STEPS,
        checkpoint_interval=10,
    )


WORKLOADS: Final[dict[str, Callable[[], Task]]] = {
    "gpt2": gpt2,
    "resnet50-32": partial(resnet50, 32),
    "resnet50-224": partial(resnet50, 224),
    "digits": partial(load_task, "digits"),
    "text": partial(load_task, "text"),
}
