"""The worker processes."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta

import sqlalchemy as sa

from ...models import workers
from ...runs import Worker
from .rows import millis
from .rows import worker_of

#: A worker that said nothing for three of its heartbeats of 10 s is gone.
WORKER_SILENCE = timedelta(seconds=30)


def live_workers(connection: sa.Connection, now: datetime) -> tuple[Worker, ...]:
    """The workers that said lately that they are there, by name."""
    query = (
        sa.select(workers)
        .where(workers.c.stopped_at.is_(None), workers.c.seen_at >= millis(now - WORKER_SILENCE))
        .order_by(workers.c.name, workers.c.id)
        .limit(1_000)
    )
    return tuple(worker_of(row) for row in connection.execute(query).mappings())
