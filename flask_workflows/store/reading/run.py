"""One run: itself, its steps, what stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...models import steps
from ...names import is_clean
from ...runs import Call
from ...runs import Count
from ...runs import Head
from ...runs import Run
from ...runs import RunDetails
from ...runs import RunError
from ...runs import Step
from ...runs import StepDetails
from .rows import capped
from .rows import millis
from .rows import OPEN
from .rows import order_of_steps
from .rows import run_of
from .rows import step_of
from .rows import STEP_SUMMARY


def read_run(connection: sa.Connection, run_id: str, *, payloads: bool = True) -> Run | None:
    """The run, with its input and output unless told otherwise; null if there is none."""
    if not is_clean(run_id):
        return None
    columns = [column for column in runs.c if payloads or column.name not in ("input", "output")]
    row = connection.execute(sa.select(*columns).where(runs.c.id == run_id)).mappings().one_or_none()
    return None if row is None else run_of(row)


def read_heads(connection: sa.Connection, run_id: str, limit: int) -> tuple[Head | None, Head | None]:
    """The beginnings of a run's input and output."""
    columns = []
    for column in (runs.c.input, runs.c.output):
        columns += [sa.func.substr(column, 1, limit), sa.func.length(column)]
    row = connection.execute(sa.select(*columns).where(runs.c.id == run_id)).one_or_none()
    if row is None:
        return None, None
    text, length, output, output_length = row
    return (None if text is None else Head(text, length), None if output is None else Head(output, output_length))


def read_details(connection: sa.Connection, run_id: str) -> RunDetails | None:
    """The run and all its steps, payloads included."""
    run = read_run(connection, run_id)
    if run is None:
        return None
    query = sa.select(steps).where(steps.c.run_id == run_id).order_by(*order_of_steps(connection))
    rows = connection.execute(query).mappings()
    return RunDetails(run, tuple(step_of(row, number) for number, row in enumerate(rows, start=1)))


def read_steps(
    connection: sa.Connection,
    run_id: str,
    *,
    edges: int = 50,
    whole: int = 200,
    remarkable: int = 15,
    start: int | None = None,
    name: str | None = None,
    status: str | None = None,
) -> tuple[tuple[Step, ...], int]:
    """Steps of a run in order, without payloads, and how many there are.

    Up to `whole` steps: all. Of more, the first and the last `edges`, and the first that are `remarkable`: failed, or
    not finished; or, with `start`, the `whole` steps from that number on and the unfinished ones. With a `name` that
    is part of the key, or a `status`: the first `whole` of those, and how many of those there are.
    """
    place = sa.func.row_number().over(order_by=order_of_steps(connection))
    every = sa.select(steps.c.run_id, steps.c.key, steps.c.status, place.label("number"))
    of_run = every.where(steps.c.run_id == run_id).subquery("of_run")
    conditions = []
    if name is not None:
        conditions.append(sa.func.lower(of_run.c.key).contains(name.lower(), autoescape=True))
    if status is not None:
        conditions.append(of_run.c.status == status)
    odd = sa.case((of_run.c.status == "completed", 2), (of_run.c.status == "failed", 1), else_=0)
    numbered = (
        sa.select(
            of_run,
            sa.func.count().over().label("total"),
            sa.func.row_number().over(order_by=of_run.c.number).label("nth"),
            sa.func.row_number().over(order_by=(odd, of_run.c.number)).label("odd"),
        )
        .where(*conditions)
        .subquery("numbered")
    )
    number, nth, total = numbered.c.number, numbered.c.nth, numbered.c.total
    if conditions:
        chosen: sa.ColumnElement[bool] = number >= (start or 1)
    elif start is None:
        is_odd = (numbered.c.status != "completed") & (numbered.c.odd <= remarkable)
        chosen = sa.or_(total <= whole, nth <= edges, nth > total - edges, is_odd)
    else:
        chosen = sa.or_(nth.between(start, start + whole - 1), numbered.c.status.not_in(("completed", "failed")))
    query = (
        sa.select(*STEP_SUMMARY, number, total)
        .join(steps, (steps.c.run_id == numbered.c.run_id) & (steps.c.key == numbered.c.key))
        .where(chosen)
        .order_by(number)
        .limit(whole if conditions else whole + remarkable)
    )
    rows = connection.execute(query).mappings().all()
    if not rows:
        return (), 0 if conditions else count_steps(connection, run_id)
    return tuple(step_of(row, row["number"]) for row in rows), rows[0]["total"]


def read_calls(connection: sa.Connection, run_id: str, *, limit: int) -> tuple[Call, ...]:
    """The first recorded calls of a run, in order."""
    query = (
        sa.select(steps.c.key, steps.c.status, steps.c.position, steps.c.kind)
        .where(steps.c.run_id == run_id)
        .order_by(*order_of_steps(connection))
        .limit(limit)
    )
    return tuple(Call(number, *row) for number, row in enumerate(connection.execute(query), start=1))


