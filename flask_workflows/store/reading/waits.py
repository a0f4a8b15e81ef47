"""Timers, and what runs wait for.

Timers are sleeping runs in the order they wake in. Where they are few they are found by their status and sorted; where
they are many, in the index of what is due, among other unfinished runs, so many of which are looked at for one page.

Waits lie in an index that begins with the event's name: names are found by jumps in it, and counts are capped.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...errors import InvalidCursor
from ...errors import WorkflowsError
from ...matching import fields_of
from ...matching import FINISHED
from ...matching import hash_of
from ...matching import MESSAGES
from ...models import runs
from ...models import steps
from ...models import waits
from ...runs import Count
from ...runs import decode
from ...runs import Run
from ...runs import RunStatus
from .looked import Looked
from .looked import within
from .rows import capped
from .rows import instant
from .rows import millis
from .rows import OPEN
from .rows import optional_instant
from .rows import run_of
from .rows import SUMMARY
from .scope import Workspaces

#: How many runs, or waits, are looked at for one answer.
SCAN = 10_000
#: Of those, how many are looked at before the others.
_FIRST_LOOK = 500
#: Of the waits of one name, how many runs are asked since when they wait.
SAMPLE = 1_000
#: Names on one page.
NAMES = 50

#: The columns of the index behind the name, and what it is made whole with.
_WAIT_ORDER = (waits.c.fields, waits.c.values_hash, waits.c.workspace, waits.c.run_id, waits.c.key, waits.c.number)
_WAIT_COLUMNS = (*_WAIT_ORDER, waits.c.since)

#: Of what a call waits for, in characters: far more than the fields and values of any sane match.
_INPUT_HEAD = 20_000


# Timers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timers:
    """Some sleeping runs in the order they wake in, and the cursors of the pages beside them."""

    runs: tuple[Run, ...]
    total: Count
    earlier: TimerPlace | None = None
    later: TimerPlace | None = None
    #: How many unfinished runs were looked at when looking was cut short; `later` goes on from there.
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class TimerPlace:
    """A place in the list: behind a timer, or before it."""

    before: bool
    at: int
    id: str

    def __str__(self) -> str:
        return f"{'before' if self.before else 'after'}.{self.at}.{self.id}"

    @classmethod
    def read(cls, text: str) -> TimerPlace:
        found = re.fullmatch(r"(before|after)\.(-?\d{1,18})\.([0-9A-Za-z_-]{0,37})", text, re.ASCII)
        if found is None:
            raise InvalidCursor(f"{text[:50]!r} is not a cursor; take `earlier` or `later` of a page as it is")
        return cls(found[1] == "before", int(found[2]), found[3])

    def beyond(self, columns: Any) -> tuple[sa.ColumnElement[bool], ...]:
        """The conditions on what lies on its other side; an index is entered with the first."""
        at, id = columns.due_at, columns.id
        if self.before:
            return (at <= self.at, sa.or_(at < self.at, id < self.id))
        return (at >= self.at, sa.or_(at > self.at, id > self.id))

    def turned(self) -> TimerPlace:
        """The place seen from the other side: the timer itself is beyond it."""
        return TimerPlace(not self.before, self.at, self.id[:-1] if self.before else f"{self.id}z")


def list_timers(
    connection: sa.Connection, workspaces: Workspaces, *, cursor: str | None = None, limit: int = 50, scan: int = SCAN
) -> Timers:
    """One page of timers, those that wake first in front. Raises `InvalidCursor`."""
    place = None if cursor is None else TimerPlace.read(cursor)
    before = place is not None and place.before
    looked = Looked(workspaces, RunStatus.SLEEPING, scan)
    many = (connection.scalar(looked.most()) or 0) >= looked.share
    total = Count(connection.scalar(sa.select(sa.func.count()).select_from(looked.rows(runs.c.id))) or 0, many)
    if many:
        listed, edge = _among_due(connection, workspaces, place, limit, scan)
    else:
        few = looked.rows(runs.c.id, runs.c.due_at)
        found = sa.select(few.c.id, few.c.due_at).where(*_beyond(place, few.c))
        listed, edge = _first_timers(connection, found, before, limit), None

    more = len(listed) > limit
    listed = listed[:limit]
    onward = _place_of(listed[-1], before) if more else edge
    if before and onward is None:
        # The first page is always a full one.
        return list_timers(connection, workspaces, limit=limit, scan=scan)
    # A page that is empty leads back to where it began.
    back = None if place is None else _place_of(listed[0], not before) if listed else place.turned()
    searched = scan if onward is not None and not more else None
    if before:
        return Timers(tuple(reversed(listed)), total, earlier=onward, later=back, searched=searched)
    return Timers(tuple(listed), total, earlier=back, later=onward, searched=searched)


def _among_due(
    connection: sa.Connection, workspaces: Workspaces, place: TimerPlace | None, limit: int, scan: int
) -> tuple[list[Run], TimerPlace | None]:
    """Timers among the next unfinished runs that fall due, and how far was looked where that was not to the end."""
    before = place is not None and place.before
    listed: list[Run] = []
    # Most often they are close together.
    for size in sorted({min(_FIRST_LOOK, scan), scan}):
        due = _due(place, size)
        found = sa.select(due.c.id, due.c.due_at).where(due.c.status == RunStatus.SLEEPING.value)
        found = found.where(*within(due.c.workspace, workspaces))
        listed = _first_timers(connection, found, before, limit)
        if len(listed) > limit:
            return listed, None
    last = sa.select(due.c.due_at, due.c.id).order_by(*_order(due.c, before)).limit(1).offset(scan - 1)
    reached = connection.execute(last).one_or_none()
    return listed, None if reached is None else TimerPlace(before, *reached)


def _first_timers(connection: sa.Connection, found: sa.Select[Any], before: bool, limit: int) -> list[Run]:
    """The first of the runs found, and one more where there is one."""
    chosen = found.order_by(*_order(found.selected_columns, before)).limit(limit + 1).subquery()
    query = sa.select(*SUMMARY).where(runs.c.id.in_(sa.select(chosen.c.id))).order_by(*_order(runs.c, before))
    return [run_of(row) for row in connection.execute(query).mappings()]


def _place_of(run: Run, before: bool) -> TimerPlace:
    return TimerPlace(before, 0 if run.due_at is None else millis(run.due_at), run.id)


def _due(place: TimerPlace | None, scan: int) -> sa.Subquery:
    """The next unfinished runs in the order they are due in, whatever their status."""
    before = place is not None and place.before
    columns = (runs.c.id, runs.c.due_at, runs.c.status, runs.c.workspace)
    query = sa.select(*columns).where(runs.c.due_at.is_not(None), *_beyond(place, runs.c))
    return query.order_by(*_order(runs.c, before)).limit(scan).subquery()


def _beyond(place: TimerPlace | None, columns: Any) -> tuple[sa.ColumnElement[bool], ...]:
    return () if place is None else place.beyond(columns)


def _order(columns: Any, before: bool) -> tuple[sa.ColumnElement[Any], ...]:
    if before:
        return (columns.due_at.desc(), columns.id.desc())
    return (columns.due_at, columns.id)


# Waits, by name ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """The runs that wait for an event of one name, or for a message of it."""

    name: str
    message: bool
    runs: Count
    #: Since when the first of them waits, and when the next time-out is: of the runs looked at.
    oldest: datetime | None
    next_timeout: datetime | None
    #: How many of them were asked; null for all.
    sample: int | None = None


@dataclass(frozen=True, slots=True)
class WaitGroups:
    """Groups by name; `after` leads to the next page of them."""

    groups: tuple[WaitGroup, ...]
    after: str | None = None
    #: How many waiting runs were looked at where that was not all.
    searched: int | None = None


def list_wait_groups(
    connection: sa.Connection,
    workspaces: Workspaces,
    *,
    after: str | None = None,
    names: int = NAMES,
    sample: int = SAMPLE,
    scan: int = SCAN,
) -> WaitGroups:
    """What runs wait for, by name, those after a name."""
    if workspaces is not None:
        return _groups_within(connection, workspaces, after, names, scan)
    found = _wait_names(connection, after, names + 1)
    members = [_group(name, message, sample, scan) for name in found[:names] for message in (False, True)]
    if not members:
        return WaitGroups(())
    groups = []
    for row in connection.execute(sa.union_all(*members).order_by("name", "message")):
        if row.runs:
            several = capped(row.runs, scan + 1)
            asked = sample if row.runs > sample else None
            oldest, timeout = optional_instant(row.oldest), optional_instant(row.timeout)
            groups.append(WaitGroup(row.name, bool(row.message), several, oldest, timeout, asked))
    return WaitGroups(tuple(groups), after=found[names - 1] if len(found) > names else None)


def _wait_names(connection: sa.Connection, after: str | None, limit: int) -> list[str]:
    """The names that are waited for, each found by one step through the index."""
    beginning = () if after is None else (waits.c.name > after,)
    first = sa.select(sa.func.min(waits.c.name).label("name"), sa.literal(1).label("place")).where(*beginning)
    names = first.cte("names", recursive=True)
    following = sa.select(sa.func.min(waits.c.name)).where(waits.c.name > names.c.name).scalar_subquery()
    names = names.union_all(
        sa.select(following, names.c.place + 1).where(names.c.name.is_not(None), names.c.place < limit)
    )
    return list(connection.scalars(sa.select(names.c.name).where(names.c.name.is_not(None), names.c.name != FINISHED)))


def _group(name: str, message: bool, sample: int, scan: int) -> sa.Select[Any]:
    counted = _entries(name, message, scan + 1)
    asked = _entries(name, message, sample)
    number = sa.select(sa.func.count(counted.c.run_id.distinct())).scalar_subquery()
    return sa.select(
        sa.literal(name).label("name"),
        sa.literal(int(message)).label("message"),
        number.label("runs"),
        sa.func.min(runs.c.updated_at).label("oldest"),
        sa.func.min(runs.c.due_at).label("timeout"),
    ).select_from(asked.join(runs, runs.c.id == asked.c.run_id))


def _entries(name: str, message: bool, limit: int) -> sa.Subquery:
    """The first entries of the index for a name."""
    fields = waits.c.fields
    if message:
        return _first_entries(limit, waits.c.name == name, fields == MESSAGES).subquery()
    # Two ranges of the index: what is not equal would be looked for among all.
    lower = _first_entries(limit, waits.c.name == name, fields < MESSAGES).subquery()
    upper = _first_entries(limit, waits.c.name == name, fields > MESSAGES).subquery()
    return sa.union_all(sa.select(lower), sa.select(upper)).subquery()


def _first_entries(limit: int, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(waits.c.run_id).where(*conditions).order_by(*_WAIT_ORDER[:4]).limit(limit)


def _groups_within(
    connection: sa.Connection, workspaces: tuple[str, ...], after: str | None, names: int, scan: int
) -> WaitGroups:
    looked = Looked(workspaces, RunStatus.WAITING, scan)
    waiting = looked.rows(runs.c.id, runs.c.updated_at, runs.c.due_at)
    message = sa.case((waits.c.fields == MESSAGES, 1), else_=0).label("message")
    query = (
        sa.select(
            waits.c.name,
            message,
            sa.func.count(waits.c.run_id.distinct()).label("runs"),
            sa.func.min(waiting.c.updated_at).label("oldest"),
            sa.func.min(waiting.c.due_at).label("timeout"),
        )
        .select_from(waiting.join(waits, waits.c.run_id == waiting.c.id))
        .group_by(waits.c.name, message)
        .order_by(waits.c.name, message)
    )
    if after is not None:
        query = query.where(waits.c.name > after)
    many = (connection.scalar(looked.most()) or 0) >= looked.share
    groups = tuple(
        WaitGroup(
            row.name,
            bool(row.message),
            Count(row.runs, many),
            optional_instant(row.oldest),
            optional_instant(row.timeout),
        )
        for row in connection.execute(query.limit(2 * names + 1))
    )
    searched = looked.share if many else None
    if len(groups) <= 2 * names:
        return WaitGroups(groups, searched=searched)
    # The last name may have another group behind it: it is for the next page.
    shown = tuple(group for group in groups if group.name < groups[-1].name)
    return WaitGroups(shown, after=shown[-1].name, searched=searched)


# The waits of one name ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenWait:
    """One run's wait for an event or a message."""

    run_id: str
    key: str
    number: int
    workflow: str
    workspace: str
    fields: tuple[str, ...]
    #: What is compared, as JSON values by field; null where it was not read.
    match: Mapping[str, Any] | None
    #: Events emitted from this instant on count too.
    since: datetime | None
    waiting_since: datetime
    times_out: datetime | None


