"""What runs must be to be listed: what an index may know of it, and what must be looked at run by run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from typing import Any
from typing import Self

import sqlalchemy as sa

from ...models import runs
from ...runs import RunQuery
from ...runs import RunStatus
from .rows import Conditions
from .rows import implied
from .rows import OWNED

#: Of a workspace and a workflow, the one with fewer runs is looked through; they are counted so far.
_COMPARED = 10_001


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition that no index serves. `of` makes it of columns of runs; `columns` are the names of those."""

    columns: tuple[str, ...]
    of: Callable[[Any], sa.ColumnElement[bool]]


@dataclass(frozen=True, slots=True)
class Test:
    """A condition that only code can decide, on what one column holds."""

    column: str
    passes: Callable[[str | None], bool]


def one_of(column: str, values: Sequence[str]) -> Filter:
    if len(values) == 1:
        return Filter((column,), lambda c: c[column] == values[0])
    return Filter((column,), lambda c: c[column].in_(values))


@dataclass(frozen=True, slots=True)
class Criteria:
    """What runs must be; of the first three one of several values, or any for null."""

    workflows: tuple[str, ...] | None = None
    statuses: tuple[RunStatus, ...] | None = None
    workspaces: tuple[str, ...] | None = None
    #: A column and what stands in it, of which there is an index in the order of ids.
    indexed: tuple[str, str] | None = None
    #: On ids alone, so that every index knows them.
    ids: Conditions = ()
    #: That the id is among a few.
    few: sa.ColumnElement[bool] | None = None
    filters: tuple[Filter, ...] = ()
    tests: tuple[Test, ...] = ()

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

    def of_workflow(self, name: str) -> Self:
        return replace(self, workflows=(name,) if self.workflows is None or name in self.workflows else ())

    def in_workspace(self, name: str) -> Self:
        return replace(self, workspaces=(name,) if self.workspaces is None or name in self.workspaces else ())

    def in_status(self, *statuses: RunStatus) -> Self:
        possible = tuple(RunStatus) if self.statuses is None else self.statuses
        return replace(self, statuses=tuple(status for status in possible if status in statuses))

    def with_ids(self, *conditions: sa.ColumnElement[bool]) -> Self:
        return replace(self, ids=(*self.ids, *conditions))

    def plus(self, *filters: Filter) -> Self:
        return replace(self, filters=(*self.filters, *filters))

    @property
    def all_filters(self) -> tuple[Filter, ...]:
        """Everything but the conditions on ids, as filters."""
        statuses = None if self.statuses is None else tuple(status.value for status in self.statuses)
        values = filters(workflow=self.workflows, status=statuses, workspace=self.workspaces)
        indexed = () if self.indexed is None else (one_of(self.indexed[0], self.indexed[1:]),)
        return (*self.filters, *values, *indexed)


def filters(**values: tuple[str, ...] | None) -> Iterator[Filter]:
    """A filter for each column of which one of some values is wanted."""
    for name, wanted in values.items():
        if wanted is not None:
            yield one_of(name, wanted)


class Facts:
    """What the tables must be asked before a plan can be made, each thing once."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self._rarer: dict[tuple[tuple[str, ...], tuple[str, ...]], bool] = {}
        self._kept: dict[Any, Any] = {}

    @cached_property
    def workflows(self) -> list[str]:
        return workflow_names(self.connection)

    def ask(self, query: sa.Select[Any], key: tuple[str, str]) -> list[Any]:
        """What a query answers, the first column of it; the key says which query it is."""
        if key not in self._kept:
            self._kept[key] = list(self.connection.scalars(query))
        found: list[Any] = self._kept[key]
        return found

    def is_rarer(self, workspaces: tuple[str, ...], workflows: tuple[str, ...]) -> bool:
        """Whether there are fewer runs in the workspaces than of the workflows, as far as it matters."""
        asked = (workspaces, workflows)
        if asked not in self._rarer:
            conditions = ((runs.c.workspace.in_(workspaces), implied(OWNED)), (runs.c.workflow.in_(workflows),))
            counted = [
                sa.select(sa.func.count())
                .select_from(sa.select(runs.c.id).where(*one).limit(_COMPARED).subquery())
                .scalar_subquery()
                for one in conditions
            ]
            in_workspaces, of_workflows = self.connection.execute(sa.select(*counted)).one()
            self._rarer[asked] = bool(in_workspaces <= of_workflows)
        return self._rarer[asked]


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
        sa.select(sa.func.min(runs.c.workspace).label("name")).where(runs.c.workspace == one, implied(OWNED))
        for one in named
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
