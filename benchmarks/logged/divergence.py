"""Part `divergence` of `benchmarks.logged`: how far runs drift apart without the log, and that they do not with it."""

from dataclasses import replace

import torch

from benchmarks.logged.context import ORDERS, Context, bits, check_equal
from benchmarks.logged.names import REORDERED, WITH, WITHOUT
from benchmarks.logged.steps import Unlogged
from benchmarks.table import Row
from tiebreak.engine.capture.state import MODEL
from tiebreak.engine.run.interpreter import State


def divergence(c: Context) -> list[Row]:
    """Compares the weights after some steps of runs with and without the log."""
    rules, steps = c.rules(32), c.task.steps
    trainer = c.trainer(rules)
    auditor = c.auditor(trainer)
    # The same job over the same examples in another order. Dropout masks stay the same: they follow seed and step.
    order = torch.randperm(c.task.examples, generator=torch.Generator().manual_seed(ORDERS))
    moved = {name: c.captured.data[name][order].contiguous() for name in c.task.batch.examples.arrays()}
    others = {
        WITHOUT: Unlogged(c.captured, steps, rules, permute=ORDERS),
        REORDERED: Unlogged(replace(c.captured, data=c.captured.data | moved), steps, rules),
        WITH: auditor,
    }
    names = [MODEL + name for name, _ in c.task.model.named_parameters()]
    start = {name: c.captured.state[name] for name in names}
    rows = [c.row("weights", sum(t.numel() for t in start.values()), "")]
    for step in range(1, max(c.sizes.marks) + 1):
        trainer()
        for other in others.values():
            other()
        check_equal(trainer.state, auditor.state, f"{c.unit.case}, step {step}")
        c.say(f"step {step} of {max(c.sizes.marks)}: loss {trainer.losses[-1]:.4f}")
        if step in c.sizes.marks:
            after = f"after {step} step{'s' if step > 1 else ''}"
            rows.append(c.row("L2 distance from the start", distance(trainer.state, start, names), "", after))
            for who, other in others.items():
                rows += apart(c, trainer.state, other.state, names, who, after)
    return rows


def apart(c: Context, left: State, right: State, names: list[str], *case: str) -> list[Row]:
    """Rows that say how the weights of two runs differ."""
    differ = sum(int((bits(left[name]) != bits(right[name])).sum()) for name in names)
    target = "0" if WITH in case else ""
    return [
        c.row("weights that differ", differ, "", *case, target=target),
        c.row("L2 distance", distance(left, right, names), "", *case, target=target),
    ]


def distance(left: State, right: State, names: list[str]) -> float:
    """Euclidean distance over the named tensors, computed in FP64."""
    squares = [torch.linalg.vector_norm(left[n].double() - right[n].double()).square() for n in names]
    return float(torch.stack(squares).sum().sqrt())
