"""One run."""

from __future__ import annotations

from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ...payloads import DECODE_LIMIT
from ...runs import Run
from ...runs import RunStatus
from ...store import reading as read
from .. import timeline
from ..access import Permission
from ..pages.actions import offers
from ..pages.actions import Scene
from ..pages.run import failed_step
from ..pages.run import run_page
from ..routes import get
from ..visit import Visit
from .runs import back_to_list
from .runs import is_storable

STEPS_PER_PAGE = 200
#: Seconds between two looks of a page that is watched.
INTERVAL = 3


def run(visit: Visit, run_id: str) -> ResponseReturnValue:
    start = read_start(visit.request.args)
    found = find(visit, run_id)
    if not isinstance(found, Run):
        return found

    with visit.reading() as connection:
        now = visit.now(connection)
        steps, step_count = read.read_steps(connection, run_id, whole=STEPS_PER_PAGE, start=start)
        input_head, output_head = read.read_heads(connection, run_id, DECODE_LIMIT)
        failed = failed_step(found, steps)
        cause = None if failed is None else read.read_step_error(connection, run_id, failed.key)
        workers = read.live_workers(connection, now)
        ahead = read.count_ahead(connection, found) if found.status is RunStatus.PENDING else None

    around = visit.surroundings(now, workers, ahead)
    open_steps = tuple(step for step in steps if not step.finished)
    page = run_page(
        found,
        steps,
        step_count,
        around,
        offers=offers(Scene(found, open_steps, step_count, around), visit.may),
        input=input_head,
        output=output_head,
        cause=cause,
    )
    back = back_to_list(visit.request.args)
    return visit.page(
        "run",
        now,
        page,
        section="runs",
        poll={**back, **({} if start is None else {"steps": str(start)})},
        interval=INTERVAL,
        back=back,
        start=start,
        per_page=STEPS_PER_PAGE,
        timeline=timeline.draw(steps, now=now) if len(steps) == step_count else None,
    )


def find(visit: Visit, run_id: str, permission: Permission = Permission.VIEW) -> Run | ResponseReturnValue:
    """The run, without its payloads, if the visitor may see it and do this with it; else what to answer."""
    if not is_storable(run_id):
        return visit.no_run(run_id)
    with visit.reading() as connection:
        found = read.read_run(connection, run_id, payloads=False)
    if found is None or not visit.sees(found.workspace):
        return visit.no_run(run_id)
    # The app is asked while no connection is held: it may need one itself.
    refusal = visit.refusal(Permission.VIEW, found)
    if refusal is None and permission is not Permission.VIEW:
        refusal = visit.refusal(permission, found)
    return found if refusal is None else refusal


def read_start(args: MultiDict[str, str]) -> int | None:
    """The number of the first step to show; null for both ends."""
    start = args.get("steps", type=int)
    return None if start is None else min(max(start, 1), 1_000_000_000)


ROUTES = (get("/run/<path:run_id>", "run", Permission.VIEW, run),)
