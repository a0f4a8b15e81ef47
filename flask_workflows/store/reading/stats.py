"""How many runs ended, by the quarter of an hour and in all.

Of the runs of all workspaces: what is counted is counted by workflow alone.
"""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta

import sqlalchemy as sa

from ...models import stats
from ...runs import RunStats
from .rows import instant
from .rows import millis

QUARTER = timedelta(minutes=15)


def finished_stats(connection: sa.Connection, since: datetime) -> tuple[RunStats, ...]:
    """How many runs ended in each quarter of an hour from the one that an instant lies in, the oldest first."""
    query = (
        sa.select(stats)
        .where(stats.c.at > max(millis(since - QUARTER), 0))
        .order_by(stats.c.at, stats.c.workflow, stats.c.outcome)
    )
    return tuple(
        RunStats(
            at=instant(row["at"]),
            workflow=row["workflow"],
            outcome=row["outcome"],
            count=row["count"],
            busy=timedelta(milliseconds=row["busy_ms"]),
        )
        for row in connection.execute(query).mappings()
    )


def total_stats(connection: sa.Connection) -> tuple[RunStats, ...]:
    """How many runs of each workflow ended in each way, ever; never less than before.

    Adds up the quarters of an hour that are kept, which is 35 days of them, and what was pruned.
    """
    count, busy = sa.func.sum(stats.c.count), sa.func.sum(stats.c.busy_ms)
    query = (
        sa.select(stats.c.workflow, stats.c.outcome, count, busy)
        .group_by(stats.c.workflow, stats.c.outcome)
        .order_by(stats.c.workflow, stats.c.outcome)
    )
    return tuple(
        RunStats(at=None, workflow=workflow, outcome=outcome, count=int(ended), busy=timedelta(milliseconds=int(ms)))
        for workflow, outcome, ended, ms in connection.execute(query)
    )
