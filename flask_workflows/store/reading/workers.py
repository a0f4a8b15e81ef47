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


def find_worker(connection: sa.Connection, worker_id: str) -> Worker | None:
    """The worker of that id; null where it is unknown, as that of a `tick` is, or forgotten."""
    row = connection.execute(sa.select(workers).where(workers.c.id == worker_id)).mappings().one_or_none()
    return None if row is None else worker_of(row)
