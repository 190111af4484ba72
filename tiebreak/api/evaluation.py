"""How good a state is: its tensors loaded into the task's own model, which then measures itself.

Outside the job: nothing here is committed, so plain PyTorch may do it.
"""

import copy
from collections.abc import Mapping

from torch import Tensor

from tiebreak.demo.tasks.plain import load_state
from tiebreak.engine.capture.compile import MODEL
from tiebreak.engine.capture.task import Task
from tiebreak.protocol.errors import ConfigurationError


def evaluate_state(task: Task, state: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics of a job's state (names as in the job). `ConfigurationError` if it is another model's."""
    if task.evaluate is None:
        raise ConfigurationError(f"expected task {task.name} to have an evaluation, got none")
    model = copy.deepcopy(task.model)
    own = {name.removeprefix(MODEL): tensor for name, tensor in state.items() if name.startswith(MODEL)}
    load_state(model, own)
    return task.evaluate(model.eval())
