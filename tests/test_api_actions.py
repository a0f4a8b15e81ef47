from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy.engine import make_url
from werkzeug.test import EnvironBuilder

from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.store import reading as read
from flask_workflows.store import sqlite
from tests import apps
from tests.answers import API
from tests.answers import get
from tests.answers import post
from tests.answers import problem_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of


class FixedClock:
    def now(self) -> Any:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int, tags: list[str] | None = None) -> bool:
        return True

    workflows.event("paid")

    @workflows.workflow
    def awaiting(ctx: WorkflowContext, order: int) -> bool:
        return ctx.wait_for("paid", match={"order": order}) is not None

    @workflows.event("shipped")
    @dataclass
    class Shipped:
        order: int

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


@pytest.fixture
def one_client(sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows) -> FlaskClient:
    """For what does not depend on the database."""
    return make_app(sqlite_url, workflows=workflows).test_client()


#: Of a run that came of none, and that none came of.
_NO_KIN: dict[str, list[object]] = {"children": [], "forks": []}


def audit_of(app: Flask) -> list[tuple[str, str, str | None, str]]:
    with read.reading(apps.runtime_of(app).engine) as connection:
        entries = read.list_audit(connection).entries
    return [(entry.actor, entry.action, entry.run_id, entry.reason) for entry in entries]


# To a run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        ("cancel", "waiting", ("cancelled", False)),
        ("cancel", "running", ("running", True)),
        ("retry", "failed", ("pending", False)),
        ("retry", "cancelled", ("pending", False)),
        ("wake", "sleeping", ("sleeping", False)),
        ("release", "running", ("running", False)),
    ],
)
def test_run_is_acted_on(app: Flask, rows: Rows, action: str, before: str, after: tuple[str, bool]) -> None:
    error = error_json() if before == "failed" else None
    run_id = rows.run(before, error=error, worker=_worker(before), due_at=NOW_MS + 60_000)
    client = app.test_client()
    seen = get(client, f"/runs/{run_id}")

    shown = post(client, f"/runs/{run_id}/{action}", {"epoch": seen["epoch"], "reason": "they asked"})

    without_steps = {"steps": [], "step_count": 0, "steps_after": None, **_NO_KIN}
    assert (shown["status"], shown["cancelling"]) == after
    assert shown["input"] == {"user_id": 8}
    assert shown["wake_at"] == ("2026-11-30T12:00:00.000Z" if action == "wake" else None)
    assert get(client, f"/runs/{run_id}") == {**shown, **without_steps}
    assert audit_of(app) == [("ana", action, run_id, "they asked")]


def _worker(status: str) -> str | None:
    return "gone" if status == "running" else None


def test_bodies_may_be_left_out(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    run_id = rows.run("sleeping", due_at=NOW_MS + 60_000)

    response = client.post(f"{API}/runs/{run_id}/wake")

    assert (response.status_code, response.json and response.json["wake_at"]) == (200, "2026-11-30T12:00:00.000Z")
    assert audit_of(client.application) == [("ana", "wake", run_id, "")]


def test_timer_is_moved(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + 1_000)

    shown = post(client, f"/runs/{run_id}/wake", {"at": "2026-12-01T13:00:00.5+01:00"})

    assert (shown["status"], shown["wake_at"]) == ("sleeping", "2026-12-01T12:00:00.500Z")


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        ("cancel", "completed", "workflow_run_finished"),
        ("retry", "waiting", "workflow_run_not_failed"),
        ("wake", "waiting", "workflow_run_not_sleeping"),
        ("wake", "failed", "workflow_run_finished"),
        ("release", "pending", "workflow_run_not_lost"),
        ("messages", "completed", "workflow_run_finished"),
    ],
)
def test_run_in_another_state_is_left_alone(one_client: FlaskClient, action: str, status: str, code: str) -> None:
    client, rows = one_client, rows_of(one_client.application)
    run_id = rows.run(status)

    response = client.post(f"{API}/runs/{run_id}/{action}", json={"name": "go"} if action == "messages" else {})

    assert problem_of(response) == (409, code)
    assert get(client, f"/runs/{run_id}")["status"] == status
    assert audit_of(client.application) == []


