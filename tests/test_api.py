from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from flask import abort
from flask import Blueprint
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy.pool import QueuePool
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client
from werkzeug.wrappers import Response

from flask_workflows import models
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.config import WorkflowsConfig
from flask_workflows.dashboard import api
from flask_workflows.dashboard.blueprint import create_blueprint
from flask_workflows.dashboard.csrf import HEADER
from flask_workflows.errors import ReadTimeout
from flask_workflows.store import reading as read
from flask_workflows.store.reading import step_pages
from tests import apps
from tests.answers import API
from tests.answers import check_shape
from tests.answers import get
from tests.answers import problem_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow(version=3, min_version=2)
    def onboarding(user_id: int, *, tags: list[str] | None = None) -> bool:
        """Welcomes a new learner.

        And more.
        """
        return True

    workflows.event("paid")
    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


@pytest.fixture
def one_app(sqlite_url: str, make_app: apps.MakeApp) -> Callable[..., Flask]:
    """Make an app on SQLite, for what does not depend on the database."""

    def make(workflows: Workflows | None = None, **config: object) -> Flask:
        return make_app(sqlite_url, db=None, workflows=workflows, **config)

    return make


@pytest.fixture
def one_client(one_app: Callable[..., Flask], workflows: Workflows) -> FlaskClient:
    return one_app(workflows).test_client()


# Runs --------------------------------------------------------------------------------------


