"""One run."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import url_for
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ... import service
from ...beside import look_beside
from ...payloads import DECODE_LIMIT
from ...runs import Run
from ...runs import RunStatus
from ...store import reading as read
from ..access import Permission
from ..pages.actions import Offers
from ..pages.actions import offers
from ..pages.actions import Scene
from ..pages.run import failed_step
from ..pages.run import Looked
from ..pages.run import MOST_KIN
from ..pages.run import run_page
from ..pages.run import SMALL
from ..routes import get
from ..timeline import draw
from ..timeline import Timeline
from ..visit import Visit
from .runs import back_to_list
from .runs import is_storable

STEPS_PER_PAGE = 200
#: Seconds between two looks of a page that is watched.
INTERVAL = 3
#: So much of what people did is shown.
HISTORY = 50
#: Pages that help most, by the name that an explanation has for them: label, endpoint, permission.
LINKS: Mapping[str, tuple[str, str, Permission]] = {
    "workers": ("Workers", "workers", Permission.VIEW),
    "start": ("Start one like this…", "ask_start", Permission.START),
    "deliver": ("Deliver event…", "ask_deliver", Permission.DELIVER),
}
STEP_STATES = ("completed", "failed", "running", "retrying", "sleeping", "waiting")
#: Beyond what is shown, so that secrets are seen whole before they are hidden.
_BEYOND = 2 * SMALL


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which steps the query string asks for."""

    start: int | None = None
    name: str | None = None
    state: str | None = None
    #: Whether waits stand in the timeline at their full length.
    whole_waits: bool = False

    @property
    def args(self) -> dict[str, str]:
        """As they stand in a query string."""
        waits = "full" if self.whole_waits else None
        given = {"steps": self.start, "step": self.name, "step_state": self.state, "waits": waits}
        return {name: str(value) for name, value in given.items() if value is not None}

    @property
    def filtered(self) -> bool:
        return self.name is not None or self.state is not None


def run(visit: Visit, run_id: str) -> ResponseReturnValue:
    wanted = read_wanted(visit.request.args)
    found = find(visit, run_id)
    if not isinstance(found, Run):
        return found

    looked = _look(visit, found, wanted)
    can = _offers(visit, looked)
    back = back_to_list(visit.request.args)
    return visit.page(
        "run",
        looked.around.now,
        run_page(looked, can, _links(visit, looked)),
        section="runs",
        poll={**back, **wanted.args},
        interval=INTERVAL,
        back=back,
        like=_may_start_like(visit, found),
        wanted=wanted,
        states=STEP_STATES,
        per_page=STEPS_PER_PAGE,
        timeline=_timeline(looked, wanted),
    )


def _look(visit: Visit, run: Run, wanted: Wanted) -> Looked:
    """Everything the page needs of a run, as far as the visitor may see it."""
    # The app is asked before a connection is held: it may need one itself.
    payloads = visit.may(Permission.VIEW_PAYLOAD, run)
    may_audit = visit.may(Permission.VIEW_AUDIT, run)
    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
        ahead = read.count_ahead(connection, run) if run.status is RunStatus.PENDING else None
        around = visit.surroundings(now, workers, ahead, run)
        steps, step_count = read.read_steps(
            connection, run.id, whole=STEPS_PER_PAGE, start=wanted.start, name=wanted.name, status=wanted.state
        )
        failed = failed_step(run, steps)
        heads = read.read_heads(connection, run.id, DECODE_LIMIT) if payloads else (None, None)
        history = read.list_audit(connection, run_id=run.id, limit=HISTORY) if may_audit else None
        open_steps = [step for step in steps if not step.finished]
        started = read.read_started(connection, run.id, [step.key for step in steps if step.kind == "start"])
        related = (*started.values(), *filter(None, (run.parent_id, run.forked_from)))
        return Looked(
            run=run,
            steps=steps,
            step_count=step_count,
            around=around,
            beside=look_beside(connection, run, open_steps, around, history=() if history is None else history.entries),
            input=heads[0],
            output=heads[1],
            cause=None if failed is None else read.read_step_error(connection, run.id, failed.key),
            same_cause=read.count_same_cause(connection, run, visit.scope),
            received=read.read_received(connection, run.id, payload_limit=_BEYOND if payloads else 0),
            published=read.read_published(connection, run.id, value_limit=_BEYOND),
            history=history,
            started=started,
            relatives=read.read_relatives(connection, related, visit.scope),
            children=read.list_children(connection, run.id, visit.scope, limit=MOST_KIN + 1),
            forks=read.list_forks(connection, run.id, visit.scope, limit=MOST_KIN + 1),
        )


def _links(visit: Visit, looked: Looked) -> Callable[[str], tuple[str, str] | None]:
    """Where the pages are that help most."""

    def link(name: str) -> tuple[str, str] | None:
        known = LINKS.get(name)
        if known is None or (name == "start" and not _may_start_like(visit, looked.run)):
            return None
        label, endpoint, permission = known
        names = [event.name for event in looked.beside.waited]
        values: dict[str, dict[str, Any]] = {
            "start": {"like": looked.run.id},
            "deliver": {"name": names[0] if names else None, "workspace": looked.run.workspace or None},
        }
        return (label, url_for(f".{endpoint}", **values.get(name, {}))) if visit.may(permission) else None

    return link


def _may_start_like(visit: Visit, run: Run) -> bool:
    """Whether the visitor may start a run with the input of this one, which has ended."""
    registry = visit.runtime.registry
    known = bool(registry.versions(run.workflow)) and not registry.is_own(run.workflow)
    return run.finished and known and visit.may(Permission.START) and visit.may(Permission.VIEW_PAYLOAD, run)


def _offers(visit: Visit, looked: Looked) -> Offers:
    open_steps = tuple(step for step in looked.steps if not step.finished)
    return offers(
        Scene(
            looked.run,
            open_steps,
            looked.step_count,
            looked.around,
            holder=looked.beside.holder,
            lost_after=service.lost_after(visit.runtime),
        ),
        visit.may,
        read_only=visit.read_only,
    )


def _timeline(looked: Looked, wanted: Wanted) -> Timeline | None:
    """Where there are all steps to compare."""
    if wanted.filtered or len(looked.steps) < looked.step_count:
        return None
    return draw(looked.steps, now=looked.around.now, shorten=not wanted.whole_waits)


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


def find_or_longer(
    visit: Visit, run_id: str, ending: str, permission: Permission = Permission.VIEW
) -> Run | ResponseReturnValue:
    """As `find`; where there is no such run, the page of one whose id goes on with what follows in the address.

    No id that this package makes does.
    """
    found = find(visit, run_id, permission)
    if not isinstance(found, Run) and isinstance(find(visit, f"{run_id}/{ending}"), Run):
        return run(visit, f"{run_id}/{ending}")
    return found


def read_wanted(args: MultiDict[str, str]) -> Wanted:
    """Which steps to show: from a number on, of a name, in a state; both ends of all where it says nothing."""
    start = args.get("steps", type=int)
    name, state = args.get("step", ""), args.get("step_state", "")
    return Wanted(
        start=None if start is None else min(max(start, 1), 1_000_000_000),
        name=name[:255] if name.strip() and is_storable(name) else None,
        state=state if state in STEP_STATES else None,
        whole_waits=args.get("waits") == "full",
    )


ROUTES = (get("/run/<path:run_id>", "run", Permission.VIEW, run),)