@pytest.mark.parametrize("action", ["cancel", "retry", "wake", "release"])
def test_run_that_changed_since_is_left_alone(one_client: FlaskClient, action: str) -> None:
    client, rows = one_client, rows_of(one_client.application)
    status = {"cancel": "pending", "retry": "failed", "wake": "sleeping", "release": "running"}[action]
    run_id = rows.run(status, epoch=7, worker=_worker(status))

    response = client.post(f"{API}/runs/{run_id}/{action}", json={"epoch": 6})

    assert problem_of(response) == (409, "workflow_run_changed")
    assert (get(client, f"/runs/{run_id}")["status"], audit_of(client.application)) == (status, [])


def test_run_whose_key_is_taken_is_not_retried(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    failed = rows.run("failed", key="k")
    rows.run("pending", key="k")

    assert problem_of(client.post(f"{API}/runs/{failed}/retry", json={})) == (409, "key_taken")


def _failed(rows: Rows, **values: object) -> str:
    run_id = rows.run("failed", error=error_json(), **values)
    for position, key in enumerate(("load", "charge", "report"), start=1):
        rows.step(run_id, key, position)
    return run_id


def test_run_is_retried_from_a_step(app: Flask, rows: Rows) -> None:
    run_id, client = _failed(rows), app.test_client()

    shown = post(client, f"/runs/{run_id}/retry", {"from_step": "charge", "epoch": 1, "reason": "twice"})

    assert (shown["status"], [step["key"] for step in get(client, f"/runs/{run_id}")["steps"]]) == ("pending", ["load"])
    assert audit_of(app) == [("ana", "retry", run_id, "twice")]


def test_run_is_forked(app: Flask, rows: Rows) -> None:
    run_id, client = _failed(rows, key="k"), app.test_client()

    made = post(client, f"/runs/{run_id}/fork", {"from_step": "charge", "epoch": 1, "reason": "anew"}, status=201)

    assert (made["forked_from"], made["status"], made["key"], made["created"]) == (run_id, "pending", None, True)
    assert [step["key"] for step in get(client, f"/runs/{made['id']}")["steps"]] == ["load"]
    other = get(client, f"/runs/{run_id}")
    assert (other["status"], [fork["id"] for fork in other["forks"]]) == ("failed", [made["id"]])
    assert audit_of(app) == [("ana", "fork", run_id, "anew")]


def test_whoever_may_not_view_the_fork_is_told_its_id(one_client: FlaskClient, workflows: Workflows) -> None:
    run_id = _failed(rows_of(one_client.application))
    workflows.authorize(lambda action, run=None: action != "view" or run is None or run.id == run_id)

    made = post(one_client, f"/runs/{run_id}/fork", {"from_step": "load"}, status=201)

    assert set(made) == {"id", "created"}


@pytest.mark.parametrize("action", ["retry", "fork"])
def test_going_on_from_a_step_is_refused_where_it_cannot_be(one_client: FlaskClient, action: str) -> None:
    client, rows = one_client, rows_of(one_client.application)
    run_id, undone = _failed(rows), _failed(rows, undoing="{}")

    def refused(run: str, **body: object) -> tuple[int, str]:
        return problem_of(client.post(f"{API}/runs/{run}/{action}", json={"from_step": "charge", **body}))

    assert refused(run_id, from_step="nothing") == (404, "workflow_step_not_found")
    assert refused(run_id, from_step=7) == (400, "invalid_from_step")
    assert refused(run_id, epoch=7) == (409, "workflow_run_changed")
    assert refused(undone) == (409, "workflow_run_compensated")
    assert audit_of(client.application) == []


def test_fork_needs_a_step_and_a_workflow_of_the_apps_own(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)

    missing = client.post(f"{API}/runs/{_failed(rows)}/fork", json={})
    own = client.post(f"{API}/runs/{_failed(rows, workflow='workflows.bulk')}/fork", json={"from_step": "load"})

    assert problem_of(missing) == (400, "invalid_from_step")
    assert problem_of(own) == (404, "workflow_not_registered")


@pytest.mark.parametrize(("body", "after"), [({}, "cancelled"), ({"children": False}, "sleeping")])
def test_children_are_cancelled_or_kept(app: Flask, rows: Rows, body: dict[str, bool], after: str) -> None:
    parent = rows.run("waiting")
    child = rows.run("sleeping", parent_id=parent, due_at=NOW_MS + 60_000)
    client = app.test_client()

    post(client, f"/runs/{parent}/cancel", body)

    shown = get(client, f"/runs/{child}")
    assert (shown["status"], shown["parent_id"]) == (after, parent)
    listed = {"id": child, "workflow": "onboarding", "status": after}
    assert get(client, f"/runs/{parent}")["children"] == [listed]


def test_children_is_true_or_false(one_client: FlaskClient) -> None:
    run_id = rows_of(one_client.application).run("waiting")

    assert problem_of(one_client.post(f"{API}/runs/{run_id}/cancel", json={"children": 0})) == (400, "invalid_children")


def test_message_is_sent_once(app: Flask, rows: Rows) -> None:
    run_id = rows.run("waiting")
    client = app.test_client()
    body = {"name": "go", "payload": {"n": 1.5, "none": None}, "delivery_id": "d1", "reason": "why"}

    first = post(client, f"/runs/{run_id}/messages", body, status=201)
    again = post(client, f"/runs/{run_id}/messages", body, status=200)

    assert first == {"run_id": run_id, "name": "go", "created": True}
    assert again == {**first, "created": False}
    (event,) = get(client, "/events")["events"]
    assert (event["name"], event["run_id"]) == ("go", run_id)
    assert audit_of(app) == [("ana", "send", run_id, "why")]


ACTIONS = ("cancel", "retry", "fork", "wake", "release", "messages")


def test_b110_run_of_another_workspace_is_not_there(one_client: FlaskClient, workflows: Workflows) -> None:
    client, rows = one_client, rows_of(one_client.application)
    workflows.scope(lambda: "ours")
    theirs = rows.run("failed", workspace="theirs")

    for action in ACTIONS:
        body = {"messages": {"name": "go"}, "fork": {"from_step": "load"}}.get(action, {})
        hidden = client.post(f"{API}/runs/{theirs}/{action}", json=body)
        unknown = client.post(f"{API}/runs/unknown/{action}", json=body)
        assert problem_of(hidden) == problem_of(unknown) == (404, "workflow_run_not_found"), action
        assert hidden.text.replace(theirs, "X") == unknown.text.replace("unknown", "X")
    assert audit_of(client.application) == []


def test_header_limits_actions_too(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    theirs = rows.run("waiting", workspace="theirs")

    response = client.post(f"{API}/runs/{theirs}/cancel", json={}, headers={"X-Workspace": "ours"})

    assert problem_of(response) == (404, "workflow_run_not_found")
    assert get(client, f"/runs/{theirs}")["status"] == "waiting"
    assert post(client, f"/runs/{theirs}/cancel", headers={"X-Workspace": "theirs"})["status"] == "cancelled"


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_needs_its_permission(one_client: FlaskClient, workflows: Workflows, action: str) -> None:
    permission = {"messages": "send", "fork": "start"}.get(action, action)
    app = one_client.application
    run_id = rows_of(app).run("waiting")
    workflows.authorize(lambda asked, run=None: asked != permission)
    body = {"messages": {"name": "go"}, "fork": {"from_step": "load"}}.get(action, {})

    refused = one_client.post(f"{API}/runs/{run_id}/{action}", json=body)
    workflows.authorize(lambda asked, run=None: asked != permission or run is None)
    refused_of_run = one_client.post(f"{API}/runs/{run_id}/{action}", json=body)

    assert problem_of(refused) == problem_of(refused_of_run) == (403, "forbidden")
    assert audit_of(app) == []


@pytest.mark.parametrize("path", ["/runs", "/events", "/events/check", *(f"/runs/x/{action}" for action in ACTIONS)])
def test_read_only_changes_nothing(sqlite_url: str, make_app: apps.MakeApp, path: str) -> None:
    client = make_app(sqlite_url, WORKFLOWS_DASHBOARD_READ_ONLY=True).test_client()

    assert problem_of(client.post(API + path, json={})) == (403, "read_only")


def test_reason_is_asked_for_where_the_app_wants_one(
    sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_REQUIRE_REASON=["cancel", "start", "send", "deliver"])
    client, run_id = app.test_client(), rows_of(app).run("waiting")
    calls: dict[str, dict[str, object]] = {
        f"/runs/{run_id}/cancel": {},
        f"/runs/{run_id}/messages": {"name": "go"},
        "/runs": {"workflow": "onboarding", "input": {"user_id": 1}},
        "/events": {"name": "paid"},
    }

    for path, body in calls.items():
        for reason in (None, "", "  "):
            response = client.post(API + path, json={**body, "reason": reason})
            assert problem_of(response) == (400, "invalid_reason")
    assert audit_of(app) == []
    for path, body in reversed(calls.items()):
        assert client.post(API + path, json={**body, "reason": "why"}).status_code in (200, 201)
    assert {reason for _, _, _, reason in audit_of(app)} == {"why"}


# Bodies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"workflow": NaN}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"[]", "invalid_body"),
        (b"null", "invalid_body"),
        (b'{"workflow": "onboarding", "inptu": {}}', "invalid_body"),
        (b'{"\\ud800": 1}', "invalid_body"),
        (b"{}", "invalid_workflow"),
        (b"", "invalid_workflow"),
        (b'{"workflow": null}', "invalid_workflow"),
        (b'{"workflow": 7}', "invalid_workflow"),
        (b'{"workflow": "\\ud800"}', "invalid_workflow"),
        (b'{"workflow": "onboarding", "input": []}', "invalid_input"),
        (b'{"workflow": "onboarding", "delay": -1}', "invalid_delay"),
        (b'{"workflow": "onboarding", "delay": true}', "invalid_delay"),
        (b'{"workflow": "onboarding", "delay": 1e999}', "invalid_delay"),
        (b'{"workflow": "onboarding", "key": ""}', "invalid_key"),
        (b'{"workflow": "onboarding", "key": "a\\u0000"}', "invalid_key"),
        (b'{"workflow": "onboarding", "workspace": " "}', "invalid_workspace"),
        (b'{"workflow": "onboarding", "reason": "\\u0000"}', "invalid_reason"),
    ],
)
def test_body_that_is_not_understood_is_refused(one_client: FlaskClient, body: bytes, code: str) -> None:
    response = one_client.post(f"{API}/runs", data=body, content_type="application/json")

    assert problem_of(response) == (400, code)


