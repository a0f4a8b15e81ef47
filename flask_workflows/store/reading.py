"""What people ask of the tables: one run, a list, counts, who works.

Lists and counts are planned by hand, so that an index serves each of them at any size. They go through *probes*:
conditions that one index answers in the order of ids, which is the order of creation. Where no single index does, as
for one workflow in every status, several probes are merged. What no index knows (queue, workspace, key) is filtered
afterwards, over a bounded number of runs where the caller says so. Lists never read a payload.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

import sqlalchemy as sa

from ..errors import ReadTimeout
from ..models import events
from ..models import runs
from ..models import steps
from ..models import workers
from ..names import id_at
from ..names import is_clean
from ..runs import Attempt
from ..runs import Count
from ..runs import Cursor
from ..runs import decode
from ..runs import EmittedEvent
from ..runs import Head
from ..runs import LIVE
from ..runs import NOT_LOADED
from ..runs import Page
from ..runs import Run
from ..runs import RunDetails
from ..runs import RunError
from ..runs import RunQuery
from ..runs import RunStatus
from ..runs import Step
from ..runs import Worker

#: Counting stops here.
COUNT_CAP = 10_001

#: A worker that said nothing for three of its heartbeats of 10 s is gone.
WORKER_SILENCE = timedelta(seconds=30)

#: How far the clocks that made ids may be off the database's, which made `created_at`.
_SKEW_MS = 60_000

#: Above this many workflows, completed runs are looked for in the order of ids alone.
_MANY_WORKFLOWS = 300

_ERROR_HEAD = 1_000
_EARLIER_LIMIT = 200_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, tzinfo=UTC)

_SUMMARY: tuple[sa.ColumnElement[Any], ...] = (
    *(column for column in runs.c if column.name not in ("live_key", "input", "output", "error")),
    sa.func.substr(runs.c.error, 1, _ERROR_HEAD).label("error"),
)
_STEP_SUMMARY: tuple[sa.ColumnElement[Any], ...] = (
    *(column for column in steps.c if column.name not in ("input", "output", "error", "earlier")),
    sa.func.substr(steps.c.error, 1, _ERROR_HEAD).label("error"),
    sa.case((sa.func.length(steps.c.earlier) <= _EARLIER_LIMIT, steps.c.earlier)).label("earlier"),
)

Conditions = tuple[sa.ColumnElement[bool], ...]


# A partial index is used where its own condition stands in the query word for word: as literals, not parameters.
_REMARKABLE: sa.ColumnElement[bool] = runs.c.status != sa.literal("completed", literal_execute=True)
_OPEN: sa.ColumnElement[bool] = steps.c.status.in_(
    sa.bindparam("open", ["running", "retrying", "sleeping", "waiting"], expanding=True, literal_execute=True)
)


# Connections -------------------------------------------------------------------------------


@contextmanager
def reading(engine: sa.Engine, *, seconds: float | None = None) -> Iterator[sa.Connection]:
    """Lend a connection to read from; it is rolled back afterwards.

    With `seconds`, statements that take longer raise `ReadTimeout`.
    """
    with engine.connect() as connection:
        try:
            with nullcontext() if seconds is None else _limited(connection, seconds):
                yield connection
        finally:
            connection.rollback()


@contextmanager
def _limited(connection: sa.Connection, seconds: float) -> Iterator[None]:
    driver: Any = connection.connection.driver_connection
    sqlite = connection.dialect.name == "sqlite"
    if sqlite:
        deadline = time.monotonic() + seconds
        driver.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    elif connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(seconds * 1000)}")
    try:
        yield
    except sa.exc.OperationalError as error:
        if _is_timeout(error):
            raise ReadTimeout(f"reading took more than {seconds:g} s") from None
        raise
    finally:
        if sqlite:
            driver.set_progress_handler(None, 0)


def _is_timeout(error: sa.exc.DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) == "57014" or str(error.orig) == "interrupted"


def database_now(connection: sa.Connection) -> datetime:
    """The database's clock: what `created_at` and `due_at` compare with."""
    if connection.dialect.name == "sqlite":
        expression = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
    elif connection.dialect.name == "postgresql":
        expression = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    else:
        expression = "CAST(unix_timestamp(now(3)) * 1000 AS signed)"
    return instant(connection.scalar(sa.text(f"SELECT {expression}")))


# One run -----------------------------------------------------------------------------------


