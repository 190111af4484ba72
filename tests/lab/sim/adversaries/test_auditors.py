"""Games of auditors that do not audit, alone and before one that does; what samples find."""

from collections import Counter
from random import Random

import pytest

from tests.lab.sim.adversaries.playing import HALF, party, stage
from tiebreak.lab.sim.adversaries.auditors import Bribed, SamplingAuditor, Vanishing, first_fraud, replay_segment
from tiebreak.lab.sim.adversaries.base import Catch, given
from tiebreak.lab.sim.adversaries.tampering import altered
from tiebreak.lab.sim.games.playing import CATALOGUE
from tiebreak.lab.sim.world.agents import AuditorAgent, Process
from tiebreak.lab.sim.world.game import FUNDS, TERMS, Cast, CastMember, play
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import Workshop
from tiebreak.protocol.commitments.job import SignedHead
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.parties.board import PublicJob

NOBODY = bytes(19) + b"\x01"


def test_a_bribed_auditor_alone_loses_its_stake_to_the_trainer() -> None:
    cast = stage("one false sum", Random(3))
    cast.expected.clear()
    cast.auditors = [CastMember(name="bribed", make=given(Bribed, at=1), adversary="bribed auditor")]
    result = play(cast, "-", Random(3))
    assert (result.watched, result.job_status, result.violations) == (False, "settled", ())
    assert result.catches["bribed auditor"] == Catch.CONCEDED
    assert party(result, "bribed").wei == -TERMS.challenger_stake
    assert party(result, "trainer").wei == TERMS.reward + TERMS.challenger_stake // 2


# ---------------------------------------------------------------- one after the other


class Late(AuditorAgent):
    """Honest, and slow: it replays the last head only, when most of the window is over."""

    def replays(self, head: SignedHead) -> bool:
        (job,) = self.world.board.jobs.values()
        return head.head.count == job.job.checkpoints

    def look_at(self, job: PublicJob, head: SignedHead) -> Process:
        if not self.works:
            yield from self.sleep(job.job.challenge_window * 3 // 4)
        return (yield from super().look_at(job, head))


@pytest.mark.slow
def test_after_a_lost_game_the_next_auditor_still_convicts() -> None:
    cast = Cast(workshop=Workshop.open("exact"), auditors=[CastMember(name="late", make=Late)])
    CATALOGUE["one false sum"].join(cast, Random(4))
    name = "auditor that goes offline"
    cast.auditors.insert(0, CastMember(name="first", make=given(Vanishing, at=1), adversary=name))
    result = play(cast, "-", Random(4))
    assert result.violations == ()
    assert result.catches == {"one false sum": "recomputed", name: Catch.TIMEOUT}
    assert [(duel.challenger, duel.verdict) for duel in result.duels] == [("first", "trainer"), ("late", "challenger")]
    assert party(result, "first").wei == -TERMS.challenger_stake
    assert party(result, "late").wei == HALF
    assert party(result, "trainer").wei == TERMS.challenger_stake // 2 - TERMS.trainer_stake


# ---------------------------------------------------------------- samples


def cheated(steps: tuple[int, ...]) -> Work:
    """A run in which one element of the gradient's first sum is another in each of these steps."""
    workshop = Workshop.open("exact")
    job = workshop.job(client=NOBODY, trainer=NOBODY, nonce=0, terms=TERMS)  # type: ignore[arg-type]
    leaf = workshop.program.commits[-1].operands[0].value

    def one_more(at, tensor):  # type: ignore[no-untyped-def]
        return tensor + 1 if at == leaf else tensor

    return altered(workshop, job, steps, lambda _: one_more)


@pytest.mark.parametrize(("steps", "false"), [((10,), {3}), ((1, 4, 5, 9), {0, 1, 2})])
def test_a_segment_is_false_where_something_was_changed_and_nowhere_else(
    steps: tuple[int, ...], false: set[int], workshop: Workshop
) -> None:
    run = cheated(steps)
    job = run.oracle.job
    found = {k for k in range(job.checkpoints) if replay_segment(workshop, job, run, k) != run.records[k]}
    assert found == false
    assert first_fraud(workshop, job, run, range(job.checkpoints)) == min(false)
    assert first_fraud(workshop, job, workshop.honest(job), range(job.checkpoints)) is None


def test_replay_refuses_a_state_other_than_the_committed_one(workshop: Workshop) -> None:
    run = cheated((2,))
    with pytest.raises(CannotCheck, match="expected the state after step 3 that was committed"):
        replay_segment(workshop, run.oracle.job, workshop.honest(run.oracle.job).__class__(
            records=run.records, oracle=run.oracle, computed_steps=0, lie=None, kept=workshop.run.state
        ), 1)  # fmt: skip


@pytest.mark.slow
def test_a_sampling_auditor_convicts_only_false_segments_that_it_draws() -> None:
    """Each whole game convicts if the false segment is among those drawn, and settles if it is not."""
    ends = Counter[tuple[bool, str]]()
    for seed in range(6):
        auditors: list[SamplingAuditor] = []

        def make(*args, **kwargs):  # type: ignore[no-untyped-def]
            auditors.append(given(SamplingAuditor, sample=2)(*args, **kwargs))  # noqa: B023
            return auditors[-1]  # noqa: B023

        cast = stage("one false sum", Random(seed))
        cast.expected.clear()
        cast.auditors = [CastMember(name="sampler", make=make, adversary="sampling auditor", funds=FUNDS)]
        result = play(cast, "-", Random(seed))
        assert (result.watched, result.violations) == (False, ())
        (sampler,) = auditors
        assert len(sampler.drawn) == 2
        ends[sampler.found is not None, result.job_status] += 1
        assert sampler.found is None or sampler.found in sampler.drawn
    assert set(ends) == {(True, "slashed"), (False, "settled")}, ends
