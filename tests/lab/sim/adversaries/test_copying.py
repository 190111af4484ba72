"""Whole games of those who copy an honest challenger's moves from the mempool."""

import pytest

from tests.lab.sim.adversaries.playing import HALF, RELIEF, duel, party, played, result_of
from tiebreak.lab.sim.adversaries.base import Adversary, Catch, builder
from tiebreak.lab.sim.adversaries.mempool import Copier, Withholder, bearable, with_a_false_run
from tiebreak.lab.sim.world.game import TERMS

pytestmark = pytest.mark.slow

BLOCK = 12


@pytest.mark.parametrize("seals_late", [False, True], ids=["copied seal", "late seal"])
def test_a_copied_proof_in_front_of_the_original_is_refused(seals_late: bool) -> None:
    row = builder("front-run proof", Copier, "-", {Catch.REFUSED}, seals_late=lambda _cast, _rng: seals_late)
    result = played(row, 2)
    assert result.catches["front-run proof"] == "refused", "its proof stood in the block, and reverted"
    copied, original = result.duels
    assert (copied.challenger, copied.verdict) == ("builder", "void")
    assert (original.verdict, original.reason) == ("challenger", "recomputed")
    assert (party(result, "builder").wei, party(result, "auditor").wei) == (RELIEF, HALF - RELIEF)
    assert copied.moves >= original.moves - 2, "it had kept up to the last"


def withholding(seconds: int | None = None) -> Adversary:
    """A builder that withholds a proof for as many seconds; by default for all that its maker can bear."""
    return builder(
        "withheld proof", Withholder, "-", {Catch.HARMLESS}, before=with_a_false_run,
        seconds=lambda cast, _rng: bearable(cast) if seconds is None else seconds,
    )  # fmt: skip


def test_a_builder_that_censors_a_proof_beyond_a_clock_is_paid() -> None:
    """Nobody is promised anything against one: without a copy, too, the auditor's clock would run out."""
    result = result_of(withholding(TERMS.clock + 2 * BLOCK), 3)
    assert party(result, "builder").wei == HALF
    assert party(result, "auditor").wei < 0


def test_a_proof_that_is_withheld_until_the_talk_is_over_still_counts() -> None:
    result = played(withholding(TERMS.clock - 2 * BLOCK), 3, talk_time=100 * BLOCK)
    fought = duel(result, "auditor")
    assert (fought.verdict, fought.reason) == ("challenger", "recomputed")
    assert fought.seconds >= TERMS.clock - 2 * BLOCK
    assert (party(result, "builder").wei, party(result, "auditor").wei) == (RELIEF, HALF - RELIEF)
