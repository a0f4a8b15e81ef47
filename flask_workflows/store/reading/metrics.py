"""What a scraper is told: of all workspaces, in a few queries that each look at a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta

import sqlalchemy as sa

from ...models import runs
from ...models import steps
from ...models import waits
from ...models import workers
from ...runs import LIVE
from ...runs import RunStatus
from .rows import implied
from .rows import instant
from .rows import millis
from .rows import REMARKABLE

#: Rows that one query looks at.
METRICS_CAP = 100_001

#: Workers that were seen last before this have gone for good.
_GONE = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Due:
    """Runs that wait for a worker, by queue: since when the first of them does, and how many are overdue timers."""

    oldest: Mapping[str, datetime]
    overdue_timers: int
    capped: bool = False


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """Unfinished runs by status and queue."""

    counts: Mapping[tuple[RunStatus, str], int]
    capped: bool = False


@dataclass(frozen=True, slots=True)
class OldestWaits:
    """Since when somebody waits, by event."""

    since: Mapping[str, datetime]
    capped: bool = False


def measure_due(connection: sa.Connection, now: datetime, *, patience: timedelta, cap: int = METRICS_CAP) -> Due:
    """The runs due longest come first, so a queue that is left out where it is capped is not the one in trouble."""
    due = (
        sa.select(runs.c.due_at, runs.c.queue, runs.c.status)
        .where(runs.c.due_at.is_not(None), runs.c.due_at <= millis(now))
        .order_by(runs.c.due_at)
        .limit(cap)
        .subquery()
    )
    late = sa.and_(due.c.status == RunStatus.SLEEPING.value, due.c.due_at <= millis(now - patience))
    query = sa.select(
        due.c.queue, sa.func.min(due.c.due_at), sa.func.count(), sa.func.count(sa.case((late, 1)))
    ).group_by(due.c.queue)
    rows = connection.execute(query).all()
    return Due(
        oldest={queue: instant(since) for queue, since, _, _ in rows},
        overdue_timers=sum(timers for *_, timers in rows),
        capped=sum(looked for _, _, looked, _ in rows) >= cap,
    )


def measure_live(connection: sa.Connection, *, cap: int = METRICS_CAP) -> LiveRuns:
    members = []
    for status in LIVE:
        some = sa.select(runs.c.queue).where(runs.c.status == status.value, implied(REMARKABLE)).limit(cap).subquery()
        members.append(
            sa.select(sa.literal(status.value).label("status"), some.c.queue, sa.func.count()).group_by(some.c.queue)
        )
    counts = {(RunStatus(status), queue): count for status, queue, count in connection.execute(sa.union_all(*members))}
    totals = [sum(count for (one, _), count in counts.items() if one is status) for status in LIVE]
    return LiveRuns(counts, capped=any(total >= cap for total in totals))


def measure_waits(connection: sa.Connection, *, cap: int = METRICS_CAP) -> OldestWaits:
    """Of events, not of messages. The waits of the oldest runs are looked at first."""
    some = sa.select(waits.c.run_id, waits.c.key, waits.c.name, waits.c.fields).order_by(
        waits.c.run_id, waits.c.key, waits.c.number
    )
    looked = some.limit(cap).subquery()
    query = (
        sa.select(looked.c.name, sa.func.min(steps.c.started_at), sa.func.count())
        .join_from(looked, steps, (steps.c.run_id == looked.c.run_id) & (steps.c.key == looked.c.key))
        .where(looked.c.fields != "@")
        .group_by(looked.c.name)
    )
    rows = connection.execute(query).all()
    total = connection.scalar(sa.select(sa.func.count()).select_from(some.limit(cap).subquery())) or 0
    return OldestWaits({name: instant(since) for name, since, _ in rows if since is not None}, capped=total >= cap)


def workers_seen(connection: sa.Connection, now: datetime) -> tuple[datetime, ...]:
    """When each worker that did not say goodbye was seen last, within a day."""
    query = (
        sa.select(workers.c.seen_at)
        .where(workers.c.stopped_at.is_(None), workers.c.seen_at >= millis(now - _GONE))
        .limit(1_000)
    )
    return tuple(map(instant, connection.scalars(query)))
