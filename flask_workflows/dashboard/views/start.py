"""Starting a run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flask.typing import ResponseReturnValue

from ... import service
from ...definition import Workflow
from ...durations import read_duration
from ...durations import to_ms
from ...errors import InvalidDuration
from ...errors import InvalidName
from ...errors import KeyBusy
from ...errors import UndecodableValue
from ...errors import ValueRefused
from ...explain import Text
from ...names import check_label
from ...names import new_id
from ...payloads import copied
from ...payloads import DECODE_LIMIT
from ...runs import Run
from ...store import reading as read
from ...values import loads
from .. import once
from ..access import Permission
from ..acting import Form
from ..pages.start import choose_page
from ..pages.start import start_page
from ..pages.start import StartPage
from ..routes import get
from ..routes import post
from ..visit import Visit
from .registry import missing_modules
from .run import find


def ask(visit: Visit) -> ResponseReturnValue:
    """The form, filled in with the input of another run where one is named; without a workflow, the choice of one."""
    form = Form(visit, Permission.START)
    like = visit.request.args.get("like")
    if like:
        found = find(visit, like, Permission.VIEW_PAYLOAD)
        return _ask_like(visit, form, found) if isinstance(found, Run) else found
    name = visit.request.args.get("workflow")
    if not name:
        return _page(visit, form, choose_page(visit.runtime.registry.names()))
    workflow = _workflow(visit, name)
    if workflow is None:
        return _unknown(visit, name)
    return _page(visit, form, start_page(visit.runtime, workflow, workspaces=visit.scope))


def _ask_like(visit: Visit, form: Form, run: Run) -> ResponseReturnValue:
    workflow = _workflow(visit, run.workflow)
    if workflow is None:
        return _unknown(visit, run.workflow)
    input, notice = _copy(visit, run)
    page = start_page(
        visit.runtime,
        workflow,
        workspaces=visit.scope,
        workspace=run.workspace,
        like=run.id,
        input=input,
        notice=notice,
    )
    return _page(visit, form, page)


def _copy(visit: Visit, run: Run) -> tuple[str | None, Text]:
    """The run's input; null where it is not to be copied, and why."""
    with visit.reading() as connection:
        head, _ = read.read_heads(connection, run.id, DECODE_LIMIT)
    if head is None or not head.whole:
        return None, ("The input of that run is too long for this form, so it is not copied.",)
    text = copied(head.text)
    if text is None:
        return None, ("The input of that run has hidden values, so it is not copied. Fill it in yourself.",)
    return text, ()


def start(visit: Visit) -> ResponseReturnValue:
    form = Form(visit, Permission.START)
    name = form.text("workflow")
    workflow = _workflow(visit, name)
    if workflow is None:
        return _unknown(visit, name)
    given = _Given(visit, form)
    if not form.ok or given.once is None:
        return _again(visit, form, workflow)
    try:
        run_id, created = service.start(
            visit.runtime,
            name,
            given.input,
            key=given.key,
            workspace=given.workspace,
            delay=given.delay,
            deadline=given.deadline,
            run_id=given.once.run_id,
            by=visit.by,
        )
    except (UndecodableValue, ValueRefused) as error:
        form.refuse("input", _sentence(str(error).removeprefix(f"{workflow.where}: ")))
        return _again(visit, form, workflow)
    except KeyBusy as error:
        form.refuse("key", _sentence(str(error)))
        return _again(visit, form, workflow, status_code=409)
    return _lead(visit, run_id, _told(workflow, given, run_id, created))


def _told(workflow: Workflow[Any, Any], given: _Given, run_id: str, created: bool) -> str:
    if created:
        return f"Started {workflow.name}."
    if given.once is not None and run_id == given.once.run_id:
        return "This run was started already, by the same form. It was started once."
    return f"Nothing was started: this run has the key {given.key} and has not finished."


def _lead(visit: Visit, run_id: str, told: str) -> ResponseReturnValue:
    # Whoever may start runs need not be one who may look at them.
    if visit.may(Permission.VIEW):
        return visit.done(told, ".run", run_id=run_id)
    return visit.done(f"{told} Its id is {run_id}.", ".ask_start")


