"""`tiebreak.hf.evaluate(trainer)` in the place of `trainer.evaluate()`."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import Trainer

from tiebreak.api.evaluation.evaluations import evaluate as certified
from tiebreak.api.huggingface.objective import check_padding, objective, ready
from tiebreak.api.huggingface.processes import TrainerProcesses
from tiebreak.api.huggingface.recording import Recording, columns
from tiebreak.api.huggingface.refusals import samples
from tiebreak.api.machine import Machine
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training.scoring import ScoredExamples
from tiebreak.engine.capture.step_run import replaced, same_draws
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

_SIZE: Final = "batch_size"


def evaluate(
    trainer: Trainer, eval_dataset: Any = None, metric_key_prefix: str = "eval", *, machine: Machine | None = None,
    key: PrivateKey | None = None,
) -> dict[str, float]:  # fmt: skip
    """Computes the loss that `trainer.evaluate()` gives, as a run that anyone can audit, and certifies it.

    Its own data loader gives the batches; each is one example, whose score is the loss that the trainer computes of it.
    Run and scores are in `output_dir/eval-STEP`, by the prefix and the trainer's step. The trainer logs the result and
    tells its callbacks, as ever.

    trainer: a `transformers.Trainer` or a subclass. eval_dataset, metric_key_prefix: as in `trainer.evaluate`. key: of
    whoever evaluates [default: a throwaway key]. machine: how this process computes [default: on the trainer's device].
    Raises `ConfigurationError` for metrics in Python (`compute_metrics`), which no program follows.
    """
    held: Any = trainer
    if samples(trainer):
        raise ConfigurationError(
            f"expected a trainer whose evaluation has data of its own, got {type(trainer).__name__}, which samples "
            "from its model: no run follows that; call trainer.evaluate()"
        )
    if held.compute_metrics is not None:
        raise ConfigurationError(
            "expected a trainer without compute_metrics, which is Python code on predictions, got one; score a task of "
            "your own instead (docs/evaluations.md)"
        )
    machine = machine or Machine(device=str(trainer.args.device))
    with TrainerProcesses.of(trainer, machine) as processes:
        work = partial(_scored, processes, eval_dataset, metric_key_prefix, machine, key or new_key())
        metrics = json.loads(processes.said(json.dumps(processes.first(work))))
    metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
    trainer.log(metrics)
    trainer.control = held.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
    return metrics


def _scored(
    processes: TrainerProcesses, eval_dataset: Any, prefix: str, machine: Machine, key: PrivateKey
) -> dict[str, float]:
    """The metrics of a certified run, which the first of several processes makes alone."""
    held: Any = processes.trainer
    with processes.alone(), same_draws(), replaced(held.args, gradient_accumulation_steps=1):
        inputs = [tree_map_only(Tensor, Tensor.cpu, dict(batch)) for batch in held.get_eval_dataloader(eval_dataset)]
        items = [held._get_num_items_in_batch([batch], torch.device("cpu")) for batch in inputs]
        recording = Recording(inputs=inputs, items=items, counts=[1] * len(inputs), steps=len(inputs))
        found = columns(held, recording, ordered=True)
        sizes = [max(len(value) for value in batch.values() if isinstance(value, Tensor)) for batch in inputs]
        loss, modes = objective(held, found), [(module, module.training) for module in held.model.modules()]

        def score(model: Any, **rows: Tensor) -> Tensor:
            size = rows.pop(_SIZE).float()
            return torch.stack([loss(model, **rows).expand(1), size], 1)

        examples = ScoredExamples(
            data={**found.data, _SIZE: torch.tensor(sizes)}, score=score, columns=("loss", _SIZE),
            metrics=("loss",), metric=lambda scores: ((scores[:, 0] * scores[:, 1]).sum() / scores[:, 1].sum())[None],
        )  # fmt: skip
        with ready(held):
            if found.smallest:
                check_padding(held, recording, found)
            folder = Path(str(held.args.output_dir), f"{prefix}-{held.state.global_step}")
            metrics = certified(held.model, examples, folder, key=key, machine=machine)
        for module, mode in modes:
            module.training = mode
    return metrics
