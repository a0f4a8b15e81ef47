"""Emitted events."""

from __future__ import annotations

import sqlalchemy as sa

from ...models import events
from ...runs import EmittedEvent
from .rows import instant
from .rows import optional_instant


def list_events(connection: sa.Connection, name: str | None, *, limit: int) -> tuple[EmittedEvent, ...]:
    """The newest events, of one name or of all."""
    query = sa.select(events).order_by(events.c.seq.desc()).limit(limit)
    if name is not None:
        query = query.where(events.c.name == name)
    return tuple(
        EmittedEvent(
            row["seq"],
            row["name"],
            row["workspace"],
            row["run_id"],
            instant(row["emitted_at"]),
            optional_instant(row["matched_at"]),
            row["woke"],
            row["payload"],
        )
        for row in connection.execute(query).mappings()
    )
