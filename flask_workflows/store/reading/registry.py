"""What the database knows of workflows and their versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import sqlalchemy as sa

from ...models import runs
from ...runs import LIVE
from ...runs import RunStatus
from ...runs import Unfinished
from .rows import Conditions
from .rows import REMARKABLE
from .runs import COUNT_CAP

#: Runs of each status that are looked at for what no index knows.
_LOOK = 1_000

#: As a literal: a partial index is used where its own condition stands in the query word for word.
_OWNED: sa.ColumnElement[bool] = runs.c.workspace != sa.literal("", literal_execute=True)


def count_unfinished(
    connection: sa.Connection,
    *,
    workflow: str | None = None,
    workspaces: tuple[str, ...] | None = None,
    cap: int = COUNT_CAP,
) -> Unfinished:
    """How many unfinished runs there are of each version; of every status up to `cap` runs are looked at."""
    members = []
    for status in LIVE:
        inner = (
            sa.select(
                sa.literal(status.value, literal_execute=True).label("status"),
                runs.c.workflow,
                runs.c.version,
                runs.c.workspace,
            )
            .where(*_live(status, workflow, workspaces))
            .limit(cap)
        )
        members.append(sa.select(inner.subquery()))
    looked = sa.union_all(*members).subquery()
    seen = sa.true() if workspaces is None else looked.c.workspace.in_(workspaces)
    query = sa.select(
        looked.c.status,
        looked.c.workflow,
        looked.c.version,
        sa.func.count().label("looked"),
        sa.func.count(sa.case((seen, 1))).label("value"),
    ).group_by(looked.c.status, looked.c.workflow, looked.c.version)

    values: Counter[tuple[str, int]] = Counter()
    looks: Counter[str] = Counter()
    for row in connection.execute(query):
        looks[row.status] += row.looked
        if row.value:
            values[row.workflow, row.version] += row.value
    return Unfinished(dict(values), capped=any(look >= cap for look in looks.values()))


def _live(
    status: RunStatus, workflow: str | None, workspaces: tuple[str, ...] | None
) -> Iterator[sa.ColumnElement[bool]]:
    yield runs.c.status == status.value
    if workflow is not None:
        yield runs.c.workflow == workflow
    elif workspaces is not None and "" not in workspaces:
        yield runs.c.workspace.in_(workspaces)
        yield _OWNED
    else:
        yield REMARKABLE


def recent_versions(
    connection: sa.Connection, workflow: str, *, workspaces: tuple[str, ...] | None = None
) -> tuple[int, ...]:
    """The versions among the newest runs of a workflow; none where it has no runs."""
    members = []
    for status in RunStatus:
        conditions: Conditions = (runs.c.workflow == workflow, runs.c.status == status.value)
        newest = sa.select(runs.c.version, runs.c.workspace).where(*conditions).order_by(runs.c.id.desc()).limit(_LOOK)
        members.append(sa.select(newest.subquery()))
    looked = sa.union_all(*members).subquery()
    query = sa.select(looked.c.version).distinct().order_by(looked.c.version)
    if workspaces is not None:
        query = query.where(looked.c.workspace.in_(workspaces))
    return tuple(connection.scalars(query))
