"""`tiebreak worst` measures the factor of the slowest data."""

import re

import pytest

from tests.tiebreak.parties import Commands
from tiebreak.lab import worst


def test_the_factor_of_the_worst_data(monkeypatch: pytest.MonkeyPatch, command: Commands) -> None:
    monkeypatch.setattr(worst, "QUICK", (worst.product(1, 64, 64, 64), worst.plain(64, 64)))
    monkeypatch.setattr(worst, "PATTERNS", {"exact ties": worst.PATTERNS["exact ties"]})
    rows = dict(re.findall(r"^(compiled|without compiler) +([\d.]+) times as long .*: exact ties\)$",
                           command("worst", "--threads", 1), re.MULTILINE))  # fmt: skip
    assert rows.keys() == {"compiled", "without compiler"}
    assert all(float(factor) > 0 for factor in rows.values())
    assert command.tell("worst", "--threads", 1).keys() == rows.keys()
