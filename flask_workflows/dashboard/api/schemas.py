"""The shapes of the answers, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runs import RunStatus

Schema = Mapping[str, Any]


def _object(about: str, *, optional: Mapping[str, Schema] | None = None, **always: Schema) -> Schema:
    """`optional` are the fields that may be left out."""
    return {
        "type": "object",
        "description": about,
        "properties": {**always, **(optional or {})},
        "required": list(always),
    }


def _or_null(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _list(items: Schema, about: str = "") -> Schema:
    return {"type": "array", "items": items, **({"description": about} if about else {})}


def _said(schema: Schema, about: str) -> Schema:
    return {**schema, "description": about}


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_FLAG: Schema = {"type": "boolean"}
_INSTANT: Schema = {"type": "string", "format": "date-time"}
_VALUE: Schema = {
    "description": 'A JSON value, what looks like a secret replaced by `[hidden: …]`; `{"undecodable": …}` where '
    "what is stored is no JSON. Left out for whoever may not `view_payload`."
}
_STATUS = _said(_TEXT, f"One of {', '.join(RunStatus)}; a newer version may know more.")

_ERROR_OF_RUN = _object(
    "What went wrong.",
    type=_said(_TEXT, "The exception's class."),
    message=_TEXT,
    step=_said(_or_null(_TEXT), "The key of the step it came from."),
    kind=_said(_or_null(_TEXT), "Where it came from: step, business, body, lost, nondeterminism and others."),
    optional={"traceback": _said(_or_null(_TEXT), "Not in lists.")},
)

_ATTEMPT = _object(
    "An attempt of a step before its last one.",
    started_at=_or_null(_INSTANT),
    finished_at=_or_null(_INSTANT),
    error=_or_null(reference("RunError")),
)

_WAITED = _object(
    "One of the events that a wait ends with.",
    event=_TEXT,
    optional={"filter": _object("What its payload must hold.", fields={"type": "object"})},
)

_STEP = _object(
    "A recorded call of a run: a step, or one of the engine's own, whose key starts with `$`.",
    key=_TEXT,
    kind=_TEXT,
    status=_TEXT,
    attempts=_WHOLE,
    error=_or_null(reference("RunError")),
    earlier=_list(reference("Attempt"), "The attempts before the last."),
    wake_at=_said(_or_null(_INSTANT), "When it is tried again, wakes or times out."),
    started_at=_or_null(_INSTANT),
    finished_at=_or_null(_INSTANT),
    optional={
        "input": _VALUE,
        "output": _VALUE,
        "event": _said(_or_null(_TEXT), "Of a wait: the event's or message's name; null where there are several."),
        "filter": _said(
            _or_null(_object("", fields={"type": "object"})), "Of a wait for one event: what its payload must hold."
        ),
        "events": _list(reference("Waited"), "Of a wait: the events that end it."),
    },
)

_RUN_FIELDS: Mapping[str, Schema] = {
    "id": _TEXT,
    "workflow": _TEXT,
    "version": _WHOLE,
    "status": _STATUS,
    "queue": _TEXT,
    "workspace_id": _or_null(_TEXT),
    "key": _or_null(_TEXT),
    "epoch": _said(_WHOLE, "Grows with what is done to the run; send it along to act only on what you saw."),
    "attempts": _said(_WHOLE, "Attempts used up since the last newly stored step."),
    "max_attempts": _WHOLE,
    "cancelling": _said(_FLAG, "Cancelling was asked for, and its worker has not stopped it yet."),
    "error": _or_null(reference("RunError")),
    "cause": _said(_or_null(_TEXT), "The same for failures of one kind."),
    "parent_id": _said(_or_null(_TEXT), "The run whose body started it."),
    "forked_from": _said(_or_null(_TEXT), "The run whose first calls it took over."),
    "paused_at": _said(_or_null(_INSTANT), "Since when nothing new of it is executed; null unless it is paused."),
    "deadline_at": _said(_or_null(_INSTANT), "When it fails unless it has finished."),
    "wake_at": _said(_or_null(_INSTANT), "When it wakes or its wait times out."),
    "created_at": _INSTANT,
    "started_at": _or_null(_INSTANT),
    "updated_at": _INSTANT,
    "finished_at": _or_null(_INSTANT),
}
_VALUES: Mapping[str, Schema] = {"input": _VALUE, "output": _VALUE}

_PAGE: Mapping[str, Schema] = {
    "older": _said(_or_null(_TEXT), "The cursor of the next older ones; null where there are none."),
    "newer": _said(_or_null(_TEXT), "The cursor of the next newer ones; null on the newest page."),
}

_SEARCHED = _said(_or_null(_WHOLE), "How many were looked at, where looking was cut short; `older` goes on from there.")

SCHEMAS: Mapping[str, Schema] = {
    "Document": {"type": "object", "description": "An OpenAPI document."},
    "Error": _object(
        "Why a request was not answered as it was meant to be.",
        code=_said(_TEXT, "For programs."),
        message=_said(_TEXT, "For people."),
        optional={"path": _said(_TEXT, "To the value that is wrong, as in `$.user.id`.")},
    ),
    "RunError": _ERROR_OF_RUN,
    "Attempt": _ATTEMPT,
    "Waited": _WAITED,
    "Step": _STEP,
    "ListedRun": _object("A run as lists show it, without what it was given and what it returned.", **_RUN_FIELDS),
    "Run": _object("A run.", **_RUN_FIELDS, optional=_VALUES),
    "RunWithSteps": _object(
        "A run and a page of its steps.",
        **_RUN_FIELDS,
        steps=_list(reference("Step"), "In order."),
        step_count=_said(_WHOLE, "How many there are in all."),
        steps_after=_said(_or_null(_TEXT), "What to send as `steps_after` for the next; null at the end."),
        children=_list(reference("Relative"), "The newest 100 runs it started."),
        forks=_list(reference("Relative"), "Its newest 100 forks."),
        optional=_VALUES,
    ),
    "Relative": _object("A run that came of another.", id=_TEXT, workflow=_TEXT, status=_STATUS),
    "Runs": _object("A page of runs, newest first.", runs=_list(reference("ListedRun")), **_PAGE, searched=_SEARCHED),
    "StartedRun": _object(
        "A run that was started, or that holds the key. Whoever may not `view` it is told its id alone.",
        id=_TEXT,
        created=_said(_FLAG, "False where an unfinished run has the key: it is that one."),
        optional={**{name: schema for name, schema in _RUN_FIELDS.items() if name != "id"}, **_VALUES},
    ),
    "Sent": _object(
        "A message to a run.",
        run_id=_TEXT,
        name=_TEXT,
        created=_said(_FLAG, "False where a message with that `delivery_id` was sent before."),
    ),
    "Event": _object(
        "An event, or a message to one run.",
        id=_WHOLE,
        name=_TEXT,
        workspace_id=_said(_or_null(_TEXT), "Of a message, its run's."),
        run_id=_said(_or_null(_TEXT), "Whose it is, where it is a message."),
        state=_said(_TEXT, "`new` until a worker looked for the waits it ends, then `matched` or `unmatched`."),
        emitted_at=_INSTANT,
        matched_at=_said(_or_null(_INSTANT), "When a worker looked for the waits it ends; null while it is new."),
        woke=_said(_WHOLE, "How many waits it ended."),
    ),
    "Events": _object("A page of events, newest first.", events=_list(reference("Event")), **_PAGE, searched=_SEARCHED),
    "Delivered": _object(
        "An event that was emitted.",
        id=_or_null(_WHOLE),
        name=_TEXT,
        workspace_id=_or_null(_TEXT),
        created=_said(_FLAG, "False where an event with that `delivery_id` was emitted before."),
    ),
    "WouldWake": _object(
        "What an event would do now.",
        run_ids=_list(_TEXT, "The first runs it would wake."),
        count=_said(_WHOLE, "How many it would wake."),
        capped=_said(_FLAG, "There are at least that many, and counting stopped."),
        others=_said(_WHOLE, "How many runs wait for the event with other values."),
        others_capped=_FLAG,
    ),
    "AuditEntry": _object(
        "Something a person did.",
        id=_TEXT,
        at=_INSTANT,
        actor=_said(_TEXT, "Empty where nobody knows."),
        action=_TEXT,
        run_id=_said(_or_null(_TEXT), "The run it was done to."),
        workspace_id=_or_null(_TEXT),
        target=_said(_TEXT, "The workflow, event or other thing, by name."),
        before=_or_null(_TEXT),
        after=_or_null(_TEXT),
        reason=_TEXT,
        request_id=_or_null(_TEXT),
        address=_or_null(_TEXT),
        operation=_said(_or_null(_TEXT), "The run that did it, one of many."),
    ),
    "Audit": _object(
        "A page of what people did, newest first.", entries=_list(reference("AuditEntry")), **_PAGE, searched=_SEARCHED
    ),
    "Workflow": _object(
        "A version of a workflow that this process knows.",
        name=_TEXT,
        version=_WHOLE,
        min_version=_said(_WHOLE, "The oldest version of runs that it resumes."),
        queue=_TEXT,
        description=_TEXT,
        parameters=_list(reference("Parameter")),
    ),
    "Parameter": _object(
        "A parameter of a workflow, as its input names it.",
        name=_TEXT,
        type=_said(_TEXT, "Its annotation."),
        json_types=_list(_TEXT, "The types of JSON values it may be."),
        required=_FLAG,
    ),
    "Workflows": _object("By name and version.", workflows=_list(reference("Workflow"))),
    "Worker": _object(
        "A worker process.",
        id=_TEXT,
        name=_TEXT,
        host=_TEXT,
        pid=_WHOLE,
        queues=_said(_or_null(_list(_TEXT)), "Null where it serves all."),
        workflows=_list(reference("Served"), "What it can run."),
        concurrency=_WHOLE,
        started_at=_INSTANT,
        seen_at=_INSTANT,
    ),
    "Served": _object(
        "The versions of a workflow that a worker can run.", name=_TEXT, min_version=_WHOLE, version=_WHOLE
    ),
    "Workers": _object("Those that said lately that they are there.", workers=_list(reference("Worker"))),
    "Token": _object(
        "For clients that send cookies: what a request that changes something must bring.",
        header=_said(_TEXT, "The header to send it in."),
        token=_TEXT,
        expires_in=_said(_WHOLE, "Seconds."),
    ),
    "Health": _object(
        "Whether runs can be read and executed.",
        status=_said(
            {"type": "string", "enum": ["ok", "failing"]}, "`ok` where the database answers and has its tables."
        ),
        database={"type": "string", "enum": ["ok", "failing"]},
        schema=_said({"type": ["string", "null"], "enum": ["ok", "failing", None]}, "Null where nobody could look."),
        message=_said(_or_null(_TEXT), "What is wrong."),
        workers=_said(_or_null(_WHOLE), "Live ones. Null for visitors of some workspaces only."),
        oldest_due_at=_said(_or_null(_INSTANT), "Since when a run waits for a worker; null where none does."),
    ),
}
