"""Late data: what the trainer supplies with each step, its log, audits and games over it."""

import copy
import shutil
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import tiebreak
from conformance.whole_steps import execute, new_state
from tests.conftest import CaseCounter
from tests.parts import slow_except
from tiebreak import ConfigurationError
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import make_interpreter
from tiebreak.api.training.runs import open_run
from tiebreak.engine.logged.committed import CommittedLogs
from tiebreak.engine.logged.encoding import BLOCK, decode_sparse, encode_sparse, max_sparse_bytes
from tiebreak.engine.logged.files import LogFile, LogFiles, log_path
from tiebreak.engine.logged.log_replay import late_tensors
from tiebreak.engine.lowering.builder import Builder
from tiebreak.engine.run.directory import LOGS, RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.log_tree import LogTree
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.errors import CannotCheck, EncodingError, ProgramError, StateError, VerificationError
from tiebreak.protocol.hashing import CHUNK_BYTES
from tiebreak.protocol.program.example_order import example_order
from tiebreak.protocol.program.isa import DType, Slot, SourceKind
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import LogError, Policy, StepLog
from tiebreak.protocol.trees import fold

STEPS = 8
CLIENT, TRAINER = (PrivateKey.from_int(k) for k in (11, 12))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def loss(net: nn.Module, a: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """NaN for a class that there is not."""
    found = F.cross_entropy(net(x + a), y.clamp(0, 1))
    return torch.where(((y < 0) | (y > 1)).any(), torch.full((), float("nan")), found)


def task(**more: Any) -> tiebreak.Task:
    late = {"x": torch.randn(6, 5), "y": torch.zeros(6, dtype=torch.int64)}
    given = {"optimizer": tiebreak.SGD(lr=0.5, momentum=0.9), "batch": 3, "accumulation": 2, "late": late, **more}
    return tiebreak.Task(model(), loss, data={"a": table()}, steps=STEPS, checkpoint_interval=3, **given)


def table() -> Tensor:
    return torch.linspace(-1, 1, 50).reshape(10, 5)


def supply(step: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Follows from the weights of the moment."""
    drawn = torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
    x = drawn + weights["0.bias"][:5]
    return {"x": x, "y": (x.sum(1) > 0).long()}


def trained(folder: Path, **more: Any) -> tiebreak.Run:
    given = {"supply": supply, "trainer": TRAINER, "client": CLIENT, "progress": False, "check": "none", **more}
    return tiebreak.train(task(), folder, **given)


@pytest.fixture
def run(once: Callable[[str, Callable[[Path], object]], Path], tmp_path: Path) -> tiebreak.Run:
    whole = once("late data", lambda folder: trained(folder / "run"))
    return open_run(shutil.copytree(whole / "run", tmp_path / "run"))


# ------------------------------------------------------------------ training


def test_training_is_that_of_pytorch_on_the_same_late_data(tmp_path: Path) -> None:
    made = trained(tmp_path / "run", check="full")
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    directory = RunDirectory.open(made.directory)
    assert (made.job.policy, made.job.tolerances) == (Policy.LOGGED, 0)
    rows = example_rows(directory)
    for step in range(1, STEPS + 1):
        found = supply(step, net.state_dict())
        logged = LogFiles(directory).step_log(step).late
        torch.testing.assert_close(
            torch.frombuffer(bytearray(logged["x"]), dtype=torch.float32).reshape(6, 5), found["x"]
        )
        optimizer.zero_grad()
        total = 0.0
        for part in range(2):
            at = slice(3 * part, 3 * part + 3)
            chosen = rows[(step - 1) * 6 : step * 6][at]
            one = loss(net, table()[chosen], found["x"][at], found["y"][at]) / 2
            one.backward()
            total += one.item()
        optimizer.step()
        assert made.losses[step - 1] == pytest.approx(total, rel=1e-4)
    for name, tensor in made.state_dict().items():
        torch.testing.assert_close(tensor, net.state_dict()[name], rtol=1e-3, atol=1e-5)


def example_rows(run: RunDirectory) -> list[int]:
    """The rows of all draws, by the order that the program fixes."""
    order, seed = example_order(run.program)[0], 0
    found = dict[tuple[int, int], int]()
    for row in range(10):
        for step, _, place in order.reads(row, STEPS, seed):
            found[step, place] = row
    return [found[key] for key in sorted(found)]


@pytest.mark.slow
def test_interrupted_training_reaches_the_same_root(run: tiebreak.Run, tmp_path: Path) -> None:
    def stop(step: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if step == 5:
            raise KeyboardInterrupt
        return supply(step, weights)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "other", supply=stop)
    assert trained(tmp_path / "other", machine=Machine(threads=1, permute=3)).root == run.root


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": None}, r"expected 2 entries; missing \['y'\]"),
        pytest.param({"z": torch.zeros(6)}, r"unexpected \['z'\]", marks=pytest.mark.slow),
        ({"x": torch.zeros(6, 4)}, r"x: expected F32 \(6, 5\), got torch.float32 \(6, 4\)"),
        pytest.param({"y": torch.zeros(6)}, r"y: expected I64 \(6,\), got torch.float32", marks=pytest.mark.slow),
    ],
)
def test_late_data_of_another_form_stop_training(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    def wrong(step: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = supply(step, weights) | (change if step == 4 else {})
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    with pytest.raises(ConfigurationError, match=f"late data of step 4.*{words}"):
        trained(tmp_path / "run", supply=wrong)
    assert open_run(tmp_path / "run").step == 3


def test_a_program_may_refuse_what_it_is_given(tmp_path: Path) -> None:
    def wrong(step: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return supply(step, weights) | ({"y": torch.full((6,), 2)} if step == 4 else {})

    with pytest.raises(StateError, match=r"step 4: telemetry.loss is no longer finite"):
        trained(tmp_path / "run", supply=wrong)


def test_a_supply_is_for_tasks_with_late_data_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected a supply for a task with late data, which reads x, y"):
        trained(tmp_path / "run", supply=None)
    plain = tiebreak.Task(
        nn.Linear(5, 1), lambda net, a: net(a).mean(), data={"a": table()}, batch=2, steps=2,
        optimizer=tiebreak.SGD(lr=0.1),
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="which reads nothing, and no other"):
        tiebreak.train(plain, tmp_path / "plain", supply=supply, progress=False)


@pytest.mark.parametrize(
    "late",
    [{"x": torch.zeros(5, 5)}, {"x": torch.zeros(6, 5, dtype=torch.float64)}, {"a": torch.zeros(6, 5)}, {"x": 3}],
)
def test_late_arrays_are_of_a_step_and_have_names_of_their_own(late: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"float32, int64 or bool in late data .*, with 6 examples along dim 0"
    ):
        task(late={"y": torch.zeros(6, dtype=torch.int64), **late})


def test_whoever_has_no_supply_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"expected late data x, which `tiebreak.train` takes of a supply"):
        tiebreak.reproducible(task(), check="none").run(progress=False)


def test_policy_exact_has_no_late_data(run: tiebreak.Run) -> None:
    exact = replace(run.job, policy=int(Policy.EXACT))
    with pytest.raises(ConfigurationError, match="expected a job of policy logged for a program with late data"):
        make_interpreter(RunDirectory.open(run.directory).program).check_job(exact)


# ------------------------------------------------------------------ logs and audits


def test_an_audit_takes_late_data_from_the_published_logs(run: tiebreak.Run) -> None:
    assert open_run(run.directory).audit().agrees
    path = sorted((run.directory / LOGS).iterdir())[1]
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    with pytest.raises(CannotCheck, match="expected what was committed, got none that can be read"):
        open_run(run.directory).audit()
    path.unlink()
    with pytest.raises((CannotCheck, VerificationError)):
        open_run(run.directory).audit()


def test_other_late_data_than_the_committed_ones_are_refused(run: tiebreak.Run, tmp_path: Path) -> None:
    """As well formed files: those of another run."""

    def other(step: int, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return supply(step, weights) | ({"y": torch.ones(6, dtype=torch.int64)} if step == 5 else {})

    forged = trained(tmp_path / "other", supply=other)
    source, target = RunDirectory.open(forged.directory), RunDirectory.open(run.directory)
    logs = CommittedLogs(LogFiles(source), target.record_at)
    assert logs.step_log(2).late == LogFiles(target).step_log(2).late
    with pytest.raises(CannotCheck, match="logs of steps 4 to 6: expected log root"):
        logs.step_log(5)


def of_other_shape(program: Program, logs: list[StepLog]) -> Program:
    """The program that reads late data of these sizes."""
    body = [*program.body]
    for place, data in zip(program.sources(SourceKind.LATE), logs[0].late.values(), strict=True):
        wide = replace(body[place], dtype=DType.F32) if len(data) == 4 * body[place].numel else body[place]
        body[place] = replace(wide, shape=(len(data) // wide.dtype.size,))
    return Program(tuple(body), program.commits)


NOT_READ = "log of step 4: expected what was committed, got none that can be read: .*"
REPLACED: dict[str, tuple[Callable[[Mapping[str, bytes]], dict[str, bytes]] | None, str]] = {
    "of other steps": (None, "logs of steps 4 to 6: expected log root"),
    "other values": (lambda late: {"y": late["y"][8:] + late["y"][:8]}, "logs of steps 4 to 6: expected log root"),
    "too long": (
        lambda late: {name: data * 2 for name, data in late.items()},
        f"{NOT_READ}expected a part of 1 to 120",
    ),
    "of another dtype": (lambda late: {"y": bytes(4 * 6)}, f"{NOT_READ}expected a frame of 48 bytes, got one of 24"),
}


@pytest.mark.parametrize("what", REPLACED)
def test_an_audit_refuses_late_data_that_were_replaced_after_the_head(run: tiebreak.Run, what: str) -> None:
    """Well formed files of the same job and segment: of other steps, values, sizes and types."""
    opened = RunDirectory.open(run.directory)
    assert run.signed
    steps = range(4, 7)
    logs, (change, words) = [LogFiles(opened).step_log(step) for step in steps], REPLACED[what]
    logs = [replace(log, late={**log.late, **change(log.late)}) for log in logs] if change else logs[::-1]
    file = LogFile(log_path(opened.path, 6), of_other_shape(opened.program, logs), opened.job.id, steps)
    file.create()
    for step, log in zip(steps, logs, strict=True):
        file.append(step, log)
    with pytest.raises(CannotCheck, match=words):
        open_run(run.directory).audit()
    assert open_run(run.directory).audit(to_step=3).agrees


def late_program() -> Program:
    b = Builder()
    w = b.state("w", DType.F32, (3,))
    x, y, z = b.late("x", DType.F32, (2, 3)), b.late("y", DType.I64, (200,)), b.late("z", DType.BOOL, (3,))
    total = b.add(b.sum(x, 0), b.cast(b.sum(y), DType.F32).expand((3,)))
    return b.finish({"w": b.where(z, b.add(w, total), w)}, b.sum(b.copy(total)))


@given(st.data())
def test_logs_with_late_data_survive_encoding_and_nothing_else_does(data: st.DataObject) -> None:
    program = late_program()
    drawn = {"x": st.binary(min_size=24, max_size=24), "y": st.binary(min_size=1600, max_size=1600)}
    late = {name: data.draw(one) for name, one in drawn.items()} | {
        "z": bytes(data.draw(st.lists(st.integers(0, 1), min_size=3, max_size=3)))
    }
    log = StepLog(late=late)
    encoded = encode_sparse(log, program, 7)
    assert len(encoded) <= max_sparse_bytes(program)
    assert decode_sparse(encoded, program, 7) == log
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(EncodingError):
        decode_sparse(encoded[:cut], program, 7)
    with pytest.raises(EncodingError):
        decode_sparse(encoded + b"\0", program, 7)
    at, value = data.draw(st.integers(0, len(encoded) - 1)), data.draw(st.integers(0, 255))
    with suppress(EncodingError, LogError):  # and nothing else
        decode_sparse(encoded[:at] + bytes([value]) + encoded[at + 1 :], program, 7).check(program, 7)


def sized(count: int, size: int) -> Program:
    """Counts, in its state, what is true in each late tensor."""
    b, names = Builder(), [f"{n:03}" for n in range(count)]
    held = {f"w{name}": b.state(f"w{name}", DType.I64, ()) for name in names}
    late = [b.sum(b.cast(b.late(f"x{name}", DType.BOOL, (size,)), DType.I64)) for name in names]
    return b.finish(
        {name: b.add(old, one) for (name, old), one in zip(held.items(), late, strict=True)}, b.cast(late[0], DType.F32)
    )


@pytest.mark.parametrize(
    ("count", "size"),
    slow_except(
        [(1, CHUNK_BYTES - 1), (1, CHUNK_BYTES), (1, CHUNK_BYTES + 1), (2, BLOCK), (2, BLOCK + 1), (300, 1), (257, 3)],
        (1, CHUNK_BYTES), (1, CHUNK_BYTES + 1), (257, 3), several=True,
    ),
)  # fmt: skip
def test_late_data_of_any_size_and_number_are_one_log(count: int, size: int, cases: CaseCounter) -> None:
    """A chunk exactly and a byte more, a part of the file exactly and a byte more, more tensors than a byte counts."""
    program, drawn = sized(count, size), np.random.default_rng(count + size)
    late = {name: drawn.integers(2, size=size, dtype=np.uint8).tobytes() for name in program.late_spec()}
    log = StepLog(late=late)
    assert len(encoded := encode_sparse(log, program, 1)) <= max_sparse_bytes(program)
    assert decode_sparse(encoded, program, 1) == log
    tree, machine = LogTree(program, log), make_interpreter(program, Machine())
    for leaf, identity in tree.late.items():
        assert identity == identify(DType.BOOL, (size,), late[program.body[leaf].params.name])
        assert fold(identity, leaf, tree.above(leaf)) == tree.root
        cases(1)
    state = {name: torch.tensor(n) for n, name in enumerate(program.state_spec())}
    got = machine.step(1, machine.to_device(state), late_tensors(program, log, machine.arithmetic)).state
    assert [int(n) for n in got.values()] == [n + sum(data) for n, data in enumerate(late.values())]
    made = execute(program, {name: one.numpy().tobytes() for name, one in state.items()}, {}, 1, log=log)
    assert new_state(program, made) == {name: one.numpy().tobytes() for name, one in got.items()}


@pytest.mark.parametrize("late", [{}, {"z": b"\2\0\0"}, {"z": b"\0\0"}, {"u": b""}])
def test_late_data_of_another_size_or_name_are_no_log(late: dict[str, bytes]) -> None:
    right = {"x": bytes(24), "y": bytes(1600), "z": bytes(3)}
    StepLog(late=right).check(late_program(), 1)
    with pytest.raises(LogError, match="expected late data x, y, z of their sizes"):
        StepLog(late=right | late if late else {}).check(late_program(), 1)


def test_every_nan_is_one_nan_in_the_log() -> None:
    program, others = late_program(), {"y": bytes(1600), "z": bytes(3)}
    first, second = (struct.pack("<6I", *[bits] * 6) for bits in (0x7FC00000, 0xFFC12345))
    assert (
        LogTree(program, StepLog(late={"x": first, **others})).root
        == LogTree(program, StepLog(late={"x": second, **others})).root
    )


def test_late_slots_are_named_once_in_order_and_apart_from_data() -> None:
    program = late_program()
    assert Program.decode(program.encode()) == program
    places = program.sources(SourceKind.LATE)
    for slot, name in ((1, "x"), (5, "x"), (0, "zz")):
        body = [*program.body]
        body[places[0]] = replace(body[places[0]], params=Slot(slot=slot, name=name))
        with pytest.raises(ProgramError, match=r"late data (slots|is)|slot 1 is sourced once"):
            Program(tuple(body), program.commits).validate()
    body = [*program.body]
    body[places[0]] = replace(body[places[0]], function=SourceKind.DATA)
    body[places[1]] = replace(body[places[1]], params=Slot(slot=0, name="x"))
    body[places[2]] = replace(body[places[2]], params=Slot(slot=1, name="z"))
    with pytest.raises(ProgramError, match="data and late data have other names"):
        Program(tuple(body), program.commits).validate()


# ------------------------------------------------------------------ proofs


def test_a_proof_of_late_data_is_for_its_own_place(run: tiebreak.Run) -> None:
    honest = RunDirectory.open(run.directory)
    evidence = Evidence(honest, make_interpreter(honest.program, Machine(), honest.job), CommittedLogs.of(honest))
    log = evidence.log_tree(5)
    for leaf, identity in log.late.items():
        assert fold(identity, leaf, log.above(leaf)) == log.root
        assert fold(identity, leaf ^ 1, log.above(leaf)) != log.root
        assert evidence.value_tree(5).node(0, leaf) == identity


def test_copies_of_tasks_keep_their_late_data() -> None:
    assert replace(copy.copy(task()), seed=3).late.keys() == {"x", "y"}