def test_unknown_field_is_named(one_client: FlaskClient) -> None:
    response = one_client.post(f"{API}/runs", json={"workflow": "onboarding", "inptu": {}})

    assert response.json is not None
    assert "'inptu'" in response.json["message"]
    assert "workflow, input, key, workspace, delay, deadline, reason" in response.json["message"]


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx",
     "application/json; charset=latin-1"],
)  # fmt: skip
def test_other_content_types_are_refused(one_client: FlaskClient, content_type: str | None) -> None:
    response = one_client.post(f"{API}/runs", data=b'{"workflow": "onboarding"}', content_type=content_type)

    assert problem_of(response) == (415, "unsupported_media_type")


def test_charset_of_json_may_be_named(one_client: FlaskClient) -> None:
    body = json.dumps({"workflow": "onboarding", "input": {"user_id": 1}, "key": "Ü"}, ensure_ascii=False).encode()

    response = one_client.post(f"{API}/runs", data=body, content_type='Application/JSON; charset="UTF-8"')

    assert (response.status_code, response.json and response.json["key"]) == (201, "Ü")


@pytest.mark.parametrize("limit", [None, 1_000])
def test_body_that_is_too_large_is_refused(sqlite_url: str, make_app: apps.MakeApp, limit: int | None) -> None:
    app = make_app(sqlite_url, WORKFLOWS_MAX_PAYLOAD_BYTES=1_024, MAX_CONTENT_LENGTH=limit)
    client = app.test_client()

    size = 70_000 if limit is None else 1_001
    request = EnvironBuilder(f"{API}/runs", method="POST", data=b" " * size, content_type="application/json")
    refused = client.open(request.get_environ())
    without_length = request.get_environ()
    del without_length["CONTENT_LENGTH"]
    chunked = client.open({**without_length, "wsgi.input_terminated": True})

    assert problem_of(refused) == problem_of(chunked) == (413, "too_large")


