"""A small GPT on bytes of the Python language reference that ships with Python itself (`pydoc_data.topics`).

Shapes: B batch, T time (bytes of a window), C channels, H heads, D channels of a head, V vocabulary (256 bytes).
"""

import math
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.capture.examples import Batch, Windows
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.settings import AdamW, warmup_linear

VOCABULARY = 256
CONTEXT = 32
"""The number of bytes that the model sees."""
VALIDATION_BYTES = 8192
"""The end of the text is held out."""
MASKED = -1e9
"""The score of a position in the future. It is finite so that no infinity enters a sum; its weight is exactly 0."""


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, channels: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] to [B, T, C]."""
        (B, T, C), H = x_BTC.shape, self.heads
        q, k, v = (part.view(B, T, H, C // H).transpose(1, 2) for part in self.qkv(x_BTC).split(C, dim=2))
        scores_BHTT = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(C // H))
        time_T = torch.arange(T)
        future_TT = time_T[None, :] > time_T[:, None]
        weights_BHTT = F.softmax(scores_BHTT.masked_fill(future_TT, MASKED), dim=-1)
        y_BTC = (self.dropout(weights_BHTT) @ v).transpose(1, 2).reshape(B, T, C)
        projected: Tensor = self.out(y_BTC)
        return projected


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, channels: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attention = Attention(channels, heads, dropout)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(approximate="tanh"), nn.Linear(4 * channels, channels)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.dropout(self.attention(self.norm1(x_BTC)))
        y_BTC: Tensor = x_BTC + self.dropout(self.mlp(self.norm2(x_BTC)))
        return y_BTC


class ByteGPT(nn.Module):
    """Maps bytes [B, T] to logits of the next byte [B, T, V]. The output layer shares its weight with the embedding."""

    def __init__(self, layers: int = 2, channels: int = 64, heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, channels)
        self.positions = nn.Embedding(CONTEXT, channels)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(channels, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(channels)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, bytes_BT: Tensor) -> Tensor:
        x_BTC = self.tokens(bytes_BT) + self.positions(torch.arange(bytes_BT.shape[1]))
        x_BTC = self.norm(self.blocks(self.dropout(x_BTC)))
        logits_BTV: Tensor = F.linear(x_BTC, self.tokens.weight)
        return logits_BTV


def loss(model: nn.Module, window: Tensor) -> Tensor:
    """Mean cross entropy of each byte of the window after the first, given the bytes before it.

    window: int64 [B, T+1].
    """
    logits_BTV = model(window[:, :-1])
    return F.cross_entropy(logits_BTV.reshape(-1, VOCABULARY), window[:, 1:].reshape(-1))


def load() -> Tensor:
    """The text as int64 bytes. Its length depends on the Python version, which is why the bytes travel with the job."""
    text = "".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def task(steps: int = 40) -> Task:
    """Trains by AdamW with linear warm-up and decay, 16 windows a step; measures perplexity on held-out text.

    Uniform predictions have perplexity 256.
    """
    text = load()
    training, validation = text[:-VALIDATION_BYTES], text[-VALIDATION_BYTES:]
    examples = Windows(name="text", length=CONTEXT + 1, stride=CONTEXT)
    held_out = {"text": validation}
    windows = examples.take(held_out, torch.arange(examples.count(held_out)))

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"validation perplexity": math.exp(float(loss(model, *windows).double()))}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = ByteGPT()
    return Task(
        name="text", model=model, loss=loss, optimizer=AdamW(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01),
        schedule=warmup_linear(steps, warmup=min(8, steps - 1), floor=0.1), data={"text": training},
        batch=Batch(size=16, examples=examples), steps=steps, checkpoint_interval=min(8, steps), seed=2,
        evaluate=evaluate,
    )  # fmt: skip
