"""The fixtures of the commands' tests."""

from tests.tiebreak.conftest import command, unqualified

__all__ = ["command", "unqualified"]
