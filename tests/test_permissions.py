"""Who may do what, route by route: taking any check away fails a test here."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.dashboard import csrf
from flask_workflows.dashboard.routes import Route
from tests import apps
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of

#: Open to all: they say nothing, or ask for a token of their own.
OPEN = {"asset", "healthz", "metrics"}

#: What each of the other routes asks for, by method and rule.
ASKED = {
    "GET /": "view",
    "GET /api/audit": "view_audit",
    "GET /api/events": "view",
    "GET /api/health": "view",
    "GET /api/openapi.json": "view",
    "GET /api/runs": "view",
    "GET /api/runs/<run_id>": "view",
    "GET /api/token": "view",
    "GET /api/workers": "view",
    "GET /api/workflows": "view",
    "POST /api/events": "deliver",
    "POST /api/events/check": "deliver",
    "POST /api/runs": "start",
    "POST /api/runs/<run_id>/cancel": "cancel",
    "POST /api/runs/<run_id>/fork": "start",
    "POST /api/runs/<run_id>/messages": "send",
    "POST /api/runs/<run_id>/pause": "pause",
    "POST /api/runs/<run_id>/release": "release",
    "POST /api/runs/<run_id>/resume": "pause",
    "POST /api/runs/<run_id>/retry": "retry",
    "POST /api/runs/<run_id>/wake": "wake",
    "GET /audit": "view_audit",
    "GET /event/<event_id>": "view",
    "GET /events": "view",
    "GET /events/new": "deliver",
    "POST /events/new": "deliver",
    "GET /failures": "view",
    "GET /ops": "view",
    "POST /ops": "bulk",
    "GET /ops/<run_id>": "view",
    "POST /ops/<run_id>/stop": "bulk",
    "POST /ops/confirm": "bulk",
    "GET /queues": "view",
    "GET /registry": "view",
    "GET /registry/<path:name>": "view",
    "GET /run/<path:run_id>": "view",
    "GET /run/<path:run_id>/<any(input, output):part>.json": "view_payload",
    "GET /run/<path:run_id>/cancel": "cancel",
    "POST /run/<path:run_id>/cancel": "cancel",
    "GET /run/<path:run_id>/fork": "start",
    "POST /run/<path:run_id>/fork": "start",
    "GET /run/<path:run_id>/move": "wake",
    "POST /run/<path:run_id>/move": "wake",
    "GET /run/<path:run_id>/pause": "pause",
    "POST /run/<path:run_id>/pause": "pause",
    "GET /run/<path:run_id>/release": "release",
    "POST /run/<path:run_id>/release": "release",
    "GET /run/<path:run_id>/resume": "pause",
    "POST /run/<path:run_id>/resume": "pause",
    "GET /run/<path:run_id>/retry": "retry",
    "POST /run/<path:run_id>/retry": "retry",
    "GET /run/<path:run_id>/send": "send",
    "POST /run/<path:run_id>/send": "send",
    "GET /run/<path:run_id>/step/<int:number>": "view",
    "GET /run/<path:run_id>/step/<int:number>/<any(input, output):part>.json": "view_payload",
    "GET /run/<path:run_id>/wake": "wake",
    "POST /run/<path:run_id>/wake": "wake",
    "GET /runs": "view",
    "GET /runs/new": "start",
    "POST /runs/new": "start",
    "GET /system": "view_system",
    "GET /view": "view",
    "POST /view": "view",
    "GET /waits": "view",
    "GET /workers": "view",
}
#: What the JSON routes take; nothing where nothing is needed.
BODIES = {
    "/api/events": {"name": "paid"},
    "/api/events/check": {"name": "paid"},
    "/api/runs": {"workflow": "onboarding", "input": {"user_id": 8}},
    "/api/runs/<run_id>/fork": {"from_step": "load"},
    "/api/runs/<run_id>/messages": {"name": "hello"},
}
OF_A_RUN = sorted(route for route in ASKED if "run_id" in route and "/ops/" not in route)


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def denied() -> set[str]:
    """What the visitor may not do; `cancel of a run` where only the run's own check refuses it."""
    return set()


@pytest.fixture
def scope() -> list[Any]:
    """The visitor's workspaces; null for all."""
    return [None]


