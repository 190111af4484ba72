"""Makes an evaluation a task without an optimizer: each step scores a batch of examples and writes that into the state.

The model is in eval mode, so nothing is drawn, and a model and its examples have one result. The state has the scores
of all examples, f32 (examples, columns), and after each step the metrics that follow from them, as the program defines
them; those after the last step are the result. A score is that of its example alone: the size of the batch does not
change it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from tiebreak.api.training.bundle import Bundle, capture_bundle
from tiebreak.engine.capture.examples import Batch, Rows
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError

PLACE: Final = "place"
"""The array of the data that has the number of each example."""
SCORES, METRICS = "evaluation_scores", "evaluation_metrics"
"""Buffers of the model."""
SEGMENTS: Final = 100
"""The most checkpoints, so that an audit of one of them is one of a hundredth of the examples."""


def mean(scores: Tensor) -> Tensor:
    """The metrics f32 (columns,) of scores whose columns are each averaged over all examples."""
    return scores.mean(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredExamples:
    """Examples, and what is computed of them.

    data: arrays by name, examples along dim 0. score: called with the model and the arrays of a batch by name; returns
    f32 (examples of the batch, columns), each row from its own example alone. columns: names. metric: of all scores
    f32 (metrics,), of which there may be fewer than columns. metrics: names. lines: sentences on the data.
    """

    data: Mapping[str, Tensor]
    score: Callable[..., Tensor]
    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    metric: Callable[[Tensor], Tensor] = mean
    lines: list[str] = field(default_factory=list)
    batch: int | None = None
    """The number of examples in a step, if the scores depend on it."""
    seed: int = 0
    """The seed of what scores draw, by the number of the step."""


@contextmanager
def evaluation_task(model: nn.Module, examples: ScoredExamples, batch: int) -> Iterator[Task]:
    """The task of an evaluation. Meanwhile the model has two buffers more, is in eval mode and frozen."""
    data: Any = examples.data
    count = len(next(iter(data.values()), ()))
    if not count or any(len(array) != count for array in data.values()):
        raise ConfigurationError(f"expected arrays of one length, with examples along dim 0, got {count} and others")
    modes, trained = [(m, m.training) for m in model.modules()], [p for p in model.parameters() if p.requires_grad]
    model.eval().requires_grad_(False)
    model.register_buffer(SCORES, torch.zeros(count, len(examples.columns)))
    model.register_buffer(METRICS, torch.zeros(len(examples.metrics)))

    def score(held: Any, place: Tensor, **given: Tensor) -> Tensor:
        found = examples.score(held, **given)
        held.evaluation_scores.index_copy_(0, place, found)
        held.evaluation_metrics.copy_(examples.metric(held.evaluation_scores))
        return found[:, 0].mean()

    batch = batch if examples.batch is None else examples.batch
    steps = -(-count // batch)
    try:
        yield Task(
            model, score, data={PLACE: torch.arange(count), **data}, optimizer=None, steps=steps,
            batch=Batch(size=min(batch, count), examples=Rows(names=(PLACE, *data)), shuffled=False),
            seed=examples.seed, checkpoint_interval=-(-steps // SEGMENTS), name="evaluation",
        )  # fmt: skip
    finally:
        for name in (SCORES, METRICS):
            delattr(model, name)
        for module, mode in modes:
            module.training = mode
        for parameter in trained:
            parameter.requires_grad_()


def captured(model: nn.Module, examples: ScoredExamples, batch: int) -> Bundle:
    """The program, first state and data of an evaluation, without its run."""
    with evaluation_task(model, examples, batch) as task:
        return capture_bundle(task, check="none")


def plan(examples: ScoredExamples, job: Mapping[str, str], described: Mapping[str, Any]) -> bytes:
    """The file that says what is scored and how. It has nothing of the model's weights, so it can be made before.

    job: hex roots by name, such as those of a bundle. described: further fields, by their maker's word.
    """
    roots = {name: job[f"{name}_root"] for name in ("program", "data")}
    said = {"columns": examples.columns, "metrics": examples.metrics, **roots, **described}
    return json.dumps(said, indent=1).encode() + b"\n"
