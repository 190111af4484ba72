"""Slow-down of trainer and auditor against eager FP32 and FP64 PyTorch on the demo's jobs, same process, interleaved.

A step is forward, backward and optimizer on a fresh batch. The auditor's step is the trainer's with every reduction's
terms in a random order, which is more than an auditor has to do.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.table import Row, interleaved, publish
from engine.arithmetic import Arithmetic
from engine.compile import Compiled, compile_task
from engine.interpreter import Interpreter
from engine.task import Task
from tiebreak.tasks.loader import load_task
from tiebreak.tasks.plain import batches, make_optimizer

REPEATS = 15


def eager_step(task: Task, dtype: torch.dtype) -> Callable[[], None]:
    """One training step in plain PyTorch."""
    model: nn.Module = copy.deepcopy(task.model).to(dtype).train()
    optimizer = make_optimizer(task, model)
    drawn: Iterator[tuple[Tensor, ...]] = batches(task, dtype)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(model, *next(drawn)).backward()
        optimizer.step()

    return step


class ExactStep:
    """One training step of the captured program, on a state that moves on."""

    def __init__(self, compiled: Compiled, steps: int, permute: int | None = None) -> None:
        self.arithmetic = Arithmetic(permute=permute)
        self._machine = Interpreter(compiled.program, self.arithmetic)
        self._state = self._machine.to_device(compiled.state)
        self._data = self._machine.to_device(compiled.data)
        self._number, self._steps = 0, steps

    def __call__(self) -> None:
        self._number = self._number % self._steps + 1
        self._state = self._machine.step(self._number, self._state, self._data).state


def measure(name: str, threads: int) -> list[Row]:
    """Rows of one task at one thread count."""
    torch.set_num_threads(threads)
    task = load_task(name)
    compiled = compile_task(task)
    trainer = ExactStep(compiled, task.steps)
    candidates: dict[str, Callable[[], object]] = {
        "eager FP32": eager_step(task, torch.float32),
        "eager FP64": eager_step(task, torch.float64),
        "trainer": trainer,
        "auditor": ExactStep(compiled, task.steps, permute=1),
    }
    seconds = interleaved(candidates, REPEATS, warmup=3)
    case = f"{name}, {threads} thread{'s' if threads > 1 else ''}"
    rows = [Row(metric=f"{who}: a step", case=case, value=1e3 * s, unit="ms") for who, s in seconds.items()]
    for who in ("trainer", "auditor"):
        rows += [
            Row(metric=f"{who} / {base}", case=case, value=seconds[who] / seconds[base], unit="x")
            for base in ("eager FP32", "eager FP64")
        ]
    if threads == 1:
        rows += undecided(name, trainer.arithmetic)
    return rows


def undecided(name: str, arithmetic: Arithmetic) -> list[Row]:
    """Share of elements that FP64 and its bound did not decide, by kind of instruction."""
    rows = []
    for kind, counts in arithmetic.stats.kinds.items():
        if not counts.elements:
            continue
        figures = {
            "undecided": counts.undecided,
            "settled in integers": counts.undecided_twice,
            "FP64-then-round wrong": counts.double_rounded,
        }
        for what, number in figures.items():
            rows.append(Row(metric=what, case=f"{name}, {kind}", value=number / counts.elements, unit="of elements"))
    return rows


def main() -> None:
    """Measure both tasks."""
    rows = [row for name in ("digits", "text") for threads in (1, 2) for row in measure(name, threads)]
    publish("engine", rows, "policy exact on the demo's jobs, medians")


if __name__ == "__main__":
    main()
