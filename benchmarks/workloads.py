"""The training jobs that benchmarks measure: `transformers` models with random weights, and the demo's jobs."""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from tiebreak import SGD, AdamW, Batch, Rows, Task
from tiebreak.api.builtin.loader import load_task
from tiebreak.engine.capture.examples import Loss
from tiebreak.engine.optimizers.settings import Optimizer

STEPS: Final = 100
INTERVAL: Final = 10
SEQUENCE: Final = 64


def next_token(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits_BTV: Tensor = model(input_ids=x, use_cache=False).logits
    return F.cross_entropy(logits_BTV.flatten(0, 1), y.flatten())


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(pixel_values=x).logits, y)


def rows_task(
    name: str, model: nn.Module, loss: Loss, optimizer: Optimizer, x: Tensor, y: Tensor, *, batch: int,
    steps: int = STEPS, interval: int = INTERVAL,
) -> Task:  # fmt: skip
    """A job whose examples are the rows of x and y."""
    return Task(
        name=name, model=model.train(), loss=loss, optimizer=optimizer,
        data={"x": x.contiguous(), "y": y.contiguous()}, batch=Batch(size=batch, examples=Rows(names=("x", "y"))),
        steps=steps, checkpoint_interval=interval,
    )  # fmt: skip


def gpt2(layers: int = 12) -> Task:
    """GPT-2 (124M with 12 layers) with its dropout, AdamW; 8 sequences of 64 tokens a step."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers)
    tokens = torch.randint(0, config.vocab_size, (64, SEQUENCE + 1))
    model = GPT2LMHeadModel(config)
    return rows_task("gpt2", model, next_token, AdamW(lr=1e-4), tokens[:, :-1], tokens[:, 1:], batch=8)


def resnet50(pixels: int, batch: int = 16) -> Task:
    """ResNet-50 (23.5M) on images of 3 x pixels x pixels, SGD with momentum."""
    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig())
    x, y = torch.randn(2 * batch, 3, pixels, pixels), torch.randint(0, 2, (2 * batch,))
    return rows_task(f"resnet50-{pixels}", model, classify, SGD(lr=0.01, momentum=0.9), x, y, batch=batch)


WORKLOADS: Final[dict[str, Callable[[], Task]]] = {
    "gpt2": gpt2,
    "resnet50-32": partial(resnet50, 32),
    "resnet50-224": partial(resnet50, 224),
    "digits": partial(load_task, "digits"),
    "text": partial(load_task, "text"),
}
