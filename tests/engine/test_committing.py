"""Training and its checkpoints: committed beside the computation, in order, whatever dies in between; kept as asked."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.processes import printed
from tests.tampered import Tamper, Tampered
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.data.disk import Folder, StorageError
from tiebreak.engine.data.formats import read_tensors, write_tensors
from tiebreak.engine.data.tensors import identities, tensor_bytes
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.commit import Commit
from tiebreak.engine.run.directory import Keep, RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.engine.run.interpreter import Interpreter, NotFiniteError, Observer
from tiebreak.engine.run.segments import compare
from tiebreak.engine.run.train import Progress, Worker
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.commitments.records import run_tree
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.tags import Digest

from .tiny import CLIENT, DOMAIN, TRAINER, make_tiny_task

NewRun = Callable[[str], RunDirectory]
EVERY_TWO = Keep(2)
LAST = Keep(0)


def worker(run: RunDirectory, tamper: Tamper = lambda _: None, **options: object) -> Worker:
    machine = Interpreter(run.program, Arithmetic(device=torch.device("cpu")))
    return Worker(run, Tampered(machine, tamper), key=TRAINER, **options)  # type: ignore[arg-type]


@pytest.fixture
def whole(new_run: NewRun) -> RunDirectory:
    """A finished run that kept everything."""
    run = new_run("whole")
    worker(run).work()
    return run


def test_heads_are_signed_at_every_checkpoint(new_run: NewRun) -> None:
    run, seen, commits = new_run("run"), list[Progress](), list[Commit]()
    root = worker(run, on_progress=seen.append, on_commit=commits.append).work()
    heads = run.heads()
    assert [h.head.count for h in heads] == [1, 2, 3, 4]
    assert heads[-1].head.run_root == root
    assert [p.step for p in seen] == list(range(1, 13))
    assert [c.record for c in commits] == run.records()
    assert [c.head for c in commits] == heads
    assert [(c.count, c.run_root) for c in commits] == [(h.head.count, h.head.run_root) for h in heads]
    assert [m["step"] for m in run.metrics()] == list(range(1, 13))
    assert seen[-1].loss < seen[0].loss + 1


def test_resuming_stops_if_the_machine_cannot_reproduce_its_records(new_run: NewRun) -> None:
    run = new_run("run")
    worker(run).work()
    run.state_path(12).unlink()
    changed = run.program.leaf_of_commit(0)

    def nudge(step: int) -> Observer | None:
        return (lambda leaf, tensor: tensor + 1 if leaf == changed else tensor) if step == 11 else None

    with pytest.raises(StateError, match="no longer reproduces its own result"):
        worker(run, nudge).work()
    assert len(run.records()) == 4


def test_a_run_that_diverges_stops_with_the_step_and_the_tensor(tmp_path: Path) -> None:
    bundle = capture_bundle(replace(make_tiny_task(), schedule=(1.0,) * 5 + (3e39,) * 7), check="none")
    run = agree_on(bundle, tmp_path / "run", client=CLIENT, trainer=TRAINER, terms=Terms(), domain=DOMAIN)
    with pytest.raises(NotFiniteError, match="no longer finite") as caught:
        worker(run).work()
    assert 6 <= caught.value.step <= 12
    assert caught.value.name.startswith(("model.", "optimizer."))
    assert run.last_complete() in (3, 6, 9)
    assert len(run.heads()) == len(run.records())


def test_a_checkpoint_writes_state_record_and_head_before_dropping_states(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []

    def watch(name: str, number: Callable[..., int]) -> None:
        real = getattr(RunDirectory, name)

        def watched(self: RunDirectory, *arguments: object) -> None:
            real(self, *arguments)
            seen.append((name, number(*arguments)))

        monkeypatch.setattr(RunDirectory, name, watched)

    watch("write_state", lambda step, _: step)
    watch("append_record", lambda record: record.step)
    watch("write_head", lambda head: head.head.count)
    watch("drop_state", lambda step: step)
    worker(new_run("run"), keep=LAST).work(9)
    assert seen == [
        ("write_state", 3), ("append_record", 3), ("write_head", 1),
        ("write_state", 6), ("append_record", 6), ("write_head", 2), ("drop_state", 3),
        ("write_state", 9), ("append_record", 9), ("write_head", 3), ("drop_state", 6),
    ]  # fmt: skip


class Gate:
    """Holds up the writing of one state until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.writing, self.most = 0, 0
        real = RunDirectory.write_state

        def write(run: RunDirectory, number: int, state: Mapping[str, Tensor]) -> None:
            self.writing += 1
            self.most = max(self.most, self.writing)
            if number == step:
                self.reached.set()
                assert self.opened.wait(60)
            real(run, number, state)
            self.writing -= 1

        monkeypatch.setattr(RunDirectory, "write_state", write)


