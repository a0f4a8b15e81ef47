"""One run: itself, its steps, what stands before it."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from ...models import runs
from ...models import steps
from ...names import is_clean
from ...runs import Count
from ...runs import Head
from ...runs import Run
from ...runs import RunDetails
from ...runs import RunError
from ...runs import Step
from .rows import capped
from .rows import millis
from .rows import OPEN
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
    query = sa.select(steps).where(steps.c.run_id == run_id).order_by(steps.c.position, steps.c.key)
    rows = connection.execute(query).mappings()
    return RunDetails(run, tuple(step_of(row, number) for number, row in enumerate(rows, start=1)))


def read_steps(
    connection: sa.Connection, run_id: str, *, edges: int = 50, whole: int = 200, start: int | None = None
) -> tuple[tuple[Step, ...], int]:
    """Steps of a run in order, without payloads, and how many there are.

    Up to `whole` steps: all. Of more, the first and the last `edges`, and all that failed or are not finished; or,
    with `start`, the `whole` steps from that number on and the unfinished ones.
    """
    place = sa.func.row_number().over(order_by=(steps.c.position, steps.c.key))
    numbered = (
        sa.select(
            steps.c.run_id, steps.c.key, steps.c.status, place.label("number"), sa.func.count().over().label("total")
        )
        .where(steps.c.run_id == run_id)
        .subquery("numbered")
    )
    number, total, status = numbered.c.number, numbered.c.total, numbered.c.status
    if start is None:
        chosen = sa.or_(total <= whole, number <= edges, number > total - edges, status != "completed")
    else:
        chosen = sa.or_(number.between(start, start + whole - 1), status.not_in(("completed", "failed")))
    query = (
        sa.select(*STEP_SUMMARY, number, total)
        .join(steps, (steps.c.run_id == numbered.c.run_id) & (steps.c.key == numbered.c.key))
        .where(chosen)
        .order_by(number)
        .limit(2 * whole)
    )
    rows = connection.execute(query).mappings().all()
    if not rows:
        return (), count_steps(connection, run_id)
    return tuple(step_of(row, row["number"]) for row in rows), rows[0]["total"]


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
