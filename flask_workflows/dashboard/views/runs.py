"""The list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta

from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ...errors import InvalidCursor
from ...errors import ReadTimeout
from ...explain import Surroundings
from ...runs import Count
from ...runs import Cursor
from ...runs import Page
from ...runs import RunQuery
from ...runs import RunStatus
from ...runtime import Runtime
from ...store import reading as read
from ..access import Permission
from ..pages.runs import runs_page
from ..pages.runs import RunsPage
from ..routes import get
from ..visit import Visit

#: How many runs are looked at for a filter that no index knows.
SCAN = 10_000

WINDOWS = {
    "1h": ("Last hour", timedelta(hours=1)),
    "24h": ("Last 24 hours", timedelta(hours=24)),
    "7d": ("Last 7 days", timedelta(days=7)),
    "30d": ("Last 30 days", timedelta(days=30)),
}
LIMITS = (25, 50, 100)
#: Workspaces the form offers to choose from.
_OFFERED = 100
FILTERS = ("status", "workflow", "queue", "workspace", "key", "time", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class Filters:
    """What of the query string says which runs are listed."""

    query: RunQuery
    #: As they stood in the query string, defaults left out.
    args: Mapping[str, str]
    until: str | None


class FilterError(ValueError):
    """The query string asks for something there is not."""


def runs(visit: Visit) -> ResponseReturnValue:
    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
    try:
        filters = read_filters(visit, visit.request.args, now)
    except (FilterError, InvalidCursor) as error:
        return visit.message("refused.html", 422, code="invalid_filter", words=str(error))

    page = _read_list(visit, filters, visit.surroundings(now, workers))
    first = page.rows[0].id if page.rows and filters.query.cursor is None else None
    return visit.page(
        "runs",
        now,
        page,
        section="runs",
        filters=filters,
        poll={**filters.args, **({"until": filters.until or first} if first else {})},
        windows=WINDOWS,
        limits=LIMITS,
        names=_names(visit),
        queues=_queues(visit.runtime),
        workspaces=_workspaces(visit),
    )


def _read_list(visit: Visit, filters: Filters, around: Surroundings) -> RunsPage:
    page: Page | None = None
    new = Count(0)
    open_steps = {}
    try:
        with visit.reading() as connection:
            page = read.list_runs(connection, filters.query, scan=SCAN, until=filters.until, real_time=visit.real_time)
            open_steps = read.read_open_steps(connection, [run.id for run in page.runs if not run.finished])
            if filters.until is not None:
                new = read.count_newer(connection, filters.query, filters.until, real_time=visit.real_time)
    except ReadTimeout:
        page = None
    return runs_page(page, _counts(visit, filters), open_steps, around, new=new)


def _counts(visit: Visit, filters: Filters) -> Mapping[RunStatus, Count] | None:
    """Counts by status under the other filters; null where counting takes too long."""

    def count() -> Mapping[RunStatus, Count] | None:
        try:
            with visit.reading() as connection:
                return read.count_runs(connection, filters.query, real_time=visit.real_time)
        except ReadTimeout:
            return None

    others = tuple((name, filters.args.get(name)) for name in ("workflow", "queue", "workspace", "key", "time"))
    return visit.site.kept.get(("counts", visit.scope, others), count)


def _names(visit: Visit) -> list[str]:
    known = {workflow.name for workflow in visit.runtime.registry.workflows()}
    try:
        with visit.reading() as connection:
            known.update(read.workflow_names(connection, visit.scope))
    except ReadTimeout:
        pass
    return sorted(known)


def _queues(runtime: Runtime) -> list[str]:
    return sorted({workflow.queue or runtime.config.queue for workflow in runtime.registry.workflows()})


def _workspaces(visit: Visit) -> list[str]:
    """The workspaces to choose from, as far as the visitor may see them; none where there is no choice."""
    try:
        with visit.reading() as connection:
            return read.workspace_names(connection, visit.scope, limit=_OFFERED)
    except ReadTimeout:
        return []


def read_filters(visit: Visit, args: MultiDict[str, str], now: datetime) -> Filters:
    """Read the list's query string, or a form that holds the same. Its query keeps within the visitor's scope.

    Raises `FilterError` and `InvalidCursor`.
    """
    given = back_to_list(args)
    if not all(map(is_storable, given.values())):
        raise FilterError("There is a character in it that no stored text has.")

    status, window, limit = given.get("status"), given.get("time"), given.get("limit", "50")
    if status is not None and status not in list(RunStatus):
        raise FilterError(f"There is no status {status!r}. The statuses are {', '.join(RunStatus)}.")
    if window is not None and window not in WINDOWS:
        raise FilterError(f"There is no time {window!r}. Write one of {', '.join(WINDOWS)}.")
    if limit not in map(str, LIMITS):
        raise FilterError(f"There is no limit {limit!r}. Write one of {', '.join(map(str, LIMITS))}.")

    until = args.get("until")
    if until is not None:
        until = Cursor.read(f"older.{until}").id
    query = RunQuery(
        workflow=given.get("workflow"),
        status=None if status is None else RunStatus(status),
        key=given.get("key"),
        queue=given.get("queue"),
        workspace=_within(visit.scope, given.get("workspace")),
        created_after=None if window is None else now - WINDOWS[window][1],
        limit=int(limit),
        cursor=given.get("cursor"),
    )
    if query.cursor is not None:
        Cursor.read(query.cursor)
    return Filters(query, given, until)


def _within(scope: tuple[str, ...] | None, workspace: str | None) -> tuple[str, ...] | None:
    if workspace is None:
        return scope
    return (workspace,) if scope is None or workspace in scope else ()


def back_to_list(args: MultiDict[str, str]) -> dict[str, str]:
    """The list's filters in a query string; the run's page carries them for the way back."""
    return {name: value for name in FILTERS if (value := args.get(name))}


def is_storable(text: str) -> bool:
    """Whether a database takes the text, so that it may be asked for."""
    return "\x00" not in text


ROUTES = (get("/runs", "runs", Permission.VIEW, runs),)
