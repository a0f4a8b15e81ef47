from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask import redirect
from flask.testing import FlaskClient
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.wrappers import Response

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import Run
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.dashboard import csrf
from flask_workflows.errors import ReadTimeout
from flask_workflows.store import reading as read
from flask_workflows.store import sqlite
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import route_of
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row

HTML = {"Accept": "text/html"}
EVIL = "<img src=x onerror=alert(1)>"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int) -> bool:
        """Welcomes a new learner."""
        return True

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
        return make_app(sqlite_url, db=None, workflows=workflows or Workflows(), **config)

    return make


def test_pages_are_closed_until_the_app_says_who(one_app: Callable[..., Flask]) -> None:
    client = one_app().test_client()

    for path in ("/workflows/", "/workflows/runs", "/workflows/run/x"):
        response = client.get(path)
        assert response.status_code == 403
        assert "Workflows(authorize=may_see)" in text_of(response)


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000"])
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "127.8.8.8", "::ffff:127.0.0.1"])
def test_debug_opens_them_on_the_own_machine(one_app: Callable[..., Flask], host: str, peer: str) -> None:
    app = one_app()
    app.debug = True

    response = app.test_client().get("/workflows/runs", headers={"Host": host}, environ_base={"REMOTE_ADDR": peer})

    assert response.status_code == 200
    assert "Open because the app is in debug mode" in text_of(response)


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        ({}, "10.0.0.7"),
        ({}, ""),
        ({}, "unix"),
        ({"Host": "evil.example"}, "127.0.0.1"),
        ({"Host": "localhost.evil.example"}, "127.0.0.1"),
        ({"Host": "127.0.0.1.nip.io"}, "127.0.0.1"),
        ({"X-Forwarded-For": "127.0.0.1"}, "127.0.0.1"),
        ({"X-Forwarded-Host": "localhost"}, "127.0.0.1"),
        ({"X-Forwarded-Proto": "https"}, "127.0.0.1"),
        ({"X-Real-IP": "127.0.0.1"}, "127.0.0.1"),
        ({"Forwarded": "for=127.0.0.1"}, "127.0.0.1"),
        ({"Via": "1.1 proxy"}, "127.0.0.1"),
        ({"CF-Connecting-IP": "127.0.0.1"}, "127.0.0.1"),
    ],
)
def test_debug_opens_them_to_nobody_else(one_app: Callable[..., Flask], headers: dict[str, str], peer: str) -> None:
    app = one_app()
    app.debug = True

    response = app.test_client().get("/workflows/runs", headers=headers, environ_base={"REMOTE_ADDR": peer})

    assert response.status_code == 403


def test_proxy_fix_does_not_make_visitors_local(one_app: Callable[..., Flask]) -> None:
    app = one_app()
    app.debug = True
    app.wsgi_app = ProxyFix(app.wsgi_app)  # type: ignore[method-assign]

    response = app.test_client().get("/workflows/runs", headers={"X-Forwarded-For": "127.0.0.1"})

    assert response.status_code == 403


def test_debug_opens_nothing_once_the_app_decides(one_app: Callable[..., Flask]) -> None:
    app = one_app(Workflows(authorize=lambda action, run=None: False))
    app.debug = True

    response = app.test_client().get("/workflows/runs")

    assert response.status_code == 403
    assert "You may not see this" in text_of(response)
    assert "authorize" not in text_of(response)


def test_app_is_asked_for_the_action_and_the_run(app: Flask, rows: Rows, workflows: Workflows) -> None:
    asked: list[tuple[str, str | None]] = []

    @workflows.authorize
    def authorize(action: str, run: Run | None = None) -> bool:
        asked.append((action, run.id if run is not None else None))
        return True

    run_id = rows.run()
    app.test_client().get(f"/workflows/run/{run_id}")

    assert asked[:2] == [("view", None), ("view", run_id)]
    assert {about for action, about in asked[2:]} <= {run_id, None}


