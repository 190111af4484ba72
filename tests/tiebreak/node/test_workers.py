"""Nothing that a hub, a stranger or another job does keeps a party from its moves."""

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from socket import socketpair
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocol.runs import CHALLENGER, DOMAIN, TRAINER, program
from tests.protocol.town import JOB, PACE, START
from tests.tiebreak.node.test_hub_client import answer, liar
from tests.tiebreak.test_channel import Evil, frame, framed
from tests.waiting import until
from tiebreak.api.machine.workers import Channel
from tiebreak.node import hub_connection, worker_tasks
from tiebreak.node import tasks as t
from tiebreak.node import workers as workers_module
from tiebreak.node.driver import Driver
from tiebreak.node.hub_client import HubClient
from tiebreak.node.journal import Journal
from tiebreak.node.parties import AcceptancePolicy, AuditorNode, JobFiles, TrainerNode
from tiebreak.node.worker_tasks import WorkerTasks
from tiebreak.node.workers import NICENESS, Listeners, TaskQueue, WorkerPool
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.game.moves import Concede, OpenChunk
from tiebreak.protocol.packing import Record
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import Board, JobStatus, PublicJob
from tiebreak.protocol.parties.posts import LibraryBody, PublishedFile
from tiebreak.protocol.parties.terms import Means, objections, turns
from tiebreak.protocol.tags import Digest

JOBS = [replace(JOB, nonce=number) for number in range(3)]
NOTHING = Digest(bytes(32))


def gather(number: int) -> t.Compute:
    return t.Compute(work=e.Gather(game_id=NOTHING, sequence=0, snapshot=NOTHING), job=JOBS[number])


def connected() -> tuple[Channel, Channel]:
    """A party's end of a connection, and that of its worker."""
    ours, theirs = socketpair()
    ours.setblocking(False)
    leader = Channel(ours, sends=t.ORDERS, takes=t.ANSWERS, limit=t.MAX_ANSWER_BYTES)
    return leader, Channel(theirs, sends=t.ANSWERS, takes=t.ORDERS)


def process(ours: Channel, note: Callable[[], object] = lambda: None) -> Any:
    """A worker process, but for the process. note: called when it is ended."""
    end = lambda: (note(), ours.shut(), -9)[2]  # noqa: E731
    return SimpleNamespace(channel=ours, kill=end, end=end)


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> tuple[SimpleQueue[Channel], list[TaskQueue]]:
    """The worker's end of each connection that a queue opens, and the queues whose processes were ended."""
    opened, ended = SimpleQueue[Channel](), list[TaskQueue]()

    def start(self: TaskQueue) -> Any:
        ours, there = connected()
        opened.put(there)
        return process(ours, partial(ended.append, self))

    monkeypatch.setattr(TaskQueue, "_start", start)
    monkeypatch.setattr(workers_module, "FIRST_PAUSE", 0.0)
    return opened, ended


def bench(folder: Path, **given: Any) -> t.WorkerSettings:
    return t.WorkerSettings(folder=folder, domain=DOMAIN, **{"hub": "http://127.0.0.1:9", **given})


def test_a_move_waits_for_no_other_work(tmp_path: Path, began: Any) -> None:
    """The hub answers nothing, three jobs train, a game about another job replays for hours: a move is sought at once.

    Of the three jobs, each has a process of its own, and files hold up none of them.
    """
    (opened, ended), held = began, list[Channel]()

    def next_task() -> t.Task:
        held.append(opened.get(timeout=20))
        found: t.Task = held[-1].wait()
        return found

    pool, moved, nothing = WorkerPool(bench(tmp_path, processes=3)), SimpleQueue[int](), lambda _: None
    waiting: list[t.Task] = [t.Publish(job=job, count=1, logs=1) for job in JOBS]
    pool.ask(waiting[0], nothing)
    assert next_task() == waiting[0]
    pool.ask(waiting[1], nothing)
    for job in JOBS:
        train = t.Compute(work=e.Train(job_id=job.id, count=1), job=job)
        pool.ask(train, nothing)
        assert next_task() == train
    for number in (0, 1):
        pool.ask(gather(number), lambda _, number=number: moved.put(number))  # type: ignore[misc]
        assert next_task() == gather(number)
    held[-1].send(t.Answer(move=Concede()))
    assert moved.get(timeout=20) == 1
    pool.ask(gather(1), nothing)
    assert held[-1].wait() == gather(1)
    mover = pool._movers[JOBS[0].id]
    assert [queue.settings.niceness for queue in pool._all] == [0, *[NICENESS] * 4, 0, 0]
    pool.move_only({JOBS[1].id, JOBS[2].id})
    assert set(ended) == {mover}
    assert pool._movers.keys() == {JOBS[1].id}
    pool.stop()
    assert len(set(ended)) == 6


