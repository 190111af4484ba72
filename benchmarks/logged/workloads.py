"""The workloads of `benchmarks.logged`: models of the paper's experiments, and two tasks on real data for accuracy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from benchmarks.workloads import classify, gpt2, next_token, resnet50, rows_task
from tiebreak import SGD, AdamW, Batch, Rows, Task
from tiebreak.api.builtin import digits, text
from tiebreak.engine.optimizers.settings import warmup_linear

HELD_OUT: Final = digits.TEST_IMAGES


def digits_resnet(steps: int, pixels: int = 32) -> Task:
    """A small ResNet on scikit-learn's digits, enlarged so that each pixel is a square; accuracy on held-out images."""
    images, labels = digits.load()
    factor = pixels // images.shape[-1]
    wide = images.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    train, test = (wide[:-HELD_OUT], labels[:-HELD_OUT]), (wide[-HELD_OUT:], labels[-HELD_OUT:])

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        right = model(pixel_values=test[0]).logits.argmax(1) == test[1]
        return {"test accuracy": float(right.double().mean())}

    config = ResNetConfig(
        num_channels=1, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="bottleneck"
    )
    config.num_labels = 10
    return Task(
        name="digits",
        model=_drawn(lambda: ResNetForImageClassification(config)),
        loss=classify,
        optimizer=SGD(lr=0.02, momentum=0.9, weight_decay=5e-4),
        schedule=warmup_linear(steps, warmup=min(8, steps - 1), floor=0.05),
        data={"x": train[0].contiguous(), "y": train[1]},
        batch=Batch(size=32, examples=Rows(names=("x", "y"))),
        steps=steps,
        checkpoint_interval=steps,
        evaluate=evaluate,
    )


def small_gpt2() -> Task:
    """A GPT-2 of one narrow layer, which takes a second to measure and serves only to test the benchmark."""
    config = GPT2Config(vocab_size=97, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 97, (16, 9), generator=generator)
    model, x, y = _drawn(lambda: GPT2LMHeadModel(config)), tokens[:, :-1], tokens[:, 1:]
    return rows_task("gpt2", model, next_token, AdamW(lr=1e-3), x, y, batch=4, steps=8, interval=8)


def small_resnet() -> Task:
    """A ResNet of two blocks, for the same purpose."""
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
    generator = torch.Generator().manual_seed(1)
    model = _drawn(lambda: ResNetForImageClassification(config))
    x, y = torch.randn(16, 3, 16, 16, generator=generator), torch.randint(0, 2, (16,), generator=generator)
    return rows_task("resnet50", model, classify, SGD(lr=0.01), x, y, batch=4, steps=8, interval=8)


def _drawn(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The amount of work in a run of the benchmark."""

    models: dict[str, Callable[[], Task]]
    """The models of the parts about speed and logs."""
    tasks: dict[str, Callable[[], Task]]
    """The tasks of the part about accuracy."""
    published: dict[str, float]
    """Bytes of a step's dense log in the published code, for the model of this name."""
    precisions: tuple[int, ...] = tuple(range(32, 25, -1))
    log_steps: int = 2
    """The number of steps whose logs are measured at each precision."""
    repeats: dict[str, int]
    """The number of steps to time for each party."""
    marks: tuple[int, ...] = (1, 10, 100)
    """The steps after which runs are compared."""
    seeds: tuple[int, ...] = (1, 2, 3)
    calibrated_steps: int = 1
    orders: int = 1
    """The number of summation orders that a calibration tries for each kernel."""


FULL: Final = Sizes(
    models={"gpt2": gpt2, "resnet50": partial(resnet50, 32, 64)},
    tasks={"digits": partial(digits_resnet, 300), "text": partial(text.task, 300)},
    published={"gpt2": 41e6, "resnet50": 209e6},
    repeats={"gpt2": 7, "resnet50": 9},
)
QUICK: Final = Sizes(
    models={"gpt2": small_gpt2, "resnet50": small_resnet},
    tasks={"digits": partial(digits_resnet, 2, 8)},
    published={},
    precisions=(32, 26),
    log_steps=1,
    repeats={"gpt2": 2, "resnet50": 2},
    marks=(1, 2),
    seeds=(1, 2),
    calibrated_steps=1,
    orders=1,
)
