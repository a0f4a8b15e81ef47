"""Lists in the order runs fall due, soonest first.

Of not too many runs all are sorted. Otherwise the index on `due_at`, which holds every unfinished run, is gone through
from where the page begins, over a bounded number of runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from ...errors import InvalidCursor
from ...models import runs
from ...runs import Cursor
from ...runs import Page
from ...runs import RunQuery
from .criteria import Facts
from .plans import Plan
from .rows import Conditions
from .rows import run_of

Columns = Sequence[sa.ColumnElement[Any]]


def list_by_due(
    facts: Facts, query: RunQuery, columns: Columns, *, scan: int | None, until: str | None, real_time: bool
) -> Page:
    """As `list_runs`; runs that are not due at any time are left out."""
    cursor = None if query.cursor is None else Cursor.read(query.cursor)
    if cursor is not None and cursor.due is None:
        raise InvalidCursor(f"{query.cursor!r} is of a list in another order")
    newer = cursor is not None and cursor.newer
    plan = Plan(facts, replace(query, cursor=None), scan=scan, until=until, real_time=real_time)
    walk = None
    if scan is None or _are_few(facts.connection, plan, scan):
        found = _sorted(plan, columns, cursor)
    else:
        walk = _walk(plan, cursor, scan)
        found = _met(plan, columns, walk)
    rows = facts.connection.execute(_ordered(found, runs.c, newer=newer).limit(query.limit + 1)).mappings().all()
    listed = [run_of(row) for row in rows]
    more = len(listed) > query.limit
    listed = listed[: query.limit]
    edge = _place_of(rows[query.limit - 1]) if more else _edge(facts.connection, walk, scan, newer=newer)

    if not newer:
        older = None if edge is None else str(Cursor(False, edge[1], edge[0]))
        back = None if cursor is None else str(_back(rows, cursor))
        return Page(tuple(listed), older=older, newer=back, searched=scan if edge is not None and not more else None)
    if edge is None:
        # The first page is always a full one.
        first = replace(query, cursor=None)
        return list_by_due(facts, first, columns, scan=scan, until=until, real_time=real_time)
    assert cursor is not None
    return Page(
        tuple(reversed(listed)),
        older=str(_back(rows, cursor)),
        newer=str(Cursor(True, edge[1], edge[0])),
        searched=None if more else scan,
    )


def _back(rows: Sequence[sa.RowMapping], cursor: Cursor) -> Cursor:
    """The way back to where a page was come from."""
    if not rows:
        return Cursor.at(not cursor.newer, cursor.id, cursor.due)
    due, run_id = _place_of(rows[0])
    return Cursor(not cursor.newer, run_id, due)


def _place_of(row: sa.RowMapping) -> tuple[int | None, str]:
    return row["due_at"], row["id"]


def _are_few(connection: sa.Connection, plan: Plan, scan: int) -> bool:
    """Whether all runs the plan would look at can be looked at."""
    for branch in plan.branches:
        looked = plan.looked(replace(branch, filters=()), scan + 1).subquery()
        if (connection.scalar(sa.select(sa.func.count()).select_from(looked)) or 0) > scan:
            return False
    return True


def _sorted(plan: Plan, columns: Columns, cursor: Cursor | None) -> sa.Select[Any]:
    found = plan.ids(None)
    chosen = sa.select(runs.c.id).where(sa.false()) if found is None else sa.select(found.subquery().c.id)
    return sa.select(*columns).where(runs.c.id.in_(chosen), runs.c.due_at.is_not(None), *_beyond(cursor))


def _walk(plan: Plan, cursor: Cursor | None, scan: int) -> sa.Subquery:
    """The runs due next, with what the filters must know of them."""
    names = {name for criteria in plan.criteria for one in criteria.all_filters for name in one.columns}
    columns = [runs.c.id, runs.c.due_at, *(runs.c[name] for name in sorted(names - {"id", "due_at"}))]
    query = sa.select(*columns).where(runs.c.due_at.is_not(None), *_beyond(cursor))
    return _ordered(query, runs.c, newer=cursor is not None and cursor.newer).limit(scan).subquery("walk")


def _met(plan: Plan, columns: Columns, walk: sa.Subquery) -> sa.Select[Any]:
    met = [
        sa.and_(sa.true(), *(one.of(walk.c) for one in criteria.all_filters), *criteria.ids)
        for criteria in plan.criteria
    ]
    return sa.select(*columns).join(walk, walk.c.id == runs.c.id).where(sa.or_(sa.false(), *met), *plan.range)


def _edge(
    connection: sa.Connection, walk: sa.Subquery | None, scan: int | None, *, newer: bool
) -> tuple[int | None, str] | None:
    """The last place that was looked at, where looking was cut short."""
    if walk is None or scan is None:
        return None
    last = _ordered(sa.select(walk.c.due_at, walk.c.id), walk.c, newer=newer).limit(1).offset(scan - 1)
    row = connection.execute(last).one_or_none()
    return None if row is None else (row.due_at, row.id)


def _beyond(cursor: Cursor | None) -> Conditions:
    if cursor is None or cursor.due is None:
        return ()
    if cursor.newer:
        within = sa.or_(runs.c.due_at < cursor.due, runs.c.id < cursor.id)
        return (runs.c.due_at <= cursor.due, within)
    return (runs.c.due_at >= cursor.due, sa.or_(runs.c.due_at > cursor.due, runs.c.id > cursor.id))


def _ordered(query: sa.Select[Any], columns: Any, *, newer: bool) -> sa.Select[Any]:
    if newer:
        return query.order_by(columns.due_at.desc(), columns.id.desc())
    return query.order_by(columns.due_at, columns.id)
