"""Runs that came of a run: those its body started, and those that took over its first calls."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from ...models import runs
from ...runs import Count
from ...runs import Relative
from ...runs import RunStatus
from .rows import capped
from .scope import Workspaces

#: Counting stops here; of children that have finished, too.
_CAP = 1_001


def _relatives(connection: sa.Connection, of: sa.ColumnElement[bool], limit: int, seen: Workspaces) -> list[Relative]:
    looked = (
        sa.select(runs.c.id, runs.c.workflow, runs.c.status, runs.c.workspace)
        .where(of)
        .order_by(runs.c.id.desc())
        .limit(limit if seen is None else _CAP)
        .subquery()
    )
    query = sa.select(looked.c.id, looked.c.workflow, looked.c.status).order_by(looked.c.id.desc()).limit(limit)
    if seen is not None:
        query = query.where(looked.c.workspace.in_(seen))
    return [Relative(id, workflow, RunStatus.read(status)) for id, workflow, status in connection.execute(query)]


def list_children(connection: sa.Connection, run_id: str, seen: Workspaces, *, limit: int) -> list[Relative]:
    """The newest runs that a run started, as far as they lie in the workspaces `seen`."""
    return _relatives(connection, (runs.c.parent_id == run_id) & runs.c.parent_id.is_not(None), limit, seen)


def list_forks(connection: sa.Connection, run_id: str, seen: Workspaces, *, limit: int) -> list[Relative]:
    """The newest forks of a run, as far as they lie in the workspaces `seen`."""
    return _relatives(connection, (runs.c.forked_from == run_id) & runs.c.forked_from.is_not(None), limit, seen)


def read_relatives(connection: sa.Connection, ids: Iterable[str], seen: Workspaces) -> dict[str, Relative]:
    """Those of the runs that there are, by id, as far as they lie in the workspaces `seen`."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    return {found.id: found for found in _relatives(connection, runs.c.id.in_(wanted), len(wanted), seen)}


def count_unfinished_children(connection: sa.Connection, run_id: str, seen: Workspaces) -> Count:
    """How many of the newest runs that a run started have not finished."""
    looked = (
        sa.select(runs.c.finished_at, runs.c.workspace)
        .where(runs.c.parent_id == run_id, runs.c.parent_id.is_not(None))
        .order_by(runs.c.id.desc())
        .limit(_CAP)
        .subquery()
    )
    unfinished = sa.func.count(sa.case((looked.c.finished_at.is_(None), 1)))
    query = sa.select(unfinished, sa.func.count()).select_from(looked)
    if seen is not None:
        query = query.where(looked.c.workspace.in_(seen))
    found, every = connection.execute(query).one()
    return Count(min(found, _CAP - 1), capped(every, _CAP).capped)
