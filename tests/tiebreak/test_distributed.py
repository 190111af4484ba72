"""`torchrun ... -m tiebreak train`: the run of several processes is that of one, whoever dies on the way."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.source_tree import ROOT
from tests.tiebreak.parties import Once, Parties, tiny_run
from tests.waiting import until
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.distributed import joined
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.errors import ConfigurationError

pytestmark = pytest.mark.slow
STEPS, INTERVAL = 200, 10
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def runs(parties: Parties, once: Once, tmp_path: Path) -> tuple[RunDirectory, RunDirectory]:
    """A finished run of one process, and one of the same job that was not begun."""
    key = load_key(parties.path("trainer.pem"))

    def make(folder: Path) -> None:
        folder.mkdir()
        for name in ("together", "alone"):
            made = tiny_run(folder / name, STEPS, INTERVAL, key)
        Worker(made, make_interpreter(made.program, job=made.job), key=key).work()

    folder = once("distributed", make)
    shutil.copytree(folder / "together", tmp_path / "together")
    return RunDirectory.open(folder / "alone"), RunDirectory.open(tmp_path / "together")


@pytest.fixture
def start(parties: Parties, tmp_path: Path) -> Iterator[Start]:
    """Starts workers that train a run; what they print goes into a file."""
    begun: list[subprocess.Popen[str]] = []

    def begin(run: RunDirectory, workers: int, *more: str, fault: str = "") -> subprocess.Popen[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        # Held in shards however small: the tiny job's values would all be whole.
        program = (
            "from tiebreak.cli.main import main\nfrom tiebreak.engine.distributed import partition\n"
            f"partition.LEAST = 1\n{fault}\nmain()\n"
        )
        script = tmp_path / "sharded.py"
        script.write_text(program, encoding="utf-8")
        command = [*launcher, str(script), "train", str(run.path), "--key", str(parties.path("trainer.pem")), *more]
        with (tmp_path / "printed").open("w") as output:
            begun.append(subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True))
        return begun[-1]

    yield begin
    for launcher in begun:
        launcher.kill()
        launcher.wait()


def worker(launcher: subprocess.Popen[str], rank: int) -> int:
    """The process of a worker."""
    (found,) = (p for p in psutil.Process(launcher.pid).children() if p.environ().get("RANK") == str(rank))
    return found.pid


def test_training_resumes_with_any_number_of_workers_after_one_is_killed(
    runs: tuple[RunDirectory, RunDirectory], start: Start, tmp_path: Path
) -> None:
    alone, together = runs
    launcher = start(together, 2)
    until(lambda: len(together.heads()) > 2, seconds=120)
    os.kill(worker(launcher, 1), signal.SIGKILL)
    assert launcher.wait(60) != 0
    printed = (tmp_path / "printed").read_text()
    assert "rank      : 1" in printed
    assert "exitcode  : -9" in printed
    assert "worker 0 was told to end, as when another worker is lost; what is committed stays" in printed, printed
    assert "start any number of workers to go on with the same command" in printed
    assert 2 < together.recorded() < alone.recorded()
    launcher = start(together, 3)
    assert launcher.wait(200) == 0, (tmp_path / "printed").read_text()
    assert together.records() == alone.records()
    assert together.heads()[-1].head == alone.heads()[-1].head


WAITS_IN_C = """
import ctypes, os
from tiebreak.api.training.distributed import _last_words
with _last_words(0):
    os.write(1, b"waiting")
    ctypes.CDLL(None).sleep(300)
"""


def test_a_worker_that_waits_in_c_is_ended_with_a_word() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITS_IN_C], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.read(7) == b"waiting"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.startswith(b"worker 0 was told to end, as when another worker is lost; what is committed stays")


OTHERWISE = {
    "last step": 'sys.argv += ["--until", "40"]',
    "release of tiebreak": "from pathlib import Path\n    Path.rglob = lambda *_: []",
}
"""What one worker may have otherwise than the others, and how; `test_mixed_workers` has plans of exchanges."""


@pytest.mark.parametrize("what", OTHERWISE)
def test_workers_with_different_settings_are_refused_before_the_first_step(
    what: str, runs: tuple[RunDirectory, RunDirectory], start: Start, tmp_path: Path
) -> None:
    _, together = runs
    fault = f'import os, sys\nif os.environ["RANK"] == "1":\n    {OTHERWISE[what]}'
    launcher = start(together, 2, "--quiet", fault=fault)
    assert launcher.wait(120) != 0
    said = f"expected the same {what} on all workers, got another on worker 1 than on worker 0"
    assert said in (tmp_path / "printed").read_text()
    assert together.recorded() == 0


def test_an_unresponsive_worker_is_named(runs: tuple[RunDirectory, RunDirectory], start: Start, tmp_path: Path) -> None:
    _, together = runs
    launcher, printed = start(together, 2, "--timeout", "5", "--quiet"), tmp_path / "printed"
    until(lambda: len(together.heads()) > 1, seconds=120)
    frozen = worker(launcher, 1)
    os.kill(frozen, signal.SIGSTOP)
    until(lambda: "WorkerLost: lost worker 1 of 2; what is committed stays" in printed.read_text(), seconds=120)
    os.kill(frozen, signal.SIGKILL)
    assert launcher.wait(60) != 0


SCRIPT = """
import sys
import torch
import tiebreak
from tiebreak.engine.distributed import partition

partition.LEAST = 1
torch.manual_seed(1)
x = torch.randn(32, 5)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
task = tiebreak.Task(
    model, lambda model, x, y: (model(x) - y).square().mean(), optimizer=tiebreak.AdamW(lr=1e-2),
    data={"x": x, "y": x.sum(1, keepdim=True)}, batch=6, steps=21, checkpoint_interval=5,
)
run = tiebreak.train(task, sys.argv[1], progress=False, distributed=len(sys.argv) > 2)
print("root", run.root)
"""


def test_the_library_trains_on_several_workers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    commands = [[str(script), "alone"], [*many, str(script), "together", "distributed"]]
    roots = []
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        roots.append({line for line in done.stdout.splitlines() if line.startswith("root ")})
    assert len(roots[0]) == 1
    assert roots[0] == roots[1], "the two workers and the one print the same root"


def test_distributed_training_requires_torchrun() -> None:
    with pytest.raises(ConfigurationError, match="expected workers started by torchrun"), joined("cpu"):
        pass