# Starting ----------------------------------------------------------------------------------


def test_run_is_started(app: Flask) -> None:
    client = app.test_client()
    body = {
        "workflow": "onboarding",
        "input": {"user_id": 8, "tags": ["a"]},
        "key": "onboarding:8",
        "workspace": "acme",
        "delay": 90.5,
        "reason": "by hand",
    }

    response = client.post(f"{API}/runs", json=body)
    assert (response.status_code, response.json is not None) == (201, True)
    started: dict[str, Any] = response.json  # type: ignore[assignment]
    again = client.post(f"{API}/runs", json=body)

    assert response.headers["Location"] == again.headers["Location"] == f"{API}/runs/{started['id']}"
    assert started["input"] == body["input"]
    assert started["key"] == "onboarding:8"
    assert started["workspace_id"] == "acme"
    assert started["status"] == "sleeping"
    assert started["wake_at"] == "2026-11-30T12:01:30.500Z"
    assert started["created"]
    assert again.status_code == 200
    assert again.json == {**started, "created": False}
    shown = get(client, f"/runs/{started['id']}")
    assert {**shown, "created": True} == {**started, "steps": [], "step_count": 0, "steps_after": None, **_NO_KIN}
    assert audit_of(app)[-1] == ("ana", "start", started["id"], "by hand")