class _Given:
    """What the form says, as far as it can be told without starting anything. What is wrong is said in the form."""

    def __init__(self, visit: Visit, form: Form) -> None:
        self._form = form
        self.input: Any = self._read_input()
        self.key = self._label("key")
        self.workspace = self._read_workspace(visit)
        self.delay = self._read_duration("delay")
        self.deadline = self._read_duration("deadline")
        self.once = read_once(visit, form)

    def _read_input(self) -> Any:
        try:
            value = loads(self._form.text("input").strip() or "{}")
        except UndecodableValue as error:
            self._form.refuse("input", f"The input is {error}.")
            return None
        if not isinstance(value, dict):
            self._form.refuse("input", "The input must be a JSON object: the arguments by name.")
        return value

    def _label(self, name: str) -> str | None:
        text = self._form.text(name).strip()
        if not text:
            return None
        try:
            return check_label(text, name)
        except InvalidName as error:
            self._form.refuse(name, _sentence(str(error)))
            return None

    def _read_workspace(self, visit: Visit) -> str | None:
        workspace = self._label("workspace")
        if visit.scope is not None and (workspace or "") not in visit.scope:
            self._form.refuse("workspace", "Choose one of your workspaces: you see no other.")
        return workspace

    def _read_duration(self, name: str) -> timedelta | None:
        text = self._form.text(name).strip()
        if not text:
            return None
        try:
            length = read_duration(text)
            if not to_ms(length, what=f"the {name}") and name == "deadline":
                self._form.refuse(name, "Give it some time: 1 s at least.")
        except InvalidDuration as error:
            self._form.refuse(name, _sentence(str(error)))
            return None
        return length


def read_once(visit: Visit, form: Form) -> once.Once | None:
    """The id that a form carries for its run; one that was used is good for ever, as it starts nothing."""
    found = once.read(form.text("once"), visit.actor)
    if found is None:
        form.refuse("once", "The form came without its mark. Nothing was started: look it over, and send it.")
    elif found.stale and not _is_there(visit, found.run_id):
        form.refuse("once", "The form was open for long. Nothing was started: look it over, and send it.")
    return found


def mark_once(visit: Visit, form: Form) -> str:
    """What a form is to carry: the id it came with, a new one where that cannot be used."""
    kept = once.read(form.text("once"), visit.actor)
    if kept is not None and not kept.stale:
        return form.text("once")
    return once.seal(new_id(visit.runtime.workflows.clock_ms()), visit.actor)


def _is_there(visit: Visit, run_id: str) -> bool:
    with visit.reading() as connection:
        return read.read_run(connection, run_id, payloads=False) is not None


def _again(visit: Visit, form: Form, workflow: Workflow[Any, Any], *, status_code: int = 422) -> ResponseReturnValue:
    """The form with what was typed."""
    like = form.text("like") or None
    page = start_page(visit.runtime, workflow, workspaces=visit.scope, like=like, input=form.text("input"))
    return _page(visit, form, page, status_code=status_code)


def _page(visit: Visit, form: Form, page: StartPage, *, status_code: int = 200) -> ResponseReturnValue:
    with visit.reading() as connection:
        now = visit.now(connection)
    mark = mark_once(visit, form)
    return visit.page("start", now, page, section="runs", status_code=status_code, form=form, once=mark)


def _workflow(visit: Visit, name: str) -> Workflow[Any, Any] | None:
    registry = visit.runtime.registry
    versions = [] if registry.is_own(name) else registry.versions(name)
    return versions[0] if versions else None


def _unknown(visit: Visit, name: str) -> ResponseReturnValue:
    return visit.message(
        "no_workflow.html",
        404,
        code="workflow_not_registered",
        words=f"There is no workflow {name[:200]} in this process.",
        name=name[:200],
        missing=missing_modules(visit.runtime),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if text.endswith(".") else f"{text[:1].upper()}{text[1:]}."


ROUTES = (get("/runs/new", "ask_start", Permission.START, ask), post("/runs/new", "start", Permission.START, start))
