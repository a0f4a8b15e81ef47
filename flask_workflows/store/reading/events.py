"""Emitted events, and messages to runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from ...errors import InvalidCursor
from ...matching import FINISHED
from ...matching import MESSAGES
from ...models import events
from ...models import runs
from ...models import steps
from ...models import waits
from ...names import is_clean
from ...runs import EmittedEvent
from ...runs import Head
from .rows import Conditions
from .rows import instant
from .rows import millis
from .rows import optional_instant
from .scope import Workspaces

#: How many events are looked at for what no index knows.
SCAN = 10_000
#: How many waits of a name are looked at to say whether anybody waits for it.
_WAITS = 1_000
_LARGEST = 2**63 - 1
#: Not those that tell runs of each other's ends.
_APPS = events.c.name != FINISHED


def list_events(connection: sa.Connection, name: str | None, *, limit: int) -> tuple[EmittedEvent, ...]:
    """The newest events, of one name or of all."""
    if name is not None and not is_clean(name):
        return ()
    query = sa.select(events).where(_APPS).order_by(events.c.seq.desc()).limit(limit)
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


# The inbox ---------------------------------------------------------------------------------


class EventState(StrEnum):
    """What became of an event."""

    #: No worker looked for the waits it ends yet.
    NEW = "new"
    MATCHED = "matched"
    #: Looked at, and no wait ended with it.
    UNMATCHED = "unmatched"


@dataclass(frozen=True, slots=True)
class InboxEvent:
    """An event, or a message to one run, without its payload."""

    id: int
    name: str
    #: Of a message, its run's.
    workspace: str
    #: Whose it is, where it is a message.
    run_id: str | None
    delivery_id: str | None
    emitted_at: datetime
    matched_at: datetime | None
    #: How many waits it ended.
    woke: int

    @property
    def state(self) -> EventState:
        if self.woke:
            return EventState.MATCHED
        return EventState.NEW if self.matched_at is None else EventState.UNMATCHED


@dataclass(frozen=True, slots=True)
class EventPlace:
    """A place in the list: the events older, or newer, than one."""

    newer: bool
    at: int
    seq: int

    def __str__(self) -> str:
        return f"{'newer' if self.newer else 'older'}.{self.at}.{self.seq}"

    @classmethod
    def read(cls, text: str) -> EventPlace:
        found = re.fullmatch(r"(newer|older)\.(-?\d{1,18})\.(\d{1,18})", text, re.ASCII)
        if found is None:
            raise InvalidCursor(f"{text[:50]!r} is not a cursor; take `older` or `newer` of a page as it is")
        return cls(found[1] == "newer", int(found[2]), int(found[3]))

    def turned(self) -> EventPlace:
        """The place seen from the other side: the event itself is beyond it."""
        return EventPlace(not self.newer, self.at, self.seq + (1 if self.newer else -1))


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events to list, newest first. Of a name, those without a receiver."""

    name: str | None = None
    state: EventState | None = None
    workspaces: Workspaces = None
    limit: int = 50
    place: EventPlace | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, newest first, and the places of the pages beside them."""

    events: tuple[InboxEvent, ...]
    older: EventPlace | None = None
    newer: EventPlace | None = None
    #: How many events were looked at when looking was cut short; `older` goes on from there.
    searched: int | None = None


def list_inbox(connection: sa.Connection, query: EventQuery, *, scan: int = SCAN) -> EventPage:
    """One page of events. What no index knows is looked for among the next `scan` of them."""
    listing = _Listing(query, scan)
    listed = [_inbox_event(row) for row in connection.execute(listing.rows()).mappings()]
    more = len(listed) > query.limit
    listed = listed[: query.limit]
    edge: EventPlace | None = None
    if more:
        edge = _place_of(listed[-1], listing.newer)
    elif listing.bounded:
        last = connection.execute(listing.last_looked_at()).one_or_none()
        edge = None if last is None else EventPlace(listing.newer, *last)
    if listing.newer and edge is None:
        # The newest page is always a full one.
        return list_inbox(connection, replace(query, place=None), scan=scan)
    searched = scan if edge is not None and not more else None
    # A page that is empty leads back to where it began.
    place = query.place
    back = None if place is None else _place_of(listed[0], not listing.newer) if listed else place.turned()
    if listing.newer:
        return EventPage(tuple(reversed(listed)), older=back, newer=edge, searched=searched)
    return EventPage(tuple(listed), older=edge, newer=back, searched=searched)


def _place_of(event: InboxEvent, newer: bool) -> EventPlace:
    return EventPlace(newer, millis(event.emitted_at), event.id)


class _Listing:
    """How one page is found: by the index that knows most of it, and what it does not know put to what it found."""

    def __init__(self, query: EventQuery, scan: int) -> None:
        self._query = query
        self.newer = query.place is not None and query.place.newer
        self._by_name = query.name is not None and query.state is not EventState.NEW
        self.bounded = bool(self._filters(events.c))
        self._scan = scan if self.bounded else query.limit + 1

    def rows(self) -> sa.Select[Any]:
        looked = self._looked().subquery()
        found = sa.select(looked.c.seq).where(*self._filters(looked.c))
        chosen = found.order_by(*self._order(looked.c)).limit(self._query.limit + 1).subquery()
        return sa.select(*_INBOX).where(events.c.seq.in_(sa.select(chosen.c.seq))).order_by(*self._order(events.c))

    def last_looked_at(self) -> sa.Select[Any]:
        looked = self._looked().subquery()
        last = sa.select(looked.c.emitted_at, looked.c.seq).order_by(*self._order(looked.c))
        return last.limit(1).offset(self._scan - 1)

    def _looked(self) -> sa.Select[Any]:
        columns = [column for column in events.c if column.name not in ("payload", "xact", "delivery_id")]
        return sa.select(*columns).where(*self._probe(), _APPS).order_by(*self._order(events.c)).limit(self._scan)

    def _probe(self) -> Conditions:
        place, seq, at = self._query.place, events.c.seq, events.c.emitted_at
        if self._by_name:
            probe: Conditions = (events.c.name == self._query.name, events.c.run_id.is_(None))
            if place is not None and place.newer:
                return (*probe, at >= place.at, sa.or_(at > place.at, seq > place.seq))
            return probe if place is None else (*probe, at <= place.at, sa.or_(at < place.at, seq < place.seq))
        probe = (events.c.matched_at.is_(None),) if self._query.state is EventState.NEW else ()
        if place is None:
            return probe
        return (*probe, seq > place.seq if place.newer else seq < place.seq)

    def _filters(self, event: Any) -> Conditions:
        query = self._query
        filters: list[sa.ColumnElement[bool]] = []
        if query.name is not None and not self._by_name:
            filters += [event.name == query.name, event.run_id.is_(None)]
        if query.state is EventState.NEW:
            filters += [event.woke == 0]
        elif query.state is not None:
            matched = query.state is EventState.MATCHED
            filters += [event.woke > 0] if matched else [event.woke == 0, event.matched_at.is_not(None)]
        if query.workspaces is not None:
            filters += [_workspace_of(event).in_(query.workspaces)]
        return tuple(filters)

    def _order(self, columns: Any) -> tuple[sa.ColumnElement[Any], ...]:
        order = (columns.emitted_at, columns.seq) if self._by_name else (columns.seq,)
        return tuple(column.asc() if self.newer else column.desc() for column in order)


def _workspace_of(event: Any) -> sa.ColumnElement[Any]:
    """Of a message, its run's: by a subquery that no planner turns into a join with all runs."""
    own = sa.select(runs.c.workspace).where(runs.c.id == event.run_id).scalar_subquery()
    return sa.func.coalesce(own, event.workspace)


