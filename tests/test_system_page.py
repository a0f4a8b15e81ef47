"""The page about the system, and the health check."""

from __future__ import annotations

import logging
from datetime import datetime
from datetime import time
from datetime import timedelta
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import models
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.config import WorkflowsConfig
from flask_workflows.dashboard.pages.system import needed_revision
from flask_workflows.dashboard.pages.system import shown
from flask_workflows.errors import ConfigError
from tests import apps
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()
    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def test_system_says_what_it_runs_on(client: FlaskClient, rows: Rows) -> None:
    rows.run("pending", due_at=NOW_MS - 90_000)
    rows.insert(models.runs, [run_row() for _ in range(3)])

    text = text_of(client.get("/workflows/system"))

    kind = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[rows.engine.dialect.name]
    assert f"Database {kind} " in text
    assert "Tables as this version needs them" in text
    assert f"Newest revision needed {needed_revision()}" in text
    assert "migrations are at no revision" in text
    assert "Clocks a clock is set" in text
    assert "SECRET_KEY set" in text
    assert "authorize given who may see and do what" in text
    assert "redact not given what else is hidden" in text
    assert "workflow_runs 4" in text
    assert "is due since 11:58:30, 1 min ago" in text
    assert "WORKFLOWS_CONCURRENCY 4 default" in text


def test_clocks_are_compared(app: Flask, workflows: Workflows) -> None:
    workflows.clock = None

    assert "this machine and the database agree" in text_of(app.test_client().get("/workflows/system"))


def test_history_of_the_apps_migrations_is_told(client: FlaskClient, rows: Rows) -> None:
    with rows.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('ab12'), ('workflows_0002')")

    assert "migrations are at ab12, workflows_0002" in text_of(client.get("/workflows/system"))


def test_settings_show_no_secret(make_app: apps.MakeApp, sqlite_url: str, workflows: Workflows) -> None:
    app = make_app(
        sqlite_url,
        workflows=workflows,
        WORKFLOWS_LISTEN_URL="postgresql://app:hunter2@db.internal/shop",
        WORKFLOWS_METRICS_TOKEN="hunter3",
        WORKFLOWS_CONCURRENCY=9_999,
        WORKFLOWS_QUEUE="mail",
        WORKFLOWS_IMPORTS=["tests.rows", "tests.apps"],
        WORKFLOWS_PRUNE_AT="04:10",
        WORKFLOWS_PASSWORD="hunter4",
    )

    response = app.test_client().get("/workflows/system")

    text = text_of(response)
    assert "hunter" not in response.text
    assert "db.internal" not in response.text
    assert str(app.config["SQLALCHEMY_DATABASE_URI"]) not in response.text
    assert "WORKFLOWS_LISTEN_URL set app.config" in text
    assert "WORKFLOWS_METRICS_TOKEN set app.config" in text
    assert "WORKFLOWS_CONCURRENCY 512 What is given is out of range; this is the nearest. app.config" in text
    assert "WORKFLOWS_QUEUE mail app.config" in text
    assert "WORKFLOWS_IMPORTS tests.apps, tests.rows app.config" in text
    assert "WORKFLOWS_PRUNE_AT 04:10 app.config" in text
    assert "WORKFLOWS_PASSWORD set Nothing reads this key. app.config" in text


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("queue", "mail", "mail"),
        ("anything", "text", "set"),
        ("anything", "", "not set"),
        ("anything", None, "not set"),
        ("anything", {"a": 1}, "set"),
        ("anything", frozenset({"b", "a"}), "a, b"),
        ("anything", (), "none"),
        ("anything", time(3, 40), "03:40"),
        ("anything", False, "false"),
    ],
)
def test_setting_is_shown_where_it_is_harmless(name: str, value: object, expected: str) -> None:
    assert shown(name, value) == expected


def test_secrets_are_in_no_text_of_the_configuration() -> None:
    config = WorkflowsConfig(metrics_token="hunter2", listen_url="postgresql://u:hunter3@h/d")

    assert "hunter" not in repr(config)


@pytest.mark.parametrize("value", [1234567, b"hunter2", "", "  ", " hunter2", "hünter2"])
def test_token_that_cannot_be_sent_is_refused_without_being_told(value: object) -> None:
    with pytest.raises(ConfigError) as error:
        WorkflowsConfig.from_app_config({"WORKFLOWS_METRICS_TOKEN": value})

    assert "unter" not in str(error.value)
    assert "1234567" not in str(error.value)


