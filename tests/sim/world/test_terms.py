"""The terms that an honest party keeps out of, at their edges."""

from dataclasses import replace

import pytest

from tests.protocol.bounds import max_moves
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.parties.terms import Pace, objections, objections_to_auditing, objections_to_training, turns
from tiebreak.sim.world.cast import TERMS
from tiebreak.sim.world.workshop import Workshop

PACE = Pace(block_seconds=12, step_seconds=20)
NOBODY = Address(bytes(19) + b"\x01")


@pytest.fixture(scope="module")
def job() -> Job:
    return Workshop.open("exact").job(client=NOBODY, trainer=NOBODY, nonce=0, terms=TERMS)


def test_usual_terms_are_no_reason_to_keep_out(job: Job) -> None:
    program = Workshop.open("exact").program
    assert objections_to_training(job, program, PACE) == objections_to_auditing(job, program, PACE) == ()


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_turns_are_half_of_the_longest_walk(job: Job, levels: int) -> None:
    some = replace(job, descent_levels=levels)
    assert 0 < turns(some, Workshop.open("exact").program) <= -(-max_moves(some) // 2)


@pytest.mark.parametrize("replay_time", [0, 59, 60, 600])
def test_a_clock_has_to_hold_a_block_for_each_move_and_what_replays_take(job: Job, replay_time: int) -> None:
    program = Workshop.open("exact").program
    needed = 12 * (turns(job, program) + 3) + 3 * max(0, 60 - replay_time)
    enough = replace(job, clock=needed, replay_time=replay_time)
    assert objections(enough, program, PACE) == ()
    assert objections(replace(enough, clock=needed + 1), program, PACE) == ()
    (sentence,) = objections(replace(enough, clock=needed - 1), program, PACE)
    assert sentence.startswith(f"expected a clock of at least {needed} seconds")


def test_a_window_has_to_hold_a_segment_and_its_head(job: Job) -> None:
    program, needed = Workshop.open("exact").program, 3 * 20 + 4 * 12
    assert objections_to_training(replace(job, challenge_window=needed), program, PACE) == ()
    (sentence,) = objections_to_training(replace(job, challenge_window=needed - 1), program, PACE)
    assert sentence == f"expected a window of at least {needed} seconds for a head, got {needed - 1}"


def test_a_short_window_is_no_danger_to_an_auditor(job: Job) -> None:
    assert objections_to_auditing(replace(job, challenge_window=1), Workshop.open("exact").program, PACE) == ()


def test_there_has_to_be_something_to_win(job: Job) -> None:
    program = Workshop.open("exact").program
    cheap = replace(job, challenger_stake=1)
    assert objections_to_auditing(replace(cheap, trainer_stake=2), program, PACE) == ()
    for stake in (0, 1):
        (sentence,) = objections_to_auditing(replace(cheap, trainer_stake=stake), program, PACE)
        assert sentence == f"expected a trainer's stake of at least 2 wei, of which half can be won, got {stake}"
