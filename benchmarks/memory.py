"""Peak memory of training steps against eager FP64 PyTorch, with each party in a process of its own.

    python -m benchmarks.memory [WORKLOAD ...]
    python -m benchmarks.memory --capture [WORKLOAD ...]

The figure is the peak resident size while making the model and taking three steps, minus the resident size before. The
exact parties load a captured bundle, as trainers and auditors do. This works on Linux only: a process inherits the peak
of its parent, so the benchmark resets it through /proc/self/clear_refs.

With --capture, it measures capture and its check instead, from the moment when the model is made. WORKLOADS are then
those of `benchmarks.real_models`, on sequences of 16 tokens; WORKLOAD/slice is checked on a slice.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import torch

from benchmarks.real_models import make_real_task
from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, placed, publish, rows_of
from benchmarks.workloads import STEPS, WORKLOADS
from tiebreak.api.training.bundle import Bundle, load_bundle
from tiebreak.api.training.tasks import capture
from tiebreak.engine.capture.captured import Captured, capture_task

EAGER: Final = {"eager FP32": torch.float32, "eager FP64": torch.float64}
EXACT: Final = ("trainer", "auditor, permuted")
CAPTURE: Final = {
    "MB": ("peak memory", ""),
    "bytes": ("memory beside the model, by parameter", "<= 40"),
    "s": ("processor time", ""),
}
"""Metrics of capture and its check, and their targets, by unit."""
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
        step = ExactStep(captured, STEPS, permute=1 if who == EXACT[1] else None)
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


def measure(name: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle"
        task = WORKLOADS[name]()
        Bundle.of(capture_task(task), name=name, steps=task.steps, checkpoint_interval=1).save(path)
        del task
        parties = {who: _in_a_process(who, name) for who in EAGER} | {
            who: _in_a_process(who, str(path)) for who in EXACT
        }
    ratios = {f"{who} / eager FP64": parties[who] / parties["eager FP64"] for who in EXACT}
    rows = rows_of(name, "MB", {f"{who}: peak memory": peak / 1e6 for who, peak in parties.items()})
    return rows + rows_of(name, "x", ratios, dict.fromkeys(ratios, "<= 1.6"))


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
@click.option("--party", hidden=True, help="Measure one party in this process; WORKLOADS is then its source.")
def main(workloads: tuple[str, ...], party: str | None, folder: Path, *, captures: bool) -> None:
    """Measure WORKLOADS (default: GPT-2 and ResNet-50; of capture, GPT-2 and a Llama of a billion parameters)."""
    torch.set_num_threads(THREADS)
    if party is not None:
        click.echo(json.dumps((capture_of if party == "capture" else partial(peak_of, party))(workloads[0])))
        return
    names = workloads or (
        ("gpt2-124m", "llama-1b-lora", "llama-1b-lora/slice") if captures else ("gpt2", "resnet50-32", "resnet50-224")
    )
    rows = [row for name in names for row in (measure_capture if captures else measure)(name)]
    publish("memory", rows, f"peak of {_STEPS} steps, {THREADS} threads", folder=folder)


if __name__ == "__main__":
    main()
