"""Database connections that tell of each exchange with the database, for the app's engine to make.

What is watched is the driver, below the package and SQLAlchemy: nothing of either is replaced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

#: Called before each exchange with what is asked; whatever it raises, the driver raises.
Watch = Callable[[str], None]


def watched_options(url: str, watch: Watch) -> dict[str, Any]:
    """`SQLALCHEMY_ENGINE_OPTIONS` for an app whose connections are watched."""
    connect = _watched_sqlite if url.startswith("sqlite") else _watched_postgresql

    return {"creator": lambda: connect(url, watch)}


def _watched_postgresql(url: str, watch: Watch) -> psycopg.Connection[Any]:
    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            self.connection.asked = str(query)  # type: ignore[attr-defined]
            return super().execute(query, *args, **kwargs)

    class Connection(psycopg.Connection[Any]):
        asked = ""

        def wait(self, generator: Any, *args: Any, **kwargs: Any) -> Any:
            # Every exchange comes through here; those without a cursor are named after what they do.
            name = generator.__qualname__
            watch(self.asked if "execute" in name else name)
            return super().wait(generator, *args, **kwargs)

    conninfo = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = Connection.connect(conninfo)
    connection.cursor_factory = Cursor

    return connection


def _watched_sqlite(url: str, watch: Watch) -> sqlite3.Connection:
    class Cursor(sqlite3.Cursor):
        def execute(self, statement: str, *args: Any) -> Any:
            watch(statement)
            return super().execute(statement, *args)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = None) -> Any:
            return super().cursor(Cursor)

        def execute(self, statement: str, *args: Any) -> Any:
            return self.cursor().execute(statement, *args)

        def commit(self) -> None:
            if self.in_transaction:
                watch("COMMIT")
            super().commit()

    return sqlite3.connect(make_url(url).database or "", factory=Connection, check_same_thread=False)
