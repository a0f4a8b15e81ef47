"""What people did."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from ...store import reading as read
from ..access import Permission
from ..answers import answer
from ..visit import Visit
from . import inputs
from .inputs import Given
from .inputs import Input
from .operation import api_get
from .operation import Operation
from .shapes import audit_shape


def audit(visit: Visit, given: Given) -> ResponseReturnValue:
    with visit.reading() as connection:
        page = read.list_audit(
            connection,
            run_id=given["run_id"],
            actor=given["actor"],
            action=given["action"],
            workspaces=visit.scope,
            limit=given["limit"],
            cursor=given["cursor"],
        )
    return answer(
        {
            "entries": [audit_shape(entry) for entry in page.entries],
            "older": page.older,
            "newer": page.newer,
            "searched": page.searched,
        }
    )


ROUTES = (
    api_get(
        "/audit",
        "audit",
        Permission.VIEW_AUDIT,
        audit,
        Operation(
            "What people did, newest first",
            {200: "Audit"},
            query=(
                Input("run_id", inputs.LABEL, "Only what was done to this run."),
                Input("actor", inputs.LABEL, "Only what this person did."),
                Input("action", inputs.LABEL, "Only this action."),
                inputs.LIMIT,
                Input("cursor", inputs.CURSOR, "`older` or `newer` of an answer."),
            ),
        ),
    ),
)
