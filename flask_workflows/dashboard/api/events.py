"""Events: those that were emitted, and emitting them."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from ... import service
from ...store import reading as read
from ..access import Permission
from ..answers import answer
from ..visit import Visit
from . import inputs
from .acts import by
from .acts import REASON
from .inputs import Given
from .inputs import Input
from .operation import api_get
from .operation import api_post
from .operation import Operation
from .operation import receiving_workspace
from .problems import told
from .shapes import event_shape


def events(visit: Visit, given: Given) -> ResponseReturnValue:
    cursor = given["cursor"]
    query = read.EventQuery(
        name=given["name"],
        state=given["state"],
        workspaces=visit.scope,
        limit=given["limit"],
        place=None if cursor is None else read.EventPlace.read(cursor),
    )
    with visit.reading() as connection:
        page = read.list_inbox(connection, query)
    return answer(
        {
            "events": [event_shape(event) for event in page.events],
            "older": None if page.older is None else str(page.older),
            "newer": None if page.newer is None else str(page.newer),
            "searched": page.searched,
        }
    )


def deliver(visit: Visit, given: Given) -> ResponseReturnValue:
    workspace = receiving_workspace(visit, given["workspace"])
    with told():
        number, created = service.deliver(
            visit.runtime,
            given["name"],
            given["payload"],
            workspace=workspace,
            delivery_id=given["delivery_id"],
            by=by(visit, Permission.DELIVER, given),
        )
    # Null where the event it repeats was pruned this very moment.
    event = {"id": number or None, "name": given["name"], "workspace_id": workspace, "created": created}
    return answer(event, 201 if created else 200)


def check(visit: Visit, given: Given) -> ResponseReturnValue:
    workspace = receiving_workspace(visit, given["workspace"])
    with told():
        found = service.would_wake(
            visit.runtime, given["name"], given["payload"], workspace=workspace, workspaces=visit.scope
        )
    return answer(
        {
            "run_ids": list(found.run_ids),
            "count": found.count.value,
            "capped": found.count.capped,
            "others": found.others.value,
            "others_capped": found.others.capped,
        }
    )


_EVENT = (
    Input("name", inputs.LABEL, "The event's name, as it is declared.", required=True),
    Input("payload", inputs.ANYTHING, "Any JSON value that the declared type takes."),
    Input("workspace", inputs.LABEL, "Only its runs are woken."),
)
_CODES = {400: ("invalid_workspace",), 404: ("unregistered_event",), 422: ("invalid_value", "value_too_large")}

ROUTES = (
    api_get(
        "/events",
        "events",
        Permission.VIEW,
        events,
        Operation(
            "The newest events",
            {200: "Events"},
            about="Without a name, messages to runs are among them.",
            query=(
                Input("name", inputs.LABEL, "Only events of this name."),
                Input("state", inputs.EVENT_STATE, "Only those that became this."),
                inputs.LIMIT,
                Input("cursor", inputs.EVENT_CURSOR, "`older` or `newer` of an answer."),
            ),
        ),
    ),
    api_post(
        "/events",
        "deliver",
        Permission.DELIVER,
        deliver,
        Operation(
            "Emit an event",
            {201: "Delivered", 200: "Delivered"},
            about="A repeated `delivery_id` is the same event, answered 200.",
            body=(*_EVENT, Input("delivery_id", inputs.LABEL, "The sender's own id."), REASON),
            errors=_CODES,
        ),
    ),
    api_post(
        "/events/check",
        "check",
        Permission.DELIVER,
        check,
        Operation("Which runs an event would wake", {200: "WouldWake"}, body=_EVENT, errors=_CODES),
    ),
)
