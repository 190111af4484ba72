"""How good a state is: its tensors loaded into the task's own model, which then measures itself.

Outside the job: nothing here is committed, so plain PyTorch may do it.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

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


def load_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Overwrite parameters and buffers, all of them and no others, in place."""
    own = dict([*model.named_parameters(), *model.named_buffers()])
    if own.keys() != state.keys():
        raise ConfigurationError(f"expected a state of {sorted(own)}, got {sorted(state)}")
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise ConfigurationError(f"expected {name} of shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])
