"""The models of the golden runs: small ones of `transformers`, with dropout where they have it, and a multilayer one.

Weights and data come from the engine's counter-based generator, in integers: the same on every machine.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

from benchmarks.real_models import classify, next_token
from tests.golden.bundle import INTERVAL, STEPS
from tiebreak import SGD, AdamW, Batch, Clip, Rows, Task, Windows
from tiebreak.engine.capture.examples import Examples
from tiebreak.engine.optimizers.settings import warmup_linear
from tiebreak.protocol.numbers.philox import random_bits

VOCABULARY, LENGTH, CLASSES = 41, 11, 5


def drawn(seed: int, shape: tuple[int, ...]) -> Tensor:
    """f32 in [0, 1), multiples of 2^-24."""
    count = torch.Size(shape).numel()
    bits = torch.tensor([random_bits(seed, 0, 0, n) for n in range(count)], dtype=torch.int32)
    return bits.view(torch.float32).view(shape)


def with_drawn_weights(model: nn.Module, seed: int) -> nn.Module:
    """Matrices and filters uniform, of a standard deviation near 1/sqrt(8); biases and scales stay 0 and 1."""
    model = model.train()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.ndim >= 2:
                parameter.copy_((drawn(seed * 1000 + number, tuple(parameter.shape)) - 0.5) * 1.25)
            elif bool((parameter != 0).any()) and bool((parameter != 1).any()):
                parameter.zero_()  # a bias that torch drew
    return model


def tokens(count: int = 601) -> dict[str, Tensor]:
    """Text of a language with short-range structure: half of the tokens are the successors of those before."""
    noise, copied = drawn(11, (count,)), drawn(12, (count,))
    found = [0]
    for n in range(1, count):
        repeat = bool(copied[n] < 0.5)
        found.append((found[-1] * 3 + 1) % VOCABULARY if repeat else int(noise[n] * VOCABULARY))
    return {"text": torch.tensor(found, dtype=torch.int64)}


def images(count: int = 20, size: int = 12) -> dict[str, Tensor]:
    """Noise, brighter in a corner that depends on the class."""
    labels = (drawn(21, (count,)) * CLASSES).to(torch.int64)
    pixels = drawn(22, (count, 3, size, size)) - 0.5
    for n, label in enumerate(labels.tolist()):
        pixels[n, label % 3, label : label + 6, label : label + 6] += 1
    return {"images": pixels, "labels": labels}


def _task(name: str, dropout: bool) -> Task:
    model, loss, optimizer, data, examples, clip = _PARTS[name](0.1 if dropout else 0.0)
    return Task(
        name=name, model=model, loss=loss, optimizer=optimizer, data=data, batch=Batch(size=4, examples=examples),
        steps=STEPS, checkpoint_interval=INTERVAL, schedule=warmup_linear(STEPS, warmup=4, floor=0.1), clip=clip,
        seed=7,
    )  # fmt: skip


Parts = tuple[nn.Module, Callable[..., Tensor], SGD | AdamW, dict[str, Tensor], Examples, Clip | None]
_TEXT = Windows(name="text", length=LENGTH, stride=LENGTH - 1)


def _gpt2(dropout: float) -> Parts:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model = with_drawn_weights(GPT2LMHeadModel(config), 1)
    return model, next_token, AdamW(lr=1e-2, weight_decay=0.01), tokens(), _TEXT, Clip(norm=1.0)


def _llama(dropout: float) -> Parts:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, attention_dropout=dropout, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = with_drawn_weights(LlamaForCausalLM(config), 2)
    return model, next_token, AdamW(lr=1e-2, weight_decay=0.01), tokens(), _TEXT, None


def _resnet(_: float) -> Parts:
    config = ResNetConfig(
        num_channels=3, embedding_size=6, hidden_sizes=[8, 12], depths=[1, 1], layer_type="bottleneck",
        num_labels=CLASSES,
    )  # fmt: skip
    model = with_drawn_weights(ResNetForImageClassification(config), 3)
    return model, classify, SGD(lr=0.05, momentum=0.9), images(), Rows(names=("images", "labels")), None


def _mlp(dropout: float) -> Parts:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, CLASSES))
    data = {"x": drawn(31, (24, 6)) - 0.5, "y": (drawn(32, (24,)) * CLASSES).to(torch.int64)}
    loss = lambda model, x, y: F.cross_entropy(model(x), y)  # noqa: E731
    model = with_drawn_weights(model, 4)
    return model, loss, AdamW(lr=1e-2, weight_decay=0.01), data, Rows(names=("x", "y")), None


def _mixed(dropout: float) -> Parts:
    """A table held in bfloat16, then a network in FP32 under autocast."""
    table = nn.Embedding(9, 6).bfloat16()
    model = nn.Sequential(
        table, nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, CLASSES)
    )
    data = {"x": (drawn(41, (24, 3)) * 9).to(torch.int64), "y": (drawn(42, (24,)) * CLASSES).to(torch.int64)}

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x).mean(1), y)

    model = with_drawn_weights(model, 5)
    return model, loss, AdamW(lr=1e-2, weight_decay=0.01), data, Rows(names=("x", "y")), Clip(norm=1.0)


_PARTS: dict[str, Callable[[float], Parts]] = {
    "mlp": _mlp, "mixed": _mixed, "gpt2": _gpt2, "resnet": _resnet, "llama": _llama,
}  # fmt: skip


def make_task(name: str, *, dropout: bool = True) -> Task:
    with torch.random.fork_rng(devices=[]):
        return _task(name, dropout)
