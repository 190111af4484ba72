"""The models of the corpus that are no golden runs: every optimizer and schedule, and what the golden ones leave out.

Weights and data come from the counter-based generator, as in `tests.golden.tasks`. What a model draws in a step, its
program draws.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM

from tests.golden.tasks import CLASSES, drawn, tokens, with_drawn_weights
from tiebreak import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Batch,
    Clip,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    Rows,
    Task,
    Windows,
    no_decay,
)
from tiebreak.engine.capture.examples import Examples
from tiebreak.engine.optimizers import settings as rates

STEPS, INTERVAL = 25, 5
WORDS = 13


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A task, but for its name and steps; and the terms of its job that decide a bit."""

    model: nn.Module
    loss: Any
    optimizer: Any
    data: dict[str, Tensor]
    examples: Examples
    size: int = 4
    schedule: tuple[float, ...] | None = None
    precision: int = 32
    logged: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def task_of(name: str, made: Recipe) -> Task:
    return Task(
        name=name, model=made.model, loss=made.loss, optimizer=made.optimizer, data=made.data,
        batch=Batch(size=made.size, examples=made.examples), steps=STEPS, checkpoint_interval=INTERVAL,
        schedule=made.schedule, seed=11, **made.options,
    )  # fmt: skip


def words(seed: int, rows: int, length: int) -> Tensor:
    return (drawn(seed, (rows, length)) * WORDS).to(torch.int64)


def classes(seed: int, rows: int, count: int = CLASSES) -> Tensor:
    return (drawn(seed, (rows,)) * count).to(torch.int64)


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


# ---------------------------------------------------------------- phases


class Images(nn.Module):
    """A tiny DCGAN: batch norm on both sides, dropout in the discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(
            nn.ConvTranspose2d(4, 6, 4, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
            nn.ConvTranspose2d(6, 1, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.judge = nn.Sequential(
            nn.Conv2d(1, 6, 4, 2, 1), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Conv2d(6, 6, 3, 1, 1, bias=False),
            nn.BatchNorm2d(6), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(96, 1),
        )  # fmt: skip

    def made(self, x: Tensor) -> Tensor:
        found: Tensor = self.maker(torch.randn(x.shape[0], 4, 1, 1))
        return found


def judges(model: Any, x: Tensor) -> Tensor:
    real, made = model.judge(x), model.judge(model.made(x).detach())
    first = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
    return first + F.binary_cross_entropy_with_logits(made, torch.zeros_like(made))


def makes(model: Any, x: Tensor) -> Tensor:
    found = model.judge(model.made(x))
    return F.binary_cross_entropy_with_logits(found, torch.ones_like(found))


def _gan() -> Recipe:
    model = with_drawn_weights(Images(), 101)
    sides = [
        torch.optim.Adam(model.judge.parameters(), 1e-3, (0.5, 0.999)),
        torch.optim.RMSprop(model.maker.parameters(), 2e-3),
    ]
    data = {"x": drawn(102, (16, 1, 8, 8)) * 2 - 1}
    clip = {"clip": Clip(norm=1.0)}
    return Recipe(model=model, loss=[judges, makes], optimizer=sides, data=data, examples=Rows(names=("x",)),
                  options=clip)  # fmt: skip


# ---------------------------------------------------------------- adapters


class Adapted(nn.Module):
    """A tied embedding, a layer and a norm in bfloat16, all frozen, and LoRA that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, 8).bfloat16().requires_grad_(requires_grad=False)
        self.base = nn.Linear(8, 8).bfloat16().requires_grad_(requires_grad=False)
        self.norm = nn.LayerNorm(8).bfloat16().requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(8, 2), nn.Linear(2, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = self.norm(torch.tanh(self.base(x)) + self.up(self.down(x.float())).bfloat16())
        return (x @ self.tokens.weight.T).float()


def _lora() -> Recipe:
    model, ids = with_drawn_weights(Adapted(), 111), words(112, 16, 6)
    loss = lambda model, ids, labels: F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())  # noqa: E731
    return Recipe(
        model=model, loss=loss, optimizer=AdamW(lr=0.02, groups=(no_decay(model),)),
        data={"ids": ids, "labels": ids.roll(1, 1)}, examples=Rows(names=("ids", "labels")), size=2,
        schedule=rates.linear(STEPS, warmup=3),
    )  # fmt: skip


# ---------------------------------------------------------------- recurrent models


