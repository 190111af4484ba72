"""What a worker process says is a stranger's: whatever it is, it costs no more than the worker's own task."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from socket import socket, socketpair
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebreak.api.auditing import replayers
from tiebreak.api.auditing.replayers import ANSWERS, LOST, ORDERS, AuditTask, Processes, TaskOutcome
from tiebreak.api.machine import Machine, workers
from tiebreak.api.machine.workers import Channel, worker_name
from tiebreak.engine.run.logs import FindingKind, LogFinding, LogReport
from tiebreak.protocol.errors import CannotCheck, EncodingError
from tiebreak.protocol.packing import AnyOf, Real, Record, Text, pack
from tiebreak.protocol.tags import Digest

TASK = AuditTask(number=3, segments=(4, 6), steps=9)
RECORD = bytes(76)
FINDING = LogFinding(kind=FindingKind.MISSING, step=7, value=1, element=2, detail="far")
OUTCOME = TaskOutcome(
    task=TASK, worker="worker 1", checked=((4, RECORD), (5, RECORD), (6, RECORD)), starts=(12,), refused=(15,), steps=9,
    log=LogReport(steps=9, missing=1, findings=[FINDING]),
)  # fmt: skip
MACHINE = Machine(threads=1, permute=3)
ASSIGNMENT = replayers.Assignment.of(Path("/run"), Digest(bytes(32)), 7, Digest(bytes(32)), MACHINE)
ORDER = replayers.AuditOrder(assignment=ASSIGNMENT, task=TASK)
SAID: list[Record] = [
    OUTCOME, *(TaskOutcome(task=TASK, worker="worker 1", fault=fault, reason="withheld") for fault in (1, LOST)),
]  # fmt: skip


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def frame(record: Record, types: tuple[type[Record], ...] = ANSWERS) -> bytes:
    return framed(pack(AnyOf(types).pack(record)))


class Evil:
    """An object that unpickling would make by creating a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def hostile(evil: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """What no worker says, by what is wrong with it. Each is followed by the end of the connection."""
    outcome = replace(OUTCOME, worker=name)
    whole = frame(outcome)
    yield "nothing", b""
    yield "half a length", whole[:3]
    yield "a length alone", whole[:4]
    yield "half a record", whole[:-1]
    yield "4 GiB", b"\xff" * 64
    yield "an empty record", framed(b"")
    yield "a pickle", framed(bytes(ForkingPickler.dumps(Evil(evil))))
    yield "a pickle by its own length", bytes(ForkingPickler.dumps(Evil(evil)))
    yield "a longer form", framed(b"\x92\xcc\x00" + pack(AnyOf(ANSWERS).pack(outcome))[2:])
    yield "a type that is none", framed(pack((9, ())))
    yield "an order", frame(ORDER, ORDERS)
    yield "deep arrays", framed(b"\x91" * 60_000 + b"\x90")
    yield "a map", framed(b"\x80")
    yield "another task", frame(replace(outcome, task=replace(TASK, number=4)))
    yield "another worker", frame(replace(outcome, worker="worker 2"))
    number, (task, worker, checked, *more) = AnyOf(ANSWERS).pack(outcome)  # type: ignore[misc, str-unpack]
    yield "a segment left out", framed(pack((number, (task, worker, checked[1:], *more))))  # type: ignore[index]
    yield "two answers", whole + whole


@given(st.binary(max_size=200), st.sampled_from(SAID), st.data())
def test_no_bytes_raise_anything_but_an_encoding_error(noise: bytes, record: Record, data: st.DataObject) -> None:
    """Noise, noise in a frame, and a record with some bytes changed."""
    whole = bytearray(frame(record))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for said in (noise, framed(noise), bytes(whole)):
        ours, theirs = socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.sendall(said)
            try:
                came = Channel(ours, sends=ORDERS, takes=ANSWERS, limit=1 << 20).receive()
            except EncodingError:
                continue
            except EOFError:
                assert not said
                continue
            assert all(type(one) in ANSWERS for one in came)


def test_record_fields_are_converted_and_validated() -> None:
    assert (ASSIGNMENT.path, ASSIGNMENT.machine) == (Path("/run"), MACHINE)
    found = TaskOutcome(task=TASK, worker="worker 1", fault=1, reason="withheld").problem
    assert isinstance(found, CannotCheck)
    assert str(found) == "withheld"
    line = Text().pack("two\nlines \x1b[31m of" + "x" * 5000)
    assert line == ("two lines  [31m of" + "x" * 5000)[:4096].encode()
    for bad in (b"a\nb", b"\xff", b"x" * 4097, "x"):
        with pytest.raises(EncodingError):
            Text().unpack("text", bad)
    for number in (-0.0, -1.0, float("nan"), float("inf"), 2.0**54):
        with pytest.raises(EncodingError, match="expected a number between 0 and 2\\^53"):
            Real().check("number", number)


def sends(channel: Channel, record: Record) -> bool:
    try:
        channel.send(record)
    except TimeoutError:
        return False
    return True


def test_sending_to_a_worker_that_reads_nothing_does_not_block() -> None:
    """What waits for it is bounded, and goes on when it reads."""
    ours, theirs = socketpair()
    ours.setblocking(False)
    channel, other = (
        Channel(ours, sends=ORDERS, takes=ANSWERS),
        Channel(theirs, sends=ANSWERS, takes=ORDERS),
    )
    long = replace(ORDER, task=replace(TASK, segments=tuple(range(1 << 18))))
    sent = next(number for number in range(100) if not sends(channel, long))
    assert channel.owes
    assert sent < 20, "what waits is bounded"
    came = SimpleQueue[Any]()
    Thread(target=lambda: [came.put(other.wait()) for _ in range(sent)], daemon=True).start()
    while channel.owes:  # which goes on to be sent while an answer is waited for
        with pytest.raises(TimeoutError):
            channel.wait(time.monotonic() + 0.1)
    assert [came.get(timeout=20) for _ in range(sent)] == [long] * sent
    channel.close()
    other.close()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> "SimpleQueue[tuple[socket, str]]":
    """The workers' ends of the processes of an audit, which do nothing, and the workers' names."""
    ends: SimpleQueue[tuple[socket, str]] = SimpleQueue()

    def start(end: socket, module: str) -> Any:
        assert module == replayers.__name__
        process = workers._Spawned(["sleep", "600"])
        ends.put((end.dup(), worker_name(process.pid)))
        return process

    monkeypatch.setattr(replayers, "spawn", start)
    return ends


def test_a_hostile_audit_worker_loses_only_its_own_task(
    fakes: "SimpleQueue[tuple[socket, str]]", tmp_path: Path, cases: Callable[[], None]
) -> None:
    evil = tmp_path / "evil"
    for what in [what for what, _ in hostile(evil, "")]:
        pool = Processes(ASSIGNMENT, 1)
        future = pool.submit(TASK)
        end, name = fakes.get(timeout=20)
        assert end.recv(1 << 16), "the order: a worker that is gone before it comes is lost, whatever it said"
        end.sendall(dict(hostile(evil, name))[what])
        end.close()
        outcome = future.result(timeout=20)
        assert (outcome.task, outcome.worker, outcome.is_lost) == (TASK, name, what != "two answers"), what
        if what == "two answers":
            again = pool.submit(replace(TASK, number=4))
            assert again.result(timeout=20).is_lost
        assert not pool._processes
        pool.close()
        cases()
    assert not evil.exists(), "nothing was unpickled"


def test_a_worker_that_stops_mid_record_blocks_no_other(fakes: "SimpleQueue[tuple[socket, str]]") -> None:
    pool, other = Processes(ASSIGNMENT, 2), replace(TASK, number=4)
    stuck = pool.submit(TASK)
    silent, name = fakes.get(timeout=20)
    silent.sendall(frame(replace(OUTCOME, worker=name))[:-1])
    done = pool.submit(other)
    honest_one, name = fakes.get(timeout=20)
    honest_one.sendall(frame(said := replace(OUTCOME, task=other, worker=name)))
    assert done.result(timeout=20) == said
    assert not stuck.done()
    pool.close()
    assert stuck.result(timeout=20).is_lost
    for end in (silent, honest_one):
        end.close()
