"""The list of events, page by page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ...errors import InvalidCursor
from ...models import events
from ...runs import EmittedEvent
from ...runs import NOT_LOADED
from .rows import instant
from .rows import millis
from .rows import optional_instant

#: How many events are looked at for those of some workspaces, which no index knows.
SCAN = 10_000

_COLUMNS = tuple(column for column in events.c if column.name not in ("payload", "xact", "delivery_id"))


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, newest first, without their payloads."""

    events: tuple[EmittedEvent, ...]
    #: The cursor of the older ones; null where there are none.
    older: str | None = None
    #: How many events were looked at when looking was cut short; `older` goes on from there.
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A place in the list: the events older than one."""

    at: int
    seq: int

    def __str__(self) -> str:
        return f"older.{self.at}.{self.seq}"

    @classmethod
    def read(cls, text: str) -> EventPlace:
        found = re.fullmatch(r"older\.(\d{1,18})\.(\d{1,18})", text, re.ASCII)
        if found is None:
            raise InvalidCursor(f"{text[:50]!r} is not a cursor; take `older` of a page as it is")
        return cls(int(found[1]), int(found[2]))


def list_event_page(
    connection: sa.Connection,
    *,
    name: str | None = None,
    workspaces: tuple[str, ...] | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> EventPage:
    """The newest events: those of one name, or all, messages among them. Raises `InvalidCursor`.

    Those of some workspaces are looked for among the next `SCAN`; messages are of none.
    """
    place = None if cursor is None else EventPlace.read(cursor)
    columns = (events.c.emitted_at, events.c.seq) if name is not None else (events.c.seq,)
    order = [column.desc() for column in columns]
    looked = sa.select(*_COLUMNS).where(*_conditions(name, place)).order_by(*order)
    if workspaces is None:
        chosen = looked.limit(limit + 1)
    else:
        among = looked.limit(SCAN).subquery()
        inside = (among.c.workspace.in_(workspaces), among.c.run_id.is_(None))
        last_first = [among.c[column.name].desc() for column in columns]
        chosen = sa.select(among).where(*inside).order_by(*last_first).limit(limit + 1)
    found = [_event_of(row) for row in connection.execute(chosen).mappings()]
    if len(found) > limit:
        return EventPage(tuple(found[:limit]), older=_place_of(found[limit - 1]))
    if workspaces is None:
        return EventPage(tuple(found))
    edge = connection.execute(looked.limit(1).offset(SCAN - 1)).mappings().one_or_none()
    if edge is None:
        return EventPage(tuple(found))
    return EventPage(tuple(found), older=_place_of(_event_of(edge)), searched=SCAN)


def _conditions(name: str | None, place: EventPlace | None) -> Iterator[sa.ColumnElement[bool]]:
    if name is not None:
        # As the index has it, which holds no messages.
        yield from (events.c.name == name, events.c.run_id.is_(None))
    if place is not None and name is not None:
        yield sa.tuple_(events.c.emitted_at, events.c.seq) < sa.tuple_(sa.literal(place.at), sa.literal(place.seq))
    elif place is not None:
        yield events.c.seq < place.seq


def _place_of(event: EmittedEvent) -> str:
    return str(EventPlace(millis(event.emitted_at), event.id))


def _event_of(row: sa.RowMapping) -> EmittedEvent:
    values: dict[str, Any] = {
        "id": row["seq"],
        "name": row["name"],
        "workspace": row["workspace"],
        "run_id": row["run_id"],
        "emitted_at": instant(row["emitted_at"]),
        "matched_at": optional_instant(row["matched_at"]),
        "woke": row["woke"],
    }
    return EmittedEvent(**values, payload_json=NOT_LOADED)
