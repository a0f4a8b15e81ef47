"""How a list of runs is found, so that an index serves it at any size.

A list goes through *probes*: conditions that one index answers in the order of ids, which is the order of creation.
Where no single index does, as for one workflow in every status, several probes are merged. What no index knows is a
*filter*: it is put to what the probes found, over a bounded number of runs where the caller says so.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...names import id_at
from ...runs import Cursor
from ...runs import RunQuery
from ...runs import RunStatus
from .rows import Conditions
from .rows import millis
from .rows import OWNED
from .rows import REMARKABLE

#: How far the clocks that made ids may be off the database's, which made `created_at`.
_SKEW_MS = 60_000

#: Above this many workflows, completed runs are looked for in the order of ids alone.
_MANY_WORKFLOWS = 300

#: Above this many probes, workspaces are a filter.
_MANY_PROBES = 140

#: Of a workspace and a workflow, the one with fewer runs is looked through; they are counted so far.
_COMPARED = 10_001


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition that no index serves. `of` makes it of columns of runs; `columns` are the names of those."""

    columns: tuple[str, ...]
    of: Callable[[Any], sa.ColumnElement[bool]]


def one_of(column: str, values: Sequence[str]) -> Filter:
    if len(values) == 1:
        return Filter((column,), lambda c: c[column] == values[0])
    return Filter((column,), lambda c: c[column].in_(values))


@dataclass(frozen=True, slots=True)
class Criteria:
    """What runs must be to be listed; of each of the first three one of several values, or any for null."""

    workflows: tuple[str, ...] | None = None
    statuses: tuple[RunStatus, ...] | None = None
    workspaces: tuple[str, ...] | None = None
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of(cls, query: RunQuery) -> Criteria:
        equal = {"queue": query.queue, "key": query.key}
        return cls(
            workflows=None if query.workflow is None else (query.workflow,),
            statuses=None if query.status is None else (query.status,),
            workspaces=(query.workspace,) if isinstance(query.workspace, str) else query.workspace,
            filters=tuple(one_of(name, (value,)) for name, value in equal.items() if value is not None),
        )

    @property
    def impossible(self) -> bool:
        return () in (self.workflows, self.statuses, self.workspaces)

    def plus(self, *filters: Filter) -> Criteria:
        return replace(self, filters=(*self.filters, *filters))


