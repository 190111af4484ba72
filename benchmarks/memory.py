"""Peak memory of training steps against eager FP32 PyTorch, with each party in a process of its own.

    python -m benchmarks.memory [WORKLOAD ...]
    python -m benchmarks.memory --capture [WORKLOAD ...]
    python -m benchmarks.memory --train [WORKLOAD ...]

The figure is the peak resident size while making the model and taking three steps, minus the resident size before. The
exact parties load a captured bundle, as trainers and auditors do. This works on Linux only: a process inherits the peak
of its parent, so the benchmark resets it through /proc/self/clear_refs.

With --capture, it measures capture and its check instead, from the moment when the model is made. WORKLOADS are then
those of `benchmarks.real_models`, on sequences of 16 tokens; WORKLOAD/slice is checked on a slice.

With --train, it captures one of these on a sequence of 1,024 tokens, checks it on a slice, and trains it in a run on
disk; each figure is the process's peak in that phase, with the model itself.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import torch

from benchmarks.real_models import FOUR_BIT, make_real_task
from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, placed, publish, rows_of
from benchmarks.workloads import STEPS, WORKLOADS
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.bundle import capture_bundle, load_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.api.training.tasks import capture
from tiebreak.engine.capture.captured import Captured, Terms
from tiebreak.engine.native import release
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN

EAGER: Final = {"eager FP32": torch.float32, "eager FP64": torch.float64}
EXACT: Final = ("trainer", "auditor, permuted")
CAPTURE: Final = {
    "MB": ("peak memory", ""),
    "bytes": ("memory beside the model, by parameter", "<= 40"),
    "s": ("processor time", ""),
}
"""Metrics of capture and its check, and their targets, by unit."""
TRAIN: Final = {
    "capture: peak memory, 1 x 1,024 tokens": ("MB", "<= 6000"),
    "training: peak memory, 1 x 1,024 tokens": ("MB", "<= 9000"),
    "capture: time": ("s", ""),
    "training: time of the last step": ("s", ""),
    "initial state on the disk": ("MB", ""),
    "checkpoint on the disk": ("MB", ""),
}
"""Metrics of capture and training on a long sequence, with their units and targets."""
THREADS: Final = 2
_STEPS: Final = 3


def _status(field: str) -> int:
    """The value of a field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def peak_of(who: str, source: str) -> int:
    """Peak bytes of a party in this process.

    source: a workload's name or, for the exact parties, a bundle.
    """
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    if who in EAGER:
        step = eager_step(WORKLOADS[source](), EAGER[who], keep=False)
    else:
        bundle = load_bundle(Path(source))
        captured = Captured(bundle.program, bundle.state, bundle.data)
        del bundle
        step = ExactStep(captured, STEPS, permute=1 if who == EXACT[1] else None, takes=True)
        del captured
    for _ in range(_STEPS):
        step()
    return _status("VmHWM") - before


def capture_of(name: str) -> dict[str, float]:
    """Measures capture and its check in this process; the figures are named by the units of `CAPTURE`."""
    name, _, check = name.partition("/")
    task = make_real_task(name, 2, length=16)
    before, seconds = _status("VmRSS"), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")
    capture(task, check=check or "full")
    peak, count = _status("VmHWM"), sum(p.numel() for p in task.model.parameters())
    taken = (peak / 1e6, (peak - before) / count, time.process_time() - seconds)
    return dict(zip(CAPTURE, taken, strict=True))


def training_of(name: str) -> list[float]:
    """Measures capture and a run in this process; the figures are in the order of `TRAIN`."""
    task, seconds = make_real_task(name, _STEPS, length=8 if "small" in name else 1024), list[float]()
    release()  # what making the model has left
    Path("/proc/self/clear_refs").write_text("5")
    began = time.perf_counter()
    bundle = capture_bundle(task, check="none" if "small" in name else "slice")
    took = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        key = new_key()
        run = agree_on(bundle, Path(folder) / "run", client=key, trainer=new_key(), terms=Terms(), domain=OFF_CHAIN)
        del bundle
        captured = _status("VmHWM")
        Path("/proc/self/clear_refs").write_text("5")
        interpreter = make_interpreter(run.program, Machine(threads=THREADS), run.job)
        Worker(run, interpreter, on_progress=lambda progress: seconds.append(progress.seconds)).work()
        sizes = [run.state_path(step).stat().st_size for step in (0, _STEPS)]
    return [captured / 1e6, _status("VmHWM") / 1e6, took, seconds[-1], *(size / 1e6 for size in sizes)]


def measure_training(name: str) -> list[Row]:
    found = zip(TRAIN.items(), _in_a_process("train", name), strict=True)
    goals = {"<= 9000": "<= 6000"} if name in FOUR_BIT else {}
    return [
        Row(metric=m, case=name, value=value, unit=unit, target=goals.get(goal, goal))
        for (m, (unit, goal)), value in found
    ]


def measure(name: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        task = WORKLOADS[name]()
        replace(capture_bundle(task, check="none"), name=name, checkpoint_interval=1).save(path)
        del task
        parties = {who: _in_a_process(who, name) for who in EAGER} | {
            who: _in_a_process(who, str(path)) for who in EXACT
        }
    ratios = {f"{who} / eager FP32": parties[who] / parties["eager FP32"] for who in EXACT}
    rows = rows_of(name, "MB", {f"{who}: peak memory": peak / 1e6 for who, peak in parties.items()})
    return rows + rows_of(name, "x", ratios, dict.fromkeys(ratios, "<= 1.05"))


def measure_capture(name: str) -> list[Row]:
    found = _in_a_process("capture", name)
    return [
        Row(metric=f"capture: {metric}", case=name, value=found[unit], unit=unit, target=target)
        for unit, (metric, target) in CAPTURE.items()
    ]


def _in_a_process(who: str, source: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.memory", "--party", who, source]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@click.command()
@click.argument("workloads", nargs=-1)
@placed
@click.option("--capture", "captures", is_flag=True, help="Measure capture and its check.")
@click.option("--train", "trains", is_flag=True, help="Measure capture and a run of a long sequence.")
@click.option("--party", hidden=True, help="Measure one party in this process; WORKLOADS is then its source.")
def main(workloads: tuple[str, ...], party: str | None, folder: Path, *, captures: bool, trains: bool) -> None:
    """Measure WORKLOADS (default: GPT-2 and ResNet-50; of capture, GPT-2 and a Llama of a billion parameters)."""
    torch.set_num_threads(THREADS)
    if party is not None:
        special: dict[str, Callable[[str], Any]] = {"capture": capture_of, "train": training_of}
        click.echo(json.dumps(special.get(party, partial(peak_of, party))(workloads[0])))
        return
    usual: tuple[str, ...] = ("gpt2", "resnet50-32", "resnet50-224")
    measuring = measure
    if captures:
        usual, measuring = ("gpt2-124m", "llama-1b-lora", "llama-1b-lora/slice"), measure_capture
    elif trains:
        usual, measuring = ("llama-1b-lora-all", *FOUR_BIT), measure_training
    rows = [row for name in workloads or usual for row in measuring(name)]
    publish("memory", rows, f"peak of {_STEPS} steps, {THREADS} threads", folder=folder)


if __name__ == "__main__":
    main()
