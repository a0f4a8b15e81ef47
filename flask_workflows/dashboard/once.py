"""How a form starts one run, however often it is sent: it carries the run's id, signed.

A start with the id of a run that is there already starts nothing. Ids begin with the instant they were made in, and
lists go by them; so an id is good for a quarter of an hour, and a form that was open for longer is given a new one.
"""

from __future__ import annotations

from dataclasses import dataclass

from flask import current_app
from itsdangerous import BadData
from itsdangerous import SignatureExpired
from itsdangerous import URLSafeTimedSerializer

_SALT = "flask_workflows.once"
_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Once:
    """The id in a form; `stale` where the form is too old to start a run with it."""

    run_id: str
    stale: bool = False


def seal(run_id: str, visitor: str) -> str:
    """What the form carries; empty where the app has no `SECRET_KEY`, without which no form can be sent."""
    return _serializer().dumps([run_id, visitor]) if current_app.secret_key else ""


def read(text: str, visitor: str) -> Once | None:
    """What the form of this visitor carries; null for anything that is not one of ours."""
    stale = False
    try:
        found = _serializer().loads(text, max_age=_SECONDS)
    except SignatureExpired:
        found, stale = _serializer().loads(text), True
    except BadData:
        return None
    run_id, whose = found
    return Once(run_id, stale) if whose == visitor else None


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(current_app.secret_key or "", salt=_SALT)