@dataclass(frozen=True, slots=True)
class Branch:
    """The runs that some probe finds and that pass all filters. No run is found by two probes."""

    probes: tuple[Conditions, ...]
    filters: tuple[Filter, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """What must be known of a run to put it to the filters."""
        return tuple(sorted({name for one in self.filters for name in one.columns} | {"id"}))

    def passes(self, columns: Any) -> tuple[sa.ColumnElement[bool], ...]:
        return tuple(one.of(columns) for one in self.filters)


class Facts:
    """What the tables must be asked before a plan can be made, each thing once."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._rarer: dict[tuple[tuple[str, ...], tuple[str, ...]], bool] = {}

    @cached_property
    def workflows(self) -> list[str]:
        return workflow_names(self.connection)

    def is_rarer(self, workspaces: tuple[str, ...], workflows: tuple[str, ...]) -> bool:
        """Whether there are fewer runs in the workspaces than of the workflows, as far as it matters."""
        asked = (workspaces, workflows)
        if asked not in self._rarer:
            conditions = ((runs.c.workspace.in_(workspaces), OWNED), (runs.c.workflow.in_(workflows),))
            counted = [
                sa.select(sa.func.count())
                .select_from(sa.select(runs.c.id).where(*one).limit(_COMPARED).subquery())
                .scalar_subquery()
                for one in conditions
            ]
            in_workspaces, of_workflows = self.connection.execute(sa.select(*counted)).one()
            self._rarer[asked] = bool(in_workspaces <= of_workflows)
        return self._rarer[asked]


def branches(facts: Facts, query: RunQuery, *, bounded: bool) -> tuple[Branch, ...]:
    """Through what the runs are found; none where there can be no run. No run is found by two of them."""
    branch = _branch(facts, Criteria.of(query), bounded=bounded)
    return () if branch is None else (branch,)


def _branch(facts: Facts, criteria: Criteria, *, bounded: bool) -> Branch | None:
    """The runs that meet the criteria, through the index that knows most of them."""
    if criteria.impossible:
        return None
    workflows, workspaces, statuses = criteria.workflows, criteria.workspaces, criteria.statuses
    each = statuses or tuple(RunStatus)
    by_workspace = workspaces is not None and "" not in workspaces and len(workspaces) * len(each) <= _MANY_PROBES
    by_workflow = workflows is not None and len(workflows) * len(each) <= _MANY_PROBES
    if by_workspace and by_workflow:
        assert workspaces is not None
        assert workflows is not None
        by_workspace = facts.is_rarer(workspaces, workflows)

    if by_workspace:
        probes: tuple[Conditions, ...] = tuple(
            (runs.c.workspace == workspace, OWNED, runs.c.status == status.value)
            for workspace in workspaces or ()
            for status in each
        )
        return Branch(probes, (*criteria.filters, *_filters(workflow=workflows)))
    if by_workflow:
        probes = tuple(
            (runs.c.workflow == workflow, runs.c.status == status.value)
            for workflow in workflows or ()
            for status in each
        )
        return Branch(probes, (*criteria.filters, *_filters(workspace=workspaces)))
    filters = (*criteria.filters, *_filters(workflow=workflows, workspace=workspaces))
    return _by_status(facts, statuses, filters, bounded=bounded)


def _by_status(
    facts: Facts, statuses: tuple[RunStatus, ...] | None, filters: tuple[Filter, ...], *, bounded: bool
) -> Branch:
    if statuses is None:
        return Branch(((),), filters)
    if RunStatus.COMPLETED not in statuses:
        return Branch(tuple((runs.c.status == status.value, REMARKABLE) for status in statuses), filters)
    # No index holds the completed ones of all workflows, as each run would have to be written to it once more.
    if len(statuses) > 1 or (bounded and filters):
        return Branch(((),), (*filters, *_filters(status=tuple(status.value for status in statuses))))
    names = facts.workflows
    if len(names) > _MANY_WORKFLOWS:
        return Branch(((runs.c.status == RunStatus.COMPLETED.value,),), filters)
    completed = runs.c.status == RunStatus.COMPLETED.value
    return Branch(tuple((runs.c.workflow == name, completed) for name in names), filters)


def _filters(**values: tuple[str, ...] | None) -> Iterator[Filter]:
    for name, wanted in values.items():
        if wanted is not None:
            yield one_of(name, wanted)


class Plan:
    """How one query is answered: its branches, and what is common to them."""

    def __init__(
        self,
        facts: Facts,
        query: RunQuery,
        *,
        scan: int | None = None,
        until: str | None = None,
        real_time: bool = True,
    ) -> None:
        cursor = None if query.cursor is None else Cursor.read(query.cursor)
        self.newer = cursor is not None and cursor.newer
        self.start = None if cursor is None else cursor.id
        self._connection = facts.connection
        self._range = (*_window(query, ids=real_time), *_place(cursor, until))
        self._scan = scan
        self._branches = branches(facts, query, bounded=scan is not None)

    def ids(self, limit: int) -> sa.Select[Any] | None:
        """Select the first `limit` ids; null when there can be none."""
        return self._merged([self._found(branch, limit) for branch in self._branches], limit)

    def _found(self, branch: Branch, limit: int) -> sa.Select[Any]:
        if self._scan is None or not branch.filters:
            members = [self._member(probe, ("id",)).where(*branch.passes(runs.c)) for probe in branch.probes]
            return self._need(self._merged(members, limit))
        looked = self._looked(branch, self._scan).subquery()
        return self._ordered(sa.select(looked.c.id).where(*branch.passes(looked.c)), looked.c.id).limit(limit)

    def _looked(self, branch: Branch, limit: int) -> sa.Select[Any]:
        """Select the first runs that the probes find, with what the filters must know of them."""
        return self._need(self._merged([self._member(probe, branch.columns) for probe in branch.probes], limit))

    def rows(self, limit: int, columns: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.RowMapping]:
        found = self.ids(limit)
        if found is None:
            return ()
        chosen = sa.select(found.subquery().c.id)
        query = self._ordered(sa.select(*columns).where(runs.c.id.in_(chosen)), runs.c.id)
        return self._connection.execute(query).mappings().all()

    def edge(self) -> str | None:
        """The last id that was looked at where looking was cut short; null where it was not."""
        for branch in self._branches:
            if self._scan is not None and branch.filters:
                looked = self._looked(replace(branch, filters=()), self._scan).subquery()
                last = self._ordered(sa.select(looked.c.id), looked.c.id).limit(1).offset(self._scan - 1)
                found: str | None = self._connection.scalar(last)
                return found
        return None

    def count(self, cap: int, *, exact: bool) -> sa.Select[int, int] | None:
        """Select how many runs there are, and how many were looked at: up to `cap`, unless exact."""
        number = sa.func.count()
        if not self._branches:
            return None
        (branch,) = self._branches
        if exact and not branch.filters:
            members = [sa.select(sa.literal(1)).where(*probe, *self._range) for probe in branch.probes]
            found = members[0] if len(members) == 1 else sa.union_all(*members)
            return sa.select(number.label("value"), sa.literal(0).label("looked")).select_from(found.subquery())
        looked = self._looked(branch, cap).subquery()
        passing = branch.passes(looked.c)
        matching = sa.func.count(sa.case((sa.and_(*passing), 1))) if passing else number
        return sa.select(matching.label("value"), number.label("looked")).select_from(looked)

    def _member(self, probe: Conditions, names: Sequence[str]) -> sa.Select[Any]:
        return sa.select(*(runs.c[name] for name in names)).where(*probe, *self._range)

    def _merged(self, members: Sequence[sa.Select[Any]], limit: int) -> sa.Select[Any] | None:
        """Select the first rows of them all, reading no more of any than it gives."""
        if not members:
            return None
        if len(members) == 1:
            (member,) = members
            return self._ordered(member.limit(None), member.selected_columns.id).limit(limit)
        if self._connection.dialect.name != "sqlite":
            # PostgreSQL merges tables that are ordered and limited, SQLite plain ones.
            limited = [self._ordered(member, member.selected_columns.id).limit(limit) for member in members]
            members = [sa.select(member.subquery()) for member in limited]
        merged = sa.union_all(*members).subquery()
        return self._ordered(sa.select(merged), merged.c.id).limit(limit)

    @staticmethod
    def _need(selected: sa.Select[Any] | None) -> sa.Select[Any]:
        """For branches, which have probes."""
        return sa.select(runs.c.id).where(sa.false()) if selected is None else selected

    def _ordered(self, selected: sa.Select[Any], column: sa.ColumnElement[Any]) -> sa.Select[Any]:
        return selected.order_by(column.asc() if self.newer else column.desc())


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
    return _names(connection, runs.c.workflow, (), limit)


def workspace_names(
    connection: sa.Connection, workspaces: tuple[str, ...] | None = None, *, limit: int = 1_000
) -> list[str]:
    """The workspaces that have runs, of some or of all; the empty one left out."""
    if workspaces is None:
        return _names(connection, runs.c.workspace, (OWNED,), limit)
    named = [name for name in workspaces if name][:limit]
    found = [
        sa.select(sa.func.min(runs.c.workspace).label("name")).where(runs.c.workspace == one, OWNED) for one in named
    ]
    return [name for name in connection.scalars(sa.union_all(*found)) if name is not None] if found else []


def _names(connection: sa.Connection, column: sa.Column[str], conditions: Conditions, limit: int) -> list[str]:
    first = sa.select(sa.func.min(column).label("name"), sa.literal(1).label("place")).where(*conditions)
    names = first.cte("names", recursive=True)
    following = sa.select(sa.func.min(column)).where(column > names.c.name, *conditions).scalar_subquery()
    names = names.union_all(
        sa.select(following, names.c.place + 1).where(names.c.name.is_not(None), names.c.place < limit)
    )
    return list(connection.scalars(sa.select(names.c.name).where(names.c.name.is_not(None))))