def test_minimal_start(client: FlaskClient) -> None:
    started = post(client, "/runs", {"workflow": "onboarding", "input": {"user_id": 1}}, status=201)

    assert (started["status"], started["key"], started["workspace_id"]) == ("pending", None, None)


def test_whoever_may_not_look_is_told_the_id_alone(one_client: FlaskClient, workflows: Workflows) -> None:
    workflows.authorize(lambda action, run=None: action == "start")

    response = one_client.post(f"{API}/runs", json={"workflow": "onboarding", "input": {"user_id": 1}})

    assert response.status_code == 201
    assert response.json is not None
    assert set(response.json) == {"id", "created"}


def test_unknown_workflow_is_not_found(one_client: FlaskClient) -> None:
    assert problem_of(one_client.post(f"{API}/runs", json={"workflow": "nothing"})) == (404, "workflow_not_registered")


@pytest.mark.parametrize(
    ("input", "path"),
    [
        ({}, "$"),
        ({"user_id": "8"}, "$.user_id"),
        ({"user_id": 8, "tags": ["a", 1]}, "$.tags[1]"),
        ({"user_id": 8, "tags": ["\x00"]}, "$.tags[0]"),
        ({"user_id": 8, "tags": ["\ud800"]}, "$.tags[0]"),
        ({"user_id": 8, "more": 1}, "$"),
    ],
)
def test_input_that_does_not_fit_is_told_where(one_client: FlaskClient, input: dict[str, object], path: str) -> None:
    response = one_client.post(f"{API}/runs", json={"workflow": "onboarding", "input": input})

    assert problem_of(response) == (422, "invalid_value")
    assert response.json is not None
    assert response.json["path"] == path
    assert get(one_client, "/runs")["runs"] == []


