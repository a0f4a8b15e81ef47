"""Lists of runs, and how many there are.

Lists and counts are planned by hand, so that an index serves each of them at any size. They go through *probes*:
conditions that one index answers in the order of ids, which is the order of creation. Where no single index does, as
for one workflow in every status, several probes are merged. What no index knows (queue, workspace, key) is filtered
afterwards, over a bounded number of runs where the caller says so. Lists never read a payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...names import id_at
from ...runs import Count
from ...runs import Cursor
from ...runs import LIVE
from ...runs import Page
from ...runs import RunQuery
from ...runs import RunStatus
from .rows import capped
from .rows import millis
from .rows import REMARKABLE
from .rows import run_of
from .rows import SUMMARY

#: Counting stops here.
COUNT_CAP = 10_001

#: How far the clocks that made ids may be off the database's, which made `created_at`.
_SKEW_MS = 60_000

#: Above this many workflows, completed runs are looked for in the order of ids alone.
_MANY_WORKFLOWS = 300

Conditions = tuple[sa.ColumnElement[bool], ...]


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
    plan = _Plan(connection, query, scan=scan, until=until, real_time=real_time)
    listed = [run_of(row) for row in plan.rows(query.limit + 1, tuple(runs.c) if payloads else SUMMARY)]
    edge = plan.edge()
    if edge is not None:
        # Beyond the edge of one probe the finds of the others have gaps between them.
        listed = [run for run in listed if plan.reaches(edge, run.id)]
    more = len(listed) > query.limit
    listed = listed[: query.limit]
    if more:
        edge = listed[-1].id

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
    found = _Plan(connection, newer, scan=COUNT_CAP, real_time=real_time).ids(cap)
    if found is None:
        return Count(0)
    return capped(connection.scalar(sa.select(sa.func.count()).select_from(found.subquery())) or 0, cap)


def count_runs(connection: sa.Connection, query: RunQuery, *, real_time: bool = True) -> dict[RunStatus, Count]:
    """How many runs each status has, under the other filters of the query.

    Unfinished ones are counted exactly, finished ones up to a cap. With a filter no index knows, the count is of the
    newest runs of each status.
    """
    counted = []
    for status in RunStatus:
        one = replace(query, status=status, cursor=None)
        plan = _Plan(connection, one, scan=COUNT_CAP, real_time=real_time)
        selected = plan.count(exact=status in LIVE)
        if selected is not None:
            counted.append(selected.add_columns(sa.literal(status.value).label("status")))

    counts = dict.fromkeys(RunStatus, Count(0))
    for value, looked, status in connection.execute(sa.union_all(*counted)):
        capped = looked >= COUNT_CAP
        counts[RunStatus(status)] = Count(min(value, COUNT_CAP - 1) if capped else value, capped)
    return counts


class _Plan:
    """How one query is answered: its probes, and what is common to them."""

    def __init__(
        self,
        connection: sa.Connection,
        query: RunQuery,
        *,
        scan: int | None = None,
        until: str | None = None,
        real_time: bool = True,
    ) -> None:
        cursor = None if query.cursor is None else Cursor.read(query.cursor)
        self.newer = cursor is not None and cursor.newer
        self.start = None if cursor is None else cursor.id
        self._connection = connection
        self._range = (*_window(query, ids=real_time), *_place(cursor, until))
        #: What no index knows, by column.
        self._rest = _rest(query)
        bounded = scan is not None and bool(self._rest)
        if bounded and _needs_names(query):
            self._probes: list[Conditions] = [()]
            self._rest["status"] = RunStatus.COMPLETED.value
        else:
            self._probes = _probes(connection, query)
        #: How many runs each probe looks at.
        self._share = max((scan or 0) // max(len(self._probes), 1), 1) if bounded else None

    def ids(self, limit: int) -> sa.Select[Any] | None:
        """Select the first `limit` ids; null when there can be none."""
        return self._merged([self._probe(probe, limit) for probe in self._probes], limit)

    def _probe(self, probe: Conditions, limit: int) -> sa.Select[Any]:
        if self._share is None:
            return self._ordered(probe, ()).where(*self._matches(runs.c)).limit(limit)
        looked = self._ordered(probe, self._rest).limit(self._share).subquery()
        chosen = sa.select(looked.c.id).where(*self._matches(looked.c))
        return chosen.order_by(self._order(looked.c.id)).limit(limit)

    def rows(self, limit: int, columns: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.RowMapping]:
        found = self.ids(limit)
        if found is None:
            return ()
        chosen = sa.select(found.subquery().c.id)
        query = sa.select(*columns).where(runs.c.id.in_(chosen)).order_by(self._order(runs.c.id))
        return self._connection.execute(query).mappings().all()

    def edge(self) -> str | None:
        """The id up to which every probe looked; null when each looked at all it has."""
        if self._share is None:
            return None
        lasts = [self._ordered(probe, ()).limit(1).offset(self._share - 1).subquery() for probe in self._probes]
        edges = sa.union_all(*(sa.select(last.c.id) for last in lasts)).subquery()
        nearest = sa.func.min(edges.c.id) if self.newer else sa.func.max(edges.c.id)
        found: str | None = self._connection.scalar(sa.select(nearest))
        return found

    def reaches(self, edge: str, run_id: str) -> bool:
        return run_id <= edge if self.newer else run_id >= edge

    def count(self, *, exact: bool) -> sa.Select[int, int] | None:
        """Select how many runs there are, and how many were looked at where that was bounded."""
        number = sa.func.count()
        if exact and not self._rest:
            (probe,) = self._probes
            return sa.select(number.label("value"), sa.literal(0).label("looked")).where(*probe, *self._range)

        members = [self._ordered(probe, self._rest).limit(COUNT_CAP) for probe in self._probes]
        merged = self._merged(members, COUNT_CAP)
        if merged is None:
            return None
        looked = merged.subquery()
        matching = sa.func.count(sa.case((sa.and_(*self._matches(looked.c)), 1))) if self._rest else number
        return sa.select(matching.label("value"), number.label("looked")).select_from(looked)

    def _ordered(self, probe: Conditions, names: Iterable[str]) -> sa.Select[Any]:
        columns = (runs.c.id, *(runs.c[name] for name in names))
        return sa.select(*columns).where(*probe, *self._range).order_by(self._order(runs.c.id))

    def _merged(self, members: Sequence[sa.Select[Any]], limit: int) -> sa.Select[Any] | None:
        if len(members) < 2:
            return members[0] if members else None
        # A member with an order and a limit must be a table of its own.
        merged = sa.union_all(*(sa.select(member.subquery()) for member in members)).subquery()
        return sa.select(merged).order_by(self._order(merged.c.id)).limit(limit)

    def _matches(self, columns: sa.ColumnCollection[str, Any]) -> list[sa.ColumnElement[bool]]:
        return [columns[name] == value for name, value in self._rest.items()]

    def _order(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return column.asc() if self.newer else column.desc()


def _probes(connection: sa.Connection, query: RunQuery) -> list[Conditions]:
    workflow, status = query.workflow, query.status
    if workflow is not None:
        statuses = RunStatus if status is None else (status,)
        return [(runs.c.workflow == workflow, runs.c.status == one.value) for one in statuses]
    if status is None:
        return [()]
    if not _needs_names(query):
        return [(runs.c.status == status.value, REMARKABLE)]

    names = workflow_names(connection)
    if len(names) > _MANY_WORKFLOWS:
        return [(runs.c.status == status.value,)]
    return [(runs.c.workflow == name, runs.c.status == status.value) for name in names]


def _needs_names(query: RunQuery) -> bool:
    """Whether the runs are only found workflow by workflow.

    No index holds the completed ones of all workflows, as each run would have to be written to it once more.
    """
    return query.workflow is None and query.status is RunStatus.COMPLETED


def _rest(query: RunQuery) -> dict[str, str]:
    values = {"queue": query.queue, "workspace": query.workspace, "key": query.key}
    return {name: value for name, value in values.items() if value is not None}


def _window(query: RunQuery, *, ids: bool) -> Iterator[sa.ColumnElement[bool]]:
    """The conditions on time; through `ids`, which begin with their instant, an index knows them."""
    if query.created_after is not None:
        after = millis(query.created_after)
        yield runs.c.created_at >= after
        if ids:
            yield runs.c.id >= id_at(_id_millis(after - _SKEW_MS))
    if query.created_before is not None:
        before = millis(query.created_before)
        yield runs.c.created_at < before
        if ids:
            yield runs.c.id < id_at(_id_millis(before + _SKEW_MS))


def _place(cursor: Cursor | None, until: str | None) -> Iterator[sa.ColumnElement[bool]]:
    if cursor is not None:
        yield runs.c.id > cursor.id if cursor.newer else runs.c.id < cursor.id
    if until is not None:
        yield runs.c.id <= until


def _id_millis(millis: int) -> int:
    return min(max(millis, 0), 2**48 - 1)


def workflow_names(connection: sa.Connection, *, limit: int = 1_000) -> list[str]:
    """The names that have runs, each found by one step through the index."""
    first = sa.select(sa.func.min(runs.c.workflow).label("name"), sa.literal(1).label("place"))
    names = first.cte("names", recursive=True)
    following = sa.select(sa.func.min(runs.c.workflow)).where(runs.c.workflow > names.c.name).scalar_subquery()
    names = names.union_all(
        sa.select(following, names.c.place + 1).where(names.c.name.is_not(None), names.c.place < limit)
    )
    return list(connection.scalars(sa.select(names.c.name).where(names.c.name.is_not(None))))
