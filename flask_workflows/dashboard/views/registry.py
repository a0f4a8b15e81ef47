"""The workflows, steps and events that are declared, and what the database has of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from datetime import timedelta

from flask.typing import ResponseReturnValue

from ...errors import ReadTimeout
from ...runs import Count
from ...runs import RunQuery
from ...runs import RunStatus
from ...runs import Unfinished
from ...runs import Worker
from ...runtime import Runtime
from ...store import reading as read
from ..access import Permission
from ..pages.registry import Ended
from ..pages.registry import NONE_ENDED
from ..pages.registry import registry_page
from ..pages.registry import workflow_page
from ..routes import get
from ..visit import Visit
from .runs import is_storable

#: Seconds between two looks of a page that is watched.
INTERVAL = 30
LATELY = timedelta(hours=24)
_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


def registry(visit: Visit) -> ResponseReturnValue:
    runtime = visit.runtime
    now, workers = _workers(visit)
    unfinished = _unfinished(visit)
    page = registry_page(
        runtime,
        runtime.registry.steps(),
        runtime.workflows.events.types(),
        known=_known(visit, unfinished),
        unfinished=unfinished,
        workers=workers,
        ended=_ended(visit, now),
        missing=missing_modules(runtime),
    )
    return visit.page("registry", now, page, section="registry", interval=INTERVAL)


def workflow(visit: Visit, name: str) -> ResponseReturnValue:
    runtime = visit.runtime
    declared = runtime.registry.versions(name)
    recent = _recent(visit, name) if is_storable(name) else ()
    if not declared and not recent:
        return visit.message(
            "no_workflow.html",
            404,
            code="workflow_not_found",
            words=f"There is no workflow {name[:200]}.",
            name=name,
            missing=missing_modules(runtime),
        )

    now, workers = _workers(visit)
    page = workflow_page(
        runtime,
        name,
        declared,
        unfinished=_unfinished(visit, name),
        recent=recent,
        workers=workers,
        ended=_ended_of(visit, name, now),
    )
    return visit.page("workflow", now, page, section="registry", interval=INTERVAL)


def _workers(visit: Visit) -> tuple[datetime, tuple[Worker, ...]]:
    with visit.reading() as connection:
        now = visit.now(connection)
        return now, read.live_workers(connection, now)


def _unfinished(visit: Visit, name: str | None = None) -> Unfinished | None:
    """Null where counting takes too long."""

    def count() -> Unfinished | None:
        try:
            with visit.reading() as connection:
                return read.count_unfinished(connection, workflow=name, workspaces=visit.scope)
        except ReadTimeout:
            return None

    return visit.site.kept.get(("unfinished", visit.scope, name), count)


def _known(visit: Visit, unfinished: Unfinished | None) -> list[str] | None:
    """The names that have runs; for a visitor who may see some workspaces only, unfinished ones."""
    if visit.scope is not None:
        return None if unfinished is None else sorted({name for name, _ in unfinished.counts})
    try:
        with visit.reading() as connection:
            return read.workflow_names(connection)
    except ReadTimeout:
        return None


def _recent(visit: Visit, name: str) -> tuple[int, ...]:
    def look() -> tuple[int, ...]:
        with visit.reading() as connection:
            return read.recent_versions(connection, name, workspaces=visit.scope)

    return visit.site.kept.get(("versions", visit.scope, name), look)


def _ended(visit: Visit, now: datetime) -> Mapping[str, Ended] | None:
    """What ended lately, by workflow. It is counted for all workspaces together, so some visitors are not told."""
    if visit.scope is not None:
        return None
    try:
        with visit.reading() as connection:
            stats = read.finished_stats(connection, now - LATELY)
    except ReadTimeout:
        return None
    counts: Counter[tuple[str, str]] = Counter()
    for each in stats:
        counts[each.workflow, each.outcome] += each.count
    return {
        name: Ended(*(Count(counts[name, status.value]) for status in _ENDED))
        for name in {each.workflow for each in stats}
    }


def _ended_of(visit: Visit, name: str, now: datetime) -> Ended | None:
    """The same of one workflow; for a visitor who sees some workspaces only, of the runs created since."""
    if visit.scope is None:
        ended = _ended(visit, now)
        return None if ended is None else ended.get(name, NONE_ENDED)

    def count() -> Ended | None:
        query = RunQuery(workflow=name, workspace=visit.scope, created_after=now - LATELY)
        try:
            with visit.reading() as connection:
                counts = read.count_runs(connection, query, real_time=visit.real_time)
        except ReadTimeout:
            return None
        return Ended(*(counts[status] for status in _ENDED))

    return visit.site.kept.get(("ended", visit.scope, name), count)


def missing_modules(runtime: Runtime) -> list[str]:
    """The modules of `WORKFLOWS_IMPORTS` that workers import, and this process did not."""
    return [module for module in runtime.config.imports if module not in sys.modules]


ROUTES = (
    get("/registry", "registry", Permission.VIEW, registry),
    get("/registry/<path:name>", "workflow", Permission.VIEW, workflow),
)