class Reader(nn.Module):
    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6, padding_idx=0)
        self.network, self.head = network, nn.Linear(width, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        hidden, _ = self.network(self.embedding(ids))
        logits: Tensor = self.head(hidden)
        return logits


def next_word(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def _lstm() -> Recipe:
    network = nn.LSTM(6, 4, num_layers=2, bidirectional=True, dropout=0.25, batch_first=True)
    return Recipe(
        model=with_drawn_weights(Reader(network, 8), 121), loss=next_word, optimizer=Adagrad(lr=0.05, lr_decay=0.01),
        data={"ids": words(122, 20, 7)}, examples=Rows(names=("ids",)), options={"clip": Clip(value=0.1)},
        schedule=rates.constant(STEPS, warmup=2),
    )  # fmt: skip


def _gru() -> Recipe:
    """At a precision of 24 bits, between FP32's and bfloat16's."""
    return Recipe(
        model=with_drawn_weights(Reader(nn.GRU(6, 5, batch_first=True), 5), 131), loss=next_word,
        optimizer=Adam(lr=0.02, amsgrad=True, weight_decay=0.01), data={"ids": words(132, 20, 7)},
        examples=Rows(names=("ids",)), schedule=rates.cosine(STEPS, warmup=3), precision=24,
    )  # fmt: skip


# ---------------------------------------------------------------- experts, Fourier transforms, convolutions


def _experts() -> Recipe:
    config = MixtralConfig(
        vocab_size=WORDS, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, num_experts_per_tok=2, num_local_experts=4,
        output_router_logits=True, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    config._experts_implementation = "grouped_mm"
    loss = lambda model, ids: model(input_ids=ids, labels=ids).loss  # noqa: E731
    return Recipe(
        model=with_drawn_weights(MixtralForCausalLM(config), 141), loss=loss, optimizer=Lion(lr=2e-3, weight_decay=0.1),
        data={"ids": words(142, 12, 6)}, examples=Rows(names=("ids",)), size=2,
    )  # fmt: skip


class Fourier(nn.Module):
    """A spectral layer: products with complex weights between a transform and its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(4, 3, 2))
        self.lift, self.head = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.lift(x.unsqueeze(-1)).transpose(1, 2)
        found = torch.fft.rfft(hidden)[..., :3] * torch.view_as_complex(self.weights)
        mixed = torch.fft.irfft(found, n=x.shape[-1]) + torch.sin(hidden)
        made: Tensor = self.head(mixed.transpose(1, 2)).squeeze(-1)
        return made


def _fourier() -> Recipe:
    x = drawn(152, (24, 8)) - 0.5
    loss = lambda model, x, y: F.smooth_l1_loss(model(x), y)  # noqa: E731
    return Recipe(
        model=with_drawn_weights(Fourier(), 151), loss=loss, data={"x": x, "y": x.cumsum(1)},
        optimizer=RMSprop(lr=5e-3, centered=True, momentum=0.5, weight_decay=0.01), examples=Rows(names=("x", "y")),
        schedule=rates.step_decay(STEPS, [10, 18], warmup=2),
    )  # fmt: skip


def _convnet() -> Recipe:
    """Two batches a step, each with batch norm of its own."""
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.SiLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3, groups=3, padding=1, dilation=1), nn.GroupNorm(2, 6), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(2), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(24, CLASSES),
    )  # fmt: skip
    return Recipe(
        model=with_drawn_weights(model, 161), loss=classify,
        optimizer=NAdam(lr=5e-3, weight_decay=0.01, decoupled_weight_decay=True),
        data={"x": drawn(162, (24, 2, 8, 8)) - 0.5, "y": classes(163, 24)}, examples=Rows(names=("x", "y")), size=3,
        options={"accumulation": 2, "norm": True},
    )  # fmt: skip


class Noised(nn.Module):
    """A denoiser on two scales: down by a strided convolution, up by interpolation, joined with what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 8), nn.Conv2d(12, 4, 3, padding=1, padding_mode="reflect")
        self.time, self.last = nn.Linear(1, 8), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        wide = F.silu(self.first(x))
        small = F.silu(self.norm(self.down(wide)) + self.time(t)[:, :, None, None])
        large = F.interpolate(small, scale_factor=2.0, mode="bilinear", align_corners=False)
        found: Tensor = self.last(F.elu(self.up(torch.cat([large, wide], 1))))
        return found


def denoises(model: nn.Module, x: Tensor) -> Tensor:
    t, noise = torch.rand(x.shape[0], 1), torch.randn_like(x)
    share = torch.cos(t)[:, :, None, None]
    return F.mse_loss(model(x * share + noise * torch.sqrt(1 - share**2), t), noise)


def _unet() -> Recipe:
    return Recipe(
        model=with_drawn_weights(Noised(), 171), loss=denoises, optimizer=Adam(lr=5e-3),
        data={"x": drawn(172, (16, 1, 8, 8)) * 2 - 1}, examples=Rows(names=("x",)), options={"average": 0.9},
    )  # fmt: skip


# ---------------------------------------------------------------- attention, bags, and other precisions


class Patches(nn.Module):
    """A tiny vision transformer: patches by a convolution, positions, one encoder layer with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, 8, 4, stride=4)
        self.places = nn.Parameter(torch.zeros(4, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.cut(x).flatten(2).transpose(1, 2) + self.places).amax(1))
        return found


def _vit() -> Recipe:
    return Recipe(
        model=with_drawn_weights(Patches(), 181), loss=classify, optimizer=RAdam(lr=1e-2, betas=(0.8, 0.9)),
        data={"x": drawn(182, (20, 1, 8, 8)) - 0.5, "y": classes(183, 20)}, examples=Rows(names=("x", "y")),
        schedule=rates.one_cycle(STEPS, 8),
    )  # fmt: skip


class Bags(nn.Module):
    """Bags of words and their sorted features; the loss is a sum over the words that count."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 8, mode="mean")
        self.word, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        features = torch.sort(self.bag(ids), -1, descending=True).values
        found: Tensor = self.head(F.softplus(self.word(ids) + torch.log1p(features.abs())[:, None]))
        return found


def counted_words(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    found = F.cross_entropy(model(ids).transpose(1, 2), ids.roll(-1, 1), reduction="none")
    return (found * mask).sum()


def _bags() -> Recipe:
    mask = (drawn(192, (20, 5)) < 0.7).float()
    return Recipe(
        model=with_drawn_weights(Bags(), 191), loss=counted_words, optimizer=Adafactor(lr=0.05),
        data={"ids": words(193, 20, 5), "mask": mask, "count": mask.sum(1).to(torch.int64)},
        examples=Rows(names=("ids", "mask")), options={"items": "count", "accumulation": 2},
        schedule=rates.inverse_sqrt(STEPS, warmup=3), size=3,
    )  # fmt: skip


def _narrow() -> Recipe:
    """At the least precision: every sum is rounded to bfloat16's 8 bits."""
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Sigmoid(), nn.Linear(12, CLASSES))
    return Recipe(
        model=with_drawn_weights(model, 201), loss=classify, optimizer=SGD(lr=0.1, momentum=0.9, nesterov=True),
        data={"x": drawn(202, (24, 6)) - 0.5, "y": classes(203, 24)}, examples=Rows(names=("x", "y")), precision=16,
    )  # fmt: skip


class Recalling(nn.Module):
    """A language model of two words before each: embeddings, whose gradients are scattered, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.inner, self.head = nn.Embedding(41, 6), nn.Linear(12, 16), nn.Linear(16, 41)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        found: Tensor = self.head(torch.erf(self.inner(torch.cat([x[:, :-1], x[:, 1:]], -1))))
        return found


def recalls(model: nn.Module, text: Tensor) -> Tensor:
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 2:].flatten())


def _logged(precision: int, seed: int, optimizer: Any) -> Recipe:
    return Recipe(
        model=with_drawn_weights(Recalling(), seed), loss=recalls, optimizer=optimizer, data=tokens(),
        examples=Windows(name="text", length=9, stride=7), precision=precision, logged=True,
    )  # fmt: skip


RECIPES: dict[str, Callable[[], Recipe]] = {
    "gan": _gan, "lora": _lora, "lstm": _lstm, "gru": _gru, "experts": _experts, "fourier": _fourier,
    "convnet": _convnet, "unet": _unet, "vit": _vit, "bags": _bags, "narrow": _narrow,
    "logged": lambda: _logged(32, 211, SGD(lr=0.05, momentum=0.9, dampening=0.1)),
    "logged-16": lambda: _logged(16, 221, AdamW(lr=1e-2)),
}  # fmt: skip
"""The recipes by the names of their programs."""
