"""One PostgreSQL database for all tests of a module, emptied after each.

For modules of many small tests that look at no more than rows: making a database takes longer than most of them.
Such a module imports both fixtures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from psycopg import sql

from tests.databases import PostgresServer

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"

_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="module")
def kept_database(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create_database()

    yield name

    postgres_server.drop_database(name)


@pytest.fixture
def postgresql_url(postgres_server: PostgresServer, kept_database: str) -> Iterator[str]:
    yield postgres_server.url(kept_database)

    with contextlib.closing(postgres_server.connect(kept_database)) as connection:
        # Whoever is still connected might hold a lock; what a test left running is not to write any more.
        connection.execute(_OTHERS)
        tables = [sql.Identifier(name) for (name,) in connection.execute(_TABLES)]
        if tables:
            connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(tables)))
