"""Workers whose back-ends differ make the run of one: torch alone beside the kernels in C, in both orders.

With Triton's kernels as the third, in its interpreter: `tests.engine.interpreted.workers`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task
from tests.parts import slow_except
from tiebreak import Adam
from tiebreak.engine.arithmetic.c import sums
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.arithmetic.plan.sums import norms
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.distributed import partition
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.exchange import Exchange
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import Opcode

from . import mixed_workers
from .mixed_workers import STEPS, agree, perceptron
from .test_distributed import captured_attention
from .together import arithmetic_by, together, train_alone, train_together

needs_kernel = pytest.mark.skipif(sums.build().library is None, reason="needs a C compiler")
PAIRS = [*permutations((TorchBackend, CBackend))]
ids = {"ids": lambda value: value.name if isinstance(value, type) else None}


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small values are held in shards, too: by default those of small models are whole on every worker."""
    monkeypatch.setattr(partition, "LEAST", 1)


# ---- every family of instruction ----


@needs_kernel
@pytest.mark.parametrize(
    ("first", "second", "workers"),
    slow_except(
        [(*pair, n) for pair in PAIRS for n in (2, 3)], nightly=[(*PAIRS[0], 2), (*PAIRS[1], 3)], several=True
    ), **ids,
)  # fmt: skip
def test_workers_with_two_back_ends_agree_on_every_kind_of_sum(
    first: type[TorchBackend], second: type[TorchBackend], workers: int, cases: CaseCounter
) -> None:
    cases(agree([first, second], workers))


@needs_kernel
def test_all_back_ends_give_partial_sums_of_the_same_form(cases: CaseCounter) -> None:
    """Of each element one sum; and the same rows and columns, whichever operand a back-end would rather have first."""
    (alone,) = together(1, lambda exchange: exchange)
    for name, given in mixed_workers.cases():
        if " of " in name:  # no sum in FP64
            continue
        (i,) = (i for i in given.program.body if i.opcode == Opcode.REDUCE)
        operands, found = [given.state[name] for name in "ab"[: len(i.operands)]], []
        for backend in (TorchBackend, CBackend):
            part = arithmetic_by(backend, alone).backend.partial(i)(operands)
            assert (sum(map(torch.numel, part.sizes)) if len(part.sizes) == 2 else 0) == norms(i), name
            sizes = [size.sqrt() for size in part.sizes] if norms(i) else [part.in_order(*part.sizes)]
            bound = part.errors(*sizes, 0, i.numel) if norms(i) else sizes[0]
            found.append((part.in_order(part.sums) / bound, bound, *(size.reshape(-1) for size in sizes)))
        for one, other in zip(*found, strict=True):
            assert torch.allclose(one, other, rtol=2.0**-40, atol=2.0**-40), name
        cases(1)


# ---- whole models ----


def convolutions() -> Captured:
    torch.manual_seed(5)
    layers = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=2), nn.Flatten()
    data = {"x": torch.randn(24, 2, 7, 7), "y": torch.randint(0, 5, (24,))}

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    model = nn.Sequential(*layers, nn.Linear(54, 5))
    return capture_task(make_task(model, data, 8, loss=loss, optimizer=Adam(lr=1e-2), steps=STEPS))


MODELS = {"perceptron": perceptron, "convolutions": convolutions, "attention": captured_attention}


@cache
def model(name: str) -> tuple[Captured, list[Any]]:
    """A model, and the records of one worker."""
    captured = MODELS[name]()
    return captured, train_alone(captured, STEPS)[0]


@needs_kernel
@pytest.mark.parametrize(
    ("name", "first", "second", "workers"),
    slow_except(
        [(name, *pair, n) for name in MODELS for pair, n in zip(PAIRS, (2, 3), strict=True)],
        ("perceptron", *PAIRS[0], 2), several=True,
    ), **ids,
)  # fmt: skip
def test_workers_with_two_back_ends_reproduce_a_single_workers_run(
    name: str, first: type[TorchBackend], second: type[TorchBackend], workers: int
) -> None:
    captured, expected = model(name)
    records, _ = train_together(captured, workers, STEPS, backends=[first, second])
    assert records == expected


# ---- what must agree ----


@pytest.mark.parametrize("fewest", [0, 1], ids=["the first has most", "the last has most"])
def test_error_bounds_use_the_most_roundings_of_any_worker(fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds count the most roundings that any worker's terms pass through, and an addition for each worker."""
    most, workers = 1 << 40, 3
    given = dict(mixed_workers.cases())["tr,tc->rc far"]

    def work(seat: Exchange) -> tuple[int | None, int, int]:
        machine = SharedInterpreter(given.program, SharedArithmetic(seat))
        partial, far = machine.arithmetic.backend.partial, (seat.worker == workers - 1) == bool(fewest)

        def left(i: Any) -> Callable[[Any], Any]:
            return lambda operands: replace(partial(i)(operands), roundings=most + seat.worker if far else 5)

        monkeypatch.setattr(machine.arithmetic.backend, "partial", left)
        machine.step(1, machine.to_device(given.state), {}, check_finite=False)
        (one,) = machine.arithmetic._shared.values()
        return one.roundings, one.counts.undecided, one.counts.elements

    worst = most + (workers - 1 if fewest else workers - 2)
    for roundings, undecided, elements in together(workers, work):
        assert roundings == worst + workers
        assert undecided == elements > 0, "a worker decided by its own roundings"


def test_workers_with_different_settings_are_refused_by_name(tiny: Captured) -> None:
    def work(seat: Exchange) -> None:
        machine = SharedInterpreter(tiny.program, SharedArithmetic(seat))
        machine.compare({"job": "one", "last step": 7})
        message = "expected the same last step on all workers, got another on worker 2 than on worker 0; start all of"
        with pytest.raises(ConfigurationError, match=message):
            machine.compare({"job": "one", "last step": 9 if seat.worker == 2 else 7})

    together(3, work)


PLANS: dict[str, Callable[[Any], None]] = {
    "ways": lambda machine: machine.partition.ways.reverse(),
    "layouts": lambda machine: machine.partition.layouts.pop(),
    "told": lambda machine: setattr(machine.partition, "told", -1),
    "order": lambda machine: setattr(machine, "planned", machine.planned[::-1]),
    "begun": lambda machine: machine.begun.update({-1: [0]}),
}
"""What a worker of another release might do, in each part of a plan."""


@pytest.mark.parametrize("what", PLANS)
def test_workers_with_different_exchange_plans_are_refused(what: str, tiny: Captured) -> None:
    def work(seat: Exchange) -> None:
        machine = SharedInterpreter(tiny.program, SharedArithmetic(seat))
        machine.compare({})
        if seat.worker:
            PLANS[what](machine)
        message = "expected the same plan of exchanges on all workers, got another on worker 1 than on worker 0"
        with pytest.raises(ConfigurationError, match=message):
            machine.compare({})

    together(2, work)
