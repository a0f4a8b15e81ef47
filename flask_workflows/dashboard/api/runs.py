"""The list of runs, and one run."""

from __future__ import annotations

from flask.typing import ResponseReturnValue

from ...runs import Run
from ...runs import RunQuery
from ...store import reading as read
from ..access import Permission
from ..answers import answer
from ..views.run import find
from ..views.runs import SCAN
from ..visit import Visit
from . import inputs
from .inputs import Given
from .inputs import Input
from .inputs import Problem
from .operation import api_get
from .operation import enter
from .operation import Operation
from .shapes import relative_shape
from .shapes import run_in_list
from .shapes import run_shape
from .shapes import step_shape

STEPS = 1_000
#: Of the runs it started, and of its forks.
RELATIVES = 100


def runs(visit: Visit, given: Given) -> ResponseReturnValue:
    if given["workspace"] is not None:
        enter(visit, given["workspace"])
    query = RunQuery(
        workflow=given["workflow"],
        workspace=visit.scope,
        status=given["status"],
        queue=given["queue"],
        key=given["key"],
        created_after=given["created_after"],
        created_before=given["created_before"],
        limit=given["limit"],
        cursor=given["cursor"],
    )
    with visit.reading() as connection:
        page = read.list_runs(connection, query, scan=SCAN, real_time=visit.real_time)
    return answer(
        {
            "runs": [run_in_list(run) for run in page.runs],
            "older": page.older,
            "newer": page.newer,
            "searched": page.searched,
        }
    )


def run(visit: Visit, run_id: str, given: Given) -> ResponseReturnValue:
    found = find(visit, run_id)
    if not isinstance(found, Run):
        return found
    payloads = visit.may(Permission.VIEW_PAYLOAD, found)
    with visit.reading() as connection:
        whole = read.read_run(connection, run_id, payloads=payloads)
        page = read.read_step_page(
            connection, run_id, after=given["steps_after"], limit=given["steps_limit"], payloads=payloads
        )
        children = read.list_children(connection, run_id, visit.scope, limit=RELATIVES)
        forks = read.list_forks(connection, run_id, visit.scope, limit=RELATIVES)
    if whole is None:
        return visit.no_run(run_id)
    if page is None:
        raise Problem("workflow_step_not_found", f"The run has no step {given['steps_after']!r}.", 404)
    return answer(
        {
            **run_shape(visit, whole),
            "steps": [step_shape(visit, step, page.waits.get(step.key), payloads=payloads) for step in page.steps],
            "step_count": page.total,
            "steps_after": page.after,
            "children": [relative_shape(one) for one in children],
            "forks": [relative_shape(one) for one in forks],
        }
    )


_LIST = Operation(
    "List runs, newest first",
    {200: "Runs"},
    query=(
        Input("workflow", inputs.LABEL, "Only runs of this workflow."),
        Input("status", inputs.STATUS, "Only runs in this status."),
        Input("queue", inputs.LABEL, "Only runs in this queue."),
        Input("key", inputs.LABEL, "Only runs started with this key."),
        Input("workspace", inputs.LABEL, "Only runs of this workspace."),
        Input("created_after", inputs.INSTANT, "Only runs created then or later."),
        Input("created_before", inputs.INSTANT, "Only runs created before."),
        inputs.LIMIT,
        Input("cursor", inputs.CURSOR, "`older` or `newer` of an answer."),
    ),
)
_ONE = Operation(
    "One run with its steps",
    {200: "RunWithSteps"},
    query=(
        Input(
            "steps_after", inputs.LABEL, "The key of a step: go on after it, as the last answer's `steps_after` says."
        ),
        Input("steps_limit", inputs.whole_number(1, STEPS), "How many steps at most.", default=STEPS),
    ),
    errors={404: ("workflow_run_not_found", "workflow_step_not_found")},
)

ROUTES = (
    api_get("/runs", "runs", Permission.VIEW, runs, _LIST),
    api_get("/runs/<run_id>", "run", Permission.VIEW, run, _ONE),
)
