"""The order of examples, as a program alone tells it, against what the interpreter reads in each step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tiebreak import SGD, Batch, Rows, Task, Windows
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.protocol.errors import ConfigurationError, ProgramError
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program import isa
from tiebreak.protocol.program.example_order import MAX_EPOCHS, ExampleOrder, example_order, list_examples, order_of
from tiebreak.protocol.program.isa import Access, MapFunction, Opcode
from tiebreak.protocol.program.program import Program

STEPS, ROWS = 25, 23


def marked_rows(dtype: torch.dtype = torch.float32) -> Tensor:
    """Row r holds r in each of 8 elements."""
    return torch.arange(ROWS, dtype=dtype)[:, None].expand(ROWS, 8).contiguous()


def loss_of_rows(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x.float()), y)


def of_rows(batch: int | Batch, x: Tensor, **more: Any) -> Task:
    data = {"x": x, "y": torch.arange(ROWS) % 3, **more.pop("data", {})}
    return Task(
        nn.Linear(8, 3), loss_of_rows, data=data, optimizer=SGD(lr=1e-6), batch=batch, steps=STEPS, seed=77, **more
    )


class Words(nn.Module):
    """Scores for the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(200, 4), nn.Linear(4, 200)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.embedding(x))
        return found


def of_windows(stride: int) -> Task:
    """Token number i is i, so that a window tells where it begins."""
    batch = Batch(size=3, examples=Windows(name="x", length=9, stride=stride))
    return Task(
        Words(), lambda model, x: F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()),
        data={"x": torch.arange(200)}, optimizer=SGD(lr=1e-6), batch=batch, steps=STEPS, seed=-3 % (1 << 63),
    )  # fmt: skip


def in_order(**more: bool) -> Batch:
    return Batch(size=4, examples=Rows(names=("x", "y")), **more)


TASKS: dict[str, Callable[[], Task]] = {
    "shuffled": lambda: of_rows(4, marked_rows()),
    "one by one": lambda: of_rows(1, marked_rows()),
    "all in a batch": lambda: of_rows(ROWS, marked_rows()),
    "accumulated": lambda: of_rows(3, marked_rows(), accumulation=2),
    "items": lambda: of_rows(
        3, marked_rows(), accumulation=2, items="n", data={"n": torch.ones(ROWS, dtype=torch.int64)}
    ),
    "in order": lambda: of_rows(in_order(shuffled=False), marked_rows()),
    "without the last": lambda: of_rows(in_order(drop_last=True), marked_rows()),
    "bytes in words": lambda: of_rows(4, marked_rows(torch.uint8)),
    "windows": lambda: of_windows(9),
    "overlapping windows": lambda: of_windows(8),
}


def rows_read(captured: Captured, stride: int) -> dict[tuple[int, int], int]:
    """The row of x that stands at each place of each step, by its marks, when the interpreter computes it."""
    program, found = captured.program, dict[tuple[int, int], int]()
    sources = [n for n, i in enumerate(program.body) if isinstance(i.params, isa.Slot) and i.params.name == "x"]
    gathers = [n for n, i in enumerate(program.body) if i.opcode == Opcode.GATHER and i.operands[0].value in sources]
    interpreter = Interpreter(program, Arithmetic(device=torch.device("cpu")))
    state, data = interpreter.to_device(captured.state), interpreter.place_data(captured.data)
    for step in range(1, STEPS + 1):
        starts: list[float] = []

        def observe(leaf: int, value: Tensor, starts: list[float] = starts) -> Tensor:
            if leaf in gathers:
                starts += [float(row.view(torch.uint8)[0] if stride == 0 else row[0]) for row in value]
            return value

        state = interpreter.step(step, state, data, observe).state
        found |= {(step, place): round(start / (stride or 1)) for place, start in enumerate(starts)}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_the_order_of_a_program_is_what_the_interpreter_reads(name: str, cases: Callable[[int], None]) -> None:
    captured = capture_task(TASKS[name]())
    order, elements = example_order(captured.program)
    stride = {"bytes in words": 0, "windows": 9, "overlapping windows": 8}.get(name, 1)
    read = rows_read(captured, stride)
    assert len(read) == STEPS * order.each
    seed = int(captured.data["seed"]) if order.seed else 0
    told = {
        (s, place): row
        for row in range(order.shuffle.n if order.shuffle else order.epoch)
        for s, _, place in order.reads(row, STEPS, seed)
    }
    assert told == read
    assert set(elements) - {"n"} == ({"x"} if "windows" in name else {"x", "y"})
    first, step, count = elements["x"]
    assert (first, step, count) == (0, stride, 9) if "windows" in name else (0, count, count)
    cases(len(read))


