"""The worker processes, and what they hold."""

from __future__ import annotations

from datetime import datetime
from datetime import timedelta

import sqlalchemy as sa

from ...models import runs
from ...models import workers
from ...runs import Run
from ...runs import RunStatus
from ...runs import Worker
from .rows import millis
from .rows import run_of
from .rows import SUMMARY
from .rows import worker_of
from .scope import newest
from .scope import Workspaces

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


def list_workers(connection: sa.Connection, *, limit: int = 200) -> tuple[Worker, ...]:
    """The workers that are there, or were and are not forgotten yet; those seen last in front.

    There are as many rows as processes in a day, so they are read as they lie.
    """
    query = sa.select(workers).order_by(workers.c.seen_at.desc(), workers.c.id).limit(limit)
    return tuple(worker_of(row) for row in connection.execute(query).mappings())


def list_held(connection: sa.Connection, workspaces: Workspaces, *, limit: int = 1_000) -> tuple[Run, ...]:
    """Runs that are executed now, or were when their worker was lost: of each workspace the newest `limit`."""
    running = newest(RunStatus.RUNNING, workspaces, runs.c.worker, limit=limit)
    held = sa.select(running.c.id).where(running.c.worker.is_not(None))
    query = sa.select(*SUMMARY).where(runs.c.id.in_(held))
    return tuple(run_of(row) for row in connection.execute(query.order_by(runs.c.id).limit(limit)).mappings())
