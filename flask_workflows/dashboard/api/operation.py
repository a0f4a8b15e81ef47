"""What a JSON route takes and gives: said once, beside its view. The document is made of it, and requests read by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import wraps
from typing import Any

from flask.typing import ResponseReturnValue
from werkzeug.http import parse_options_header
from werkzeug.wrappers import Request

from ...errors import InvalidName
from ...names import check_label
from ..access import Permission
from ..answers import problem
from ..routes import Route
from ..routes import View
from ..visit import Visit
from .inputs import Input
from .inputs import Problem
from .inputs import read_body
from .inputs import read_query

#: Limits a request to one workspace.
WORKSPACE_HEADER = "X-Workspace"

#: Of a body, for each byte of a value: JSON may be written with escapes.
_ESCAPED = 3
_ROOM = 65_536


@dataclass(frozen=True, slots=True)
class Operation:
    """One route, as the document describes it."""

    summary: str
    #: The schema of the answer by its status, by name.
    answers: Mapping[int, str]
    query: tuple[Input, ...] = ()
    #: Null where it takes no body.
    body: tuple[Input, ...] | None = None
    #: The codes of its own errors, by status.
    errors: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    about: str = ""
    #: Whether it answers with the place of what it made.
    located: bool = False

    @property
    def body_needed(self) -> bool:
        return any(item.required for item in self.body or ())


def api_get(rule: str, endpoint: str, permission: Permission | None, view: View, operation: Operation) -> Route:
    return Route(rule, endpoint, permission, _reading(view, operation), api=True, operation=operation)


def api_post(rule: str, endpoint: str, permission: Permission, view: View, operation: Operation) -> Route:
    return Route(rule, endpoint, permission, _reading(view, operation), ("POST",), api=True, operation=operation)


def _reading(view: View, operation: Operation) -> View:
    """The view, called with what was read of the request as `given`."""

    @wraps(view)
    def reading(visit: Visit, **values: Any) -> ResponseReturnValue:
        try:
            _confine(visit)
            given = dict(read_query(visit.request.args, operation.query))
            if operation.body is not None:
                given.update(read_body(_body_text(visit), operation.body))
            return view(visit, given=given, **values)
        except Problem as found:
            return problem(found.code, found.message, found.status, path=found.path)

    return reading


def _confine(visit: Visit) -> None:
    """Limit the visit to the workspace the request names."""
    named = visit.request.headers.get(WORKSPACE_HEADER)
    if named is not None:
        enter(visit, _decoded(named))


def enter(visit: Visit, workspace: str) -> None:
    """Limit the visit to one workspace. Raises `Problem` where it lies outside the visitor's scope."""
    if not _is_label(workspace) or not visit.confine(workspace):
        raise Problem("workspace_not_found", f"There is no workspace {workspace[:100]!r}.", 404)


def receiving_workspace(visit: Visit, named: str | None) -> str | None:
    """The workspace that something new belongs to; null for none. Raises `Problem` where the visitor must name one."""
    if named is not None:
        enter(visit, named)
    if visit.scope is None:
        return None
    if len(visit.scope) != 1:
        raise Problem("invalid_workspace", f"Name a workspace, in `workspace` or the header {WORKSPACE_HEADER}.")
    return visit.scope[0] or None


def _is_label(text: str) -> bool:
    try:
        check_label(text, "workspace")
    except InvalidName:
        return False
    return True


def _decoded(header: str) -> str:
    """What a client sent in UTF-8; headers arrive as if they were Latin-1."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def _body_text(visit: Visit) -> str:
    request = visit.request
    limit = visit.runtime.config.max_payload_bytes * _ESCAPED + _ROOM
    known = request.max_content_length
    request.max_content_length = limit if known is None else min(known, limit)
    data = request.get_data()
    if data and not _is_json(request):
        raise Problem("unsupported_media_type", "Send the body as application/json.", 415)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Problem("invalid_json", f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None


def _is_json(request: Request) -> bool:
    media_type, options = parse_options_header(request.headers.get("Content-Type"))
    return media_type.lower() == "application/json" and options.get("charset", "utf-8").lower() in ("utf-8", "utf8")
