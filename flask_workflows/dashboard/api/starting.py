"""Starting runs."""

from __future__ import annotations

from flask import url_for
from flask.typing import ResponseReturnValue

from ... import service
from ..access import Permission
from ..answers import answer
from ..visit import Visit
from . import inputs
from .acts import by
from .acts import REASON
from .inputs import Given
from .inputs import Input
from .operation import api_post
from .operation import Operation
from .operation import receiving_workspace
from .problems import told
from .shapes import run_shape


def start(visit: Visit, given: Given) -> ResponseReturnValue:
    workspace = receiving_workspace(visit, given["workspace"])
    with told():
        run_id, created = service.start(
            visit.runtime,
            given["workflow"],
            given["input"] or {},
            key=given["key"],
            workspace=workspace,
            delay=given["delay"],
            deadline=given["deadline"],
            by=by(visit, Permission.START, given),
        )
        run = service.get(visit.runtime, run_id)
    # Whoever may start runs need not be one who may look at them.
    shape = run_shape(visit, run) if visit.may(Permission.VIEW, run) else {"id": run_id}
    return answer({**shape, "created": created}, 201 if created else 200, Location=url_for(".run", run_id=run_id))


ROUTES = (
    api_post(
        "/runs",
        "start",
        Permission.START,
        start,
        Operation(
            "Start a run of a workflow",
            {201: "StartedRun", 200: "StartedRun"},
            about="While an unfinished run of this workflow and workspace has the key, that run is the answer, with 200.",
            body=(
                Input("workflow", inputs.LABEL, "Its name.", required=True),
                Input("input", inputs.OBJECT, "Its arguments by name."),
                Input("key", inputs.LABEL, "At most one unfinished run has it."),
                Input("workspace", inputs.LABEL, "The workspace the run belongs to."),
                Input("delay", inputs.SECONDS, "For how many seconds it sleeps first."),
                Input("deadline", inputs.LENGTH, "Within how many seconds it must have finished; then it fails."),
                REASON,
            ),
            errors={
                400: ("invalid_workspace",),
                404: ("workflow_not_registered",),
                409: ("key_busy",),
                422: ("invalid_value", "value_too_large"),
            },
            located=True,
        ),
    ),
)
