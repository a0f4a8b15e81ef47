"""The pages: server-rendered, read-only, closed unless the app opens them.

Each page is whole at its own URL and works without JavaScript. A part of it is live: it asks the same URL again,
naming what it shows, and is answered 204 as long as that is what there is to show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from functools import wraps
from typing import Any

import sqlalchemy as sa
from flask import Blueprint
from flask import redirect
from flask import request
from flask import url_for
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from . import pages
from . import timeline
from .access import Action
from .access import decide
from .config import WorkflowsConfig
from .errors import InvalidCursor
from .errors import ReadTimeout
from .errors import SchemaError
from .explain import Surroundings
from .payloads import DECODE_LIMIT
from .presentation import Assets
from .presentation import Presentation
from .presentation import Viewer
from .runs import Count
from .runs import Cursor
from .runs import Page
from .runs import Run
from .runs import RunQuery
from .runs import RunStatus
from .runs import Worker
from .runtime import current_runtime
from .runtime import Runtime
from .store import reading as read

SECONDS = 2.0
#: How many runs are looked at for a filter that no index knows.
SCAN = 10_000
STEPS_PER_PAGE = 200

#: Seconds between two looks of a page that is watched.
LIST_INTERVAL = 10
RUN_INTERVAL = 3

SEEN_HEADER = "X-Workflows-Seen"

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
}

WINDOWS = {
    "1h": ("Last hour", timedelta(hours=1)),
    "24h": ("Last 24 hours", timedelta(hours=24)),
    "7d": ("Last 7 days", timedelta(days=7)),
    "30d": ("Last 30 days", timedelta(days=30)),
}
LIMITS = (25, 50, 100)
FILTERS = ("status", "workflow", "queue", "key", "time", "limit", "cursor")

View = Callable[..., ResponseReturnValue]


def create_blueprint(config: WorkflowsConfig, *, name: str = "flask_workflows") -> Blueprint:
    """The pages, to be registered on the app once."""
    blueprint = Blueprint(name, __name__, url_prefix=None if config.url_prefix == "/" else config.url_prefix)
    site = _Site()
    blueprint.record(lambda state: site.presentation.put_before(state.app.jinja_loader))

    rules: tuple[tuple[str, str, Action | None, View], ...] = (
        ("/", "index", "view", site.index),
        ("/runs", "runs", "view", site.runs),
        ("/run/<path:run_id>", "run", "view", site.run),
        ("/static/<version>/<path:file>", "asset", None, site.asset),
    )
    for rule, endpoint, action, view in rules:
        blueprint.add_url_rule(rule, endpoint, _guarded(site, action, view))

    blueprint.after_request(_with_headers)
    return blueprint


def _guarded(site: _Site, action: Action | None, view: View) -> View:
    """The view behind its permission; null opens it to all, which is for files that say nothing."""

    @wraps(view)
    def guarded(**values: Any) -> ResponseReturnValue:
        refusal = None if action is None else site.refusal(action)
        if refusal is not None:
            return refusal
        try:
            return view(**values)
        except ReadTimeout as error:
            return site.took_too_long(error)
        except sa.exc.DBAPIError as error:
            return site.database_failed(error)

    guarded.action = action  # type: ignore[attr-defined]
    return guarded


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@dataclass(frozen=True, slots=True)
class Filters:
    """What of the query string says which runs are listed."""

    query: RunQuery
    #: As they stood in the query string, defaults left out.
    args: Mapping[str, str]
    until: str | None
    live: bool


class FilterError(ValueError):
    """The query string asks for something there is not."""


class _Site:
    """The views of one blueprint."""

    def __init__(self) -> None:
        self.presentation = Presentation()
        self.assets = Assets()
        self._counts = _CountCache()

    # Access ----------------------------------------------------------------------------------

    def refusal(self, action: Action, run: Run | None = None) -> ResponseReturnValue | None:
        """What to answer a visitor who may not do this; null for one who may."""
        authorize = current_runtime().authorize_now
        answer = decide(authorize, action, run, request)
        if isinstance(answer, Response):
            return answer
        if answer:
            return None
        if run is not None:
            # Whoever may not see a run is not to learn that there is one.
            return self._no_run(run.id)
        return self._message("closed.html" if authorize is None else "forbidden.html", 403)

    # Pages -----------------------------------------------------------------------------------

    def index(self) -> ResponseReturnValue:
        return redirect(url_for(".runs"), code=303)

    def runs(self) -> ResponseReturnValue:
        runtime = current_runtime()
        with read.reading(runtime.engine, seconds=SECONDS) as connection:
            now = _now(runtime, connection)
            workers = read.live_workers(connection, now)
        try:
            filters = read_filters(request.args, now)
        except (FilterError, InvalidCursor) as error:
            return self._message("refused.html", 422, problem=str(error))

        page = self._read_list(runtime, filters, _surroundings(runtime, now, workers))
        seen = pages.token((page, filters.args))
        if request.headers.get(SEEN_HEADER) == seen:
            return _nothing_new()

        first = page.rows[0].id if page.rows and filters.query.cursor is None else None
        return self._page(
            "runs",
            now,
            page=page,
            seen=seen,
            filters=filters,
            poll={**filters.args, **({"until": filters.until or first} if first else {})},
            interval=LIST_INTERVAL,
            windows=WINDOWS,
            limits=LIMITS,
            names=self._names(runtime),
            queues=_queues(runtime),
        )

    def _read_list(self, runtime: Runtime, filters: Filters, around: Surroundings) -> pages.RunsPage:
        real_time = runtime.store.clock() is None
        page: Page | None = None
        new = Count(0)
        open_steps = {}
        try:
            with read.reading(runtime.engine, seconds=SECONDS) as connection:
                page = read.list_runs(connection, filters.query, scan=SCAN, until=filters.until, real_time=real_time)
                open_steps = read.read_open_steps(connection, [run.id for run in page.runs if not run.finished])
                if filters.until is not None:
                    new = read.count_newer(connection, filters.query, filters.until, real_time=real_time)
        except ReadTimeout:
            page = None
        counts = self._counts.read(runtime, filters, real_time=real_time)
        return pages.runs_page(page, counts, open_steps, around, new=new)

    def _names(self, runtime: Runtime) -> list[str]:
        known = {workflow.name for workflow in runtime.registry.workflows()}
        try:
            with read.reading(runtime.engine, seconds=SECONDS) as connection:
                known.update(read.workflow_names(connection))
        except ReadTimeout:
            pass
        return sorted(known)

    def run(self, run_id: str) -> ResponseReturnValue:
        runtime = current_runtime()
        start = read_start(request.args)
        if not is_storable(run_id):
            return self._no_run(run_id)
        with read.reading(runtime.engine, seconds=SECONDS) as connection:
            now = _now(runtime, connection)
            run = read.read_run(connection, run_id, payloads=False)
        if run is None:
            return self._no_run(run_id)
        # The app is asked while no connection is held: it may need one itself.
        refusal = self.refusal("view", run)
        if refusal is not None:
            return refusal

        with read.reading(runtime.engine, seconds=SECONDS) as connection:
            steps, step_count = read.read_steps(connection, run_id, whole=STEPS_PER_PAGE, start=start)
            input_head, output_head = read.read_heads(connection, run_id, DECODE_LIMIT)
            failed = pages.failed_step(run, steps)
            cause = None if failed is None else read.read_step_error(connection, run_id, failed.key)
            workers = read.live_workers(connection, now)
            ahead = read.count_ahead(connection, run) if run.status is RunStatus.PENDING else None

        page = pages.run_page(
            run,
            steps,
            step_count,
            _surroundings(runtime, now, workers, ahead),
            input=input_head,
            output=output_head,
            cause=cause,
        )
        seen = pages.token(page)
        if request.headers.get(SEEN_HEADER) == seen:
            return _nothing_new()
        back = back_to_list(request.args)
        poll = {**back, **({} if start is None else {"steps": str(start)})}
        return self._page(
            "run",
            now,
            page=page,
            seen=seen,
            back=back,
            poll=poll,
            start=start,
            per_page=STEPS_PER_PAGE,
            timeline=timeline.draw(steps, now=now) if len(steps) == step_count else None,
            live=request.args.get("live") != "0",
            interval=RUN_INTERVAL,
        )

    def asset(self, version: str, file: str) -> ResponseReturnValue:
        return self.assets.response(version, file)

    # Answers ---------------------------------------------------------------------------------

    def _page(self, name: str, now: datetime, **values: Any) -> ResponseReturnValue:
        """The whole page, or its live part alone where htmx asks for that."""
        partial = request.headers.get("HX-Request") == "true"
        template = f"_{name}.html" if partial else f"{name}.html"
        return self.presentation.render(
            template,
            Viewer.of(request, now),
            assets=self.assets,
            partial=partial,
            open_by_debug=current_runtime().authorize_now is None,
            **values,
        )

    def _message(self, template: str, status: int, **values: Any) -> ResponseReturnValue:
        viewer = Viewer.of(request, None)
        text = self.presentation.render(template, viewer, assets=self.assets, open_by_debug=False, **values)
        return text, status

    def _no_run(self, run_id: str) -> ResponseReturnValue:
        days = current_runtime().config.prune_after_days
        return self._message("no_run.html", 404, run_id=run_id, days=days)

    def database_failed(self, error: sa.exc.DBAPIError) -> ResponseReturnValue:
        """Say what is missing where the tables are not what they should be; anything else is the app's to handle."""
        runtime = current_runtime()
        try:
            runtime.check_schema()
        except SchemaError as problem:
            # Where the database is, is none of the page's business.
            words = str(problem).replace(f"the database {runtime.engine.url!s}", "the database")
            return self._message("schema.html", 503, problem=words)
        raise error

    def took_too_long(self, error: ReadTimeout) -> ResponseReturnValue:
        return self._message("slow.html", 503, problem=str(error))


