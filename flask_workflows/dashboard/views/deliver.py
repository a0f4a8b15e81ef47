"""Delivering an event by hand: looked at first, then done once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from typing import NoReturn

from flask.typing import ResponseReturnValue

from ... import service
from ...errors import InvalidName
from ...errors import UnregisteredEvent
from ...errors import ValueRefused
from ...names import check_label
from ...runs import WouldWake
from ...store import reading as read
from ..access import Permission
from ..acting import Form
from ..pages.deliver import Checked
from ..pages.deliver import checked
from ..pages.deliver import deliver_page
from ..routes import get
from ..routes import post
from ..visit import Visit
from .runs import is_storable


@dataclass(frozen=True, slots=True)
class Typed:
    """An event as it was typed, and understood."""

    name: str
    workspace: str | None
    payload: Any
    #: The same for what was typed the same.
    mark: str


def ask(visit: Visit) -> ResponseReturnValue:
    return _page(visit, Form(visit, Permission.DELIVER))


def deliver(visit: Visit) -> ResponseReturnValue:
    form = Form(visit, Permission.DELIVER)
    looks = form.text("do") != "deliver"
    if looks:
        # A reason is for what is done.
        form.errors.clear()
    typed = _read(visit, form)
    found = None if typed is None else _look(visit, form, typed)
    if typed is None or found is None or not form.ok:
        return _page(visit, form, None if found is None else found[1])
    changed = not looks and form.text("checked") != typed.mark
    if looks or changed:
        return _page(visit, form, found[1], changed=changed)

    seq, created = service.deliver(
        visit.runtime,
        typed.name,
        typed.payload,
        workspace=typed.workspace,
        # What was typed is in it: sent twice it is one event, sent again with other values it is another.
        delivery_id=f"page:{form.once}:{typed.mark}",
        by=visit.by,
    )
    told = (
        "The event is delivered." if created else "This event had been delivered already. It was not delivered twice."
    )
    return visit.done(told, ".event", event_id=seq) if seq else visit.done(told, ".events")


# What was typed ----------------------------------------------------------------------------


def _read(visit: Visit, form: Form) -> Typed | None:
    """What was typed; null where something is wrong with it, which then stands in the form."""
    name = form.text("name").strip()
    workspace = _read_workspace(visit, form)
    payload = _read_payload(form)
    if not name or not is_storable(name):
        form.refuse("name", "Write the name of an event that the app declares.")
    else:
        try:
            visit.runtime.workflows.events.find(name)
        except UnregisteredEvent:
            form.refuse("name", f"No event {name[:100]!r} is declared in this app.")
    if form.errors.keys() & {"name", "workspace", "payload"}:
        return None
    typed = json.dumps([name, workspace, payload], sort_keys=True)
    mark = hashlib.blake2b(typed.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return Typed(name, workspace or None, payload, mark)


def _read_workspace(visit: Visit, form: Form) -> str:
    workspace = form.text("workspace").strip()
    if not workspace and visit.scope is not None:
        form.refuse(
            "workspace", "Choose a workspace: an event of none wakes runs of all, also of those you may not see."
        )
    elif workspace and not visit.sees(workspace):
        form.refuse("workspace", f"You may not see a workspace {workspace[:100]!r}.")
    elif workspace:
        try:
            check_label(workspace, "workspace")
        except InvalidName as error:
            form.refuse("workspace", f"{error}.")
    return workspace


def _read_payload(form: Form) -> Any:
    text = form.text("payload")
    if not text.strip():
        form.refuse("payload", "Write a JSON value; null for nothing.")
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        form.refuse("payload", f"This is no JSON: line {error.lineno}, column {error.colno}: {error.msg}.")
    except (ValueError, RecursionError) as error:
        form.refuse("payload", f"This is no JSON that can be stored: {error}.")
    return None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


# What it would do --------------------------------------------------------------------------


def _look(visit: Visit, form: Form, typed: Typed) -> tuple[WouldWake, Checked] | None:
    """What the event would do; null where its payload does not fit, which then stands in the form."""
    try:
        found = service.would_wake(
            visit.runtime, typed.name, typed.payload, workspace=typed.workspace, workspaces=visit.scope
        )
    except ValueRefused as error:
        form.refuse("payload", f"{error}.")
        return None
    with visit.reading() as connection:
        workflows = read.workflows_of(connection, found.run_ids)
    return found, checked(typed.mark, found, workflows)


def _page(visit: Visit, form: Form, found: Checked | None = None, *, changed: bool = False) -> ResponseReturnValue:
    with visit.reading() as connection:
        now = visit.now(connection)
    args = visit.request.args
    name = form.text("name", args.get("name", "")).strip()
    page = deliver_page(name, visit.runtime.workflows.events.types(), visit.scope, checked=found, changed=changed)
    return visit.page(
        "deliver",
        now,
        page,
        section="events",
        status_code=422 if form.errors else 200,
        form=form,
        workspace=form.text("workspace", args.get("workspace", "")),
    )


ROUTES = (
    get("/events/new", "ask_deliver", Permission.DELIVER, ask),
    post("/events/new", "deliver", Permission.DELIVER, deliver),
)
