"""The fixtures of the tests of commands, and databases for hubs."""

from tests.tiebreak.conftest import command, parties, shared_parties, unchecked, unqualified
from tests.tiebreak.node.conftest import database, server, store

__all__ = ["command", "database", "parties", "server", "shared_parties", "store", "unchecked", "unqualified"]
