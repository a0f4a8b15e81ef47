"""Runs of one status, as far as a visitor may see them: the newest, and no more than a bounded number looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...runs import Count
from ...runs import RunStatus
from .rows import Conditions
from .rows import implied
from .rows import OWNED
from .rows import REMARKABLE

#: How many runs of a status are looked at where more would be too many.
LOOKED_AT = 10_000

#: A scope of more workspaces is not looked through one by one.
_MANY_WORKSPACES = 50

Workspaces = tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Member:
    """Runs that one index finds in the order of ids. What no index knows of them is left to be compared."""

    conditions: Conditions
    status: RunStatus | None = None
    workspaces: Workspaces = None

    def newest(self, columns: tuple[sa.ColumnElement[Any], ...], limit: int | None) -> sa.Select[Any]:
        compared = {"status": self.status, "workspace": self.workspaces}
        named = {column.name for column in columns}
        more = [runs.c[name] for name, value in compared.items() if value is not None and name not in named]
        found = sa.select(*columns, *more).where(*self.conditions).order_by(runs.c.id.desc()).limit(limit)
        if self.status is None and self.workspaces is None:
            return found
        looked = found.subquery()
        chosen = sa.select(*(looked.c[column.name] for column in columns))
        if self.status is not None:
            chosen = chosen.where(looked.c.status == self.status.value)
        return chosen if self.workspaces is None else chosen.where(looked.c.workspace.in_(self.workspaces))

    def beyond(self, limit: int) -> sa.Select[Any]:
        """The first run that `newest` does not look at."""
        return sa.select(runs.c.id).where(*self.conditions).order_by(runs.c.id.desc()).offset(limit).limit(1)


def is_narrow(workspaces: tuple[str, ...]) -> bool:
    """Whether the index on workspaces finds all of their runs."""
    return "" not in workspaces and len(workspaces) <= _MANY_WORKSPACES


def _members(status: RunStatus, workspaces: Workspaces) -> Iterator[_Member]:
    if workspaces is None or len(workspaces) > _MANY_WORKSPACES:
        yield _everywhere(status, workspaces)
        return
    for workspace in filter(None, workspaces):
        yield _Member((runs.c.workspace == workspace, implied(OWNED), runs.c.status == status.value))
    if "" in workspaces:
        yield _everywhere(status, ("",))


def _everywhere(status: RunStatus, workspaces: Workspaces) -> _Member:
    if status is RunStatus.COMPLETED:
        # No index holds the completed ones of all workflows.
        return _Member((), status, workspaces)
    return _Member((runs.c.status == status.value, implied(REMARKABLE)), None, workspaces)


def newest(
    status: RunStatus, workspaces: Workspaces, *columns: sa.ColumnElement[Any], limit: int | None = LOOKED_AT
) -> sa.Subquery:
    """The newest runs of a status in some workspaces, or in all for null; `id` and the columns.

    Each workspace has an index of its own to be looked through. Runs of no workspace have not, nor have completed runs
    of all: they are among the newest `limit` runs of the status, or of every status.
    """
    chosen = (runs.c.id, *columns)
    members = [member.newest(chosen, limit) for member in _members(status, workspaces)]
    if not members:
        return sa.select(*chosen).where(sa.false()).subquery("newest")
    if len(members) == 1:
        return members[0].subquery("newest")
    # A member with an order and a limit must be a table of its own.
    merged = sa.union_all(*(sa.select(member.subquery()) for member in members)).subquery()
    return sa.select(merged).order_by(merged.c.id.desc()).limit(limit).subquery("newest")


def looked_at(connection: sa.Connection, status: RunStatus, workspaces: Workspaces) -> Count:
    """How many runs `newest` finds; capped where it does not look at all there are."""
    found = sa.select(sa.func.count()).select_from(newest(status, workspaces)).scalar_subquery()
    beyond = [member.beyond(LOOKED_AT).subquery() for member in _members(status, workspaces)]
    if not beyond:
        return Count(0)
    more = sa.exists(sa.union_all(*(sa.select(one.c.id) for one in beyond)))
    count, is_cut = connection.execute(sa.select(found, more)).one()
    return Count(count, capped=bool(is_cut) or (len(beyond) > 1 and count >= LOOKED_AT))
