"""The queues."""

from __future__ import annotations

from datetime import datetime

from flask.typing import ResponseReturnValue

from ...errors import ReadTimeout
from ...runtime import Runtime
from ...store import reading as read
from ...store.reading.queues import Queues
from ..access import Permission
from ..pages.queues import queues_page
from ..routes import get
from ..visit import Visit


def queues(visit: Visit) -> ResponseReturnValue:
    scope = visit.scope
    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
    found = visit.site.kept.get(("queues", scope), lambda: _count(visit, now, scope))
    page = queues_page(found, declared_queues(visit.runtime), workers, visit.runtime.config.queue)
    return visit.page("queues", now, page, section="queues")


def _count(visit: Visit, now: datetime, scope: tuple[str, ...] | None) -> Queues | None:
    try:
        with visit.reading() as connection:
            return read.count_queues(connection, now, scope)
    except ReadTimeout:
        return None


def declared_queues(runtime: Runtime) -> frozenset[str]:
    """The queues of the app's workflows."""
    return frozenset(workflow.queue or runtime.config.queue for workflow in runtime.registry.workflows())


def has_queues(runtime: Runtime) -> bool:
    """Whether the app uses more than the one queue that every app has."""
    return bool(declared_queues(runtime) - {runtime.config.queue})


ROUTES = (get("/queues", "queues", Permission.VIEW, queues),)