def _nothing_new() -> ResponseReturnValue:
    return "", 204


def _now(runtime: Runtime, connection: sa.Connection) -> datetime:
    """The instant stored ones compare with."""
    millis = runtime.store.clock()
    return read.database_now(connection) if millis is None else read.instant(millis)


def _surroundings(
    runtime: Runtime, now: datetime, workers: tuple[Worker, ...], ahead: Count | None = None
) -> Surroundings:
    known: dict[str, list[tuple[int, int]]] = {}
    for name, low, high in runtime.registry.ranges():
        known.setdefault(name, []).append((low, high))
    return Surroundings(now=now, workers=workers, known=known, keep_days=runtime.config.prune_after_days, ahead=ahead)


def _queues(runtime: Runtime) -> list[str]:
    return sorted({workflow.queue or runtime.config.queue for workflow in runtime.registry.workflows()})


def read_filters(args: MultiDict[str, str], now: datetime) -> Filters:
    """Read the list's query string. Raises `FilterError` and `InvalidCursor`."""
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
        created_after=None if window is None else now - WINDOWS[window][1],
        limit=int(limit),
        cursor=given.get("cursor"),
    )
    if query.cursor is not None:
        Cursor.read(query.cursor)
    return Filters(query, given, until, live=args.get("live") != "0")


