"""What the app runs on, and how it is set up."""

from __future__ import annotations

import time
from datetime import timedelta

import sqlalchemy as sa
from flask import current_app
from flask.typing import ResponseReturnValue

from ...errors import ReadTimeout
from ...store import reading as read
from ..access import Permission
from ..pages.system import Database
from ..pages.system import system_page
from ..pages.system import Tables
from ..routes import get
from ..visit import Visit


def system(visit: Visit) -> ResponseReturnValue:
    database = _database(visit)
    with visit.reading() as connection:
        now = visit.now(connection)
    tables = None if visit.scope is not None else _tables(visit)
    page = system_page(current_app, visit.runtime.config, visit.runtime.hooks, database, tables)
    return visit.page("system", now, page, section="system", scoped=visit.scope is not None)


def _database(visit: Visit) -> Database:
    with visit.reading() as connection:
        # The first exchange may have to connect.
        read.database_now(connection)
        began, ticks = time.time(), time.monotonic()
        told = read.database_now(connection).timestamp()
        took = time.monotonic() - ticks
        version = read.server_version(connection)
        revisions = read.history_revisions(connection)
        dialect: sa.Dialect = connection.dialect
    return Database(
        dialect=dialect.name,
        driver=dialect.driver,
        version=version,
        problem=visit.schema_problem(),
        revisions=revisions,
        ahead=timedelta(seconds=told - began - took / 2) if visit.real_time else None,
        round_trip=timedelta(seconds=took),
    )


def _tables(visit: Visit) -> Tables | None:
    """How full the tables are; null where that takes too long, or a table is missing."""

    def look() -> Tables | None:
        try:
            with visit.reading() as connection:
                now = visit.now(connection)
                return Tables(read.count_rows(connection), read.oldest_due(connection, now))
        except (ReadTimeout, sa.exc.DBAPIError):
            return None

    return visit.site.kept.get(("tables",), look)


ROUTES = (get("/system", "system", Permission.VIEW_SYSTEM, system),)
