"""One yard and one workshop for all tests of the simulator that a process runs."""

import pytest

from tests.lab.sim.yard import Yard
from tiebreak.lab.sim.world.workshop import Workshop


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return Yard(tmp_path_factory.mktemp("yard"))


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    return Workshop.open("exact")
