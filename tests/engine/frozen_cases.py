"""Runs with entries that no step changes, for the engine's and the commands' tests (no tests in here)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engine import logged_cases
from tiebreak import AdamW, Batch, Rows, Task
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, Terms, capture_task, draft_job, sign_job
from tiebreak.engine.data.tensors import widened
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.keys import PrivateKey

from .tiny import CLIENT, DOMAIN, TRAINER

STEPS, INTERVAL = 24, 4
EMBEDDING, BIAS = "model.tokens.weight", "model.bias"


class Adapted(nn.Module):
    """A tied embedding, a layer and a norm in bfloat16, a bias in f32, all frozen, and LoRA that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8).bfloat16().requires_grad_(requires_grad=False)
        self.base = nn.Linear(8, 8).bfloat16().requires_grad_(requires_grad=False)
        self.norm = nn.LayerNorm(8).bfloat16().requires_grad_(requires_grad=False)
        self.register_buffer("bias", torch.full((11,), 0.1))
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        x = self.norm(torch.tanh(self.base(x)) + self.up(self.down(x.float())).bfloat16())
        return (x @ self.tokens.weight.T).float() + self.bias


def loss(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def make_task(*, rounds: bool = True) -> Task:
    """rounds: whether results are in bfloat16; otherwise only the frozen numbers are, and layers are in FP32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        ids = torch.randint(0, 11, (12, 6))
        return Task(
            name="adapted", model=Adapted() if rounds else Adapted().float(), loss=loss, optimizer=AdamW(lr=0.01),
            data={"ids": ids, "labels": ids.roll(1, 1)},
            batch=Batch(size=2, examples=Rows(names=("ids", "labels"))), steps=STEPS, checkpoint_interval=INTERVAL,
        )  # fmt: skip


@cache
def adapted(*, rounds: bool = True) -> Captured:
    """With a state in FP32, which capture holds in bfloat16 as far as the model does."""
    made = capture_task(make_task(rounds=rounds))
    return replace(made, state={name: widened(tensor) for name, tensor in made.state.items()})


def new_run(path: Path, client: PrivateKey = CLIENT, trainer: PrivateKey = TRAINER) -> RunDirectory:
    made = adapted()
    job = draft_job(
        made, steps=STEPS, checkpoint_interval=INTERVAL, client=client.address, trainer=trainer.address,
        terms=Terms(clock=1000),
    )  # fmt: skip
    return logged_cases.new_run(path, sign_job(job, DOMAIN, client=client, trainer=trainer), made)


def machine(permute: int | None = None) -> Interpreter:
    return Interpreter(adapted().program, Arithmetic(permute=permute))


def work(run: RunDirectory, until: int | None = None, key: PrivateKey = TRAINER) -> bytes:
    return Worker(run, machine(), key=key).work(until)