def read_run(connection: sa.Connection, run_id: str, *, payloads: bool = True) -> Run | None:
    """The run, with its input and output unless told otherwise; null if there is none."""
    if not is_clean(run_id):
        return None
    columns = [column for column in runs.c if payloads or column.name not in ("input", "output")]
    row = connection.execute(sa.select(*columns).where(runs.c.id == run_id)).mappings().one_or_none()
    return None if row is None else _run(row)


def read_heads(connection: sa.Connection, run_id: str, limit: int) -> tuple[Head | None, Head | None]:
    """The beginnings of a run's input and output."""
    columns = []
    for column in (runs.c.input, runs.c.output):
        columns += [sa.func.substr(column, 1, limit), sa.func.length(column)]
    row = connection.execute(sa.select(*columns).where(runs.c.id == run_id)).one_or_none()
    if row is None:
        return None, None
    text, length, output, output_length = row
    return (None if text is None else Head(text, length), None if output is None else Head(output, output_length))


def read_details(connection: sa.Connection, run_id: str) -> RunDetails | None:
    """The run and all its steps, payloads included."""
    run = read_run(connection, run_id)
    if run is None:
        return None
    query = sa.select(steps).where(steps.c.run_id == run_id).order_by(steps.c.position, steps.c.key)
    rows = connection.execute(query).mappings()
    return RunDetails(run, tuple(_step(row, number) for number, row in enumerate(rows, start=1)))


def read_steps(
    connection: sa.Connection, run_id: str, *, edges: int = 50, whole: int = 200, start: int | None = None
) -> tuple[tuple[Step, ...], int]:
    """Steps of a run in order, without payloads, and how many there are.

    Up to `whole` steps: all. Of more, the first and the last `edges`, and all that failed or are not finished; or,
    with `start`, the `whole` steps from that number on and the unfinished ones.
    """
    place = sa.func.row_number().over(order_by=(steps.c.position, steps.c.key))
    numbered = (
        sa.select(
            steps.c.run_id, steps.c.key, steps.c.status, place.label("number"), sa.func.count().over().label("total")
        )
        .where(steps.c.run_id == run_id)
        .subquery("numbered")
    )
    number, total, status = numbered.c.number, numbered.c.total, numbered.c.status
    if start is None:
        chosen = sa.or_(total <= whole, number <= edges, number > total - edges, status != "completed")
    else:
        chosen = sa.or_(number.between(start, start + whole - 1), status.not_in(("completed", "failed")))
    query = (
        sa.select(*_STEP_SUMMARY, number, total)
        .join(steps, (steps.c.run_id == numbered.c.run_id) & (steps.c.key == numbered.c.key))
        .where(chosen)
        .order_by(number)
        .limit(2 * whole)
    )
    rows = connection.execute(query).mappings().all()
    if not rows:
        return (), count_steps(connection, run_id)
    return tuple(_step(row, row["number"]) for row in rows), rows[0]["total"]


def read_step_error(connection: sa.Connection, run_id: str, key: str) -> RunError | None:
    """The whole error of one step, traceback included."""
    text = connection.scalar(sa.select(steps.c.error).where(steps.c.run_id == run_id, steps.c.key == key))
    return None if text is None else RunError.read(text)


def count_steps(connection: sa.Connection, run_id: str) -> int:
    return connection.scalar(sa.select(sa.func.count()).where(steps.c.run_id == run_id)) or 0


def count_ahead(connection: sa.Connection, run: Run, *, cap: int = 1_001) -> Count:
    """How many unfinished runs of the same queue fell due before this one."""
    if run.due_at is None:
        return Count(0)
    due = (
        sa.select(sa.literal(1))
        .where(runs.c.due_at.is_not(None), runs.c.due_at < _millis(run.due_at), runs.c.queue == run.queue)
        .limit(cap)
        .subquery()
    )
    return _capped(connection.scalar(sa.select(sa.func.count()).select_from(due)) or 0, cap)


# Lists -------------------------------------------------------------------------------------


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
    listed = [_run(row) for row in plan.rows(query.limit + 1, tuple(runs.c) if payloads else _SUMMARY)]
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
    return _capped(connection.scalar(sa.select(sa.func.count()).select_from(found.subquery())) or 0, cap)


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


def _capped(value: int, cap: int) -> Count:
    return Count(cap - 1, capped=True) if value >= cap else Count(value)


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
        return [(runs.c.status == status.value, _REMARKABLE)]

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
        after = _millis(query.created_after)
        yield runs.c.created_at >= after
        if ids:
            yield runs.c.id >= id_at(_id_millis(after - _SKEW_MS))
    if query.created_before is not None:
        before = _millis(query.created_before)
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


