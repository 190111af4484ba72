"""Whole games of the adversaries that the other files play only in part: each ends where it must."""

import pytest

from tests.sim.adversaries.playing import party, played
from tiebreak.sim.adversaries import challengers, heads, mempool, openings
from tiebreak.sim.adversaries.base import Adversary
from tiebreak.sim.world.cast import TERMS

pytestmark = pytest.mark.slow

CAUGHT = [kind for module in (heads, openings, challengers, mempool) for kind in module.ADVERSARIES if not kind.open]


@pytest.mark.parametrize("kind", CAUGHT, ids=lambda kind: kind.name)
def test_it_ends_where_it_must(kind: Adversary) -> None:
    result = played(kind, 1)
    if kind in openings.ADVERSARIES and result.job_status == "slashed":
        assert party(result, "auditor").wei == TERMS.trainer_stake // 2
