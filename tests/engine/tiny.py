"""A small real task and the parties of its jobs: softmax regression with momentum on random rows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak import SGD, Batch, Rows, Task
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import PrivateKey

CLIENT = PrivateKey.from_int(0xC11E47)
TRAINER = PrivateKey.from_int(0x7124135)
AUDITOR = PrivateKey.from_int(0xA0D1708)
DOMAIN = Domain(chain_id=1337, contract=Address(bytes(19) + b"\x01"))


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def make_tiny_task(steps: int = 12, interval: int = 3) -> Task:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    data = {"x": torch.randn(20, 5, generator=generator), "y": torch.randint(0, 3, (20,), generator=generator)}
    return Task(
        name="tiny", model=model, loss=classify, optimizer=SGD(lr=0.1, momentum=0.9), data=data,
        batch=Batch(size=4, examples=Rows(names=("x", "y"))), steps=steps, checkpoint_interval=interval, seed=3,
    )  # fmt: skip