def test_run_the_visitor_may_not_see_is_not_there(app: Flask, rows: Rows, workflows: Workflows) -> None:
    """B110"""
    workflows.authorize(lambda action, run=None: run is None or run.workspace == "ours")
    ours, theirs = rows.run(workspace="ours"), rows.run(workspace="theirs")
    client = app.test_client()

    assert client.get(f"/workflows/run/{ours}").status_code == 200
    hidden = client.get(f"/workflows/run/{theirs}")
    unknown = client.get("/workflows/run/unknown")
    assert hidden.status_code == unknown.status_code == 404
    assert text_of(hidden).replace(theirs, "X") == text_of(unknown).replace("unknown", "X")


def test_response_of_the_apps_is_given_as_it_is(one_app: Callable[..., Flask]) -> None:
    def to_login(action: str, run: Run | None = None) -> bool | Response:
        return redirect("/login")

    response = one_app(Workflows(authorize=to_login)).test_client().get("/workflows/runs")

    assert (response.status_code, response.location) == (302, "/login")


@pytest.mark.parametrize("answer", [None, 1, "yes", ("no", 403), object()])
def test_answer_that_is_neither_yes_nor_no_opens_nothing(one_app: Callable[..., Flask], answer: object) -> None:
    app = one_app(Workflows(authorize=lambda action, run=None: answer))

    with pytest.raises(TypeError, match="return True, False or a response"):
        app.test_client().get("/workflows/runs")


def test_every_route_but_the_files_has_a_permission(one_app: Callable[..., Flask]) -> None:
    app = one_app()
    ours = [rule for rule in app.url_map.iter_rules() if rule.endpoint.startswith("flask_workflows.")]
    # What answers unknown paths and wrong methods.
    ours = [rule for rule in ours if not route_of(app, rule.endpoint).harmless]

    actions = {rule.endpoint: route_of(app, rule.endpoint).permission for rule in ours}

    # The files and the health check are for all; metrics ask by themselves.
    for_all = ["flask_workflows.asset", "flask_workflows.healthz"]
    assert [actions.pop(endpoint) for endpoint in (*for_all, "flask_workflows.metrics")] == [None] * 3
    assert actions
    assert None not in actions.values()
    for rule in ours:
        assert rule.methods is not None
        (method,) = rule.methods - {"HEAD", "OPTIONS"}
        if rule.endpoint not in for_all:
            address = re.sub(r"<int:[^>]+>", "1", rule.rule)
            address = re.sub(r"<[^>]+>", "x", address)
            assert app.test_client().open(address, method=method).status_code == 403


def test_pages_can_be_left_out(one_app: Callable[..., Flask]) -> None:
    app = one_app(WORKFLOWS_DASHBOARD=False, WORKFLOWS_API=False)

    assert app.test_client().get("/workflows/runs").status_code == 404


# Headers and files -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/workflows/", "/workflows/runs", "/workflows/run/x", "/workflows/runs?status=x"])
def test_every_answer_brings_its_own_headers(client: FlaskClient, path: str) -> None:
    """B107"""
    headers = client.get(path).headers

    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Robots-Tag"] == "noindex"