def test_repeatedly_failing_tasks_do_not_starve_new_ones(tmp_path: Path, began: Any) -> None:
    """The oldest tasks fail for ever and are due again: a new one comes first."""
    queue, tasks = TaskQueue(bench(tmp_path)), [t.Publish(job=job, count=1, logs=1) for job in JOBS]
    for task in tasks[:2]:
        queue.ask(task, lambda _: None)
    there = began[0].get(timeout=20)
    assert there.wait() == tasks[0]
    queue.ask(tasks[2], lambda _: None)
    for task in (tasks[1], tasks[2], tasks[0]):
        there.send(t.Failed(reason="the hub is away"))
        assert there.wait() == task
    queue.stop()


def test_many_programs_of_one_client_do_not_delay_another_clients_trial(tmp_path: Path, monkeypatch: Any) -> None:
    began, ends = SimpleQueue[t.Task](), SimpleQueue[t.Answer]()
    monkeypatch.setattr(TaskQueue, "_try", lambda _, waiting: (began.put(waiting.task), ends.get())[1])
    other = replace(JOB, client=CHALLENGER.address)
    queue, tasks = TaskQueue(bench(tmp_path)), [t.Try(job=job) for job in (*JOBS, other)]
    for task in tasks:
        queue.ask(task, lambda _: None)
    for number in (0, 3, 1, 2):
        assert began.get(timeout=20) == tasks[number]
        ends.put(t.Answer())
    queue.stop()


def by_strangers(count: int) -> list[t.Try]:
    """Trials of programs, each of another client."""
    return [t.Try(job=replace(JOB, nonce=n, client=Address(n.to_bytes(20, "big")))) for n in range(1, count + 1)]


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_endless_programs_of_many_keys_do_not_starve_an_honest_stranger(tmp_path: Path, monkeypatch: Any) -> None:
    """A hundred programs that never end, each of a key of its own, and then one that takes five seconds."""
    clock, began, done = Clock(), list[tuple[t.Task, float]](), SimpleQueue[Any]()
    *hostile, honest = by_strangers(101)
    monkeypatch.setattr(workers_module, "time", clock)
    monkeypatch.setattr(workers_module, "STRANGERS", 1)  # no pauses: the order is what is tested

    def attempt(queue: TaskQueue, waiting: Any) -> t.Answer:
        if not began:
            ready.wait(20)
        began.append((waiting.task, queue._seconds(waiting)))
        clock.now += min(began[-1][1], 5 if waiting.task == honest else 1e9)
        return t.Answer(seconds=1.0) if waiting.task == honest else t.Answer(problem="it takes for ever")

    ready = Event()
    monkeypatch.setattr(TaskQueue, "_try", attempt)
    queue = TaskQueue(bench(tmp_path))
    for task in (*hostile, honest):
        queue.ask(task, lambda answer, task=task: done.put((task, answer.problem)), is_strangers=True)  # type: ignore[misc]
    ready.set()
    assert done.get(timeout=20) == (honest, "")
    assert [task for task, _ in began[:101]] == [*hostile, honest]
    assert sum(seconds for _, seconds in began[:100]) == 100 * 600 / 64, "16 minutes before it, and not 16 hours"
    assert {done.get(timeout=20) for _ in hostile} == {(task, "it takes for ever") for task in hostile}
    assert [seconds for task, seconds in began if task == hostile[0]] == [600 / 64, 600 / 8, 600], (
        "all the time, at last"
    )
    queue.stop()


