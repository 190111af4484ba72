"""Part `speed` of `benchmarks.logged`: the time of policy `logged` compared with `exact` and plain PyTorch."""

import statistics
from collections.abc import Callable

import torch

from benchmarks.logged.context import Context, check_equal
from benchmarks.logged.logs import dense_bytes
from benchmarks.logged.names import AUDITOR, EAGER, EXACT, PERMUTED, TRAINER
from benchmarks.logged.steps import Auditor, Trainer
from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, interleaved

WARMUP = 2


def speed(c: Context) -> list[Row]:
    """Times one step of each: trainer and auditors under policy `logged` at b = 32, `exact`, and eager FP32.

    They take turns.
    """
    candidates: dict[str, Callable[[], object]] = {
        EAGER: eager_step(c.task, torch.float32),
        EXACT: ExactStep(c.captured, c.task.steps),
    }
    trainer = c.trainer(c.rules(32))
    auditors = {AUDITOR: c.auditor(trainer, permute=None), PERMUTED: c.auditor(trainer)}
    c.say("captured")
    handlers: dict[str, Trainer | Auditor] = {TRAINER: trainer, **auditors}
    repeats = c.sizes.repeats[c.unit.model]
    seconds = interleaved({**candidates, **handlers}, repeats, warmup=WARMUP)
    for who, auditor in auditors.items():
        check_equal(trainer.state, auditor.state, f"{c.unit.case}, {who}")
    rows = [c.row("a step", 1e3 * s, "ms", who) for who, s in seconds.items()]
    for base in candidates:
        rows += [c.row(f"/ {base}", s / seconds[base], "x", who) for who, s in seconds.items() if who != base]
    rows += [
        c.row("handling the log", statistics.median(party.handling[WARMUP:]) / seconds[who], "of the step", who)
        for who, party in handlers.items()
    ]
    return rows + logged(c, trainer, auditors[PERMUTED], repeats + WARMUP)


def logged(c: Context, trainer: Trainer, auditor: Auditor, steps: int) -> list[Row]:
    """Rows for the log of the last step, and for the entries of all steps."""
    entries = sum(counts.entries for counts in auditor.counts.values())
    needed = sum(counts.needed for counts in auditor.counts.values())
    dense = dense_bytes(trainer.program)
    return [
        c.row("sparse log", len(trainer.encoded), "bytes a step"),
        c.row("sparse / dense", len(trainer.encoded) / dense, ""),
        c.row("entries", entries / steps, "a step"),
        c.row("entries needed", needed / steps, "a step"),
    ]
