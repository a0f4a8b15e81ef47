"""Below the JSON routes' prefix everything is answered in JSON: unknown paths, wrong methods, what goes wrong."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from flask import Blueprint
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import default_exceptions
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response

from ..answers import problem
from ..answers import text_of
from ..routes import Route
from ..routes import View
from ..visit import Visit

_ORDINARY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
_OF_OTHERS = ("COPY", "LINK", "LOCK", "MKCOL", "MOVE", "PROPFIND", "PROPPATCH", "PURGE", "REPORT", "SEARCH", "UNLOCK")
METHODS = frozenset({*_ORDINARY, *_OF_OTHERS})

_CODES = {"Request Entity Too Large": "too_large", "Internal Server Error": "server_error"}


def outside(routes: Iterable[Route]) -> Iterator[Route]:
    """The routes for what no other answers: other methods of their paths, other paths. They ask for nothing."""
    taken: dict[str, set[str]] = {}
    for route in routes:
        taken.setdefault(route.rule, set()).update(route.methods)
    for number, (rule, methods) in enumerate(taken.items()):
        answered = methods | ({"HEAD"} if "GET" in methods else set())
        allowed = ", ".join(sorted({*answered, "OPTIONS"}))
        yield _answering(rule, f"wrong_method_{number}", METHODS - answered, _wrong_method(allowed))
    for number, rule in enumerate(("/", "/<path:rest>")):
        yield _answering(rule, f"nowhere_{number}", METHODS, _nowhere)


def _answering(rule: str, endpoint: str, methods: Iterable[str], view: View) -> Route:
    return Route(rule, endpoint, None, view, tuple(sorted(methods)), api=True, harmless=True)


def _wrong_method(allowed: str) -> View:
    def wrong_method(visit: Visit, **values: str) -> ResponseReturnValue:
        if visit.request.method == "OPTIONS":
            return Response(status=204, headers={"Allow": allowed})
        message = f"{visit.request.method[:50]} is not for this path. Allowed: {allowed}."
        return problem("method_not_allowed", message, 405, Allow=allowed)

    return wrong_method


def _nowhere(visit: Visit, rest: str = "") -> ResponseReturnValue:
    return problem("not_found", f"There is nothing at {visit.request.path[:200]}.", 404)


def answer_in_json(blueprint: Blueprint) -> None:
    """Let the blueprint's errors be JSON, whoever raised them."""
    # One by one: a handler of the app's for one status would go before one of ours for all.
    for status in default_exceptions:
        blueprint.register_error_handler(status, _described)


def _described(error: Exception) -> ResponseReturnValue:
    assert isinstance(error, HTTPException)
    response = error.get_response()
    assert isinstance(response, Response)
    if error.response is None:
        code = _CODES.get(error.name, error.name.lower().replace(" ", "_").replace("'", ""))
        response.set_data(text_of({"code": code, "message": error.description or error.name}))
        response.content_type = "application/json"
    return response
