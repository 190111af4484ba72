"""One workshop for all games that a process plays."""

import pytest

from tiebreak.sim.world.workshop import Workshop


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    return Workshop.open("exact")
