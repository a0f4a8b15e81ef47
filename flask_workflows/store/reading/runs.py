"""Lists of runs, and how many there are. Lists never read a payload."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from ...models import runs
from ...runs import Count
from ...runs import Cursor
from ...runs import LIVE
from ...runs import Page
from ...runs import RunQuery
from ...runs import RunStatus
from . import plans
from .plans import Facts
from .plans import Plan
from .rows import capped
from .rows import run_of
from .rows import SUMMARY

#: Counting stops here.
COUNT_CAP = 10_001

#: For the names of workflows in some workspaces, so many of the newest runs are looked at.
_NAMED = 2_000


def list_runs(
    connection: sa.Connection,
    query: RunQuery,
    *,
    payloads: bool = False,
    scan: int | None = None,
    until: str | None = None,
    real_time: bool = True,
) -> Page:
    """The runs of one page, newest first. Raises `InvalidCursor`.

    `payloads` also reads inputs, outputs and whole errors. `scan` bounds how many runs are looked at for a queue,
    workspace or key, which no index knows; a page that ended early for that says so in `searched`. `until` leaves
    out runs newer than that id. Without `real_time`, `created_at` comes from a clock that was set, as in tests, and ids
    say nothing about it.
    """
    plan = Plan(Facts(connection), query, scan=scan, until=until, real_time=real_time)
    listed = [run_of(row) for row in plan.rows(query.limit + 1, tuple(runs.c) if payloads else SUMMARY)]
    more = len(listed) > query.limit
    listed = listed[: query.limit]
    edge = listed[-1].id if more else plan.edge()

    if not plan.newer:
        # A page that is empty leads back to where it began.
        first = listed[0].id if listed else plan.start
        return Page(
            tuple(listed),
            older=None if edge is None else str(Cursor(False, edge)),
            newer=None if plan.start is None else str(Cursor(True, first or plan.start)),
            searched=scan if edge is not None and not more else None,
        )

    if edge is None:
        # The newest page is always a full one.
        newest = replace(query, cursor=None)
        return list_runs(connection, newest, payloads=payloads, scan=scan, until=until, real_time=real_time)
    last = listed[0].id if listed else plan.start
    return Page(
        tuple(reversed(listed)),
        older=None if last is None else str(Cursor(False, last)),
        newer=str(Cursor(True, edge)),
        searched=None if more else scan,
    )


def count_newer(
    connection: sa.Connection, query: RunQuery, run_id: str, *, cap: int = 101, real_time: bool = True
) -> Count:
    """How many runs of the list are newer than one."""
    newer = replace(query, cursor=str(Cursor(True, run_id)))
    found = selected_ids(connection, newer, limit=cap, scan=COUNT_CAP, real_time=real_time)
    if found is None:
        return Count(0)
    return capped(connection.scalar(sa.select(sa.func.count()).select_from(found.subquery())) or 0, cap)


def selected_ids(
    connection: sa.Connection,
    query: RunQuery,
    *,
    limit: int,
    scan: int | None = None,
    until: str | None = None,
    real_time: bool = True,
) -> sa.Select[str] | None:
    """Select the ids of the first runs of a list; null where there can be none. As for `list_runs` otherwise."""
    return Plan(Facts(connection), query, scan=scan, until=until, real_time=real_time).ids(limit)


def count_runs(connection: sa.Connection, query: RunQuery, *, real_time: bool = True) -> dict[RunStatus, Count]:
    """How many runs each status has, under the other filters of the query.

    Unfinished ones are counted exactly, finished ones up to a cap. With a filter no index knows, the count is of the
    newest runs of each status.
    """
    facts = Facts(connection)
    counted = []
    for status in RunStatus:
        one = replace(query, status=status, cursor=None)
        plan = Plan(facts, one, scan=COUNT_CAP, real_time=real_time)
        selected = plan.count(COUNT_CAP, exact=status in LIVE)
        if selected is not None:
            counted.append(selected.add_columns(sa.literal(status.value).label("status")))

    counts = dict.fromkeys(RunStatus, Count(0))
    if not counted:
        return counts
    for value, looked, status in connection.execute(sa.union_all(*counted)):
        capped = looked >= COUNT_CAP
        counts[RunStatus(status)] = Count(min(value, COUNT_CAP - 1) if capped else value, capped)
    return counts


def workflow_names(
    connection: sa.Connection, workspaces: tuple[str, ...] | None = None, *, limit: int = 1_000
) -> list[str]:
    """The names of workflows that have runs; of those in some workspaces, the names the newest runs have."""
    if workspaces is None:
        return plans.workflow_names(connection, limit=limit)
    found = selected_ids(connection, RunQuery(workspace=workspaces), limit=_NAMED, scan=COUNT_CAP)
    if found is None:
        return []
    ids = sa.select(found.subquery().c.id)
    names = sa.select(runs.c.workflow).where(runs.c.id.in_(ids)).distinct().order_by(runs.c.workflow).limit(limit)
    return list(connection.scalars(names))
