"""What people did: who, when, what, to which run, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ...explain import Instant
from ...explain import Text
from ...redaction import redact_text
from ...runs import AuditEntry
from ...runs import AuditPage

#: What the others are called, on the way to being done.
ACTIONS = ("cancel", "retry", "fork", "wake", "move", "pause", "resume", "release", "start", "send", "deliver")


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    at: datetime
    #: Empty where nobody knows.
    actor: str
    action: str
    #: The workflow, event, message or other thing, by name.
    target: str
    run_id: str | None
    change: Text
    reason: str
    request_id: str | None
    address: str | None
    #: The run that did it, one of many.
    operation: str | None


@dataclass(frozen=True, slots=True)
class AuditList:
    """The list; `rows` is null where it took too long to read."""

    rows: tuple[Row, ...] | None
    older: str | None = None
    newer: str | None = None
    searched: int | None = None


def audit_list(page: AuditPage | None) -> AuditList:
    if page is None:
        return AuditList(None)
    return AuditList(tuple(map(_row, page.entries)), page.older, page.newer, page.searched)


def _row(entry: AuditEntry) -> Row:
    return Row(
        id=entry.id,
        at=entry.at,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        run_id=entry.run_id,
        change=change(None if entry.action == "fork" else entry.before, entry.after),
        # People paste things.
        reason=redact_text(entry.reason),
        request_id=entry.request_id,
        address=entry.address,
        operation=entry.operation,
    )


def change(before: str | None, after: str | None) -> Text:
    """From what to what: statuses, or instants."""
    if before is None and after is None:
        return ()
    if before is None or before == after:
        return (_side(after or ""),)
    return (_side(before), " → ", _side(after or "nothing"))


def _side(text: str) -> str | Instant:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if at.tzinfo is None else Instant(at)
