"""Whoever reads only the contracts' logs sees the same board as whoever reads every transaction's calldata.

Games that can be played without a chain are compared in `test_ledger.py`, at once with the ledger.
"""

from collections.abc import Callable
from random import Random

import pytest

from tests.parts import slow_except
from tests.sim.adversaries.playing import stage
from tests.sim.shadow import Compared
from tests.sim.test_ledger import SEATED, VANISHING
from tiebreak.sim.world.game import watch

FAST = ("reorganised blocks", "seats bought, all but one")


@pytest.mark.parametrize("name", slow_except(sorted(SEATED | VANISHING), *FAST))
def test_logs_alone_tell_all(name: str, monkeypatch: pytest.MonkeyPatch, cases: Callable[[], None]) -> None:
    rng = Random(f"following {name}")
    cast = stage(name, rng)
    monkeypatch.setattr(Compared, "program", cast.workshop.program, raising=False)
    monkeypatch.setattr(Compared, "count", staticmethod(cases), raising=False)
    monkeypatch.setattr("tiebreak.sim.world.world.Board", Compared)
    world, _ = watch(cast, name, rng)
    assert isinstance(world.board, Compared)
    assert world.board.disagreements == []
