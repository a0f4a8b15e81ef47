"""What can be done to one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from flask import url_for
from flask.typing import ResponseReturnValue

from ... import service
from ...audit import By
from ...runs import Run
from ..access import Permission
from ..acting import REASON_LIMIT
from ..answers import answer
from ..routes import Route
from ..routes import View
from ..views.run import find
from ..visit import Visit
from . import inputs
from .inputs import Given
from .inputs import Input
from .inputs import Problem
from .operation import api_post
from .operation import Operation
from .problems import told
from .shapes import run_shape

#: Does something to a run; answers the run as it is afterwards.
Act = Callable[[Visit, Run, Given, By], Run]

EPOCH = Input(
    "epoch", inputs.whole_number(0, 2**31 - 1), "The run's, as you saw it: if it changed since, nothing is done."
)
REASON = Input("reason", inputs.text(REASON_LIMIT), "Why, for the audit.")


def by(visit: Visit, permission: Permission, given: Given) -> By:
    """Who acts and why. Raises `Problem` where the app asks for a reason and there is none."""
    reason = given["reason"] or ""
    if permission in visit.runtime.config.require_reason and not reason.strip():
        raise Problem("invalid_reason", "Say why, in `reason`: the app asks for it, and keeps it with what was done.")
    return replace(visit.by, reason=reason)


def cancel(visit: Visit, run: Run, given: Given, by: By) -> Run:
    return service.cancel(visit.runtime, run.id, given["epoch"], by=by, children=given["children"])


def retry(visit: Visit, run: Run, given: Given, by: By) -> Run:
    return service.retry(visit.runtime, run.id, given["epoch"], by=by, from_step=given["from_step"])


def wake(visit: Visit, run: Run, given: Given, by: By) -> Run:
    return service.wake(visit.runtime, run.id, given["epoch"], at=given["at"], by=by)


def pause(visit: Visit, run: Run, given: Given, by: By) -> Run:
    return service.pause(visit.runtime, run.id, given["epoch"], by=by)


def resume(visit: Visit, run: Run, given: Given, by: By) -> Run:
    return service.resume(visit.runtime, run.id, given["epoch"], by=by)


def release(visit: Visit, run: Run, given: Given, by: By) -> Run:
    return service.release(visit.runtime, run.id, given["epoch"], by=by)


def _acting(act: Act, permission: Permission) -> View:
    @wraps(act)
    def acting(visit: Visit, run_id: str, given: Given) -> ResponseReturnValue:
        found = find(visit, run_id, permission)
        if not isinstance(found, Run):
            return found
        with told():
            after = act(visit, found, given, by(visit, permission, given))
        return answer(run_shape(visit, after))

    return acting


def fork(visit: Visit, run_id: str, given: Given) -> ResponseReturnValue:
    found = find(visit, run_id, Permission.START)
    if not isinstance(found, Run):
        return found
    with told():
        who = by(visit, Permission.START, given)
        new = service.fork(visit.runtime, run_id, given["from_step"], who, epoch=given["epoch"])
        made = service.get(visit.runtime, new)
    # Whoever may see a run need not be one who may see those made of it.
    shape = run_shape(visit, made) if visit.may(Permission.VIEW, made) else {"id": new}
    return answer({**shape, "created": True}, 201, Location=url_for(".run", run_id=new))


def messages(visit: Visit, run_id: str, given: Given) -> ResponseReturnValue:
    found = find(visit, run_id, Permission.SEND)
    if not isinstance(found, Run):
        return found
    with told():
        created = service.send(
            visit.runtime,
            run_id,
            given["name"],
            json.dumps(given["payload"]),
            delivery_id=given["delivery_id"],
            by=by(visit, Permission.SEND, given),
        )
    return answer({"run_id": run_id, "name": given["name"], "created": created}, 201 if created else 200)


def _route(
    act: Act,
    permission: Permission,
    summary: str,
    *codes: str,
    body: tuple[Input, ...] = (),
    missing: tuple[str, ...] = (),
    about: str = "",
) -> Route:
    operation = Operation(
        summary,
        {200: "Run"},
        body=(*body, EPOCH, REASON),
        errors={404: ("workflow_run_not_found", *missing), 409: (*codes, "workflow_run_changed")},
        about=about,
    )
    return api_post(f"/runs/<run_id>/{act.__name__}", act.__name__, permission, _acting(act, permission), operation)


_CALL = "The key of a recorded call."
_FORK = Operation(
    "Start a new run that takes over what a run recorded before a call, and goes on from there",
    {201: "StartedRun"},
    about="The other run stays as it is. The new one has its workflow, version, input, queue and workspace, but no key.",
    body=(Input("from_step", inputs.LABEL, f"{_CALL} The new run makes it anew.", required=True), EPOCH, REASON),
    errors={
        404: ("workflow_run_not_found", "workflow_step_not_found", "workflow_not_registered"),
        409: ("workflow_run_compensated", "workflow_run_changed"),
    },
    located=True,
)
_MESSAGE = Operation(
    "Send a message to a run",
    {201: "Sent", 200: "Sent"},
    about="It is kept until the run receives it. A repeated `delivery_id` is the same message, answered 200.",
    body=(
        Input("name", inputs.LABEL, "What the run receives it by.", required=True),
        Input("payload", inputs.ANYTHING, "Any JSON value."),
        Input("delivery_id", inputs.LABEL, "The sender's own id."),
        REASON,
    ),
    errors={
        404: ("workflow_run_not_found",),
        409: ("workflow_run_finished",),
        422: ("invalid_value", "value_too_large"),
    },
)

ROUTES: tuple[Route, ...] = (
    _route(
        cancel,
        Permission.CANCEL,
        "End a run, at once or before its next step",
        "workflow_run_finished",
        body=(Input("children", inputs.FLAG, "Whether the runs it started end with it.", default=True),),
    ),
    _route(
        retry,
        Permission.RETRY,
        "Run a failed or cancelled run again from where it stopped",
        "workflow_run_not_failed",
        "workflow_run_compensated",
        "key_taken",
        body=(Input("from_step", inputs.LABEL, f"{_CALL} It and what came after it are forgotten, and made anew."),),
        missing=("workflow_step_not_found",),
    ),
    api_post("/runs/<run_id>/fork", "fork", Permission.START, fork, _FORK),
    _route(
        wake,
        Permission.WAKE,
        "End a run's sleep now, or at another instant",
        "workflow_run_not_sleeping",
        "workflow_run_finished",
        body=(Input("at", inputs.INSTANT, "When it shall wake instead of now."),),
    ),
    _route(
        pause,
        Permission.PAUSE,
        "Let nothing new of a run be executed until it is resumed",
        "workflow_run_finished",
        about="One that is executed now stops before its next step. A paused run stays as it is, and is the answer.",
    ),
    _route(resume, Permission.PAUSE, "Let a paused run go on", "workflow_run_not_paused"),
    _route(release, Permission.RELEASE, "Let another worker take over the run of a lost one", "workflow_run_not_lost"),
    api_post("/runs/<run_id>/messages", "messages", Permission.SEND, messages, _MESSAGE),
)
