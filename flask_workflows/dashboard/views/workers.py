"""The worker processes."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from ... import service
from ...store import reading as read
from ..access import Permission
from ..pages.workers import workers_page
from ..routes import get
from ..visit import Visit

MOST_WORKERS = 200
MOST_RUNS = 1_000


def workers(visit: Visit) -> ResponseReturnValue:
    scope = visit.scope
    with visit.reading() as connection:
        now = visit.now(connection)
        listed = read.list_workers(connection, limit=MOST_WORKERS + 1)
        live = read.live_workers(connection, now)
        held = read.list_held(connection, scope, limit=MOST_RUNS)
        steps = read.read_open_steps(connection, [run.id for run in held])
    page = workers_page(
        listed,
        held,
        steps,
        visit.surroundings(now, live),
        lost_after=service.lost_after(visit.runtime),
        scoped=scope is not None,
        most_workers=MOST_WORKERS,
        most_runs=MOST_RUNS,
    )
    return visit.page("workers", now, page, section="workers", inline=visit.runtime.inline, most_runs=MOST_RUNS)


ROUTES = (get("/workers", "workers", Permission.VIEW, workers),)
