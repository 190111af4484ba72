"""Numbers know their place; what is computed from them can be computed again from what it says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.report.walking import Files
from tiebreak.sim.report import tracing
from tiebreak.sim.report.results import Results, Shape
from tiebreak.sim.report.tracing import Number

KEYS = st.text(max_size=8)


@given(st.dictionaries(KEYS, st.dictionaries(KEYS, st.integers(-(10**20), 10**20), min_size=1), min_size=1))
def test_a_place_leads_back_to_the_number_whatever_the_names(found: dict[str, dict[str, int]]) -> None:
    text = json.dumps(found)
    results = Results("some, (odd) name.json", text.encode(), Shape)
    files = Files({"some, (odd) name.json": text})
    for outer, inside in found.items():
        for inner, value in inside.items():
            number = results.number(outer, inner)
            assert number.value == value == files.value(number.source)
    numbers = [results.number(outer, inner) for outer, inside in found.items() for inner in inside]
    added = tracing.total(numbers)
    assert files.value(added.source) == pytest.approx(added.value)
    assert files.value(results.count(next(iter(found))).source) == len(next(iter(found.values())))
    assert {tracing.least(numbers).value, tracing.greatest(numbers).value} == {
        min(n.value for n in numbers), max(n.value for n in numbers),
    }  # fmt: skip


def test_operations_say_what_they_did() -> None:
    files = Files({"a.json": '{"x": 3, "y": 8, "z": 0}'})
    x, y, z = (Number(value, f"a.json#/{name}") for name, value in (("x", 3), ("y", 8), ("z", 0)))
    share = tracing.ratio(tracing.difference(y, x), tracing.total([x, y]))
    assert share is not None
    assert share.source == "ratio(difference(a.json#/y, a.json#/x), total(a.json#/x, a.json#/y))"
    assert share.value == files.value(share.source) == 5 / 11
    assert tracing.ratio(x, z) is None
