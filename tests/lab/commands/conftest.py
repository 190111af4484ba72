"""The fixtures of the tests of commands."""

from tests.tiebreak.conftest import command, parties, shared_parties, unchecked, unqualified

__all__ = ["command", "parties", "shared_parties", "unchecked", "unqualified"]