@dataclass(frozen=True, slots=True)
class OpenWaits:
    """Some waits of one name; `after` leads to more of them."""

    waits: tuple[OpenWait, ...]
    after: WaitPlace | None = None
    #: How many waiting runs were looked at where that was not all.
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class WaitPlace:
    """A wait that a page ended with."""

    run_id: str
    number: int
    key: str

    def __str__(self) -> str:
        return f"{self.run_id}.{self.number}.{self.key}"

    @classmethod
    def read(cls, text: str) -> WaitPlace:
        found = re.fullmatch(r"([0-9A-Za-z_-]{1,36})\.(\d{1,9})\.([^\x00]{1,255})", text, re.ASCII | re.DOTALL)
        if found is None:
            raise InvalidCursor(f"{text[:50]!r} is not a cursor; take `after` of a page as it is")
        return cls(found[1], int(found[2]), found[3])


def list_waits(
    connection: sa.Connection,
    workspaces: Workspaces,
    name: str,
    *,
    message: bool = False,
    after: str | None = None,
    limit: int = 100,
    values: bool = True,
    scan: int = SCAN,
) -> OpenWaits:
    """The waits for an event of that name, or for a message of it. Raises `InvalidCursor`.

    In the order of the index, which puts those together that compare the same fields; within a scope, the newest run
    first. Without `values`, what they compare the fields with is not read.
    """
    place = None if after is None else WaitPlace.read(after)
    searched: int | None = None
    if workspaces is None:
        found = _waits_of(connection, name, message, place, limit + 1)
    else:
        beyond = () if place is None else (runs.c.id <= place.run_id,)
        looked = Looked(workspaces, RunStatus.WAITING, scan, *beyond)
        found = _waits_within(looked, name, message, place, limit + 1)
        searched = looked.share if (connection.scalar(looked.most()) or 0) >= looked.share else None
    rows = connection.execute(found).mappings().all()
    listed = [_open_wait(row) for row in rows[:limit]]
    if values and not message:
        matches = _matches(connection, listed)
        listed = [replace(wait, match=matches.get((wait.run_id, wait.key, wait.number))) for wait in listed]
    last = listed[-1] if len(rows) > limit else None
    if last is not None:
        return OpenWaits(tuple(listed), after=WaitPlace(last.run_id, last.number, last.key))
    return OpenWaits(tuple(listed), searched=searched)


