"""A small job as its parties see it: a task file, keys, a captured job, and runs made through the command line."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.tiny import CLIENT, DOMAIN, TRAINER, make_tiny_task
from tests.tampered import Tampered, one_element
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.cli.key import load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.program.isa import Opcode

PASSPHRASE = "correct horse battery"
STEPS, INTERVAL = 7, 3
"""Segments of 3, 3 and 1 steps."""

TASK = """
import torch
import torch.nn.functional as F
from torch import nn
from tiebreak import SGD, Batch, Rows, Task

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


class Commands:
    """Runs commands of `tiebreak` in this process. Each must end with the exit code that is given."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """What a command prints: on stdout if it is to succeed, else on stderr."""
        out, err = self.printed(*arguments, code=code)
        return err if code else out

    def printed(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """What a command prints on stdout, and what on stderr."""
        self._capsys.readouterr()
        found = run(tiebreak, [str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert found == code, out + err
        return out, err

    def error(self, *arguments: object, code: int = 1) -> str:
        """The one line on stderr of a command that fails, without a traceback, and with nothing on stdout."""
        out, err = self.printed(*arguments, code=code)
        (line,) = err.strip().splitlines()
        assert out == ""
        assert "Traceback" not in line
        return line

    def tell(self, *arguments: object, code: int = 0) -> Any:
        """The JSON document of a command, or the complaint of one that fails."""
        return self(*arguments, code=code) if code else json.loads(self(*arguments, "--json"))


Once = Callable[[str, Callable[[Path], object]], Path]
"""The fixture `once`."""


@dataclass(frozen=True)
class Parties:
    """Everything in one folder: task.py, client.pem, trainer.pem, stranger.pem, captured/, agreed/, run/."""

    folder: Path
    once: Once

    def path(self, name: str) -> Path:
        return self.folder / name

    @property
    def keys(self) -> list[str]:
        """The options of `tiebreak agree` for both keys."""
        return ["--client", str(self.path("client.pem")), "--trainer", str(self.path("trainer.pem"))]

    def address(self, who: str) -> str:
        return f"0x{load_key(self.path(f'{who}.pem')).address.hex()}"

    def train(self, run_folder: Path, *more: str, key: str = "trainer.pem") -> int:
        return run(tiebreak, ["train", str(run_folder), "--key", str(self.path(key)), "--threads", "1", *more])

    def audit(self, run_folder: Path, output: Path, *more: str) -> int:
        return run(tiebreak, ["audit", str(run_folder), "--output", str(output), "--threads", "1", *more])

    def signed(self, output: Path) -> Path:
        """A run folder with the signed job and nothing computed yet."""
        return shutil.copytree(self.path("agreed"), output)

    def trained(self, output: Path) -> Path:
        """A finished run."""
        return shutil.copytree(self.path("run"), output)

    def cheating(self, output: Path, step: int) -> Path:
        """The run of a trainer that doubles one number of a sum in one step and signs what follows."""
        return shutil.copytree(self.once(f"cheating-{step}", lambda made: self.cheat(self.signed(made), step)), output)

    def cheat(self, signed: Path, step: int) -> Path:
        """The same in a folder whose job is signed."""
        made = RunDirectory.open(signed)
        leaf = next(n for n, i in enumerate(made.program.body) if i.opcode == Opcode.REDUCE and i.terms == 8)
        lie = one_element(step, leaf, 5, lambda value: value * 2)
        interpreter = make_interpreter(made.program, Machine(threads=1))
        Worker(made, Tampered(interpreter, lie), key=load_key(self.path("trainer.pem"))).work()
        return signed


def flip(path: Path) -> None:
    """Make the last bit of a file another one."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def tiny_run(folder: Path, steps: int, interval: int, key: PrivateKey = TRAINER) -> RunDirectory:
    """A signed run of the engine's tiny task in which nothing is computed yet."""
    bundle = capture_bundle(make_tiny_task(steps, interval), check="none")
    return agree_on(bundle, folder, client=CLIENT, trainer=key, terms=Terms(), domain=DOMAIN)


def make_parties(folder: Path) -> None:
    """Through the command line, with the passphrase in the environment."""
    torch.set_num_threads(1)
    made = Parties(folder, lambda _name, _make: folder)
    folder.mkdir()
    (folder / "task.py").write_text(TASK)
    for name in ("client", "trainer", "stranger"):
        assert run(tiebreak, ["key", str(made.path(f"{name}.pem"))]) == 0
    assert run(tiebreak, ["capture", str(folder / "task.py"), "--output", str(made.path("captured"))]) == 0
    command = ["agree", str(made.path("captured")), *made.keys, "--output", str(made.path("agreed"))]
    assert run(tiebreak, [*command, "--descent-levels", "2"]) == 0
    assert made.train(made.signed(made.path("run"))) == 0
