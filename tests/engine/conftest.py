"""A small real job for the engine's tests: softmax regression with momentum on random rows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiebreak.engine.capture.compile import Compiled, compile_task
from tiebreak.engine.capture.task import SGD, Batch, Rows, Task
from tiebreak.engine.run.agreement import Terms, draft_job, sign_job
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.job import SignedJob
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
        name="tiny",
        model=model,
        loss=classify,
        optimizer=SGD(lr=0.1, momentum=0.9),
        data=data,
        batch=Batch(size=4, examples=Rows(names=("x", "y"))),
        steps=steps,
        checkpoint_interval=interval,
        seed=3,
    )


@pytest.fixture(scope="session")
def tiny() -> Compiled:
    return compile_task(make_tiny_task())


@pytest.fixture(scope="session")
def agreement(tiny: Compiled) -> SignedJob:
    job = draft_job(
        tiny, steps=12, checkpoint_interval=3, client=CLIENT.address, trainer=TRAINER.address, terms=Terms(clock=1000)
    )
    return sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)


@pytest.fixture
def new_run(tiny: Compiled, agreement: SignedJob, tmp_path: Path) -> Callable[[str], RunDirectory]:
    """Makes a run of the tiny job in a fresh directory of this name."""

    def make(name: str) -> RunDirectory:
        return RunDirectory.create(tmp_path / name, agreement, tiny.program, tiny.state, tiny.data)

    return make


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiled kernels: for what only the pure paths have."""
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")
