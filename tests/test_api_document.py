"""The OpenAPI document, and whether the routes do as it says: requests are made of it, good and bad ones."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from datetime import UTC
from pathlib import Path
from typing import Any

import schemathesis
from flask import Flask
from jsonschema_rs import validator_for
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events
from schemathesis.engine import from_schema

from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.dashboard import api
from flask_workflows.dashboard.api import problems
from tests import apps
from tests.answers import API
from tests.rows import error_json
from tests.rows import Rows
from tests.rows import rows_of

#: Few examples of each kind, the same ones each time.
CONFIG = {
    "seed": 1,
    "generation": {"max-examples": 8, "deterministic": True, "database": "none", "allow-x00": False},
    "phases": {"stateful": {"generation": {"max-examples": 4}}},
}


def make_workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")

    @workflows.workflow
    def onboarding(ctx: WorkflowContext, user_id: int, tags: list[str] | None = None) -> bool:
        ctx.wait_for("paid", match={"user_id": user_id})
        return True

    workflows.event("paid")

    @workflows.event("shipped")
    @dataclass
    class Shipped:
        order: int

    return workflows


def document_of(app: Flask) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(app.test_client().get(f"{API}/openapi.json").text)
    return document


def test_document_describes_each_route_once(sqlite_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(sqlite_url, workflows=make_workflows())
    document = document_of(app)

    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    routes = {
        (re.sub(r"<(\w+)>", r"{\1}", route.rule), route.methods[0].lower())
        for route in api.ROUTES
        if not route.harmless
    }

    assert described == routes
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        assert {"400", "403", "404", "503"} <= set(operation["responses"])


def test_every_reference_is_there_and_every_schema_is_used(sqlite_url: str, make_app: apps.MakeApp) -> None:
    document = document_of(make_app(sqlite_url, workflows=make_workflows()))

    used = set(re.findall(r'"#/components/(\w+/\w+)"', json.dumps(document)))
    made = {f"{kind}/{name}" for kind, parts in document["components"].items() for name in parts}

    assert used == made


def seeded(app: Flask) -> list[str]:
    """The ids of runs in each state, with steps of each kind."""
    rows = rows_of(app)
    now = int(datetime.now(UTC).timestamp() * 1000)
    ids = [rows.run(status, **_of_status(status, now)) for status in RunStatus for _ in range(2)]
    for run_id in ids[:4]:
        _steps(rows, run_id)
    rows.run("failed", input="{", output="{", error="{")
    rows.worker(seen_at=now)
    client = app.test_client()
    client.post(f"{API}/events", json={"name": "paid", "payload": {"user_id": 8}})
    client.post(f"{API}/runs/{ids[0]}/messages", json={"name": "go"})
    return ids


def _of_status(status: str, now: int) -> dict[str, Any]:
    values: dict[str, Any] = {"workspace": "acme"} if status == "waiting" else {}
    if status == "running":
        values = {"worker": "gone", "due_at": now + 3_600_000}
    if status == "failed":
        values = {"error": error_json(traceback="Traceback")}
    return values


def _steps(rows: Rows, run_id: str) -> None:
    error = error_json()
    earlier = json.dumps([{"started_at": 1, "finished_at": None, "error": json.loads(error)}])
    rows.step(run_id, "send", 1, input='{"a": 1}', earlier=earlier)
    rows.step(run_id, "charge", 2, "failed", output=None, error=error)
    wait = {"events": [{"name": "paid", "match": {"user_id": 8}}], "timeout_ms": 5}
    rows.step(run_id, "$wait:paid", 3, "waiting", kind="wait", input=json.dumps(wait), output=None)


def narrowed(document: dict[str, Any], ids: list[str]) -> dict[str, Any]:
    """The document, saying which runs, workflows and events there are, so that most requests find one."""
    unknown = "00000000-0000-7000-8000-000000000000"
    document["components"]["parameters"]["RunId"]["schema"] = {"enum": [*ids, unknown]}
    start = _body(document, "/runs")
    start["properties"]["workflow"] = {"enum": ["onboarding"]}
    start["properties"]["input"] = {
        "type": "object",
        "properties": {
            "user_id": {"type": "integer"},
            "tags": {"type": ["array", "null"], "items": {"type": "string"}},
        },
        "required": ["user_id"],
        "additionalProperties": False,
    }
    start["required"] = ["workflow", "input"]
    for path in ("/events", "/events/check"):
        event = _body(document, path)
        event["properties"]["name"] = {"enum": ["paid"]}
    for act in ("fork", "retry"):
        _body(document, f"/runs/{{run_id}}/{act}")["properties"]["from_step"] = {"enum": ["send", "charge"]}
    steps_after = next(item for item in document["paths"]["/runs/{run_id}"]["get"]["parameters"] if "name" in item)
    assert steps_after["name"] == "steps_after"
    steps_after["schema"] = {"enum": ["send", "charge"]}
    return document


def _body(document: dict[str, Any], path: str) -> dict[str, Any]:
    schema: dict[str, Any] = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return schema


def test_routes_do_as_the_document_says(database_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(database_url, workflows=make_workflows())
    document = narrowed(document_of(app), seeded(app))
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(CONFIG))
    schema.app = app

    statuses: dict[str, set[int]] = defaultdict(set)
    failures: dict[tuple[str | None, str], str] = {}
    checked: set[str] = set()
    sent: set[tuple[str, str]] = set()
    for scenario in _scenarios(schema):
        recorder = scenario.recorder
        for case_id, case in recorder.cases.items():
            interaction = recorder.interactions.get(case_id)
            if interaction is not None and interaction.response is not None:
                label, status = case.value.operation.label, interaction.response.status_code
                statuses[label].add(status)
                if status < 300 and isinstance(case.value.body, dict):
                    sent |= {(label.rpartition("/")[2], field) for field in case.value.body}
            for check in recorder.checks.get(case_id, []):
                checked.add(check.name)
                if check.failure_info is not None:
                    found = check.failure_info.failure
                    words = f"{found.operation}: {found.title}\n{found.message}\n{check.failure_info.code_sample}"
                    failures.setdefault((found.operation, found.title), words)

    assert not failures, "\n\n".join(failures.values())
    assert {"response_schema_conformance", "status_code_conformance", "negative_data_rejection"} <= checked
    described = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(statuses) == described
    assert {("fork", "from_step"), ("retry", "from_step"), ("runs", "deadline")} <= sent
    for label, seen in statuses.items():
        assert any(200 <= status < 300 for status in seen), (label, seen)
        assert 405 in seen or 400 in seen or 404 in seen, (label, seen)


def _scenarios(schema: Any) -> Iterator[events.ScenarioFinished]:
    for event in from_schema(schema).execute():
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
        if isinstance(event, events.ScenarioFinished):
            yield event


def test_every_route_and_code_is_in_the_documentation() -> None:
    text = (Path(__file__).parent.parent / "docs" / "http.md").read_text(encoding="utf-8")

    for route in api.ROUTES:
        if not route.harmless:
            rule = route.rule.replace("<run_id>", "<id>")
            assert f"| `{route.methods[0]} {rule}` |" in text, rule
            assert route.permission is not None
            row = next(line for line in text.splitlines() if line.startswith(f"| `{route.methods[0]} {rule}` |"))
            assert row.endswith(f"| `{route.permission}` |")
    codes = {code for _, _, code in problems.CODES}
    codes -= {"invalid_name", "invalid_delay", "invalid_at"}
    for code in codes:
        assert f"`{code}`" in text, code


def test_examples_in_the_documentation_have_the_documented_shape(sqlite_url: str, make_app: apps.MakeApp) -> None:
    text = (Path(__file__).parent.parent / "docs" / "http.md").read_text(encoding="utf-8")
    schemas = document_of(make_app(sqlite_url, workflows=make_workflows()))["components"]["schemas"]
    examples = [json.loads(found) for found in re.findall(r"(?s)```json\n(.*?)```", text)]

    names = ["RunWithSteps", "WouldWake", "Audit", "Workflows", "Health", "Error"]
    assert len(examples) == len(names)
    for name, example in zip(names, examples, strict=True):
        checked = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        validator_for(checked, validate_formats=True).validate(example)
        assert set(example) == set(schemas[name]["properties"]) - {"path"}, name
