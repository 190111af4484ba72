"""One set of parties for all tests of commands that a process runs."""

from dataclasses import replace

import pytest

from tests.tiebreak.parties import PASSPHRASE, Parties, make_parties
from tiebreak.cli.key import PASSPHRASE_VARIABLE
from tiebreak.engine.capture.compile import compile_task


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No comparison of captures with eager PyTorch, which has tests of its own."""
    monkeypatch.setattr("tiebreak.api.tasks.checked", lambda task: replace(compile_task(task), checked=True))


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
