"""A run's steps with their payloads, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ...models import steps
from ...runs import Step
from .rows import step_of
from .rows import STEP_SUMMARY
from .run import count_steps

#: Characters of payloads in one page, which the last step may exceed.
SIZE = 4_000_000

#: What such a call waits for stands in its input.
WAITING_KINDS = ("wait", "receive")


@dataclass(frozen=True, slots=True)
class StepPage:
    """Some steps of a run, in order."""

    steps: tuple[Step, ...]
    #: How many the run has.
    total: int
    #: The key to go on after; null at the end.
    after: str | None
    #: What the waits among them wait for, as stored, by key.
    waits: dict[str, str]


def read_step_page(
    connection: sa.Connection, run_id: str, *, after: str | None = None, limit: int = 1_000, payloads: bool = True
) -> StepPage | None:
    """The steps that follow the one with the key `after`; null where the run has no such step.

    Fewer than `limit` where their payloads are large.
    """
    order = (steps.c.position, steps.c.key)
    query = sa.select(steps.c.key, steps.c.position).where(steps.c.run_id == run_id)
    if after is not None:
        found = connection.execute(query.where(steps.c.key == after)).one_or_none()
        if found is None:
            return None
        query = query.where(sa.tuple_(*order) > sa.tuple_(sa.literal(found.position), sa.literal(found.key)))
    keys = query.order_by(*order).limit(limit + 1).subquery("keys")

    size = _size(connection) if payloads else sa.literal(0)
    sized = (
        sa.select(
            steps.c.key,
            (sa.func.sum(size).over(order_by=order) - size).label("before"),
            sa.func.count().over().label("found"),
        )
        .join(keys, (steps.c.run_id == run_id) & (steps.c.key == keys.c.key))
        .subquery("sized")
    )
    waited = sa.case((steps.c.kind.in_(WAITING_KINDS), steps.c.input)).label("waited")
    values = (steps.c.input, steps.c.output) if payloads else ()
    chosen = (
        sa.select(*STEP_SUMMARY, waited, *values, sized.c.found)
        .join(sized, (steps.c.run_id == run_id) & (steps.c.key == sized.c.key))
        .where(sized.c.before < SIZE)
        .order_by(*order)
        .limit(limit)
    )
    return _page(connection, run_id, connection.execute(chosen).mappings().all())


def _page(connection: sa.Connection, run_id: str, rows: Sequence[sa.RowMapping]) -> StepPage:
    more = bool(rows) and rows[0]["found"] > len(rows)
    return StepPage(
        steps=tuple(step_of(row) for row in rows),
        total=count_steps(connection, run_id),
        after=rows[-1]["key"] if more else None,
        waits={row["key"]: row["waited"] for row in rows if row["waited"] is not None},
    )


def _size(connection: sa.Connection) -> sa.ColumnElement[Any]:
    # PostgreSQL would unpack each value to count its characters.
    length = sa.func.octet_length if connection.dialect.name == "postgresql" else sa.func.length
    return sa.func.coalesce(length(steps.c.input), 0) + sa.func.coalesce(length(steps.c.output), 0)
