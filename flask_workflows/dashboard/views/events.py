"""The inbox of events, and one event."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace

from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from ...errors import InvalidCursor
from ...errors import ReadTimeout
from ...payloads import DECODE_LIMIT
from ...runs import Run
from ...store import reading as read
from ...store.reading.events import EventPage
from ...store.reading.events import EventPlace
from ...store.reading.events import EventQuery
from ...store.reading.events import EventState
from ..access import Permission
from ..pages.events import event_page
from ..pages.events import events_page
from ..routes import get
from ..visit import Visit
from .run import find
from .runs import FilterError
from .runs import is_storable

_ARGS = ("name", "workspace", "state", "cursor")


@dataclass(frozen=True, slots=True)
class EventFilters:
    """What of the query string says which events are listed."""

    query: EventQuery
    args: Mapping[str, str]


def events(visit: Visit) -> ResponseReturnValue:
    try:
        filters = read_event_filters(visit.request.args, visit.scope)
    except (FilterError, InvalidCursor) as error:
        return visit.message("refused.html", 422, code="invalid_filter", words=str(error))

    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
    page, waited = _read(visit, filters.query)
    return visit.page(
        "events",
        now,
        events_page(page, waited, visit.surroundings(now, workers), scoped=visit.scope is not None),
        section="events",
        poll=filters.args,
        names=visit.runtime.workflows.events.names(),
        states=tuple(EventState),
    )


def _read(visit: Visit, query: EventQuery) -> tuple[EventPage | None, frozenset[str]]:
    try:
        with visit.reading() as connection:
            page = read.list_inbox(connection, query)
            unmatched = {event.name for event in page.events if event.state is EventState.UNMATCHED}
            return page, read.waited_names(connection, unmatched, query.workspaces)
    except ReadTimeout:
        return None, frozenset()


def read_event_filters(args: MultiDict[str, str], scope: tuple[str, ...] | None) -> EventFilters:
    """Read the list's query string. Raises `FilterError` and `InvalidCursor`."""
    given = {name: value for name in _ARGS if (value := args.get(name))}
    if not all(map(is_storable, given.values())):
        raise FilterError("There is a character in it that no stored text has.")
    state, workspace, cursor = given.get("state"), given.get("workspace"), given.get("cursor")
    if state is not None and state not in list(EventState):
        raise FilterError(f"There is no state {state!r}. The states are {', '.join(EventState)}.")
    query = EventQuery(
        name=given.get("name"),
        state=None if state is None else EventState(state),
        workspaces=scope,
        place=None if cursor is None else EventPlace.read(cursor),
    )
    if workspace is not None:
        inside = scope is None or workspace in scope
        query = replace(query, workspaces=(workspace,) if inside else ())
    return EventFilters(query, given)


def event(visit: Visit, event_id: str) -> ResponseReturnValue:
    number = int(event_id) if re.fullmatch(r"\d{1,18}", event_id, re.ASCII) else 0
    payloads = visit.may(Permission.VIEW_PAYLOAD)
    scope = visit.scope
    with visit.reading() as connection:
        now = visit.now(connection)
        workers = read.live_workers(connection, now)
        found = read.read_event(connection, number, head=DECODE_LIMIT if payloads else 0)
    if found is None or not visit.sees(found[0].workspace):
        return _no_event(visit, event_id)
    shown, payload = found
    if shown.run_id is not None:
        receiver = find(visit, shown.run_id)
        if not isinstance(receiver, Run):
            return _no_event(visit, event_id)
        payloads = payloads and visit.may(Permission.VIEW_PAYLOAD, receiver)
    with visit.reading() as connection:
        received = None if shown.run_id is None else read.received_at(connection, shown.run_id, shown.id)
        waited = bool(read.waited_names(connection, {shown.name}, scope))
    page = event_page(
        shown,
        payload if payloads else None,
        visit.surroundings(now, workers),
        received=received,
        waited=waited,
        scoped=scope is not None,
    )
    return visit.page("event", now, page, section="events")


def _no_event(visit: Visit, event_id: str) -> ResponseReturnValue:
    days = visit.runtime.config.prune_after_days
    words = f"There is no event {event_id[:30]}: it was never committed, or was pruned."
    return visit.message("no_event.html", 404, code="workflow_event_not_found", words=words, days=days)


ROUTES = (get("/events", "events", Permission.VIEW, events), get("/event/<event_id>", "event", Permission.VIEW, event))
