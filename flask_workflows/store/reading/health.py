"""Whether work is done at all."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from ...models import runs
from .rows import millis
from .rows import optional_instant


def oldest_due(connection: sa.Connection, now: datetime) -> datetime | None:
    """Since when a run waits for a worker, or for one that takes it over; null where none does."""
    first = sa.select(sa.func.min(runs.c.due_at)).where(runs.c.due_at.is_not(None), runs.c.due_at <= millis(now))
    return optional_instant(connection.scalar(first))
