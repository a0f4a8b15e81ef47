"""Rows as the frozen values of `runs.py`, and what the queries for them have in common."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import Grouping

from ...models import runs
from ...models import steps
from ...runs import Attempt
from ...runs import Count
from ...runs import decode
from ...runs import NOT_LOADED
from ...runs import Run
from ...runs import RunError
from ...runs import RunStatus
from ...runs import Step
from ...runs import Worker

_ERROR_HEAD = 1_000
_EARLIER_LIMIT = 200_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, tzinfo=UTC)

SUMMARY: tuple[sa.ColumnElement[Any], ...] = (
    *(column for column in runs.c if column.name not in ("live_key", "input", "output", "error")),
    sa.func.substr(runs.c.error, 1, _ERROR_HEAD).label("error"),
)
STEP_SUMMARY: tuple[sa.ColumnElement[Any], ...] = (
    *(column for column in steps.c if column.name not in ("input", "output", "error", "earlier")),
    sa.func.substr(steps.c.error, 1, _ERROR_HEAD).label("error"),
    sa.case((sa.func.length(steps.c.earlier) <= _EARLIER_LIMIT, steps.c.earlier)).label("earlier"),
)

Conditions = tuple[sa.ColumnElement[bool], ...]


# A partial index is used where its own condition stands in the query word for word: as literals, not parameters.
REMARKABLE: sa.ColumnElement[bool] = runs.c.status != sa.literal("completed", literal_execute=True)
OWNED: sa.ColumnElement[bool] = runs.c.workspace != sa.literal("", literal_execute=True)
OPEN: sa.ColumnElement[bool] = steps.c.status.in_(
    sa.bindparam("open", ["running", "retrying", "sleeping", "waiting"], expanding=True, literal_execute=True)
)


class _Implied(Grouping[bool]):
    inherit_cache = True


@compiles(_Implied)
def _word_for_word(element: _Implied, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.element, **options)


@compiles(_Implied, "postgresql")
def _untold(element: _Implied, compiler: SQLCompiler, **options: Any) -> str:
    return "true"


def implied(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """The condition of a partial index, beside conditions that imply it.

    PostgreSQL finds out by itself that these imply it. Told, it would think that fewer rows are left than there are,
    and rather sort them all than go through the index in its order.
    """
    return _Implied(condition)


def capped(value: int, cap: int) -> Count:
    return Count(cap - 1, capped=True) if value >= cap else Count(value)


def run_of(row: sa.RowMapping) -> Run:
    return Run(
        id=row["id"],
        workflow=row["workflow"],
        version=row["version"],
        queue=row["queue"],
        workspace=row["workspace"],
        key=row["key"],
        status=RunStatus.read(row["status"]),
        epoch=row["epoch"],
        worker=row["worker"],
        due_at=optional_instant(row["due_at"]),
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        losses=row["losses"],
        cancel_requested_at=optional_instant(row["cancel_requested_at"]),
        created_at=instant(row["created_at"]),
        started_at=optional_instant(row["started_at"]),
        updated_at=instant(row["updated_at"]),
        finished_at=optional_instant(row["finished_at"]),
        error=None if row["error"] is None else RunError.read(row["error"]),
        cause=row["cause"],
        parent_id=row["parent_id"],
        forked_from=row["forked_from"],
        undone=row["undoing"] is not None,
        paused_at=optional_instant(row["paused_at"]),
        paused_due_at=optional_instant(row["paused_due_at"]),
        deadline_at=optional_instant(row["deadline_at"]),
        input_json=row.get("input", NOT_LOADED),
        output_json=row.get("output", NOT_LOADED),
    )


def step_of(row: sa.RowMapping, number: int | None = None) -> Step:
    return Step(
        run_id=row["run_id"],
        key=row["key"],
        position=row["position"],
        kind=row["kind"],
        status=row["status"],
        attempts=row["attempts"],
        started_at=optional_instant(row["started_at"]),
        finished_at=optional_instant(row["finished_at"]),
        due_at=optional_instant(row["due_at"]),
        error=None if row["error"] is None else RunError.read(row["error"]),
        earlier=_attempts(row["earlier"]),
        number=number,
        input_json=row.get("input", NOT_LOADED),
        output_json=row.get("output", NOT_LOADED),
    )


def _attempts(text: str | None) -> tuple[Attempt, ...]:
    value = decode(text)
    if not isinstance(value, list):
        return ()
    return tuple(
        Attempt(
            optional_instant(attempt.get("started_at")),
            optional_instant(attempt.get("finished_at")),
            None if attempt.get("error") is None else RunError.of(attempt["error"]),
        )
        for attempt in value
        if isinstance(attempt, dict)
    )


def worker_of(row: sa.RowMapping) -> Worker:
    queues = decode(row["queues"])
    offers = decode(row["workflows"])
    return Worker(
        id=row["id"],
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        queues=tuple(map(str, queues)) if isinstance(queues, list) else None,
        workflows=tuple(_offers(offers if isinstance(offers, list) else [])),
        concurrency=row["concurrency"],
        started_at=instant(row["started_at"]),
        seen_at=instant(row["seen_at"]),
        stopped_at=optional_instant(row["stopped_at"]),
    )


def _offers(values: list[Any]) -> Iterator[tuple[str, int, int]]:
    for value in values:
        match value:
            case [str(name), int(low), int(high)]:
                yield name, low, high


def millis(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(milliseconds=1)


def optional_instant(millis: object) -> datetime | None:
    if not isinstance(millis, int):
        return None
    try:
        return _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return _LAST if millis > 0 else _EPOCH


def instant(millis: object) -> datetime:
    """The instant that is stored as Unix milliseconds."""
    return optional_instant(millis) or _EPOCH


def order_of_steps(connection: sa.Connection) -> tuple[sa.ColumnElement[Any], ...]:
    """The order to read a run's calls in: the calls of a branch come behind the parallel call they are in."""
    key = steps.c.key
    in_branch: sa.ColumnElement[bool]
    if connection.dialect.name == "sqlite":
        in_branch = key.op("GLOB")("[0-9]*.[0-9]*/*")
        around = sa.func.substr(key, 1, sa.func.instr(key, ".") - 1)
        branch = sa.func.substr(key, 1, sa.func.instr(key, "/"))
    else:
        in_branch = key.regexp_match(r"^[0-9]+[.][0-9]+/")
        around = sa.func.split_part(key, ".", 1)
        branch = sa.func.split_part(key, "/", 1)
    return (
        sa.case((in_branch, sa.cast(around, sa.Integer)), else_=steps.c.position),
        sa.case((in_branch, 1), else_=0),
        sa.case((in_branch, sa.func.length(branch)), else_=0),
        sa.case((in_branch, branch), else_=""),
        steps.c.position,
        key,
    )
