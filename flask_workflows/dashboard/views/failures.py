"""Failed runs, by cause."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta
from datetime import UTC

from flask import current_app
from flask.typing import ResponseReturnValue

from ...errors import ReadTimeout
from ...runs import Failures
from ...store import reading as read
from ..access import Permission
from ..pages.failures import failures_page
from ..routes import get
from ..visit import Visit

#: Within which time runs failed. Null is any time.
WINDOWS: dict[str, tuple[str, timedelta | None]] = {
    "1h": ("Last hour", timedelta(hours=1)),
    "24h": ("Last 24 hours", timedelta(hours=24)),
    "7d": ("Last 7 days", timedelta(days=7)),
    "30d": ("Last 30 days", timedelta(days=30)),
    "all": ("Any time", None),
}
DEFAULT = "24h"
HOURS = 24


def failures(visit: Visit) -> ResponseReturnValue:
    window = visit.request.args.get("time") or DEFAULT
    if window not in WINDOWS:
        words = f"There is no time {window[:50]!r}. Write one of {', '.join(WINDOWS)}."
        return visit.message("refused.html", 422, code="invalid_filter", words=words)

    with visit.reading() as connection:
        now = visit.now(connection)
    hours = _hours(now)
    length = WINDOWS[window][1]
    since = None if length is None else now - length
    hours_from = datetime.fromtimestamp(hours[0] * 3_600, UTC)

    def ask() -> Failures | None:
        try:
            with visit.reading() as connection:
                return read.list_failures(connection, since, hours_from, visit.scope)
        except ReadTimeout:
            return None

    found = visit.site.kept.get(("failures", visit.scope, window), ask)
    own = {} if window == DEFAULT else {"time": window}
    return visit.page(
        "failures",
        now,
        failures_page(found, hours),
        section="failures",
        poll=own,
        own=own,
        window=window,
        windows=WINDOWS,
        retries=_retries(visit),
    )


def _hours(now: datetime) -> range:
    """The last 24 hours, the present one included, by their numbers from the epoch."""
    last = int(now.timestamp()) // 3_600
    return range(last - HOURS + 1, last + 1)


def _retries(visit: Visit) -> bool:
    """Whether there is a page that retries many runs, and the visitor may."""
    exists = f"{visit.request.blueprint}.bulk_confirm" in current_app.view_functions
    return exists and visit.may(Permission.BULK) and visit.may(Permission.RETRY)


ROUTES = (get("/failures", "failures", Permission.VIEW, failures),)
