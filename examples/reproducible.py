"""Training that gives the same bytes on every machine: no keys, no files, no disputes.

    python examples/reproducible.py --steps 50

Run it with one thread here and sixteen threads there: the digest in the last line is the same.
"""

import argparse
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn

import tiebreak


def main(arguments: Sequence[str] | None = None) -> str:
    """Trains and returns the digest of the final state."""
    parser = argparse.ArgumentParser(description="Reproducible training on images of digits")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)

    pixels, labels = load_digits(return_X_y=True)
    data = {"pixels": torch.tensor(pixels, dtype=torch.float32) / 16, "labels": torch.tensor(labels)}

    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # torch's uniform draws are the same everywhere; its normal draws are not
        for parameter in model.parameters():
            parameter.copy_((torch.rand(parameter.shape, generator=generator) - 0.5) * 0.4)

    task = tiebreak.Task(
        model, nn.CrossEntropyLoss(), data=data, optimizer=tiebreak.AdamW(lr=3e-3), batch=64, steps=options.steps
    )
    trainer = tiebreak.reproducible(task, machine=tiebreak.Machine(threads=options.threads))
    for step in trainer:
        if step.number % 10 == 0:
            print(f"step {step.number:4}  loss {step.loss:.4f}")

    model.load_state_dict(trainer.state_dict())
    right = (model.eval()(data["pixels"]).argmax(1) == data["labels"]).double().mean()
    print(f"accuracy {right:.3f}")
    print(f"digest   {trainer.digest()}")
    return trainer.digest()


if __name__ == "__main__":
    main()
