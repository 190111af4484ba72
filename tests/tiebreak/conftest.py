"""One set of parties for all tests of commands that a process runs."""

import pytest

from tests.tiebreak.parties import PASSPHRASE, Parties, make_parties
from tiebreak.cli.keyfiles import PASSPHRASE_VARIABLE


@pytest.fixture(scope="session")
def shared_parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        return make_parties(tmp_path_factory.mktemp("parties"))


@pytest.fixture
def parties(shared_parties: Parties, monkeypatch: pytest.MonkeyPatch) -> Parties:
    """The parties, with the passphrase of their keys in the environment."""
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    return shared_parties
