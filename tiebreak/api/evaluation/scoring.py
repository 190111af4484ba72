"""Makes an evaluation a task without an optimizer: each step scores a batch of examples and writes that into the state.

The model is in eval mode, so nothing is drawn, and a model and its examples have one result. The state has the scores
of all examples, f32 (examples, columns), and after each step the metrics that follow from them, as the program defines
them; those after the last step are the result. A score is that of its example alone: the size of the batch does not
change it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

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
    """The mean of each column."""
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


def evaluation_task(model: nn.Module, examples: ScoredExamples, batch: int) -> Task:
    """The task of an evaluation. The model gets two buffers, and is in eval mode and frozen afterwards."""
    data: Any = examples.data
    count = len(next(iter(data.values()), ()))
    if not count or any(len(array) != count for array in data.values()):
        raise ConfigurationError(f"expected arrays of one length, with examples along dim 0, got {count} and others")
    model.eval().requires_grad_(False)
    model.register_buffer(SCORES, torch.zeros(count, len(examples.columns)))
    model.register_buffer(METRICS, torch.zeros(len(examples.metrics)))

    def score(held: Any, place: Tensor, **given: Tensor) -> Tensor:
        found = examples.score(held, **given)
        held.evaluation_scores.index_copy_(0, place, found)
        held.evaluation_metrics.copy_(examples.metric(held.evaluation_scores))
        return found[:, 0].mean()

    steps = -(-count // batch)
    return Task(
        model, score, data={PLACE: torch.arange(count), **data}, optimizer=None, steps=steps,
        batch=Batch(size=min(batch, count), examples=Rows(names=(PLACE, *data)), shuffled=False),
        checkpoint_interval=-(-steps // SEGMENTS), name="evaluation",
    )  # fmt: skip
