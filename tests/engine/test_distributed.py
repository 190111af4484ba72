"""Several workers compute what one computes, bit for bit; here they are threads of one process."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import make_task
from tests.parts import slow_except
from tiebreak import AdamW, Clip, Task
from tiebreak.api.builtin.loader import load_task
from tiebreak.engine.arithmetic.plan.views import Dim
from tiebreak.engine.capture.captured import Captured, capture_task
from tiebreak.engine.distributed import exchange, partition, plan, wire
from tiebreak.engine.distributed.arithmetic import SharedArithmetic
from tiebreak.engine.distributed.exchange import Exchange
from tiebreak.engine.distributed.layout import Split, along, cut, localized, share
from tiebreak.engine.distributed.partition import AllGather, Partition, SharedSum
from tiebreak.engine.distributed.plan import Plan, joined
from tiebreak.engine.distributed.train import SharedInterpreter
from tiebreak.engine.run.interpreter import NotFiniteError
from tiebreak.protocol.errors import ConfigurationError
from tiebreak.protocol.program.isa import DType, ReduceFunction

from .mixed_workers import sum_of
from .models import test_language
from .together import Seat, together, train_alone, train_together

LEAST = partition.LEAST


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)


# ---- layouts ----


@st.composite
def reads(draw: st.DrawFn) -> tuple[list[Dim], int, Split]:
    """An access to a value of some layout that stays inside it: any strides, as a program may have them."""
    split = Split(draw(st.integers(1, 3)), draw(st.integers(2, 4)), draw(st.sampled_from([1, 2, 3, 6])))
    units = [1, 2, 3, split.inner, 2 * split.inner, split.period, split.inner * split.size // 2]
    dims, low, high = [], 0, 0
    for _ in range(draw(st.integers(1, 4))):
        size, stride = draw(st.integers(1, 6)), draw(st.sampled_from([0, *units, *(-u for u in units)]))
        if high - low + abs(stride) * (size - 1) < split.numel:
            dims.append(Dim(size, (stride,)))
            low, high = low + min(0, stride * (size - 1)), high + max(0, stride * (size - 1))
    return dims, draw(st.integers(-low, split.numel - 1 - high)), split


@given(reads(), st.integers(1, 3))
@settings(max_examples=200)
def test_sharded_reads_address_the_right_elements(case: tuple[list[Dim], int, Split], workers: int) -> None:
    dims, offset, split = case
    pieces = cut(dims, 0, split)
    everywhere = [offset + sum(c * d.strides[0] for c, d in zip(at, dims, strict=True)) for at in _coordinates(dims)]
    assert everywhere == [
        offset + sum(c * d.strides[0] for c, d in zip(at, pieces, strict=True)) for at in _coordinates(pieces)
    ], "a cut changed what is read"
    found = along(pieces, 0, offset, split)
    if found is None:
        return
    whole = torch.arange(split.numel).view(split.outer, split.size, split.inner)
    for worker in range(workers):
        begin, end = share(split.size, worker, workers)
        shard = whole[:, begin:end].reshape(-1).tolist()
        start, strides = localized(offset, [d.strides[0] for d in pieces], split, end - begin)
        for at in _coordinates(pieces):
            if begin <= at[found] < end:
                here = [c - begin * (k == found) for k, c in enumerate(at)]
                place = start + sum(c * s for c, s in zip(here, strides, strict=True))
                assert shard[place] == offset + sum(c * d.strides[0] for c, d in zip(at, pieces, strict=True))


def _coordinates(dims: list[Dim]) -> list[tuple[int, ...]]:
    return list(product(*(range(d.size) for d in dims)))


def test_worker_shares_cover_a_dimension_once() -> None:
    for size, workers in product(range(1, 20), range(1, 9)):
        held = [share(size, w, workers) for w in range(workers)]
        assert [n for begin, end in held for n in range(begin, end)] == list(range(size))
        assert max(end - begin for begin, end in held) == held[-1][1] - held[-1][0], "the last share is the largest"


# ---- sums whose terms lie on several workers ----


def hostile(kind: str, terms: int, width: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(terms, width, generator=generator)
    if kind == "ties":  # 1, then halves of a last place: exact middles, which no FP64 bound decides
        x = torch.full((terms, width), 2.0**-24 / max(1, terms - 1))
        x[torch.randint(0, terms, (1,), generator=generator)] = 1.0
    elif kind == "cancelling":
        x[terms // 2 :] = -x[: terms - terms // 2].flip(1)
        x[0] = 2.0**-140
    elif kind == "spread":
        x *= 2.0 ** torch.randint(-120, 120, x.shape, generator=generator).float()
    elif kind == "extreme":
        x[:, ::2] *= 2.0**-145
        x[:, 1::2] *= 2.0**124
    elif kind == "not finite":
        x[1, 0], x[terms - 1, width - 1] = float("inf"), float("nan")
    return x


KINDS = ["ties", "not finite", "plain", "cancelling", "spread", "extreme"]
OTHER_WAYS = [(True, "rounded by all"), (True, "gathered"), (False, "in shards")]
WAYS = [*((kind, True, "in shards") for kind in KINDS), *((kind, *way) for way in OTHER_WAYS for kind in KINDS[:2])]


@pytest.mark.parametrize(("kind", "compiled", "result"), slow_except(WAYS, WAYS[0], several=True))
@pytest.mark.parametrize("products", [False, True], ids=["sums", "products"])
def test_sums_across_workers_equal_those_of_one_worker(
    kind: str, products: bool, compiled: bool, result: str, monkeypatch: pytest.MonkeyPatch, cases: CaseCounter
) -> None:
    if not compiled:
        monkeypatch.setenv("TIEBREAK_NATIVE", "0")
    monkeypatch.setattr(Partition, "everywhere", lambda *_: result == "rounded by all")
    generator = torch.Generator().manual_seed(5)
    resolved = 0
    for (terms, workers), bf16 in product([(9, 2), (700, 3), (1030, 8)], [False, True]):
        least = 1 if result == "in shards" else 90 * workers**2  # the result has 77 elements at most
        monkeypatch.setattr(partition, "LEAST", least)
        function = ReduceFunction.SUM_BF16 if bf16 else ReduceFunction.SUM
        program = sum_of("tr,tc->rc" if products else "tr->r", {"t": terms, "r": 11, "c": 7}, DType.F32, function)
        state = {"a": hostile(kind, terms, 11, generator), "loss": torch.zeros(())}
        if products:
            is_hostile = kind in ("plain", "spread", "extreme")
            state["b"] = hostile(kind, terms, 7, generator) if is_hostile else torch.ones(terms, 7)
        (added,) = (i for i in Partition(program, workers).local(0).body if isinstance(i, SharedSum))
        assert (added.split is not None, added.everywhere) == (result == "in shards", result == "rounded by all")
        seen: list[int] = []
        given = Captured(program, state, {})
        expected, _ = train_alone(given, 1, check_finite=False)
        records, _ = train_together(given, workers, 1, permute=None if bf16 else 3, check_finite=False)

        def count(exchange: Exchange, seen: list[int] = seen, given: Captured = given) -> None:
            machine = SharedInterpreter(given.program, SharedArithmetic(exchange))
            machine.step(1, machine.to_device(given.state), {}, check_finite=False)
            seen.append(sum(c.undecided_twice for c in machine.arithmetic.stats.kinds.values()))

        together(workers, count)
        assert records == expected
        resolved += sum(seen)
        cases(1)
    assert resolved > 0 or kind in ("plain", "spread", "extreme", "not finite"), (
        "no element was left for the exact sums"
    )


def test_error_bounds_include_the_rounding_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums a little beside a middle: without `ROUNDINGS`, workers would round some of them wrongly."""
    program = sum_of("tr,tc->rc", {"t": 4, "r": 299, "c": 1}, DType.F32, ReduceFunction.SUM)
    a = torch.zeros(4, 299)
    a[0] = 1 + 2.0**-23 * torch.arange(299)  # of one worker; its message has units of more than 2^-47
    a[2] = 2.0**-24  # of another one, as what follows
    a[3] = 2.0**-52 * (torch.arange(299) % 35 - 17)
    given = Captured(program, {"a": a, "b": torch.ones(4, 1), "loss": torch.zeros(())}, {})
    expected, _ = train_alone(given, 1)
    assert train_together(given, 2, 1)[0] == expected
    monkeypatch.setattr(wire, "ROUNDINGS", 0)
    assert train_together(given, 2, 1)[0] != expected