def test_run_has_the_documented_shape(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run(
        "waiting",
        version=2,
        key="onboarding:8",
        queue="mail",
        workspace="acme",
        due_at=NOW_MS + 604_800_000,
        epoch=4,
        attempts=1,
    )
    rows.step(run_id, "send-welcome", 1, input='{"user_id": 8}', output="null")
    rows.step(
        run_id,
        "$wait:course.completed",
        2,
        "waiting",
        kind="wait",
        due_at=NOW_MS + 604_800_000,
        input='{"events":[{"name":"course.completed","match":{"user_id":8}}],"timeout_ms":604800000}',
        output=None,
    )

    assert get(client, f"/runs/{run_id}") == {
        "id": run_id,
        "workflow": "onboarding",
        "version": 2,
        "status": "waiting",
        "queue": "mail",
        "workspace_id": "acme",
        "key": "onboarding:8",
        "epoch": 4,
        "attempts": 1,
        "max_attempts": 3,
        "cancelling": False,
        "input": {"user_id": 8},
        "output": None,
        "error": None,
        "cause": None,
        "parent_id": None,
        "forked_from": None,
        "paused_at": None,
        "deadline_at": None,
        "wake_at": "2026-12-07T12:00:00.000Z",
        "created_at": "2026-11-30T11:59:00.000Z",
        "started_at": "2026-11-30T11:59:00.000Z",
        "updated_at": "2026-11-30T11:59:00.000Z",
        "finished_at": None,
        "steps": [
            {
                "key": "send-welcome",
                "kind": "step",
                "status": "completed",
                "attempts": 1,
                "input": {"user_id": 8},
                "output": None,
                "error": None,
                "earlier": [],
                "wake_at": None,
                "started_at": "2026-11-30T12:00:00.000Z",
                "finished_at": "2026-11-30T12:00:01.000Z",
            },
            {
                "key": "$wait:course.completed",
                "kind": "wait",
                "status": "waiting",
                "attempts": 1,
                "event": "course.completed",
                "filter": {"fields": {"user_id": 8}},
                "events": [{"event": "course.completed", "filter": {"fields": {"user_id": 8}}}],
                "input": {"events": [{"name": "course.completed", "match": {"user_id": 8}}], "timeout_ms": 604_800_000},
                "output": None,
                "error": None,
                "earlier": [],
                "wake_at": "2026-12-07T12:00:00.000Z",
                "started_at": "2026-11-30T12:00:00.000Z",
                "finished_at": None,
            },
        ],
        "step_count": 2,
        "steps_after": None,
        "children": [],
        "forks": [],
    }


@pytest.mark.parametrize("status", ["pending", "running", "sleeping", "completed", "failed", "cancelled"])
def test_every_status_has_that_shape(one_client: FlaskClient, status: str) -> None:
    client, rows = one_client, rows_of(one_client.application)
    error = error_json(traceback="Traceback …") if status == "failed" else None
    run_id = rows.run(status, error=error, cancel_requested_at=NOW_MS if status == "running" else None)

    shown = get(client, f"/runs/{run_id}")
    (listed,) = get(client, "/runs")["runs"]

    assert shown["status"] == status
    assert shown["workspace_id"] is None
    assert shown["cancelling"] is (status == "running")
    assert (shown["wake_at"] is not None) is (status == "sleeping")
    if status == "failed":
        assert shown["error"] == {
            "type": "KeyError", "message": "'vat_id'", "step": None, "kind": "step", "traceback": "Traceback …",
        }  # fmt: skip
    left_out = {"input", "output", "steps", "step_count", "steps_after", "children", "forks"}
    assert {name for name in shown if name not in listed} == left_out
    assert listed == {name: _without_traceback(value) for name, value in shown.items() if name not in left_out}


def _without_traceback(value: Any) -> Any:
    return {name: held for name, held in value.items() if name != "traceback"} if isinstance(value, dict) else value


def test_waits_for_several_events_and_for_messages(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    run_id = rows.run("waiting")
    several = {"events": [{"name": "paid", "match": {"id": 1}}, {"name": "refused"}], "timeout_ms": None}
    rows.step(run_id, "$wait", 1, "waiting", kind="wait", input=json.dumps(several))
    rows.step(run_id, "$receive:go", 2, "waiting", kind="receive", input='{"message":"go","timeout_ms":null}')
    rows.step(run_id, "$wait#2", 3, "waiting", kind="wait", input="no JSON")
    rows.step(run_id, "$wait#3", 4, "waiting", kind="wait", input='{"events":[7,{"name":8},{"name":"x","match":9}]}')

    first, second, third, fourth = get(client, f"/runs/{run_id}")["steps"]

    assert (first["event"], first["filter"]) == (None, None)
    assert first["events"] == [
        {"event": "paid", "filter": {"fields": {"id": 1}}},
        {"event": "refused", "filter": {"fields": {}}},
    ]
    assert second["event"] == "go"
    assert third["events"] == []
    assert fourth["events"] == [{"event": "x", "filter": {"fields": {}}}]


def test_payloads_are_for_those_who_may_see_them(one_client: FlaskClient, workflows: Workflows) -> None:
    client, rows = one_client, rows_of(one_client.application)
    workflows.authorize(lambda action, run=None: action == "view")
    run_id = rows.run(input='{"note": "hush"}', output='"hush"', error=error_json())
    rows.step(run_id, "send", 1, input='"hush"', output='"hush"')
    wait = {"events": [{"name": "paid", "match": {"note": "hush"}}]}
    rows.step(run_id, "$wait:paid", 2, kind="wait", input=json.dumps(wait), output='"hush"')

    shown = get(client, f"/runs/{run_id}")

    assert "hush" not in json.dumps(shown)
    assert "input" not in shown
    assert "output" not in shown
    assert {"input", "output", "filter"}.isdisjoint(shown["steps"][0])
    assert shown["steps"][1]["event"] == "paid"


def test_app_is_asked_for_the_payload_of_the_very_run(one_client: FlaskClient, workflows: Workflows) -> None:
    client, rows = one_client, rows_of(one_client.application)
    workflows.authorize(lambda action, run=None: action == "view" or (run is not None and run.key == "mine"))
    mine, other = rows.run(key="mine"), rows.run(key="other")

    assert get(client, f"/runs/{mine}")["input"] == {"user_id": 8}
    assert "input" not in get(client, f"/runs/{other}")


def test_b111_secrets_are_hidden(one_client: FlaskClient, workflows: Workflows) -> None:
    client, rows = one_client, rows_of(one_client.application)
    workflows.redact(lambda path, value: path == "$.order[1].iban_of")
    given = {"user": {"password": "p4ss"}, "url": "postgresql://me:p4ss@db/x", "order": [1, {"iban_of": "p4ss"}]}
    failed = error_json(message="refused Authorization: Bearer p4ssp4ss", traceback='token="p4ss"')
    run_id = rows.run("failed", input=json.dumps(given), output=json.dumps(given), error=failed)
    attempts = [{"started_at": 1, "finished_at": 2, "error": json.loads(failed)}]
    rows.step(
        run_id, "send", 1, "failed", input=json.dumps(given), output=None, error=failed, earlier=json.dumps(attempts)
    )
    wait = {"events": [{"name": "paid", "match": {"user.token": "p4ss"}}]}
    rows.step(run_id, "$wait:paid", 2, kind="wait", input=json.dumps(wait))

    shown = client.get(f"{API}/runs/{run_id}").text + client.get(f"{API}/runs").text

    assert "p4ss" not in shown
    assert "[hidden" in shown


def test_value_that_no_code_reads_spoils_nothing_else(client: FlaskClient, rows: Rows) -> None:
    """R13"""
    deep = "[" * 500 + "]" * 500
    broken = rows.run("failed", input="{no json", output='{"a": NaN, "b": 1e999}', error="neither")
    strange = rows.run("on-hold", input=deep, output='"\\ud800"')
    rows.step(broken, "send", 1, "done-ish", input="{", output=deep, error="[]", earlier="nothing", kind="new")

    shown = get(client, f"/runs/{broken}")
    listed = get(client, "/runs")["runs"]

    assert "undecodable" in shown["input"]
    assert set(shown["output"]) == {"a", "b"}
    assert all("undecodable" in value for value in shown["output"].values())
    assert shown["error"]["type"] == "unreadable"
    assert shown["steps"][0]["status"] == "done-ish"
    assert {run["id"]: run["status"] for run in listed} == {broken: "failed", strange: "on-hold"}
    assert get(client, f"/runs/{strange}")["output"] == "\ud800"


def test_steps_come_in_pages(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run()
    for number in range(5):
        rows.step(run_id, f"s{number}", number // 2, output=str(number))

    seen: list[str] = []
    after: str | None = None
    for _ in range(3):
        query = f"?steps_limit=2{f'&steps_after={after}' if after else ''}"
        page = get(client, f"/runs/{run_id}{query}")
        assert page["step_count"] == 5
        seen += [step["key"] for step in page["steps"]]
        after = page["steps_after"]

    assert seen == ["s0", "s1", "s2", "s3", "s4"]
    assert after is None
    assert get(client, f"/runs/{run_id}?steps_after=s4")["steps"] == []
    assert problem_of(client.get(f"{API}/runs/{run_id}?steps_after=s9")) == (404, "workflow_step_not_found")


def test_page_of_steps_is_not_larger_than_memory(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_pages, "SIZE", 100)
    run_id = rows.run()
    for number in range(4):
        rows.step(run_id, f"s{number}", number, input=json.dumps("x" * 60), output='"üüüüüüüüüü"')

    page = get(client, f"/runs/{run_id}")

    assert [step["key"] for step in page["steps"]] == ["s0", "s1"]
    assert page["steps_after"] == "s1"
    assert [step["key"] for step in get(client, f"/runs/{run_id}?steps_after=s1")["steps"]] == ["s2", "s3"]


# The list ----------------------------------------------------------------------------------


def ids(answer: Any) -> list[str]:
    return [run["id"] for run in answer["runs"]]


def test_list_is_filtered(client: FlaskClient, rows: Rows) -> None:
    one = rows.run("failed", workflow="a", queue="x", key="k1", workspace="acme", ago=300)
    two = rows.run("pending", workflow="b", queue="y", key="k2", workspace="other", ago=200)
    three = rows.run("completed", workflow="b", ago=100)

    assert ids(get(client, "/runs")) == [three, two, one]
    assert ids(get(client, "/runs?workflow=b")) == [three, two]
    assert ids(get(client, "/runs?status=failed")) == [one]
    assert ids(get(client, "/runs?queue=y")) == [two]
    assert ids(get(client, "/runs?key=k1")) == [one]
    assert ids(get(client, "/runs?workspace=acme")) == [one]
    assert ids(get(client, "/runs?workflow=b&status=pending")) == [two]
    assert ids(get(client, "/runs?workflow=none")) == []
    assert ids(get(client, "/runs?created_after=2026-11-30T11:57:00Z")) == [three]
    assert ids(get(client, "/runs?created_before=2026-11-30T11:57:00Z")) == [two, one]
    assert ids(get(client, "/runs?created_after=2026-11-30T12:55:30%2B01:00")) == [three, two]
    assert ids(get(client, "/runs?created_after=2026-11-30t12:55:30.25+01:00")) == [three, two]


def test_list_comes_in_pages(client: FlaskClient, rows: Rows) -> None:
    made = [rows.run(ago=ago) for ago in (5, 4, 3, 2, 1)][::-1]

    first = get(client, "/runs?limit=2")
    second = get(client, f"/runs?limit=2&cursor={first['older']}")
    third = get(client, f"/runs?limit=2&cursor={second['older']}")
    back = get(client, f"/runs?limit=2&cursor={second['newer']}")

    assert [ids(page) for page in (first, second, third, back)] == [made[:2], made[2:4], made[4:], made[:2]]
    assert (first["newer"], third["older"]) == (None, None)


def test_list_says_how_far_it_looked(client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.runs, "SCAN", 3)
    for ago in range(5):
        rows.run(queue="x" if ago == 4 else "y", ago=ago)

    page = get(client, "/runs?queue=x")

    assert (page["runs"], page["searched"]) == ([], 3)
    assert len(get(client, f"/runs?queue=x&cursor={page['older']}")["runs"]) == 1


def test_lists_read_no_payload(app: Flask, rows: Rows) -> None:
    rows.run("failed", input='"in"', output='"out"', error=error_json())
    statements: list[str] = []
    sa.event.listen(
        rows.engine, "before_cursor_execute", lambda conn, cursor, statement, *rest: statements.append(statement)
    )

    get(app.test_client(), "/runs")

    assert statements
    assert not [text for text in statements if re.search(r"workflow_runs\.(input|output)", text)]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("status=x", "invalid_status"),
        ("status=", "invalid_status"),
        ("limit=0", "invalid_limit"),
        ("limit=101", "invalid_limit"),
        ("limit=ten", "invalid_limit"),
        ("limit=1.0", "invalid_limit"),
        ("limit=" + "9" * 5_000, "invalid_limit"),
        ("limit=1&limit=2", "invalid_limit"),
        ("cursor=here", "invalid_cursor"),
        ("created_after=yesterday", "invalid_created_after"),
        ("created_after=2026-11-30", "invalid_created_after"),
        ("created_after=2026-11-30T12:00:00", "invalid_created_after"),
        ("created_before=2026-02-30T12:00:00Z", "invalid_created_before"),
        ("created_before=0001-01-01T00:00:00%2B23:00", "invalid_created_before"),
        ("workflow=", "invalid_workflow"),
        ("key=%00", "invalid_key"),
        ("queue=" + "x" * 256, "invalid_queue"),
        ("worklfow=a", "invalid_query"),
    ],
)
def test_list_refuses_what_it_does_not_understand(one_client: FlaskClient, query: str, code: str) -> None:
    assert problem_of(one_client.get(f"{API}/runs?{query}")) == (400, code)


def test_unknown_status_is_told_the_statuses(one_client: FlaskClient) -> None:
    response = one_client.get(f"{API}/runs?status=done")

    assert response.json is not None
    assert response.json["message"].endswith(
        "the statuses are pending, running, sleeping, waiting, completed, failed, cancelled."
    )


def test_leap_second_is_an_instant(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    rows.run()

    assert ids(get(client, "/runs?created_after=2016-12-31T23:59:60Z"))


def test_unknown_run_is_not_found(client: FlaskClient) -> None:
    for run_id in ("unknown", "%00", "%ff", "x" * 500, "%F0%9F%92%A9", "%0a"):
        assert problem_of(client.get(f"{API}/runs/{run_id}")) == (404, "workflow_run_not_found")


# Beside runs -------------------------------------------------------------------------------


def test_workflows_say_what_they_take(one_client: FlaskClient) -> None:
    (shown,) = get(one_client, "/workflows")["workflows"]

    assert shown == {
        "name": "onboarding",
        "version": 3,
        "min_version": 2,
        "queue": "default",
        "description": "Welcomes a new learner.",
        "parameters": [
            {"name": "user_id", "type": "int", "json_types": ["number"], "required": True},
            {"name": "tags", "type": "list[str] | None", "json_types": ["array", "null"], "required": False},
        ],
    }


def test_workers_are_those_that_live(client: FlaskClient, rows: Rows) -> None:
    worker_id = rows.worker("web-1:1", queues='["mail"]')
    rows.worker("web-1:2", seen_ago=100)
    rows.worker("web-1:3", stopped_at=NOW_MS)

    (shown,) = get(client, "/workers")["workers"]

    assert shown == {
        "id": worker_id,
        "name": "web-1:1",
        "host": "web-1",
        "pid": 4711,
        "queues": ["mail"],
        "workflows": [{"name": "onboarding", "min_version": 1, "version": 1}],
        "concurrency": 4,
        "started_at": "2026-11-30T11:00:00.000Z",
        "seen_at": "2026-11-30T11:59:59.000Z",
    }


def test_health_says_who_works_and_since_when_a_run_waits(client: FlaskClient, rows: Rows) -> None:
    rows.run("sleeping", due_at=NOW_MS + 1)
    assert get(client, "/health") == {
        "status": "ok", "database": "ok", "schema": "ok", "message": None, "workers": 0, "oldest_due_at": None,
    }  # fmt: skip

    rows.worker()
    rows.run("pending", due_at=NOW_MS - 60_000)
    after = get(client, "/health")

    assert (after["workers"], after["oldest_due_at"]) == (1, "2026-11-30T11:59:00.000Z")


def test_health_fails_without_tables(app: Flask, rows: Rows) -> None:
    with rows.engine.begin() as connection:
        models.metadata.tables["workflow_waits"].drop(connection)
    client = app.test_client()

    response = client.get(f"{API}/health")

    assert response.status_code == 503
    check_shape(client, "/health", response)
    assert response.json is not None
    assert (response.json["status"], response.json["database"], response.json["schema"]) == ("failing", "ok", "failing")
    assert "flask db upgrade" in response.json["message"]
    assert "://" not in response.text


def test_health_fails_without_a_database(one_app: Callable[..., Flask]) -> None:
    app = one_app()
    with app.app_context():
        apps.database_of(app).engine.dispose()
    apps.runtime_of(app).__dict__["app_engine"] = sa.create_engine("sqlite:////nowhere/at/all.sqlite")
    client = app.test_client()

    response = client.get(f"{API}/health")

    assert response.status_code == 503
    check_shape(client, "/health", response)
    assert response.json is not None
    assert (response.json["database"], response.json["schema"]) == ("failing", None)
    assert "nowhere" not in response.text


def test_health_tells_visitors_of_some_workspaces_nothing_of_others(
    app: Flask, rows: Rows, workflows: Workflows
) -> None:
    rows.run("pending", due_at=NOW_MS - 60_000)
    workflows.scope(lambda: "acme")

    shown = get(app.test_client(), "/health")

    assert (shown["status"], shown["workers"], shown["oldest_due_at"]) == ("ok", None, None)


# Errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/", "/nothing", "/runs/a/b/c", "/static/x"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PROPFIND"])
def test_unknown_paths_are_answered_in_json(one_client: FlaskClient, path: str, method: str) -> None:
    one_client.set_cookie("session", "x")

    assert problem_of(one_client.open(API + path, method=method)) == (404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", ["/runs", "/runs/x", "/openapi.json", "/health"])
def test_wrong_methods_are_answered_in_json(one_client: FlaskClient, path: str, method: str) -> None:
    response = one_client.open(API + path, method=method)

    assert problem_of(response) == (405, "method_not_allowed")
    assert "GET, HEAD, OPTIONS" in response.headers["Allow"]


def test_options_say_what_is_allowed(one_client: FlaskClient) -> None:
    response = one_client.options(f"{API}/health")

    assert (response.status_code, response.headers["Allow"], response.data) == (204, "GET, HEAD, OPTIONS", b"")


def test_routes_answer_with_the_headers_of_the_pages(one_client: FlaskClient) -> None:
    for path in ("/runs", "/nothing"):
        headers = one_client.get(API + path).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_everything_is_closed_until_the_app_says_who(one_app: Callable[..., Flask]) -> None:
    app = one_app(Workflows())
    client = app.test_client()

    ours = [rule for rule in app.url_map.iter_rules() if rule.endpoint.startswith("flask_workflows.api.")]
    asked = 0
    for rule in ours:
        route = getattr(app.view_functions[rule.endpoint], "route", None)
        assert route is not None
        if route.operation is None:
            assert route.harmless
            continue
        assert route.permission is not None
        address = re.sub(r"<[^>]+>", "x", rule.rule)
        assert problem_of(client.open(address, method=route.methods[0])) == (403, "closed")
        asked += 1

    assert asked >= 7


def test_what_the_app_forbids_is_forbidden(one_client: FlaskClient, workflows: Workflows) -> None:
    workflows.authorize(lambda action, run=None: False)

    assert problem_of(one_client.get(f"{API}/runs")) == (403, "forbidden")


def test_what_the_app_aborts_is_said_in_json(one_client: FlaskClient, workflows: Workflows) -> None:
    def authorize(action: str, run: Run | None = None) -> bool:
        abort(401, "Sign in first.")

    workflows.authorize(authorize)
    one_client.application.register_error_handler(401, lambda error: ("<h1>Sign in</h1>", 401))

    response = one_client.get(f"{API}/runs")

    assert problem_of(response) == (401, "unauthorized")
    assert response.json is not None
    assert response.json["message"] == "Sign in first."


def test_what_the_app_answers_instead_is_given_as_it_is(one_client: FlaskClient, workflows: Workflows) -> None:
    def authorize(action: str, run: Run | None = None) -> bool:
        abort(Response("other", 418))

    workflows.authorize(authorize)

    response = one_client.get(f"{API}/runs")

    assert (response.status_code, response.text) == (418, "other")


def test_what_breaks_is_logged_and_said_in_json(one_client: FlaskClient, workflows: Workflows, caplog: Any) -> None:
    def authorize(action: str, run: Run | None = None) -> bool:
        raise ZeroDivisionError("secret")

    workflows.authorize(authorize)
    one_client.application.config["PROPAGATE_EXCEPTIONS"] = False

    response = one_client.get(f"{API}/runs")

    assert problem_of(response) == (500, "server_error")
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text


def test_slow_answers_are_cut_off(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: Any, **kwargs: Any) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "list_runs", slow)

    assert problem_of(client.get(f"{API}/runs")) == (503, "slow")


def test_busy_connections_are_told(one_app: Callable[..., Flask], workflows: Workflows) -> None:
    options = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 0.01}
    app = one_app(workflows, SQLALCHEMY_ENGINE_OPTIONS=options)
    client = app.test_client()

    with apps.runtime_of(app).engine.connect():
        response = client.get(f"{API}/runs")

    assert problem_of(response) == (503, "slow")
    assert get(client, "/runs")["runs"] == []


def test_database_that_is_away_is_told(one_app: Callable[..., Flask]) -> None:
    app = one_app()
    for name in ("app_engine", "engine"):
        apps.runtime_of(app).__dict__[name] = sa.create_engine("sqlite:////nowhere/at/all.sqlite")

    response = app.test_client().get(f"{API}/runs")

    assert problem_of(response) == (503, "unreachable")
    assert "nowhere" not in response.text


def test_missing_tables_are_told(app: Flask, rows: Rows) -> None:
    with rows.engine.begin() as connection:
        models.metadata.drop_all(connection)

    response = app.test_client().get(f"{API}/runs")

    assert problem_of(response) == (503, "schema")
    assert "://" not in response.text


def test_host_lays_out_its_own_json(one_app: Callable[..., Flask]) -> None:
    app = one_app()
    app.json.dumps = lambda value, **kwargs: "not ours"  # type: ignore[method-assign]

    assert app.test_client().get(f"{API}/runs").text.startswith('{"runs":[]')
    assert '"workflow_run_not_found"' in app.test_client().get(f"{API}/runs/x").text


# Workspaces --------------------------------------------------------------------------------


def test_header_limits_to_one_workspace(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    ours, theirs, nobodys = rows.run(workspace="ours"), rows.run(workspace="theirs"), rows.run()

    assert set(ids(get(client, "/runs"))) == {ours, theirs, nobodys}
    assert ids(get(client, "/runs", headers={"X-Workspace": "ours"})) == [ours]
    assert get(client, f"/runs/{ours}", headers={"X-Workspace": "ours"})["workspace_id"] == "ours"
    for other in (theirs, nobodys):
        response = client.get(f"{API}/runs/{other}", headers={"X-Workspace": "ours"})
        assert problem_of(response) == (404, "workflow_run_not_found")


def test_header_may_hold_any_name(one_client: FlaskClient) -> None:
    client, rows = one_client, rows_of(one_client.application)
    run_id = rows.run(workspace="Füße ☂")

    assert ids(get(client, "/runs", headers={"X-Workspace": "Füße ☂".encode().decode("latin-1")})) == [run_id]


@pytest.mark.parametrize("name", ["theirs", "", " ", "x" * 256])
@pytest.mark.parametrize("path", ["/runs", "/runs/x", "/workers", "/workflows", "/health", "/token", "/openapi.json"])
def test_b110_header_must_lie_in_the_scope(one_client: FlaskClient, workflows: Workflows, path: str, name: str) -> None:
    workflows.scope(lambda: ["ours", "mine"])

    response = one_client.get(API + path, headers={"X-Workspace": name})

    assert problem_of(response) == (404, "workspace_not_found")


def test_b110_scope_limits_without_a_header(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.scope(lambda: "ours")
    ours, theirs = rows.run(workspace="ours", key="k"), rows.run(workspace="theirs", key="k")
    client = app.test_client()

    assert ids(get(client, "/runs")) == [ours]
    assert ids(get(client, "/runs?key=k")) == [ours]
    hidden, unknown = client.get(f"{API}/runs/{theirs}"), client.get(f"{API}/runs/unknown")
    assert problem_of(hidden) == (404, "workflow_run_not_found")
    assert hidden.text.replace(theirs, "X") == unknown.text.replace("unknown", "X")
    assert problem_of(client.get(f"{API}/runs?workspace=theirs")) == (404, "workspace_not_found")


# Where it stands ---------------------------------------------------------------------------


@pytest.mark.parametrize(("dashboard", "json"), [(True, False), (False, True), (True, True), (False, False)])
def test_routes_and_pages_are_there_without_each_other(
    one_app: Callable[..., Flask], dashboard: bool, json: bool
) -> None:
    client = one_app(WORKFLOWS_DASHBOARD=dashboard, WORKFLOWS_API=json).test_client()

    assert client.get("/workflows/runs").status_code == (200 if dashboard else 404)
    assert client.get(f"{API}/runs").status_code == (200 if json else 404)
    if json:
        assert problem_of(client.get(f"{API}/runs/x")) == (404, "workflow_run_not_found")
        assert problem_of(client.get(f"{API}/nothing")) == (404, "not_found")


@pytest.mark.parametrize("prefix", ["/", "/a/b"])
def test_document_names_the_server_it_is_on(one_app: Callable[..., Flask], prefix: str) -> None:
    app = one_app(WORKFLOWS_URL_PREFIX=prefix)
    outer = Client(DispatcherMiddleware(app, {"/outer": app}))
    path = f"{prefix.rstrip('/')}/api"

    assert outer.get(f"{path}/openapi.json").json["servers"] == [{"url": path}]  # type: ignore[index]
    assert outer.get(f"/outer{path}/openapi.json").json["servers"] == [{"url": f"/outer{path}"}]  # type: ignore[index]


def test_b141_routes_work_in_a_blueprint_of_the_apps(one_app: Callable[..., Flask]) -> None:
    app = one_app(WORKFLOWS_DASHBOARD=False, WORKFLOWS_API=False)
    parent = Blueprint("v1", __name__, url_prefix="/v1/<tenant>")
    parent.url_value_preprocessor(lambda endpoint, values: values and values.pop("tenant"))
    parent.register_blueprint(create_blueprint(WorkflowsConfig()))
    app.register_blueprint(parent)
    client = app.test_client()

    assert client.get("/v1/x/workflows/api/runs").status_code == 200
    assert problem_of(client.get("/v1/x/workflows/api/nothing")) == (404, "not_found")


def test_token_is_given_to_the_visitor(one_client: FlaskClient, workflows: Workflows) -> None:
    workflows.actor(lambda: "ana")

    shown = get(one_client, "/token")

    assert shown["header"] == HEADER
    assert shown["expires_in"] == 86_400
    assert shown["token"]


def test_without_a_key_there_is_no_token(one_app: Callable[..., Flask]) -> None:
    app = one_app()
    app.secret_key = None

    assert problem_of(app.test_client().get(f"{API}/token")) == (503, "no_secret_key")
