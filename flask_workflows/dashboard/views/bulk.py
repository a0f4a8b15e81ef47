"""One action on many runs: those ticked in the list, or all that match its filter.

The page that asks freezes which runs are meant: their ids, or the filter with the newest of them, so that later
arrivals are left out. What it froze travels through the form signed, with the id of the run that will do it, so that
a form sent twice does it once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from flask import current_app
from flask.typing import ResponseReturnValue
from itsdangerous import BadData
from itsdangerous import URLSafeTimedSerializer

from ... import operations
from ... import service
from ...audit import By
from ...errors import InvalidCursor
from ...errors import RunFinished
from ...errors import UndecodableValue
from ...names import is_clean
from ...names import new_id
from ...operations import BULK
from ...operations import MOST
from ...operations import Order
from ...operations import Tally
from ...redaction import redact_text
from ...runs import Run
from ...runs import RunQuery
from ...store import reading as read
from ..access import Permission
from ..acting import Form
from ..pages.bulk import confirm_page
from ..pages.bulk import headline
from ..pages.bulk import KINDS
from ..pages.bulk import Operation
from ..pages.bulk import SAMPLES
from ..routes import get
from ..routes import post
from ..visit import Visit
from .run import find
from .runs import FilterError
from .runs import how_to_look
from .runs import read_filters
from .runs import SCAN

_SALT = "flask_workflows.bulk"
_SECONDS = 3_600
#: Ids in one form.
_TICKED = 200
#: What is said to be done by an order that cannot be read.
_UNREADABLE = "Unreadable order of"


def confirm(visit: Visit) -> ResponseReturnValue:
    """The page that asks."""
    given = visit.request.form
    action = given.get("action", "")
    if action not in KINDS:
        words = f"There is no action {action[:50]!r} on many runs. Write one of {', '.join(KINDS)}."
        return visit.message("refused.html", 422, code="invalid_action", words=words)
    refusal = visit.refusal(KINDS[action].permission)
    if refusal is not None:
        return refusal
    try:
        order = _ordered(visit, action)
    except (FilterError, InvalidCursor) as error:
        return visit.message("refused.html", 422, code="invalid_filter", words=str(error))
    return _ask(visit, order, new_id(), Form(visit, KINDS[action].permission, sent=False))


def _ordered(visit: Visit, action: str) -> Order:
    """What the list's form asks for, frozen now. Raises `FilterError` and `InvalidCursor`."""
    given = visit.request.form
    if not given.get("all"):
        ticked = tuple(dict.fromkeys(run_id for run_id in given.getlist("run") if is_clean(run_id)))
        if not ticked:
            raise FilterError("No run is ticked. Tick some, or tick “All that match”.")
        if len(ticked) > _TICKED:
            raise FilterError(f"{len(ticked)} runs are ticked; {_TICKED} is the most at once.")
        return Order(action, visit.by, runs=_permitted(visit, action, ticked), scope=visit.scope)
    with visit.reading() as connection:
        now = visit.now(connection)
    filters = read_filters(visit, given, now)
    query = replace(filters.query, cursor=None, limit=50)
    with visit.reading() as connection:
        newest = read.list_runs(connection, replace(query, limit=1), scan=SCAN, **how_to_look(visit)).runs
    return Order(action, visit.by, query=query, until=newest[0].id if newest else None, scope=visit.scope)


