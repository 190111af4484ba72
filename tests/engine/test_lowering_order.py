"""Orders of values and writes at indices: bit for bit as eager PyTorch, where eager PyTorch is deterministic."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.conftest import CaseCounter
from tests.engine.lowering_bench import executed
from tests.parts import slow_except
from tiebreak.engine.dtypes import PROTOCOL_DTYPES
from tiebreak.engine.lowering import RULES, Context
from tiebreak.engine.lowering import ordering as orders
from tiebreak.engine.lowering.builder import Builder, Ref

INF, NAN = math.inf, math.nan
VALUES = (0.0, -0.0, 1.0, -1.0, 2.5, INF, -INF)
"""Few, so that most orders have ties."""


def both(operator: str, *arguments: Any, **named: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The results of one operator's rule, executed by the engine, and those of eager PyTorch."""
    name, _, overload = operator.partition(".")
    eager = getattr(getattr(torch.ops.aten, name), overload)(*arguments, **named)
    b, data = Builder(), list[Tensor]()

    def ref(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return [ref(v) for v in value] if isinstance(value, list) else value
        if not value.numel():
            return b.full(value.shape, 0, PROTOCOL_DTYPES[value.dtype])
        data.append(value)
        return b.data(f"x{len(data)}", PROTOCOL_DTYPES[value.dtype], tuple(value.shape))

    refs = [ref(value) for value in arguments]
    made = RULES[operator](Context(b, eager), *refs, **{name: ref(value) for name, value in named.items()})
    found = [b.copy(r) for r in ([made] if isinstance(made, Ref) else made)]
    values = executed(b, *data)
    results = [torch.empty(r.shape) if 0 in r.shape else values[r.value].view(r.shape) for r in found]
    return results, [eager] if isinstance(eager, Tensor) else list(eager)


def assert_same(operator: str, *arguments: Any, **named: Any) -> None:
    found, expected = both(operator, *arguments, **named)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert torch.equal(ours.nan_to_num(7e7), theirs.nan_to_num(7e7)), (operator, arguments, named, ours, theirs)


@st.composite
def tied(draw: st.DrawFn, values: tuple[float, ...] = VALUES) -> tuple[Tensor, int]:
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    numbers = draw(st.lists(st.sampled_from(values), min_size=math.prod(shape), max_size=math.prod(shape)))
    x = torch.tensor(numbers).view(shape)
    if draw(st.booleans()):
        x = x.nan_to_num(posinf=(1 << 62), neginf=-5.0).to(torch.int64)
    return x, draw(st.integers(-len(shape), len(shape) - 1))


@settings(max_examples=80)
@given(tied() | tied((*VALUES[:-2], NAN)), st.booleans())
def test_sort_is_stable_and_nan_the_greatest(case: tuple[Tensor, int], descending: bool) -> None:
    x, d = case
    assert_same("sort.stable", x, stable=True, dim=d, descending=descending)


@settings(max_examples=40)
@given(tied(), st.booleans(), st.data())
def test_topk_is_the_beginning_of_a_stable_sort(case: tuple[Tensor, int], largest: bool, data: st.DataObject) -> None:
    """It is found in rounds, one element each, and by ranks."""
    x, d = case
    k = data.draw(st.integers(1, x.shape[d]))
    whole = x.sort(dim=d, descending=largest, stable=True).indices
    for rounds in (orders.MAX_ROUNDS, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(orders, "MAX_ROUNDS", rounds)
            (values, index), (eager, _) = both("topk.default", x, k, d, largest)
        assert torch.equal(values, eager)  # which of equal values eager PyTorch takes is not defined
        assert torch.equal(index, whole.narrow(d, 0, k))


@settings(max_examples=40)
@given(tied((*VALUES[:-2], NAN)), st.booleans(), st.data())
def test_medians_and_kth_values_equal_eager_pytorchs(
    case: tuple[Tensor, int], keepdim: bool, data: st.DataObject
) -> None:
    x, d = case
    k = data.draw(st.integers(1, x.shape[d]))
    for operator, arguments in (("median.dim", ()), ("kthvalue.default", (k,))):
        (value, index), (eager, _) = both(operator, x, *arguments, d, keepdim)
        assert value.shape == index.shape == eager.shape
        assert torch.equal(value.nan_to_num(9e9), eager.nan_to_num(9e9))
    assert_same("median.default", x)


@settings(max_examples=30)
@given(tied((*VALUES, NAN)), st.booleans(), st.booleans(), st.integers(0, 1 << 20))
def test_searchsorted_and_bucketize_equal_eager_pytorchs(
    case: tuple[Tensor, int], right: bool, is_sorted: bool, seed: int
) -> None:
    """Of NaN and of sequences that are not sorted, too: what torch finds follows from its halvings."""
    sequence, _ = case
    seeded = torch.Generator().manual_seed(seed)
    sorter = sequence.argsort(-1)
    sequence = sequence.sort(-1)[0] if is_sorted else sequence
    chosen = torch.randint(0, sequence.numel(), (*sequence.shape[:-1], 4), generator=seeded)
    x = sequence.reshape(-1)[chosen] + torch.randint(-1, 2, chosen.shape, generator=seeded).to(sequence.dtype)
    assert_same("searchsorted.Tensor", sequence, x, right=right)
    if not is_sorted:
        assert_same("searchsorted.Tensor", sequence, x, side="right" if right else "left", sorter=sorter)
    line = sequence.reshape(-1).sort()[0]
    assert_same("searchsorted.Tensor", line, x, right=right, out_int32=True)
    assert_same("bucketize.Tensor", x, line, right=right)
    assert_same("searchsorted.Scalar", line, 2, right=right)


def test_sorting_scalars_and_empty_tensors_equals_eager_pytorch(cases: CaseCounter) -> None:
    for x in (torch.tensor(3.0), torch.empty(0, 4), torch.empty(2, 0)):
        assert_same("sort.stable", x, stable=True)
        assert_same("sort.default", x, 0 if x.ndim else -1, True)
        assert_same("topk.default", x, min(x.shape[-1], 2) if x.ndim else 1)
        cases(3)
    assert_same("kthvalue.default", torch.tensor(3.0), 1)
    assert_same("median.dim", torch.tensor(3), 0)


def test_orderings_that_need_too_many_comparisons_are_refused() -> None:
    b = Builder()
    x = b.data("x", PROTOCOL_DTYPES[torch.float32], (1 << 15,))
    with pytest.raises(NotImplementedError, match="to order 32768 elements takes as many comparisons"):
        RULES["sort.default"](Context(b, None), x)
    index = b.add(b.iota((1 << 15,), (5,)), b.const(1, PROTOCOL_DTYPES[torch.int64]))
    with pytest.raises(NotImplementedError, match="32768 indices compared with 32768 places"):
        RULES["index_put.default"](Context(b, None), x, [index], x)
    values, _ = RULES["topk.default"](Context(b, None), x, 8)
    assert values.shape == (8,)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*range(-1, 8), 2.5, 6.999]), min_size=1, max_size=12), st.integers(1, 9))
