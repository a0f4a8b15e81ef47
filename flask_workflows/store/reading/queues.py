"""What waits, runs and sleeps in each queue.

No index begins with the queue, so unfinished runs are looked at, of each status the newest. Where a status has more
of them than that, those of each workflow are looked at instead, so that a queue with a long backlog hides no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...runs import Count
from ...runs import LIVE
from ...runs import RunStatus
from .criteria import workflow_names
from .looked import Looked
from .rows import instant
from .rows import millis
from .scope import LOOKED_AT
from .scope import Workspaces

#: Of one workflow, how many runs of a status are looked at.
_SHARE = 1_000
#: How many workflows are looked through one by one.
_NAMES = 300
#: Tables in one statement.
_MEMBERS = 50


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The unfinished runs of one queue; a count that is capped is of those that were looked at."""

    name: str
    #: Due, and held by no worker.
    due: Count
    #: Since when the first of those is due; where they were not all looked at, it may be longer.
    oldest: datetime | None
    running: Count
    sleeping: Count
    waiting: Count


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues that hold unfinished runs, by name."""

    queues: tuple[QueueCounts, ...]
    #: Whether there are more runs than were looked at.
    cut: bool = False


def count_queues(
    connection: sa.Connection, now: datetime, workspaces: Workspaces, *, scan: int = LOOKED_AT, share: int = _SHARE
) -> Queues:
    """What each queue holds."""
    looks = {status: Looked(workspaces, status, scan) for status in LIVE}
    reached = connection.execute(sa.select(*(look.most().scalar_subquery() for look in looks.values()))).one()
    cut = {status for status, most in zip(looks, reached, strict=True) if most >= looks[status].share}
    tally = _Tally()
    by_workflow = cut if workspaces is None else set()
    whole = [_parts(status, look.rows(*_COLUMNS), now) for status, look in looks.items() if status not in by_workflow]
    for row in _rows(connection, whole):
        tally.add(row, capped=row.status in cut)
    names = workflow_names(connection, limit=_NAMES) if by_workflow else []
    members = [_parts(status, _of_workflow(name, status, share), now) for status in by_workflow for name in names]
    for row in _rows(connection, members):
        tally.add(row, capped=row.looked >= share)
    return Queues(tally.queues(), cut=bool(cut))


_COLUMNS = (runs.c.queue, runs.c.due_at, runs.c.worker)


def _of_workflow(name: str, status: RunStatus, share: int) -> sa.Subquery:
    of_both = sa.select(*_COLUMNS).where(runs.c.workflow == name, runs.c.status == status.value)
    return of_both.order_by(runs.c.id).limit(share).subquery()


def _parts(status: RunStatus, looked: sa.Subquery, now: datetime) -> sa.Select[Any]:
    """Select how many of these runs each queue holds, by what they do there."""
    part: Any = sa.literal(_PARTS[status])
    if status is not RunStatus.RUNNING:
        # What is claimed and not begun is held too.
        part = sa.case((looked.c.worker.is_not(None), "running"), (looked.c.due_at <= millis(now), "due"), else_=part)
    # So that it is grouped by: a parameter of its own each time is not the same to PostgreSQL.
    told = sa.select(looked.c.queue, looked.c.due_at, part.label("part")).subquery()
    number = sa.func.count()
    return sa.select(
        sa.literal(status.value).label("status"),
        told.c.queue,
        told.c.part,
        number.label("runs"),
        sa.func.min(told.c.due_at).label("oldest"),
        sa.func.sum(number).over().label("looked"),
    ).group_by(told.c.queue, told.c.part)


#: What runs of a status do that no worker holds and that are not due.
_PARTS = {
    RunStatus.PENDING: "due",
    RunStatus.RUNNING: "running",
    RunStatus.SLEEPING: "sleeping",
    RunStatus.WAITING: "waiting",
}


def _rows(connection: sa.Connection, members: Sequence[sa.Select[Any]]) -> Iterator[Any]:
    for start in range(0, len(members), _MEMBERS):
        yield from connection.execute(sa.union_all(*members[start : start + _MEMBERS]))


class _Tally:
    """What was counted, added up queue by queue."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], int] = {}
        self._capped: set[tuple[str, str]] = set()
        self._oldest: dict[str, int] = {}

    def add(self, row: Any, *, capped: bool) -> None:
        place = (row.queue, row.part)
        self._values[place] = self._values.get(place, 0) + row.runs
        if capped:
            self._capped.add(place)
        if row.part == "due" and row.oldest is not None:
            self._oldest[row.queue] = min(row.oldest, self._oldest.get(row.queue, row.oldest))

    def queues(self) -> tuple[QueueCounts, ...]:
        return tuple(
            QueueCounts(
                name,
                due=self._count(name, "due"),
                oldest=instant(self._oldest[name]) if name in self._oldest else None,
                running=self._count(name, "running"),
                sleeping=self._count(name, "sleeping"),
                waiting=self._count(name, "waiting"),
            )
            for name in sorted({queue for queue, _ in self._values})
        )

    def _count(self, queue: str, part: str) -> Count:
        return Count(self._values.get((queue, part), 0), (queue, part) in self._capped)
