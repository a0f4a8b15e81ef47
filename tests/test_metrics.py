"""What a scraper of `/metrics` reads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import datetime
from importlib.machinery import ModuleSpec

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.dashboard.timings import Timings
from flask_workflows.errors import ReadTimeout
from flask_workflows.store import reading as read
from tests import apps
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row

Samples = dict[tuple[str, tuple[str, ...]], float]


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()
    workflows.event("paid")
    workflows.event("approved")

    @workflows.workflow
    def onboarding(user_id: int) -> None: ...

    @workflows.workflow(queue="mail")
    def newsletter() -> None: ...

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def samples(response: TestResponse) -> Samples:
    """Values by name and the values of the labels, by the labels' names."""
    assert response.status_code == 200, response.text
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families(response.text)
        for sample in family.samples
    }


def wait_for(rows: Rows, name: str, *, ago: float, message: bool = False) -> None:
    run = rows.run("waiting", due_at=None)
    rows.step(run, f"$wait:{name}", 1, "waiting", started_at=NOW_MS - int(ago * 1000))
    row = {
        "run_id": run,
        "key": f"$wait:{name}",
        "number": 0,
        "name": name,
        "workspace": "",
        "fields": "@" if message else "[]",
        "values_hash": "",
        "after_seq": 0,
        "checked": 1,
    }
    rows.insert(models.waits, [row])


def test_what_is_known_has_zeros(client: FlaskClient) -> None:
    found = samples(client.get("/workflows/metrics"))

    for queue in ("default", "mail"):
        assert found["workflows_queue_oldest_age_seconds", (queue,)] == 0
        for status in ("pending", "running", "sleeping", "waiting"):
            assert found["workflows_runs", (queue, status)] == 0
    for event in ("paid", "approved"):
        assert found["workflows_waits_oldest_seconds", (event,)] == 0
    for state in ("live", "late", "lost"):
        assert found["workflows_workers", (state,)] == 0
    assert found["workflows_timers_overdue", ()] == 0
    assert found["workflows_metrics_incomplete", ()] == 0


def test_runs_are_counted_and_the_oldest_is_told(client: FlaskClient, rows: Rows) -> None:
    rows.run("pending", queue="mail", due_at=NOW_MS - 90_000)
    rows.run("pending", queue="mail", due_at=NOW_MS - 10_000)
    rows.run("running", queue="bulk", due_at=NOW_MS + 20_000)
    rows.run("sleeping", due_at=NOW_MS - 5_000)
    rows.run("sleeping", due_at=NOW_MS - 15_000)
    rows.run("sleeping", due_at=NOW_MS + 15_000)
    rows.run("completed")
    rows.run("failed")

    found = samples(client.get("/workflows/metrics"))

    assert found["workflows_queue_oldest_age_seconds", ("mail",)] == 90
    assert found["workflows_queue_oldest_age_seconds", ("default",)] == 15
    assert found["workflows_runs", ("mail", "pending")] == 2
    assert found["workflows_runs", ("bulk", "running")] == 1
    assert found["workflows_runs", ("default", "sleeping")] == 3
    assert found["workflows_timers_overdue", ()] == 1
    assert not [labels for name, labels in found if name == "workflows_runs" and "completed" in labels]


def test_oldest_wait_of_each_event_is_told(client: FlaskClient, rows: Rows) -> None:
    wait_for(rows, "paid", ago=30)
    wait_for(rows, "paid", ago=600)
    wait_for(rows, "from-elsewhere", ago=5)
    wait_for(rows, "a-message", ago=900, message=True)

    found = samples(client.get("/workflows/metrics"))

    waits = {labels[0]: value for (name, labels), value in found.items() if name == "workflows_waits_oldest_seconds"}
    assert waits == {"paid": 600, "approved": 0, "from-elsewhere": 5}


def test_workers_are_counted_by_state(client: FlaskClient, rows: Rows) -> None:
    rows.worker(seen_ago=1)
    rows.worker(seen_ago=14)
    rows.worker(seen_ago=20, queues='["nightly"]')
    rows.worker(seen_ago=300)
    rows.worker(seen_ago=1, stopped_at=NOW_MS)
    rows.worker(seen_ago=2 * 86_400)

    found = samples(client.get("/workflows/metrics"))

    assert [found["workflows_workers", (state,)] for state in ("live", "late", "lost")] == [2, 1, 1]
    # A queue that a worker names is known.
    assert found["workflows_queue_oldest_age_seconds", ("nightly",)] == 0