@pytest.mark.parametrize("kind", [t.Try, t.Fetch])
def test_named_clients_and_seats_preempt_tasks_of_strangers(kind: type, tmp_path: Path, monkeypatch: Any) -> None:
    """A stranger's task under way is ended for theirs, and done again later; the others of strangers come after it."""
    clock, began, ends = Clock(), SimpleQueue[t.Task](), SimpleQueue[t.Answer | t.Failed]()
    tasks: list[t.Task] = [*by_strangers(3), t.Try(job=JOB)]
    if kind is t.Fetch:
        tasks = [t.Fetch(job=task.job, count=0, listings=()) for task in tasks]
    first, second, third, named = tasks
    monkeypatch.setattr(workers_module, "time", clock)
    monkeypatch.setattr(TaskQueue, "_try", lambda _, waiting: (began.put(waiting.task), ends.get())[1])
    queue, kills, done = TaskQueue(bench(tmp_path)), list[t.Task](), SimpleQueue[t.Task]()

    def kill() -> None:
        kills.append(first)
        clock.now += 7
        ends.put(t.Answer(problem="killed") if kind is t.Try else t.Failed(reason="killed"))

    queue._worker = SimpleNamespace(kill=kill, end=lambda: -9)  # type: ignore[assignment]
    for task in (first, second, third):
        queue.ask(task, lambda _, task=task: done.put(task), is_strangers=True)  # type: ignore[misc]
    assert began.get(timeout=20) == first
    queue.ask(named, lambda _: done.put(named))
    assert began.get(timeout=20) == named
    assert kills == [first]
    ends.put(t.Answer(seconds=1.0))
    assert done.get(timeout=20) == named, "it has the first answer; what was ended for it has none yet"
    if kind is t.Try:  # strangers have half of the time: what took seven seconds is followed by seven of rest
        with queue._changed:
            assert began.empty()
            assert {queue._due(waiting) - clock.now for waiting in queue._tasks} == {7}
            clock.now += 7
            queue._changed.notify_all()
    assert began.get(timeout=20) == first, "no try of it counts"
    for task in (second, third):
        ends.put(t.Answer(seconds=1.0))
        assert began.get(timeout=20) == task
    ends.put(t.Answer())
    assert [done.get(timeout=20) for _ in range(3)] == [first, second, third]
    queue.stop()


def test_named_clients_seated_jobs_and_signed_jobs_are_not_strangers() -> None:
    """Whoever else offers a job is a stranger: a key costs nothing."""
    known: dict[str, Any] = {"job_files": SimpleNamespace(seconds={}), "board": Board(), "domain": DOMAIN, "pace": PACE}
    taken = trainer(public(replace(JOB, nonce=1)))
    assert [taken.names(replace(JOB, nonce=nonce)) for nonce in (1, 2)] == [True, False]
    taken.policy = AcceptancePolicy(clients=(JOB.client,))
    assert taken.names(replace(JOB, nonce=2))
    for clients, is_named in (((), False), ((JOB.client,), True), ((TRAINER.address,), False)):
        made = AuditorNode(clients=clients, key=CHALLENGER, **known)
        assert made.names(JOB) is is_named
    seated = replace(JOB, seats=2, seat_fee=1, seat_bond=1)
    made.board.jobs[seated.id] = public(seated)
    assert not made.names(seated)
    for owner, sits in ((TRAINER.address, False), (CHALLENGER.address, True)):
        made.board.seat_owner = lambda _job, seat, owner=owner: owner if seat else None  # type: ignore[method-assign,misc]
        assert made.names(seated) is sits


FATES = {
    "away": None,
    "silent": [600.0],
    "full": [answer(b'{"error": "full"}', "507 Full")],
    "unavailable": [answer(b"", "503 Later")],
}