def test_training_continues_with_at_most_one_checkpoint_in_flight(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, told, seen = Gate(monkeypatch, 6), list[int](), list[Commit]()

    def open_later(progress: Progress) -> None:
        told.append(progress.step)
        if progress.step == 8:  # before the next checkpoint: there, the one in flight is waited for
            assert gate.reached.wait(60)
            assert [commit.count for commit in seen] == [1]
            gate.opened.set()

    run = new_run("run")
    worker(run, on_progress=open_later, on_commit=seen.append).work()
    assert told == list(range(1, 13))
    assert [commit.count for commit in seen] == [1, 2, 3, 4]
    assert all(commit.hashing > 0 and commit.writing > 0 for commit in seen)
    assert gate.most == 1


def test_a_failed_background_checkpoint_stops_the_run_without_loss(
    new_run: NewRun, whole: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = new_run("run"), list[int]()
    real = RunDirectory.append_record

    def full(self: RunDirectory, record: object) -> None:
        if self.recorded() == 1:
            raise StorageError("the disk is full")
        real(self, record)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_record", full)
        with pytest.raises(StorageError, match="the disk is full"):
            worker(run, on_progress=lambda p: told.append(p.step), keep=LAST).work()
    assert told[-1] <= 9
    assert (run.last_complete(), len(run.heads()), run.recorded()) == (3, 1, 1)
    assert worker(run).work() == whole.root()


def test_a_failing_step_lets_the_checkpoint_before_it_finish(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, seen, run = Gate(monkeypatch, 3), list[Commit](), new_run("run")

    def stop(progress: Progress) -> None:
        if progress.step == 4:
            threading.Timer(0.05, gate.opened.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker(run, on_progress=stop, on_commit=seen.append).work()
    assert [commit.count for commit in seen] == [1]
    assert run.last_complete() == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    with run.lock():
        pass


def test_simultaneous_step_and_checkpoint_errors_are_both_reported(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, run = Gate(monkeypatch, 3), new_run("run")

    def stop(progress: Progress) -> None:
        if progress.step == 4:
            gate.opened.set()
            raise StateError("first")

    def refuse(*_: object) -> None:
        raise StorageError("second")

    monkeypatch.setattr(RunDirectory, "append_record", refuse)
    with pytest.raises(StateError, match="first") as caught:
        worker(run, on_progress=stop).work()
    assert "second" in caught.value.__notes__[0]


CRASHES = """
import json, os, random, shutil, signal, sys, threading, time
from pathlib import Path
import torch
from tiebreak.engine.arithmetic import Arithmetic
from tiebreak.engine.run.interpreter import Interpreter
from tiebreak.engine.run.directory import Keep
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.train import Worker
from tiebreak.protocol.commitments.records import StepRecord, run_tree
from tiebreak.protocol.commitments.keys import PrivateKey

torch.set_num_threads(1)
template, folder, expected = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def make(path, keep):
    run = RunDirectory.open(path)
    machine = Interpreter(run.program, Arithmetic(device=torch.device("cpu")))
    return run, Worker(run, machine, key=PrivateKey.from_int(0x7124135), keep=Keep.parse(keep))

def dies_at(point):  # a process that is killed loses nothing that it has handed to the system
    left = [point]
    def counted(real):
        def call(*arguments, **options):
            for run in (lambda: None, lambda: real(*arguments, **options)):
                found = run()
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return found
        return call
    for name in ("fsync", "replace", "unlink", "truncate"):
        setattr(os, name, counted(getattr(os, name)))

def dies_after(seconds):
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

def killed(path, keep, how):
    child = os.fork()
    if not child:
        how()
        make(path, keep)[1].work()
        os._exit(0)
    return os.waitpid(child, 0)[1]

def check(path, keep, how):
    shutil.copytree(template, path)
    status = killed(path, keep, how)
    run, worker = make(path, keep)
    records, heads, last = run.records(), run.heads(), run.last_complete()
    assert last == (records[-1].step if records else 0), (last, len(records))
    assert len(records) - 1 <= len(heads) <= len(records)
    for head in heads:
        digests = [record.digest for record in records[: head.head.count]]
        assert run_tree(digests, run.job.steps, run.job.checkpoint_interval).root == head.head.run_root
    assert worker.work().hex() == expected
    files = sorted(p.name for p in (path / "checkpoints").iterdir())
    assert not [name for name in files if name.startswith(".")] and len(run.heads()) == 4
    assert run.kept() == ([0, 12] if keep == "last" else [0, 6, 12]), run.kept()
    shutil.rmtree(path)
    return status, last

found = [check(folder / "run", keep, lambda: dies_at(point))
         for keep in ("last", "every:2") for point in range(1, 72, 8 if keep == "last" else 23)]
rng = random.Random(5)
found += [check(folder / "run", "last", lambda: dies_after(rng.random() * 0.2)) for _ in range(2)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_to_the_same_root(
    new_run: NewRun, whole: RunDirectory, tmp_path: Path, cases: Callable[[int], None]
) -> None:
    run, expected = new_run("template"), whole.root().hex()
    found = json.loads(printed("-c", CRASHES, str(run.path), str(tmp_path), expected))
    assert sum(status != 0 for status, _ in found) > 8  # most were killed, at all stages
    assert {last for _, last in found} >= {0, 3, 6, 9}
    cases(len(found))


@pytest.mark.parametrize("keep", [EVERY_TWO, LAST])
def test_a_damaged_last_checkpoint_is_recomputed_from_an_earlier_one(
    new_run: NewRun, whole: RunDirectory, keep: Keep
) -> None:
    run = new_run("run")
    worker(run, keep=keep).work(9)
    assert run.kept() == ([0, 6, 9] if keep == EVERY_TWO else [0, 9])
    run.state_path(9).write_bytes(b"damaged")
    assert run.last_complete() == (6 if keep == EVERY_TWO else 0)
    assert worker(run, keep=keep).work() == whole.root()
    assert run.kept() == ([0, 6, 12] if keep == EVERY_TWO else [0, 12])
    assert [head.encode() for head in run.heads()] == [head.encode() for head in whole.heads()]


def test_resuming_with_another_keep_policy_drops_excess_checkpoints(new_run: NewRun, whole: RunDirectory) -> None:
    run = new_run("run")
    worker(run).work(9)
    for step in (12, 99):  # the next one's is written over
        (run.path / "checkpoints" / f".{step:012d}.safetensors.part").write_bytes(b"begun")
    assert worker(run, keep=LAST).work() == whole.root()
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == [
        "000000000000.safetensors",
        "000000000012.safetensors",
    ]


def test_dropped_checkpoints_are_recomputed_for_disputes_and_audits(new_run: NewRun, whole: RunDirectory) -> None:
    run = new_run("run")
    worker(run, keep=LAST).work()
    machine = Interpreter(run.program, Arithmetic(device=torch.device("cpu")))
    full, bare = Evidence(whole, machine), Evidence(run, machine)
    assert bare.run_tree(4).root == full.run_tree(4).root
    for step in (2, 5, 7, 9):
        assert bare.record(step) == full.record(step)
        assert bare.state_leaves(step).root == full.state_leaves(step).root == full.record(step).state_root
        assert bare.value_tree(step).root == full.value_tree(step).root
    assert bare.replayed_steps > full.replayed_steps
    assert compare(run, run.heads()[-1]).agrees
    audited = SegmentAuditor(run, machine, run.records()).audit([2])
    assert audited.fraud is None
    assert audited.checked[-1].checkpoint == 2  # on the way, dropped segments are replayed too
    with pytest.raises(ConfigurationError, match="below 4"):
        SegmentAuditor(run, machine, run.records()).audit([4])


def test_stray_state_files_are_not_taken_for_checkpoints(new_run: NewRun) -> None:
    run = new_run("run")
    worker(run).work(6)
    folder = run.path / "checkpoints"
    for name in ("000000000009", "000000000004", "000000000099", "3", "99999999999999999999", "x"):
        (folder / f"{name}.safetensors").write_bytes(b"")
    assert run.kept() == [0, 3, 6]
    assert [run.kept_before(step) for step in (0, 2, 3, 5, 6, 12)] == [0, 0, 3, 3, 6, 6]
    with pytest.raises(StateError, match="no record of step 9"):
        run.record_of(9)
    with pytest.raises(StateError, match="no record of step 4"):
        run.record_of(4)


def test_keep_policies_round_trip_through_text(cases: Callable[[], None]) -> None:
    for text, every in (("all", 1), ("last", 0), ("every:7", 7), ("every:1", 1)):
        assert Keep.parse(text) == Keep(every)
        assert Keep.parse(str(Keep(every))) == Keep(every)
        cases()
    for text in ("", "every", "every:0", "every:-1", "every:1.5", "some", "all ", "every:1e3", "every:" + "9" * 19):
        with pytest.raises(ConfigurationError, match="expected all, every:M or last"):
            Keep.parse(text)
        cases()
    with pytest.raises(ConfigurationError, match="m at least 1"):
        Keep(-1)


def test_checkpoint_cost_does_not_grow_with_the_run(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither all records are read nor the whole run tree hashed again."""
    run = new_run("run")
    worker(run).work(6)
    monkeypatch.setattr(RunDirectory, "records", lambda _: pytest.fail("all records were read"))
    read: list[int] = []
    real = RunDirectory.record_digests

    def watched(self: RunDirectory, count: int) -> list[Digest]:
        read.append(count)
        return list(real(self, count))

    monkeypatch.setattr(RunDirectory, "record_digests", watched)
    heads: list[SignedHead] = []
    worker(run, on_commit=lambda commit: heads.append(commit.head)).work()  # type: ignore[arg-type]
    assert read == [2, 4]  # once on resuming, once for the root at the end
    monkeypatch.undo()
    digests = [record.digest for record in run.records()]
    assert heads[-1].head.run_root == run_tree(digests, run.job.steps, run.job.checkpoint_interval).root


def test_tensors_on_disk_are_plain_safetensors(tmp_path: Path, cases: Callable[[], None]) -> None:
    noisy = torch.tensor([0x7FC00001, -1, 0x3F800000, -0x800000], dtype=torch.int32).view(torch.float32)
    tensors = {
        "b": torch.tensor([True, False, True]),
        "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
        "scalar": torch.tensor(7),
        "nan": noisy,
        "inf": torch.tensor([float("inf"), float("-inf")]),
        "wide": torch.arange(70_000, dtype=torch.int64).reshape(7, 100, 100)[:, ::2],
    }
    path = tmp_path / "x.safetensors"
    with Folder(tmp_path) as folder:
        write_tensors(folder, path.name, tensors)
    kinds = {torch.bool: DType.BOOL, torch.float32: DType.F32, torch.int64: DType.I64}
    spec = {name: (kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    with Folder(tmp_path) as folder:
        ours, theirs = read_tensors(folder, path.name, spec), load_file(path)
    for name, tensor in tensors.items():
        wanted = tensor_bytes(tensor).tobytes()
        assert tensor_bytes(theirs[name]).tobytes() == theirs[name].contiguous().numpy().tobytes() == wanted
        assert torch.equal(ours[name].nan_to_num(5.5), theirs[name].nan_to_num(5.5))
        cases()
    assert identities(ours) == identities(tensors)
    first = path.read_bytes()
    with Folder(tmp_path) as folder:
        write_tensors(folder, path.name, dict(reversed(tensors.items())))
    assert path.read_bytes() == first
    assert np.frombuffer(first[:8], dtype="<u8")[0] % 8 == 0
