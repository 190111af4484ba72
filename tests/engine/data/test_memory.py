"""Data larger than the memory a process may take: identified, imported, trained on. And the same roots as in memory.

RLIMIT_DATA bounds what a process takes for itself (heap and private mappings); pages of a shared file mapping are the
system's, and not counted. Under it a copy of the data fails; the script shows that first.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.tiny import TRAINER
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.protocol.errors import StateError, VerificationError

SCRIPT = r"""
import os, resource, sys
from pathlib import Path
import numpy as np, torch
from torch import nn
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak import SGD, Task
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.api.data.importing import import_files

folder, megabytes, headroom = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rows = megabytes * 2**20 // 64
with (folder / "x.bin").open("wb") as file:
    file.truncate(rows * 32)  # sparse: float16 [rows, 16]
torch.set_num_threads(1)
key = PrivateKey.from_int(7)
generator = torch.Generator().manual_seed(1)
model = nn.Linear(16, 1)

def held():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) * 1024

limit = held() + headroom * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    torch.ones(rows, 16)
except RuntimeError:
    print("a copy does not fit")
import_files((folder / "x.bin",), folder / "imported.safetensors", dtype="<f2", offset=0, shape=(rows, 16))
task = Task(name="large", model=model, loss=lambda m, x: ((m(x + 1) - 1) ** 2).mean(), optimizer=SGD(lr=0.1),
            data=folder / "imported.safetensors", batch=4, steps=4, checkpoint_interval=2)
print(task.data["x"].shape[0] * 64 // 2**20, "MB of", task.data["x"].dtype)
bundle = capture_bundle(task, check="none")
run = agree_on(bundle, folder / "run", client=key, trainer=key, terms=Terms(), domain=OFF_CHAIN)
Worker(run, Interpreter(run.program, Arithmetic())).work()
print(run.recorded(), "checkpoints")
"""


@pytest.mark.slow
def test_data_larger_than_memory_are_imported_committed_and_trained_on(tmp_path: Path) -> None:
    # What a run takes beside the data is about 125 MB, some of it the libraries' own: twice that is allowed.
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "384", "256"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["a copy does not fit", "384 MB of torch.float32", "2 checkpoints"]


def test_data_changed_during_a_run_stop_further_commits(new_run: Callable[[str], RunDirectory], tiny: Captured) -> None:
    run = new_run("run")

    def on_progress(progress: Progress) -> None:
        if progress.step == 4:
            with (run.path / "data.safetensors").open("rb+") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last[0] ^ 1]))

    worker = Worker(run, Interpreter(tiny.program, Arithmetic()), key=TRAINER, on_progress=on_progress)
    with pytest.raises(StateError, match="expected the file as it was when it was opened"):
        worker.work()
    assert [record.step for record in run.records()] == [3]
    with pytest.raises(VerificationError, match=r"data\.safetensors: expected root"):
        worker.work()