@pytest.mark.parametrize("fate", FATES)
def test_worker_tasks_give_up_at_a_deadline_if_the_hub_fails(
    fate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task ends with a failure, after which others have their turn; posts behind one that is not taken are sent."""
    monkeypatch.setattr(hub_connection, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(worker_tasks, "SECONDS", 0.0)
    monkeypatch.setattr(worker_tasks, "HubClient", partial(HubClient, seconds=0.1))
    for name in ("open_offer", "parts", "secret_of"):
        monkeypatch.setattr(worker_tasks, name, lambda *_: [])
    file = (tmp_path / "file").open("wb+", buffering=0)
    monkeypatch.setattr(worker_tasks, "publish", lambda _run, _listed, blobs, *_: blobs.put(file, 0))
    listing = LibraryBody(count=0, logs=0, files=(PublishedFile(name=b"offer.bin", size=9, root=NOTHING),))
    script = FATES[fate]
    with liar(lambda _: script or []) as url:
        own = WorkerTasks(bench(tmp_path, hub=url if script else "http://127.0.0.1:9"), lambda _: None)
        for task in (t.Fetch(job=JOB, count=0, listings=(listing,)), t.Publish(job=JOB, count=0, logs=0)):
            found = own.do(task)
            assert isinstance(found, t.Failed)
            assert "expected an answer of the hub" in found.reason
    file.close()


def trainer(*taken: PublicJob, processes: int = 3) -> TrainerNode:
    board = Board()
    board.jobs |= {job.id: job for job in taken}
    job_files: Any = SimpleNamespace(program=lambda _: program(), seconds={}, starts={})
    known: dict[str, Any] = {"job_files": job_files, "board": board, "domain": DOMAIN, "pace": PACE, "key": TRAINER}
    return TrainerNode(policy=AcceptancePolicy(), processes=processes, **known)


def public(job: Any, status: JobStatus = JobStatus.ACTIVE, heads: int = 0) -> PublicJob:
    return PublicJob(job=job, status=status, head_count=heads, last_progress=START, accepted=START)


def test_trainer_signs_only_clocks_that_fit_all_its_accepted_jobs() -> None:
    """One more job at the edge, and either this one or one that was taken before has too little time."""
    step, segment = PACE.step_seconds, JOB.checkpoint_interval * PACE.step_seconds
    bare = replace(JOB, replay_time=0)
    least = PACE.sending(turns(bare, program()))
    alone, both = (replace(bare, clock=least + 3 * (games * segment + step)) for games in (1, 2))
    assert trainer().sign_job(alone)
    assert not trainer().sign_job(replace(alone, clock=alone.clock - 1))
    beside = public(replace(both, nonce=1))
    assert trainer(beside).sign_job(both)
    assert not trainer(beside).sign_job(replace(both, clock=both.clock - 1))
    assert not trainer(public(replace(alone, nonce=1))).sign_job(both)
    assert not trainer(public(replace(alone, nonce=1))).accepts(public(both, JobStatus.OFFERED))
    assert trainer(public(replace(alone, nonce=1), JobStatus.SETTLED)).sign_job(alone)
    assert objections(alone, program(), PACE) == ()
    slow = trainer(beside := public(replace(both, nonce=1, clock=10 * both.clock)))
    slow.job_files.seconds |= {beside.id: step + 0.3, NOTHING: 1e9}  # what it tried, of a job that is not active too
    assert not slow.sign_job(both)
    assert slow.sign_job(replace(both, clock=both.clock + 3))


def test_trainer_refuses_windows_shorter_than_its_own_trial_took() -> None:
    """A head due in 60 s, where the process that tried a step took 153 s to its end, lost an honest trainer's stake."""
    hurried, alarms = replace(JOB, challenge_window=60), list[str]()
    made = trainer()
    made.alarm = alarms.append  # type: ignore[method-assign, assignment]
    made.job_files.starts[hurried.id] = 5.0
    assert made.sign_job(hurried)
    made.job_files.starts[hurried.id] = 153.0
    assert not made.sign_job(hurried)
    needed = 153 + JOB.checkpoint_interval * PACE.step_seconds + PACE.sending(1)
    assert alarms == [
        f"job {hurried.id.hex()[:8]}: not signed: expected a window of at least {needed} seconds for a head, got 60: "
        f"here a start takes 153 s and a step {PACE.step_seconds} s"
    ]
    roomy = replace(JOB, challenge_window=int(needed))
    made.job_files.starts[roomy.id] = 153.0
    assert made.sign_job(roomy)


def test_a_trainer_wants_no_job_whose_stake_is_over_a_limit() -> None:
    stake = JOB.trainer_stake
    for limit in ("most_stake", "most_exposed"):
        for most, is_wanted in ((stake, True), (stake - 1, False)):
            made = trainer()
            made.means = Means(**{limit: most})
            assert made.wants(JOB) is is_wanted


@pytest.mark.parametrize("fate", ["in time", "too long", "too much"])
def test_a_program_trial_runs_once_in_a_disposable_process(fate: str, tmp_path: Path, began: Any) -> None:
    """It is ended when it takes too long, and not tried again if the system ends it, for want of memory."""
    pool, found = WorkerPool(bench(tmp_path, trial_seconds=0 if fate == "too long" else 20)), SimpleQueue[t.Answer]()
    pool.ask(t.Try(job=JOB), found.put)
    there = began[0].get(timeout=20)
    if fate != "too long":
        assert there.wait() == t.Try(job=JOB)
    if fate == "in time":
        there.send(t.Answer(seconds=0.25))
        tried = found.get(timeout=20)
        assert tried == t.Answer(seconds=0.25, took=tried.took)
        assert 0 < tried.took < 20
    else:
        if fate == "too much":
            there.close()
        assert "a step in" in found.get(timeout=20).problem
    assert began[1] == [pool._trying]
    pool.stop()


def driving(machine: Any, folder: Path, asked: list[tuple[t.Task, Any]], told: list[e.Event]) -> Driver:
    machine.job_files = JobFiles(folder)
    ask = lambda *given, **_: asked.append(given)  # noqa: E731
    pool = SimpleNamespace(settings=bench(folder), listeners=Listeners(), ask=ask)
    notes = SimpleNamespace(info=lambda *_, **__: None, warn=lambda *_, **__: None)
    board_source = SimpleNamespace(now=lambda: START, domain=DOMAIN)
    given: dict[str, Any] = {"board_source": board_source, "hub_client": SimpleNamespace()}
    made = Driver(machine, journal=Journal(folder, {}), job_files=machine.job_files, workers=pool, notes=notes, **given)  # type: ignore[arg-type]
    made.tell = told.append  # type: ignore[method-assign]
    return made


def test_no_job_is_signed_or_followed_before_a_step_was_tried(tmp_path: Path, monkeypatch: Any) -> None:
    """What it took counts in the terms and is remembered; what failed stays out, and its offer is declined."""
    asked, told = list[tuple[t.Task, Any]](), list[e.Event]()
    monkeypatch.setattr(JobFiles, "has", lambda self, _: bool(asked))
    jobs = [replace(job, trainer=TRAINER.address) for job in JOBS]

    def offer(made: Driver, job: Any) -> e.JobOffered:
        found = e.JobOffered(at=START, job=job)
        made.jobs[job.id] = job
        made._listings[job.id] = {(job.client, 0): LibraryBody(count=0, logs=0, files=())}
        made._offered(found)
        return found

    made = driving(trainer(), tmp_path, asked, told)
    first = offer(made, jobs[0])
    assert [type(task) for task, _ in asked] == [t.Fetch]
    asked.pop()[1](t.Answer())
    asked.append((t.Try(job=jobs[2]), None))  # from here on the files are there
    made.inbox.get()()
    second = offer(made, jobs[1])
    assert not [event for event in told if isinstance(event, e.JobOffered)]
    assert [task for task, _ in asked[1:]] == [t.Try(job=jobs[0]), t.Try(job=jobs[1])]
    asked[1][1](t.Answer(seconds=0.5, took=153.5))
    asked[2][1](t.Answer(problem="it takes 125 hours"))
    made.inbox.get()()
    made.inbox.get()()
    assert [event for event in told if isinstance(event, e.JobOffered)] == [first, second]
    assert made.job_files.seconds == {jobs[0].id: 0.5}
    assert made.job_files.starts == {jobs[0].id: 153.0}
    made.job_files._programs |= {job.id: program() for job in jobs}
    assert [made.machine.agrees(job) for job in jobs[:2]] == [True, False]  # type: ignore[attr-defined]
    offer(made, jobs[1])
    made.journal.close()
    made = driving(trainer(), tmp_path, asked, told)
    made._prepare(jobs[0])
    assert len(asked) == 3
    assert made.job_files.seconds == {jobs[0].id: 0.5}
    assert made.job_files.starts == {jobs[0].id: 153.0}
    made.journal.close()


def test_a_job_that_is_only_offered_holds_up_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offers are free of charge: an auditor tries one of them at a time, and accepted jobs before."""
    asked, told = list[tuple[t.Task, Any]](), list[e.Event]()
    monkeypatch.setattr(JobFiles, "has", lambda *_: True)
    statuses = (JobStatus.OFFERED, JobStatus.OFFERED, JobStatus.ACTIVE)
    board = Board()
    board.jobs |= {job.id: public(job, status) for job, status in zip(JOBS, statuses, strict=True)}
    auditor = AuditorNode(job_files=None, board=board, domain=DOMAIN, pace=PACE, key=CHALLENGER)  # type: ignore[arg-type]
    made = driving(auditor, tmp_path, asked, told)
    for number, expected in enumerate((2, 0, 1)):
        made._fetch_inputs()
        made._fetch_inputs()
        assert [task for task, _ in asked[number:]] == [t.Try(job=JOBS[expected])]
        asked[number][1](t.Answer(seconds=1.0))
        made.inbox.get()()
    made.journal.close()


def hostile(evil: Path) -> dict[str, tuple[t.Task, bytes]]:
    """What no honest worker says, and the task amid which it is said."""
    train = t.Compute(work=e.Train(job_id=JOB.id, count=1), job=JOB)
    audit, publish = t.Compute(work=e.Audit(job_id=JOB.id), job=JOB), t.Publish(job=JOB, count=1, logs=1)
    steps = t.Steps(job_id=JOB.id, first_step=1, losses=(1, 2), seconds=1.0, processor=0.5, memory=1)
    root, half, listing = bytes(32), struct.pack(">d", 0.5), LibraryBody(count=2, logs=0, files=())

    def said(task: t.Task, *records: Record) -> tuple[t.Task, bytes]:
        return task, b"".join(frame(record, t.ANSWERS) for record in records)

    return {
        "a pickle": (train, framed(bytes(ForkingPickler.dumps(Evil(evil))))),
        "a pickle as it was sent once": (train, bytes(ForkingPickler.dumps(Evil(evil)))),
        "4 GiB": (train, b"\xff" * 100),
        "half a record": (train, frame(t.Answer(root=root), t.ANSWERS)[:-1]),
        "an order": (train, frame(train, t.ORDERS)),
        "a NaN": (t.Try(job=JOB), frame(t.Answer(seconds=0.5), t.ANSWERS).replace(half, b"\xff" * 8)),
        "a longer form": (train, framed(b"\x92\xcc\x00" + frame(t.Answer(root=root), t.ANSWERS)[6:])),
        "no root": said(train, t.Answer()),
        "half a root": said(audit, t.Answer(root=root[:16])),
        "a root for a move": said(gather(0), t.Answer(root=root)),
        "no list of files": said(publish, t.Answer()),
        "a list of other files": said(publish, t.Answer(body=listing)),
        "steps of another job": said(train, replace(steps, job_id=JOBS[1].id)),
        "steps of a replay": said(audit, steps),
        "steps twice": said(train, steps, steps),
        "a sample that is none": said(train, replace(steps, sample=b"{}")),
        "no steps": said(train, replace(steps, losses=())),
        "steps after the last": said(train, replace(steps, first_step=JOB.steps)),
        "the secret of another job": said(train, t.SecretRequest(job_id=JOBS[1].id, data=b"seal")),
    }  # fmt: skip


def test_a_malformed_worker_message_costs_only_its_own_task_a_retry(
    tmp_path: Path, began: Any, cases: Callable[[], None]
) -> None:
    """The process is ended, nothing of it is unpickled or believed, no secret is opened, and the next may answer."""
    workers, ended = began
    opened, told, trouble, answers = list[Digest](), list[t.Steps](), SimpleQueue[str](), SimpleQueue[t.Answer]()

    def unseal(_data: bytes, job_id: Digest) -> bytes:
        opened.append(job_id)
        return bytes(32)

    listeners = Listeners(told.append, lambda text, _: trouble.put(text))
    queue = TaskQueue(bench(tmp_path, trial_seconds=30), unseal, listeners)
    for what, (task, said) in hostile(tmp_path / "evil").items():
        queue.ask(task, answers.put)
        first = workers.get(timeout=20)
        assert first.wait() == task
        first._end.sendall(said)
        first.close()
        if isinstance(task, t.Try):
            assert answers.get(timeout=20).problem.startswith("expected a step in 30 s"), what
            cases()
            continue
        assert "tried again" in trouble.get(timeout=20), what
        second = workers.get(timeout=20)
        assert second.wait() == task
        assert queue.tasks == 1, what
        second.send(t.Answer(problem="done"))
        assert answers.get(timeout=20) == t.Answer(problem="done"), what
        queue._end_process()
        cases()
    assert opened == []
    assert [steps.first_step for steps in told] == [1], "of steps told twice, the first time counts"
    assert len(ended) >= len(hostile(tmp_path))
    assert not (tmp_path / "evil").exists(), "nothing was unpickled"
    queue.stop()


def test_a_worker_that_stops_reading_blocks_no_other_thread(tmp_path: Path, began: Any) -> None:
    """The party drops work, asks for more and stops while a large task is stuck."""
    queue, moves = TaskQueue(bench(tmp_path)), (OpenChunk(chunk=bytes(512)),) * 2000
    large = t.Compute(work=e.Gather(game_id=NOTHING, sequence=0, snapshot=NOTHING, said=moves), job=JOB)
    queue.ask(large, lambda _: None)
    there = began[0].get(timeout=20)
    done = SimpleQueue[object]()

    def go_on() -> None:
        until(lambda: queue._worker is not None and queue._worker.channel.owes)
        done.put(queue.drop(lambda _: True))
        queue.ask(gather(1), lambda _: None)
        done.put(queue.tasks)
        queue.stop()
        done.put("stopped")

    Thread(target=go_on, daemon=True).start()
    assert [done.get(timeout=60) for _ in range(3)] == [[large.work], 2, "stopped"]
    there.close()
