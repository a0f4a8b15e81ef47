"""What lies within a visitor's scope, for queries that must not walk past what lies outside it.

A scope is some workspaces, or null for all of them. Unfinished runs of a few workspaces are found through the index
that begins with the workspace. Runs of none have no such index: those of all are looked at, up to a bound, and the
others left out.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ...models import runs
from ...runs import RunStatus
from .rows import implied
from .rows import OWNED
from .rows import REMARKABLE
from .scope import Workspaces

#: Above this many workspaces, runs are not looked for workspace by workspace.
_MANY_WORKSPACES = 50


def within(column: sa.ColumnElement[Any], workspaces: Workspaces) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions that keep a column of workspaces within the scope."""
    return () if workspaces is None else (column.in_(workspaces),)


class Looked:
    """The runs of one unfinished status within a scope, of which the newest are looked at: at most about `most`."""

    def __init__(self, workspaces: Workspaces, status: RunStatus, most: int, *more: sa.ColumnElement[bool]) -> None:
        of_status = (runs.c.status == status.value, implied(REMARKABLE), *more)
        probes: list[tuple[tuple[sa.ColumnElement[bool], ...], str | None]] = []
        self._inside: Workspaces = None
        if workspaces is None:
            probes.append((of_status, None))
        elif len(workspaces) > _MANY_WORKSPACES:
            probes.append((of_status, None))
            self._inside = workspaces
        else:
            for workspace in workspaces:
                own = (runs.c.workspace == workspace, implied(OWNED), runs.c.status == status.value, *more)
                probes.append((own if workspace else of_status, workspace))
        self._probes = probes
        self.share = max(most // max(len(probes), 1), 50)

    def rows(self, *columns: sa.ColumnElement[Any]) -> sa.Subquery:
        """These columns of the runs, which are read for no more than were looked at."""
        members = []
        for conditions, workspace in self._probes:
            looked = self._looked(conditions, runs.c.workspace.label("_workspace"), *columns)
            member = sa.select(*(column for column in looked.c if column.name != "_workspace"))
            if workspace is not None:
                member = member.where(looked.c["_workspace"] == workspace)
            members.append(member.where(*within(looked.c["_workspace"], self._inside)))
        if not members:
            # A visitor without any workspace.
            members.append(sa.select(*columns).where(sa.false()))
        return (members[0] if len(members) == 1 else sa.union_all(*members)).subquery()

    def most(self) -> sa.Select[Any]:
        """Select how many were looked at for the workspace with the most; `share` of them may not have been all."""
        counts = [
            sa.select(sa.func.count().label("number")).select_from(self._looked(conditions, runs.c.id))
            for conditions, _ in self._probes
        ]
        if not counts:
            return sa.select(sa.literal(0))
        counted = sa.union_all(*counts).subquery()
        return sa.select(sa.func.max(counted.c.number))

    def _looked(self, conditions: tuple[sa.ColumnElement[bool], ...], *columns: sa.ColumnElement[Any]) -> sa.Subquery:
        return sa.select(*columns).where(*conditions).order_by(runs.c.id.desc()).limit(self.share).subquery()
