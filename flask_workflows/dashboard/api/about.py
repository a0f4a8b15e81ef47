"""What there is beside runs: workflows, workers, the token, health."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from flask.typing import ResponseReturnValue

from ...errors import DatabaseUnreachable
from ...errors import SchemaError
from ...records import instant
from ...store import reading as read
from .. import csrf
from ..access import Permission
from ..answers import answer
from ..answers import problem
from ..visit import Visit
from .inputs import Given
from .operation import api_get
from .operation import Operation
from .shapes import worker_shape
from .shapes import workflow_shape


def workflows(visit: Visit, given: Given) -> ResponseReturnValue:
    runtime = visit.runtime
    return answer(
        {"workflows": [workflow_shape(workflow, runtime.config.queue) for workflow in runtime.registry.workflows()]}
    )


def workers(visit: Visit, given: Given) -> ResponseReturnValue:
    with visit.reading() as connection:
        live = read.live_workers(connection, visit.now(connection))
    return answer({"workers": [worker_shape(worker) for worker in live]})


def token(visit: Visit, given: Given) -> ResponseReturnValue:
    if not csrf.can_act():
        return problem("no_secret_key", "The app has no SECRET_KEY, which tokens are signed with. Set one.", 503)
    return answer({"header": csrf.HEADER, "token": csrf.token(visit.actor), "expires_in": csrf.SECONDS})


def health(visit: Visit, given: Given) -> ResponseReturnValue:
    health = {"status": "failing", "database": "failing", "schema": None, "message": None} | _NOBODY_LOOKED
    try:
        visit.runtime.check_schema()
        health |= {"database": "ok", "schema": "ok", **_work(visit), "status": "ok"}
    except DatabaseUnreachable:
        health["message"] = "The database does not answer."
    except SchemaError as error:
        health |= {"database": "ok", "schema": "failing", "message": visit.without_address(error)}
    except sa.exc.SQLAlchemyError as error:
        health["message"] = f"The database could not be read: {type(error).__name__}."
    return answer(health, 200 if health["status"] == "ok" else 503)


_NOBODY_LOOKED: dict[str, Any] = {"workers": None, "oldest_due_at": None}


def _work(visit: Visit) -> dict[str, Any]:
    with visit.reading() as connection:
        now = visit.now(connection)
        if visit.scope is not None:
            # How busy others are, is not for visitors of some workspaces.
            return _NOBODY_LOOKED
        return {
            "workers": len(read.live_workers(connection, now)),
            "oldest_due_at": instant(read.oldest_due(connection, now)),
        }


ROUTES = (
    api_get(
        "/workflows",
        "workflows",
        Permission.VIEW,
        workflows,
        Operation("The workflows this process knows", {200: "Workflows"}),
    ),
    api_get("/workers", "workers", Permission.VIEW, workers, Operation("The live workers", {200: "Workers"})),
    api_get(
        "/token",
        "token",
        Permission.VIEW,
        token,
        Operation("A token for requests that send cookies", {200: "Token"}, errors={503: ("no_secret_key",)}),
    ),
    api_get(
        "/health",
        "health",
        Permission.VIEW,
        health,
        Operation("Whether the database answers, and who works", {200: "Health", 503: "Health"}),
    ),
)
