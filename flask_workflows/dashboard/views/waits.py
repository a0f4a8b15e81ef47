"""Timers and waits, and the runs that wait for one event."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ...errors import InvalidCursor
from ...errors import ReadTimeout
from ...runs import Worker
from ...store import reading as read
from ...store.reading.waits import TimerPlace
from ...store.reading.waits import WaitPlace
from ..access import Permission
from ..pages.waits import wait_page
from ..pages.waits import waits_page
from ..routes import get
from ..visit import Visit
from .runs import is_storable

T = TypeVar("T")

#: Waits of one name on a page.
LIMIT = 100

_ARGS = ("cursor", "names", "name", "kind", "after")


def waits(visit: Visit) -> ResponseReturnValue:
    args = _read_args(visit.request.args)
    try:
        if "name" in args:
            return _of_one_name(visit, args)
        return _overview(visit, args)
    except InvalidCursor as error:
        return visit.message("refused.html", 422, code="invalid_filter", words=str(error))


def _overview(visit: Visit, args: dict[str, str]) -> ResponseReturnValue:
    cursor, names = args.get("cursor"), args.get("names")
    if cursor is not None:
        TimerPlace.read(cursor)
    scope = visit.scope
    now, workers = _surroundings(visit)
    timers = _patiently(visit, lambda connection: read.list_timers(connection, scope, cursor=cursor))
    ids = [] if timers is None else [run.id for run in timers.runs]
    steps = _patiently(visit, lambda connection: read.read_open_steps(connection, ids))
    groups = visit.site.kept.get(
        ("waits", scope, names),
        lambda: _patiently(visit, lambda connection: read.list_wait_groups(connection, scope, after=names)),
    )
    page = waits_page(timers, steps or {}, groups, visit.surroundings(now, workers))
    return visit.page("waits", now, page, section="waits", poll=args)


def _of_one_name(visit: Visit, args: dict[str, str]) -> ResponseReturnValue:
    name, message, after = args["name"], args.get("kind") == "message", args.get("after")
    if after is not None:
        WaitPlace.read(after)
    scope, values = visit.scope, visit.may(Permission.VIEW_PAYLOAD)
    now, _ = _surroundings(visit)
    found = _patiently(
        visit,
        lambda connection: read.list_waits(
            connection, scope, name, message=message, after=after, limit=LIMIT, values=values
        ),
    )
    page = wait_page(name, message, found, first=after is None)
    return visit.page("wait", now, page, section="waits", poll=args, values_hidden=not values)


def _surroundings(visit: Visit) -> tuple[datetime, tuple[Worker, ...]]:
    with visit.reading() as connection:
        now = visit.now(connection)
        return now, read.live_workers(connection, now)


def _patiently(visit: Visit, ask: Callable[[sa.Connection], T]) -> T | None:
    """The answer; null where it took too long."""
    try:
        with visit.reading() as connection:
            return ask(connection)
    except ReadTimeout:
        return None


def _read_args(args: MultiDict[str, str]) -> dict[str, str]:
    """What of the query string says what is shown; what no database holds is not asked for."""
    return {name: value for name in _ARGS if (value := args.get(name)) and is_storable(value)}


ROUTES = (get("/waits", "waits", Permission.VIEW, waits),)