def _permitted(visit: Visit, action: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the runs that are there for the visitor, and that they may do this to."""
    return tuple(run_id for run_id in ids if isinstance(find(visit, run_id, KINDS[action].permission), Run))


def _ask(visit: Visit, order: Order, operation: str, form: Form) -> ResponseReturnValue:
    with visit.reading() as connection:
        now = visit.now(connection)
        if order.query is None:
            shares = read.split_listed(connection, order.runs)
            samples = [run for run_id in order.runs if (run := read.read_run(connection, run_id, payloads=False))]
        else:
            shares = read.split_runs(
                connection, order.query, cap=MOST + 1, scan=SCAN, until=order.until, **how_to_look(visit)
            )
            few = replace(order.query, limit=SAMPLES)
            samples = list(read.list_runs(connection, few, scan=SCAN, until=order.until, **how_to_look(visit)).runs)
    page = confirm_page(order.action, shares, samples)
    return visit.page(
        "bulk",
        now,
        page,
        section="runs",
        status_code=422 if form.errors else 200,
        form=form,
        order=_seal(visit, order, operation),
    )


def start(visit: Visit) -> ResponseReturnValue:
    """Order what the page showed."""
    opened = _unseal(visit, visit.request.form.get("order", ""))
    if opened is None:
        words = "The form is older than an hour, or is not one of these pages'. Go back to the list, and ask again."
        return visit.message("refused.html", 422, code="invalid_order", words=words)
    order, operation = opened
    kind = KINDS[order.action]
    refusal = visit.refusal(kind.permission)
    if refusal is not None:
        return refusal

    form = Form(visit, kind.permission)
    expected = _expected(visit, order)
    if expected > 100 and form.text("number").replace(",", "").strip() != str(expected):
        form.refuse("number", f"Type {expected:,} to say that so many are meant.")
    if not form.ok:
        return _ask(visit, order, operation, form)
    order = replace(order, by=visit.by)
    _, created = service.start(
        visit.runtime, BULK, operations.input_of(order, expected), run_id=operation, by=visit.by, own=True
    )
    told = f"{kind.noun} {expected:,} runs." if created else "This was ordered already."
    return visit.done(told, ".operation", run_id=operation)


def _expected(visit: Visit, order: Order) -> int:
    kind = KINDS[order.action]
    with visit.reading() as connection:
        if order.query is None:
            shares = read.split_listed(connection, order.runs)
        else:
            shares = read.split_runs(
                connection, order.query, cap=MOST + 1, scan=SCAN, until=order.until, **how_to_look(visit)
            )
    return min(sum(share.count for share in shares if share.status in kind.statuses), MOST)


def listed(visit: Visit) -> ResponseReturnValue:
    """The newest operations."""
    audited = visit.may(Permission.VIEW_AUDIT)
    with visit.reading() as connection:
        now = visit.now(connection)
        page = read.list_runs(connection, RunQuery(workflow=BULK, limit=100), payloads=True, real_time=visit.real_time)
        rows = tuple(_operation(connection, run, audited=audited) for run in page.runs if _sees(visit, run))
    return visit.page("operations", now, rows, section="runs")


def operation(visit: Visit, run_id: str) -> ResponseReturnValue:
    """One operation, while it goes on and after."""
    run = _find(visit, run_id)
    if run is None:
        return visit.no_run(run_id)
    audited = visit.may(Permission.VIEW_AUDIT)
    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
        shown = _operation(connection, run, audited=audited)
    shown = replace(shown, now=headline(shown, workers=bool(workers) or visit.runtime.inline))
    return visit.page("operation", now, shown, section="runs", interval=3, linked=visit.sees(run.workspace))


def stop(visit: Visit, run_id: str) -> ResponseReturnValue:
    """Let an operation end before its next runs."""
    found = _find(visit, run_id)
    if found is None:
        return visit.no_run(run_id)
    if found.finished:
        return visit.done("It had ended already.", ".operation", run_id=run_id)
    with suppress(RunFinished):
        service.cancel(visit.runtime, run_id, by=visit.by)
    return visit.done("It stops after the runs it is at.", ".operation", run_id=run_id)


def _find(visit: Visit, run_id: str) -> Run | None:
    """The operation, if the visitor may see it."""
    with visit.reading() as connection:
        run = read.read_run(connection, run_id)
    return run if run is not None and run.workflow == BULK and _sees(visit, run) else None


def _sees(visit: Visit, run: Run) -> bool:
    """Whether all that an operation may touch lies in the visitor's scope."""
    order, _ = _order_of(run)
    return visit.scope is None or (order.scope is not None and set(order.scope) <= set(visit.scope))


def _order_of(run: Run) -> tuple[Order, int]:
    """The order; of one that cannot be read, one of nothing, for those who see all workspaces."""
    try:
        return operations.order_of(run)
    except UndecodableValue:
        return Order(_UNREADABLE, By("")), 0


def _tally_of(run: Run) -> Tally | None:
    try:
        return operations.tally_of(run)
    except UndecodableValue:
        return None


def _operation(connection: sa.Connection, run: Run, *, audited: bool) -> Operation:
    """What became of it; who ordered it and why stand in the audit too, and are for those who may see that."""
    order, expected = _order_of(run)
    tally = _tally_of(run)
    progress = read.read_progress(connection, run.id)
    done = read.count_operation(connection, run.id, cap=MOST + 1).value
    return Operation(
        id=run.id,
        state="stopping" if run.cancelling else run.status,
        noun=KINDS[order.action].noun if order.action in KINDS else order.action,
        actor=order.by.actor if audited else "",
        reason=redact_text(order.by.reason) if audited else "",
        created_at=run.created_at,
        finished_at=run.finished_at,
        seen=tally.seen if tally is not None else max(int(progress), done),
        expected=expected,
        done=done,
        skipped=None if tally is None else max(tally.seen - tally.refused - done, 0),
        refused=None if tally is None else tally.refused,
        problem="" if tally is None else tally.problem or "",
        now=(),
    )


# What travels in the form ------------------------------------------------------------------


def _seal(visit: Visit, order: Order, operation: str) -> str:
    if not current_app.secret_key:
        return ""
    return _serializer().dumps([operations.order_json(order), operation, visit.actor, visit.scope])


def _unseal(visit: Visit, text: str) -> tuple[Order, str] | None:
    """What was frozen, if this visitor was given it."""
    try:
        found: Any = _serializer().loads(text, max_age=_SECONDS)
    except BadData:
        return None
    order, operation, actor, scope = found
    if actor != visit.actor or scope != (None if visit.scope is None else list(visit.scope)):
        return None
    return operations.order_from(order), operation


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(current_app.secret_key or "", salt=_SALT)


ROUTES = (
    post("/ops/confirm", "bulk_confirm", Permission.BULK, confirm),
    get("/ops", "operations", Permission.VIEW, listed),
    post("/ops", "bulk_start", Permission.BULK, start),
    get("/ops/<run_id>", "operation", Permission.VIEW, operation),
    post("/ops/<run_id>/stop", "stop_operation", Permission.BULK, stop),
)
