"""What the process of a queue computes: the same root on other settings, and on what a kill has left."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import pytest

from tests.engine.tiny import make_tiny_task
from tests.tiebreak.node.test_workers import connected, process
from tests.tiebreak.parties import flip
from tiebreak.api.machine import Machine
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.engine import system
from tiebreak.engine.run.cost import cost_of
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.engine.run.evidence import Evidence
from tiebreak.node import settings as party_settings
from tiebreak.node import worker_tasks
from tiebreak.node.tasks import Answer, Compute, Drop, Failed, Steps, Task, Try, WorkerSettings
from tiebreak.node.worker_tasks import MOVING, REPLAYS, WorkerTasks
from tiebreak.node.workers import NICENESS, TaskQueue, WorkerPool
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Concede, Phase
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.tags import Digest

pytestmark = pytest.mark.slow

CLIENT, TRAINER = PrivateKey.from_int(1), PrivateKey.from_int(2)
STEPS, INTERVAL = 10, 3
COUNT = -(-STEPS // INTERVAL)


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The tiny task, agreed and not trained."""
    folder = tmp_path_factory.mktemp("agreed") / "run"
    bundle = capture_bundle(make_tiny_task(STEPS, INTERVAL))
    return agree_on(bundle, folder, client=CLIENT, trainer=TRAINER, terms=Terms(), domain=OFF_CHAIN)


@pytest.fixture
def folder(agreed: RunDirectory, tmp_path: Path) -> Path:
    """A party's folder with the files of the job."""
    shutil.copytree(agreed.path, tmp_path / "jobs" / agreed.job.id.hex())
    return tmp_path


