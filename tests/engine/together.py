"""Several workers as threads of this process (no tests in here)."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

from torch import Tensor

from tests.engine.lowering_bench import stepped
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
    barrier: threading.Barrier = field(init=False)
    laid: list[Sequence[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.workers, timeout=60)
        self.laid = [()] * self.workers


@dataclass
class Seat:
    table: Table
    worker: int

    @property
    def workers(self) -> int:
        return self.table.workers

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        self.table.laid[self.worker] = pieces
        self.table.barrier.wait()
        for place, sent in zip(into, self.table.laid, strict=True):
            piece = sent[self.worker]
            assert (place.shape, place.dtype) == (piece.shape, piece.dtype)
            assert all(tensor.is_contiguous() for tensor in (place, piece))
            place.copy_(piece)
        self.table.barrier.wait()
        return lambda: None


def together(workers: int, work: Callable[[Exchange], T]) -> list[T]:
    """What each worker's `work` returns. Raises what the first of them raises."""
    table = Table(workers)
    return at_once([partial(work, Seat(table, worker)) for worker in range(workers)], table.barrier.abort)


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


def train_together(
    captured: Captured, workers: int, steps: int, *, permute: int | None = None, begin: int = 0,
    state: State | None = None, chains: bool = True, check_finite: bool = True,
) -> tuple[list[Digest], State]:  # fmt: skip
    """Step records after `begin`, and the last state, as the first worker has them."""

    def work(exchange: Exchange) -> tuple[list[Digest], State]:
        arithmetic = SharedArithmetic(exchange, permute=None if permute is None else permute + exchange.worker)
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

    return together(workers, work)[0]
