"""Many games at once against an honest trainer with one machine: an open weakness, as it is."""

from tests.sim.adversaries.playing import party, result_of
from tiebreak.sim.adversaries.overload import Overload
from tiebreak.sim.world.cast import TERMS


def test_an_honest_trainer_that_cannot_be_everywhere_loses_its_stake() -> None:
    result = result_of(Overload, 1)
    assert result.job_status == "slashed"
    assert not result.false_head
    assert party(result, "trainer").wei == -TERMS.trainer_stake
    assert party(result, "challenger 1").wei == TERMS.trainer_stake // 2, "all stakes came back"
    verdicts = sorted((found.verdict, found.reason) for found in result.duels)
    assert verdicts == [("challenger", "timeout"), *[("void", "job slashed")] * 3]


class OneAtATime(Overload):
    """The same challenge on the same terms, alone."""

    games = 1


def test_each_of_its_games_alone_would_lose() -> None:
    result = result_of(OneAtATime, 1)
    assert result.job_status == "settled"
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake
