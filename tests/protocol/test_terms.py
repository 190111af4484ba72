"""Objections to the terms of a job: each limit, computed from plain numbers, is exact to the second or the wei."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.protocol.logged import logged_job
from tests.protocol.runs import DOMAIN, STEPS, make_job, program
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.parties import terms
from tiebreak.protocol.parties.board import JobStatus, PublicJob, loss_of
from tiebreak.protocol.parties.terms import Pace, turns

JOB = replace(
    make_job(), clock=10_000, replay_time=100, talk_time=0, challenge_window=50_000, audit_time=5_000, deadline=400_000,
    trainer_stake=20_000, challenger_stake=20,
)  # fmt: skip
"""Three checkpoints of two steps, and terms to which nobody objects."""
PACE = Pace(block_seconds=12, step_seconds=1.3, slowdown=10, games=2, beside=5.5)
SEGMENT = 26
"""Seconds of a segment on the worst data: 2 * 1.3 * 10. On ordinary data: 2.6, so 3."""
SENDING = (1 + 3) * 12
"""Seconds for one transaction that may have to wait for three blocks."""
SEVEN_WEEKS = 1 << 22

Objections = Callable[[Job], tuple[str, ...]]


def playing(job: Job) -> tuple[str, ...]:
    return terms.objections(job, program(), PACE)


def training(job: Job) -> tuple[str, ...]:
    return terms.objections_to_training(job, program(), PACE)


STARTING = replace(PACE, start_seconds=40.2)
"""The same on a machine where a process takes 41 whole seconds until its first step."""


def starting(job: Job) -> tuple[str, ...]:
    return terms.objections_to_training(job, program(), STARTING)


def sitting(job: Job) -> tuple[str, ...]:
    return terms.objections_to_sitting(job, program(), replace(STARTING, step_wei=1))


def auditing(job: Job) -> tuple[str, ...]:
    return terms.objections_to_auditing(job, program(), PACE)


def paying(job: Job) -> tuple[str, ...]:
    return terms.objections_to_paying(job, PACE)


CLOCK = (turns(JOB, program()) + 3) * 12
RUN = 3 * (SEGMENT + SENDING)
SEATED = replace(JOB, seats=1, seat_fee=STEPS, seat_bond=1)
WHOLE = 41 + 3 * SEGMENT + SENDING
"""Seconds for an audit of the whole run, with a start."""
LIMITS: dict[str, tuple[Objections, Job, str, int, int]] = {
    "clock": (playing, JOB, "clock", CLOCK, -1),
    "clock with replays that take longer": (playing, replace(JOB, replay_time=10), "clock", CLOCK + 3 * (58 - 10), -1),
    "talk": (playing, JOB, "talk_time", (3 + 3) * 12 + 1, -1),
    "no talk": (playing, JOB, "talk_time", 0, 1),
    "longest game": (playing, JOB, "talk_time", SEVEN_WEEKS - 3 * JOB.clock - 6 * JOB.replay_time, 1),
    "window for a head": (training, JOB, "challenge_window", SEGMENT + SENDING, -1),
    "deadline": (training, JOB, "deadline", RUN, -1),
    "window that holds the stake": (training, JOB, "challenge_window", 4 * RUN + SEVEN_WEEKS, 1),
    "audits that hold the stake": (training, JOB, "audit_time", (4 * RUN + SEVEN_WEEKS) // 3, 1),
    "window for a head after a start": (starting, JOB, "challenge_window", 41 + SEGMENT + SENDING, -1),
    "deadline with a start": (starting, JOB, "deadline", 41 + RUN, -1),
    "clock with a start of each of two games": (starting, JOB, "clock", CLOCK + (58 + 81 - 100), -1),
    "seat with a start": (sitting, replace(SEATED, audit_time=1), "challenge_window", WHOLE, -1),
    "fee of a seat": (sitting, SEATED, "seat_fee", STEPS, -1),
    "hold of a deposit": (sitting, SEATED, "deadline", 4 * WHOLE + SEVEN_WEEKS, 1),
    "challenger's stake": (training, JOB, "challenger_stake", 20, -1),
    "trainer's stake": (auditing, replace(JOB, challenger_stake=4_001), "trainer_stake", 5, -1),
    "trainer's stake that is all but nothing": (auditing, JOB, "trainer_stake", 2, -1),
    "audit time": (paying, replace(JOB, challenge_window=1), "audit_time", 3 + SENDING, -1),
    "window for an audit": (paying, replace(JOB, audit_time=1), "challenge_window", 3 * (3 + SENDING), -1),
    "deadline that holds the reward": (paying, JOB, "deadline", 4 * RUN + SEVEN_WEEKS, 1),
}


SAID = {
    "clock": "a clock of at least", "talk": "no talk, or one of more than 72", "no": "no talk, or one of more than 72",
    "longest": f"a game of at most {SEVEN_WEEKS}", "window": "", "deadline": "a deadline", "audits": "the stake back",
    "challenger's": "a challenger's stake of at least 20", "trainer's": "a trainer's stake of at least",
    "audit": "an audit time of at least 51", "seat": "at least 167 seconds for an audit of the whole run",
    "fee": "a seat fee of at least 5 wei", "hold": "a deadline of at most",
}  # fmt: skip
"""How a reason begins, by the first word of the limit."""


def test_nobody_objects_to_the_job_of_these_tests() -> None:
    assert playing(JOB) == training(JOB) == auditing(JOB) == paying(JOB) == sitting(SEATED) == ()


@pytest.mark.parametrize("name", LIMITS)
def test_limit_of_the_terms_is_exact(name: str) -> None:
    """One more than the limit, or one less, is objected to, and the limit is not."""
    judged, job, field, limit, beyond = LIMITS[name]
    for allowed in (limit, max(0, limit - beyond)):
        assert judged(replace(job, **{field: allowed})) == ()
    (reason,) = judged(replace(job, **{field: limit + beyond}))
    assert reason.startswith(f"expected {SAID[name.split(maxsplit=1)[0]]}")
    assert reason.endswith(": here a start takes 40.2 s and a step 1.3 s") == (judged is starting)


def test_the_reason_of_a_loss_names_what_was_late_and_the_stake() -> None:
    public = PublicJob(job=JOB, status=JobStatus.ABANDONED, last_progress=7, accepted=7)
    lost = "; the trainer lost its stake of 0.00000000000002 ether"
    assert terms.ether(JOB.trainer_stake) in lost
    found = {
        "head 1 did not come within 50000 s of acceptance": public,
        "head 2 did not come within 50000 s of head 1": replace(public, head_count=1, last_progress=350_007),
        "the final head did not come within 400000 s of acceptance": replace(public, last_progress=350_008),
        "its sealed head was not opened in time": replace(public, head_count=JOB.checkpoints),
        "its trainer was convicted": replace(public, status=JobStatus.SLASHED),
    }
    assert {loss_of(JOB, state) for state in found.values()} == {why + lost for why in found}
    for status in (JobStatus.ACTIVE, JobStatus.OFFERED, JobStatus.SETTLED, JobStatus.CANCELLED, JobStatus.PARTED):
        assert loss_of(JOB, replace(public, status=status)) == ""


def test_missing_program_single_checkpoint_or_bad_seats_are_objected_to() -> None:
    for judged in (terms.objections, terms.objections_to_sitting):
        assert judged(JOB, None, PACE) == ("it does not have the program",)
    (alone,) = terms.objections_to_training(
        replace(logged_job(interval=5), **{name: getattr(JOB, name) for name in (
            "clock", "challenge_window", "deadline", "trainer_stake", "challenger_stake")}), program(), PACE,
    )  # fmt: skip
    assert "expected two checkpoints or more" in alone
    assert terms.objections_to_seats(JOB, OFF_CHAIN) == terms.objections_to_seats(SEATED, DOMAIN) == ()
    assert "expected a job without seats" in terms.objections_to_seats(SEATED, OFF_CHAIN)[0]
