"""What an event would wake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from ...matching import hash_in
from ...matching import MESSAGES
from ...models import runs
from ...models import waits
from ...runs import Count
from ...runs import WouldWake
from ..event_statements import SHAPES
from .rows import capped
from .rows import Conditions

#: How many run ids are told, and where counting stops.
SHOWN = 20
_CAP = 1_001
#: How many waits of the name are looked at to say how many others there are.
_LOOKED = 10_000


def waits_for(
    connection: sa.Connection, name: str, payload: Any, workspace: str, workspaces: tuple[str, ...] | None
) -> WouldWake:
    """The open waits that an event of this name and payload would end, in the order of their runs.

    An event emitted from now on comes after every wait that is stored, so their fields and values decide. Looked up
    through the index that workers match by, one set of fields after the other, and counted up to 1,000.
    """
    visible = _visible(name, workspaces)
    matching = [
        sa.select(waits.c.run_id)
        .where(*visible, waits.c.fields == fields, waits.c.values_hash == values_hash, *_of_workspace(workspace))
        .order_by(waits.c.workspace, waits.c.run_id)
        .limit(_CAP)
        .subquery()
        for fields, values_hash in _shapes(connection, name, payload)
    ]
    run_ids: list[str] = []
    if matching:
        found = sa.union(*(sa.select(each.c.run_id) for each in matching)).subquery()
        # A run asked to be cancelled is woken by nothing.
        query = (
            sa.select(runs.c.id)
            .join(found, found.c.run_id == runs.c.id)
            .where(runs.c.finished_at.is_(None), runs.c.cancel_requested_at.is_(None))
            .order_by(runs.c.id)
            .limit(_CAP)
        )
        run_ids = list(connection.scalars(query))
    count = capped(len(run_ids), _CAP)
    return WouldWake(tuple(run_ids[:SHOWN]), count, _others(connection, name, workspaces, count.value))


def _others(connection: sa.Connection, name: str, workspaces: tuple[str, ...] | None, matching: int) -> Count:
    """How many runs wait for the name beside those, of the first so many waits."""
    named = sa.select(waits.c.run_id, waits.c.workspace, waits.c.fields).where(waits.c.name == name)
    looked = named.limit(_LOOKED).subquery()
    visible = looked.c.fields != MESSAGES
    if workspaces is not None:
        visible = sa.and_(visible, looked.c.workspace.in_(workspaces))
    waiting = sa.func.count(sa.distinct(sa.case((visible, looked.c.run_id))))
    found, rows = connection.execute(sa.select(waiting, sa.func.count()).select_from(looked)).one()
    return Count(max(0, found - matching), capped=rows >= _LOOKED)


def _visible(name: str, workspaces: tuple[str, ...] | None) -> Conditions:
    named = waits.c.name == name
    return (named,) if workspaces is None else (named, waits.c.workspace.in_(workspaces))


def _of_workspace(workspace: str) -> Conditions:
    # An event of no workspace may be received by the runs of all.
    return (waits.c.workspace == workspace,) if workspace else ()


def _shapes(connection: sa.Connection, name: str, payload: Any) -> Iterator[tuple[str, str]]:
    """Each set of fields that is waited for under this name, with the hash of the payload's values there."""
    for (fields,) in connection.execute(sa.text(SHAPES), {"name": name}):
        values_hash = None if fields == MESSAGES else hash_in(payload, fields)
        if values_hash is not None:
            yield fields, values_hash
