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
from ..visit import Visit

METHODS = frozenset(
    "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT QUERY PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK SEARCH "
    "LINK UNLINK PURGE REPORT".split()
)

_CODES = {"Request Entity Too Large": "too_large", "Internal Server Error": "server_error"}


def outside(routes: Iterable[Route]) -> Iterator[Route]:
    """The routes for what no other route answers. They change nothing, so they ask for nothing."""
    taken: dict[str, set[str]] = {}
    for route in routes:
        taken.setdefault(route.rule, set()).update(route.methods)
    for number, (rule, methods) in enumerate(taken.items()):
        allowed = _allowed(methods)
        left = METHODS.difference(allowed)
        yield _answering(rule, f"wrong_method_{number}", left, _wrong_method(", ".join(sorted(allowed))))
    for number, rule in enumerate(("/", "/<path:rest>")):
        yield _answering(rule, f"nowhere_{number}", METHODS, _nowhere)


def _allowed(methods: set[str]) -> set[str]:
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def _answering(rule: str, endpoint: str, methods: Iterable[str], view: object) -> Route:
    return Route(rule, endpoint, None, view, tuple(sorted(methods)), api=True, harmless=True)  # type: ignore[arg-type]


def _wrong_method(allowed: str) -> object:
    def wrong_method(visit: Visit, **values: str) -> ResponseReturnValue:
        message = f"{visit.request.method} is not for this path; {allowed} is."
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