def test_runs_that_ended_are_counted_ever(client: FlaskClient, rows: Rows) -> None:
    def ended(at: int, workflow: str, outcome: str, count: int) -> None:
        row = {"at": at, "workflow": workflow, "outcome": outcome, "count": count, "busy_ms": 0}
        rows.insert(models.stats, [row])

    ended(0, "onboarding", "completed", 100)
    ended(NOW_MS // 900_000 * 900_000, "onboarding", "completed", 5)
    ended(NOW_MS // 900_000 * 900_000, "onboarding", "failed", 2)
    ended(NOW_MS // 900_000 * 900_000, "onboarding", "lost", 3)
    ended(0, "gone", "cancelled", 1)

    found = samples(client.get("/workflows/metrics"))

    name = "workflows_runs_finished_total"
    assert found[name, ("completed", "onboarding")] == 105
    assert found[name, ("failed", "onboarding")] == 2
    assert found[name, ("cancelled", "gone")] == 1
    assert found[name, ("completed", "newsletter")] == 0
    assert found["workflows_leases_lost_total", ("onboarding",)] == 3
    assert found["workflows_leases_lost_total", ("newsletter",)] == 0
    assert not [labels for family, labels in found if family == name and "lost" in labels]


def test_no_label_names_a_run(client: FlaskClient, rows: Rows) -> None:
    for number in range(50):
        rows.run("pending", key=f"key-{number}", workspace=f"ws-{number}", due_at=NOW_MS - 90_000)
    few = client.get("/workflows/metrics").text

    for number in range(50, 100):
        rows.run("pending", key=f"key-{number}", workspace=f"ws-{number}", due_at=NOW_MS - 90_000)
    many = client.get("/workflows/metrics").text

    assert len(few.splitlines()) == len(many.splitlines())
    assert "key-" not in many
    assert "ws-" not in many


@pytest.mark.parametrize("name", ['quote"', "back\\slash", "new\u2028line", "{queue}", "ключ", "<b>"])
def test_labels_are_escaped(client: FlaskClient, rows: Rows, name: str) -> None:
    rows.run("pending", queue=name, due_at=NOW_MS - 1_000)

    assert samples(client.get("/workflows/metrics"))["workflows_queue_oldest_age_seconds", (name,)] == 1


def test_openmetrics_is_spoken_to_who_asks_for_it(client: FlaskClient) -> None:
    response = client.get("/workflows/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})

    assert response.content_type.startswith("application/openmetrics-text")
    names = {family.name for family in openmetrics(response.text)}  # type: ignore[no-untyped-call]
    assert names > {"workflows_runs", "workflows_workers"}


# Bounds ------------------------------------------------------------------------------------


def test_scrape_says_what_it_did_not_look_at(client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.insert(models.runs, [run_row("pending", queue="mail", due_at=NOW_MS - 1_000 * n) for n in range(5, 10)])
    due = read.measure_due
    monkeypatch.setattr(read, "measure_due", lambda *args, **kwargs: due(*args, **kwargs, cap=5))

    found = samples(client.get("/workflows/metrics"))

    assert found["workflows_metrics_incomplete", ()] == 1
    assert found["workflows_queue_oldest_age_seconds", ("mail",)] == 9
    # Not looked at is not zero.
    assert ("workflows_queue_oldest_age_seconds", ("default",)) not in found


def test_part_that_takes_too_long_leaves_the_others(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "measure_live", slow)

    found = samples(client.get("/workflows/metrics"))

    assert found["workflows_metrics_incomplete", ()] == 1
    assert not [name for name, _ in found if name == "workflows_runs"]
    assert found["workflows_workers", ("live",)] == 0


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_every_measuring_is_bounded(rows: Rows, cap: int) -> None:
    for number in range(3):
        rows.run("pending", due_at=NOW_MS - 1_000 - number)
        wait_for(rows, "paid", ago=number)

    with rows.engine.connect() as connection:
        due = read.measure_due(connection, NOW, patience=NOW - NOW, cap=cap)
        live = read.measure_live(connection, cap=cap)
        waits = read.measure_waits(connection, cap=cap)

    assert due.capped
    assert live.capped
    assert waits.capped
    assert max(live.counts.values()) == cap


MEASURINGS: list[Callable[[sa.Connection], object]] = [
    lambda connection: read.measure_due(connection, NOW, patience=NOW - NOW),
    read.measure_live,
    read.measure_waits,
]


@pytest.mark.parametrize("measuring", MEASURINGS, ids=["due", "live", "waits"])
def test_measurings_go_through_an_index(rows: Rows, measuring: Callable[[sa.Connection], object]) -> None:
    rows.insert(models.runs, [run_row("completed") for _ in range(3_000)])
    rows.insert(models.runs, [run_row("pending", due_at=NOW_MS - 1_000) for _ in range(3)])
    for number in range(3):
        wait_for(rows, "paid", ago=number)
    with rows.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    asked: list[tuple[str, object]] = []
    sa.event.listen(rows.engine, "before_cursor_execute", lambda c, cu, text, values, *_: asked.append((text, values)))

    with rows.engine.connect() as connection:
        measuring(connection)
        plans = []
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        for statement, parameters in tuple(asked):
            values: dict[str, object] = parameters  # type: ignore[assignment]
            plans += [str(row) for row in connection.exec_driver_sql(explain + statement, values)]

    assert not [line for line in plans if "Seq Scan on workflow_runs" in line or "SCAN workflow_runs'" in line]


# Who may read them -------------------------------------------------------------------------


def test_token_opens_the_metrics_to_a_scraper(make_app: apps.MakeApp, sqlite_url: str) -> None:
    # The app lets nobody in, and has no say here.
    client = make_app(sqlite_url, workflows=Workflows(), WORKFLOWS_METRICS_TOKEN="s3cret").test_client()

    response = client.get("/workflows/metrics", headers={"Authorization": "Bearer s3cret"})

    assert "workflows_runs" in response.text
    assert "Set-Cookie" not in response.headers
    assert "Cookie" not in response.headers.get("Vary", "")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer s3cret2", "Basic czNjcmV0", "s3cret", "Bearer ключ"],
)
def test_nobody_reads_metrics_without_the_token(make_app: apps.MakeApp, sqlite_url: str, header: str | None) -> None:
    workflows = Workflows(authorize=lambda action, run=None: True)
    client = make_app(sqlite_url, workflows=workflows, WORKFLOWS_METRICS_TOKEN="s3cret").test_client()

    headers = {} if header is None else {"Authorization": header.encode().decode("latin-1")}
    response = client.get("/workflows/metrics", headers=headers)

    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "s3cret" not in response.text


def test_app_decides_where_there_is_no_token(make_app: apps.MakeApp, sqlite_url: str) -> None:
    workflows = Workflows(authorize=lambda action, run=None: False)
    client = make_app(sqlite_url, workflows=workflows).test_client()
    assert client.get("/workflows/metrics").status_code == 403

    workflows.authorize(lambda action, run=None: action == "view")
    assert client.get("/workflows/metrics").status_code == 200


def test_b110_visitor_of_some_workspaces_reads_no_metrics(app: Flask, workflows: Workflows, rows: Rows) -> None:
    rows.run("pending", workspace="theirs", queue="their-queue", due_at=NOW_MS - 1_000)
    workflows.scope(lambda: ["ours"])

    response = app.test_client().get("/workflows/metrics")

    assert response.status_code == 403
    assert "their" not in response.text


def test_metrics_without_the_client_say_what_to_install(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "prometheus_client" else find(name, package)

    monkeypatch.setattr("flask_workflows.dashboard.views.health.find_spec", without)

    response = client.get("/workflows/metrics")

    assert response.status_code == 404
    assert "install Flask-Workflows[metrics]" in response.text


def test_metrics_fail_where_a_table_is_missing(client: FlaskClient, rows: Rows) -> None:
    models.waits.drop(rows.engine)

    response = client.get("/workflows/metrics")

    assert response.status_code == 503
    assert "workflow" not in response.text


# Timings -----------------------------------------------------------------------------------


def test_readings_are_timed(client: FlaskClient) -> None:
    def count() -> float:
        found = samples(client.get("/workflows/metrics"))
        return next(value for (name, _), value in found.items() if name == "workflows_dashboard_query_seconds_count")

    before = count()
    client.get("/workflows/runs")

    assert count() > before


def test_histogram_counts_up_to_each_bound() -> None:
    timings = Timings()
    for seconds in (0.005, 0.006, 0.3, 5.0):
        timings.add(seconds)

    found = timings.histogram()

    assert dict(found.counts) == {
        "0.005": 1,
        "0.01": 2,
        "0.025": 2,
        "0.05": 2,
        "0.1": 2,
        "0.25": 2,
        "0.5": 3,
        "1.0": 3,
        "2.0": 3,
        "+Inf": 4,
    }
    assert found.seconds == pytest.approx(5.311)


def test_reading_that_fails_is_timed_too() -> None:
    timings = Timings()

    with pytest.raises(ReadTimeout), timings.measured():
        raise ReadTimeout("reading took more than 2 s")

    assert timings.histogram().counts[-1] == ("+Inf", 1)
