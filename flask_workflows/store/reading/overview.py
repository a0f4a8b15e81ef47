"""What the first page is made of: what is due, what runs, what comes next, what ended lately.

None of it is asked of all runs: unfinished ones have indexes of their own, and where no index knows the answer, a
bounded number of runs is looked at.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Sequence
from datetime import datetime
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...models import stats
from ...models import steps
from ...models import workers
from ...runs import Count
from ...runs import Due
from ...runs import DueGroup
from ...runs import LIVE
from ...runs import Run
from ...runs import RunningQueue
from ...runs import RunStatus
from ...runs import Signs
from .rows import capped
from .rows import instant
from .rows import millis
from .rows import OPEN
from .rows import run_of
from .rows import SUMMARY
from .runs import workflow_names
from .scope import is_narrow
from .scope import LOOKED_AT
from .scope import looked_at
from .scope import newest
from .scope import Workspaces
from .workers import WORKER_SILENCE

_UNFINISHED: sa.ColumnElement[bool] = runs.c.due_at.is_not(None)
_TIMED = (RunStatus.SLEEPING.value, RunStatus.WAITING.value)

_DAY = timedelta(hours=24)
QUARTER_MS = 15 * 60_000
#: Counts over every page stop here.
_SIGNS_CAP = 1_001


# What is due -------------------------------------------------------------------------------


def read_due(connection: sa.Connection, now: datetime, workspaces: Workspaces) -> Due:
    """What is due, by status, queue, workflow and version."""
    kind = (runs.c.status, runs.c.queue, runs.c.workflow, runs.c.version)
    due = _due(now, workspaces, *kind, limit=LOOKED_AT)
    columns = [due.c[column.name] for column in kind]
    oldest = sa.func.min(due.c.due_at)
    query = sa.select(*columns, sa.func.count().label("runs"), oldest.label("oldest")).group_by(*columns)
    groups = tuple(
        DueGroup(
            RunStatus.read(row["status"]),
            row["queue"],
            row["workflow"],
            row["version"],
            row["runs"],
            instant(row["oldest"]),
        )
        for row in connection.execute(query.order_by(oldest, *columns)).mappings()
    )
    cut = sum(group.count for group in groups) >= LOOKED_AT
    return Due(groups, cut=cut or (workspaces is not None and _due_is_cut(connection, now, workspaces)))


def _due(
    now: datetime,
    workspaces: Workspaces,
    *columns: sa.ColumnElement[Any],
    limit: int,
    statuses: Iterable[RunStatus] = LIVE,
) -> sa.Subquery:
    """The runs due longest: of all, or of some workspaces among as many as are looked at."""
    if workspaces is None:
        return _first_due(now, *columns).limit(limit).subquery("due")
    if is_narrow(workspaces):
        members = [newest(status, workspaces, runs.c.due_at, *columns) for status in statuses]
        merged = sa.union_all(*(sa.select(member) for member in members)).subquery()
        due = sa.select(merged).where(merged.c.due_at <= millis(now))
        return due.order_by(merged.c.due_at).limit(limit).subquery("due")
    looked = _first_due(now, runs.c.workspace, *columns).limit(LOOKED_AT).subquery()
    chosen = [looked.c[column.name] for column in (runs.c.id, runs.c.due_at, *columns)]
    due = sa.select(*chosen).where(looked.c.workspace.in_(workspaces))
    return due.order_by(looked.c.due_at).limit(limit).subquery("due")


def _first_due(now: datetime, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    found = sa.select(runs.c.id, runs.c.due_at, *columns)
    return found.where(_UNFINISHED, runs.c.due_at <= millis(now)).order_by(runs.c.due_at)


def _due_is_cut(connection: sa.Connection, now: datetime, workspaces: tuple[str, ...]) -> bool:
    """Whether some runs were not looked at for what is due in some workspaces."""
    if is_narrow(workspaces):
        return any(looked_at(connection, status, workspaces).capped for status in LIVE)
    return connection.execute(_first_due(now).offset(LOOKED_AT).limit(1)).first() is not None


def list_overdue(
    connection: sa.Connection, now: datetime, patience: timedelta, workspaces: Workspaces, *, limit: int
) -> tuple[Run, ...]:
    """Sleeping and waiting runs whose time has come, but that nobody went on with; the longest first."""
    due = _due(
        now - patience, workspaces, runs.c.status, limit=LOOKED_AT, statuses=(RunStatus.SLEEPING, RunStatus.WAITING)
    )
    chosen = sa.select(due.c.id).where(due.c.status.in_(_TIMED)).order_by(due.c.due_at).limit(limit)
    return _runs(connection, chosen, runs.c.due_at, runs.c.id)


# What comes --------------------------------------------------------------------------------


def list_coming(
    connection: sa.Connection,
    after: datetime,
    before: datetime | None,
    status: RunStatus,
    workspaces: Workspaces,
    *,
    limit: int,
) -> tuple[Run, ...]:
    """Runs of a status that fall due after an instant, the soonest first, among the next that do."""
    window = [_UNFINISHED, runs.c.due_at > millis(after)]
    if before is not None:
        window.append(runs.c.due_at <= millis(before))
    following = sa.select(runs.c.id, runs.c.due_at, runs.c.status, runs.c.workspace).where(*window)
    next_ = following.order_by(runs.c.due_at).limit(LOOKED_AT).subquery()
    chosen = sa.select(next_.c.id).where(next_.c.status == status.value)
    if workspaces is not None:
        chosen = chosen.where(next_.c.workspace.in_(workspaces))
    return _runs(connection, chosen.order_by(next_.c.due_at).limit(limit), runs.c.due_at, runs.c.id)


# What runs ---------------------------------------------------------------------------------


def read_running(connection: sa.Connection, workspaces: Workspaces) -> tuple[RunningQueue, ...]:
    """The queues of what runs.

    Renewing a lease moves `updated_at`, so it does not say that a run gets on. A step that takes longer than a few
    seconds does: it is stored when it began.
    """
    running = newest(RunStatus.RUNNING, workspaces, runs.c.queue, runs.c.updated_at)
    began = (
        sa.select(sa.func.max(steps.c.started_at))
        .where(steps.c.run_id == running.c.id, OPEN, steps.c.status == "running")
        .scalar_subquery()
    )
    moved = sa.select(running.c.queue, sa.func.coalesce(began, running.c.updated_at).label("moved_at")).subquery()
    query = sa.select(moved.c.queue, sa.func.count(), sa.func.max(moved.c.moved_at)).group_by(moved.c.queue)
    found = connection.execute(query.order_by(moved.c.queue))
    return tuple(RunningQueue(queue, count, instant(at)) for queue, count, at in found)


def list_lost(
    connection: sa.Connection,
    now: datetime,
    patience: timedelta,
    live: Collection[str],
    workspaces: Workspaces,
    *,
    limit: int,
) -> tuple[Run, ...]:
    """Running runs whose worker is none of the live ones, or let the lease run out; the longest first."""
    running = newest(RunStatus.RUNNING, workspaces, runs.c.worker, runs.c.due_at)
    gone = sa.or_(running.c.worker.not_in(list(live)), running.c.due_at < millis(now - patience))
    chosen = sa.select(running.c.id).where(gone).order_by(running.c.due_at).limit(limit)
    return _runs(connection, chosen, runs.c.due_at, runs.c.id)


# How many ----------------------------------------------------------------------------------


def count_live(connection: sa.Connection, workspaces: Workspaces) -> dict[str, Count]:
    """How many unfinished runs each status has; "retrying" are those of the sleeping that are to try again.

    Exact for a visitor who may see all, but for "retrying". Up to `LOOKED_AT` each for others.
    """
    if workspaces is None:
        every = [(status, newest(status, None, limit=None)) for status in LIVE]
        counted = [sa.select(sa.literal(status.value), sa.func.count()).select_from(found) for status, found in every]
        counts = {status: Count(value) for status, value in connection.execute(sa.union_all(*counted))}
    else:
        counts = {status.value: looked_at(connection, status, workspaces) for status in LIVE}
    sleeping = counts[RunStatus.SLEEPING]
    cut = sleeping.capped or sleeping.value > LOOKED_AT
    counts["retrying"] = _count_retrying(connection, workspaces, cut=cut)
    return counts


def _count_retrying(connection: sa.Connection, workspaces: Workspaces, *, cut: bool) -> Count:
    sleeping = newest(RunStatus.SLEEPING, workspaces, runs.c.attempts, runs.c.error)
    step = sa.exists().where(steps.c.run_id == sleeping.c.id, OPEN, steps.c.status == "retrying")
    body = sa.and_(sleeping.c.attempts > 0, sleeping.c.error.is_not(None))
    query = sa.select(sa.func.count()).select_from(sleeping).where(sa.or_(body, step))
    return Count(connection.scalar(query) or 0, capped=cut)


# What failed, what nobody knows ------------------------------------------------------------


def list_failed(connection: sa.Connection, since: datetime, workspaces: Workspaces, *, limit: int) -> tuple[Run, ...]:
    """Of the newest failed runs, `limit` of them, those that failed since."""
    failed = newest(RunStatus.FAILED, workspaces, runs.c.finished_at, limit=limit)
    chosen = sa.select(failed.c.id).where(failed.c.finished_at >= millis(since)).order_by(failed.c.id.desc())
    return _runs(connection, chosen.limit(limit), runs.c.finished_at.desc(), runs.c.id.desc())


def count_unknown(
    connection: sa.Connection, known: Collection[str], workspaces: Workspaces, *, limit: int = 20
) -> list[tuple[str, Count]]:
    """The workflows that have unfinished runs and are none of the known, each with how many."""
    unknown = [name for name in workflow_names(connection) if name not in known][:limit]
    if not unknown:
        return []
    live = runs.c.status.in_([status.value for status in LIVE])
    counted = []
    for name in unknown:
        looked = sa.select(runs.c.workspace).where(runs.c.workflow == name, live).limit(LOOKED_AT).subquery()
        visible = () if workspaces is None else (looked.c.workspace.in_(workspaces),)
        counted.append(sa.select(sa.literal(name), sa.func.count()).select_from(looked).where(*visible))
    found = connection.execute(sa.union_all(*counted)).all()
    return sorted((name, capped(count, LOOKED_AT)) for name, count in found if count)


# How much was done -------------------------------------------------------------------------


def ended_by_quarter(
    connection: sa.Connection, since: datetime, statuses: Sequence[RunStatus], workspaces: Workspaces
) -> tuple[list[tuple[datetime, RunStatus, int]], bool]:
    """How many runs ended with each status in each quarter of an hour; whether some were not looked at.

    What workers counted says it of all runs, but not of those of a workspace. For these the newest runs of each status
    are looked at.
    """
    if workspaces is None:
        return _counted_by_quarter(connection, since, statuses), False
    found: list[tuple[datetime, RunStatus, int]] = []
    cut = False
    for status in statuses:
        ended = newest(status, workspaces, runs.c.finished_at)
        quarter = ended.c.finished_at // QUARTER_MS
        query = sa.select(quarter, sa.func.count()).group_by(quarter)
        counted = connection.execute(query.where(ended.c.finished_at >= millis(since)))
        found += [(instant(at * QUARTER_MS), status, count) for at, count in counted]
        cut = cut or looked_at(connection, status, workspaces).capped
    return found, cut


def _counted_by_quarter(
    connection: sa.Connection, since: datetime, statuses: Sequence[RunStatus]
) -> list[tuple[datetime, RunStatus, int]]:
    query = (
        sa.select(stats.c.at, stats.c.outcome, sa.func.sum(stats.c.count))
        .where(stats.c.at >= millis(since), stats.c.outcome.in_([status.value for status in statuses]))
        .group_by(stats.c.at, stats.c.outcome)
    )
    return [(instant(at), RunStatus(outcome), int(count)) for at, outcome, count in connection.execute(query)]


# What stands over every page ---------------------------------------------------------------


def read_signs(
    connection: sa.Connection, now: datetime, patience: timedelta, workspaces: Workspaces, *, counts: bool = True
) -> Signs:
    """What is said over every page, in one look; without `counts` what a notice needs to know alone."""
    works = sa.exists().where(workers.c.stopped_at.is_(None), workers.c.seen_at >= millis(now - WORKER_SILENCE))
    due = _due(now, workspaces, limit=1)
    asked: list[Any] = [works, sa.exists(sa.select(due.c.id))]
    if counts:
        asked += [_count_overdue(now - patience, workspaces), _count_causes(now - _DAY, workspaces)]
    works_, is_due, *counted = connection.execute(sa.select(*asked)).one()
    overdue, causes = counted or (0, 0)
    return Signs(bool(works_), bool(is_due), capped(overdue, _SIGNS_CAP), Count(causes))


def _count_overdue(before: datetime, workspaces: Workspaces) -> sa.ScalarSelect[int]:
    late = _due(before, workspaces, runs.c.status, limit=_SIGNS_CAP)
    return sa.select(sa.func.count()).select_from(late).where(late.c.status.in_(_TIMED)).scalar_subquery()


def _count_causes(since: datetime, workspaces: Workspaces) -> sa.ScalarSelect[int]:
    failed = newest(RunStatus.FAILED, workspaces, runs.c.finished_at, runs.c.cause, runs.c.workflow, limit=_SIGNS_CAP)
    cause = sa.func.coalesce(failed.c.cause, failed.c.workflow)
    return sa.select(sa.func.count(cause.distinct())).where(failed.c.finished_at >= millis(since)).scalar_subquery()


def _runs(connection: sa.Connection, chosen: sa.Select[Any], *order: Any) -> tuple[Run, ...]:
    query = sa.select(*SUMMARY).where(runs.c.id.in_(sa.select(chosen.subquery().c.id))).order_by(*order)
    return tuple(run_of(row) for row in connection.execute(query).mappings())


def count_paused(connection: sa.Connection, workspaces: Workspaces) -> Count:
    """How many runs are paused."""
    looked = sa.select(runs.c.workspace).where(runs.c.paused_at.is_not(None)).limit(_SIGNS_CAP).subquery()
    query = sa.select(sa.func.count()).select_from(looked)
    if workspaces is not None:
        query = query.where(looked.c.workspace.in_(workspaces))
    return capped(connection.scalar(query) or 0, _SIGNS_CAP)
