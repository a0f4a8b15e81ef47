"""The list of runs."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from typing import Any

from flask import current_app
from flask import redirect
from flask import url_for
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ...errors import InvalidCursor
from ...errors import InvalidSearch
from ...errors import ReadTimeout
from ...explain import Surroundings
from ...hooks import app_hides
from ...runs import Count
from ...runs import Cursor
from ...runs import Page
from ...runs import RunQuery
from ...runs import RunStatus
from ...runs import Step
from ...runtime import Runtime
from ...search import parse
from ...search import Term
from ...store import reading as read
from ..access import Permission
from ..pages.runs import Other
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
FILTERS = ("q", "status", "workflow", "queue", "workspace", "key", "time", "limit", "cursor")

#: What is said of a list without one of its filters.
_WITHOUT = {
    "time": "without the time limit",
    "q": "without the search",
    "status": "in any status",
    "workflow": "of any workflow",
    "queue": "in any queue",
    "workspace": "in any workspace",
    "key": "with any key",
}


_BULK = (Permission.CANCEL, Permission.RETRY, Permission.WAKE)


@dataclass(frozen=True, slots=True)
class Filters:
    """What of the query string says which runs are listed."""

    #: Newest first.
    query: RunQuery
    #: As they stood in the query string, defaults left out.
    args: Mapping[str, str]
    until: str | None
    #: Timers are listed soonest first.
    by_due: bool = False

    @property
    def listed(self) -> RunQuery:
        """The query in the order of the list."""
        return replace(self.query, by_due=self.by_due)


class FilterError(ValueError):
    """The query string asks for something there is not."""


class SearchError(FilterError):
    """The search cannot be read, or asks for what the visitor may not see. `at` is the number of a character."""

    def __init__(self, words: str, at: int, status: int = 422) -> None:
        super().__init__(f"{words} (character {at}).")
        self.at = at
        self.status = status


def runs(visit: Visit) -> ResponseReturnValue:
    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
    args = visit.request.args
    problem: SearchError | None = None
    try:
        try:
            filters = read_filters(visit, args, now)
        except SearchError as error:
            problem = error
            filters = read_filters(visit, _without(args, "q", "cursor", "until"), now)
    except (FilterError, InvalidCursor) as error:
        return visit.message("refused.html", 422, code="invalid_filter", words=str(error))
    pasted = _pasted(visit, filters)
    if pasted is not None:
        return redirect(url_for(".run", run_id=pasted), code=303)

    page, first = _read_list(visit, filters, visit.surroundings(now, workers), now)
    return visit.page(
        "runs",
        now,
        page,
        section="runs",
        poll={**filters.args, **({"until": filters.until or first} if first else {})},
        status_code=200 if problem is None else problem.status,
        filters=filters,
        search=args.get("q", ""),
        problem=problem,
        bulk=_bulk_actions(visit) if problem is None else (),
        statuses=tuple(RunStatus),
        windows=WINDOWS,
        limits=LIMITS,
        names=_names(visit),
        queues=_queues(visit.runtime),
        workspaces=_workspaces(visit),
    )


def _pasted(visit: Visit, filters: Filters) -> str | None:
    """The id that is all that is searched for, where there is such a run for the visitor."""
    terms = parse(filters.query.search)
    if len(terms) != 1 or terms[0].field not in ("word", "id") or terms[0].negated:
        return None
    with visit.reading() as connection:
        found = read.read_run(connection, terms[0].value, payloads=False)
    if found is None or not visit.sees(found.workspace) or visit.refusal(Permission.VIEW, found) is not None:
        return None
    return found.id


def _bulk_actions(visit: Visit) -> tuple[str, ...]:
    """What the visitor may do to many runs at once, where there is a page for it."""
    endpoint = f"{visit.request.blueprint}.bulk_confirm"
    if endpoint not in current_app.view_functions or not visit.may(Permission.BULK):
        return ()
    return tuple(action.value for action in _BULK if visit.may(action))


def _read_list(visit: Visit, filters: Filters, around: Surroundings, now: datetime) -> tuple[RunsPage, str | None]:
    """What stands on the page, and the id of the newest run that may stand there as long as it is watched."""
    page: Page | None = None
    new = Count(0)
    first: str | None = None
    open_steps: Mapping[str, tuple[Step, ...]] = {}
    tries: Mapping[str, int] = {}
    how = how_to_look(visit)
    try:
        with visit.reading() as connection:
            page = read.list_runs(connection, filters.listed, scan=SCAN, until=filters.until, **how)
            open_steps = read.read_open_steps(connection, [run.id for run in page.runs if not run.finished])
            tries = read.read_failed_tries(connection, page.runs)
            if filters.until is not None:
                new = read.count_newer(connection, filters.query, filters.until, **how)
            if page.runs and filters.query.cursor is None:
                first = page.runs[0].id
                if filters.by_due:
                    first = read.newest_id(connection, filters.query, scan=SCAN, real_time=visit.real_time)
    except ReadTimeout:
        page = None
    counts = _counts(visit, filters)
    nothing = page is not None and not page.runs and page.searched is None and filters.query.cursor is None
    others = _others(visit, filters, now) if nothing else ()
    shown = runs_page(
        page,
        counts,
        open_steps,
        tries,
        around,
        new=new,
        status=filters.query.status,
        by_due=filters.by_due,
        others=others,
    )
    return shown, first


def how_to_look(visit: Visit) -> dict[str, Any]:
    """What every query of the list has to know. What the app hides must not be found either."""
    return {"real_time": visit.real_time, "hidden": app_hides()}


def _counts(visit: Visit, filters: Filters) -> Mapping[RunStatus, Count] | None:
    """Counts by status under the other filters; null where counting takes too long."""

    def count() -> Mapping[RunStatus, Count] | None:
        try:
            with visit.reading() as connection:
                return read.count_runs(connection, replace(filters.query, status=None), **how_to_look(visit))
        except ReadTimeout:
            return None

    return visit.site.kept.get(("counts", visit.scope, _narrowing(filters, but="status")), count)


def _narrowing(filters: Filters, *, but: str = "") -> tuple[tuple[str, str], ...]:
    return tuple((name, filters.args[name]) for name in _WITHOUT if name in filters.args and name != but)


def _others(visit: Visit, filters: Filters, now: datetime) -> tuple[Other, ...]:
    """Where nothing matches: how many runs would without one of the filters, for each that helps."""

    def count() -> tuple[Other, ...]:
        found = []
        for name, _ in _narrowing(filters):
            args = _without(MultiDict(filters.args), name)
            wider = read_filters(visit, args, now)
            try:
                with visit.reading() as connection:
                    number = read.count_matching(connection, wider.query, **how_to_look(visit))
            except ReadTimeout:
                continue
            if number.value:
                found.append(Other(number, _WITHOUT[name], wider.args))
        return tuple(found)

    return visit.site.kept.get(("others", visit.scope, _narrowing(filters)), count)


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
    terms = _terms(visit, given.get("q", ""))
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
        search=given.get("q", ""),
    )
    by_due = _are_timers(status, terms)
    if query.cursor is not None and (Cursor.read(query.cursor).due is not None) is not by_due:
        raise InvalidCursor(f"{query.cursor!r} is of a list in another order")
    return Filters(query, given, until, by_due)


def _terms(visit: Visit, text: str) -> tuple[Term, ...]:
    try:
        terms = parse(text)
    except InvalidSearch as error:
        raise SearchError(error.message, error.at) from None
    for term in terms:
        if term.reads_payload and not visit.may(Permission.VIEW_PAYLOAD):
            raise SearchError("The app does not allow you to look into inputs and outputs", term.at, 403)
    return terms


def _are_timers(status: str | None, terms: Sequence[Term]) -> bool:
    """Whether all that is listed sleeps. What code must look at is found in the order of creation alone."""
    if any(term.tested for term in terms):
        return False
    named = {term.value for term in terms if term.field == "status" and not term.negated}
    return RunStatus.SLEEPING in named | {status}


def _without(args: MultiDict[str, str], *names: str) -> MultiDict[str, str]:
    return MultiDict([(name, value) for name, value in args.items(multi=True) if name not in names])


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
