"""One training step as each party computes it, in a form that can be called repeatedly."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.capture.task import Task
from tiebreak.engine.run.interpreter import Interpreter, StepResult, Sums
from tiebreak.lab.demo.plain import batches, make_optimizer


def eager_step(
    task: Task, dtype: torch.dtype, *, keep: bool = True, rows: slice = slice(None),
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Callable[..., None]:  # fmt: skip
    """One training step in plain PyTorch: a batch, forward, backward, optimizer.

    With `keep`, it trains a copy of the model. rows: which examples of each batch. wrap: applied to the model, for DDP.
    """
    model: nn.Module = (copy.deepcopy(task.model) if keep else task.model).to(dtype).train()
    optimizer = make_optimizer(task, model)
    trained = wrap(model)
    drawn: Iterator[tuple[Tensor, ...]] = batches(task, dtype)

    def step() -> None:
        optimizer.zero_grad()
        loss = task.loss(trained, *(x[rows] for x in next(drawn)))
        torch.autograd.backward(loss)
        optimizer.step()

    return step


class ExactStep:
    """One training step of the captured program; each call continues from the last state.

    machine: used instead of a plain one. takes: whether the captured state is written to, and not a copy of it.
    """

    def __init__(
        self, captured: Captured, steps: int, permute: int | None = None, *, machine: Interpreter | None = None,
        takes: bool = False,
    ) -> None:  # fmt: skip
        self._machine = machine or Interpreter(captured.program, Arithmetic(permute=permute))
        self.arithmetic = self._machine.arithmetic
        given = self._machine.to_device(captured.state)
        self.state = given if takes else {name: tensor.clone() for name, tensor in given.items()}
        self._data = self._machine.place_data(captured.data)
        self.number, self._steps = 0, steps

    def __call__(self) -> None:
        self.advance()

    def advance(self, sums: Sums | None = None) -> StepResult:
        """Computes the next step, with its logged sums settled by `sums`."""
        self.number = self.number % self._steps + 1
        result = self._machine.step(self.number, self.state, self._data, donate=True, sums=sums)
        self.state = result.state
        return result