# ---- whole models ----


def attention() -> Task:
    """GPT-2 with dropout: more workers than heads, features and examples divide into."""
    torch.manual_seed(3)
    data = {"x": torch.randint(0, test_language.VOCABULARY, (12, 9))}
    settings = {"loss": test_language.causal, "optimizer": AdamW(lr=1e-2), "clip": Clip(norm=1.0), "steps": 25}
    return make_task(test_language.gpt2().train(), data, 6, **settings)


@cache
def captured_attention() -> Captured:
    return capture_task(attention())


@pytest.mark.parametrize("workers", slow_except([1, 3, 8]))
def test_any_number_of_workers_makes_the_same_run(workers: int) -> None:
    expected, _ = train_alone(captured_attention(), 20)
    records, _ = train_together(captured_attention(), workers, 20, permute=workers)
    assert records == expected


def test_a_run_resumes_with_another_number_of_workers(tiny: Captured) -> None:
    expected, _ = train_alone(tiny, 12)
    records, state = train_together(tiny, 3, 5)
    more, _ = train_together(tiny, 2, 7, begin=5, state=state, chains=False)
    assert records + more == expected


def test_a_state_that_is_not_finite_stops_all_workers(tiny: Captured) -> None:
    broken = {key: tensor.clone() for key, tensor in tiny.state.items()}
    broken["model.0.weight"][-1, -1] = float("inf")  # in the last worker's shard
    stopped = []

    def work(exchange: Exchange) -> None:
        machine = SharedInterpreter(tiny.program, SharedArithmetic(exchange))
        with pytest.raises(NotFiniteError) as error:
            machine.step(1, machine.to_device(broken), machine.place_data(tiny.data))
        stopped.append(error.value.name)

    together(3, work)
    with pytest.raises(NotFiniteError) as alone:
        train_alone(replace(tiny, state=broken), 1)
    assert stopped == [alone.value.name] * 3


