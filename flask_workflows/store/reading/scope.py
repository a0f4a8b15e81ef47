"""Runs of one status, as far as a visitor may see them: the newest, and no more than a bounded number looked at."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...runs import RunStatus
from .rows import Conditions
from .rows import OWNED
from .rows import REMARKABLE

#: How many runs of a status are looked at where more would be too many.
LOOKED_AT = 10_000

#: A scope of more workspaces is not looked through one by one.
_MANY_WORKSPACES = 50

Workspaces = tuple[str, ...] | None


def newest(
    status: RunStatus, workspaces: Workspaces, *columns: sa.ColumnElement[Any], limit: int | None = LOOKED_AT
) -> sa.Subquery:
    """The newest runs of a status in some workspaces, or in all for null; `id` and the columns.

    Each workspace has an index of its own to be looked through. Runs of no workspace have not, nor have completed runs
    of all: they are among the newest `limit` runs of the status, or of every status.
    """
    chosen = (runs.c.id, *columns)
    if workspaces is None:
        return _everywhere(status, None, chosen, limit).subquery("newest")

    named = [workspace for workspace in workspaces if workspace]
    if len(named) > _MANY_WORKSPACES:
        return _everywhere(status, workspaces, chosen, limit).subquery("newest")
    members = [
        _ordered((runs.c.workspace == workspace, OWNED, runs.c.status == status.value), chosen, limit)
        for workspace in named
    ]
    if "" in workspaces:
        members.append(_everywhere(status, ("",), chosen, limit))
    if not members:
        return sa.select(*chosen).where(sa.false()).subquery("newest")
    # A member with an order and a limit must be a table of its own.
    return sa.union_all(*(sa.select(member.subquery()) for member in members)).subquery("newest")


def _everywhere(
    status: RunStatus, workspaces: Workspaces, columns: tuple[Any, ...], limit: int | None
) -> sa.Select[Any]:
    matches: list[Any] = []
    probe: Conditions = (runs.c.status == status.value, REMARKABLE)
    if status is RunStatus.COMPLETED:
        probe = ()
        matches.append(runs.c.status)
    if workspaces is not None:
        matches.append(runs.c.workspace)
    if not matches:
        return _ordered(probe, columns, limit)

    named = {column.name for column in columns}
    looked = _ordered(probe, (*columns, *(c for c in matches if c.name not in named)), limit).subquery()
    chosen = sa.select(*(looked.c[column.name] for column in columns))
    if status is RunStatus.COMPLETED:
        chosen = chosen.where(looked.c.status == status.value)
    return chosen if workspaces is None else chosen.where(looked.c.workspace.in_(workspaces))


def _ordered(conditions: Conditions, columns: tuple[Any, ...], limit: int | None) -> sa.Select[Any]:
    return sa.select(*columns).where(*conditions).order_by(runs.c.id.desc()).limit(limit)