def test_input_that_is_too_large_is_refused(sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows) -> None:
    client = make_app(sqlite_url, workflows=workflows, WORKFLOWS_MAX_PAYLOAD_BYTES=1_024).test_client()

    response = client.post(f"{API}/runs", json={"workflow": "onboarding", "input": {"tags": ["x" * 2_000]}})

    assert problem_of(response) == (422, "value_too_large")


@pytest.mark.parametrize(
    ("scope", "header", "body", "expected"),
    [
        (None, None, None, None),
        (None, "ours", None, "ours"),
        (None, None, "ours", "ours"),
        (None, "ours", "ours", "ours"),
        (None, "ours", "theirs", 404),
        ("ours", None, None, "ours"),
        ("ours", None, "ours", "ours"),
        ("ours", None, "theirs", 404),
        ("ours", "theirs", None, 404),
        (["ours", "mine"], None, None, 400),
        (["ours", "mine"], None, "mine", "mine"),
        (["ours", "mine"], "ours", None, "ours"),
        (["ours", "mine"], None, "theirs", 404),
        ([], None, None, 400),
        ([""], None, None, None),
    ],
)
@pytest.mark.parametrize("path", ["/runs", "/events"])
def test_b110_what_is_made_belongs_to_the_visitors_workspace(
    one_client: FlaskClient,
    workflows: Workflows,
    path: str,
    scope: str | list[str] | None,
    header: str | None,
    body: str | None,
    expected: str | int | None,
) -> None:
    workflows.scope(lambda: scope)
    made = {"workflow": "onboarding", "input": {"user_id": 1}} if path == "/runs" else {"name": "paid"}

    response = one_client.post(
        API + path,
        json={**made, **({} if body is None else {"workspace": body})},
        headers={} if header is None else {"X-Workspace": header},
    )

    if isinstance(expected, int):
        code = "workspace_not_found" if expected == 404 else "invalid_workspace"
        assert problem_of(response) == (expected, code)
        assert audit_of(one_client.application) == []
    else:
        assert response.status_code == 201, response.text
        assert response.json is not None
        assert response.json["workspace_id"] == expected


def test_b110_key_of_another_workspace_is_free(app: Flask, rows: Rows, workflows: Workflows) -> None:
    theirs = rows.run("pending", key="k", workspace="theirs")
    workflows.scope(lambda: "ours")

    started = post(
        app.test_client(), "/runs", {"workflow": "onboarding", "input": {"user_id": 1}, "key": "k"}, status=201
    )

    assert started["id"] != theirs


# Events ------------------------------------------------------------------------------------


def test_event_is_delivered_once(app: Flask) -> None:
    client = app.test_client()
    body = {"name": "paid", "payload": {"order": 7}, "workspace": "acme", "delivery_id": "d1", "reason": "why"}

    first = post(client, "/events", body, status=201)
    again = post(client, "/events", body, status=200)

    assert first == {"id": first["id"], "name": "paid", "workspace_id": "acme", "created": True}
    assert again == {**first, "created": False}
    (listed,) = get(client, "/events?name=paid")["events"]
    assert listed == {
        "id": first["id"],
        "name": "paid",
        "workspace_id": "acme",
        "run_id": None,
        "state": "new",
        "emitted_at": "2026-11-30T12:00:00.000Z",
        "matched_at": None,
        "woke": 0,
    }
    assert audit_of(app) == [("ana", "deliver", None, "why")]


