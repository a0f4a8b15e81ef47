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

#: Called after each exchange with what was asked: whether its reply is lost, and the connection with it.
Lose = Callable[[str], bool]


def watched_options(url: str, watch: Watch = lambda asked: None, lose: Lose = lambda asked: False) -> dict[str, Any]:
    """`SQLALCHEMY_ENGINE_OPTIONS` for an app whose connections are watched; replies get lost on PostgreSQL only."""
    if url.startswith("sqlite"):
        return {"creator": lambda: _watched_sqlite(url, watch)}

    return {"creator": lambda: _watched_postgresql(url, watch, lose)}


def _watched_postgresql(url: str, watch: Watch, lose: Lose) -> psycopg.Connection[Any]:
    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            self.connection.asked = str(query)  # type: ignore[attr-defined]
            return super().execute(query, *args, **kwargs)

    class Connection(psycopg.Connection[Any]):
        asked = ""

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            # Every exchange comes through here; those without a cursor are named after what they do.
            name = gen.__qualname__
            asked = self.asked if "execute" in name else name
            watch(asked)
            reply = super().wait(gen, *args, **kwargs)
            if lose(asked):
                self.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return reply

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
