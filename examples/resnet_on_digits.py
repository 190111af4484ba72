"""A small residual network, trained into a directory. If it is killed, the same command continues the run.

python examples/resnet_on_digits.py --directory runs/digits
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tiebreak

HELD_OUT = 360


class Residual(nn.Module):
    """x plus two convolutions with batch norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape [B, C, H, W]."""
        return F.relu(x + self.body(x))


def network(channels: int, blocks: int) -> nn.Module:
    """A network from images [B, 1, 8, 8] to logits [B, 10]."""
    stem = [nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*stem, *(Residual(channels) for _ in range(blocks)), *head)


def main(arguments: Sequence[str] | None = None) -> tiebreak.Run:
    """Trains and measures the network; returns the run."""
    parser = argparse.ArgumentParser(description="A small ResNet on images of digits")
    parser.add_argument("--directory", default="runs/digits")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=2)
    options = parser.parse_args(arguments)

    pixels, labels = load_digits(return_X_y=True)
    images, targets = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
    torch.manual_seed(0)
    model = network(options.channels, options.blocks)

    task = tiebreak.Task(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        data={"images": images[:-HELD_OUT], "targets": targets[:-HELD_OUT]},
        optimizer=tiebreak.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        schedule=tiebreak.cosine(options.steps, warmup=options.steps // 10),
        batch=32,
        steps=options.steps,
    )
    run = tiebreak.train(task, options.directory)

    model.load_state_dict(run.state_dict())
    with torch.no_grad():
        right = (model.eval()(images[-HELD_OUT:]).argmax(1) == targets[-HELD_OUT:]).double().mean()
    print(f"accuracy {right:.3f} on {HELD_OUT} images it has not seen")
    print(f"run root {run.root}")
    return run


if __name__ == "__main__":
    main()
