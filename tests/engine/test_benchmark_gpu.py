"""The GPU benchmark, tried out on a CPU: a killed one goes on, other bits are named, and nothing is checked in."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.workloads import TINY
from benchmarks.table import RESULTS
from tests.waiting import until
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.native import pure_path
from tiebreak.engine.run.graphs import Reads
from tiebreak.engine.run.interpreter import loss_bits
from tiebreak.engine.run.worst import product
from tiebreak.protocol.numbers.float32 import NAN_BITS

ROOT = Path(__file__).resolve().parents[2]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--output", str(folder), *more]


def tried(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *more), cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_trial_on_the_cpu_that_is_killed_goes_on(tmp_path: Path) -> None:
    before = sorted(path.name for path in RESULTS.rglob("*"))
    parts = "cpu-digits", "logged"
    process = subprocess.Popen(command(tmp_path, *parts), cwd=ROOT, stdout=subprocess.DEVNULL)
    until(lambda: (tmp_path / "gpu" / ".logged.log").exists() or process.poll() is not None, seconds=200)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert children
    assert not psutil.wait_procs(children, timeout=20)[1]  # no part goes on alone
    late = tried(tmp_path, "logged", "--minutes", "0.2")
    assert late.returncode == 1
    guess = next(part.seconds for part in PARTS if part.name == "logged")
    assert f"logged: left: 12 s remain, it is guessed to take {guess}\n" in late.stdout
    done = tried(tmp_path, *parts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cpu-digits: done before" in done.stdout
    assert sorted(path.name for path in RESULTS.rglob("*")) == before
    assert sorted(path.name for path in (tmp_path / "gpu").iterdir()) == ["cpu-digits.json", "logged.json"]
    made = json.loads((tmp_path / "gpu" / "logged.json").read_text())
    assert made["environment"]["device"] == "cpu"
    found = {(row["metric"], row["case"]): row["value"] for row in made["rows"]}
    assert found["steps that agree", "digits, trained on cpu, audited on cpu"] == TINY["digits"].steps


def test_what_the_host_reads_is_named() -> None:
    x = torch.arange(4.0)
    with Reads() as reads:
        x.add(1).exp().sum()  # nothing
        x.index_select(0, torch.tensor([0, 2]))
        x[x > 1]
        x[torch.tensor([0, 2])]
        x.nonzero()
        x.max().item()
        x.to(torch.float64)
        x.to("meta")
        Arithmetic().execute(product(1, 2, 3, 2).instruction, [torch.ones(6), torch.ones(6)], 0)
    here = "in elsewhere"
    assert reads.seen == {f"{name} {here}": 1 for name in ("index", "nonzero", "_local_scalar_dense", "_to_copy")}
    with Reads() as reads, pure_path():
        Arithmetic().execute(product(1, 2, 3, 2).instruction, [torch.ones(6), torch.ones(6)], 0)
    assert {place.split(" in ")[1].split(".")[0] for place in reads.seen} <= {"pure", "ziv", "rounding"}
    assert reads.seen


def test_the_loss_is_read_once_and_its_nan_is_canonical() -> None:
    nans = (0x7F800001, 0xFF800001, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, NAN_BITS)
    others = (0, 1, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000)
    with Reads() as reads:
        for bits_of_it in (*nans, *others):
            loss = torch.from_numpy(np.array(bits_of_it, dtype=np.uint32).view(np.float32))
            assert loss_bits(loss) == (NAN_BITS if bits_of_it in nans else bits_of_it)
    assert reads.seen == {"_local_scalar_dense in interpreter.loss_bits": len(nans) + len(others)}
