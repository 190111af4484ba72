"""One training step as each party computes it, ready to be called again and again."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from engine.arithmetic import Arithmetic
from engine.compile import Compiled
from engine.interpreter import Interpreter
from engine.task import Task
from tiebreak.tasks.plain import batches, make_optimizer


def eager_step(task: Task, dtype: torch.dtype, *, keep: bool = True) -> Callable[[], None]:
    """One training step in plain PyTorch: a batch, forward, backward, optimizer. Copies the model to `keep` it."""
    model: nn.Module = (copy.deepcopy(task.model) if keep else task.model).to(dtype).train()
    optimizer = make_optimizer(task, model)
    drawn: Iterator[tuple[Tensor, ...]] = batches(task, dtype)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model, *next(drawn)))
        optimizer.step()

    return step


class ExactStep:
    """One training step of the captured program, on a state that moves on."""

    def __init__(self, compiled: Compiled, steps: int, permute: int | None = None) -> None:
        self.arithmetic = Arithmetic(permute=permute)
        self._machine = Interpreter(compiled.program, self.arithmetic)
        self._state = {name: tensor.clone() for name, tensor in self._machine.to_device(compiled.state).items()}
        self._data = self._machine.to_device(compiled.data)
        self._number, self._steps = 0, steps

    def __call__(self) -> None:
        self._number = self._number % self._steps + 1
        self._state = self._machine.step(self._number, self._state, self._data, donate=True).state
