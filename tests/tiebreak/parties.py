"""A small job as its parties see it: a task file, keys, a captured job, and runs made through the command line."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from tiebreak.api.running import make_interpreter
from tiebreak.cli.key import load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.program.isa import Opcode
from tiebreak.sim.adversaries.tampering import Cheat, Tampered

PASSPHRASE = "correct horse battery"
STEPS, INTERVAL = 7, 3
"""Segments of 3, 3 and 1 steps."""

TASK = """
import torch
import torch.nn.functional as F
from torch import nn
from tiebreak.engine.capture.task import SGD, Batch, Rows, Task

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.dropout, self.head = nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.dropout(torch.tanh(self.hidden(x))))

def task(steps=7):
    generator = torch.Generator().manual_seed(1)
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    data = {"x": torch.randn(20, 6, generator=generator), "y": torch.randint(0, 3, (20,), generator=generator)}
    return Task(
        name="small", model=model, loss=lambda m, x, y: F.cross_entropy(m(x), y), optimizer=SGD(lr=0.1, momentum=0.9),
        data=data, batch=Batch(size=4, examples=Rows(names=("x", "y"))), steps=steps, checkpoint_interval=3)
"""


@dataclass(frozen=True)
class Parties:
    """Everything in one folder: task.py, client.pem, trainer.pem, stranger.pem, captured/, run/."""

    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def train(self, run_folder: Path, *more: str, key: str = "trainer.pem") -> int:
        return run(tiebreak, ["train", str(run_folder), "--key", str(self.path(key)), "--threads", "1", *more])

    def audit(self, run_folder: Path, output: Path, *more: str) -> int:
        return run(tiebreak, ["audit", str(run_folder), "--output", str(output), "--threads", "1", *more])

    def signed(self, output: Path) -> Path:
        """A run folder with the signed job and nothing computed yet."""
        shutil.copytree(self.path("agreed"), output)
        return output

    def trained(self, output: Path) -> Path:
        if not self.path("run").exists():
            self.signed(self.path("run"))
            assert self.train(self.path("run")) == 0
        shutil.copytree(self.path("run"), output)
        return output

    def tampered(self, output: Path, cheat: Cheat) -> Path:
        """The run of a trainer that cheats once and signs what follows."""
        return self.tampered_in(self.signed(output), cheat)

    def tampered_in(self, output: Path, cheat: Cheat) -> Path:
        """The same in a folder whose job is signed."""
        made = RunDirectory.open(output)
        interpreter = make_interpreter(made.program, threads=1)
        Worker(made, Tampered(interpreter, cheat.tamper), key=load_key(self.path("trainer.pem"))).work()
        return output


def make_parties(folder: Path) -> Parties:
    """Through the command line, with the passphrase in the environment."""
    torch.set_num_threads(1)
    made = Parties(folder)
    (folder / "task.py").write_text(TASK)
    for name in ("client", "trainer", "stranger"):
        assert run(tiebreak, ["key", str(made.path(f"{name}.pem"))]) == 0
    assert run(tiebreak, ["capture", str(folder / "task.py"), "--output", str(made.path("captured"))]) == 0
    keys = ["--client-key", str(made.path("client.pem")), "--trainer-key", str(made.path("trainer.pem"))]
    command = ["agree", str(made.path("captured")), *keys, "--output", str(made.path("agreed"))]
    assert run(tiebreak, [*command, "--descent-levels", "2"]) == 0
    return made


def doubled_weight(run_folder: Path, step: int) -> Cheat:
    """A trainer that doubles one number of a sum in one step."""
    program = RunDirectory.open(run_folder).program
    leaf = next(n for n, i in enumerate(program.body) if i.opcode == Opcode.REDUCE and i.terms == 8)
    return Cheat(name="doubled", step=step, leaf=leaf, element=5, change=lambda value: value * 2)
