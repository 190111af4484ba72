"""The task in plain eager PyTorch, as a baseline: FP32 or FP64, torch.optim, no control of rounding. Its runs fork.

As a command it trains in a process of its own, so that thread count and instruction set can be chosen for it:

    python -m tiebreak.lab.demo.plain digits --state initial.safetensors --threads 2

It prints one line of JSON. The initial state is read from a file, because seeded initialisation differs between
instruction sets. Example order and dropout come from torch's CPU generator.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

import click
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tiebreak.api.builtin.loader import load_task
from tiebreak.engine.capture.state import load_state
from tiebreak.engine.capture.task import Task
from tiebreak.engine.optimizers.settings import settings_of
from tiebreak.engine.optimizers.translate import TorchOptimizers, torchs
from tiebreak.lab.demo.results import PlainResult
from tiebreak.protocol.errors import ConfigurationError, StateError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTraining:
    """The result of one plain run. state_sha256: over names and bytes of the final parameters and buffers."""

    state_sha256: str
    losses: tuple[float, ...]
    metrics: dict[str, float]
    seconds: float
    """The time of the training loop alone."""


def state_sha256(model: nn.Module) -> str:
    """One digest of every parameter and buffer. A plain digest is enough, because nothing here is committed."""
    hasher = sha256()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()]):
        hasher.update(name.encode() + b"\0" + tensor.detach().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def make_optimizer(task: Task, model: nn.Module) -> torch.optim.Optimizer:
    """Torch's own optimizer for the task, including its parameter groups (`take_step` reads `lr_factor`)."""
    o = task.optimizer
    if o is None or isinstance(o, TorchOptimizers):
        raise ConfigurationError(f"expected a task with settings of an optimizer, got {o and o.name}")
    chosen: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        chosen.setdefault(settings_of(o, name), []).append(parameter)
    groups = [{"params": p, "lr_factor": factor, "weight_decay": decay} for (factor, decay), p in chosen.items()]
    return torchs(o, groups)


def take_step(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, rate: float, drawn: Iterator[tuple[Tensor, ...]]
) -> float:
    """Takes one step with the next batches, `task.accumulation` of them, and returns the mean of their losses."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]
    optimizer.zero_grad()
    losses = []
    for batch in islice(drawn, task.accumulation):
        losses.append(task.loss(model, *batch) / task.accumulation)
        torch.autograd.backward(losses[-1])
    if task.clip is not None and task.clip.value is not None:
        nn.utils.clip_grad_value_(model.parameters(), task.clip.value)
    if task.clip is not None and task.clip.norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), task.clip.norm)
    optimizer.step()
    return sum(loss.item() for loss in losses)


def batches(task: Task, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, ...]]:
    """Yields batches without end; the task's seed fixes the order of each epoch."""
    generator = torch.Generator().manual_seed(task.seed)
    data = {name: array.to(dtype) if array.is_floating_point() else array for name, array in task.data.items()}
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < task.batch.size:
            order = torch.cat([order, torch.randperm(task.examples, generator=generator)])
        index_B, order = order[: task.batch.size], order[task.batch.size :]
        yield task.batch.examples.take(data, index_B)


def train(
    task: Task, state: dict[str, Tensor] | None = None, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, PlainTraining]:
    """Trains a copy of the task's model, starting from `state` if given. The task's own model does not change."""
    model = copy.deepcopy(task.model)
    load_state(model, task.initial_state() if state is None else state)
    model.to(dtype)
    optimizer = make_optimizer(task, model)
    drawn = batches(task, dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.seed)
        started = time.perf_counter()
        losses = tuple(take_step(task, model, optimizer, rate, drawn) for rate in task.learning_rates().tolist())
        seconds = time.perf_counter() - started
    digest = state_sha256(model)
    metrics = task.evaluate(model.float().eval()) if task.evaluate is not None else {}
    return model, PlainTraining(state_sha256=digest, losses=losses, metrics=metrics, seconds=seconds)


# ---------------------------------------------------------------- runs that differ only in threads and instruction set


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """threads: torch's. capability: the value of ATEN_CPU_CAPABILITY, or None for the machine's own."""

    threads: int
    capability: str | None = None


SETTINGS: Final = (
    PlainSettings(threads=1),
    PlainSettings(threads=2),
    PlainSettings(threads=1, capability="default"),
)
"""The settings to compare by default."""


def plain_run(name: str, state_file: Path, settings: PlainSettings, steps: int | None = None) -> PlainResult:
    """Trains task `name` in its own process, from the state in a file.

    Raises `StateError` with the last output of the process if it fails.
    """
    command = [sys.executable, "-m", "tiebreak.lab.demo.plain", name, "--state", str(state_file)]
    command += ["--threads", str(settings.threads)]
    if steps is not None:
        command += ["--steps", str(steps)]
    environment = {k: v for k, v in os.environ.items() if k not in ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")}
    if settings.capability is not None:
        environment["ATEN_CPU_CAPABILITY"] = settings.capability
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise StateError(f"expected plain PyTorch to train {name}, got exit code {done.returncode}: {last}")
    run = json.loads(done.stdout)
    words = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}, {run['capability']}"
    return PlainResult(job=name, settings=words, state_sha256=run["state_sha256"], final_loss=run["losses"][-1])


def plain_runs(
    name: str, state: dict[str, Tensor], settings: Sequence[PlainSettings] = SETTINGS, steps: int | None = None
) -> tuple[PlainResult, ...]:
    """Does one run for each of the settings, all from the same state bytes (named as in the model)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "initial.safetensors"
        save_file(state, file)
        return tuple(plain_run(name, file, each, steps) for each in settings)


@click.command()
@click.argument("name")
@click.option(
    "--state", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Initial state (safetensors)."
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option("--steps", type=click.IntRange(1), help="Stop after so many steps of the task.")
def main(name: str, state: Path | None, threads: int, steps: int | None) -> None:
    """Train the task NAME in plain FP32 PyTorch and print the digest of its final state, as JSON."""
    torch.set_num_threads(threads)
    task = load_task(name) if steps is None else load_task(name, steps=steps)
    _, run = train(task, None if state is None else load_file(state))
    click.echo(json.dumps(asdict(run) | {"threads": threads, "capability": torch.backends.cpu.get_cpu_capability()}))


if __name__ == "__main__":
    main()
