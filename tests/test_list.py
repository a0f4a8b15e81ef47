"""The list of runs: who sees which, what is looked for, what stands on the page."""

from __future__ import annotations

import re

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import Workflows
from tests import apps
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import Rows
from tests.rows import rows_of
from tests.test_views import FixedClock


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int) -> bool:
        return True

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def listed(response: TestResponse) -> list[str]:
    """The ids of the runs in the table, in its order."""
    return re.findall(r'<tr role="row" id="run-([^"]+)', response.text)


def listing(client: FlaskClient, **query: str) -> list[str]:
    response = client.get("/workflows/runs", query_string=query)
    assert response.status_code == 200
    return listed(response)


# Workspaces --------------------------------------------------------------------------------


def options(response: TestResponse, datalist: str) -> list[str]:
    found = re.search(rf'<datalist id="{datalist}">(.*?)</datalist>', response.text)
    assert found is not None
    return re.findall(r'value="([^"]*)"', found[1])


def test_b110_nothing_outside_the_scope_shows(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    ours = rows.run("failed", workspace="ours", workflow="our-flow", ago=100)
    for status in ("failed", "completed", "pending"):
        rows.run(status, workspace="theirs-secret", workflow="their-flow", key="their-key", queue="their-queue")
        rows.run(status, workflow="nobodys-flow")
    workflows.scope(lambda: "ours")

    page = client.get("/workflows/runs")
    narrowed = client.get("/workflows/runs?workspace=theirs-secret")

    assert listed(page) == [ours]
    assert "All Pending 0 Running 0 Sleeping 0 Waiting 0 Failed 1 Completed 0 Cancelled 0" in text_of(page)
    assert options(page, "fw-names") == ["onboarding", "our-flow"]
    for word in ("theirs-secret", "their-flow", "their-key", "their-queue", "nobodys"):
        assert word not in page.text
    assert listed(narrowed) == []
    assert "Failed 0 Completed 0" in text_of(narrowed)
    assert options(narrowed, "fw-workspaces") == ["ours"]


def test_b110_new_runs_of_others_are_not_announced(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    first = rows.run("failed", workspace="ours", ago=100)
    workflows.scope(lambda: ("ours", "too"))
    rows.run("failed", workspace="theirs", ago=10)

    quiet = client.get(f"/workflows/runs?until={first}")
    rows.run("failed", workspace="too", ago=5)
    told = client.get(f"/workflows/runs?until={first}")

    assert "new run" not in text_of(quiet)
    assert "Show 1 new run" in text_of(told)


def test_b110_visitor_without_a_workspace_sees_nothing(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    rows.run("failed", workspace="theirs")
    rows.run("pending")
    workflows.scope(lambda: ())

    page = client.get("/workflows/runs")

    assert listed(page) == []
    assert "Pending 0 Running 0 Sleeping 0 Waiting 0 Failed 0" in text_of(page)


def test_list_can_be_narrowed_to_a_workspace(client: FlaskClient, rows: Rows) -> None:
    one = rows.run("failed", workspace="ws-1")
    rows.run("failed", workspace="ws-2")
    rows.run("failed")

    page = client.get("/workflows/runs")
    narrowed = client.get("/workflows/runs?workspace=ws-1")

    assert options(page, "fw-workspaces") == ["ws-1", "ws-2"]
    assert listed(narrowed) == [one]
    assert "Failed 1" in text_of(narrowed)


def test_workspace_is_not_asked_for_where_there_is_none(client: FlaskClient, rows: Rows) -> None:
    rows.run()

    fields = [attributes.get("name") for tag, attributes in Tags(client.get("/workflows/runs").text).found]

    assert "workspace" not in fields