def test_event_says_beforehand_what_it_would_wake(app: Flask, workflows: Workflows) -> None:
    with app.app_context():
        first, second, _ = (
            workflows.spawn("awaiting", {"order": order}, workspace=workspace).id
            for order, workspace in ((1, "ours"), (1, "theirs"), (2, "ours"))
        )
        workflows.tick()
    client = app.test_client()
    body = {"name": "paid", "payload": {"order": 1}}

    everywhere = post(client, "/events/check", body)
    ours = post(client, "/events/check", body, headers={"X-Workspace": "ours"})

    assert everywhere == {
        "run_ids": sorted([first, second]), "count": 2, "capped": False, "others": 1, "others_capped": False,
    }  # fmt: skip
    assert (ours["run_ids"], ours["count"], ours["others"]) == ([first], 1, 1)
    assert get(client, "/events")["events"] == []
    assert audit_of(app) == []

    post(client, "/events", body, status=201, headers={"X-Workspace": "ours"})
    with app.app_context():
        workflows.tick()
    assert get(client, f"/runs/{first}")["status"] == "completed"
    assert get(client, f"/runs/{second}")["status"] == "waiting"


@pytest.mark.parametrize("path", ["/events", "/events/check"])
def test_payload_that_does_not_fit_is_told_where(one_client: FlaskClient, path: str) -> None:
    unknown = one_client.post(API + path, json={"name": "nothing"})
    wrong = one_client.post(API + path, json={"name": "shipped", "payload": {"order": "x"}})
    nul = one_client.post(API + path, json={"name": "paid", "payload": ["a", {"b": "\x00"}]})

    assert problem_of(unknown) == (404, "unregistered_event")
    assert problem_of(wrong) == problem_of(nul) == (422, "invalid_value")
    assert [response.json and response.json["path"] for response in (wrong, nul)] == ["$.order", "$[1].b"]


def test_message_that_cannot_be_stored_is_told_where(one_client: FlaskClient) -> None:
    run_id = rows_of(one_client.application).run("waiting")

    for payload in (b'{"a": ["\\u0000"]}', b'{"a": ["\\ud800"]}'):
        response = one_client.post(
            f"{API}/runs/{run_id}/messages",
            data=b'{"name": "go", "payload": ' + payload + b"}",
            content_type="application/json",
        )
        assert problem_of(response) == (422, "invalid_value"), payload
        assert response.json is not None
        assert response.json["path"] == "$.a[0]"


def test_events_come_in_pages(client: FlaskClient) -> None:
    made = [post(client, "/events", {"name": "paid", "payload": number}, status=201)["id"] for number in range(5)]
    newest = made[::-1]

    for filter in ("", "&name=paid"):
        first = get(client, f"/events?limit=2{filter}")
        second = get(client, f"/events?limit=2{filter}&cursor={first['older']}")
        third = get(client, f"/events?limit=2{filter}&cursor={second['older']}")
        pages = [[event["id"] for event in page["events"]] for page in (first, second, third)]
        assert pages == [newest[:2], newest[2:4], newest[4:]]
        assert (third["older"], third["searched"]) == (None, None)
    assert get(client, "/events?name=other")["events"] == []


def test_events_are_filtered_by_what_became_of_them(client: FlaskClient, workflows: Workflows, app: Flask) -> None:
    looked = post(client, "/events", {"name": "paid"}, status=201)["id"]
    with app.app_context():
        workflows.tick()
    new = post(client, "/events", {"name": "paid"}, status=201)["id"]

    assert [event["id"] for event in get(client, "/events?state=new")["events"]] == [new]
    assert [event["id"] for event in get(client, "/events?state=unmatched")["events"]] == [looked]
    assert get(client, "/events?state=matched")["events"] == []
    assert problem_of(client.get(f"{API}/events?state=x")) == (400, "invalid_state")


def test_b110_events_and_messages_of_others_are_not_seen(app: Flask, rows: Rows, workflows: Workflows) -> None:
    client = app.test_client()
    made: dict[str, list[Any]] = {}
    for workspace in ("ours", "theirs"):
        run_id = rows.run("waiting", workspace=workspace)
        made[workspace] = [post(client, "/events", {"name": "paid", "workspace": workspace}, status=201)["id"]]
        post(client, f"/runs/{run_id}/messages", {"name": "paid"}, status=201)
    post(client, "/events", {"name": "paid"}, status=201)
    workflows.scope(lambda: ["ours", "mine"])

    everything = get(client, "/events")["events"]

    assert {event["workspace_id"] for event in everything} == {"ours"}
    assert [event["run_id"] is None for event in everything] == [False, True]
    assert [event["id"] for event in get(client, "/events?name=paid")["events"]] == made["ours"]
    assert get(client, "/events", headers={"X-Workspace": "mine"})["events"] == []


