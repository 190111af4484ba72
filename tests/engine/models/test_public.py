"""Published training scripts as programs: the losses of 24 steps are those of eager PyTorch."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import tiebreak
from tests.engine.models.public import CASES, N
from tests.parts import slow_except

STEPS = 24
TOLERANCE = 1e-4
"""Relative; rounding alone leads 24 steps of these apart by at most a tenth of it."""


@cache
def orders() -> list[Tensor]:
    """The numbers of the examples of each step, which a model without a use for them keeps."""
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.zeros(N, dtype=torch.long))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        model.seen.copy_(x)
        return model(x[:, None].float()).sum()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    task = tiebreak.Task(model, loss, optimizer=optimizer, data={"x": torch.arange(N)}, batch=N, steps=STEPS)
    trainer = tiebreak.reproducible(task, check="none")
    return [trainer.state_dict()["seen"].clone() for _ in trainer]


def eager(name: str) -> list[float]:
    torch.manual_seed(0)
    model, loss, optimizer, data = CASES[name]()
    losses = []
    for order in orders():
        optimizer.zero_grad()
        value = loss(model, **{key: array[order] for key, array in data.items()})
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("name", slow_except(CASES, "learning_to_learn"))
def test_published_scripts_have_the_losses_of_eager_pytorch(name: str) -> None:
    torch.manual_seed(0)
    model, loss, optimizer, data = CASES[name]()
    task = tiebreak.Task(model, loss, optimizer=optimizer, data=data, batch=N, steps=STEPS)
    trainer = tiebreak.reproducible(task)
    assert [step.loss for step in trainer] == pytest.approx(eager(name), rel=TOLERANCE, abs=TOLERANCE)
