"""A step in little memory gives the bits of a step in much: values wait in a file, whichever they are."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import CaseCounter
from tests.parts import slow_except
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.data.disk import StorageError
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run import offload
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError
from tiebreak.engine.run.offload import Budget, Offload
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType

from .test_distributed import captured_attention
from .tiny import TRAINER, make_tiny_task


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest values may leave memory."""
    monkeypatch.setattr(offload, "SMALL", 1)


def offload_of(interpreter: Interpreter) -> Offload:
    assert interpreter.offload is not None
    return interpreter.offload


def budget(room: int) -> Budget:
    return Budget(room, Path(tempfile.gettempdir()))


def limited(captured: Captured, share: float = 0.0, permute: int | None = 1) -> Interpreter:
    """An interpreter with the room that the largest unit of the program takes, and some of the state's bytes."""
    least = offload_of(Interpreter(captured.program, Arithmetic(), budget=budget(1 << 40))).least
    room = least + int(share * sum(t.nbytes for t in captured.state.values()))
    return Interpreter(captured.program, Arithmetic(permute=permute), budget=budget(room))


def states(
    interpreter: Interpreter, captured: Captured, steps: int, donate: Callable[[int], bool] = lambda _: True
) -> list[dict[str, Tensor]]:
    state = {name: tensor.clone() for name, tensor in interpreter.to_device(captured.state).items()}
    data, found = interpreter.place_data(captured.data), []
    for number in range(1, steps + 1):
        state = interpreter.step(number, state, data, donate=donate(number)).state
        found.append({name: tensor.clone() for name, tensor in state.items()})
    return found


def assert_equal(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for step, (one, other) in enumerate(zip(found, expected, strict=True), 1):
        assert one.keys() == other.keys()
        for name, tensor in other.items():
            assert one[name].numpy().tobytes() == tensor.numpy().tobytes(), (step, name)


@cache
def captured_tiny() -> Captured:
    return capture_task(make_tiny_task(20))


@pytest.mark.parametrize(
    ("make", "share"),
    slow_except(
        [(captured_tiny, 0.0), (captured_tiny, 10.0), (captured_attention, 0.0), (captured_attention, 0.5)],
        (captured_tiny, 0.0), (captured_tiny, 10.0), several=True,
    ),
)  # fmt: skip
def test_offloading_to_disk_changes_no_bit_in_twenty_steps(
    make: Callable[[], Captured], share: float, cases: CaseCounter
) -> None:
    captured = make()
    interpreter = limited(captured, share)
    expected = states(Interpreter(captured.program, Arithmetic()), captured, 20)
    assert_equal(states(interpreter, captured, 20, lambda step: step % 3 > 0), expected)
    found = offload_of(interpreter)
    moved = found.bytes_written > 0 and found.bytes_read > 0
    assert moved or share == 10.0, "everything stayed in memory, so nothing was tested"
    cases(20)


@pytest.mark.usefixtures("pure")
def test_offloading_without_a_compiler_changes_no_bit(cases: CaseCounter) -> None:
    captured = captured_tiny()
    interpreter = limited(captured)
    assert interpreter.arithmetic.chains is None
    assert_equal(states(interpreter, captured, 5), states(Interpreter(captured.program, Arithmetic()), captured, 5))
    cases(5)


def test_an_offloaded_run_and_its_audit_reach_the_same_root(
    tiny: Captured, new_run: Callable[[str], RunDirectory]
) -> None:
    """The trainer stops and goes on, commits in the background, and the auditor has little memory too."""
    plain, run = new_run("plain"), new_run("limited")
    root = Worker(plain, Interpreter(tiny.program, Arithmetic()), key=TRAINER).work()
    Worker(run, limited(tiny), key=TRAINER).work(7)
    assert Worker(run, limited(tiny), key=TRAINER).work() == root
    auditor = limited(tiny)
    audit = SegmentAuditor(run, auditor, run.records()).audit(range(len(run.records())))
    assert audit.agrees
    assert len(audit.checked) == len(run.records())
    assert offload_of(auditor).bytes_read > 0


def test_an_offloaded_state_is_not_held_twice(tiny: Captured) -> None:
    interpreter = limited(tiny, share=10.0)
    state = {name: tensor.clone() for name, tensor in tiny.state.items()}
    data = interpreter.place_data(tiny.data)
    result = interpreter.step(1, state, data, donate=True)
    before = {name: tensor.clone() for name, tensor in result.state.items()}
    whole = interpreter.whole(result.state)
    assert all(whole[name] is tensor for name, tensor in result.state.items()), "two states would be held"
    assert_equal([whole], [before])
    interpreter.step(2, result.state, data)  # not donated: whoever commits it still reads it
    assert_equal([whole], [before])


def test_too_little_memory_for_one_instruction_is_refused(tiny: Captured) -> None:
    least = offload_of(limited(tiny, share=10.0)).least
    with pytest.raises(
        ConfigurationError, match=r"MiB more memory: instruction \d+ of the step \(\w+ to \[.*\] from .*\) reads and"
    ):
        Interpreter(tiny.program, Arithmetic(), budget=budget(least - 1))


def test_a_missing_offload_folder_is_an_error(tiny: Captured, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        Interpreter(tiny.program, Arithmetic(), budget=Budget(1 << 40, tmp_path / "missing"))


def test_the_offload_file_does_not_grow_with_the_steps(tiny: Captured) -> None:
    interpreter = limited(tiny)
    states(interpreter, tiny, 3)
    end = offload_of(interpreter)._file._end
    states(interpreter, tiny, 12)
    assert offload_of(interpreter)._file._end <= 2 * end, "the file grows with every step"


def test_non_finite_entries_in_the_offload_file_are_detected() -> None:
    """What no step changes is looked at too, wherever it waits: the step is refused as in much memory."""
    b = Builder()
    moving, kept = b.state("moving", DType.F32, (64,)), b.state("kept", DType.F32, (64,))
    program = b.finish({"moving": b.scale(moving, 0.5), "kept": kept}, b.sum(moving))
    values = {"moving": torch.ones(64), "kept": torch.full((64,), float("inf"))}
    for room in (None, budget(1 << 20)):
        machine = Interpreter(program, Arithmetic(), budget=room)
        given = {name: machine.empty(x.shape, x.dtype).copy_(x) for name, x in values.items()}
        with pytest.raises(NotFiniteError, match="step 1: kept"):
            machine.step(1, machine.to_device(given), {})