def test_hosts_headers_go_first(app: Flask) -> None:
    @app.after_request
    def policy(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = "default-src 'self'"
        return response

    headers = app.test_client().get("/workflows/runs").headers

    assert headers.getlist("Content-Security-Policy") == ["default-src 'self'"]


def test_nothing_is_inline(client: FlaskClient, rows: Rows) -> None:
    """B107"""
    run_id = rows.run("failed", error=error_json(step="a", traceback="Traceback"))
    rows.step(run_id, "a", 1, "failed", error=error_json())
    rows.step(run_id, "b", 2)

    for path in ("/workflows/runs", f"/workflows/run/{run_id}"):
        for tag, attributes in Tags(client.get(path).text).found:
            assert tag != "style"
            assert "style" not in attributes
            assert not [name for name in attributes if name.startswith("on") or name.startswith("hx-on")]
            if tag == "script":
                assert attributes["src"]


def test_files_are_kept_for_long_under_an_address_of_their_content(client: FlaskClient) -> None:
    page = client.get("/workflows/runs")
    files = [address for address in links(page) if "/static/" in address]

    assert [Path(address).name for address in files] == ["icon.svg", "workflows.css", "htmx.min.js", "workflows.js"]
    for address in files:
        response = client.get(address)
        assert response.status_code == 200
        assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert response.mimetype in ("text/css", "text/javascript", "application/javascript", "image/svg+xml")


def test_file_of_another_release_is_not_kept(client: FlaskClient) -> None:
    response = client.get("/workflows/static/0123/workflows.css")

    assert response.status_code == 200
    assert response.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize(
    "file", ["", "nope.css", "htmx.LICENSE.txt", "../views.py", "..%2Fviews.py", "%2Fetc%2Fpasswd", "a/workflows.css"]
)
def test_only_listed_files_are_served(client: FlaskClient, file: str) -> None:
    assert client.get(f"/workflows/static/x/{file}", follow_redirects=True).status_code == 404


# Runs --------------------------------------------------------------------------------------


def test_list_says_what_each_run_is_doing(client: FlaskClient, rows: Rows) -> None:
    worker = rows.worker()
    running = rows.run("running", ago=30, worker=worker, due_at=NOW_MS + 20_000)
    rows.step(running, "charge", 3, "running")
    sleeping = rows.run("sleeping", ago=20, due_at=NOW_MS + 3_600_000)
    rows.step(sleeping, "$sleep", 2, "sleeping", kind="sleep")
    retrying = rows.run("sleeping", ago=10, due_at=NOW_MS + 40_000)
    rows.step(retrying, "fetch", 2, "retrying", attempts=2, error=error_json("ConnectionError"))

    response = client.get("/workflows/runs")

    text = text_of(response)
    assert response.status_code == 200
    assert "Running step 3, charge, on web-1:4711" in text
    assert "Sleeping wakes 13:00:00, in 1 h" in text
    assert "Retrying step 2, fetch, try 3 in 40 s. ConnectionError" in text
    assert text.index("Retrying step") < text.index("Sleeping wakes") < text.index("Running step")


def test_tabs_count_under_the_other_filters(client: FlaskClient, rows: Rows) -> None:
    for status, workflow in (("failed", "a"), ("failed", "b"), ("completed", "a"), ("pending", "a")):
        rows.run(status, workflow=workflow)

    text = text_of(client.get("/workflows/runs?workflow=a&status=failed"))

    assert "All Pending 1 Running 0 Sleeping 0 Waiting 0 Failed 1 Completed 1 Cancelled 0" in text


def test_pages_lead_on_and_back(client: FlaskClient, rows: Rows) -> None:
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(1, 61)])

    first = client.get("/workflows/runs?limit=25&status=completed")
    (older,) = [link for link in links(first) if "cursor=older" in link]
    second = client.get(older.replace("&amp;", "&"))
    (newer,) = [link for link in links(second) if "cursor=newer" in link]

    assert "limit=25" in older
    assert "status=completed" in older
    assert len(re.findall(r'<tr role="row" id="run-', second.text)) == 25
    assert re.findall(r'id="run-([^"]+)', client.get(newer).text) == re.findall(r'id="run-([^"]+)', first.text)


def test_window_is_counted_from_now(client: FlaskClient, rows: Rows) -> None:
    rows.run(ago=3_000)
    rows.run(ago=4_000, workflow="old")

    assert "old" not in text_of(client.get("/workflows/runs?time=1h"))
    assert "old" in text_of(client.get("/workflows/runs?time=24h"))


@pytest.mark.parametrize(
    "query",
    ["status=nope", "status=queued", "workflow=%00", "time=2h", "limit=7", "cursor=x", "cursor=older.'", "until='"],
)
def test_unknown_filter_is_refused_in_words(client: FlaskClient, query: str) -> None:
    response = client.get(f"/workflows/runs?{query}")

    assert response.status_code == 422
    assert "This address is not understood" in text_of(response)


