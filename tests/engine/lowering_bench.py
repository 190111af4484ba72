"""Many small modules in one program: each against autograd in FP64, and the engine against the integers, bit for bit.

Every module reads the same batch plus an input parameter of its own, so the gradient of that parameter is the gradient
of the module's input, and what fails is named. One step of SGD with rate 1 shows every gradient in the new state.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Protocol

import torch
from torch import Tensor, nn

from conformance.whole_steps import execute, new_state
from tiebreak import SGD, Batch, Rows, Task
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data.tensors import from_bytes, tensor_bytes, widened
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter, StepResult
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program.isa import Opcode
from tiebreak.protocol.program.program import Program

SEED = 7

Function = Callable[[Tensor], Tensor | Sequence[Tensor]]


class Applied(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor | Sequence[Tensor]:
        return self.function(x)


class Bench(nn.Module):
    """The sum of the wavy results of all modules; `inputs.i` belongs to module i."""

    def __init__(self, modules: Mapping[str, nn.Module | Function], shape: Sequence[int]) -> None:
        super().__init__()
        self.names = list(modules)
        self.parts = nn.ModuleList(m if isinstance(m, nn.Module) else Applied(m) for m in modules.values())
        self.inputs = nn.ParameterList(torch.randn(tuple(shape)) for _ in modules)

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for part, own in zip(self.parts, self.inputs, strict=True):
            result = part(x + own)
            for y in [result] if isinstance(result, Tensor) else result:
                ramp = torch.arange(1, y.numel() + 1).view(y.shape).to(y.dtype) / y.numel()
                total = total + (torch.sin(y) * ramp).sum()
        return total

    def label(self, parameter: str) -> str:
        place = next((int(word) for word in parameter.split(".") if word.isdigit()), None)
        return parameter if place is None else f"{self.names[place]} ({parameter})"


def loss_of(model: nn.Module, *batch: Tensor) -> Tensor:
    loss: Tensor = model(*batch)
    return loss


class Made(Protocol):
    """What a captured task has, and an optimizer alone."""

    program: Program
    state: dict[str, Tensor]
    data: dict[str, Tensor]


def stepped(made: Made, arithmetic: Arithmetic | None = None, **options: bool) -> Iterator[StepResult]:
    machine = Interpreter(made.program, arithmetic or Arithmetic())
    state, data = machine.to_device(made.state), machine.place_data(made.data)
    for number in count(1):
        result = machine.step(number, state, data, **options)
        state = result.state
        yield result


def nth(steps: int, made: Made, arithmetic: Arithmetic | None = None, **options: bool) -> StepResult:
    return next(islice(stepped(made, arithmetic, **options), steps - 1, None))


def run_engine(captured: Captured, steps: int = 1) -> dict[str, Tensor]:
    result = nth(steps, captured)
    return result.state | {"loss": torch.tensor(result.loss)}


def executed(b: Builder, *data: Tensor) -> list[Tensor]:
    """The values of a builder's instructions, of which the first ones are the data."""
    values, arithmetic = list(data), Arithmetic()
    for i in b.instructions[len(data) :]:
        values.append(arithmetic.execute(i, [values[o.value] for o in i.operands], 0))
    return values


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ((model(x) - y) ** 2).mean()


def run_integers(captured: Captured, steps: int = 1) -> dict[str, Tensor]:
    """The same by `tiebreak.protocol.program.reference`."""
    program = captured.program
    spec = program.state_spec()
    held = captured.state, captured.data
    state, data = ({n: bytes(tensor_bytes(widened(t))) for n, t in part.items()} for part in held)
    values: list[bytes] = []
    for step in range(1, steps + 1):
        values = execute(program, state, data, step)
        state = new_state(program, values)
    return {n: from_bytes(raw, *spec[n]) for n, raw in state.items()} | {
        "loss": from_bytes(values[-1], program.body[-1].dtype, ())
    }


def torch_batch(task: Task, program: Program, step: int) -> list[Tensor]:
    """The examples of a step, by SPEC 7 in plain integers, as FP64."""
    n, size = task.examples, task.batch.size
    stream = next(i.params.stream for i in program.body if i.opcode == Opcode.SHUFFLE)  # type: ignore[union-attr]
    draws = [(step - 1) * size + j for j in range(size)]
    chosen = torch.tensor([shuffle(g % n, task.seed, g // n, n, stream) for g in draws])
    return [t.double() if t.is_floating_point() else t for t in task.batch.examples.take(task.data, chosen)]


def run_torch(task: Task, program: Program, rate: float, steps: int = 1) -> dict[str, Tensor]:
    model = copy.deepcopy(task.model).double()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=rate)
    loss = torch.zeros(())
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = task.loss(model, *torch_batch(task, program, step))
        loss.backward()
        optimizer.step()
    named = [*model.named_parameters(), *model.named_buffers()]
    return {f"model.{name}": t.detach() for name, t in named} | {"loss": loss.detach()}


def make_task(
    model: nn.Module, data: Mapping[str, Tensor], batch: int | Batch = 2, rate: float = 1.0, **changes: object
) -> Task:
    """A task whose new state after one step shows the gradients. batch: its size, if its examples are rows."""
    settings: dict[str, object] = {
        "name": "bench", "model": model, "loss": loss_of, "optimizer": SGD(lr=rate), "data": data,
        "batch": Batch(size=batch, examples=Rows(names=tuple(data))) if isinstance(batch, int) else batch, "steps": 3,
        "checkpoint_interval": 1, "seed": SEED,
    }  # fmt: skip
    return Task(**(settings | changes))  # type: ignore[arg-type]


def same_bits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    assert found.keys() == expected.keys()
    return [name for name, t in found.items() if bytes(tensor_bytes(t)) != bytes(tensor_bytes(expected[name]))]


def check_modules(
    modules: Mapping[str, nn.Module | Function], shape: Sequence[int], *, tolerance: float = 1e-5, batch: int = 2
) -> Program:
    """Captures all modules at once and compares one step with torch in FP64 and with the integers. Returns the program.

    `shape` is that of one example; the modules see (batch, *shape).
    """
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(5)
    bench = Bench(modules, shape)
    task = make_task(bench, {"x": torch.randn((batch, *shape), generator=generator)}, batch)
    captured = capture_task(task)
    found = run_engine(captured)
    expected = run_torch(task, captured.program, 1.0)
    far = {
        bench.label(name.removeprefix("model.")): distance
        for name, tensor in expected.items()
        if not (distance := relative(found[name], tensor)) < tolerance
    }
    assert not far, f"far from FP64: {far}"
    wrong = [bench.label(name.removeprefix("model.")) for name in same_bits(found, run_integers(captured))]
    assert not wrong, f"engine and integers differ: {wrong}"
    return captured.program


def relative(found: Tensor, expected: Tensor) -> float:
    expected = expected.double()
    if not expected.numel():
        return 0.0
    return float(((found.double() - expected).abs() / expected.abs().clamp(min=1)).max())