def _waits_of(
    connection: sa.Connection, name: str, message: bool, place: WaitPlace | None, limit: int
) -> sa.Select[Any]:
    kind = waits.c.fields == MESSAGES if message else waits.c.fields != MESSAGES
    ranges = [()] if place is None else _ranges_after(_entry_of(connection, place))
    # Each by its own index condition: one on all the columns would be looked for among all waits of the name.
    members = [
        sa.select(*_WAIT_COLUMNS).where(waits.c.name == name, kind, *range).order_by(*_WAIT_ORDER).limit(limit)
        for range in ranges
    ]
    merged = sa.union_all(*(sa.select(member.subquery()) for member in members)).subquery()
    order = [column.name for column in _WAIT_ORDER]
    found = sa.select(merged).order_by(*(merged.c[name] for name in order)).limit(limit).subquery()
    return _joined(found).order_by(*(found.c[name] for name in order))


def _ranges_after(entry: tuple[Any, ...]) -> list[tuple[sa.ColumnElement[bool], ...]]:
    """What comes behind an entry in the index: with the same values, with other values, with other fields."""
    fields, values_hash, *rest = entry
    same = (waits.c.fields == fields, waits.c.values_hash == values_hash)
    place = sa.tuple_(*_WAIT_ORDER[2:]) > sa.tuple_(*map(sa.literal, rest))
    return [(*same, place), (same[0], waits.c.values_hash > values_hash), (waits.c.fields > fields,)]


