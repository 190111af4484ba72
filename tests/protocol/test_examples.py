"""The usage examples at the top of the core's modules do what they show."""

import doctest
from types import ModuleType
from typing import Any

import pytest

from tests.protocol.runs import CLIENT, DOMAIN, GAME, Run, make_job
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Descend
from tiebreak.protocol.game.sides import choose
from tiebreak.protocol.parties import events, machine
from tiebreak.protocol.parties.board import Board
from tiebreak.protocol.parties.client import ClientParty
from tiebreak.protocol.parties.terms import Pace

RUN = Run(make_job())
GIVEN: dict[str, Any] = {
    "job": RUN.job, "head": RUN.head(RUN.job.checkpoints).head, "game_id": GAME,
    "tree": RUN.run_tree(RUN.job.checkpoints), "key": CLIENT, "domain": DOMAIN, "events": events, "Board": Board,
    "ClientParty": ClientParty, "Pace": Pace, "Descend": Descend, "choose": choose,
}  # fmt: skip


@pytest.mark.parametrize("module", [rules, machine])
def test_examples_of_core_modules_run(module: ModuleType) -> None:
    found = doctest.testmod(module, extraglobs=GIVEN, optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted > 5
