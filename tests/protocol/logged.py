"""Runs of policy `logged` on `programs.every_kind`: random logs, of which the tolerance lets many count."""

from random import Random

import numpy as np

from protocol.job import Job
from protocol.logs import Entries, StepLog
from protocol.rounding import SumKind, pack_tolerances, sum_kind
from tests.protocol.runs import STEPS, Logs, Run, make_job, program

TOLERANCES = pack_tolerances({SumKind.PLAIN: 2, SumKind.PRODUCTS: 2, SumKind.SCATTER: 2})
"""Within a quarter of the gap: about half of all inexact sums are near a middle."""
SUMS = {leaf: kind for leaf, i in enumerate(program().body) if (kind := sum_kind(i)) is not None}
"""The logged sums of the program, by number."""


def random_log(random: Random, share: float) -> StepLog:
    """Entries at this share of all elements of all logged sums, in either direction."""
    entries = {}
    for leaf in SUMS:
        elements = [k for k in range(program().body[leaf].numel) if random.random() < share]
        if elements:
            up = [random.random() < 0.5 for _ in elements]
            entries[leaf] = Entries(np.array(elements, dtype=np.int64), np.array(up, dtype=np.bool_))
    return StepLog(entries)


def random_logs(seed: int, share: float = 0.3) -> Logs:
    """Of all steps of a run but one, whose log is empty."""
    random = Random(seed)
    return Logs({step: random_log(random, share) for step in range(1, STEPS + 1) if step != 2})


def logged_job(*, levels: int = 2, interval: int = 2, precision: int = 16, tolerances: int = TOLERANCES) -> Job:
    """A job of policy `logged`."""
    return make_job(levels=levels, interval=interval, precision=precision, tolerances=tolerances)


def logged_run(seed: int, **job: int) -> Run:
    """An honest run by random logs."""
    return Run(logged_job(**job), logs=random_logs(seed))
