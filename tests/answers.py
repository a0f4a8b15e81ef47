"""What tests see of the JSON routes: each good answer is checked against the document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flask.testing import FlaskClient
from jsonschema_rs import validator_for
from werkzeug.test import TestResponse

API = "/workflows/api"


def get(client: FlaskClient, path: str, headers: Mapping[str, str] | None = None) -> Any:
    """The answer, which must be a good one and as the document says."""
    response = client.get(API + path, headers=headers)
    assert response.status_code == 200, response.text
    check_shape(client, path, response)
    return response.json


def post(
    client: FlaskClient, path: str, body: object = None, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Any:
    """The answer, which must have this status and be as the document says."""
    response = client.post(API + path, json={} if body is None else body, headers=headers)
    assert response.status_code == status, response.text
    check_shape(client, path, response, "post")
    return response.json


def check_shape(client: FlaskClient, path: str, response: TestResponse, method: str = "get") -> None:
    """Whether the answer is what the document says, and nothing beside it."""
    document = client.get(f"{API}/openapi.json").json
    assert document is not None
    template = re.sub(r"^/runs/[^/?]+", "/runs/{run_id}", path).partition("?")[0]
    described = document["paths"][template][method]["responses"][str(response.status_code)]
    schema = described["content"]["application/json"]["schema"]
    closed = {name: _closed(held) for name, held in document["components"]["schemas"].items()}
    check = validator_for({**schema, "components": {"schemas": closed}}, validate_formats=True)
    check.validate(response.json)


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "properties" not in schema:
        return schema
    return {**schema, "additionalProperties": False}


def problem_of(response: TestResponse) -> tuple[int, str]:
    """The status and the code of an error."""
    assert response.content_type == "application/json"
    body = response.json
    assert body is not None
    assert set(body) <= {"code", "message", "path"}
    assert isinstance(body["message"], str)
    assert body["message"]
    return response.status_code, body["code"]
