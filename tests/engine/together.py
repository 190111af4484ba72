"""Several workers as threads of this process (no tests in here)."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from unittest import mock

from torch import Tensor

from tests.engine.lowering_bench import stepped
from tiebreak.engine.arithmetic import execute
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.exchange import Exchange
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.interpreter import State
from tiebreak.protocol.tags import Digest

T = TypeVar("T")


@dataclass
class Table:
    """Where the workers lay what they send each other."""

    workers: int
    turn: Any = field(default_factory=nullcontext)
    """What a worker holds while it computes: a lock, if they may not do so at once."""
    barrier: threading.Barrier = field(init=False)
    laid: list[Sequence[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.workers, timeout=60)
        self.laid = [()] * self.workers

    def meet(self) -> None:
        self.turn.__exit__(None, None, None)
        try:
            self.barrier.wait()
        finally:
            self.turn.__enter__()


@dataclass
class Seat:
    table: Table
    worker: int
    sent: int = 0
    """The bytes that it has sent to the others."""

    @property
    def workers(self) -> int:
        return self.table.workers

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        self.sent += sum(piece.nbytes for worker, piece in enumerate(pieces) if worker != self.worker)
        self.table.laid[self.worker] = pieces
        self.table.meet()
        for place, sent in zip(into, self.table.laid, strict=True):
            piece = sent[self.worker]
            assert (place.shape, place.dtype) == (piece.shape, piece.dtype)
            assert all(tensor.is_contiguous() for tensor in (place, piece))
            place.copy_(piece)
        self.table.meet()
        return lambda: None


def together(workers: int, work: Callable[[Exchange], T], turn: Any = nullcontext()) -> list[T]:  # noqa: B008
    """What each worker's `work` returns. Raises what the first of them raises.

    turn: a lock, if one worker at a time may compute.
    """
    table = Table(workers, turn)

    def run(worker: int) -> T:
        with turn:
            return work(Seat(table, worker))

    return at_once([partial(run, worker) for worker in range(workers)], table.barrier.abort)


def at_once(works: Sequence[Callable[[], T]], after_error: Callable[[], None] = lambda: None) -> list[T]:
    """What each returns, in a thread of its own. Raises what the first of them raises."""
    results: list[T | None] = [None] * len(works)
    errors: dict[int, BaseException] = {}

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            errors[number] = error
            after_error()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors.values(), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return results  # type: ignore[return-value]


def train_alone(captured: Captured, steps: int, *, check_finite: bool = True) -> tuple[list[Digest], State]:
    """Step records and the last state, of one machine on its own."""
    results = list(islice(stepped(captured, check_finite=check_finite), steps))
    records = [make_record(step, result.state, result.loss_bits).digest for step, result in enumerate(results, 1)]
    return records, results[-1].state


_choosing = threading.Lock()


def arithmetic_by(backend: type[TorchBackend], exchange: Exchange, permute: int | None = None) -> SharedArithmetic:
    """The arithmetic of a worker whose machine would choose this back-end."""
    with _choosing, mock.patch.object(execute, "choose", backend):
        return SharedArithmetic(exchange, permute=permute)


def train_together(
    captured: Captured, workers: int, steps: int, *, permute: int | None = None, begin: int = 0,
    state: State | None = None, chains: bool = True, check_finite: bool = True,
    backends: Sequence[type[TorchBackend]] = (), turn: Any = nullcontext(),  # noqa: B008
) -> tuple[list[Digest], State]:  # fmt: skip
    """Step records after `begin`, and the last state, as the first worker has them.

    backends: those of the workers, one after the other and over again, if not what this machine would choose. turn: a
    lock, if one worker at a time may compute.
    """

    def work(exchange: Exchange) -> tuple[list[Digest], State]:
        drawn = None if permute is None else permute + exchange.worker
        if backends:
            arithmetic = arithmetic_by(backends[exchange.worker % len(backends)], exchange, drawn)
        else:
            arithmetic = SharedArithmetic(exchange, permute=drawn)
        if not chains:
            arithmetic.chains = None
        machine = SharedInterpreter(captured.program, arithmetic)
        held, data = machine.to_device(captured.state if state is None else state), machine.place_data(captured.data)
        records, whole = [], held
        for step in range(begin + 1, begin + steps + 1):
            result = machine.step(step, held, data, check_finite=check_finite)
            held, whole = result.state, machine.whole(result.state)
            if not exchange.worker:
                records.append(make_record(step, whole, result.loss_bits).digest)
        return records, whole

    return together(workers, work, turn)[0]