def test_payloads_of_events_are_in_no_list(client: FlaskClient) -> None:
    post(client, "/events", {"name": "paid", "payload": "hush"}, status=201)

    assert "hush" not in client.get(f"{API}/events").text


@pytest.mark.parametrize(
    "cursor", ["older", "older.1", "next.1.2", "older.x.1", "older.1.-2", "older." + "9" * 19 + ".1"]
)
def test_cursor_of_events_is_checked(one_client: FlaskClient, cursor: str) -> None:
    assert problem_of(one_client.get(f"{API}/events?cursor={cursor}")) == (400, "invalid_cursor")


# The audit ---------------------------------------------------------------------------------


def test_audit_says_who_did_what(app: Flask, rows: Rows) -> None:
    run_id = rows.run("waiting", workspace="acme")
    client = app.test_client()
    client.post(f"{API}/runs/{run_id}/cancel", json={"reason": "token=abc they asked"}, headers={"X-Request-ID": "r1"})
    post(client, "/events", {"name": "paid"}, status=201)

    everything = get(client, "/audit")["entries"]

    assert [entry["action"] for entry in everything] == ["deliver", "cancel"]
    assert everything[1] == {
        "id": everything[1]["id"],
        "at": "2026-11-30T12:00:00.000Z",
        "actor": "ana",
        "action": "cancel",
        "run_id": run_id,
        "workspace_id": "acme",
        "target": "onboarding",
        "before": "waiting",
        "after": "cancelled",
        "reason": "token=[hidden] they asked",
        "request_id": "r1",
        "address": None,
        "operation": None,
    }
    for query in (f"run_id={run_id}", "action=cancel"):
        assert get(client, f"/audit?{query}")["entries"] == everything[1:]
    assert get(client, "/audit?actor=ana&limit=1")["entries"] == everything[:1]
    assert get(client, "/audit?actor=bob")["entries"] == []
    older = get(client, "/audit?limit=1")["older"]
    assert get(client, f"/audit?limit=1&cursor={older}")["entries"] == everything[1:]


def test_b110_audit_of_others_is_not_seen(app: Flask, rows: Rows, workflows: Workflows) -> None:
    client = app.test_client()
    for workspace in ("ours", "theirs"):
        post(client, f"/runs/{rows.run('waiting', workspace=workspace)}/cancel")
    workflows.scope(lambda: "ours")

    (entry,) = get(client, "/audit")["entries"]

    assert entry["workspace_id"] == "ours"


def test_audit_needs_its_own_permission(one_client: FlaskClient, workflows: Workflows) -> None:
    workflows.authorize(lambda action, run=None: action == "view")

    assert problem_of(one_client.get(f"{API}/audit")) == (403, "forbidden")


# The database ------------------------------------------------------------------------------


def test_database_that_is_locked_is_told(
    sqlite_url: str,
    make_app: apps.MakeApp,
    workflows: Workflows,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 1)
    app = make_app(sqlite_url, workflows=workflows)
    run_id = rows_of(app).run("waiting")
    client = app.test_client()

    with closing(sqlite3.connect(make_url(sqlite_url).database or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = client.post(f"{API}/runs/{run_id}/cancel", json={})
        assert get(client, f"/runs/{run_id}")["status"] == "waiting"
        other.execute("ROLLBACK")

    assert problem_of(refused) == (503, "unreachable")
    assert "locked" in caplog.text
    assert post(client, f"/runs/{run_id}/cancel")["status"] == "cancelled"