def test_system_page_stays_where_tables_are_missing(client: FlaskClient, rows: Rows) -> None:
    models.waits.drop(rows.engine)

    response = client.get("/workflows/system")

    text = text_of(response)
    assert response.status_code == 200
    assert "no table workflow_waits; run `flask workflows install`" in text
    assert "Counting took too long, or tables are missing." in text


def test_missing_key_is_warned_of(make_app: apps.MakeApp, sqlite_url: str, workflows: Workflows) -> None:
    client = make_app(sqlite_url, workflows=workflows, SECRET_KEY=None).test_client()

    text = text_of(client.get("/workflows/system"))

    assert "The app has no SECRET_KEY : forms are signed with it" in text.replace("SECRET_KEY:", "SECRET_KEY :")
    assert "Nobody says who acts" in text


def test_b110_visitor_of_some_workspaces_sees_no_counts(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.scope(lambda: ["ours"])
    rows.run("pending", workspace="theirs", due_at=NOW_MS - 90_000)

    text = text_of(app.test_client().get("/workflows/system"))

    assert "Not counted: you see some workspaces only" in text
    assert "workflow_runs" not in text
    assert "waits longest" not in text


def test_system_asks_for_a_permission_of_its_own(app: Flask, workflows: Workflows) -> None:
    asked: list[str] = []

    @workflows.authorize
    def authorize(action: str, run: Run | None = None) -> bool:
        asked.append(str(action))
        return action == "view"

    client = app.test_client()

    assert client.get("/workflows/system").status_code == 403
    assert asked[0] == "view_system"
    shown = [attributes.get("href") for _, attributes in Tags(client.get("/workflows/runs").text).found]
    assert "/workflows/system" not in shown


# Health ------------------------------------------------------------------------------------


def test_health_is_told_to_anybody(make_app: apps.MakeApp, database_url: str) -> None:
    client = make_app(database_url, workflows=Workflows()).test_client()

    response = client.get("/workflows/healthz")

    assert (response.status_code, response.text) == (200, "ok\n")
    assert response.mimetype == "text/plain"
    assert response.headers["Cache-Control"] == "no-store"
    assert "Set-Cookie" not in response.headers
    assert "Cookie" not in response.headers.get("Vary", "")


@pytest.mark.parametrize(("dashboard", "api"), [(False, True), (True, False)])
def test_health_is_there_without_the_pages(make_app: apps.MakeApp, sqlite_url: str, dashboard: bool, api: bool) -> None:
    client = make_app(sqlite_url, WORKFLOWS_DASHBOARD=dashboard, WORKFLOWS_API=api).test_client()

    assert client.get("/workflows/healthz").status_code == 200


def test_health_fails_where_a_table_is_missing(
    client: FlaskClient, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    models.waits.drop(rows.engine)

    with caplog.at_level(logging.WARNING, "flask_workflows"):
        answers = [client.get("/workflows/healthz") for _ in range(3)]

    assert [(answer.status_code, answer.text) for answer in answers] == [(503, "not ok\n")] * 3
    logged = [record.message for record in caplog.records if record.message.startswith("health check")]
    assert len(logged) == 1
    assert "no table workflow_waits" in logged[0]


def test_health_fails_where_the_database_is_away(
    make_app: apps.MakeApp, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    app = make_app(f"sqlite:///{folder / 'app.sqlite3'}")
    client = app.test_client()
    assert client.get("/workflows/healthz").status_code == 200

    apps.dispose_engines(app)
    folder.rename(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, "flask_workflows"):
        response = client.get("/workflows/healthz")

    assert (response.status_code, response.text) == (503, "not ok\n")
    assert "health check: the database does not answer (OperationalError)" in caplog.text


def test_deep_health_wants_a_worker_for_what_is_due(client: FlaskClient, rows: Rows) -> None:
    def deep() -> int:
        return client.get("/workflows/healthz?deep=1").status_code

    assert deep() == 200

    rows.run("pending", queue="mail", due_at=NOW_MS - 2_000)
    rows.run("sleeping", queue="other", due_at=NOW_MS + 2_000)
    assert deep() == 200, "workers poll, so nothing is late within seconds"

    rows.run("pending", queue="mail", due_at=NOW_MS - 60_000)
    assert deep() == 503
    assert client.get("/workflows/healthz").status_code == 200

    rows.worker(queues='["other"]')
    rows.worker(queues='["mail"]', seen_ago=timedelta(minutes=5).total_seconds())
    assert deep() == 503

    rows.worker(queues='["mail"]')
    assert deep() == 200
