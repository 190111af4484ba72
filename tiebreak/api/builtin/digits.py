"""A small convolutional network with batch norm, max-pooling and dropout on scikit-learn's images of digits."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.capture.examples import Batch, Rows
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.settings import SGD, warmup_linear

TEST_IMAGES = 360
"""The last 360 of the 1797 images are held out."""


class DigitsNet(nn.Module):
    """Maps images [B, 1, 8, 8] to logits [B, 10]."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x_BCHW))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        logits: Tensor = self.head(self.dropout(x.flatten(1)))
        return logits


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy."""
    return F.cross_entropy(model(images), labels)


def load() -> tuple[Tensor, Tensor]:
    """All images, float32 [1797, 1, 8, 8] in 0 to 1 (multiples of 1/16, so exact), and their labels, int64 [1797]."""
    if (found := find_spec("sklearn")) is None or found.origin is None:
        raise ModuleNotFoundError("expected scikit-learn, which has the images, got none", name="sklearn")
    # Read where `sklearn.datasets.load_digits` reads: importing that takes seconds.
    rows = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    images = torch.tensor(rows[:, :-1], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return images, torch.tensor(rows[:, -1], dtype=torch.int64)


def task(steps: int = 72) -> Task:
    """Trains by SGD with momentum and weight decay; measures accuracy on held-out images.

    Batches of 32; an epoch has 45 of them.
    """
    images, labels = load()
    train_images, test_images = images[:-TEST_IMAGES], images[-TEST_IMAGES:]
    train_labels, test_labels = labels[:-TEST_IMAGES], labels[-TEST_IMAGES:]

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        right = model(test_images).argmax(1) == test_labels
        return {"test accuracy": float(right.double().mean())}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = DigitsNet()
    return Task(
        name="digits", model=model, loss=loss, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=5e-4),
        schedule=warmup_linear(steps, warmup=min(4, steps - 1), floor=0.05),
        data={"images": train_images, "labels": train_labels},
        batch=Batch(size=32, examples=Rows(names=("images", "labels"))), steps=steps,
        checkpoint_interval=min(12, steps), seed=1, evaluate=evaluate,
    )  # fmt: skip
