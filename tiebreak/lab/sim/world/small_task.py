"""The computation of all games: a classifier of small images, trained for ten steps.

It is as small as possible while a trainer can cheat with everything that a large task offers: labels, images and their
order, batch norm's running statistics, dropout, a warm-up, AdamW with decoupled weight decay, tensors of several
chunks, sums that are long enough for an accumulator tree, and a last segment shorter than the others.

Its bytes are the same on any machine: all numbers come from the protocol's counter-based generator and are scaled only
by powers of two. Numbers drawn by torch would depend on the processor.
"""

from math import prod
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.capture.examples import Batch, Rows
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.settings import AdamW
from tiebreak.protocol.numbers.philox import key_of, philox4x32

SIDE: Final = 8
"""Pixels along one side of an image."""
CLASSES: Final = 4
UNITS: Final = 16
EXAMPLES: Final = 20
BATCH: Final = 8
"""The third batch of this size spans two epochs."""
STEPS: Final = 10
INTERVAL: Final = 3
"""Steps per checkpoint. Ten steps make segments of 3, 3, 3 and 1."""
IMAGES, LABELS = "images", "labels"
SCHEDULE: Final = (0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.75, 0.5, 0.5, 0.25)
WEIGHT_DECAY: Final = 0.05
BETAS: Final = (0.9, 0.999)
DROPOUT: Final = 0.25
STREAM: Final = 2
"""Philox stream of the initial weights."""
_SEED: Final = 20
"""Philox seed of everything that is drawn."""


def drawn(stream: int, shape: tuple[int, ...], scale: float) -> Tensor:
    """A float32 tensor, uniform in [-scale, scale). Exact, because `scale` is a power of two."""
    numel = prod(shape)
    key = key_of(_SEED)
    words = [word for block in range(-(-numel // 4)) for word in philox4x32((block, 0, 0, stream), key)]
    signed = torch.tensor([(word >> 8) - (1 << 23) for word in words[:numel]], dtype=torch.float32)
    return (signed * (scale * 2.0**-23)).view(shape)


class Classifier(nn.Module):
    """Maps images [B, 8, 8] to logits [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(SIDE * SIDE, UNITS)
        self.norm = nn.BatchNorm1d(UNITS)
        self.dropout = nn.Dropout(DROPOUT)
        self.head = nn.Linear(UNITS, CLASSES)

    def forward(self, x_BHW: Tensor) -> Tensor:
        h_BC = F.relu(self.norm(self.hidden(x_BHW.flatten(1))))
        logits: Tensor = self.head(self.dropout(h_BC))
        return logits


def _loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def _images(label_B: Tensor) -> Tensor:
    """Images with one bright quadrant, chosen by class, and noise, inside a border of zeros.

    A weight of a border pixel never has a gradient.
    """
    x_BHW = drawn(1, (EXAMPLES, SIDE, SIDE), 0.5)
    half = SIDE // 2
    for number, label in enumerate(label_B.tolist()):
        top, left = label // 2 * half, label % 2 * half
        x_BHW[number, top : top + half, left : left + half] += 1.0
    x_BHW[:, [0, -1], :] = 0.0
    x_BHW[:, :, [0, -1]] = 0.0
    return x_BHW


def small_task(stream: int = STREAM) -> Task:
    """The task. `stream` selects the initial weights; another stream gives another run."""
    model = Classifier()
    with torch.no_grad():
        for offset, (name, parameter) in enumerate(model.named_parameters()):
            if not name.startswith("norm"):
                parameter.copy_(drawn(stream + 16 * offset, tuple(parameter.shape), 0.25))
    labels = torch.arange(EXAMPLES) % CLASSES
    return Task(
        name="small",
        model=model,
        loss=_loss,
        optimizer=AdamW(lr=0.01, betas=BETAS, weight_decay=WEIGHT_DECAY),
        data={IMAGES: _images(labels), LABELS: labels},
        batch=Batch(size=BATCH, examples=Rows(names=(IMAGES, LABELS))),
        steps=STEPS,
        checkpoint_interval=INTERVAL,
        seed=11,
        schedule=SCHEDULE,
    )
