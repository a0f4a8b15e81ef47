"""Answers in JSON, laid out the same whatever the app's own JSON provider does."""

from __future__ import annotations

import json
from typing import Any

from werkzeug.wrappers import Response


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """A response with the value as JSON."""
    response = Response(text_of(value), status, mimetype="application/json")
    for name, held in headers.items():
        response.headers[name] = held
    return response


def problem(code: str, message: str, status: int, *, path: str | None = None, **headers: str) -> Response:
    """What every error looks like: a code for programs, a message for people, and the path to a value that is wrong."""
    described = {"code": code, "message": message}
    return answer(described if path is None else {**described, "path": path}, status, **headers)


def text_of(value: Any) -> str:
    # In ASCII, as half of a surrogate pair, which a client may have sent, is no text in UTF-8.
    return json.dumps(value, allow_nan=False, separators=(",", ":")) + "\n"
