"""The registry: everyone by name."""

import pytest

from tiebreak.protocol.errors import ConfigurationError
from tiebreak.sim.adversaries.base import Adversary, Catch, Role
from tiebreak.sim.adversaries.catalogue import CATALOGUE, MODULES, WEAKNESSES, adversary

EVERYONE = {**CATALOGUE, **WEAKNESSES}


@pytest.mark.parametrize("name", EVERYONE)
def test_everyone_can_be_asked_for(name: str) -> None:
    found = adversary(name)
    assert isinstance(found, Adversary)
    assert found.name == name == name.strip()
    assert len(found.gain) > 10
    assert isinstance(found.role, Role)
    assert found.open == (name in WEAKNESSES)
    assert bool(found.caught) != found.open, "who is caught is caught somewhere; what is open is not"
    assert all(isinstance(catch, Catch) for catch in found.caught)


def test_there_are_at_least_twenty_five() -> None:
    assert len(CATALOGUE) >= 25
    assert len([one for one in CATALOGUE.values() if one.role is Role.TRAINER]) >= 25
    assert not WEAKNESSES, "what the rules do not stop"


def test_nobody_has_somebody_elses_name() -> None:
    rows = [one for module in MODULES for one in module.ADVERSARIES]
    assert len(rows) == len(EVERYONE)
    with pytest.raises(ConfigurationError, match=r"expected an adversary, one of .*poisoned label.*; got 'nobody'"):
        adversary("nobody")
