"""Calibration for runs of policy `logged`."""

from pathlib import Path

from tiebreak.api.calibrating import ORDERS, STEPS, Subject, calibrate_subjects
from tiebreak.api.tasks import capture
from tiebreak.engine.capture.task import Task
from tiebreak.engine.logged.calibration import MARGIN, SHARE, proven_policy
from tiebreak.engine.logged.policy import LoggedPolicy
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION

Policy = LoggedPolicy | str | Path
"""A policy, or the path of a file that holds one."""


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
        raise ConfigurationError(f"expected tasks of tiebreak.make_task, got {type(task).__name__}")
    made = capture(task)
    return Subject(name=task.name, program=made.program, state=made.state, data=made.data, steps=task.steps)


def as_policy(policy: Policy | None) -> LoggedPolicy | None:
    """Loads the policy if it is given as a path. Raises `EncodingError` if the file is not a policy."""
    return LoggedPolicy.load(Path(policy)) if isinstance(policy, str | Path) else policy
