"""What an operation on many runs would act on, and has acted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from ...models import audit
from ...models import runs
from ...models import state
from ...runs import Count
from ...runs import decode
from ...runs import PROGRESS
from ...runs import RunQuery
from ...runs import Share
from ...search import Hides
from .rows import capped
from .runs import selected_ids


def split_runs(
    connection: sa.Connection,
    query: RunQuery,
    *,
    cap: int,
    scan: int | None = None,
    until: str | None = None,
    real_time: bool = True,
    hidden: Hides | None = None,
) -> tuple[Share, ...]:
    """How many of the newest `cap` runs that match are of each workflow, version and status, the most first."""
    newest = replace(query, cursor=None)
    found = selected_ids(connection, newest, limit=cap, scan=scan, until=until, real_time=real_time, hidden=hidden)
    return () if found is None else _shares(connection, sa.select(found.subquery().c.id))


def split_listed(connection: sa.Connection, run_ids: Sequence[str]) -> tuple[Share, ...]:
    """As `split_runs`, of the runs with these ids."""
    return _shares(connection, run_ids)


def _shares(connection: sa.Connection, ids: Sequence[str] | sa.Select[tuple[str]]) -> tuple[Share, ...]:
    number = sa.func.count()
    query = (
        sa.select(runs.c.workflow, runs.c.version, runs.c.status, number)
        .where(runs.c.id.in_(ids))
        .group_by(runs.c.workflow, runs.c.version, runs.c.status)
        .order_by(number.desc(), runs.c.workflow, runs.c.version, runs.c.status)
        .limit(1_000)
    )
    return tuple(Share(*row) for row in connection.execute(query))


def read_progress(connection: sa.Connection, run_id: str) -> float:
    """How much a run said last that it has done; 0 if nothing."""
    text = connection.scalar(sa.select(state.c.value).where(state.c.run_id == run_id, state.c.key == PROGRESS))
    value = decode(text)
    done = value.get("done") if isinstance(value, dict) else None
    return done if isinstance(done, int | float) else 0


def count_operation(connection: sa.Connection, operation: str, *, cap: int) -> Count:
    """How many runs an operation has acted on: each left its row in the audit, in one transaction with the action."""
    rows = sa.select(sa.literal(1)).where(audit.c.operation == operation).limit(cap).subquery()
    return capped(connection.scalar(sa.select(sa.func.count()).select_from(rows)) or 0, cap)