@pytest.fixture(scope="module")
def trained(agreed: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A trainer's folder after the whole job, segment by segment, and the root of the run."""
    folder, told = tmp_path_factory.mktemp("trained"), list[Steps]()
    shutil.copytree(agreed.path, folder / "jobs" / agreed.job.id.hex())
    own = bench(folder, told)
    root = [answer(own, train(agreed, count)).root for count in range(1, COUNT + 1)][-1]
    assert sum(len(steps.losses) for steps in told) == STEPS
    return folder, root


@pytest.fixture
def party(trained: tuple[Path, bytes], tmp_path: Path) -> tuple[WorkerTasks, bytes]:
    """The tasks of a party that has the whole run, and its root."""
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    return bench(tmp_path), trained[1]


def train(agreed: RunDirectory, count: int = COUNT) -> Compute:
    return Compute(work=e.Train(job_id=agreed.job.id, count=count), job=agreed.job)


def answer(bench: WorkerTasks, task: Task) -> Answer:
    found = bench.do(task)
    assert isinstance(found, Answer), found
    assert not found.problem
    return found


def bench(folder: Path, told: list[Steps] | None = None) -> WorkerTasks:
    alone = Machine(threads=1)
    made = WorkerSettings(folder=folder, domain=OFF_CHAIN, hub="http://127.0.0.1:1", machine=alone, secret=bytes(32))
    return WorkerTasks(made, (lambda _: None) if told is None else told.append)


def replay(agreed: RunDirectory, root: bytes, attempt: int, agreed_count: int = 0) -> Compute:
    head = SignedHead.sign(Head(job_id=agreed.job.id, count=COUNT, run_root=Digest(root)), OFF_CHAIN, TRAINER)
    work = e.Replay(job_id=agreed.job.id, head=head, attempt=attempt)
    return Compute(work=work, job=agreed.job, agreed=agreed_count)


def test_replays_reproduce_the_trained_root_under_all_settings(agreed: RunDirectory, party: Any) -> None:
    """The auditor's whole, and its second from where the first one agreed."""
    own, root = party
    for attempt, before in ((0, 0), (1, 2), (2, 0)):
        assert answer(own, replay(agreed, root, attempt, before)).root == root
    assert answer(own, Compute(work=e.Audit(job_id=agreed.job.id), job=agreed.job)).root == root
    orders = [own._interpreters[agreed.job.id, attempt].arithmetic.options.shuffled for attempt in range(3)]
    assert [order is not None for order in orders] == [False, True, True]


def test_a_replay_of_damaged_data_accuses_nobody(agreed: RunDirectory, party: Any, tmp_path: Path) -> None:
    """A replay of bad data comes to no result, and is tried again."""
    own, root = party
    flip(tmp_path / "jobs" / agreed.job.id.hex() / "data.safetensors")
    found = own.do(replay(agreed, root, 0))
    assert isinstance(found, Failed)
    assert "root" in found.reason


def test_a_replay_that_a_kill_left_half_made_is_made_anew(agreed: RunDirectory, party: Any, tmp_path: Path) -> None:
    own, root = party
    half = tmp_path / REPLAYS / f"{agreed.job.id.hex()}-1"
    shutil.copytree(agreed.path, half)
    (half / "job.bin").unlink()
    (half / "data.safetensors").unlink()
    assert answer(own, replay(agreed, root, 1)).root == root


def test_no_environment_variable_changes_what_a_party_computes(
    agreed: RunDirectory, folder: Path, trained: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every variable that a setting has, or once had, and those that the engine reads, in a process that works."""
    party_settings.write("trainer", folder)
    names = [field.name for field in fields(party_settings.Settings)]
    given = dict.fromkeys([*names, "native", "seed"], "1")
    given |= {"cheat": "rate", "device": "cpu", "json_log": "true", "uncompiled": "true"}
    for name, value in given.items():
        monkeypatch.setenv(f"TIEBREAK_{name.upper()}", value)
    found = party_settings.read("trainer", folder, os.environ)
    queue = TaskQueue(WorkerSettings(folder=folder, domain=OFF_CHAIN, hub=found.hub, machine=found.machine))
    answers = SimpleQueue[Answer]()
    queue.ask(train(agreed), answers.put)
    assert answers.get(timeout=60) == Answer(root=trained[1])
    queue.stop()


def test_a_replay_stops_within_a_step_once_its_game_is_over(
    agreed: RunDirectory, party: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a queue hears of it by its pipe; the next game has its move then."""
    (own, root), job = party, agreed.job
    head = Head(job_id=job.id, count=COUNT, run_root=Digest(root))

    def gather(number: int) -> Compute:
        game = Digest(bytes([number]) * 32)
        state = replace(rules.start(job, head, game, 1), phase=Phase.OPEN_STEPS)
        work = e.Gather(game_id=game, sequence=0, snapshot=Snapshot.of(state).id)
        return Compute(work=work, job=job, turn=Turn(state=state, line=(), defends=1))

    over, steps = gather(1), Evidence._steps
    computed: list[int] = []

    def counted(self: Evidence, *given: object) -> Iterator[object]:
        for done in steps(self, *given):  # type: ignore[arg-type]
            computed.append(done[0])
            own.dropped.add(over.work)
            with (tmp_path / MOVING).open("ab") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # training and replays stand still meanwhile
            yield done

    monkeypatch.setattr(Evidence, "_steps", counted)
    found = own.do(over)
    assert isinstance(found, Failed)
    assert "over" in found.reason
    assert len(computed) == 1
    assert answer(own, gather(2)).move is not None


def test_training_stops_within_a_step_once_its_job_is_over(agreed: RunDirectory, folder: Path) -> None:
    told, own, task = list[int](), bench(folder), train(agreed)

    def tell(steps: Steps) -> None:
        if not told:
            own.dropped.add(task.work)
        told.append(steps.first_step)

    own._tell = tell
    found = own.do(task)
    assert isinstance(found, Failed)
    assert "expected a job or a game that goes on" in found.reason
    assert len(told) == 1
    assert answer(own, task).root, "a block with the end of the job has vanished"
    assert len(told) > 1


def test_training_and_replays_pause_while_a_move_is_computed(
    agreed: RunDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stand still after the step under way, until the process that seeks a move is done, or dead."""
    own, lock, computed = bench(folder), fcntl.flock, list[str]()
    held: list[BinaryIO] = []

    def seek() -> None:
        held.append((folder / MOVING).open("ab"))
        lock(held[-1], fcntl.LOCK_SH)

    def meet(file: BinaryIO, kind: int) -> None:
        if kind == fcntl.LOCK_EX and held:
            with pytest.raises(BlockingIOError):
                lock(file, kind | fcntl.LOCK_NB)
            computed.append("met")
            held.pop().close()
        lock(file, kind)

    add = RunDirectory.add_metric
    monkeypatch.setattr(fcntl, "flock", meet)
    monkeypatch.setattr(RunDirectory, "add_metric", lambda *given: (computed.append("step"), add(*given))[1])
    seek()
    root = answer(own, train(agreed)).root
    seek()
    assert answer(own, replay(agreed, root, 0)).root == root
    assert computed == ["step", "met", *["step"] * (STEPS - 1)] * 2


def test_a_task_queue_drops_tasks_that_nobody_needs(
    agreed: RunDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits, and what is under way: that ends, is not tried again, and the next one has its turn."""
    ours, theirs = connected()
    queue, answered = TaskQueue(bench(folder)._settings), list[int]()

    def gather(number: int) -> Compute:
        work = e.Gather(game_id=Digest(bytes(32)), sequence=number, snapshot=Digest(bytes(32)))
        return Compute(work=work, job=agreed.job)

    monkeypatch.setattr(queue, "_start", lambda: process(ours))
    tasks = [gather(number) for number in range(4)]
    for number, task in enumerate(tasks):
        queue.ask(task, lambda _, number=number: answered.append(number))  # type: ignore[misc]
        if not number:
            assert theirs.wait() == task  # the others come while it is under way
    over = [tasks[0].work, tasks[2].work]
    assert sorted(work.sequence for work in queue.drop(over.__contains__)) == [0, 2]  # type: ignore[union-attr]
    assert queue.drop(over.__contains__) == []
    assert theirs.wait() == Drop(work=over[0])
    theirs.send(Failed(reason="it is over"))
    for number in (1, 3):
        assert theirs.wait() == tasks[number]
        theirs.send(Answer(move=Concede()))
    queue.ask(gather(9), lambda _: None)
    assert theirs.wait().work.sequence == 9
    assert answered == [1, 3]
    queue.stop()


def test_a_pool_works_for_several_jobs_at_once(agreed: RunDirectory, folder: Path) -> None:
    """Real processes: a job stays with one of them, and all come to the roots of one alone."""
    other = agree_on(capture_bundle(make_tiny_task(STEPS, INTERVAL)), folder / "other", client=CLIENT, trainer=TRAINER,
                     terms=Terms(reward=1), domain=OFF_CHAIN)  # fmt: skip
    shutil.copytree(other.path, folder / "jobs" / other.job.id.hex())
    jobs = (agreed.job, other.job)
    assert jobs[0].id != jobs[1].id
    tasks = [train(run, count) for count in range(1, COUNT + 1) for run in (agreed, other)]
    pool, found = WorkerPool(replace(bench(folder)._settings, processes=2)), SimpleQueue[tuple[Task, Answer]]()
    try:
        for task in tasks:
            pool.ask(task, lambda answer, task=task: found.put((task, answer)))  # type: ignore[misc]
        done = [found.get(timeout=120) for _ in tasks]
        processes = {queue._worker.pid for queue in pool._computing if queue._worker is not None}
        assert len(processes) == 2
        assert {os.getpriority(os.PRIO_PROCESS, process) for process in processes} == {min(19, os.nice(0) + NICENESS)}
        assert pool._of.keys() == {job.id for job in jobs}
        assert pool._of[jobs[0].id] is not pool._of[jobs[1].id]
        assert [queue.tasks for queue in pool._computing] == [0, 0]
    finally:
        pool.stop()
    roots = {(task.job.id, task.work.count): answer.root for task, answer in done}  # type: ignore[union-attr]
    for run in (agreed, other):
        shutil.copytree(run.path, folder / "alone" / "jobs" / run.job.id.hex())
        assert roots[run.job.id, COUNT] == answer(bench(folder / "alone"), train(run)).root


def test_a_trial_step_runs_only_if_its_estimated_cost_fits(
    agreed: RunDirectory, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that does not fit into its process's part of the memory, or into the time, is not computed at all."""
    own, task = bench(folder), Try(job=agreed.job)
    assert 0 < answer(own, task).seconds < 60
    monkeypatch.setattr(worker_tasks, "seconds_per_step", None)
    rate = worker_tasks.rate_of
    monkeypatch.setattr(worker_tasks, "rate_of", lambda *_: 1e-6)
    assert "expected a step in 600 s" in own.do(task).problem  # type: ignore[union-attr]
    monkeypatch.setattr(worker_tasks, "rate_of", rate)
    needed = cost_of(agreed.program).live_bytes
    monkeypatch.setattr(system, "memory_bytes", lambda: 2 * needed)
    assert "expected a step that fits into" in own.do(task).problem  # type: ignore[union-attr]
    monkeypatch.setattr(system, "memory_bytes", lambda: 1 << 40)
    assert "not callable" in own.do(task).problem  # type: ignore[union-attr]


def test_processes_share_the_cores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebreak.engine.system.usable_cores", lambda: 8)
    for processes, threads, each in ((1, None, None), (1, 3, 3), (2, None, 4), (2, 3, 3), (16, None, 1)):
        settings = replace(bench(folder)._settings, processes=processes, machine=Machine(threads=threads))
        assert WorkerTasks(settings, lambda _: None)._machine.threads == each
