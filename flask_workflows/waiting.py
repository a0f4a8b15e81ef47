"""How a body waits for events and messages: stored with the run's suspension, ended by a worker that matches."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence
from datetime import datetime
from datetime import timedelta
from typing import Any
from typing import TYPE_CHECKING

from .durations import instant_ms
from .durations import to_ms
from .errors import MatchRefused
from .events import event_of
from .events import EventMatch
from .events import EventType
from .events import Happened
from .matching import fields_of
from .matching import hash_of
from .matching import MESSAGES
from .matching import plain_match
from .names import check_label
from .store import Change
from .store import StepWrite
from .store import WaitWrite

if TYPE_CHECKING:
    from .context import WorkflowContext


def wait_any(
    context: WorkflowContext, events: Sequence[str | type | EventMatch], timeout: timedelta | float | None
) -> Happened | None:
    """Wait for the first of several events; null when the time is over first."""
    matches = [item if isinstance(item, EventMatch) else EventMatch(item) for item in events]
    if not matches:
        raise MatchRefused("wait_any() needs at least one event to wait for")
    types = [context.events.find(match.event) for match in matches]
    name = f"$wait:{types[0].name}" if len(types) == 1 else "$wait"
    due_in = None if timeout is None else to_ms(timeout, what="the time-out of a wait")
    described = [_described(kind, match) for kind, match in zip(types, matches, strict=True)]
    input = json.dumps({"events": described, "timeout_ms": due_in}, ensure_ascii=False, separators=(",", ":"))

    def waits(key: str) -> list[WaitWrite]:
        return [
            WaitWrite(
                key,
                number,
                kind.name,
                context.workspace or "",
                fields_of(match.match),
                hash_of(match.match),
                _since(match.since),
            )
            for number, (kind, match) in enumerate(zip(types, matches, strict=True))
        ]

    stored = _wait(context, name, "wait", input, due_in, waits)
    return None if stored is None else Happened(stored["number"], types[stored["number"]].received(stored))


def receive(context: WorkflowContext, name: str, timeout: timedelta | float | None) -> Any:
    """Take the oldest message of that name sent to this run; null when the time is over first."""
    check_label(name, "message name")
    due_in = None if timeout is None else to_ms(timeout, what="the time-out of a wait")
    input = json.dumps({"message": name, "timeout_ms": due_in}, ensure_ascii=False, separators=(",", ":"))

    def waits(key: str) -> list[WaitWrite]:
        return [WaitWrite(key, 0, name, context.workspace or "", MESSAGES, context.run_id, None)]

    stored = _wait(context, f"$receive:{name}", "receive", input, due_in, waits)
    return None if stored is None else event_of(stored)


def _wait(
    context: WorkflowContext,
    name: str,
    kind: str,
    input: str,
    due_in: int | None,
    waits: Callable[[str], list[WaitWrite]],
) -> dict[str, Any] | None:
    """The outcome of the body's next wait, as it is stored; null for a time-out. Suspends while there is none."""
    call = context.next_call(name, input)
    stored = call.stored
    if stored is None:
        context.may_start()
        write = StepWrite(call.key, call.position, kind, "waiting", input, due_in=due_in)
        context.suspend(Change("waiting", due_in=due_in), write, waits(call.key))
    if stored.status == "completed":
        return _outcome(stored.output)
    if stored.due_at is None or stored.due_at > context.now_ms():
        # Woken too early, or retried after a cancellation, which took the waits away.
        context.suspend(Change("waiting", due_at=stored.due_at), None, waits(call.key))
    return _outcome(context.expire(call.key))


def _outcome(output: str | None) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(output or "null")
    return found


def _described(kind: EventType, match: EventMatch) -> dict[str, Any]:
    described: dict[str, Any] = {"name": kind.name}
    if match.match:
        described["match"] = plain_match(match.match)
    if match.since is not None:
        described["since"] = _since(match.since)
    return described


def _since(since: datetime | None) -> int | None:
    return None if since is None else instant_ms(since, what="since")
