"""The OpenAPI document, made of what the routes declare."""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from http import HTTPStatus
from importlib import metadata
from typing import Any

from flask import url_for
from flask.typing import ResponseReturnValue

from ..access import Permission
from ..answers import answer
from ..csrf import HEADER
from ..routes import Route
from ..visit import Visit
from .inputs import ANYTHING
from .inputs import Given
from .inputs import Input
from .inputs import LABEL
from .operation import api_get
from .operation import Operation
from .operation import WORKSPACE_HEADER
from .schemas import reference
from .schemas import SCHEMAS

PATH = "/openapi.json"

_JSON = "application/json"

_PARAMETERS: Mapping[str, Any] = {
    "Workspace": {
        "name": WORKSPACE_HEADER,
        "in": "header",
        "description": "Limits the request to one workspace.",
        "schema": LABEL.schema,
    },
    "Token": {
        "name": HEADER,
        "in": "header",
        "description": "Of `GET /token`; only clients that send cookies and no bearer token need it.",
        "schema": {"type": "string"},
    },
    "RunId": {"name": "run_id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}},
}


def described(routes: Iterable[Route]) -> Route:
    """The route of the document on these routes and itself."""
    known = list(routes)

    def document(visit: Visit, given: Given) -> ResponseReturnValue:
        own = url_for(".document")
        return answer(openapi(known, own.removesuffix(PATH)))

    operation = Operation("This document", {200: "Document"})
    route = api_get(PATH, "document", Permission.VIEW, document, operation)
    known.append(route)
    return route


def openapi(routes: Iterable[Route], server: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.operation is not None:
            path = re.sub(r"<(\w+)>", r"{\1}", route.rule)
            paths.setdefault(path, {})[route.methods[0].lower()] = _operation(route, route.operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Flask-Workflows", "version": _version()},
        "servers": [{"url": server or "/"}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "parameters": _PARAMETERS},
    }


def _version() -> str:
    try:
        return metadata.version("Flask-Workflows")
    except metadata.PackageNotFoundError:
        # Its files were copied, not installed.
        return "unknown"


def _operation(route: Route, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": route.endpoint, "summary": operation.summary}
    if operation.about:
        described["description"] = operation.about
    described["parameters"] = list(_parameters(route, operation))
    if operation.body is not None:
        described["requestBody"] = _body(operation)
    described["responses"] = _responses(route, operation)
    return described


def _parameters(route: Route, operation: Operation) -> Iterable[Mapping[str, Any]]:
    if "<run_id>" in route.rule:
        yield {"$ref": "#/components/parameters/RunId"}
    for item in operation.query:
        schema = item.kind.schema if item.default is None else {**item.kind.schema, "default": item.default}
        yield {"name": item.name, "in": "query", "description": item.about, "schema": schema}
    yield {"$ref": "#/components/parameters/Workspace"}
    if route.writes:
        yield {"$ref": "#/components/parameters/Token"}


def _body(operation: Operation) -> Mapping[str, Any]:
    schema = {
        "type": "object",
        "properties": {item.name: _field(item) for item in operation.body or ()},
        "required": [item.name for item in operation.body or () if item.required],
        "additionalProperties": False,
    }
    return {"required": operation.body_needed, "content": {_JSON: {"schema": schema}}}


def _field(item: Input) -> Mapping[str, Any]:
    schema = dict(item.kind.schema)
    if not item.required and item.kind is not ANYTHING:
        # Null is as good as leaving it out.
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
    return {**schema, "description": item.about}


def _responses(route: Route, operation: Operation) -> Mapping[str, Any]:
    errors: dict[int, list[str]] = {
        400: ["invalid_query"],
        403: ["forbidden", "closed"],
        503: ["slow", "schema", "unreachable"],
    }
    if route.writes:
        errors[400] += ["forged"]
        errors[403] += ["read_only"]
    if operation.body is not None:
        errors[400] += ["invalid_json", "invalid_body"]
        errors |= {413: ["too_large"], 415: ["unsupported_media_type"]}
        errors[503] += ["busy"]
    errors[404] = ["workspace_not_found"]
    for status, own in operation.errors.items():
        known = errors.setdefault(status, [])
        known += [code for code in own if code not in known]

    responses = {status: _response(_words(status), name) for status, name in operation.answers.items()}
    for status, codes in sorted(errors.items()):
        responses.setdefault(status, _response(f"{_words(status)}: {', '.join(codes)}", "Error"))
    if operation.located:
        location = {"Location": {"description": "The run.", "schema": {"type": "string"}}}
        for status in operation.answers:
            responses[status]["headers"] = location
    return {str(status): response for status, response in sorted(responses.items())}


def _response(about: str, schema: str) -> dict[str, Any]:
    return {"description": about, "content": {_JSON: {"schema": reference(schema)}}}


def _words(status: int) -> str:
    return HTTPStatus(status).phrase
