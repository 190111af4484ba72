"""Real machines, driven over real time: a run is offered, trained, audited, and settled or disputed."""

from pathlib import Path

import pytest

from tests.tiebreak.node.town import Town
from tiebreak.api.bundle import capture_bundle
from tiebreak.api.offers import offer_on
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.parties.board import JobStatus
from tiebreak.sim.world.small_task import small_task

TERMS = Terms(challenge_window=15, clock=150, replay_time=10, talk_time=30, audit_time=10, deadline=600)


def _play(tmp_path: Path, cheat: str) -> Town:
    town = Town(tmp_path)
    client, trainer, auditor = (town.funded() for _ in range(3))
    town.join("client", client)
    town.join("trainer", trainer, cheat=cheat)
    town.join("auditor", auditor)
    bundle = capture_bundle(small_task())
    made = offer_on(bundle, tmp_path / "offer", client=client, trainer=trainer.address, terms=TERMS, domain=town.domain)
    (tmp_path / "client" / "jobs").mkdir(exist_ok=True)
    (tmp_path / "offer").rename(tmp_path / "client" / "jobs" / made.job.id.hex())
    town.run_until(lambda: made.job.id in town.board.jobs and town.board.jobs[made.job.id].is_over, 200)
    for driver in town.drivers:
        driver.close()
    return town


@pytest.mark.parametrize(("cheat", "ending"), [("", JobStatus.SETTLED), ("rate", JobStatus.SLASHED)])
def test_a_run_ends_as_it_should(tmp_path: Path, cheat: str, ending: JobStatus) -> None:
    town = _play(tmp_path, cheat)
    (job,) = town.board.jobs.values()
    assert job.status is ending