def back_to_list(args: MultiDict[str, str]) -> dict[str, str]:
    """The list's filters in a query string; the run's page carries them for the way back."""
    return {name: value for name in FILTERS if (value := args.get(name))}


def read_start(args: MultiDict[str, str]) -> int | None:
    """The number of the first step to show; null for both ends."""
    start = args.get("steps", type=int)
    return None if start is None else min(max(start, 1), 1_000_000_000)


def is_storable(text: str) -> bool:
    """Whether a database takes the text, so that it may be asked for."""
    return "\x00" not in text


class _CountCache:
    """Counts that were slow to read, kept for a while: a watched page asks again and again."""

    slow_after = 0.1
    keep = 10.0
    most = 100

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[float, Mapping[RunStatus, Count] | None]] = {}

    def read(self, runtime: Runtime, filters: Filters, *, real_time: bool) -> Mapping[RunStatus, Count] | None:
        """Counts by status under the other filters; null where counting takes too long."""
        key = tuple((name, filters.args.get(name)) for name in ("workflow", "queue", "key", "time"))
        until, counts = self._kept.get(key, (0.0, None))
        began = time.monotonic()
        if began < until:
            return counts

        try:
            with read.reading(runtime.engine, seconds=SECONDS) as connection:
                counts = read.count_runs(connection, filters.query, real_time=real_time)
        except ReadTimeout:
            counts = None
        ended = time.monotonic()
        if ended - began > self.slow_after:
            if len(self._kept) >= self.most:
                self._kept.clear()
            self._kept[key] = (ended + self.keep, counts)
        return counts
