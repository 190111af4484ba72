"""`tiebreak worst` names the slowest pattern of each path."""

import re

import pytest

from tests.tiebreak.parties import Commands
from tiebreak.lab import worst


def test_worst_prints_the_slowdown_of_the_slowest_data_for_each_path(
    monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    monkeypatch.setattr(worst, "QUICK", (worst.product(1, 64, 64, 64), worst.plain(64, 64)))
    monkeypatch.setattr(worst, "PATTERNS", {"exact ties": worst.PATTERNS["exact ties"]})
    rows = command("worst").splitlines()
    for path, row in zip(("compiled", "without compiler"), rows, strict=True):
        found = re.fullmatch(rf"{path} +([\d.]+) times as long as ordinary data \(.*: exact ties\)", row)
        assert found is not None
        assert float(found[1]) > 0
    assert set(command.tell("worst")) == {"compiled", "without compiler"}
