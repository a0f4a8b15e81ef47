"""Runs and their steps as JSON objects, with what looks like a secret hidden."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from flask_workflows.redaction import hides
from flask_workflows.redaction import redact_error
from flask_workflows.redaction import redact_text
from flask_workflows.runs import Attempt
from flask_workflows.runs import NOT_LOADED
from flask_workflows.runs import Run
from flask_workflows.runs import RunDetails
from flask_workflows.runs import RunError
from flask_workflows.runs import Step
from flask_workflows.runs import Undecodable

_STORED = {"input_json": "input", "output_json": "output"}


def details_record(details: RunDetails) -> dict[str, Any]:
    """A run with its steps."""
    return {**record(details.run), "steps": [record(step) for step in details.steps]}


def record(item: Run | Step | Attempt | RunError) -> dict[str, Any]:
    """One value of `runs.py` by its fields; what was not read from the database is left out."""
    if isinstance(item, RunError):
        item = redact_error(item)
    values = {_STORED.get(field.name, field.name): getattr(item, field.name) for field in fields(item)}
    for name in _STORED.values():
        if name in values:
            values[name] = getattr(item, name)
    return {name: _plain(value) for name, value in values.items() if value is not NOT_LOADED}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case RunError() | Attempt():
            return record(value)
        case Undecodable():
            return {"undecodable": value.reason}
        case dict():
            return {key: _hidden(key, held) for key, held in value.items()}
        case list() | tuple():
            return [_plain(held) for held in value]
        case str():
            return redact_text(value)
        case _:
            return value


def _hidden(key: str, value: Any) -> Any:
    word = hides(key)
    if word is None or value is None or isinstance(value, bool):
        return _plain(value)
    return f"[hidden: {word}]"