@given(
    st.integers(1, 300), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 33), st.integers(0, 3), st.data()
)
def test_the_inverse_of_a_shuffle_leads_back(n: int, seed: int, epoch: int, stream: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, n - 1))
    assert shuffle(shuffle(index, seed, epoch, n, stream), seed, epoch, n, stream, inverse=True) == index
    assert shuffle(n, seed, epoch, n, stream, inverse=True) == -1


def test_a_program_that_reads_otherwise_is_refused(cases: Callable[[], None]) -> None:
    """Each change of one number of the instructions that draw and gather examples, and a second reader of the data."""
    program = capture_task(TASKS["accumulated"]()).program
    body, expected = program.body, example_order(program)
    drawing = {n for n, i in enumerate(body) if i.opcode == Opcode.SHUFFLE}
    drawing |= {n for n, i in enumerate(body) if i.opcode == Opcode.GATHER and i.operands[1].value in drawing}
    for _ in range(5):
        drawing |= {operand.value for n in drawing for operand in body[n].operands}
    refused = 0
    for n in sorted(drawing):
        i = body[n]
        others = [
            replace(i, function=i.function ^ 1),
            replace(i, shape=(*i.shape[:-1], i.shape[-1] + 1) if i.shape else (1,)),
        ]
        for k, operand in enumerate(i.operands):
            moved = [replace(operand, offset=operand.offset + 1)]
            for d, stride in enumerate(operand.strides):
                strides = (*operand.strides[:d], stride + 1, *operand.strides[d + 1 :])
                moved += [replace(operand, strides=strides)] if i.shape[d] > 1 else []
            others += [replace(i, operands=(*i.operands[:k], other, *i.operands[k + 1 :])) for other in moved]
        for other in others:
            if other.params is not None and isinstance(other.params, isa.Slot):
                continue  # another entry's source
            try:
                made = Program((*body[:n], other, *body[n + 1 :]), program.commits)
                made.validate()
                found = example_order(made)
            except (ConfigurationError, ProgramError):
                refused += 1
                cases()
                continue
            assert found != expected or other.operands == i.operands, "a longer result only: read twice, or by nobody"
    assert refused > 30
    source = next(n for n, i in enumerate(body) if isinstance(i.params, isa.Slot) and i.params.name == "x")
    reader = isa.Instruction(
        opcode=Opcode.MAP,
        function=MapFunction.COPY,
        dtype=isa.DType.F32,
        shape=(1,),
        operands=(Access(source, 0, (0,)),),
    )
    with pytest.raises(ConfigurationError, match="whole examples in one order"):
        example_order(Program((*body, reader), program.commits))
    with pytest.raises(ConfigurationError, match="whole examples in one order"):
        example_order(Program(body[:3], program.commits))


def test_a_job_of_endless_epochs_is_refused() -> None:
    order = ExampleOrder(4, 8, None, "")
    assert list(order.reads(1, 5, 0)) == [(1, 1, 1), (3, 2, 1), (5, 3, 1)]
    with pytest.raises(ConfigurationError, match=f"at most {MAX_EPOCHS:,} epochs, got "):
        list(order.reads(1, 1 << 62, 0))


def test_a_listed_order_is_recognised_and_no_other_gather_by_step(cases: Callable[[], None]) -> None:
    """Each change of one number of the instruction that reads a row of the list."""
    program, name = list_examples(capture_task(TASKS["accumulated"]()).program, STEPS, ROWS - 3)
    order, elements = example_order(program)
    assert order == ExampleOrder(6, 6 * STEPS, None, "", name)
    assert {program.data_spec()[entry][1][0] for entry in elements} == {ROWS - 3}
    assert list(order.reads(4, 2, 0, [4, 1, 2, 3, 1, 0, 1, 4, 1, 1, 1, 1, 4])) == [(1, 1, 0), (2, 1, 1)]
    n = next(n for n in range(len(program.body)) if order_of(program.body, n) == order)
    i = program.body[n]
    table, step = i.operands
    assert isinstance(i.params, isa.GatherParams)
    for other in (
        replace(i, operands=(replace(table, offset=1), step)),
        replace(i, operands=(replace(table, strides=(0,)), step)),
        replace(i, params=replace(i.params, bound=STEPS - 1)), replace(i, params=replace(i.params, index_stride=5)),
        replace(i, shape=(5,)),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match="whole examples in one order"):
            example_order(Program((*program.body[:n], other, *program.body[n + 1 :]), program.commits))
        cases()
