"""The first page: is it healthy?"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from functools import partial
from typing import TypeVar

import sqlalchemy as sa
from flask import current_app
from flask.typing import ResponseReturnValue

from ...errors import ReadTimeout
from ...explain import PATIENCE
from ...explain import Surroundings
from ...runs import Count
from ...runs import Due
from ...runs import Run
from ...runs import RunQuery
from ...runs import RunStatus
from ...runs import Step
from ...store import reading as read
from .. import chart
from ..access import Permission
from ..pages import now as pages
from ..routes import get
from ..verdict import verdict
from ..visit import Visit

T = TypeVar("T")

#: Seconds between two looks of a page that is watched.
INTERVAL = 15

QUARTER = timedelta(minutes=15)
QUARTERS = 96
HOURS = 24
#: Waits whose time-out comes within this ask for attention.
SOON = timedelta(hours=1)
TIMERS = 5
#: So many of the newest failed runs are looked at for some whose attempts were used up.
FAILED = 50
#: So many live workers are named.
WORKERS = 10


def now(visit: Visit) -> ResponseReturnValue:
    with visit.reading() as connection:
        at = visit.now(connection)
        workers = read.live_workers(connection, at)
    around = visit.surroundings(at, workers)

    due = part(visit, lambda c: read.read_due(c, at, visit.scope))
    running = part(visit, lambda c: read.read_running(c, visit.scope))
    done, cut = _done(visit, at)
    troubles = _troubles(visit, around, due)
    page = pages.NowPage(
        verdict=verdict(due, running, None if done is None else _hours(done[RunStatus.FAILED], at), around),
        tiles=pages.tiles(_live(visit), _ended(visit, at)),
        attention=pages.attention(troubles, _open_steps(visit, troubles), around, partial(_offers, visit)),
        chart=None if done is None else _chart(done, at),
        chart_cut=cut,
        timers=pages.timers(
            part(visit, lambda c: read.list_coming(c, at, None, RunStatus.SLEEPING, visit.scope, limit=TIMERS))
        ),
        workers=pages.worker_lines(workers[:WORKERS]),
        more_workers=max(len(workers) - WORKERS, 0),
        threads=sum(worker.concurrency for worker in workers),
    )
    return visit.page("now", at, page, section="now", interval=INTERVAL)


def part(visit: Visit, ask: Callable[[sa.Connection], T]) -> T | None:
    """What is read for a part of the page; null where it takes too long, which spoils no other part."""
    try:
        with visit.reading() as connection:
            return ask(connection)
    except ReadTimeout:
        return None


def _offers(visit: Visit, action: Permission, run: Run) -> bool:
    """Whether there is a page that asks for it, and the visitor may."""
    return f"{visit.request.blueprint}.ask_{action.value}" in current_app.view_functions and visit.may(action, run)


# How many ----------------------------------------------------------------------------------


def _live(visit: Visit) -> Mapping[str, Count] | None:
    return visit.site.kept.get(
        ("now", "live", visit.scope), lambda: part(visit, lambda c: read.count_live(c, visit.scope))
    )


def _ended(visit: Visit, at: datetime) -> Mapping[RunStatus, Count] | None:
    """How many of the runs created in the last 24 hours have which status, as the list counts them."""
    query = RunQuery(created_after=at - timedelta(hours=HOURS), workspace=visit.scope)
    return visit.site.kept.get(
        ("now", "ended", visit.scope),
        lambda: part(visit, lambda c: read.count_runs(c, query, real_time=visit.real_time)),
    )


# What asks for attention -------------------------------------------------------------------


def _troubles(visit: Visit, around: Surroundings, due: Due | None) -> pages.Troubles:
    at, scope, most = around.now, visit.scope, pages.MOST
    known = {*(around.known or ()), *(name for worker in around.workers for name, _, _ in worker.workflows)}
    live = [worker.id for worker in around.workers]
    since = at - timedelta(hours=HOURS)
    return pages.Troubles(
        due=due,
        unknown=part(visit, lambda c: read.count_unknown(c, known, scope)),
        lost=part(visit, lambda c: read.list_lost(c, at, PATIENCE, live, scope, limit=most["lost"] + 1)),
        overdue=part(visit, lambda c: read.list_overdue(c, at, PATIENCE, scope, limit=most["overdue"] + 1)),
        ending=part(
            visit, lambda c: read.list_coming(c, at, at + SOON, RunStatus.WAITING, scope, limit=most["ending"] + 1)
        ),
        paused=part(visit, lambda c: read.count_paused(c, scope)),
        failed=part(visit, lambda c: read.list_failed(c, since, scope, limit=FAILED)),
    )


def _open_steps(visit: Visit, troubles: pages.Troubles) -> Mapping[str, tuple[Step, ...]]:
    runs: list[Run] = [*(troubles.lost or ()), *(troubles.overdue or ()), *(troubles.ending or ())]
    return part(visit, lambda c: read.read_open_steps(c, [run.id for run in runs])) or {}


# How much was done -------------------------------------------------------------------------

Done = Mapping[RunStatus, Mapping[datetime, int]]


def _done(visit: Visit, at: datetime) -> tuple[Done | None, bool]:
    """What was completed and what failed, by the quarter of an hour; whether only the newest runs were counted."""
    since = _quarter(at) - (QUARTERS - 1) * QUARTER
    statuses = (RunStatus.COMPLETED, RunStatus.FAILED)

    def count(connection: sa.Connection) -> tuple[Done, bool]:
        found, cut = read.ended_by_quarter(connection, since, statuses, visit.scope)
        done: dict[RunStatus, dict[datetime, int]] = {status: {} for status in statuses}
        for start, status, number in found:
            done[status][start] = number
        return done, cut

    counted = visit.site.kept.get(("now", "done", visit.scope, since), lambda: part(visit, count))
    return (None, False) if counted is None else counted


def _chart(done: Done, at: datetime) -> chart.Chart:
    last = _quarter(at) + QUARTER
    edges = [last - number * QUARTER for number in range(QUARTERS, -1, -1)]
    return chart.draw(edges, done[RunStatus.COMPLETED], done[RunStatus.FAILED])


def _hours(failed: Mapping[datetime, int], at: datetime) -> dict[datetime, int]:
    """Failed runs of each hour, by the quarter of an hour it ends with: the last begins an hour before the present one."""
    last = _quarter(at)
    hours = {last - timedelta(hours=number): 0 for number in range(HOURS)}
    for start, count in failed.items():
        ago = (last - start) // timedelta(hours=1)
        end = last - timedelta(hours=max(ago, 0))
        if end in hours:
            hours[end] += count
    return hours


def _quarter(at: datetime) -> datetime:
    """When the quarter of an hour began."""
    seconds = QUARTER.total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


ROUTES = (get("/", "index", Permission.VIEW, now),)
