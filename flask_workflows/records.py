"""Runs and their steps as JSON objects, with what looks like a secret hidden."""

from __future__ import annotations

import math
from dataclasses import fields
from datetime import datetime
from typing import Any

from flask_workflows.hooks import app_hides
from flask_workflows.hooks import Hides
from flask_workflows.redaction import hides
from flask_workflows.redaction import redact_error
from flask_workflows.redaction import redact_text
from flask_workflows.redaction import under
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
    return {
        name: shown(value) if name in _STORED.values() else _plain(value)
        for name, value in values.items()
        if value is not NOT_LOADED
    }


def instant(at: datetime | None) -> str | None:
    """An instant as in RFC 3339, in UTC, with milliseconds."""
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(value: Any) -> Any:
    """A decoded value as people may see it: what looks like a secret hidden, and nothing in it that JSON cannot hold."""
    try:
        return _shown(value, "$", app_hides())
    except RecursionError:
        return _shown(Undecodable("", "nested too deep"), "$", None)


def _shown(value: Any, path: str, hides_too: Hides | None) -> Any:
    if isinstance(value, Undecodable):
        return {"undecodable": value.reason}
    if hides_too is not None and hides_too(path, value):
        return "[hidden by the app]"
    match value:
        case dict():
            return {key: _held(key, held, under(path, key), hides_too) for key, held in value.items()}
        case list() | tuple():
            return [_shown(held, under(path, place), hides_too) for place, held in enumerate(value)]
        case str():
            return redact_text(value)
        case float() if not math.isfinite(value):
            return {"undecodable": f"{value} is no JSON number"}
        case _:
            return value


def _held(key: str, value: Any, path: str, hides_too: Hides | None) -> Any:
    word = hides(key)
    if word is None or value is None or isinstance(value, bool):
        return _shown(value, path, hides_too)
    return f"[hidden: {word}]"


def _plain(value: Any) -> Any:
    """What is no stored value, so the app is not asked about it."""
    match value:
        case datetime():
            return instant(value)
        case RunError() | Attempt():
            return record(value)
        case tuple():
            return [_plain(held) for held in value]
        case _:
            return _shown(value, "$", None)
