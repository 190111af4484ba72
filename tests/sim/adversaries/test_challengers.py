"""Whole games of each adversary of `sim.adversaries.challengers`."""

import pytest

from sim.adversaries.base import Adversary
from sim.adversaries.challengers import ADVERSARIES
from tests.sim.adversaries.rounds import played


@pytest.mark.parametrize("kind", ADVERSARIES, ids=lambda kind: kind.name)
def test_it_ends_where_it_must(kind: type[Adversary]) -> None:
    played(kind, 1)
