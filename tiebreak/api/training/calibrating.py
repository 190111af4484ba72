"""Calibration on this machine: measures some programs under every available setting, and makes policies of runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from tiebreak.api.machine.environment import describe, describe_cuda
from tiebreak.api.machine.interpreters import usable_device
from tiebreak.api.training.bundle import MANIFEST, Bundle, capture_bundle, load_bundle
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.arithmetic.backend import builds
from tiebreak.engine.capture.task import Task
from tiebreak.engine.logged.calibration import MARGIN, SHARE, Calibration, OnProgress, proven_policy
from tiebreak.engine.logged.divergence import variants_of
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.qualify import qualify
from tiebreak.engine.system import usable_cores
from tiebreak.protocol.arguments import FUNCTION, NONE, is_text, share, shown, taking, tuple_of, whole
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION, MIN_PRECISION

STEPS: Final = 3
ORDERS: Final = 4
MAX_ORDERS: Final = 100


@taking(
    precision=whole(MIN_PRECISION, MAX_PRECISION), steps=whole(1), orders=whole(1, MAX_ORDERS), margin=share(1),
    share=share(0, 1), threads=whole(1) | NONE, seed=whole(0),
    devices=tuple_of("names of devices in a tuple", is_text) | NONE, progress=FUNCTION,
)  # fmt: skip
def calibrate(
    *tasks: Task | Bundle, precision: int = MAX_PRECISION, steps: int = STEPS, orders: int = ORDERS,
    margin: float = MARGIN, share: float = SHARE, threads: int | None = None, devices: tuple[str, ...] | None = None,
    seed: int = 0,
    progress: Callable[[str], AbstractContextManager[OnProgress]] = lambda _: nullcontext(lambda *_: None),
) -> LoggedPolicy:  # fmt: skip
    """Measures a policy for logged runs of some tasks, or captured jobs, on this machine and its devices.

    The first steps are computed exactly, and every sum in them is computed again in other orders, with other kernels
    and with other numbers of threads: see `tiebreak calibrate`. Without tasks, the policy holds the proven bounds,
    which need no measurement but make larger logs. Keep the policy with its `save`, and hand it to
    `tiebreak.train(policy=...)`.

    tasks: those that are measured. precision: bits of results, 16 to 32. steps: the number of each task to measure.
    orders: random orders of the terms of each sum. margin: safety factor on the measured differences. share: of the
    elements that may be logged; others near a tie are computed exactly. threads: the largest number to try in addition
    to 1 [default: all usable cores]. devices: those to measure in addition to the CPU [default: every CUDA device];
    each is qualified first. seed: of the orders, and of the sample of elements. progress: shows the progress of one
    task.

    Raises `ConfigurationError` for what is no task, and for a device that cannot be used.
    """
    if not tasks:
        return proven_policy(precision)
    for task in tasks:
        if not isinstance(task, Task | Bundle):
            raise ConfigurationError(f"expected tiebreak.Task objects, got {shown(task)}")
    if devices is None:
        devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    if "cpu" in devices:
        raise ConfigurationError("expected devices beside the CPU, which is measured in any case, got cpu")
    for name in ("cpu", *devices):
        qualify(Arithmetic(device=usable_device(name)))
    counts = sorted({1, max(2, usable_cores()) if threads is None else threads})
    compiled = builds()["sums"].library is not None
    settings = variants_of(orders, threads=counts, compiled=compiled, devices=devices, seed=seed)
    calibration = Calibration(settings, precision=precision, seed=seed)
    for task in tasks:
        job = capture_bundle(task) if isinstance(task, Task) else task
        with progress(job.name) as on_progress:
            calibration.examine(job.program, job.state, job.data, steps=min(steps, job.steps), on_progress=on_progress)
    environment = [f"{name} {value}" for name, value in (*describe(), *describe_cuda())]
    return calibration.policy(margin=margin, share=share, environment=environment)


def job_in(folder: Path) -> Bundle:
    """Reads the run or the captured job in a folder. Raises `ConfigurationError` if there is neither."""
    if (folder / "job.bin").is_file():
        run = RunDirectory.open(folder)
        return Bundle(
            name=str(folder), steps=run.job.steps, checkpoint_interval=run.job.checkpoint_interval,
            program=run.program, state=run.state(0), data=run.data(),
        )  # fmt: skip
    if (folder / MANIFEST).is_file():
        return replace(load_bundle(folder), name=str(folder))
    raise ConfigurationError(f"expected a run or a captured job in {folder}, got no job.bin and no {MANIFEST}")
