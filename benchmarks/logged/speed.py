"""Parts of `benchmarks.logged` about time: policy `logged` beside `exact` and plain PyTorch, and with FP32 products."""

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks.logged.context import Context, check_equal
from benchmarks.logged.names import (
    AUDITOR,
    AUTOCAST,
    BFLOAT16,
    EAGER,
    EXACT,
    EXACT16,
    NATIVE,
    PERMUTED,
    SINGLE,
    TRAINER,
)  # fmt: skip
from benchmarks.logged.steps import Auditor, Rules, Trainer
from benchmarks.steps import ExactStep, eager_step
from benchmarks.table import Row, interleaved
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.logged.dense import dense_bytes

WARMUP = 2
CPUINFO = Path("/proc/cpuinfo")


def speed(c: Context) -> list[Row]:
    """Part `speed`: a step of every party at b = 32, FP64 products."""
    candidates: dict[str, Callable[[], object]] = {
        EAGER: eager_step(c.task, torch.float32),
        EXACT: ExactStep(c.compiled, c.task.steps),
    }
    return timed(c, candidates, c.rules(32))


def bfloat16(c: Context) -> list[Row]:
    """Part `bf16`: the same at b = 16 with FP32 products, beside bfloat16 autocast; and the logs of its steps."""
    eager = eager_step(c.task, torch.float32)  # one model for both: seven of GPT-2 124M do not fit into 24 GB
    # By itself: where autocast is emulated, one step of it takes minutes.
    mixed = interleaved({AUTOCAST: partial(eager, mixed=True)}, c.sizes.mixed_repeats, warmup=0)
    c.say("autocast timed")
    candidates: dict[str, Callable[[], object]] = {
        EAGER: eager,
        EXACT: ExactStep(c.compiled, c.task.steps),
        EXACT16: ExactStep(c.compiled, c.task.steps, arithmetic=Arithmetic(precision=BFLOAT16)),
    }
    rows = timed(c, candidates, c.rules(BFLOAT16, SINGLE), mixed)
    return [*rows, c.row(NATIVE, float(native_bfloat16()), "")]


def native_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16; where Linux does not tell, it has none."""
    flags = CPUINFO.read_text(errors="replace").split() if CPUINFO.is_file() else []
    return "avx512_bf16" in flags or "amx_bf16" in flags or "bf16" in flags


def timed(
    c: Context, candidates: dict[str, Callable[[], object]], rules: Rules, before: Mapping[str, float] | None = None
) -> list[Row]:
    """Medians of the candidates' steps and of those of trainer and auditors by the rules, all taking turns.

    before: seconds of candidates that were timed already.
    """
    trainer = c.trainer(rules)
    auditors = {AUDITOR: c.auditor(trainer, permute=None), PERMUTED: c.auditor(trainer)}
    c.say("captured")
    handlers: dict[str, Trainer | Auditor] = {TRAINER: trainer, **auditors}
    repeats = c.sizes.repeats[c.unit.model]
    seconds = interleaved({**candidates, **handlers}, repeats, warmup=WARMUP) | dict(before or {})
    for who, auditor in auditors.items():
        check_equal(trainer.state, auditor.state, f"{c.unit.case}, {who}")
    rows = [c.row("a step", 1e3 * s, "ms", who) for who, s in seconds.items()]
    for base in (*candidates, *(before or {})):
        rows += [c.row(f"/ {base}", s / seconds[base], "x", who) for who, s in seconds.items() if who != base]
    rows += [
        c.row("handling the log", statistics.median(party.handling[WARMUP:]) / seconds[who], "of the step", who)
        for who, party in handlers.items()
    ]
    return rows + logged(c, trainer, auditors[PERMUTED], repeats + WARMUP)


def logged(c: Context, trainer: Trainer, auditor: Auditor, steps: int) -> list[Row]:
    """The log of the last step, and the entries of all."""
    entries = sum(counts.entries for counts in auditor.counts.values())
    needed = sum(counts.needed for counts in auditor.counts.values())
    dense = dense_bytes(trainer.program)
    return [
        c.row("sparse log", len(trainer.encoded), "bytes a step"),
        c.row("sparse / dense", len(trainer.encoded) / dense, ""),
        c.row("entries", entries / steps, "a step"),
        c.row("entries needed", needed / steps, "a step"),
    ]
