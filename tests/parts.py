"""The two parts of the suite: what `make test` runs, and what it leaves to `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *fast: Any) -> list[Any]:
    """Parameters of a test: `make test` runs it with those named in `fast`, `make test-all` with the others."""
    values = list(values)
    assert all(value in values for value in fast), "expected the fast parameters to be among the values"
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
