"""The models that `benchmarks.scale` trains: language, image and plain networks of 10^4 to 3 * 10^7 parameters."""

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from benchmarks.workloads import WORKLOADS, classify, next_token, rows_task
from tiebreak.engine.capture.task import SGD, AdamW, Task
from tiebreak.lab.incentives.costs import Transformer


def gpt(model: Transformer) -> Task:
    """GPT-2 of the given sizes with its dropout, AdamW, random weights and random tokens."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=model.layers,
        n_embd=model.width,
        n_head=model.heads,
        vocab_size=model.vocabulary,
        n_positions=model.context,
        bos_token_id=0,
        eos_token_id=0,
    )
    tokens = torch.randint(0, model.vocabulary, (4 * model.batch, model.sequence + 1))
    net = GPT2LMHeadModel(config)
    return rows_task("gpt", net, next_token, AdamW(lr=1e-4), tokens[:, :-1], tokens[:, 1:], batch=model.batch)


def mlp(width: int, depth: int, batch: int = 64) -> Task:
    """A plain network of ReLU layers, trained by AdamW."""
    torch.manual_seed(0)
    inner = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), *inner, nn.Linear(width, 10))
    x, y = torch.randn(4 * batch, 64), torch.randint(0, 10, (4 * batch,))
    return rows_task("mlp", net, lambda net, x, y: F.cross_entropy(net(x), y), AdamW(lr=1e-3), x, y, batch=batch)


def resnet(widths: tuple[int, ...], pixels: int, batch: int) -> Task:
    """A small ResNet with two blocks per width, trained by SGD with momentum."""
    torch.manual_seed(0)
    depths = [2] * len(widths)
    config = ResNetConfig(embedding_size=widths[0], hidden_sizes=list(widths), depths=depths, layer_type="basic")
    model = ResNetForImageClassification(config)
    x, y = torch.randn(2 * batch, 3, pixels, pixels), torch.randint(0, 2, (2 * batch,))
    return rows_task("resnet", model, classify, SGD(lr=0.01, momentum=0.9), x, y, batch=batch)


def _transformer(layers: int, width: int, heads: int, vocabulary: int, sequence: int, batch: int) -> Transformer:
    return Transformer(layers=layers, width=width, heads=heads, vocabulary=vocabulary, context=sequence,
                       sequence=sequence, batch=batch)  # fmt: skip


TRANSFORMERS: Final[dict[str, Transformer]] = {
    "gpt 1x32": _transformer(1, 32, 2, 128, 16, 4),
    "gpt 2x64": _transformer(2, 64, 2, 512, 32, 4),
    "gpt 2x128": _transformer(2, 128, 4, 1024, 64, 4),
    "gpt 4x128": _transformer(4, 128, 4, 1024, 32, 4),
    "gpt 4x256": _transformer(4, 256, 4, 4096, 64, 4),
    "gpt 6x384": _transformer(6, 384, 6, 8192, 64, 4),
    "gpt 8x512": _transformer(8, 512, 8, 8192, 64, 2),
}
"""Layers and width of each model."""
DIVIDED: Final = {
    "gpt 2x128, 16 x 128": _transformer(2, 128, 4, 1024, 128, 16),
    "gpt 4x256, 8 x 64": _transformer(4, 256, 4, 4096, 64, 8),
    "gpt 6x384, 8 x 32": _transformer(6, 384, 6, 8192, 32, 8),
    "gpt 4x512, 16 x 128": _transformer(4, 512, 8, 2048, 128, 16),
}
"""Models whose steps are divided among workers: layers and width, sequences and tokens of each."""
FITTED: Final[dict[str, Callable[[], Task]]] = {
    **{name: partial(gpt, model) for name, model in TRANSFORMERS.items()},
    "mlp 2x64": partial(mlp, 64, 2),
    "mlp 3x256": partial(mlp, 256, 3),
    "mlp 4x1024": partial(mlp, 1024, 4),
    "mlp 6x2048": partial(mlp, 2048, 6),
    "resnet 16": partial(resnet, (8, 16), 16, 8),
    "resnet 32": partial(resnet, (16, 32, 64), 32, 8),
    "resnet 64": partial(resnet, (32, 64, 128), 64, 8),
    "resnet 32, wide": partial(resnet, (64, 128, 256), 32, 16),
    "digits": WORKLOADS["digits"],
    "text": WORKLOADS["text"],
}
"""The workloads that the cost models are fitted to. resnet: pixels; digits and text: the demo's tasks."""
BATCHED: Final[dict[str, Callable[[], Task]]] = {
    "gpt 2x128, 16 x 128": partial(gpt, _transformer(2, 128, 4, 1024, 128, 16)),
    "gpt 1x64, 16 x 256": partial(gpt, _transformer(1, 64, 2, 512, 256, 16)),
    "resnet 64, 64 images": partial(resnet, (32, 64), 64, 64),
}
"""Small models with large batches. Transformers: sequences, and tokens of each; ResNets: images."""
HELD_OUT: Final[dict[str, Callable[[], Task]]] = {
    name: WORKLOADS[name] for name in ("gpt2", "resnet50-32", "resnet50-224")
}
"""The workloads that the fitted cost models have to predict."""