@pytest.mark.parametrize("text", ["%", "_", "a%b", "'", '"', "';--", "%s", "%(x)s", "{}", "{{ 7*7 }}", "ключ", EVIL])
def test_filters_are_taken_literally_and_kept(client: FlaskClient, rows: Rows, text: str) -> None:
    """B79"""
    rows.run(queue="other")
    wanted = rows.run(queue=text)

    response = client.get("/workflows/runs", query_string={"queue": text})

    assert re.findall(r'<tr role="row" id="run-([^"]+)', response.text) == [wanted]
    inputs = {attributes.get("name"): attributes.get("value") for _, attributes in Tags(response.text).found}
    assert inputs["queue"] == text


def test_empty_list_says_what_to_do(client: FlaskClient, rows: Rows) -> None:
    text = text_of(client.get("/workflows/runs"))
    assert "No runs yet. Start one from code: onboarding.start(…)" in text

    rows.run()
    assert "No runs match. 1 matches in any status. Show all runs" in text_of(
        client.get("/workflows/runs?status=failed")
    )


def test_app_without_workflows_says_how_to_declare_one(one_app: Callable[..., Flask]) -> None:
    client = one_app(Workflows(authorize=lambda action, run=None: True)).test_client()

    assert "No runs yet, and no workflow is declared." in text_of(client.get("/workflows/runs"))


def test_filter_no_index_knows_says_how_far_it_looked(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_workflows.dashboard.views.runs.SCAN", 5)
    rows.run(ago=100, key="old")
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(1, 21)])

    response = client.get("/workflows/runs?key=old")

    assert "None among the newest 5 runs." in text_of(response)
    assert any("cursor=older" in link for link in links(response))


def test_list_that_takes_too_long_says_so_and_the_page_stays(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "list_runs", slow)
    monkeypatch.setattr(read, "count_runs", slow)
    rows.run("failed")

    response = client.get("/workflows/runs")

    assert response.status_code == 200
    assert "Took over 2 s." in text_of(response)
    assert "All Pending Running Sleeping Waiting Failed Completed Cancelled" in text_of(response)


def test_no_payload_is_read_for_the_list(client: FlaskClient, rows: Rows, app: Flask) -> None:
    rows.run("completed", input='{"a": "payload-1"}', output='"payload-2"')
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(rows.engine, "before_cursor_execute", note)
    response = client.get("/workflows/runs")
    sa.event.remove(rows.engine, "before_cursor_execute", note)

    assert "payload" not in response.text
    assert not [statement for statement in statements if re.search(r"runs\.(input|output)\b", statement)]


# Run ---------------------------------------------------------------------------------------


