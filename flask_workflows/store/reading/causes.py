"""Runs that failed for one cause."""

from __future__ import annotations

import sqlalchemy as sa

from ...models import runs
from ...runs import Count
from .rows import capped

#: How many runs are looked through for those of some workspaces.
_LOOKED = 10_000


def count_cause(connection: sa.Connection, cause: str, workspaces: tuple[str, ...] | None, cap: int = 1_001) -> Count:
    """How many runs failed for a cause and still are failed; of some workspaces, among the newest such runs."""
    newest = sa.select(runs.c.workspace).where(runs.c.cause == cause).order_by(runs.c.id.desc())
    if workspaces is None:
        found = newest.limit(cap).subquery()
        return capped(connection.scalar(sa.select(sa.func.count()).select_from(found)) or 0, cap)
    looked = newest.limit(_LOOKED).subquery()
    theirs = sa.func.count(sa.case((looked.c.workspace.in_(workspaces), 1)))
    value, rows = connection.execute(sa.select(theirs, sa.func.count()).select_from(looked)).one()
    return Count(min(value, cap - 1), capped=value >= cap or rows >= _LOOKED)