_INBOX = (
    *(column for column in events.c if column.name not in ("payload", "xact", "workspace")),
    _workspace_of(events.c).label("workspace"),
)


def _inbox_event(row: sa.RowMapping) -> InboxEvent:
    return InboxEvent(
        id=row["seq"],
        name=row["name"],
        workspace=row["workspace"],
        run_id=row["run_id"],
        delivery_id=row["delivery_id"],
        emitted_at=instant(row["emitted_at"]),
        matched_at=optional_instant(row["matched_at"]),
        woke=row["woke"],
    )


# One event ---------------------------------------------------------------------------------


def read_event(connection: sa.Connection, seq: int, *, head: int = 0) -> tuple[InboxEvent, Head] | None:
    """The event of that number, and so many characters of its payload; null if there is none."""
    if not 0 < seq <= _LARGEST:
        return None
    payload = (
        sa.func.substr(events.c.payload, 1, head).label("head"),
        sa.func.length(events.c.payload).label("length"),
    )
    query = sa.select(*_INBOX, *payload)
    row = connection.execute(query.where(events.c.seq == seq, _APPS)).mappings().one_or_none()
    return None if row is None else (_inbox_event(row), Head(row["head"], row["length"]))


def received_at(connection: sa.Connection, run_id: str, seq: int) -> str | None:
    """The key of the call in which a run received an event; null where it has not."""
    query = sa.select(steps.c.key).where(
        steps.c.run_id == run_id, steps.c.event_seq == seq, steps.c.event_seq.is_not(None)
    )
    found: str | None = connection.scalar(query.limit(1))
    return found


def waited_names(connection: sa.Connection, names: Collection[str], workspaces: Workspaces) -> frozenset[str]:
    """Which of the names runs wait for events of, as far as their first waits in the index say."""
    if not names:
        return frozenset()
    members = []
    for name in sorted(names):
        first = sa.select(waits.c.fields, waits.c.workspace).where(waits.c.name == name)
        looked = first.order_by(waits.c.fields, waits.c.values_hash, waits.c.workspace).limit(_WAITS).subquery()
        seen = [looked.c.fields != MESSAGES]
        if workspaces is not None:
            seen.append(looked.c.workspace.in_(workspaces))
        waited = sa.exists(sa.select(sa.literal(1)).select_from(looked).where(*seen))
        members.append(sa.select(sa.literal(name).label("name")).where(waited))
    return frozenset(connection.scalars(sa.union_all(*members)))
