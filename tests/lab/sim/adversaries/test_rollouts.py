"""Trainers that learn from other answers than their model's samples, and honest ones, each with its own sampler."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor

from tests.lab.sim.adversaries.playing import DOMAIN, TRAINER, convict, fight, job_of, lied, party, played
from tests.parts import slow_except
from tiebreak.engine.run.interpreter import State
from tiebreak.lab.sim.adversaries.base import Catch
from tiebreak.lab.sim.adversaries.rollouts import ADVERSARIES, SampledStep, forged
from tiebreak.lab.sim.adversaries.tampering import deviating
from tiebreak.lab.sim.world.game import TERMS, Cast, play
from tiebreak.lab.sim.world.rollout_task import ADVANTAGES, END, LENGTH, MASK, ROWS, TOKENS, VOCABULARY, Sampling
from tiebreak.lab.sim.world.work import Work
from tiebreak.lab.sim.world.workshop import SAMPLINGS, Workshop
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.errors import CannotCheck
from tiebreak.protocol.game.moves import Side
from tiebreak.protocol.numbers.float32 import is_finite
from tiebreak.protocol.parties.transactions import ReportLoss
from tiebreak.protocol.program.isa import Opcode

PUBLISHED = [kind.name for kind in ADVERSARIES if kind.caught == {Catch.NONFINITE}]
COMPUTED = [kind.name for kind in ADVERSARIES if Catch.RECOMPUTED in kind.caught]
HIDDEN = [kind.name for kind in ADVERSARIES if kind.caught == {Catch.PARTED}]
NAMES = [kind.name for kind in ADVERSARIES]


@pytest.fixture
def workshop() -> Workshop:
    return Workshop.open("rollouts")


def first_unfinite(work: Work) -> int:
    """The first step whose loss is no finite number."""
    return next(n for n, step in enumerate(work.oracle.run.steps, 1) if not is_finite(step.loss_bits))


# ---------------------------------------------------------------- honest trainers


@pytest.mark.parametrize("how", [*SAMPLINGS, Sampling(rows=1, dtype=torch.bfloat16, wrong=1.0)])
def test_every_way_of_sampling_gives_the_same_tokens(how: Sampling, workshop: Workshop) -> None:
    sampler, run = workshop.sampler(how), workshop.run
    for step in range(1, 11):
        late = sampler(step, run.state(step - 1))
        assert {name: bytes(tensor.numpy().tobytes()) for name, tensor in late.items()} == run.step_log(step).late
    assert bool(sampler.corrected) == bool(how.wrong)


def test_honest_trainers_sign_the_same_run_however_they_sample(workshop: Workshop) -> None:
    job, rng = job_of(workshop), Random(1)
    works = [workshop.trained(job, rng) for _ in range(24)]
    assert len({id(work.oracle.run.steps) for work in works}) == len(SAMPLINGS)
    assert {work.records for work in works} == {workshop.honest(job).records}
    assert {work.lie for work in works} == {None}


def test_rollouts_are_of_both_kinds_and_move_the_weights(workshop: Workshop) -> None:
    late = [workshop.supply(step, workshop.run.state(step - 1)) for step in range(1, 11)]
    lengths = torch.cat([one[MASK].sum(1) for one in late])
    assert set(lengths.tolist()) == set(range(1, LENGTH + 1))
    assert {bool(one[TOKENS][row, -1] == END) for one in late for row in range(ROWS)} == {False, True}
    first, last = (workshop.run.state(step) for step in (0, 10))
    for name, tensor in first.items():
        kept = name.startswith("model.reference.") or name == "model.rollouts_sampled"
        assert torch.equal(tensor, last[name]) == kept, name


def test_a_trainer_declares_the_advantages_that_it_likes(workshop: Workshop) -> None:
    """Nobody can convict it, and no game is lost over it: the run is the right one of what it published."""

    def supply(step: int, state: State) -> Mapping[str, Tensor]:
        return {**workshop.supply(step, state), ADVANTAGES: torch.full((ROWS,), 8.0)}

    job = job_of(workshop)
    work = deviating(workshop, job, lambda _: None, supply=supply)
    assert work.lie is None
    assert work.records[0] != workshop.honest(job).records[0]
    assert workshop.audited(job, work).records == work.records


@pytest.mark.parametrize("step", [1, 5])
def test_a_trainer_parts_where_a_clients_program_diverges(step: int, workshop: Workshop) -> None:
    """Else a client could draft a program for the stake of a trainer that may not go on."""
    rates = workshop.captured.data["learning_rate"].clone()
    rates[step - 1] = float("inf")
    diverging = Workshop("rollouts", replace(workshop.captured, data=workshop.captured.data | {"learning_rate": rates}))
    assert diverging.run.forbidden[0] == step + 1
    result = play(Cast(workshop=diverging, dishonest={"client": "a program that diverges"}), "-", Random(1))
    assert (result.job_status, result.violations) == ("parted", ())
    receipts = step // 3
    assert party(result, "trainer").wei == TERMS.reward * receipts // 4


# ---------------------------------------------------------------- what is published


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_false_rollout_makes_each_record_after_it_unfinite(name: str, workshop: Workshop) -> None:
    job = job_of(workshop)
    work, lie = lied(name, 3, workshop)
    first = first_unfinite(work)
    assert lie.step == job.last_step(job.checkpoint_of(first))
    assert all(not is_finite(step.loss_bits) for step in work.oracle.run.steps[first - 1 :])
    assert workshop.audited(job, work).records == work.records, "no game would find anything"
    finite = all(bool(x.isfinite().all()) for x in work.oracle.run.state(job.steps).values() if x.ndim == 2)
    assert finite == (name != "token out of range"), "gradient and update are those of the loss"
    with pytest.raises(CannotCheck):
        workshop.audited(job, replace(work, logs=None))


def changed(workshop: Workshop, row: int, **changes: Tensor) -> Work:
    """The run of a trainer whose first step has other late data in a row."""

    def forgery(given: SampledStep, _rng: Random) -> Mapping[str, Tensor]:
        return given.changed(row, **{name: lambda _, put=put: put for name, put in changes.items()})  # type: ignore[misc]

    class First(Random):
        def randint(self, a: int, b: int) -> int:
            return a

    return forged(forgery)(workshop, job_of(workshop), First(0))


def test_a_mask_may_not_weigh_tokens_behind_an_answers_end(workshop: Workshop) -> None:
    """A mask of 2 asks for no sample, so a loss that multiplied by it would learn any token there."""
    late = workshop.supply(1, workshop.run.state(0))
    row = int(late[MASK].sum(1).argmin())
    length = int(late[MASK][row].sum())
    assert length < LENGTH
    for value in (2, -1):
        mask = late[MASK][row].clone()
        mask[length:] = value
        assert first_unfinite(changed(workshop, row, mask=mask)) == 1
    assert changed(workshop, row, mask=late[MASK][row]).lie is None


@pytest.mark.parametrize("token", [VOCABULARY, -1, -(1 << 63)])
def test_a_token_out_of_range_reads_nan_and_nothing_else(token: int, workshop: Workshop) -> None:
    tokens = workshop.supply(1, workshop.run.state(0))[TOKENS][0].clone()
    tokens[0] = token
    work, program = changed(workshop, 0, tokens=tokens), workshop.program
    assert first_unfinite(work) == 1
    embedded = next(
        n for n, i in enumerate(program.body) if i.opcode == Opcode.GATHER and i.origin.startswith("policy.embedding")
    )
    read = torch.frombuffer(bytearray(work.oracle.tensor(1, embedded)), dtype=torch.float32)
    rows = read.view(program.body[embedded].shape).isnan().all(-1)
    assert rows.nonzero().tolist() == [[0, 2]], "behind the two tokens of the prompt"
    assert work.oracle.run.state(1)["model.rollouts_sampled"] == 0


def test_the_record_that_convicts_can_be_opened_under_every_later_head(workshop: Workshop) -> None:
    work, lie = lied("forged token", 3, workshop)
    job = job_of(workshop)
    assert job.demands_finite_losses
    for count in range(1, job.checkpoints + 1):
        head = SignedHead.sign(Head(job_id=job.id, count=count, run_root=work.run_root(count)), DOMAIN, TRAINER)
        found = ReportLoss.of(job, head, work.records)
        assert (found is None) == (count <= job.checkpoint_of(lie.step))
        assert found is None or found.record(job) == work.records[job.checkpoint_of(lie.step)]
        assert ReportLoss.of(job, head, workshop.honest(job).records) is None


# ---------------------------------------------------------------- what is computed, and what is hidden


@pytest.mark.parametrize("name", COMPUTED)
def test_other_numbers_than_those_of_the_published_data_are_convicted(name: str) -> None:
    convict(name, 2)


@pytest.mark.parametrize("name", HIDDEN)
def test_nobody_can_check_late_data_that_are_not_the_committed_ones(name: str, workshop: Workshop) -> None:
    job, (work, lie) = job_of(workshop), lied(name, 3, workshop)
    with pytest.raises(CannotCheck):
        workshop.audited(job, work)
    readable, problem = workshop.readable(work)
    assert readable <= job.checkpoint_of(lie.step)
    assert problem
    match = fight(job, job.checkpoints, work.oracle, workshop.told(job, work).oracle)
    assert match.loser is Side.DEFENDER, "whoever knew the data would win"


# ---------------------------------------------------------------- whole games


@pytest.mark.parametrize("name", slow_except(NAMES, "forged token", "late data too long"))
def test_each_of_them_ends_where_it_has_to(name: str) -> None:
    result = played(name, 5)
    assert result.job_status == ("parted" if name in HIDDEN else "slashed")
    assert result.watched == (name not in HIDDEN), "nobody can check those"
