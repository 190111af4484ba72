"""One yard for all tests of the simulator that a process runs."""

import pytest

from tests.sim.yard import Yard


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return Yard(tmp_path_factory.mktemp("yard"))
