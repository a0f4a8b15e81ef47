"""Runs, steps, events and workers as the JSON routes give them: secrets hidden, instants in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...definition import Workflow
from ...records import instant
from ...records import shown
from ...redaction import redact_error
from ...redaction import redact_text
from ...runs import Attempt
from ...runs import AuditEntry
from ...runs import decode
from ...runs import Relative
from ...runs import Run
from ...runs import RunError
from ...runs import RunStatus
from ...runs import Step
from ...runs import Worker
from ...store.reading import InboxEvent
from ..access import Permission
from ..visit import Visit

Shape = dict[str, Any]

_SUSPENDED = (RunStatus.SLEEPING, RunStatus.WAITING)


def run_in_list(run: Run) -> Shape:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "version": run.version,
        "status": str(run.status),
        "queue": run.queue,
        "workspace_id": run.workspace or None,
        "key": run.key,
        "epoch": run.epoch,
        "attempts": run.attempts,
        "max_attempts": run.max_attempts,
        "cancelling": run.cancelling,
        "error": _error(run.error),
        "cause": run.cause,
        "parent_id": run.parent_id,
        "forked_from": run.forked_from,
        "paused_at": instant(run.paused_at),
        "deadline_at": instant(run.deadline_at),
        "wake_at": instant(run.due_at) if run.status in _SUSPENDED else None,
        "created_at": instant(run.created_at),
        "started_at": instant(run.started_at),
        "updated_at": instant(run.updated_at),
        "finished_at": instant(run.finished_at),
    }


def run_shape(visit: Visit, run: Run) -> Shape:
    """A run that was read whole; its payloads only for whoever may see them."""
    shape = {**run_in_list(run), "error": _error(run.error, traceback=True)}
    if visit.may(Permission.VIEW_PAYLOAD, run):
        shape |= _values(run)
    return shape


def relative_shape(run: Relative) -> Shape:
    return {"id": run.id, "workflow": run.workflow, "status": str(run.status)}


def step_shape(visit: Visit, step: Step, waited: str | None, *, payloads: bool) -> Shape:
    """A step; `waited` is what a wait waits for, as it is stored."""
    shape = {
        "key": step.key,
        "kind": step.kind,
        "status": step.status,
        "attempts": step.attempts,
        "error": _error(step.error),
        "earlier": [_attempt(attempt) for attempt in step.earlier],
        "wake_at": instant(step.due_at) if not step.finished else None,
        "started_at": instant(step.started_at),
        "finished_at": instant(step.finished_at),
    }
    if waited is not None:
        shape |= _waited(visit, decode(waited), payloads=payloads)
    return {**shape, **_values(step)} if payloads else shape


def _waited(visit: Visit, value: Any, *, payloads: bool) -> Shape:
    """What a wait waits for. What is stored may be anything (R13)."""
    described = list(_events(value))
    shown_events = [{"event": name, **(_filter(match) if payloads else {})} for name, match in described]
    single = shown_events[0] if len(shown_events) == 1 else {"event": None, **({"filter": None} if payloads else {})}
    return {**single, "events": shown_events}


def _events(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case {"message": str(name)}:
            yield name, {}
        case {"events": list(events)}:
            for event in events:
                match event:
                    case {"name": str(name)}:
                        yield name, event.get("match", {})


def _filter(match: Any) -> Shape:
    fields = shown(match)
    return {"filter": {"fields": fields if isinstance(fields, dict) else {}}}


def _values(item: Run | Step) -> Shape:
    return {name: shown(getattr(item, name)) for name in ("input", "output")}


def _error(error: RunError | None, *, traceback: bool = False) -> Shape | None:
    if error is None:
        return None
    hidden = redact_error(error)
    shape = {"type": hidden.type, "message": hidden.message, "step": hidden.step, "kind": hidden.kind}
    return {**shape, "traceback": hidden.traceback} if traceback else shape


def _attempt(attempt: Attempt) -> Shape:
    return {
        "started_at": instant(attempt.started_at),
        "finished_at": instant(attempt.finished_at),
        "error": _error(attempt.error),
    }


def event_shape(event: InboxEvent) -> Shape:
    return {
        "id": event.id,
        "name": event.name,
        "workspace_id": event.workspace or None,
        "run_id": event.run_id,
        "state": str(event.state),
        "emitted_at": instant(event.emitted_at),
        "matched_at": instant(event.matched_at),
        "woke": event.woke,
    }


def audit_shape(entry: AuditEntry) -> Shape:
    return {
        "id": entry.id,
        "at": instant(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "run_id": entry.run_id,
        "workspace_id": entry.workspace or None,
        "target": entry.target,
        "before": entry.before,
        "after": entry.after,
        "reason": redact_text(entry.reason),
        "request_id": entry.request_id,
        "address": entry.address,
        "operation": entry.operation,
    }


def workflow_shape(workflow: Workflow[Any, Any], default_queue: str) -> Shape:
    fields = workflow.codec.fields
    return {
        "name": workflow.name,
        "version": workflow.version,
        "min_version": workflow.min_version,
        "queue": workflow.queue or default_queue,
        "description": workflow.description,
        "parameters": [
            {"name": name, "type": codec.name, "json_types": sorted(codec.kinds), "required": name in fields.required}
            for name, codec in fields.codecs.items()
        ],
    }


def worker_shape(worker: Worker) -> Shape:
    return {
        "id": worker.id,
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "queues": None if worker.queues is None else list(worker.queues),
        "workflows": [
            {"name": name, "min_version": lowest, "version": highest} for name, lowest, highest in worker.workflows
        ],
        "concurrency": worker.concurrency,
        "started_at": instant(worker.started_at),
        "seen_at": instant(worker.seen_at),
    }
