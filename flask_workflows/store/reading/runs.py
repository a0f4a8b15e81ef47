"""Lists of runs, and how many there are. Lists never read a payload."""

from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from ...models import runs
from ...names import is_clean
from ...runs import Count
from ...runs import Cursor
from ...runs import LIVE
from ...runs import Page
from ...runs import RunQuery
from ...runs import RunStatus
from ...search import Hides
from ...search import parse
from . import criteria
from .criteria import Facts
from .plans import Plan
from .rows import capped
from .rows import run_of
from .rows import SUMMARY
from .timers import list_by_due

#: Counting stops here.
COUNT_CAP = 10_001
#: With what no index knows, so many runs of each status are looked at.
_LOOKED_AT = 1_001
#: Where code must look at stored values, so many that fit are counted.
_TESTED = 201

#: For the names of workflows in some workspaces, so many of the newest runs are looked at.
_NAMED = 2_000


def _answerable(query: RunQuery) -> bool:
    """Whether it asks for names that there can be; some others no database can compare."""
    spaces = (query.workspace,) if isinstance(query.workspace, str) else query.workspace or ()
    return all(is_clean(text) for text in (query.workflow, query.key, query.queue, *spaces) if text is not None)


def list_runs(
    connection: sa.Connection,
    query: RunQuery,
    *,
    payloads: bool = False,
    scan: int | None = None,
    until: str | None = None,
    real_time: bool = True,
    hidden: Hides | None = None,
) -> Page:
    """The runs of one page. Raises `InvalidCursor`, `InvalidSearch`, and `ReadTimeout` on a limited connection.

    `payloads` also reads inputs, outputs and whole errors. `scan` bounds how many runs are looked at for what no index
    knows; a page that ended early for that says so in `searched`. `until` leaves out runs newer than that id. Without
    `real_time`, `created_at` comes from a clock that was set, as in tests, and ids say nothing about it. `hidden` says
    what in stored values is not to be found.
    """
    if not _answerable(query):
        return Page(())
    facts = Facts(connection)
    columns = tuple(runs.c) if payloads else SUMMARY
    if query.by_due and not any(term.tested for term in parse(query.search)):
        return list_by_due(facts, query, columns, scan=scan, until=until, real_time=real_time)
    plan = Plan(facts, query, scan=scan, until=until, real_time=real_time, hidden=hidden)
    listed = [run_of(row) for row in plan.rows(query.limit + 1, columns)]
    more = len(listed) > query.limit
    listed = listed[: query.limit]
    edge = listed[-1].id if more else plan.edge()
    cut = edge is not None and not more
    if cut and plan.forks:
        # What is found by a bounded look beside others is not gone on from: those others were not bounded.
        edge = None

    if not plan.newer:
        newer = Cursor(True, listed[0].id) if listed else Cursor.at(True, plan.start or "")
        return Page(
            tuple(listed),
            older=None if edge is None else str(Cursor(False, edge)),
            newer=None if plan.start is None else str(newer),
            searched=scan if cut else None,
        )

    if edge is None:
        # The newest page is always a full one.
        newest = replace(query, cursor=None)
        return list_runs(
            connection, newest, payloads=payloads, scan=scan, until=until, real_time=real_time, hidden=hidden
        )
    older = Cursor(False, listed[0].id) if listed else Cursor.at(False, plan.start or "")
    return Page(
        tuple(reversed(listed)), older=str(older), newer=str(Cursor(True, edge)), searched=scan if cut else None
    )


def newest_id(
    connection: sa.Connection, query: RunQuery, *, scan: int | None = None, real_time: bool = True
) -> str | None:
    """The id of the newest run of a list, in whatever order that is."""
    found = selected_ids(connection, replace(query, cursor=None, by_due=False), limit=1, scan=scan, real_time=real_time)
    return None if found is None else connection.scalar(found)


def count_newer(
    connection: sa.Connection,
    query: RunQuery,
    run_id: str,
    *,
    cap: int = 101,
    real_time: bool = True,
    hidden: Hides | None = None,
) -> Count:
    """How many runs of the list are newer than one."""
    newer = replace(query, cursor=str(Cursor(True, run_id)))
    return _count_ids(
        connection, selected_ids(connection, newer, limit=cap, scan=COUNT_CAP, real_time=real_time, hidden=hidden), cap
    )


def count_matching(
    connection: sa.Connection, query: RunQuery, *, cap: int = 1_001, real_time: bool = True, hidden: Hides | None = None
) -> Count:
    """How many runs there are in the whole list, up to a cap; with what no index knows, among its newest."""
    whole = replace(query, cursor=None)
    return _count_ids(
        connection, selected_ids(connection, whole, limit=cap, scan=COUNT_CAP, real_time=real_time, hidden=hidden), cap
    )


def _count_ids(connection: sa.Connection, found: sa.Select[str] | None, cap: int) -> Count:
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
    hidden: Hides | None = None,
) -> sa.Select[str] | None:
    """Select the ids of the newest runs of a list; null where there can be none. As for `list_runs` otherwise."""
    return Plan(Facts(connection), query, scan=scan, until=until, real_time=real_time, hidden=hidden).ids(limit)


def count_runs(
    connection: sa.Connection, query: RunQuery, *, real_time: bool = True, hidden: Hides | None = None
) -> dict[RunStatus, Count]:
    """How many runs each status has, under the other filters of the query.

    Unfinished ones are counted exactly, finished ones up to a cap. With what no index knows, the count is of the
    newest runs of each status.
    """
    facts = Facts(connection)
    looked_at = min(_LOOKED_AT, COUNT_CAP)
    tested = []
    counted = []
    for status in RunStatus:
        one = replace(query, status=status, cursor=None)
        plan = Plan(facts, one, scan=looked_at, real_time=real_time, hidden=hidden)
        if plan.tests:
            tested.append((status, plan))
            continue
        for selected in plan.counts(COUNT_CAP, exact=status in LIVE):
            counted.append(selected.add_columns(sa.literal(status.value).label("status")))

    counts = dict.fromkeys(RunStatus, Count(0))
    for value, cut, word in connection.execute(sa.union_all(*counted)) if counted else ():
        before = counts[RunStatus(word)]
        value = before.value + value
        counts[RunStatus(word)] = Count(min(value, COUNT_CAP - 1) if cut else value, bool(cut) or before.capped)
    for status, plan in tested:
        passed = capped(plan.count_tested(_TESTED), _TESTED)
        counts[status] = Count(passed.value, passed.capped or plan.edge() is not None)
    return counts


def workflow_names(
    connection: sa.Connection, workspaces: tuple[str, ...] | None = None, *, limit: int = 1_000
) -> list[str]:
    """The names of workflows that have runs; of those in some workspaces, the names the newest runs have."""
    if workspaces is None:
        return criteria.workflow_names(connection, limit=limit)
    found = selected_ids(connection, RunQuery(workspace=workspaces), limit=_NAMED, scan=COUNT_CAP)
    if found is None:
        return []
    ids = sa.select(found.subquery().c.id)
    names = sa.select(runs.c.workflow).where(runs.c.id.in_(ids)).distinct().order_by(runs.c.workflow).limit(limit)
    return list(connection.scalars(names))
