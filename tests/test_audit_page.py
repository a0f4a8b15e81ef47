"""The page about what people did."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import models
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.dashboard.pages.audit import ACTIONS
from flask_workflows.dashboard.pages.audit import change
from flask_workflows.errors import ReadTimeout
from flask_workflows.explain import Instant
from flask_workflows.names import new_id
from flask_workflows.store import reading as read
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of

EVIL = "<img src=x onerror=alert(1)>"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int) -> None: ...

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def note(rows: Rows, action: str = "cancel", **values: object) -> str:
    row = {
        "id": new_id(NOW_MS),
        "at": NOW_MS - 60_000,
        "actor": "ana",
        "action": action,
        "run_id": None,
        "workspace": "",
        "target": "onboarding",
        "before": None,
        "after": None,
        "reason": "",
        "request_id": None,
        "address": None,
        "operation": None,
    }
    rows.insert(models.audit, [{**row, **values}])
    return str({**row, **values}["id"])


def shown(text: str) -> list[str]:
    return re.findall(r'<tr role="row" id="audit-([^"]+)', text)


def test_action_of_a_page_stands_in_the_audit(app: Flask, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + 60_000)
    runtime = apps.runtime_of(app)
    with app.app_context():
        runtime.actions.cancel(run_id, 1, By("ana", "no longer wanted", "req-1", "10.0.0.7"))

    response = app.test_client().get("/workflows/audit")

    text = text_of(response)
    assert "12:00:00 ana cancel onboarding" in text
    assert f"…{run_id[-6:]}" in text
    assert "sleeping → cancelled no longer wanted req-1 from 10.0.0.7" in text
    assert f"/workflows/run/{run_id}" in links(response)


def test_everything_kept_of_an_action_is_shown(client: FlaskClient, rows: Rows) -> None:
    note(rows, "move", before="2026-11-30T09:00:00.000+00:00", after="2026-11-30T10:30:00.000+00:00")
    note(rows, "deliver", target="order.paid", actor="", operation="018f0000-0000-7000-8000-0000000abcde")

    response = client.get("/workflows/audit")

    text = text_of(response)
    assert "/workflows/events?name=order.paid" in links(response)
    assert "/workflows/ops/018f0000-0000-7000-8000-0000000abcde" in links(response)
    assert "move onboarding 09:00:00 → 10:30:00" in text
    assert "not known deliver order.paid one of many, by …0abcde" in text


def test_newest_comes_first_and_pages_lead_on_and_back(client: FlaskClient, rows: Rows) -> None:
    ids = [note(rows) for _ in range(120)]

    first = client.get("/workflows/audit")
    (older,) = [link for link in links(first) if "cursor=older" in link]
    second = client.get(older)
    (newer,) = [link for link in links(second) if "cursor=newer" in link]

    assert shown(first.text) == ids[:-51:-1]
    assert shown(second.text) == ids[-51:-101:-1]
    assert shown(client.get(newer).text) == shown(first.text)


@pytest.mark.parametrize(
    ("query", "expected"), [({"actor": "bo"}, 1), ({"action": "retry"}, 2), ({"run": "r-1"}, 1), ({"actor": "x"}, 0)]
)
def test_list_can_be_narrowed(client: FlaskClient, rows: Rows, query: dict[str, str], expected: int) -> None:
    note(rows, "retry", actor="bo")
    note(rows, "retry", run_id="r-1")
    note(rows)

    response = client.get("/workflows/audit", query_string=query)

    assert len(shown(response.text)) == expected
    inputs = {attributes.get("name"): attributes.get("value") for _, attributes in Tags(response.text).found}
    assert all(inputs[name] == value for name, value in query.items())
    if not expected:
        assert "No actions match. Show all actions" in text_of(response)


@pytest.mark.parametrize("query", ["cursor=x", "cursor=older.'"])
def test_invented_cursor_is_refused(client: FlaskClient, query: str) -> None:
    assert client.get(f"/workflows/audit?{query}").status_code == 422


@pytest.mark.parametrize("text", ["%00", "%F0%9F%98%80", "a%0Ab", "%27", "%25", "x" * 5_000])
def test_odd_filters_find_nothing(client: FlaskClient, rows: Rows, text: str) -> None:
    note(rows)

    for name in ("actor", "action", "run"):
        response = client.get(f"/workflows/audit?{name}={text}")
        assert response.status_code == 200
        assert not shown(response.text)


def test_empty_audit_says_so(client: FlaskClient) -> None:
    assert "Nobody did anything yet." in text_of(client.get("/workflows/audit"))


def test_audit_that_takes_too_long_says_so(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "list_audit", slow)

    response = client.get("/workflows/audit")

    assert response.status_code == 200
    assert "Took over 2 s." in text_of(response)


def test_b110_other_workspaces_are_not_in_the_audit(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.scope(lambda: ["ours"])
    ours = note(rows, workspace="ours", run_id="r-1")
    note(rows, workspace="theirs", run_id="r-2", reason="their reason", actor="their actor")
    note(rows, target="their event")
    client = app.test_client()

    assert shown(client.get("/workflows/audit").text) == [ours]
    for query in ("run=r-2", "actor=their%20actor", "action=cancel"):
        assert "their reason" not in client.get(f"/workflows/audit?{query}").text


def test_audit_asks_for_a_permission_of_its_own(app: Flask, workflows: Workflows) -> None:
    @workflows.authorize
    def authorize(action: str, run: Run | None = None) -> bool:
        return action == "view"

    client = app.test_client()

    assert client.get("/workflows/audit").status_code == 403
    assert "/workflows/audit" not in links(client.get("/workflows/runs"))


def test_b111_secrets_in_a_reason_are_hidden(client: FlaskClient, rows: Rows) -> None:
    note(rows, reason="rotated, password=hunter2")

    assert "hunter2" not in client.get("/workflows/audit").text


def test_b109_markup_in_the_audit_is_shown_as_text(client: FlaskClient, rows: Rows) -> None:
    values = dict.fromkeys(("actor", "target", "reason", "request_id", "address", "run_id", "operation"), EVIL)
    note(rows, EVIL, before=EVIL, after="x", **values)

    response = client.get("/workflows/audit")

    assert EVIL in text_of(response)
    assert not [tag for tag, _ in Tags(response.text).found if tag == "img"]
    assert all(link.startswith("/") for link in links(response))


def test_audit_is_answered_204_until_something_is_done(client: FlaskClient, rows: Rows) -> None:
    page = client.get("/workflows/audit?action=cancel")
    assert polled(client, page).status_code == 204

    note(rows)
    changed = polled(client, page)
    assert changed.status_code == 200
    assert "<html" not in changed.text


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, None, ()),
        (None, "pending", ("pending",)),
        ("running", "running", ("running",)),
        ("failed", "pending", ("failed", " → ", "pending")),
        ("2026-11-30T12:00:00.000+00:00", None, (Instant(NOW), " → ", "nothing")),
        ("2026-11-30", "x", ("2026-11-30", " → ", "x")),
    ],
)
def test_change_reads_from_what_to_what(before: str | None, after: str | None, expected: tuple[object, ...]) -> None:
    assert change(before, after) == expected


def test_every_action_can_be_chosen(client: FlaskClient) -> None:
    listed = client.get("/workflows/audit").text.partition('<datalist id="fw-actions">')[2].partition("</datalist>")[0]

    assert [attributes["value"] for _, attributes in Tags(listed).found] == list(ACTIONS)
