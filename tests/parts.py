"""The two parts of the suite: what `make test` runs, and what it leaves to `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *fast: Any, several: bool = False) -> list[Any]:
    """Parameters of a test: `make test` runs it with those named in `fast`, `make test-all` with the others.

    several: each value is a tuple of several parameters.
    """
    values = list(values)
    assert all(value in values for value in fast), "expected the fast parameters to be among the values"
    slow = pytest.mark.slow
    return [
        value if value in fast else pytest.param(*value, marks=slow) if several else pytest.param(value, marks=slow)
        for value in values
    ]
