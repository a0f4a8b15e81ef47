"""The inbox of events, and one event."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ... import phrases
from ...explain import Instant
from ...explain import Name
from ...explain import PATIENCE
from ...explain import Surroundings
from ...explain import Text
from ...explain import work_command
from ...payloads import show_value
from ...payloads import Shown
from ...redaction import redact_text
from ...runs import Head
from ...store.reading.events import EventPage
from ...store.reading.events import EventState
from ...store.reading.events import InboxEvent
from .run import Fact


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event in the list."""

    id: int
    name: str
    state: str
    woke: Text
    workspace: str
    delivery_id: str
    #: Whose it is, where it is a message.
    run_id: str | None
    emitted_at: datetime
    #: Whether runs wait for the name, though this one woke nobody.
    waited: bool


@dataclass(frozen=True, slots=True)
class EventsPage:
    """The list; `rows` is null where it took too long to read."""

    rows: tuple[EventRow, ...] | None
    older: str | None
    newer: str | None
    searched: int | None
    notice: Text


def events_page(page: EventPage | None, waited: Collection[str], around: Surroundings, *, scoped: bool) -> EventsPage:
    if page is None:
        return EventsPage(None, None, None, None, ())
    return EventsPage(
        rows=tuple(_row(event, waited, scoped=scoped) for event in page.events),
        older=None if page.older is None else str(page.older),
        newer=None if page.newer is None else str(page.newer),
        searched=page.searched,
        notice=_notice(page.events, around),
    )


def _row(event: InboxEvent, waited: Collection[str], *, scoped: bool) -> EventRow:
    return EventRow(
        id=event.id,
        name=event.name,
        state=event.state,
        woke=woke(event, scoped=scoped),
        workspace=event.workspace,
        delivery_id=redact_text(event.delivery_id or ""),
        run_id=event.run_id,
        emitted_at=event.emitted_at,
        waited=event.state is EventState.UNMATCHED and event.run_id is None and event.name in waited,
    )


def woke(event: InboxEvent, *, scoped: bool) -> Text:
    """Whom it woke, in a word or two."""
    match event.state:
        case EventState.NEW:
            return ("not looked at yet",)
        case EventState.UNMATCHED:
            return ("not received yet",) if event.run_id is not None else ("nobody",)
    if event.run_id is not None:
        return ("its run",)
    # An event of no workspace wakes runs of all, those too which a confined visitor is not to know of.
    return ("some",) if scoped and not event.workspace else (phrases.several(event.woke, "run"),)


def _notice(events: Collection[InboxEvent], around: Surroundings) -> Text:
    late = [event for event in events if event.state is EventState.NEW and event.emitted_at < around.now - PATIENCE]
    if not late or around.workers:
        return ()
    return ("No worker is live, so new events wake nobody. Start one: ", Name(work_command()))


# One event ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OneEvent:
    """An event, or a message; `payload` is null where the visitor may not see it."""

    id: int
    name: str
    message: bool
    state: str
    run_id: str | None
    headline: Text
    more: Text
    facts: tuple[Fact, ...]
    payload: Shown | None
    #: Whether runs wait for the name with other values.
    waited: bool
    workspace: str
    #: Whether nothing more will become of it.
    settled: bool


def event_page(
    event: InboxEvent, payload: Head | None, around: Surroundings, *, received: str | None, waited: bool, scoped: bool
) -> OneEvent:
    """`received` is the call in which its run received a message."""
    return OneEvent(
        id=event.id,
        name=event.name,
        message=event.run_id is not None,
        state=event.state,
        run_id=event.run_id,
        headline=_headline(event, received, scoped=scoped),
        more=_more(event, around),
        facts=tuple(_facts(event)),
        payload=None if payload is None else show_value(payload),
        waited=waited and event.state is EventState.UNMATCHED and event.run_id is None,
        workspace=event.workspace,
        settled=received is not None if event.run_id is not None else event.state is not EventState.NEW,
    )


def _headline(event: InboxEvent, received: str | None, *, scoped: bool) -> Text:
    if event.run_id is not None:
        if received is not None:
            return ("Its run received it in ", Name(received), ".")
        return ("Its run has not received it yet. It is kept until the run asks for it, or is pruned.",)
    match event.state:
        case EventState.NEW:
            return ("No worker has looked at it yet.",)
        case EventState.UNMATCHED:
            return ("It woke nobody.",)
    return ("It woke ", *woke(event, scoped=scoped), "." if event.workspace or not scoped else " runs.")


def _more(event: InboxEvent, around: Surroundings) -> Text:
    if event.state is EventState.NEW and event.run_id is None and not around.workers:
        return ("No worker is live. Start one: ", Name(work_command()), ".")
    if event.state is EventState.UNMATCHED and event.run_id is None:
        return (
            "No run waited for it, with these values, when a worker looked. A wait with ",
            Name("since"),
            " still may.",
        )
    return ()


def _facts(event: InboxEvent) -> Iterator[Fact]:
    yield Fact("Emitted", (Instant(event.emitted_at), ", ", Instant(event.emitted_at, "ago")))
    if event.matched_at is not None:
        took = phrases.duration(event.matched_at - event.emitted_at)
        yield Fact("Matched", (Instant(event.matched_at), f", {took} later"))
    yield Fact("Number", (str(event.id),))
    if event.workspace:
        yield Fact("Workspace", (Name(event.workspace),))
    elif event.run_id is None:
        yield Fact("Workspace", ("none: it wakes runs of all",))
    if event.delivery_id is not None:
        yield Fact("Delivery id", (Name(redact_text(event.delivery_id)),))
