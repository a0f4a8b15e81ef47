"""What can be done to one run from its page: each action asks on a page of its own, and is done by a POST there."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from datetime import datetime

from flask.typing import ResponseReturnValue

from ... import service
from ...errors import KeyBusy
from ...errors import KeyTaken
from ...explain import Text
from ...runs import Run
from ...store import reading as read
from ..acting import CONFLICTS
from ..acting import Form
from ..pages.actions import action_page
from ..pages.actions import ACTIONS
from ..pages.actions import meanwhile
from ..pages.actions import RunAction
from ..pages.actions import Scene
from ..routes import get
from ..routes import post
from ..routes import Route
from ..routes import View
from ..visit import Visit
from .run import find
from .run import run as show_run
from .run import STEPS_PER_PAGE
from .runs import back_to_list

#: Does an action as it stood on a page of that epoch, and answers what to say of it. Raises one of `CONFLICTS`.
Do = Callable[[Visit, Run, int, Form], str]


def _cancel(visit: Visit, run: Run, epoch: int, form: Form) -> str:
    after = service.cancel(visit.runtime, run.id, epoch)
    if after.cancelling:
        return "Cancelling was asked for. The run stops at its next step."
    return "The run is cancelled."


_DO: Mapping[str, Do] = {"cancel": _cancel}


def _asking(action: RunAction) -> View:
    def ask(visit: Visit, run_id: str) -> ResponseReturnValue:
        found = find(visit, run_id, action.permission)
        if not isinstance(found, Run):
            # The address of a run whose id ends like this one; ids made by this package do not.
            longer = f"{run_id}/{action.name}"
            return show_run(visit, longer) if isinstance(find(visit, longer), Run) else found
        return _page(visit, action, found, Form(visit, action.permission))

    return ask


def _doing(action: RunAction, act: Do) -> View:
    def do(visit: Visit, run_id: str) -> ResponseReturnValue:
        found = find(visit, run_id, action.permission)
        if not isinstance(found, Run):
            return found
        form = Form(visit, action.permission)
        epoch = form.number("epoch")
        if epoch is None:
            form.refuse(
                "epoch", "The form came without what it was drawn from. Look again at what it says, and send it."
            )
        if not form.ok or epoch is None:
            return _page(visit, action, found, form)
        try:
            told = act(visit, found, epoch, form)
        except CONFLICTS as error:
            return _page(visit, action, found, form, conflict=error)
        return visit.done(told, ".run", run_id=run_id, **back_to_list(visit.request.args))

    return do


def _page(
    visit: Visit, action: RunAction, run: Run, form: Form, *, conflict: Exception | None = None
) -> ResponseReturnValue:
    """The page that asks: 200 the first time, 422 where the form is wrong, 409 where things are not as they were."""
    now, scene = _look(visit, run)
    since: Text = ()
    if isinstance(conflict, KeyTaken | KeyBusy):
        since = (str(conflict), ". Nothing was done.")
    elif conflict is not None:
        since = meanwhile(scene, form.text("status"))
    page = action_page(action, scene, meanwhile=since)
    status_code = 409 if conflict is not None or page.ask is None else 422 if form.errors else 200
    return visit.page(
        "action",
        now,
        page,
        section="runs",
        status_code=status_code,
        action=action.name,
        form=form,
        back=back_to_list(visit.request.args),
    )


def _look(visit: Visit, run: Run) -> tuple[datetime, Scene]:
    """The run as it is now."""
    with visit.reading() as connection:
        now = visit.now(connection)
        run = read.read_run(connection, run.id, payloads=False) or run
        steps, step_count = read.read_steps(connection, run.id, whole=STEPS_PER_PAGE)
        workers = read.live_workers(connection, now)
    open_steps = tuple(step for step in steps if not step.finished)
    return now, Scene(run, open_steps, step_count, visit.surroundings(now, workers))


def _routes() -> Iterator[Route]:
    for action in ACTIONS:
        rule, permission = f"/run/<path:run_id>/{action.name}", action.permission
        yield get(rule, f"ask_{action.name}", permission, _asking(action))
        yield post(rule, action.name, permission, _doing(action, _DO[action.name]))


ROUTES: tuple[Route, ...] = tuple(_routes())
