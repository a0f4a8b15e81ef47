"""What stands beside one run: what it waits for, what it received, what it published, who else failed like it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...models import events
from ...models import runs
from ...models import state
from ...models import steps
from ...runs import Awaited
from ...runs import Count
from ...runs import decode
from ...runs import Head
from ...runs import Published
from ...runs import Received
from ...runs import Run
from ...runs import Step
from .rows import capped
from .rows import instant
from .rows import millis
from .rows import optional_instant

#: Of each kind of thing beside a run so many are read.
MOST = 50

#: Counting stops here.
_CAP = 1_001
_INPUT_LIMIT = 50_000


def read_awaited(connection: sa.Connection, step: Step) -> tuple[Awaited, ...]:
    """The events, or the message, that a waiting call is for."""
    text = connection.scalar(
        sa.select(sa.func.substr(steps.c.input, 1, _INPUT_LIMIT)).where(
            steps.c.run_id == step.run_id, steps.c.key == step.key
        )
    )
    match decode(text):
        case {"message": str(name)}:
            return (Awaited(name),)
        case {"events": list(described)}:
            return tuple(_awaited(described))
    return ()


def _awaited(described: list[Any]) -> Iterator[Awaited]:
    for one in described[:MOST]:
        match one:
            case {"name": str(name)}:
                compared, since = one.get("match"), one.get("since")
                fields = tuple(compared.items()) if isinstance(compared, dict) else ()
                yield Awaited(name, fields, optional_instant(since))


def count_events_since(
    connection: sa.Connection, names: Sequence[str], workspace: str, since: datetime
) -> tuple[Count, Count]:
    """How many events of these names came for runs of a workspace: those looked at by a worker, and those not yet."""
    looked = (
        sa.select(events.c.workspace, events.c.matched_at)
        .where(events.c.name.in_(names), events.c.run_id.is_(None), events.c.emitted_at >= millis(since))
        .limit(_CAP)
        .subquery()
    )
    for_it = looked.c.workspace.in_(("", workspace))
    counts = sa.select(
        sa.func.count(sa.case((for_it & looked.c.matched_at.is_not(None), 1))),
        sa.func.count(sa.case((for_it & looked.c.matched_at.is_(None), 1))),
        sa.func.count(),
    ).select_from(looked)
    matched, new, every = connection.execute(counts).one()
    full = every >= _CAP
    return Count(min(matched, _CAP - 1), full), Count(min(new, _CAP - 1), full and new > 0)


def count_messages(connection: sa.Connection, run_id: str, names: Sequence[str]) -> Count:
    """How many messages of these names the run was sent that no worker has looked at yet."""
    found = (
        sa.select(sa.literal(1))
        .where(events.c.run_id == run_id, events.c.name.in_(names), events.c.matched_at.is_(None))
        .limit(_CAP)
        .subquery()
    )
    return capped(connection.scalar(sa.select(sa.func.count()).select_from(found)) or 0, _CAP)


def count_same_cause(connection: sa.Connection, run: Run, workspaces: tuple[str, ...] | None) -> Count:
    """How many other runs failed the same way, of those in the workspaces."""
    if run.cause is None:
        return Count(0)
    looked = (
        sa.select(runs.c.workspace)
        .where(runs.c.cause == run.cause, runs.c.cause.is_not(None), runs.c.id != run.id)
        .limit(_CAP)
        .subquery()
    )
    count = sa.select(sa.func.count()).select_from(looked)
    if workspaces is not None:
        count = count.where(looked.c.workspace.in_(workspaces))
    return capped(connection.scalar(count) or 0, _CAP)


def read_received(connection: sa.Connection, run_id: str, *, payload_limit: int = 0) -> tuple[Received, ...]:
    """The newest events and messages that a run received, and the messages it has not taken yet.

    Payloads are read up to a limit; with 0 not at all.
    """
    taken = (
        sa.select(steps.c.event_seq, steps.c.key, steps.c.finished_at)
        .where(steps.c.run_id == run_id, steps.c.event_seq.is_not(None))
        .order_by(steps.c.event_seq.desc())
        .limit(MOST)
    )
    takers = {seq: (key, finished_at) for seq, key, finished_at in connection.execute(taken)}
    sent = sa.select(events.c.seq).where(events.c.run_id == run_id).order_by(events.c.seq.desc()).limit(MOST)
    newest = sorted({*takers, *connection.scalars(sent)}, reverse=True)[:MOST]
    if not newest:
        return ()
    query = sa.select(*_EVENT, *_payload(payload_limit)).where(events.c.seq.in_(newest)).order_by(events.c.seq.desc())
    nobody = (None, None)
    return tuple(_received(row, *takers.get(row["seq"], nobody)) for row in connection.execute(query).mappings())


_EVENT = (events.c.seq, events.c.name, events.c.run_id, events.c.emitted_at)


def _payload(limit: int) -> tuple[sa.ColumnElement[Any], ...]:
    if not limit:
        return ()
    return (
        sa.func.substr(events.c.payload, 1, limit).label("payload"),
        sa.func.length(events.c.payload).label("length"),
    )


def _received(row: sa.RowMapping, step: str | None, received_at: int | None) -> Received:
    return Received(
        id=row["seq"],
        name=row["name"],
        is_message=row["run_id"] is not None,
        emitted_at=instant(row["emitted_at"]),
        step=step,
        received_at=optional_instant(received_at),
        payload=Head(row["payload"], row["length"]) if "payload" in row else None,
    )


def read_published(connection: sa.Connection, run_id: str, *, value_limit: int) -> tuple[Published, ...]:
    """What a run published, by key; values up to a limit."""
    query = (
        sa.select(
            state.c.key,
            state.c.updated_at,
            sa.func.substr(state.c.value, 1, value_limit).label("value"),
            sa.func.length(state.c.value).label("length"),
        )
        .where(state.c.run_id == run_id)
        .order_by(state.c.key)
        .limit(MOST)
    )
    return tuple(
        Published(row["key"], instant(row["updated_at"]), Head(row["value"], row["length"]))
        for row in connection.execute(query).mappings()
    )


def read_started(connection: sa.Connection, run_id: str, keys: Sequence[str]) -> dict[str, str]:
    """The ids of the runs that calls of a run started, by the calls' keys."""
    if not keys:
        return {}
    query = sa.select(steps.c.key, sa.func.substr(steps.c.output, 1, 200)).where(
        steps.c.run_id == run_id, steps.c.key.in_(keys)
    )
    started = {}
    for key, output in connection.execute(query):
        match decode(output):
            case {"id": str(child)}:
                started[key] = child
    return started