@pytest.mark.parametrize(
    ("held", "workers"), slow_except([(1, 1), (1, 3), (64, 8), (1 << 10, 2)], (1, 3), several=True)
)
def test_a_plan_predicts_the_bytes_that_a_step_sends(held: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", held)
    monkeypatch.setattr(partition, "SMALL", 100)
    monkeypatch.setattr(partition, "TOLD", 1)
    captured, exact = captured_attention(), [0] * workers

    def count(of: type, name: str) -> None:
        """Counts apart what a method sends, which depends on the data."""
        original = getattr(of, name)

        def counted(self: Any, *given: Any) -> Any:
            before = self.exchange.sent
            found = original(self, *given)
            exact[self.exchange.worker] += self.exchange.sent - before
            return found

        monkeypatch.setattr(of, name, counted)

    count(SharedArithmetic, "_settle")
    count(exchange.Collectives, "lists")

    def work(seat: Seat) -> tuple[int, int]:
        machine = SharedInterpreter(captured.program, SharedArithmetic(seat))
        state, data = machine.to_device(captured.state), machine.place_data(captured.data)
        state = machine.step(1, state, data).state  # the first step also agrees on bounds
        seat.sent = exact[seat.worker] = 0
        state = machine.step(2, state, data).state
        step, seat.sent = seat.sent - exact[seat.worker], 0
        machine.whole(state)
        return step, seat.sent

    found = Plan(Partition(captured.program, workers))
    sent = together(workers, work)
    assert [step for step, _ in sent] == [sum(of) for of in zip(*found.sent.values(), strict=True)]
    assert [whole for _, whole in sent] == found.checkpoint
    assert (sum(exact) > 0) == (workers > 1), "no sum was left undecided"
    for kind, each in found.held.items():
        assert each.bytes >= each.share >= each.bytes // workers, kind
    assert found.partition.ddp == 8 * sum(p.numel() for p in attention().model.parameters()) * (workers - 1) // workers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "text"])
def test_small_models_send_little_more_than_under_ddp(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "LEAST", LEAST)
    program = capture_task(load_task(name)).program
    for workers in (2, 3, 4, 8):
        divided = Partition(program, workers)
        assert max(map(sum, zip(*Plan(divided).sent.values(), strict=True))) < 1.48 * divided.ddp, workers


@pytest.mark.parametrize(
    ("ahead", "large"), slow_except([(0, 0), (1 << 12, 100), (1 << 26, 0)], (1 << 26, 0), several=True)
)
def test_small_exchanges_between_workers_are_batched(ahead: int, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "AHEAD_BYTES", ahead)
    monkeypatch.setattr(plan, "JOINED", large)
    captured = captured_attention()
    for workers in (2, 3):
        program = Partition(captured.program, workers).local(workers - 1)
        planned, begun = joined(program)
        units = [unit.members for unit in planned]
        order = [n for unit in units for n in unit]
        assert sorted(order) == list(range(len(program.body)))
        made: set[int] = set()
        early = 0
        for unit in units:
            for n in begun.get(unit[0], ()):
                assert isinstance(program.body[n], AllGather | SharedSum)
                assert {a.value for a in program.body[n].operands} <= made
                early += n not in unit
            if isinstance(program.body[unit[0]], AllGather | SharedSum):
                assert all(isinstance(program.body[n], AllGather | SharedSum) for n in unit)
                assert {a.value for n in unit for a in program.body[n].operands} <= made, "one waits for another"
            for n in unit:
                assert {a.value for a in program.body[n].operands} <= made
                made.add(n)
        assert (early > 0) == (ahead > 0)
        sent_early = [n for each in begun.values() for n in each]
        assert len(sent_early) == len(set(sent_early))
        assert set(begun) <= {unit[0] for unit in units}
        rounds = len(Plan(Partition(captured.program, workers)).rounds)
        alone = sum(isinstance(i, SharedSum) for i in program.body)
        assert (rounds < alone / 4) == (ahead == 1 << 26)
    expected, _ = train_alone(captured, 3)
    records, _ = train_together(captured, 3, 3, permute=1)
    assert records == expected


@pytest.mark.parametrize("joins", [0, 1 << 20])
def test_batched_messages_deliver_the_same_as_single_ones(joins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "JOINED", joins)
    shapes = [(1, 5, 1), (2, 7, 3), (3, 4, 40)]

    def work(seat: Exchange) -> None:
        collectives, held = exchange.Collectives(seat, lambda shape, dtype: torch.empty(shape, dtype=dtype)), []
        wholes = [torch.arange(o * s * i).view(o, s, i) for o, s, i in shapes]
        wholes = [wholes[0] > 2, wholes[1].float(), wholes[2]]
        for whole in wholes:
            begin, end = share(whole.shape[1], seat.worker, seat.workers)
            held.append(collectives.gather(whole[:, begin:end], Split(*whole.shape)))
        parts = torch.arange(9.0, dtype=torch.float64)
        begin, end = collectives.shares(9)[seat.worker]
        pieces = [parts[own] for own in (slice(*each) for each in collectives.shares(9))]
        held += [collectives.add(pieces, end - begin, 72), collectives.add([parts] * 3, 9, 72)]
        *gathered, shared, added = collectives.run(held)
        for whole, found in zip(wholes, gathered, strict=True):
            assert torch.equal(found.view(whole.shape), whole)
        assert torch.equal(shared, 3 * parts[begin:end])
        assert torch.equal(added, 3 * parts)

    together(3, work)


def test_observing_values_requires_a_single_worker(tiny: Captured) -> None:
    def work(exchange: Exchange) -> None:
        machine = SharedInterpreter(tiny.program, SharedArithmetic(exchange))
        with pytest.raises(ConfigurationError, match="expected one worker where values are observed"):
            machine.step(1, machine.to_device(tiny.state), tiny.data, lambda _, tensor: tensor)

    together(2, work)