@pytest.fixture
def app(sqlite_url: str, make_app: apps.MakeApp, denied: set[str], scope: list[Any]) -> Flask:
    def authorize(action: str, run: Run | None = None) -> bool:
        return action not in denied if run is None else f"{action} of a run" not in denied

    workflows = Workflows(authorize=authorize, scope=lambda: scope[0])
    workflows.clock = FixedClock()
    workflows.event("paid")

    @workflows.workflow
    def onboarding(user_id: int) -> bool:
        return True

    return make_app(sqlite_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def ask(client: FlaskClient, route: str, **values: object) -> TestResponse:
    """Make the request as the pages' own forms and a program would."""
    method, _, rule = route.partition(" ")
    values = {"run_id": "none", "name": "onboarding", "part": "input", "number": 1, "event_id": 1, **values}
    path = re.sub(r"<(?:[^:<>]+:)?(\w+)>", lambda found: str(values[found[1]]), rule)
    if method == "GET":
        return client.get(f"/workflows{path}")
    if path.startswith("/api/"):
        return client.post(f"/workflows{path}", json=BODIES.get(rule, {}))
    with client.application.test_request_context():
        token = csrf.token("")
    data = {csrf.FIELD: token, "name": "paid", "payload": "null", "action": "cancel", "run": "none", "epoch": "1"}
    return client.post(f"/workflows{path}", data=data)


def test_each_route_asks_for_what_it_should(app: Flask) -> None:
    found, opened = {}, set()
    for rule in app.url_map.iter_rules():
        route = getattr(app.view_functions[rule.endpoint], "route", None)
        if not isinstance(route, Route) or re.search(r"wrong_method|nowhere", rule.endpoint):
            continue
        if route.permission is None:
            opened.add(rule.endpoint.rpartition(".")[2])
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            if route.permission is not None:
                found[f"{method} {rule.rule.removeprefix('/workflows')}"] = route.permission.value

    assert opened == OPEN
    assert found == ASKED


@pytest.mark.parametrize("route", ASKED)
def test_visitor_without_the_permission_is_refused(client: FlaskClient, denied: set[str], route: str) -> None:
    before = ask(client, route).status_code
    denied.add(ASKED[route])

    assert before != 403
    assert ask(client, route).status_code == 403


@pytest.mark.parametrize("route", OF_A_RUN)
def test_permission_is_asked_for_once_more_for_the_run(
    client: FlaskClient, rows: Rows, denied: set[str], route: str
) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + 3_600_000)
    rows.step(run_id, "load", 1, input="{}")
    before = ask(client, route, run_id=run_id).status_code
    denied.add(f"{ASKED[route]} of a run")
    refused = ask(client, route, run_id=run_id)

    assert before not in (403, 404)
    assert refused.status_code == (404 if ASKED[route].startswith("view") else 403)


@pytest.mark.parametrize("route", OF_A_RUN)
def test_run_that_may_not_be_seen_cannot_be_acted_on(
    client: FlaskClient, rows: Rows, denied: set[str], route: str
) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + 3_600_000)
    denied.add("view of a run")

    assert ask(client, route, run_id=run_id).status_code == 404


@pytest.mark.parametrize("route", [route for route in ASKED if "run_id" in route])
def test_b110_run_of_another_workspace_is_a_404_on_every_route(
    client: FlaskClient, rows: Rows, scope: list[Any], route: str
) -> None:
    run_id = rows.run("sleeping", workspace="south", due_at=NOW_MS + 3_600_000)
    rows.step(run_id, "load", 1, input="{}")
    scope[0] = ("north",)
    refused, unknown = ask(client, route, run_id=run_id), ask(client, route, run_id=f"{run_id[:-4]}ffff")

    assert refused.status_code == unknown.status_code == 404
    # Nothing tells one from the other, but for the id that was asked for.
    assert refused.text.replace(run_id, "") == unknown.text.replace(f"{run_id[:-4]}ffff", "")


def test_b110_event_of_another_workspace_is_a_404(client: FlaskClient, rows: Rows, scope: list[Any]) -> None:
    event = {"seq": 7, "name": "paid", "workspace": "south", "payload": "{}", "emitted_at": NOW_MS, "woke": 0}
    rows.insert(models.events, [event])
    seen = ask(client, "GET /event/<event_id>", event_id=7)
    scope[0] = ("north",)

    assert seen.status_code == 200
    assert ask(client, "GET /event/<event_id>", event_id=7).status_code == 404
    assert "south" not in client.get("/workflows/events").text


# Only a cookie of the visitor's own is set by /view.
FORMS = [route for route in ASKED if route.startswith("POST /") and "/api/" not in route and route != "POST /view"]


@pytest.mark.parametrize("route", FORMS)
def test_form_without_its_token_does_nothing(client: FlaskClient, rows: Rows, route: str) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + 3_600_000)
    path = re.sub(r"<(?:[^:<>]+:)?\w+>", run_id, route.removeprefix("POST "))

    assert client.post(f"/workflows{path}").status_code == 400
    assert client.post(f"/workflows{path}", data={csrf.FIELD: "wrong"}).status_code == 400


@pytest.mark.parametrize("route", [route for route in ASKED if route.startswith("POST /") and route != "POST /view"])
def test_read_only_pages_change_nothing(sqlite_url: str, make_app: apps.MakeApp, route: str) -> None:
    workflows = Workflows(authorize=lambda action, run=None: True)
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_DASHBOARD_READ_ONLY=True)
    client = app.test_client()

    assert ask(client, route).status_code == 403
    assert client.get("/workflows/runs").status_code == 200
