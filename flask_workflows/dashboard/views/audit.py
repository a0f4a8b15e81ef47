"""What people did."""

from __future__ import annotations

from collections.abc import Mapping

from flask.typing import ResponseReturnValue

from ...errors import InvalidCursor
from ...errors import ReadTimeout
from ...runs import AuditPage
from ...store import reading as read
from ..access import Permission
from ..pages.audit import ACTIONS
from ..pages.audit import audit_list
from ..routes import get
from ..visit import Visit

FILTERS = ("actor", "action", "run", "cursor")
ROWS = 50


def audit(visit: Visit) -> ResponseReturnValue:
    given = {name: value for name in FILTERS if (value := visit.request.args.get(name, "").strip())}
    with visit.reading() as connection:
        now = visit.now(connection)
    try:
        found = _list(visit, given)
    except InvalidCursor as error:
        return visit.message("refused.html", 422, code="invalid_cursor", words=str(error))
    return visit.page(
        "audit", now, audit_list(found), section="audit", poll=given, interval=15, filters=given, actions=ACTIONS
    )


def _list(visit: Visit, given: Mapping[str, str]) -> AuditPage | None:
    """Null where looking takes too long."""
    try:
        with visit.reading() as connection:
            return read.list_audit(
                connection,
                run_id=given.get("run"),
                actor=given.get("actor"),
                action=given.get("action"),
                workspaces=visit.scope,
                limit=ROWS,
                cursor=given.get("cursor"),
            )
    except ReadTimeout:
        return None


ROUTES = (get("/audit", "audit", Permission.VIEW_AUDIT, audit),)
