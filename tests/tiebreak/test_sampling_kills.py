"""A run whose process is killed at any moment, in the middle of a draft too, is the run that nobody disturbed."""

import json
from pathlib import Path

import pytest

from tests.conftest import CaseCounter
from tests.engine.processes import printed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_killed_run_samples_and_commits_the_same(tmp_path: Path, cases: CaseCounter, kills: int) -> None:
    found = json.loads(printed("-W", "ignore", "-m", "tests.tiebreak.sampling_kills", str(tmp_path), str(kills)))
    assert all(found["equal"])
    assert found["killed"]["drafting"] > 0
    cases(sum(found["killed"].values()))
