"""Calibration on this machine: measures some programs under every available setting, and makes policies of runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tiebreak.api.machine.environment import describe, describe_cuda, usable_cores
from tiebreak.api.machine.running import usable_device
from tiebreak.api.training.bundle import MANIFEST, Bundle, capture_bundle, load_bundle
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds
from tiebreak.engine.capture.task import Task
from tiebreak.engine.logged.calibration import MARGIN, SHARE, Calibration, OnProgress, proven_policy
from tiebreak.engine.logged.divergence import variants_of
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.qualify import qualify
from tiebreak.protocol.arguments import NONE, share, shown, taking, whole
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION
from tiebreak.protocol.program.program import Program

STEPS: Final = 3
ORDERS: Final = 4
MAX_ORDERS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A program to measure on, with its initial state, its data, and the number of its steps."""

    name: str
    program: Program
    state: Mapping[str, Tensor]
    data: Mapping[str, Tensor]
    steps: int


def subject_of(name: str, bundle: Bundle) -> Subject:
    return Subject(name=name, program=bundle.program, state=bundle.state, data=bundle.data, steps=bundle.steps)


def subject_in(folder: Path) -> Subject:
    """Reads the run or the captured job in a folder. Raises `ConfigurationError` if there is neither."""
    if (folder / "job.bin").is_file():
        run = RunDirectory.open(folder)
        state, data = run.state(0), run.data()
        return Subject(name=str(folder), program=run.program, state=state, data=data, steps=run.job.steps)
    if (folder / MANIFEST).is_file():
        return subject_of(str(folder), load_bundle(folder))
    raise ConfigurationError(f"expected a run or a captured job in {folder}, got no job.bin and no {MANIFEST}")


def calibrate_subjects(
    subjects: Iterable[Subject],
    *,
    precision: int,
    steps: int = STEPS,
    orders: int = ORDERS,
    margin: float = MARGIN,
    share: float = SHARE,
    threads: int | None = None,
    devices: Sequence[str] | None = None,
    seed: int = 0,
    progress: Callable[[str], AbstractContextManager[OnProgress]] = lambda _: nullcontext(lambda *_: None),
) -> LoggedPolicy:
    """Measures some programs on this machine and returns a policy for them.

    threads: the largest number to try in addition to 1 [default: all usable cores]. devices: those to measure in
    addition to the CPU [default: every CUDA device]. Each device is qualified first. Raises `ConfigurationError`.
    """
    if devices is None:
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if "cpu" in devices:
        raise ConfigurationError("expected devices beside the CPU, which is measured in any case, got cpu")
    for name in ("cpu", *devices):
        qualify(Arithmetic(device=usable_device(name)))
    counts = sorted({1, max(2, usable_cores()) if threads is None else threads})
    compiled = builds()["sums"].library is not None
    settings = variants_of(orders, threads=counts, compiled=compiled, devices=devices, seed=seed)
    calibration = Calibration(settings, precision=precision, seed=seed)
    for subject in subjects:
        with progress(subject.name) as on_progress:
            calibration.examine(
                subject.program, subject.state, subject.data, steps=min(steps, subject.steps), on_progress=on_progress
            )
    environment = [f"{name} {value}" for name, value in (*describe(), *describe_cuda())]
    return calibration.policy(margin=margin, share=share, environment=environment)


@taking(
    precision=whole(MIN_PRECISION, MAX_PRECISION), steps=whole(1), orders=whole(1, MAX_ORDERS), margin=share(1),
    share=share(0, 1), threads=whole(1) | NONE, seed=whole(0),
)  # fmt: skip
def calibrate(
    *tasks: Task, precision: int = MAX_PRECISION, steps: int = STEPS,
    orders: int = ORDERS, margin: float = MARGIN, share: float = SHARE, threads: int | None = None, seed: int = 0,
) -> LoggedPolicy:  # fmt: skip
    """Measures a policy for logged runs of some tasks, on this machine and all of its devices.

    The first steps are computed exactly, and every sum in them is computed again in other orders, with other kernels
    and with other numbers of threads: see `tiebreak calibrate`. Without tasks, the policy holds the proven bounds,
    which need no measurement but make larger logs. Keep the policy with its `save`, and hand it to
    `tiebreak.train(policy=...)`. Raises `ConfigurationError`.
    """
    if not tasks:
        return proven_policy(precision)
    return calibrate_subjects(
        [_subject(task) for task in tasks], precision=precision, steps=steps,
        orders=orders, margin=margin, share=share, threads=threads, seed=seed,
    )  # fmt: skip


def _subject(task: object) -> Subject:
    if not isinstance(task, Task):
        raise ConfigurationError(f"expected tiebreak.Task objects, got {shown(task)}")
    return subject_of(task.name, capture_bundle(task))
