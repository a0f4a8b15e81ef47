"""Connections to read from: rolled back afterwards, and limited in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import nullcontext
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...errors import ReadTimeout
from .rows import instant

_DEADLINE = "workflows_deadline"

#: A plan kept from other values may miss the index that these have; and queries this short are not worth compiling.
_FOR_READING = "SET LOCAL statement_timeout = {milliseconds}; SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL jit = off; SET LOCAL enable_seqscan = off"


@contextmanager
def reading(engine: sa.Engine, *, seconds: float | None = None) -> Iterator[sa.Connection]:
    """Lend a connection to read from; it is rolled back afterwards.

    With `seconds`, statements that take longer raise `ReadTimeout`; so does an engine whose connections are all in use.
    """
    with _connected(engine, patient=seconds is None) as connection:
        try:
            with nullcontext() if seconds is None else _limited(connection, seconds):
                yield connection
        finally:
            connection.rollback()


def _connected(engine: sa.Engine, *, patient: bool) -> sa.Connection:
    try:
        return engine.connect()
    except sa.exc.TimeoutError:
        if patient:
            raise
        raise ReadTimeout("no connection to the database became free in time") from None


@contextmanager
def _limited(connection: sa.Connection, seconds: float) -> Iterator[None]:
    driver: Any = connection.connection.driver_connection
    sqlite = connection.dialect.name == "sqlite"
    deadline = time.monotonic() + seconds
    connection.info[_DEADLINE] = deadline
    if sqlite:
        driver.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_FOR_READING.format(milliseconds=int(seconds * 1000)))
    try:
        yield
    except sa.exc.OperationalError as error:
        if _is_timeout(error):
            raise ReadTimeout(f"reading took more than {seconds:g} s") from None
        raise
    finally:
        connection.info.pop(_DEADLINE, None)
        if sqlite:
            driver.set_progress_handler(None, 0)


def check_time(connection: sa.Connection) -> None:
    """Between statements: raise `ReadTimeout` where the time of a limited connection is over."""
    if time.monotonic() > connection.info.get(_DEADLINE, float("inf")):
        raise ReadTimeout("reading took too long")


def _is_timeout(error: sa.exc.DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) == "57014" or str(error.orig) == "interrupted"


def database_now(connection: sa.Connection) -> datetime:
    """The database's clock: what `created_at` and `due_at` compare with."""
    if connection.dialect.name == "sqlite":
        expression = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
    elif connection.dialect.name == "postgresql":
        expression = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    else:
        expression = "CAST(unix_timestamp(now(3)) * 1000 AS signed)"
    return instant(connection.scalar(sa.text(f"SELECT {expression}")))
