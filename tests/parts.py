"""The parts of the suite: what `make test`, `make test-all` and `make nightly` run."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_except(values: Iterable[Any], *fast: Any, nightly: Container[Any] = (), several: bool = False) -> list[Any]:
    """Parameters of a test: `make test` runs it with those named in `fast`, `make nightly` with those in `nightly`.

    `make test-all` runs it with the others.

    several: each value is a tuple of several parameters.
    """
    values = list(values)
    assert all(value in values for value in fast), "expected the fast parameters to be among the values"

    def marked(value: Any) -> Any:
        mark = pytest.mark.nightly if value in nightly else pytest.mark.slow
        return pytest.param(*(value if several else (value,)), marks=mark)

    return [value if value in fast else marked(value) for value in values]
