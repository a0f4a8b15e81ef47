"""Refuse forms that other sites send on a visitor's behalf.

The shop guards its own blueprint only; the dashboard guards its own forms.
"""

from __future__ import annotations

import hmac
import secrets

from flask import abort
from flask import Flask
from flask import request
from flask import session

FIELD = "csrf_token"


def init_app(app: Flask) -> None:
    app.config.from_mapping(SESSION_COOKIE_SAMESITE="Lax")
    app.jinja_env.globals[FIELD] = token


def token() -> str:
    """Give this visitor's token, the value of a form's hidden field."""
    value = session.get(FIELD)
    if not isinstance(value, str):
        value = session[FIELD] = secrets.token_urlsafe(32)
    return value


def protect() -> None:
    """Abort with 400 unless a POST brings the token of its own session."""
    if request.method != "POST":
        return
    expected = session.get(FIELD, "")
    sent = request.form.get(FIELD, "")
    if not expected or not hmac.compare_digest(expected.encode(), sent.encode()):
        abort(400, "This form is out of date. Go back, load the page again and send it once more.")
