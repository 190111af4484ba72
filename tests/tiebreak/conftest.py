"""One set of parties for all tests of commands that a process runs."""

from dataclasses import replace

import pytest

from tests.tiebreak.parties import PASSPHRASE, Commands, Once, Parties, make_parties
from tiebreak.api.training import tasks
from tiebreak.cli.key import PASSPHRASE_VARIABLE


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No comparison of captures with eager PyTorch, which has tests of its own."""
    monkeypatch.setattr(tasks, "checked", lambda task, *_: replace(tasks.capture_task(task), check="full"))


QUALIFY = "tiebreak.api.machine.interpreters.qualify"


@pytest.fixture(autouse=True)
def unqualified(monkeypatch: pytest.MonkeyPatch) -> None:
    """No conformance vectors before each run, which would be most of the time; `test_commands_doctor` runs them."""
    monkeypatch.setattr(QUALIFY, lambda _: None)


@pytest.fixture(scope="session")
def shared_parties(once: Once) -> Parties:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        patch.setattr(QUALIFY, lambda _: None)
        return Parties(once("parties", make_parties), once)


@pytest.fixture
def parties(shared_parties: Parties, monkeypatch: pytest.MonkeyPatch) -> Parties:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
    return shared_parties


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)
