"""What the page after an action says of it: one line, in a signed cookie that is shown once."""

from __future__ import annotations

from flask import current_app
from flask import Request
from flask import request
from flask import url_for
from itsdangerous import BadData
from itsdangerous import URLSafeTimedSerializer
from werkzeug.wrappers import Response

COOKIE = "workflows_status"
_SALT = "flask_workflows.status"
_SECONDS = 60


def put(response: Response, text: str) -> None:
    """Let the next page say this."""
    response.set_cookie(
        COOKIE,
        _serializer().dumps(text[:500]),
        max_age=_SECONDS,
        path=url_for(".index"),
        secure=request.is_secure,
        httponly=True,
        samesite="Lax",
    )


def read(request: Request) -> str:
    """What this page is to say; empty for most."""
    held = request.cookies.get(COOKIE)
    if held is None or not current_app.secret_key:
        return ""
    try:
        return str(_serializer().loads(held, max_age=_SECONDS))
    except BadData:
        return ""


def clear(response: Response) -> None:
    """Say it only once."""
    response.delete_cookie(COOKIE, path=url_for(".index"), httponly=True, samesite="Lax")


def _serializer() -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(current_app.secret_key or "", salt=_SALT)
