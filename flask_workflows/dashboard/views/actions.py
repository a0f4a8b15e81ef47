"""What can be done to one run from its page: each action asks on a page of its own, and is done by a POST there."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from datetime import datetime
from datetime import timedelta
from datetime import tzinfo
from datetime import UTC
from typing import NamedTuple
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from flask.typing import ResponseReturnValue

from ... import phrases
from ... import service
from ...beside import look_beside
from ...errors import InvalidName
from ...errors import KeyBusy
from ...errors import KeyTaken
from ...errors import RunNotLost
from ...errors import UndecodableValue
from ...errors import ValueRefused
from ...explain import Text
from ...runs import AuditEntry
from ...runs import Count
from ...runs import Run
from ...runs import Step
from ...store import reading as read
from ..access import Permission
from ..acting import CONFLICTS
from ..acting import Form
from ..acting import Wrong
from ..pages.actions import action_page
from ..pages.actions import ACTIONS
from ..pages.actions import meanwhile
from ..pages.actions import NO_CHILDREN
from ..pages.actions import RunAction
from ..pages.actions import Scene
from ..pages.repeating import MOST_CALLS
from ..presentation import Viewer
from ..routes import get
from ..routes import post
from ..routes import Route
from ..routes import View
from ..visit import Visit
from .run import find
from .run import find_or_longer
from .run import STEPS_PER_PAGE
from .runs import back_to_list
from .start import mark_once
from .start import read_once

#: Nobody means to move a timer further.
FURTHEST = timedelta(days=36_500)


class Looked(NamedTuple):
    """The run as it is now, and what was done to it last."""

    scene: Scene
    last: AuditEntry | None


class Made(NamedTuple):
    """What to say of an action that made a run, and its id."""

    told: str
    run_id: str


#: Does an action, as its page was drawn of that epoch, and answers what to say of it. Raises one of `CONFLICTS`, or
#: `Wrong`.
Do = Callable[[Visit, Scene, int | None, Form], str | Made]


def _cancel(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    children = not form.text("keep_children")
    after = service.cancel(visit.runtime, scene.run.id, epoch, by=visit.by, children=children)
    if after.cancelling:
        return "Cancelling was asked for. The run stops at its next step."
    return "The run is cancelled."


def _retry(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    service.retry(visit.runtime, scene.run.id, epoch, by=visit.by, from_step=scene.from_key or None)
    return f"The run is retried{_from(scene)}. It is pending."


def _fork(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> Made:
    if not scene.from_key:
        raise Wrong("from_step", "Choose the call to go on from.")
    once = read_once(visit, form)
    if once is None or not form.ok:
        raise Wrong("once", form.errors["once"])
    new = service.fork(visit.runtime, scene.run.id, scene.from_key, visit.by, epoch=epoch, new=once.run_id)
    return Made(f"Forked{_from(scene)}. This is the new run.", new)


def _from(scene: Scene) -> str:
    return f" from {scene.from_words}" if scene.from_key else ""


def _wake(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    service.wake(visit.runtime, scene.run.id, epoch, by=visit.by)
    return "The next try is made now." if scene.state == "retrying" else "The run wakes now."


def _move(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    zone = zone_of(form)
    at = read_instant(form.text("at"), zone, now=scene.around.now)
    service.wake(visit.runtime, scene.run.id, epoch, at=at, by=visit.by)
    when = phrases.instant(at, now=scene.around.now, zone=zone)
    return f"The timer is moved to {when} ({getattr(zone, 'key', 'UTC')})."


def _pause(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    after = service.pause(visit.runtime, scene.run.id, epoch, by=visit.by)
    return (
        "The run is paused." if after.worker is None else "Pausing was asked for. The run stops before its next step."
    )


def _resume(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    service.resume(visit.runtime, scene.run.id, epoch, by=visit.by)
    return "The run is resumed."


def _release(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    service.release(visit.runtime, scene.run.id, epoch, by=visit.by)
    return "The lease is released. The next free worker takes the run over."


def _send(visit: Visit, scene: Scene, epoch: int | None, form: Form) -> str:
    name, payload = form.text("name"), form.text("payload")
    try:
        created = service.send(visit.runtime, scene.run.id, name, payload, delivery_id=f"form:{form.once}", by=visit.by)
    except InvalidName as error:
        raise Wrong("name", f"{error}.") from None
    except UndecodableValue as error:
        raise Wrong("payload", f"{error}. Write JSON: a number, a text in quotes, null, a list or an object.") from None
    except ValueRefused as error:
        raise Wrong("payload", f"{error}.") from None
    return f"The message {name} is sent." if created else f"The message {name} was sent before, and only then."


_DO: Mapping[str, Do] = {
    "cancel": _cancel,
    "retry": _retry,
    "fork": _fork,
    "wake": _wake,
    "move": _move,
    "pause": _pause,
    "resume": _resume,
    "release": _release,
    "send": _send,
}


def zone_of(form: Form) -> tzinfo:
    """The zone that a form's times are in, as it says itself. Raises `Wrong`."""
    name = form.text("zone", "UTC")
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise Wrong("at", f"There is no time zone {name[:50]!r}.") from None


def read_instant(text: str, zone: tzinfo, *, now: datetime) -> datetime:
    """The instant typed as a local time. Raises `Wrong` for one there is not, or that is not to come."""
    try:
        local = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Wrong("at", "Write a date and a time, as in 2026-12-04T09:00.") from None
    if local.tzinfo is not None:
        raise Wrong("at", "Leave the zone out: the time is in the zone named here.")
    try:
        at = local.replace(tzinfo=zone).astimezone(UTC)
        there = at.astimezone(zone).replace(tzinfo=None) == local
    except (OverflowError, ValueError):
        raise Wrong("at", "That is further than a timer goes.") from None
    if not there:
        raise Wrong("at", "There is no such time in this zone: the clocks are put forward over it.")
    if at <= now:
        raise Wrong("at", "That is past. To end the sleep at once, go back and wake the run now.")
    if at > now + FURTHEST:
        raise Wrong("at", "That is further than a timer goes.")
    return at


