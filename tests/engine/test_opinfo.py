"""Every operator of torch's OpInfo is right or refused with advice, never wrong and never a raw exception."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conftest import CaseCounter
from tests.engine.opinfo import full_name, operators, sweep

FEW = (
    "exp",
    "max.reduction_with_dim",
    "unfold",
    "isinf",
    "cat",
    "linspace",
    "nn.functional.conv2d",
    "topk",
    "sgn",
    "mode",
)
SHARDS = 8


@pytest.fixture(scope="module", autouse=True)
def _database() -> None:
    """Importing takes seconds, which are no test's own."""
    operators()


def _check(ops: Sequence[Any], kind: str = "float") -> Counter[str]:
    counts: Counter[str] = Counter()
    bad = []
    for name, _, number, outcome in sweep(ops, (kind,), 1):
        counts[outcome.kind] += 1
        if outcome.kind in ("wrong", "raw"):
            bad.append(f"{outcome.kind} {name}, {kind} sample {number}: {outcome.detail}")
    assert not bad, "\n".join(bad)
    return counts


@pytest.mark.parametrize(
    ("names", "kind", "expected"),
    [
        (FEW[:5], "float", {"right": 5}),
        (FEW[5:], "float", {"right": 4, "refused": 1}),
        (("isinf", "nn.functional.max_pool2d"), "integer", {"right": 2}),
    ],
)
def test_a_few_operators(names: tuple[str, ...], kind: str, expected: dict[str, int], cases: CaseCounter) -> None:
    counts = _check([op for op in operators() if full_name(op) in names], kind)
    assert counts == expected
    cases(counts.total())


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_operator(shard: int, cases: CaseCounter) -> None:
    counts = _check(operators()[shard::SHARDS])
    assert counts["right"] > 30
    cases(counts.total())
