"""Which data may stay on the CPU, which do, and that nothing of a result depends on it."""

import pytest
import torch
from torch import nn

from tests.engine.lowering_bench import make_task
from tiebreak import Batch, Windows
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data.tensors import identities
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.interpreter import Interpreter, place, tables
from tiebreak.protocol.program.isa import DType

ELSEWHERE = torch.device("meta")
"""Any device that is not the CPU; nothing is computed on it."""


def test_windowed_token_data_may_stay_on_the_cpu() -> None:
    windows = Batch(size=2, examples=Windows(name="tokens", length=3, stride=2))
    task = make_task(nn.Linear(3, 1), {"tokens": torch.arange(20)}, windows, loss=lambda m, t: m(t.float()).mean())
    made = capture_task(task)
    assert "tokens" in tables(made.program)


@pytest.mark.parametrize(
    ("room", "on_cpu"),
    [
        (None, set()),
        (0, {"x", "y", "learning_rate"}),
        (48 + 160, {"x"}),
        (48 + 159, {"x", "y"}),
        (48 + 160 + 400, set()),
    ],
)
def test_the_smallest_tables_go_to_the_device_first(tiny: Captured, room: int | None, on_cpu: set[str]) -> None:
    sizes = {name: tensor.nbytes for name, tensor in tiny.data.items() if name in tables(tiny.program)}
    assert sizes == {"learning_rate": 48, "y": 160, "x": 400}, "the seed is read otherwise"
    found = place(tiny.program, tiny.data, ELSEWHERE, room)
    assert {name for name, tensor in found.items() if tensor.device.type == "cpu"} == on_cpu
    assert set(found) == set(tiny.data)


def test_a_cpu_run_uses_all_data_in_place(tiny: Captured) -> None:
    found = Interpreter(tiny.program, Arithmetic()).place_data(tiny.data)
    assert all(found[name] is tensor for name, tensor in tiny.data.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tables_on_the_cpu_change_no_bit_on_a_gpu(tiny: Captured) -> None:
    device = torch.device("cuda:0")
    interpreter = Interpreter(tiny.program, Arithmetic(device=device))
    roots = []
    for data in (interpreter.to_device(tiny.data), place(tiny.program, tiny.data, device, 0)):
        state = interpreter.to_device(tiny.state)
        for step in range(1, 21):
            state = interpreter.step((step - 1) % 12 + 1, state, data).state
        roots.append(identities(state))
    assert roots[0] == roots[1]


def test_data_not_read_by_rows_may_not_stay_on_the_cpu() -> None:
    b = Builder()
    index, rows = b.iota((2,), (1,)), {name: b.data(name, DType.F32, (4, 3)) for name in ("rows", "both", "plain")}
    taken = [b.rows(rows[name], index) for name in ("rows", "both")]
    loss = b.add(b.sum(b.mul(*taken)), b.sum(b.mul(rows["both"], rows["plain"])))
    program = b.finish({"x": b.state("x", DType.F32, ())}, loss)
    assert tables(program) == {"rows"}