def _joined(found: sa.Subquery) -> sa.Select[Any]:
    joined = found.join(runs, runs.c.id == found.c.run_id)
    return sa.select(found, runs.c.workflow, runs.c.updated_at, runs.c.due_at).select_from(joined)


def _entry_of(connection: sa.Connection, place: WaitPlace) -> tuple[Any, ...]:
    """Where a wait stands in the index, or stood: what it compared is read in its call, which outlives it.

    Raises `InvalidCursor` where the run is gone too.
    """
    own = sa.select(steps.c.kind, steps.c.input, runs.c.workspace).join(runs, runs.c.id == steps.c.run_id)
    row = connection.execute(own.where(steps.c.run_id == place.run_id, steps.c.key == place.key)).one_or_none()
    if row is None:
        raise InvalidCursor("the run that the page before ended with is gone: begin with the first page")
    if row.kind == "receive":
        return (MESSAGES, place.run_id, row.workspace, place.run_id, place.key, place.number)
    described = _described(row.input, place.number)
    try:
        match = described.get("match")
        return (fields_of(match), hash_of(match), row.workspace, place.run_id, place.key, place.number)
    except WorkflowsError:
        raise InvalidCursor(f"what {place.key[:50]!r} waited for cannot be read: begin with the first page") from None


def _waits_within(looked: Looked, name: str, message: bool, place: WaitPlace | None, limit: int) -> sa.Select[Any]:
    kind = waits.c.fields == MESSAGES if message else waits.c.fields != MESSAGES
    waiting = looked.rows(runs.c.id)
    order = (waits.c.run_id.desc(), waits.c.key, waits.c.number)
    query = sa.select(*_WAIT_COLUMNS).join(waiting, waiting.c.id == waits.c.run_id).where(waits.c.name == name, kind)
    if place is not None:
        later = sa.tuple_(waits.c.key, waits.c.number) > sa.tuple_(sa.literal(place.key), sa.literal(place.number))
        query = query.where(sa.or_(waits.c.run_id < place.run_id, later))
    found = query.order_by(*order).limit(limit).subquery()
    return _joined(found).order_by(found.c.run_id.desc(), found.c.key, found.c.number)