def test_histc_equals_eager_pytorchs(values: list[float], bins: int) -> None:
    assert_same("histc.default", torch.tensor(values, dtype=torch.float32), bins, 0, 6)


# writes


@st.composite
def writes(draw: st.DrawFn) -> tuple[Tensor, int, Tensor, Tensor]:
    """x, a dim, indices with repetitions that reach a part of x, and a source that is larger than they are."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    d = draw(st.integers(0, len(shape) - 1))
    part = [draw(st.integers(1, 6 if e == d else n)) for e, n in enumerate(shape)]
    source = [n + draw(st.integers(0, 2)) for n in part]
    seeded = torch.Generator().manual_seed(draw(st.integers(0, 1 << 20)))
    index = torch.randint(0, shape[d], part, generator=seeded)
    return torch.randn(shape, generator=seeded), d, index, torch.randn(source, generator=seeded)


@settings(max_examples=40)
@given(writes(), st.booleans())
def test_the_last_of_several_scatter_writes_to_an_element_counts(
    case: tuple[Tensor, int, Tensor, Tensor], whole: bool
) -> None:
    x, d, index, source = case
    if whole:  # integers, as for a mask that is built by scattering ones
        x, source = (8 * x).to(torch.int64), (8 * source).to(torch.int64)
    expected = x.clone()  # in plain loops: eager PyTorch does not define which one counts
    for place in torch.cartesian_prod(*map(torch.arange, index.shape)).view(-1, index.ndim).tolist():
        to = [int(index[tuple(place)]) if e == d else p for e, p in enumerate(place)]
        expected[tuple(to)] = source[tuple(place)]
    (found,), _ = both("scatter.src", x, d, index, source)
    assert torch.equal(found, expected)
    assert_same("scatter.value", x, d, index, 3)


@pytest.mark.parametrize("kind", slow_except(["sum", "mean", "amax", "amin", "prod"], "sum", "amax"))
@settings(max_examples=40)
@given(writes(), st.booleans())
def test_scatter_reductions_match_eager_pytorch(
    kind: str, case: tuple[Tensor, int, Tensor, Tensor], include_self: bool
) -> None:
    x, d, index, source = case
    (found,), (eager,) = both("scatter_reduce.two", x, d, index, source, kind, include_self=include_self)
    torch.testing.assert_close(found, eager)
    if kind in ("amax", "amin"):
        assert torch.equal(found, eager)
    (found,), (eager,) = both("scatter_add.default", x, d, index, source)
    torch.testing.assert_close(found, eager)


@settings(max_examples=40)
@given(st.data())
def test_index_put_matches_eager_pytorch(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    used = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)).filter(any))
    count = data.draw(st.integers(1, 2))
    seeded = torch.Generator().manual_seed(data.draw(st.integers(0, 1 << 20)))
    indices = [
        torch.randint(-n, n, (3, count), generator=seeded) if u else None for n, u in zip(shape, used, strict=True)
    ]
    x = torch.randn(shape, generator=seeded)
    source = torch.randn(x[tuple(slice(None) if i is None else i for i in indices)].shape, generator=seeded)
    places = torch.arange(x.numel()).view(shape)[tuple(slice(None) if i is None else i for i in indices)]
    expected = x.clone()
    for place, value in zip(places.flatten().tolist(), source.flatten().tolist(), strict=True):
        expected.view(-1)[place] = value  # the last one counts
    (found,), _ = both("index_put.default", x, indices, source)
    assert torch.equal(found, expected)
    (found,), (eager,) = both("index_put.default", x, indices, source, True)
    torch.testing.assert_close(found, eager)
    flat, one = indices[used.index(True)], x.transpose(0, used.index(True)).flatten(1)[:, 0].contiguous()
    assert_same("put.default", one, flat % len(one), torch.ones(flat.shape))
