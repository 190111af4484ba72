"""Part `accuracy` of `benchmarks.logged`: what is learned on real data at each precision, compared with plain FP32."""

import statistics
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.logged.context import Context
from benchmarks.logged.names import AUTOCAST, BFLOAT16, EAGER, LOSS
from benchmarks.logged.steps import Rules, Trainer
from benchmarks.table import Row
from tiebreak import Task
from tiebreak.api.training.trainer import evaluate_state
from tiebreak.engine.capture.examples import Loss
from tiebreak.lab.demo.plain import train

Figures = dict[str, float]


def accuracy(c: Context) -> list[Row]:
    """Figures of each party: mean, least and greatest over seeds, which order the examples and drive dropout."""
    parties: dict[str, Callable[[int], Figures]] = {
        EAGER: lambda seed: plain(c.task, seed),
        AUTOCAST: lambda seed: plain(replace(c.task, loss=autocast(c.task.loss)), seed),
    }
    for precision in (*c.sizes.precisions, BFLOAT16):
        parties[f"b={precision}"] = _logged(c, c.rules(precision))
    rows = [c.row("steps", c.task.steps, ""), c.row("seeds", len(c.sizes.seeds), "")]
    for who, party in parties.items():
        found = [party(seed) for seed in c.sizes.seeds]
        for metric in found[0]:
            values = [figures[metric] for figures in found]
            c.say(f"{who}: {metric} {statistics.fmean(values):.4f}")
            rows += [
                c.row(metric, statistics.fmean(values), "mean", who),
                c.row(f"{metric}, least", min(values), "", who),
                c.row(f"{metric}, greatest", max(values), "", who),
            ]
    return rows


def plain(task: Task, seed: int) -> Figures:
    """Figures of eager PyTorch."""
    _, run = train(replace(task, seed=seed))
    return figures(run.losses, run.metrics)


def _logged(c: Context, rules: Rules) -> Callable[[int], Figures]:
    def run(seed: int) -> Figures:
        data = c.captured.data | {"seed": torch.tensor(seed)}
        trainer = Trainer(replace(c.captured, data=data), c.task.steps, rules)
        for _ in range(c.task.steps):
            trainer()
        return figures(trainer.losses, evaluate_state(c.task, trainer.state))

    return run


def figures(losses: list[float] | tuple[float, ...], metrics: Figures) -> Figures:
    """The figures to compare."""
    return {LOSS: statistics.fmean(losses[-20:]), **metrics}


def autocast(loss: Loss) -> Loss:
    """The loss, with its model under bfloat16 autocast."""

    def mixed(model: nn.Module, *batch: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, *batch)

    return mixed