def _asking(action: RunAction) -> View:
    def ask(visit: Visit, run_id: str) -> ResponseReturnValue:
        found = find_or_longer(visit, run_id, action.name, action.permission)
        if not isinstance(found, Run):
            return found
        looked = _look(visit, action, found, visit.request.args.get("from_step", ""))
        if not looked.scene.from_known:
            words = f"The run has no recorded call {looked.scene.from_key[:255]}."
            return visit.message("no_step.html", 404, code="workflow_step_not_found", words=words, run_id=run_id)
        return _page(visit, action, looked, Form(visit, action.permission))

    return ask


def _doing(action: RunAction, act: Do) -> View:
    def do(visit: Visit, run_id: str) -> ResponseReturnValue:
        found = find(visit, run_id, action.permission)
        if not isinstance(found, Run):
            return found
        form = Form(visit, action.permission)
        epoch = form.number("epoch")
        if epoch is None and action.as_shown:
            form.refuse("epoch", "The form came without what it was drawn from. Read what it says, and send it again.")
        from_key = form.text("from_step")
        looked = _look(visit, action, found, from_key)
        if action.cannot(looked.scene):
            return _page(visit, action, looked, form, since=_since(looked, form))
        if form.ok:
            try:
                told = act(visit, looked.scene, epoch if action.as_shown else None, form)
                if isinstance(told, Made):
                    return visit.done(told.told, ".run", run_id=told.run_id)
                return visit.done(told, ".run", run_id=run_id, **back_to_list(visit.request.args))
            except Wrong as error:
                form.refuse(error.field, error.words)
            except CONFLICTS as error:
                looked = _look(visit, action, found, from_key)
                return _page(visit, action, looked, form, since=_since(looked, form, error))
        return _page(visit, action, looked, form)

    return do


def _since(looked: Looked, form: Form, error: Exception | None = None) -> Text:
    """What happened since the form was drawn, so that nothing was done."""
    if isinstance(error, KeyTaken | KeyBusy | RunNotLost):
        return (f"{error}. Nothing was done.",)
    return meanwhile(looked.scene, form.text("status"), looked.last)


def _page(visit: Visit, action: RunAction, looked: Looked, form: Form, *, since: Text = ()) -> ResponseReturnValue:
    """The page that asks: 200 the first time, 422 where the form is wrong, 409 where things are not as they were."""
    page = action_page(action, looked.scene, meanwhile=since)
    status_code = 409 if since or page.ask is None else 422 if form.errors else 200
    return visit.page(
        "action",
        looked.scene.around.now,
        page,
        section="runs",
        status_code=status_code,
        action=action.name,
        form=form,
        planned=_planned(visit, looked.scene),
        once=mark_once(visit, form) if action.name == "fork" else form.once,
        back=back_to_list(visit.request.args),
    )


def _planned(visit: Visit, scene: Scene) -> str:
    """When the run is due, as a field for a local time holds it."""
    viewer = Viewer.of(visit.request, scene.around.now)
    due_at = scene.run.due_at
    return "" if due_at is None else f"{phrases.local(due_at, viewer.zone):%Y-%m-%dT%H:%M:%S}"


def _look(visit: Visit, action: RunAction, run: Run, from_key: str) -> Looked:
    # Asked before a connection is held, and then known.
    visit.may(Permission.VIEW_PAYLOAD, run)
    may_audit = visit.may(Permission.VIEW_AUDIT, run)
    with visit.reading() as connection:
        now = visit.now(connection)
        run = read.read_run(connection, run.id, payloads=False) or run
        steps, step_count = read.read_steps(connection, run.id, whole=STEPS_PER_PAGE)
        workers = read.live_workers(connection, now)
        around = visit.surroundings(now, workers, run=run)
        open_steps = tuple(step for step in steps if not step.finished)
        beside = look_beside(connection, run, open_steps, around)
        calls = read.read_calls(connection, run.id, limit=MOST_CALLS + 1) if action.tells_calls else ()
        from_known = not from_key or any(call.key == from_key for call in calls)
        scene = Scene(
            run,
            open_steps,
            step_count,
            around,
            holder=beside.holder,
            lost_after=service.lost_after(visit.runtime),
            calls=calls,
            awaited=tuple(event.name for event in beside.waited) if _receives(open_steps) else (),
            from_key=from_key,
            from_known=from_known or read.has_call(connection, run.id, from_key),
            children=_children(connection, visit, run) if action.name == "cancel" else NO_CHILDREN,
            own=visit.runtime.registry.is_own(run.workflow),
        )
        done = read.list_audit(connection, run_id=run.id, limit=1).entries if may_audit else ()
    return Looked(scene, done[0] if done else None)


def _children(connection: sa.Connection, visit: Visit, run: Run) -> Count:
    return read.count_unfinished_children(connection, run.id, visit.scope)


def _receives(open_steps: tuple[Step, ...]) -> bool:
    return any(step.kind == "receive" and step.status == "waiting" for step in open_steps)


def _routes() -> Iterator[Route]:
    for action in ACTIONS:
        rule, permission = f"/run/<path:run_id>/{action.name}", action.permission
        yield get(rule, f"ask_{action.name}", permission, _asking(action))
        yield post(rule, action.name, permission, _doing(action, _DO[action.name]))


ROUTES: tuple[Route, ...] = tuple(_routes())