def _matches(connection: sa.Connection, listed: Sequence[OpenWait]) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """What these waits compare, from the calls they belong to."""
    if not listed:
        return {}
    # Of the runs' open calls, which an index knows: pairs of columns would be looked for in all of the table.
    query = sa.select(steps.c.run_id, steps.c.key, sa.func.substr(steps.c.input, 1, _INPUT_HEAD)).where(
        steps.c.run_id.in_(sorted({wait.run_id for wait in listed})), steps.c.kind == "wait", OPEN
    )
    inputs = {(run_id, key): text for run_id, key, text in connection.execute(query)}
    found: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for wait in listed:
        described = _described(inputs.get((wait.run_id, wait.key)), wait.number)
        match = described.get("match", {})
        if described and isinstance(match, dict):
            found[wait.run_id, wait.key, wait.number] = match
    return found


def _described(text: str | None, number: int) -> dict[str, Any]:
    """One of the events that a call's input says it waits for; empty where it cannot be read."""
    match decode(text):
        case {"events": [*events]} if number < len(events) and isinstance(events[number], dict):
            described: dict[str, Any] = events[number]
            return described
        case _:
            return {}


def _open_wait(row: sa.RowMapping) -> OpenWait:
    fields = () if row["fields"] == MESSAGES else decode(row["fields"])
    return OpenWait(
        run_id=row["run_id"],
        key=row["key"],
        number=row["number"],
        workflow=row["workflow"],
        workspace=row["workspace"],
        fields=tuple(map(str, fields)) if isinstance(fields, list) else (),
        match=None,
        since=optional_instant(row["since"]),
        waiting_since=instant(row["updated_at"]),
        times_out=optional_instant(row["due_at"]),
    )


def workflows_of(connection: sa.Connection, run_ids: Collection[str]) -> dict[str, str]:
    """The workflows of some runs, by their ids."""
    if not run_ids:
        return {}
    query = sa.select(runs.c.id, runs.c.workflow).where(runs.c.id.in_(run_ids))
    return {row.id: row.workflow for row in connection.execute(query)}
