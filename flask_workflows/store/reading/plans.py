"""How a list of runs is found, so that an index serves it at any size.

A list goes through *probes*: conditions that one index answers in the order of ids, which is the order of creation.
Where no single index does, as for one workflow in every status, several probes are merged. What no index knows is a
*filter*: it is put to what the probes found, over a bounded number of runs where the caller says so. What no database
can tell is a *test*, which code puts to what passed the filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...names import id_at
from ...runs import Cursor
from ...runs import RunQuery
from ...runs import RunStatus
from ...search import Hides
from ...search import parse
from .connection import check_time
from .criteria import Criteria
from .criteria import Facts
from .criteria import Filter
from .criteria import filters
from .criteria import Test
from .rows import Conditions
from .rows import implied
from .rows import millis
from .rows import OWNED
from .rows import REMARKABLE
from .searching import alternatives

#: How far the clocks that made ids may be off the database's, which made `created_at`.
_SKEW_MS = 60_000

#: Above this many workflows, completed runs are looked for in the order of ids alone.
_MANY_WORKFLOWS = 300

#: Above this many probes, workspaces are a filter.
_MANY_PROBES = 140

#: Stored values that are read at a time for tests, and how long one may be.
_CHUNKS = (100, 500)
_LONGEST_VALUE = 500_000
_LONGEST_ERROR = 12_000


@dataclass(frozen=True, slots=True)
class Branch:
    """The runs that some probe finds and that pass all filters and tests. No run is found by two probes."""

    probes: tuple[Conditions, ...]
    filters: tuple[Filter, ...] = ()
    tests: tuple[Test, ...] = ()
    #: The probes find few runs.
    few: bool = False

    @property
    def whole(self) -> bool:
        """Whether all that the probes find is meant, or so few are found that all can be looked at."""
        return self.few or not (self.filters or self.tests)

    @property
    def columns(self) -> tuple[str, ...]:
        """What must be known of a run to put it to the filters."""
        return tuple(sorted({name for one in self.filters for name in one.columns} | {"id"}))

    def passes(self, columns: Any) -> tuple[sa.ColumnElement[bool], ...]:
        return tuple(one.of(columns) for one in self.filters)


def branches(
    facts: Facts, query: RunQuery, *, bounded: bool, hidden: Hides | None = None
) -> tuple[tuple[Branch, ...], tuple[Criteria, ...]]:
    """Through what the runs are found, and the criteria for each; none where there can be no run.

    No run is found by two of them. Raises `InvalidSearch`.
    """
    wanted = [
        criteria
        for criteria in alternatives(facts, Criteria.of(query), parse(query.search), hidden)
        if not criteria.impossible
    ]
    return tuple(_branch(facts, criteria, bounded=bounded) for criteria in wanted), tuple(wanted)


def _branch(facts: Facts, criteria: Criteria, *, bounded: bool) -> Branch:
    """The runs that meet the criteria, through the index that knows most of them."""
    branch = _indexed(facts, criteria, bounded=bounded)
    probes = tuple((*probe, *criteria.ids) for probe in branch.probes)
    return replace(branch, probes=probes, tests=criteria.tests)


def _indexed(facts: Facts, criteria: Criteria, *, bounded: bool) -> Branch:
    if criteria.few is not None:
        return Branch(((criteria.few,),), criteria.all_filters, few=True)
    if criteria.indexed is not None:
        column, value = criteria.indexed
        return Branch(((runs.c[column] == value,),), replace(criteria, indexed=None).all_filters)

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
            (runs.c.workspace == workspace, implied(OWNED), runs.c.status == status.value)
            for workspace in workspaces or ()
            for status in each
        )
        return Branch(probes, (*criteria.filters, *filters(workflow=workflows)))
    if by_workflow:
        probes = tuple(
            (runs.c.workflow == workflow, runs.c.status == status.value)
            for workflow in workflows or ()
            for status in each
        )
        return Branch(probes, (*criteria.filters, *filters(workspace=workspaces)))
    rest = (*criteria.filters, *filters(workflow=workflows, workspace=workspaces))
    return _by_status(facts, statuses, rest, bounded=bounded and bool(rest or criteria.tests))


def _by_status(
    facts: Facts, statuses: tuple[RunStatus, ...] | None, rest: tuple[Filter, ...], *, bounded: bool
) -> Branch:
    if statuses is None:
        return Branch(((),), rest)
    if RunStatus.COMPLETED not in statuses:
        return Branch(tuple((runs.c.status == status.value, implied(REMARKABLE)) for status in statuses), rest)
    # No index holds the completed ones of all workflows, as each run would have to be written to it once more.
    if len(statuses) > 1 or bounded:
        return Branch(((),), (*rest, *filters(status=tuple(status.value for status in statuses))))
    names = facts.workflows
    completed = runs.c.status == RunStatus.COMPLETED.value
    if len(names) > _MANY_WORKFLOWS:
        return Branch(((completed,),), rest)
    return Branch(tuple((runs.c.workflow == name, completed) for name in names), rest)


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
        hidden: Hides | None = None,
    ) -> None:
        cursor = None if query.cursor is None else Cursor.read(query.cursor)
        self.newer = cursor is not None and cursor.newer
        self.start = None if cursor is None else cursor.id
        self.range: Conditions = (*_window(query, ids=real_time), *_place(cursor, until))
        self._connection = facts.connection
        self.branches, self.criteria = branches(facts, query, bounded=scan is not None, hidden=hidden)
        self._scan = scan

    @property
    def tests(self) -> tuple[Test, ...]:
        return self.branches[0].tests if self.branches else ()

    @property
    def forks(self) -> bool:
        """Whether what was not looked at in one branch lies between what was found in another."""
        return len(self.branches) > 1

    # Ids -----------------------------------------------------------------------------------------

    def ids(self, limit: int | None) -> sa.Select[Any] | None:
        """Select the first `limit` ids, or all; null when there can be none."""
        if self.tests:
            found = list(self._tested(limit or 0))
            return sa.select(runs.c.id).where(runs.c.id.in_(found)) if found else None
        return self._candidates(limit)

    def _candidates(self, limit: int | None) -> sa.Select[Any] | None:
        """Select the ids that pass the filters."""
        found = [self._found(branch, limit) for branch in self.branches]
        if len(found) < 2:
            return found[0] if found else None
        return self._merged(found, limit)

    def _found(self, branch: Branch, limit: int | None) -> sa.Select[Any]:
        if self._scan is None or branch.whole:
            return self._probed(branch, ("id",), limit, *branch.passes(runs.c))
        looked = self.looked(branch, self._scan).subquery()
        return self._ordered(sa.select(looked.c.id).where(*branch.passes(looked.c)), looked.c.id).limit(limit)

    def looked(self, branch: Branch, limit: int) -> sa.Select[Any]:
        """Select the first runs that the probes find, with what the filters must know of them."""
        return self._probed(branch, branch.columns, limit)

    def _tested(self, limit: int) -> Iterator[str]:
        """The first ids that pass the tests too. Raises `ReadTimeout`."""
        candidates = self._candidates(None)
        ids: Sequence[str] = [] if candidates is None else self._connection.scalars(candidates).all()
        columns = [runs.c.id, *(_bounded(test.column) for test in self.tests)]
        start, size = 0, _CHUNKS[0]
        while start < len(ids):
            check_time(self._connection)
            query = sa.select(*columns).where(runs.c.id.in_(ids[start : start + size]))
            start, size = start + size, _CHUNKS[1]
            for row in self._connection.execute(self._ordered(query, runs.c.id)).mappings():
                if all(test.passes(row[test.column]) for test in self.tests):
                    yield row["id"]
                    limit -= 1
                    if not limit:
                        return

    def rows(self, limit: int, columns: Sequence[sa.ColumnElement[Any]]) -> Sequence[sa.RowMapping]:
        found = self.ids(limit)
        if found is None:
            return ()
        chosen = sa.select(found.subquery().c.id)
        query = self._ordered(sa.select(*columns).where(runs.c.id.in_(chosen)), runs.c.id)
        return self._connection.execute(query).mappings().all()

    def edge(self) -> str | None:
        """The last id that was looked at where looking was cut short; null where it was not."""
        edges = [found for branch in self.branches if (found := self._edge(branch)) is not None]
        return max(edges, default=None)

    def _edge(self, branch: Branch) -> str | None:
        if self._scan is None or branch.whole:
            return None
        looked = self.looked(replace(branch, filters=()), self._scan).subquery()
        last = self._ordered(sa.select(looked.c.id), looked.c.id).limit(1).offset(self._scan - 1)
        found: str | None = self._connection.scalar(last)
        return found

    # Counts --------------------------------------------------------------------------------------

    def counts(self, cap: int, *, exact: bool) -> list[sa.Select[int, int]]:
        """Select for each branch how many runs there are, and whether counting stopped before the last.

        It stops at `cap` unless exact, or where looking is cut short.
        """
        looked_at = cap if self._scan is None else self._scan
        return [self._count(branch, looked_at if branch.filters else cap, exact=exact) for branch in self.branches]

    def _count(self, branch: Branch, cap: int, *, exact: bool) -> sa.Select[int, int]:
        number = sa.func.count()
        if exact and not branch.filters:
            found = self._probed(branch, ("id",), None).order_by(None).subquery()
            return sa.select(number.label("value"), sa.literal(0).label("cut")).select_from(found)
        looked = self.looked(branch, cap).subquery()
        passing = branch.passes(looked.c)
        matching = sa.func.count(sa.case((sa.and_(*passing), 1))) if passing else number
        cut = sa.case((number >= cap, 1), else_=0)
        return sa.select(matching.label("value"), cut.label("cut")).select_from(looked)

    def count_tested(self, cap: int) -> int:
        """How many runs pass the tests too, of those looked at, up to `cap`. Raises `ReadTimeout`."""
        return sum(1 for _ in self._tested(cap))

    # Parts ---------------------------------------------------------------------------------------

    def _probed(
        self, branch: Branch, names: Iterable[str], limit: int | None, *conditions: sa.ColumnElement[bool]
    ) -> sa.Select[Any]:
        """Select columns of the first runs that the probes find, reading of each no more than it gives."""
        columns = [runs.c[name] for name in names]
        members = [sa.select(*columns).where(*probe, *self.range, *conditions) for probe in branch.probes]
        if len(members) == 1:
            return self._ordered(members[0], runs.c.id).limit(limit)
        if not members:
            return sa.select(*columns).where(sa.false())
        if self._connection.dialect.name == "sqlite":
            merged = sa.union_all(*members).subquery()
            return self._ordered(sa.select(merged), merged.c.id).limit(limit)
        # PostgreSQL merges only what is ordered and limited, SQLite only what is not.
        return self._merged([self._ordered(member, runs.c.id).limit(limit) for member in members], limit)

    def _merged(self, members: Sequence[sa.Select[Any]], limit: int | None) -> sa.Select[Any]:
        """Select the first rows of selects that are ordered and limited themselves."""
        merged = sa.union_all(*(sa.select(member.subquery()) for member in members)).subquery()
        return self._ordered(sa.select(merged), merged.c.id).limit(limit)

    def _ordered(self, selected: sa.Select[Any], column: sa.ColumnElement[Any]) -> sa.Select[Any]:
        return selected.order_by(column.asc() if self.newer else column.desc())


def _bounded(column: str) -> sa.ColumnElement[Any]:
    """What a test looks at: of errors the beginning, where class and message stand; of other values short ones."""
    if column == "error":
        return sa.func.substr(runs.c.error, 1, _LONGEST_ERROR).label("error")
    short = sa.func.length(runs.c[column]) <= _LONGEST_VALUE
    # What stands for a long one is no JSON, and fits nothing.
    return sa.case((runs.c[column].is_(None), None), (short, runs.c[column]), else_="…").label(column)


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
