"""Whole games of those who copy an honest challenger's moves from the mempool."""

import pytest

from tests.sim.adversaries.playing import HALF, duel, party, played
from tiebreak.sim.adversaries.base import Catch, builder
from tiebreak.sim.adversaries.mempool import Copier
from tiebreak.sim.world.cast import TERMS


@pytest.mark.slow
def test_a_mirror_gets_its_stake_back_and_the_auditor_the_reward() -> None:
    result = played("mirror", 2)
    mirrored, honest = duel(result, "challenger 1"), duel(result, "auditor")
    assert (honest.verdict, mirrored.verdict) == ("challenger", "void")
    assert mirrored.rounds == honest.rounds - 1, "it copied all but the proof"
    assert (party(result, "auditor").wei, party(result, "challenger 1").wei) == (HALF, 0)


def test_a_copied_challenge_earns_nothing() -> None:
    result = played("front-run challenge", 1)
    copied, original = result.duels
    assert (copied.challenger, copied.verdict) == ("builder", "void")
    assert (original.challenger, original.verdict) == ("auditor", "challenger")
    assert (party(result, "builder").wei, party(result, "auditor").wei) == (0, HALF)


@pytest.mark.slow
@pytest.mark.parametrize("seals_late", [False, True], ids=["copied seal", "late seal"])
def test_a_copied_proof_in_front_of_the_original_is_refused(seals_late: bool) -> None:
    row = builder("front-run proof", Copier, "-", {Catch.REFUSED}, seals_late=lambda _cast, _rng: seals_late)
    result = played(row, 2)
    assert result.catches["front-run proof"] == "refused", "its proof stood in the block, and reverted"
    copied, original = result.duels
    assert (copied.challenger, copied.verdict) == ("builder", "void")
    assert (original.verdict, original.reason) == ("challenger", "recomputed")
    assert (party(result, "builder").wei, party(result, "auditor").wei) == (0, HALF)
    assert copied.moves >= original.moves - 2, "it had kept up to the last"


@pytest.mark.slow
def test_a_proof_withheld_for_a_block_costs_the_challenger_its_reward_and_nothing_else() -> None:
    """An open weakness: see docs/security.md, residual risks."""
    result = played("withheld proof", 3)
    assert result.job_status == "slashed"
    assert party(result, "builder").wei == HALF
    assert party(result, "auditor").wei == 0, "its stake came back"
    assert party(result, "trainer").wei == -TERMS.trainer_stake
    assert party(result, "client").wei == 0


def test_a_copied_report_costs_the_reporter_its_reward_and_nothing_else() -> None:
    result = played("front-run report", 4)
    assert (result.job_status, result.duels) == ("slashed", ())
    assert (party(result, "builder").wei, party(result, "auditor").wei) == (HALF, 0)
    assert party(result, "trainer").wei == -TERMS.trainer_stake
    assert party(result, "auditor").refused == 1
