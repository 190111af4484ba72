"""The bytes that each of several workers sends and holds, and its operations, in one step of GPT-2 of any size.

Sizes follow from how `tiebreak.engine.distributed.partition` divides a step, up to factors that were fitted to plans of
1 to 4 workers (`measured`); nothing is timed. The sizes of the batch are those of all workers together.
"""

from dataclasses import dataclass, replace
from typing import Final

from tiebreak.engine.distributed.sizes import BOUND_BYTES, LEAST, SMALL, SUM_BYTES
from tiebreak.lab.incentives.costs import Transformer, transformer_counts, transformer_near
from tiebreak.lab.incentives.measured import cost

GPU_BYTES: Final = 80e9
"""Memory of the GPUs in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The shares of the worker that has most: bytes, and floating-point operations of products."""

    parameters: int
    workers: int
    sent: float
    ddp: float
    state: float
    """Its shards of weights and moments, before and after the step."""
    weights: float
    """The weights that are whole on every worker from their first use to their last."""
    values: float
    """The other values that are alive at once."""
    operations: float

    @property
    def memory(self) -> float:
        return self.state + self.weights + self.values

    def told(self) -> dict[str, float]:
        return {
            "sends in a step": self.sent,
            "would send under FP32 DDP": self.ddp,
            "holds of state, before and after a step": self.state,
            "holds of whole weights": self.weights,
            "holds of other values": self.values,
        }

    @property
    def limit(self) -> str:
        """The part that exceeds the memory first on a GPU of `GPU_BYTES`; "nothing" if all fits."""
        if self.memory <= GPU_BYTES:
            return "nothing"
        parts = {"whole weights": self.weights, "activations": self.values, "state": self.state}
        return max(parts, key=parts.__getitem__)


def sent_features(model: Transformer, workers: int) -> dict[str, float]:
    """Features of the bytes that workers send, by name.

    weights: gathered before use. gradients: their sums, or the operands of products where these are smaller.
    tokens: rows for the embedding. small: sums of biases, norms and positions.
    """
    d, n, others = model.width, model.tokens, (workers - 1) / workers
    shapes = model.layers * [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)] + [(model.vocabulary, d)]
    small = model.layers * [3 * d, 4 * d, *6 * [d]] + [model.sequence * d]
    return {
        "weights": others * 4 * model.parameters,
        "gradients": others
        * sum(min(SUM_BYTES * rows * columns, 4 * n * (rows + columns)) for rows, columns in shapes),
        "tokens": others * 4 * n * d,
        "small": sum(_sent_of_sum(size, workers) for size in small),
    }


def _sent_of_sum(size: int, workers: int) -> float:
    """The bytes sent of a sum over the batch: to all, or to owners, who tell the result if it is not held in shards."""
    each, shared = SUM_BYTES + BOUND_BYTES, size >= LEAST // workers**2
    if not shared and size * (workers - 1) <= SMALL:
        return float((workers - 1) * each * size)
    return (workers - 1) / workers * (each if shared else each + 4) * size


def live_features(model: Transformer, workers: int) -> dict[str, float]:
    """Features of live bytes: whole weights, activations of this worker's examples, shards of gradients and weights."""
    d, n = model.width, model.tokens
    scores = model.batch * model.heads * model.sequence**2
    acts = model.layers * (30 * n * d + 3 * scores) + 13 * n * model.vocabulary // 4 + 3 * n * d
    return {
        "weights": 4 * model.parameters,
        "activations": 4 * acts / workers,
        "shards": 4 * model.parameters / workers,
    }


def shares(model: Transformer, workers: int) -> Shares:
    live = live_features(model, workers)
    weights = cost("bytes", "workers live", {**live, "activations": 0, "shards": 0})
    return Shares(
        parameters=model.parameters,
        workers=workers,
        sent=cost("bytes", "workers sent", sent_features(model, workers)),
        ddp=8 * model.parameters * (workers - 1) / workers,
        state=2 * 12 * model.parameters / workers,
        weights=weights,
        values=cost("bytes", "workers live", live) - weights,
        operations=transformer_counts(model, steps=1, interval=1).products / workers,
    )


def shares_near(parameters: int, workers: int, *, sequence: int, each: int) -> Shares:
    """The shares for a model of about this many parameters, where each worker has `each` sequences."""
    model = transformer_near(parameters, sequence=sequence, batch=each)
    return shares(replace(model, batch=each * workers), workers)
