"""Failed runs by what made them fail.

Only the newest failed runs are looked at, in the order in which they were created: no index knows when a run failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...runs import FailureGroup
from ...runs import Failures
from ...runs import Run
from ...runs import RunError
from ...runs import RunStatus
from .rows import instant
from .rows import millis
from .rows import run_of
from .rows import SUMMARY
from .scope import looked_at
from .scope import newest
from .scope import Workspaces

HOUR_MS = 3_600_000

#: Causes that are listed.
MOST_GROUPS = 100

#: Runs without a stored cause whose errors are looked into.
_WITHOUT_CAUSE = 1_000
#: How much of such an error: its class and its step come first.
_HEAD = 1_000


@dataclass(slots=True)
class _Group:
    """What is known of a group so far."""

    cause: str | None
    count: int = 0
    first: int = 0
    last: int = 0
    newest: str = ""
    versions: set[int] = field(default_factory=set)
    by_hour: dict[int, int] = field(default_factory=dict)

    def add(self, count: int, first: int, last: int, run_id: str, version: int, hour: int | None) -> None:
        self.first = min(self.first, first) if self.count else first
        self.last = max(self.last, last)
        self.newest = max(self.newest, run_id)
        self.count += count
        self.versions.add(version)
        if hour is not None:
            self.by_hour[hour] = self.by_hour.get(hour, 0) + count


def list_failures(
    connection: sa.Connection,
    since: datetime | None,
    hours_from: datetime,
    workspaces: Workspaces,
    *,
    most: int = MOST_GROUPS,
) -> Failures:
    """The failures since an instant, or all for null, by cause; those from `hours_from` on also by the hour."""
    looked = looked_at(connection, RunStatus.FAILED, workspaces)
    found = [*_with_cause(connection, since, hours_from, workspaces)]
    if looked.value:
        found += _without_cause(connection, since, hours_from, workspaces)
    found.sort(key=lambda group: (group.last, group.newest), reverse=True)
    runs_ = _read_runs(connection, [group.newest for group in found[:most]])
    groups = tuple(
        FailureGroup(
            group.cause,
            runs_[group.newest],
            group.count,
            instant(group.first),
            instant(group.last),
            tuple(sorted(group.versions)),
            group.by_hour,
        )
        for group in found[:most]
        if group.newest in runs_
    )
    return Failures(groups, looked, more=max(len(found) - most, 0))


def _with_cause(
    connection: sa.Connection, since: datetime | None, hours_from: datetime, workspaces: Workspaces
) -> Iterable[_Group]:
    failed = newest(RunStatus.FAILED, workspaces, runs.c.cause, runs.c.version, runs.c.finished_at)
    at = failed.c.finished_at
    hour = sa.case((at >= millis(hours_from), at // HOUR_MS))
    query = (
        sa.select(
            failed.c.cause, failed.c.version, hour, sa.func.count(), sa.func.min(at), sa.func.max(at),
            sa.func.max(failed.c.id),
        )
        .where(failed.c.cause.is_not(None), *_since(at, since))
        .group_by(failed.c.cause, failed.c.version, hour)
    )  # fmt: skip
    groups: dict[str, _Group] = {}
    for cause, version, in_hour, count, first, last, run_id in connection.execute(query):
        groups.setdefault(cause, _Group(cause)).add(count, first, last, run_id, version, in_hour)
    return groups.values()


def _without_cause(
    connection: sa.Connection, since: datetime | None, hours_from: datetime, workspaces: Workspaces
) -> Iterator[_Group]:
    """Failures that were stored before causes were."""
    failed = newest(RunStatus.FAILED, workspaces, runs.c.cause, runs.c.workflow, runs.c.version, runs.c.finished_at)
    at = failed.c.finished_at
    some = (
        sa.select(failed.c.id)
        .where(failed.c.cause.is_(None), *_since(at, since))
        .order_by(failed.c.id.desc())
        .limit(_WITHOUT_CAUSE)
        .subquery()
    )
    head = sa.func.substr(runs.c.error, 1, _HEAD)
    query = sa.select(runs.c.id, runs.c.workflow, runs.c.version, runs.c.finished_at, head).where(
        runs.c.id.in_(sa.select(some.c.id))
    )
    groups: dict[tuple[Any, ...], _Group] = {}
    for run_id, workflow, version, finished_at, text in connection.execute(query):
        error = None if text is None else RunError.read(text)
        key = (workflow, None, None) if error is None else (workflow, error.type, error.step)
        ended = finished_at or 0
        hour = ended // HOUR_MS if ended >= millis(hours_from) else None
        groups.setdefault(key, _Group(None)).add(1, ended, ended, run_id, version, hour)
    yield from groups.values()


def _since(at: sa.ColumnElement[Any], since: datetime | None) -> tuple[sa.ColumnElement[bool], ...]:
    return () if since is None else (at >= millis(since),)


def _read_runs(connection: sa.Connection, ids: Sequence[str]) -> dict[str, Run]:
    if not ids:
        return {}
    rows = connection.execute(sa.select(*SUMMARY).where(runs.c.id.in_(ids))).mappings()
    return {row["id"]: run_of(row) for row in rows}
