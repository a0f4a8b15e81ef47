"""What the database says of itself, and how full the tables are."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from ...models import metadata
from ...models import runs
from ...runs import Count
from .rows import capped
from .rows import millis
from .runs import COUNT_CAP

#: Alembic's own table: where the app's history stands.
_HISTORY = "alembic_version"

#: How many due runs are looked at.
DUE_CAP = 10_001


def server_version(connection: sa.Connection) -> str:
    """Such as "16.4" or "3.45.1"."""
    if connection.dialect.name == "postgresql":
        return str(connection.scalar(sa.text("SHOW server_version")))
    return ".".join(map(str, connection.dialect.server_version_info or ()))


def count_rows(connection: sa.Connection, *, cap: int = COUNT_CAP) -> Mapping[str, Count]:
    """How many rows each table has, up to a cap."""
    counts = []
    for name, table in metadata.tables.items():
        some = sa.select(sa.literal(1)).select_from(table).limit(cap).subquery()
        counts.append(sa.select(sa.literal(name), sa.func.count()).select_from(some))
    return {name: capped(value, cap) for name, value in connection.execute(sa.union_all(*counts))}


def due_queues(connection: sa.Connection, now: datetime) -> tuple[str, ...]:
    """The queues that have runs waiting for a worker, as far as those due longest tell."""
    due = (
        sa.select(runs.c.queue)
        .where(runs.c.due_at.is_not(None), runs.c.due_at <= millis(now))
        .order_by(runs.c.due_at)
        .limit(DUE_CAP)
        .subquery()
    )
    return tuple(connection.scalars(sa.select(due.c.queue).distinct().order_by(due.c.queue)))


def history_revisions(connection: sa.Connection) -> tuple[str, ...]:
    """The revisions the app's migrations are at; none where it has no such history."""
    if not sa.inspect(connection).has_table(_HISTORY):
        return ()
    version = sa.table(_HISTORY, sa.column("version_num"))
    return tuple(map(str, connection.scalars(sa.select(version.c.version_num).order_by(version.c.version_num))))
