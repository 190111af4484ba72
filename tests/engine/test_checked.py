"""Workers that check each other: whoever computes a wrong bit is named, and nobody else."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parts import slow_except
from tiebreak.engine.arithmetic.c.chains import CompiledChain
from tiebreak.engine.arithmetic.c.sums import TabledSum
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.distributed import joining, partition
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.check import CheckedInterpreter, WrongWorkerError
from tiebreak.engine.distributed.exchange import Exchange
from tiebreak.engine.distributed.tape import TapeRecorder
from tiebreak.engine.run.commit import make_record
from tiebreak.protocol.errors import ConfigurationError

from .together import together, train_alone

EVERY, STEPS = 2, 4


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)
    monkeypatch.setattr(joining, "JOINED", 0)  # all is sent as soon as it can be


STEP, CHECK, AGAIN = range(3)
"""When a machine computes: its own part, another's, and once more where there is a difference."""


@dataclass
class Fault:
    """A machine that gets bits wrong, in the last step that is checked, at some of these times."""

    worker: int
    times: tuple[int, ...]
    here: threading.local = field(default_factory=threading.local)

    def strike(self, result: Tensor) -> None:
        if self.here.worker == self.worker and self.here.time in self.times and result.numel():
            double = result.dtype == torch.float64
            result.view(-1).view(torch.int64 if double else torch.int32)[0] ^= 1 << (45 if double else 20)


FAULTS: dict[str, tuple[type, str, Callable[[Any], list[Tensor]]]] = {
    "a part of a shared sum": (TabledSum, "partial", lambda found: [found.sums]),
    "a sum of its own": (TabledSum, "run", lambda found: [found]),
    "other arithmetic": (CompiledChain, "run", lambda found: [x for x in found.values() if x.dtype == torch.float32]),
}
"""Methods whose results get wrong bits, and the tensors of such a result: the last one is struck."""


def inject(fault: Fault, where: str, patch: pytest.MonkeyPatch) -> None:
    kind, name, tensors = FAULTS[where]
    original = getattr(kind, name)

    def faulty(*given: Any) -> Any:
        found = original(*given)
        for tensor in tensors(found)[-1:]:
            fault.strike(tensor)
        return found

    patch.setattr(kind, name, faulty)


def train(tiny: Captured, workers: int, fault: Fault, patch: pytest.MonkeyPatch) -> list[object]:
    play, here = CheckedInterpreter._play, fault.here

    def playing(*given: Any, **more: Any) -> int:
        here.time = None if here.time is None else here.time + 1
        return play(*given, **more)

    def work(exchange: Exchange) -> object:
        machine = CheckedInterpreter(
            tiny.program, SharedArithmetic(TapeRecorder(exchange), permute=exchange.worker), EVERY
        )
        state, data, records = machine.to_device(tiny.state), machine.place_data(tiny.data), []
        here.worker = exchange.worker
        for step in range(1, STEPS + 1):
            here.time = STEP if step == 2 * EVERY else None
            try:
                result = machine.step(step, state, data)
            except WrongWorkerError as error:
                return str(error)
            state, whole = result.state, machine.whole(result.state)
            records.append(make_record(step, whole, result.loss_bits).digest if not exchange.worker else None)
        return records

    patch.setattr(CheckedInterpreter, "_play", playing)
    return together(workers, work)


@pytest.mark.parametrize("workers", slow_except([2, 8], 2))
def test_right_workers_are_never_called_wrong(tiny: Captured, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds up in another order, as on machines of several kinds."""
    expected, _ = train_alone(tiny, STEPS)
    assert train(tiny, workers, Fault(0, ()), monkeypatch)[0] == expected


SAID: list[tuple[int, int, list[int], str]] = [
    (2, 1, [STEP], "worker 1 of 2 computed wrong bits."),
    (2, 1, [STEP, CHECK, AGAIN], "worker 1 or worker 0 of 2 computes wrong bits, and each finds again what it"),
    (2, 0, [CHECK], "worker 0 of 2 computed wrong bits when it checked another one."),
    (3, 1, [STEP], "worker 1 of 3 computed wrong bits."),
    (3, 2, [STEP, CHECK, AGAIN], "worker 2 of 3 computed wrong bits."),
    (3, 0, [CHECK, AGAIN], "worker 0 of 3 computed wrong bits when it checked another one."),
]


PLACES = [("other arithmetic", *said) for said in SAID] + [
    (where, *SAID[n]) for where in ("a part of a shared sum", "a sum of its own") for n in (0, 2)
]


@pytest.mark.parametrize(
    ("where", "workers", "wrong", "times", "said"),
    slow_except(PLACES, *PLACES[:2], *PLACES[6::2], several=True),
)
def test_a_wrong_worker_is_named(
    tiny: Captured, where: str, workers: int, wrong: int, times: list[int], said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fault = Fault(wrong, tuple(times))
    inject(fault, where, monkeypatch)
    found = train(tiny, workers, fault, monkeypatch)
    assert len(set(map(str, found))) == 1, "all workers say the same"
    assert str(found[0]).startswith(f"step {2 * EVERY}: {said}")
    assert f"checkpoints after step {EVERY} may have wrong bits" in str(found[0])


def test_one_worker_has_nobody_to_check_it(tiny: Captured) -> None:
    def work(exchange: Exchange) -> None:
        with pytest.raises(ConfigurationError, match="expected several workers that check each other, got one"):
            CheckedInterpreter(tiny.program, SharedArithmetic(TapeRecorder(exchange)), EVERY)

    together(1, work)
