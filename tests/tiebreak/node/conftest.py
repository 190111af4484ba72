"""Databases for hubs."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from tests.tiebreak.node.hubs import DATABASES, postgres
from tiebreak.node.hub.store import Store


@pytest.fixture(scope="session")
def server() -> Iterator[str | None]:
    """What follows the database's name in a URL of PostgreSQL; None without one."""
    if "postgres" not in DATABASES:
        yield None
        return
    # A socket's path has to be short; a run that was killed may have left its folder.
    folder = Path("/tmp") / f"tiebreak-pg-{secrets.token_hex(6)}"
    with postgres(folder) as host:
        yield host


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, server: str | None, tmp_path: Path) -> str:
    """The URL of a new database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite+pysqlite:///{tmp_path / 'test.sqlite'}"
    name = f"t{abs(hash(tmp_path)):x}"
    admin = sql.create_engine(f"postgresql+psycopg://tiebreak@/postgres{server}", isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(sql.text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return f"postgresql+psycopg://tiebreak@/{name}{server}"


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    made = Store(database)
    yield made
    made.close()
