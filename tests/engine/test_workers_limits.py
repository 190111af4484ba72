"""Workers' layouts, messages and tapes at their limits, without workers."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tiebreak.engine.arithmetic.plan.views import Dim
from tiebreak.engine.capture.captured import Captured
from tiebreak.engine.distributed import arithmetic, partition
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.exchange import Torch, numbering
from tiebreak.engine.distributed.layout import Split, along, cut
from tiebreak.engine.distributed.train import SharedInterpreter, follow
from tiebreak.protocol.program.isa import DType, Opcode


def test_a_dimension_is_cut_where_it_crosses_a_shard_border() -> None:
    split = Split(2, 3, 2)
    assert cut([Dim(12, (1,))], 0, split) == [Dim(2, (6,)), Dim(3, (2,)), Dim(2, (1,))]
    assert cut([Dim(6, (2,))], 0, split) == [Dim(2, (6,)), Dim(3, (2,))]
    assert cut([Dim(2, (6,)), Dim(2, (1,))], 0, split) == [Dim(2, (6,)), Dim(2, (1,))], "no border to cross"
    assert cut([Dim(7, (1,))], 0, split) == [Dim(7, (1,))], "no whole number of periods"


def test_a_sharded_read_is_local_within_the_inner_dimension() -> None:
    split = Split(1, 4, 3)
    assert along([Dim(4, (3,)), Dim(2, (1,))], 0, 1, split) == 0  # elements 1 and 2 of each row of 3
    assert along([Dim(4, (3,)), Dim(2, (1,))], 0, 2, split) is None  # the second one is in the next row
    assert along([Dim(4, (3,)), Dim(2, (-1,))], 0, 1, split) == 0
    assert along([Dim(4, (3,)), Dim(2, (-1,))], 0, 0, split) is None


def test_elements_are_numbered_in_32_bits_while_all_numbers_fit() -> None:
    assert numbering((1 << 31) - 1) == torch.int32
    assert numbering(1 << 31) == torch.int64


def test_a_worker_counts_the_bytes_that_it_sends_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "P2POp", lambda *given: given)
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda _: [])
    found = Torch(worker=1, workers=3)
    pieces = [torch.ones(size, dtype=torch.int32) for size in (2, 5, 3)]
    found.begin(pieces, [torch.zeros(5, dtype=torch.int32) for _ in range(3)])()
    assert (found.exchanges, found.bytes_sent) == (1, 4 * (2 + 3)), "its own piece goes nowhere"


class Counted:
    """An exchange whose others never answer, and are never waited for."""

    worker, workers = 0, 2

    def __init__(self) -> None:
        self.begun = 0

    def begin(self, pieces: Sequence[Tensor], into: Sequence[Tensor]) -> Callable[[], None]:
        self.begun += 1
        return lambda: None


def test_weights_are_gathered_ahead_within_a_limit(tiny: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)
    monkeypatch.setattr(arithmetic, "AHEAD", 1)  # one value, of any size
    counted = Counted()
    shared = SharedArithmetic(counted)
    machine = SharedInterpreter(tiny.program, shared)
    state: dict[str, Any] = machine.to_device(tiny.state)
    counted.begun = 0
    weights = [(gather, state[name]) for gather, name in machine._weights]
    assert len(weights) > 2
    shared.look_ahead(weights)
    for number, (gather, shard) in enumerate(weights):
        assert counted.begun == number + 1, "the next one is begun when the one before is taken"
        shared.together([gather], [[shard]])


def test_a_sum_without_a_finite_bound_is_nan_and_not_recomputed(tiny: Captured) -> None:
    shared = SharedArithmetic(Counted())
    summed = next(i for i in tiny.program.body if i.opcode == Opcode.REDUCE and i.dtype == DType.F32)
    each = SimpleNamespace(
        roundings=3, rounded=shared.options.rounding(summed), part=None, counts=SimpleNamespace(elements=0, undecided=0)
    )
    message: Any = object.__new__(arithmetic._Message)
    message.sums, message._held = [each], [3]
    total = torch.tensor([[1.0, 5.0, 1 + 2.0**-24], [torch.inf, 0.0, 1.0]], dtype=torch.float64)
    ((result, undecided),) = message.decide(total)
    assert result[0].isnan()
    assert result[1] == 5
    assert undecided.tolist() == [2], "of the last one, FP64 does not tell the neighbours apart"


def test_a_following_worker_starts_from_the_first_workers_state() -> None:
    asked: list[int] = []

    def state(step: int, *, narrow: bool) -> dict[str, Tensor]:
        asked.append(step)
        assert narrow
        return {}

    run: Any = SimpleNamespace(job=SimpleNamespace(steps=6), state=state, data=dict)
    follower: Any = SimpleNamespace(
        check_job=lambda _: None, starts_at=lambda own: max(own, 6), to_device=dict, place_data=dict
    )
    assert [*follow(run, follower, None, check_finite=True)] == []
    assert asked == [6]