def read_open_steps(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, tuple[Step, ...]]:
    """The unfinished steps of each run that has any."""
    if not run_ids:
        return {}
    query = (
        sa.select(*_STEP_SUMMARY)
        .where(steps.c.run_id.in_(run_ids), _OPEN)
        .order_by(steps.c.run_id, steps.c.position, steps.c.key)
        .limit(10 * len(run_ids) + 1_000)
    )
    found: dict[str, tuple[Step, ...]] = {}
    for row in connection.execute(query).mappings():
        found[row["run_id"]] = (*found.get(row["run_id"], ()), _step(row))
    return found


# Workers -----------------------------------------------------------------------------------


def list_events(connection: sa.Connection, name: str | None, *, limit: int) -> tuple[EmittedEvent, ...]:
    """The newest events, of one name or of all."""
    query = sa.select(events).order_by(events.c.seq.desc()).limit(limit)
    if name is not None:
        query = query.where(events.c.name == name)
    return tuple(
        EmittedEvent(
            row["seq"],
            row["name"],
            row["workspace"],
            row["run_id"],
            instant(row["emitted_at"]),
            _optional(row["matched_at"]),
            row["woke"],
            row["payload"],
        )
        for row in connection.execute(query).mappings()
    )


def live_workers(connection: sa.Connection, now: datetime) -> tuple[Worker, ...]:
    """The workers that said lately that they are there, by name."""
    query = (
        sa.select(workers)
        .where(workers.c.stopped_at.is_(None), workers.c.seen_at >= _millis(now - WORKER_SILENCE))
        .order_by(workers.c.name, workers.c.id)
        .limit(1_000)
    )
    return tuple(_worker(row) for row in connection.execute(query).mappings())


# Rows --------------------------------------------------------------------------------------


def _run(row: sa.RowMapping) -> Run:
    return Run(
        id=row["id"],
        workflow=row["workflow"],
        version=row["version"],
        queue=row["queue"],
        workspace=row["workspace"],
        key=row["key"],
        status=RunStatus.read(row["status"]),
        epoch=row["epoch"],
        worker=row["worker"],
        due_at=_optional(row["due_at"]),
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        losses=row["losses"],
        cancel_requested_at=_optional(row["cancel_requested_at"]),
        created_at=instant(row["created_at"]),
        started_at=_optional(row["started_at"]),
        updated_at=instant(row["updated_at"]),
        finished_at=_optional(row["finished_at"]),
        error=None if row["error"] is None else RunError.read(row["error"]),
        input_json=row.get("input", NOT_LOADED),
        output_json=row.get("output", NOT_LOADED),
    )


def _step(row: sa.RowMapping, number: int | None = None) -> Step:
    return Step(
        run_id=row["run_id"],
        key=row["key"],
        position=row["position"],
        kind=row["kind"],
        status=row["status"],
        attempts=row["attempts"],
        started_at=_optional(row["started_at"]),
        finished_at=_optional(row["finished_at"]),
        due_at=_optional(row["due_at"]),
        error=None if row["error"] is None else RunError.read(row["error"]),
        earlier=_attempts(row["earlier"]),
        number=number,
        input_json=row.get("input", NOT_LOADED),
        output_json=row.get("output", NOT_LOADED),
    )


def _attempts(text: str | None) -> tuple[Attempt, ...]:
    value = decode(text)
    if not isinstance(value, list):
        return ()
    return tuple(
        Attempt(
            _optional(attempt.get("started_at")),
            _optional(attempt.get("finished_at")),
            None if attempt.get("error") is None else RunError.of(attempt["error"]),
        )
        for attempt in value
        if isinstance(attempt, dict)
    )


def _worker(row: sa.RowMapping) -> Worker:
    queues = decode(row["queues"])
    offers = decode(row["workflows"])
    return Worker(
        id=row["id"],
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        queues=tuple(map(str, queues)) if isinstance(queues, list) else None,
        workflows=tuple(_offers(offers if isinstance(offers, list) else [])),
        concurrency=row["concurrency"],
        started_at=instant(row["started_at"]),
        seen_at=instant(row["seen_at"]),
        stopped_at=_optional(row["stopped_at"]),
    )


def _offers(values: list[Any]) -> Iterator[tuple[str, int, int]]:
    for value in values:
        match value:
            case [str(name), int(low), int(high)]:
                yield name, low, high


def _millis(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)


def _optional(millis: object) -> datetime | None:
    if not isinstance(millis, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return _LAST if millis > 0 else _EPOCH


def instant(millis: object) -> datetime:
    """The instant that is stored as Unix milliseconds."""
    return _optional(millis) or _EPOCH