def test_run_page_tells_everything(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run(
        "failed",
        key="k-1",
        workspace="ws",
        attempts=1,
        error=error_json("app.Bad", "no", step="render", traceback=None),
    )
    rows.step(run_id, "load", 1)
    rows.step(
        run_id,
        "render",
        2,
        "failed",
        attempts=3,
        error=error_json("app.Bad", "no", step="render", traceback="Cause:\n"),
    )

    response = client.get(f"/workflows/run/{run_id}?status=failed&workflow=onboarding")

    text = text_of(response)
    assert response.status_code == 200
    assert "<title>Failed · onboarding · Workflows</title>" in response.text
    assert "← Failed runs of onboarding" in text
    assert "Failed at step 2, render: Bad: no It was tried 3 times." in text
    assert "Took 2 s (2 s busy)" in text
    assert "Workspace ws Key k-1" in text
    assert "Steps 1 completed, 1 failed" in text
    assert "1 load Completed 1 1 s" in text
    assert "2 render Bad: no Failed 3 1 s" in text
    assert "Error in render app.Bad: no Cause:" in text
    assert 'Input { "user_id": 8 }' in text
    assert "data-live" not in response.text.replace("data-live-note", "")


@pytest.mark.parametrize(
    "run_id", ["nope", "a/b", "a%2Fb", "a%23b", "a%3Fb", "a%20b", "%F0%9F%98%80", "..%2f..", "%00"]
)
def test_unknown_run_is_a_404_with_its_id(client: FlaskClient, run_id: str) -> None:
    response = client.get(f"/workflows/run/{run_id}")

    assert response.status_code == 404
    assert "There is no such run" in text_of(response)
    assert "WORKFLOWS_PRUNE_AFTER_DAYS" in text_of(response)


def test_secrets_are_hidden(client: FlaskClient, rows: Rows) -> None:
    """B111"""
    secrets = {
        "password": "hunter2",
        "deep": [{"apiKey": {"a": "hunter3"}}],
        "url": "postgresql://u:hunter4@db",
        "note": "Bearer hunter5hunter5",
        "ok": "shown",
    }
    run_id = rows.run(
        "failed",
        input=json.dumps(secrets),
        output='{"token": "hunter6"}',
        error=error_json(
            "E", "password=hunter7", traceback='File "a.py", line 1, in f\n    url = "redis://:hunter8@h"'
        ),
    )
    rows.step(run_id, "a", 1, "failed", error=error_json("E", "cookie: hunter9"))

    for path in (f"/workflows/run/{run_id}", "/workflows/runs"):
        assert "hunter" not in client.get(path).text
    text = text_of(client.get(f"/workflows/run/{run_id}"))
    assert '"password": hidden: matches “password”' in text
    assert '"apiKey": hidden: matches “api_key”' in text
    assert '"ok": "shown"' in text


def test_numbers_stand_as_they_are_stored(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run(input='{"a": 12345678901234567890123, "b": 1.10, "c": 1e400, "d": -0.0, "a": 2}')

    text = text_of(client.get(f"/workflows/run/{run_id}"))

    assert '{ "a": 12345678901234567890123, "b": 1.10, "c": 1e400, "d": -0.0, "a": 2 }' in text


def test_undecodable_row_shows_with_a_marker(client: FlaskClient, rows: Rows) -> None:
    """B76"""
    run_id = rows.run("failed", input='{"password": "hunter2", ', output="{", error="{")
    rows.step(run_id, "a", 1, "failed", error="nope", earlier="{")

    response = client.get(f"/workflows/run/{run_id}")

    assert response.status_code == 200
    assert "Not readable as JSON" in text_of(response)
    assert "hunter2" not in response.text
    assert client.get("/workflows/runs").status_code == 200


def test_large_value_is_cut_and_says_its_size(client: FlaskClient, rows: Rows) -> None:
    medium = rows.run(input=json.dumps({"a": ["x" * 100] * 2_000}))
    large = rows.run(input=json.dumps({"a": "y" * 5_000_000}))
    deep = rows.run(input="[" * 50_000)

    response = client.get(f"/workflows/run/{medium}")
    assert "The first 18 kB of 208 kB." in text_of(response)
    assert len(response.data) < 60_000
    response = client.get(f"/workflows/run/{large}")
    assert "The beginning of 5 MB." in text_of(response)
    assert len(response.data) < 60_000
    assert client.get(f"/workflows/run/{deep}").status_code == 200


def test_long_run_shows_its_ends_and_what_failed(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run()
    made = [step_row(run_id, f"s#{n}", n, "failed" if n == 300 else "completed") for n in range(1, 1_001)]
    rows.insert(models.steps, made)

    response = client.get(f"/workflows/run/{run_id}")
    numbers = [int(number) for number in re.findall(r'id="step-(\d+)"', response.text)]

    assert numbers == [*range(1, 51), 300, *range(951, 1_001)]
    assert "Show steps 51 to 250 249 steps left out" in text_of(response)
    assert "Show steps 301 to 500 650 steps left out" in text_of(response)
    (more,) = [link for link in links(response) if "steps=301" in link]
    middle = client.get(more)
    assert re.findall(r'id="step-(\d+)"', middle.text) == [str(number) for number in range(301, 501)]
    assert "Show steps 1 to 200 300 steps left out" in text_of(middle)
    assert "Show steps 501 to 700 500 steps left out" in text_of(middle)


@pytest.mark.parametrize("steps", ["0", "-5", "99999999999999999999", "x", ""])
def test_odd_place_in_the_steps_breaks_nothing(client: FlaskClient, rows: Rows, steps: str) -> None:
    run_id = rows.run()
    rows.step(run_id, "a", 1)

    assert client.get(f"/workflows/run/{run_id}?steps={steps}").status_code == 200


EVILS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\"' onmouseover=alert(1) x='",
    "{{7*7}}",
]


@pytest.mark.parametrize("evil", EVILS)
def test_markup_in_stored_texts_is_shown_as_text(client: FlaskClient, rows: Rows, evil: str) -> None:
    """B109"""
    worker = rows.worker(evil, host=evil, workflows=json.dumps([[evil, 1, 1]]))
    run_id = rows.run(
        "failed",
        workflow=evil,
        queue=evil,
        workspace=evil,
        key=evil,
        input=json.dumps({evil: evil}),
        output=json.dumps([evil]),
        error=error_json(evil, evil, step=evil, traceback=f'File "{evil}", line 1, in {evil}\n    {evil}\n{evil}'),
    )
    rows.step(run_id, evil, 1, "failed", error=error_json(evil, evil))
    rows.step(run_id, f"$wait:{evil}", 2, evil[:16], kind="wait")
    rows.run("running", workflow=evil, worker=worker, due_at=NOW_MS + 1_000)
    rows.run(evil[:16], workflow=evil, finished_at=None, due_at=NOW_MS)
    raw = rows.run(input=evil, output=evil, error=evil)

    pages = ["/workflows/runs", f"/workflows/run/{run_id}", f"/workflows/run/{raw}", f"/workflows/run/{evil}"]
    for path in pages:
        response = client.get(path, query_string={"workflow": evil, "queue": evil, "key": evil})
        assert evil not in response.text or not set(evil) & set("<>'\"&")
        for tag, attributes in Tags(response.text).found:
            assert tag != "img"
            assert not [name for name in attributes if name.startswith("on")]
            assert tag != "script" or attributes.get("src")
    assert evil in text_of(client.get(pages[1]))


@pytest.mark.parametrize("address", ["javascript:alert(1)", "//evil.example/x", "https://evil.example/"])
def test_no_link_leads_where_a_visitor_says(client: FlaskClient, rows: Rows, address: str) -> None:
    run_id = rows.run(workflow=address)

    query = {"workflow": address, "cursor": address, "status": address}
    response = client.get(f"/workflows/run/{run_id}", query_string=query)

    assert all(link.startswith("/workflows/") or link == "/" for link in links(response))


# Live --------------------------------------------------------------------------------------


def test_unchanged_list_is_answered_204(client: FlaskClient, rows: Rows) -> None:
    worker = rows.worker()
    run_id = rows.run("running", worker=worker, due_at=NOW_MS + 20_000)
    page = client.get("/workflows/runs")

    again = polled(client, page)
    assert (again.status_code, again.data) == (204, b"")

    # A renewed lease is nothing to see.
    rows.change(run_id, due_at=NOW_MS + 30_000, updated_at=NOW_MS)
    assert polled(client, page).status_code == 204

    rows.change(run_id, status="completed", finished_at=NOW_MS, due_at=None, worker=None)
    changed = polled(client, page)
    assert changed.status_code == 200
    assert "<html" not in changed.text
    assert "Completed" in text_of(changed)
    assert polled(client, changed).status_code == 204


def test_new_runs_do_not_push_the_list_down(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("completed", ago=10)
    page = client.get("/workflows/runs?status=completed")
    rows.run("failed", ago=5)
    rows.run("completed", ago=4)
    newest = rows.run("completed", ago=3)

    changed = polled(client, page)

    assert re.findall(r'<tr role="row" id="run-([^"]+)', changed.text) == [run_id]
    assert "Show 2 new runs" in text_of(changed)
    assert polled(client, changed).status_code == 204
    (fresh,) = [
        attributes["href"] for tag, attributes in Tags(changed.text.partition('class="fw-new"')[2]).found if tag == "a"
    ][:1]
    assert fresh == "/workflows/runs?status=completed"
    assert newest in client.get(fresh).text


def test_run_is_live_until_it_has_finished(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("running", worker="w", due_at=NOW_MS + 20_000)
    page = client.get(f"/workflows/run/{run_id}")
    assert polled(client, page).status_code == 204

    rows.step(run_id, "a", 1)
    changed = polled(client, page)
    assert changed.status_code == 200
    assert "<title>Running · onboarding · Workflows</title>" in changed.text
    assert polled(client, changed).status_code == 204

    rows.change(run_id, status="completed", finished_at=NOW_MS, due_at=None, worker=None, output="42")
    last = polled(client, changed)
    assert last.status_code == 200
    assert "hx-get" not in last.text
    assert "Output 42" in text_of(last)


def test_watching_can_be_paused(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("running", worker="w", due_at=NOW_MS + 20_000)

    for path in ("/workflows/runs", f"/workflows/run/{run_id}"):
        page = client.get(path)
        (pause,) = [link for link in links(page) if "live=0" in link]
        paused = client.get(pause)
        assert "hx-get" not in paused.text
        assert "Not live. Resume" in text_of(paused)


def test_poll_of_a_visitor_signed_out_is_refused(app: Flask, rows: Rows, workflows: Workflows) -> None:
    client = app.test_client()
    page = client.get("/workflows/runs")
    workflows.authorize(lambda action, run=None: False)

    assert polled(client, page).status_code == 403


def test_times_are_told_in_the_viewers_zone(client: FlaskClient, rows: Rows) -> None:
    rows.run(ago=3_600)
    assert "11:00:00" in text_of(client.get("/workflows/runs"))

    client.set_cookie("workflows_view", "zone=Asia%2FTokyo", path="/workflows/")
    page = client.get("/workflows/runs")
    assert "20:00:00" in text_of(page)
    assert "Asia/Tokyo" in text_of(page)
    assert 'datetime="2026-11-30T11:00:00.000Z" title="2026-11-30 11:00:00 UTC"' in page.text


@pytest.mark.parametrize(
    "value", ["zone=Mars", "zone=..%2F..%2Fetc%2Fpasswd", "zone=America", "zone=%00", "x", "zone="]
)
def test_invented_zone_is_utc(client: FlaskClient, rows: Rows, value: str) -> None:
    rows.run(ago=3_600)
    client.set_cookie("workflows_view", value, path="/workflows/")

    assert "11:00:00" in text_of(client.get("/workflows/runs"))


# The app around it -------------------------------------------------------------------------


def test_apps_jinja_does_not_reach_the_pages(one_app: Callable[..., Flask]) -> None:
    app = one_app(Workflows(authorize=lambda action, run=None: True))
    app.jinja_options = {"variable_start_string": "[[", "variable_end_string": "]]"}
    app.jinja_env.autoescape = False
    rows_of(app).run(workflow=EVIL)

    @app.context_processor
    def broken() -> dict[str, object]:
        raise RuntimeError("not ours to call")

    response = app.test_client().get("/workflows/runs")

    assert response.status_code == 200
    assert EVIL not in response.text


def test_template_of_the_apps_goes_first(tmp_path: Path, one_app: Callable[..., Flask]) -> None:
    theirs = tmp_path / "templates" / "flask_workflows"
    theirs.mkdir(parents=True)
    (theirs / "_nav_extra.html").write_text('<a href="/ops">Ops</a>')
    workflows = Workflows(authorize=lambda action, run=None: True)
    app = one_app(workflows, WORKFLOWS_DASHBOARD=False, WORKFLOWS_API=False)
    app.template_folder = str(tmp_path / "templates")
    app.register_blueprint(workflows.blueprint())

    assert '<a href="/ops">Ops</a>' in app.test_client().get("/workflows/runs").text


def test_session_of_the_app_is_left_alone(client: FlaskClient, rows: Rows) -> None:
    response = client.get(f"/workflows/run/{rows.run()}")

    assert "Set-Cookie" not in response.headers
    assert "Vary" not in response.headers


def test_missing_tables_are_named(app: Flask, rows: Rows) -> None:
    models.metadata.drop_all(rows.engine)

    response = app.test_client().get("/workflows/runs")

    assert response.status_code == 503
    assert "flask db upgrade" in text_of(response)
    assert rows.engine.url.database is not None
    assert rows.engine.url.database not in response.text


# With the engine -----------------------------------------------------------------------------


def test_pages_follow_real_runs(database_url: str, make_app: apps.MakeApp) -> None:
    workflows = Workflows(authorize=lambda action, run=None: True)
    clock = MovingClock()
    workflows.clock = clock

    @workflows.step
    def load(user_id: int) -> str:
        return "loaded"

    @workflows.step(retry=Retry(attempts=2, backoff=Retry.constant(60)))
    def unsure() -> None:
        raise ValueError("not today")

    @workflows.step(raises=(Declined,))
    def refuse() -> None:
        raise Declined("no funds")

    @workflows.workflow
    def sleeper(ctx: WorkflowContext, user_id: int) -> str:
        ctx.sleep(3600)
        return load(user_id)

    @workflows.workflow
    def loser() -> None:
        unsure()

    @workflows.workflow
    def declined() -> None:
        load(1)
        refuse()

    app = make_app(database_url, workflows=workflows)
    client = app.test_client()
    with app.app_context():
        ids = [
            workflow.spawn(**values).id for workflow, values in ((sleeper, {"user_id": 8}), (loser, {}), (declined, {}))
        ]
        workflows.tick()

    text = text_of(client.get("/workflows/runs"))
    assert "Sleeping wakes 13:00:00, in 1 h" in text
    assert "Retrying step 1, unsure, try 2 of 2 in 1 min. ValueError" in text
    assert "Failed Declined: no funds" in text
    assert "Failed at step 2, refuse: Declined: no funds The step declares this error" in text_of(
        client.get(f"/workflows/run/{ids[2]}")
    )
    page = client.get(f"/workflows/run/{ids[0]}")
    assert polled(client, page).status_code == 204

    clock.seconds = 4_000
    with app.app_context():
        workflows.tick()

    text = text_of(polled(client, page))
    assert "1 sleep Completed" in text
    assert "2 load Completed" in text
    assert 'Output "loaded"' in text
    text = text_of(client.get(f"/workflows/run/{ids[1]}"))
    assert "Failed at step 1, unsure: ValueError: not today It was tried 2 times." in text
    assert "Error in unsure ValueError: not today" in text
    assert 'raise ValueError("not today")' in text


class Declined(Exception):
    """As a payment service says it."""


class MovingClock:
    seconds = 0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)


def test_database_that_is_away_or_locked_is_told(
    sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 1)
    app = make_app(sqlite_url, workflows=workflows)
    run_id = rows_of(app).run("waiting")
    client = app.test_client()
    token = client.get("/workflows/api/token").json
    assert token is not None

    with closing(sqlite3.connect(sa.make_url(sqlite_url).database or "", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = client.post(
            f"/workflows/run/{run_id}/cancel", data={csrf.FIELD: token["token"], "epoch": "1", "status": "waiting"}
        )
        other.execute("ROLLBACK")
    for name in ("app_engine", "engine"):
        apps.runtime_of(app).__dict__[name] = sa.create_engine("sqlite:////nowhere/at/all.sqlite")
    away = client.get("/workflows/runs")

    assert (locked.status_code, away.status_code) == (503, 503)
    assert "Look whether it was done, then try again." in text_of(locked)
    assert "No answer from the database" in text_of(away)
    assert "tables" not in text_of(away)
    assert "nowhere" not in away.text