def has_call(connection: sa.Connection, run_id: str, key: str) -> bool:
    """Whether the run has a recorded call with that key."""
    found = sa.select(sa.literal(1)).where(steps.c.run_id == run_id, steps.c.key == key)
    return is_clean(key) and connection.scalar(found) is not None


def read_step(connection: sa.Connection, run_id: str, number: int, *, payload_limit: int = 0) -> StepDetails | None:
    """One step of a run by its number, with its whole error; its values up to a limit, with 0 not at all."""
    place = sa.func.row_number().over(order_by=order_of_steps(connection))
    numbered = (
        sa.select(steps.c.key, place.label("number"), sa.func.count().over().label("total"))
        .where(steps.c.run_id == run_id)
        .subquery("numbered")
    )
    found = connection.execute(
        sa.select(numbered.c.key, numbered.c.total).where(numbered.c.number == number)
    ).one_or_none()
    if found is None:
        return None
    key, total = found
    columns: list[sa.ColumnElement[Any]] = [column for column in STEP_SUMMARY if column.name != "error"]
    columns.append(sa.func.substr(steps.c.error, 1, _ERROR_LIMIT).label("error"))
    if payload_limit:
        for column in (steps.c.input, steps.c.output):
            columns += [
                sa.func.substr(column, 1, payload_limit).label(f"{column.name}_head"),
                sa.func.length(column).label(f"{column.name}_length"),
            ]
    of_key = sa.select(*columns).where(steps.c.run_id == run_id, steps.c.key == key)
    row = connection.execute(of_key).mappings().one_or_none()
    if row is None:
        return None
    return StepDetails(step_of(row, number), total, _head(row, "input"), _head(row, "output"))


_ERROR_LIMIT = 500_000


def _head(row: sa.RowMapping, name: str) -> Head | None:
    text = row.get(f"{name}_head")
    return None if text is None else Head(text, row[f"{name}_length"])


def read_value(
    connection: sa.Connection, run_id: str, name: str, *, step: int | None = None, limit: int
) -> Head | None:
    """The `input` or `output` of a run or of one of its steps; of a longer one than the limit only its length."""
    column: sa.ColumnElement[str]
    where: tuple[sa.ColumnElement[bool], ...]
    if step is None:
        column, where = runs.c[name], (runs.c.id == run_id,)
    else:
        place = sa.func.row_number().over(order_by=order_of_steps(connection))
        numbered = sa.select(steps.c.key, place.label("number")).where(steps.c.run_id == run_id).subquery("numbered")
        key = sa.select(numbered.c.key).where(numbered.c.number == step).scalar_subquery()
        column, where = steps.c[name], (steps.c.run_id == run_id, steps.c.key == key)
    length = sa.func.length(column)
    row = connection.execute(sa.select(sa.case((length <= limit, column)), length).where(*where)).one_or_none()
    return None if row is None or row[1] is None else Head(row[0] or "", row[1])


def read_step_error(connection: sa.Connection, run_id: str, key: str) -> RunError | None:
    """The whole error of one step, traceback included."""
    text = connection.scalar(sa.select(steps.c.error).where(steps.c.run_id == run_id, steps.c.key == key))
    return None if text is None else RunError.read(text)


def count_steps(connection: sa.Connection, run_id: str) -> int:
    return connection.scalar(sa.select(sa.func.count()).where(steps.c.run_id == run_id)) or 0


def count_ahead(connection: sa.Connection, run: Run, *, cap: int = 1_001) -> Count:
    """How many unfinished runs of the same queue fell due before this one."""
    if run.due_at is None:
        return Count(0)
    due = (
        sa.select(sa.literal(1))
        .where(runs.c.due_at.is_not(None), runs.c.due_at < millis(run.due_at), runs.c.queue == run.queue)
        .limit(cap)
        .subquery()
    )
    return capped(connection.scalar(sa.select(sa.func.count()).select_from(due)) or 0, cap)


def read_open_steps(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, tuple[Step, ...]]:
    """The unfinished steps of each run that has any."""
    if not run_ids:
        return {}
    query = (
        sa.select(*STEP_SUMMARY)
        .where(steps.c.run_id.in_(run_ids), OPEN)
        .order_by(steps.c.run_id, steps.c.position, steps.c.key)
        .limit(10 * len(run_ids) + 1_000)
    )
    found: dict[str, tuple[Step, ...]] = {}
    for row in connection.execute(query).mappings():
        found[row["run_id"]] = (*found.get(row["run_id"], ()), step_of(row))
    return found


def read_failed_tries(connection: sa.Connection, found: Sequence[Run]) -> dict[str, int]:
    """Of each run that failed at a step: how often that was tried."""
    failed = [(run.id, run.error.step) for run in found if run.finished and run.error is not None and run.error.step]
    if not failed:
        return {}
    # A list of pairs would be looked for by a scan on SQLite.
    places = [sa.and_(steps.c.run_id == run_id, steps.c.key == key) for run_id, key in failed]
    query = sa.select(steps.c.run_id, steps.c.attempts).where(sa.or_(*places))
    return {row.run_id: row.attempts for row in connection.execute(query)}
