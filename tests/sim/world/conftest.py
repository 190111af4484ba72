"""One workshop for all games that a process plays."""

import pytest

from sim.computing.workshop import Workshop


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    return Workshop.open("exact")
