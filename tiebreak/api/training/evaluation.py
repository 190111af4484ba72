"""Evaluation of a state: its tensors are loaded into the task's own model, which then measures itself.

This is not part of the job and nothing here is committed, so it may use plain PyTorch.
"""

import copy
from collections.abc import Mapping

from torch import Tensor

from tiebreak.engine.capture.state import MODEL, load_state
from tiebreak.engine.capture.step_run import untouched
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.arguments import shown
from tiebreak.protocol.errors import ConfigurationError


def evaluate_state(task: Task, state: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics of a job's state, whose tensors are named as in the job, by a copy of the model in eval mode.

    The task's model and all global random streams stay as they are. Raises `ConfigurationError` if the task has no
    evaluation, or if the state belongs to another model.
    """
    if task.evaluate is None:
        raise ConfigurationError(f"expected task {task.name} to have an evaluation, got none")
    own = {name.removeprefix(MODEL): tensor for name, tensor in state.items() if name.startswith(MODEL)}
    with untouched(task.model):
        model = copy.deepcopy(task.model)
        load_state(model, own)
        found: object = task.evaluate(model.eval())
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ConfigurationError(
            f"expected evaluate(model) to return metrics by name, such as {{'accuracy': 0.9}}, got {shown(found)}"
        )
    return dict(found)
