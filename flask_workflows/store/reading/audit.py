"""What people did."""

from __future__ import annotations

import sqlalchemy as sa

from ...models import audit
from ...names import is_clean
from ...runs import AuditEntry
from ...runs import AuditPage
from ...runs import Cursor
from .rows import instant

#: How many entries are looked through for an actor, an action or a workspace, which no index knows.
SCAN = 10_000


def list_audit(
    connection: sa.Connection,
    *,
    run_id: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    workspaces: tuple[str, ...] | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> AuditPage:
    """Entries of one run or of all, newest first. Raises `InvalidCursor`.

    Those of an actor, an action or some workspaces are looked for among the next `SCAN` entries; a page that ended
    early for that says so in `searched`.
    """
    if not all(is_clean(text) for text in (run_id, actor, action, *(workspaces or ())) if text is not None):
        return AuditPage(())
    place = None if cursor is None else Cursor.read(cursor)
    newer = place is not None and place.newer
    looked = sa.select(audit).order_by(audit.c.id if newer else audit.c.id.desc()).limit(SCAN)
    if run_id is not None:
        looked = looked.where(audit.c.run_id == run_id)
    if place is not None:
        looked = looked.where(audit.c.id > place.id if newer else audit.c.id < place.id)

    wanted = {"actor": actor, "action": action}
    filtered = workspaces is not None or any(value is not None for value in wanted.values())
    among = looked.subquery()
    query = sa.select(among).order_by(among.c.id if newer else among.c.id.desc()).limit(limit + 1)
    for name, value in wanted.items():
        if value is not None:
            query = query.where(among.c[name] == value)
    if workspaces is not None:
        query = query.where(among.c.workspace.in_(workspaces))
    found = [_entry(row) for row in connection.execute(query if filtered else looked.limit(limit + 1)).mappings()]

    more = len(found) > limit
    found = found[:limit]
    edge = None
    if more:
        edge = found[-1].id
    elif filtered:
        edge = connection.scalar(looked.with_only_columns(audit.c.id).limit(1).offset(SCAN - 1))
    if newer and edge is None:
        # The newest page is always a full one.
        return list_audit(connection, run_id=run_id, actor=actor, action=action, workspaces=workspaces, limit=limit)
    return _page(found, edge, place, searched=SCAN if edge is not None and not more else None)


def _page(found: list[AuditEntry], edge: str | None, place: Cursor | None, *, searched: int | None) -> AuditPage:
    """`found` in the order it was looked for, which goes on beyond `edge` where there is one."""
    start = None if place is None else place.id
    if place is not None and place.newer:
        nearest = found[0].id if found else start
        return AuditPage(
            tuple(reversed(found)),
            older=None if nearest is None else str(Cursor(False, nearest)),
            newer=None if edge is None else str(Cursor(True, edge)),
            searched=searched,
        )
    # A page that is empty leads back to where it began.
    first = found[0].id if found else start
    return AuditPage(
        tuple(found),
        older=None if edge is None else str(Cursor(False, edge)),
        newer=None if place is None or first is None else str(Cursor(True, first)),
        searched=searched,
    )


def _entry(row: sa.RowMapping) -> AuditEntry:
    return AuditEntry(**{**row, "at": instant(row["at"])})
