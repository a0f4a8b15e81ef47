from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from datetime import timedelta

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.dashboard.pages.workers import BEAT
from flask_workflows.dashboard.pages.workers import KEPT
from flask_workflows.dashboard.pages.workers import worker_state
from flask_workflows.runs import Worker
from flask_workflows.store import reading as read
from flask_workflows.worker import HEARTBEAT_SECONDS
from flask_workflows.worker import KEEP_WORKERS_MS
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import text_of
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.plans import statements
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row
from tests.rows import tables
from tests.rows import worker_row

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
        return True

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def seen(silence: float, *, stopped: bool = False) -> Worker:
    at = NOW - timedelta(seconds=silence)
    return Worker("w", "web-1:1", "web-1", 1, None, (), 4, NOW - timedelta(hours=1), at, at if stopped else None)


@pytest.mark.parametrize(
    ("silence", "lost_after", "state"),
    [
        (0, 30, "live"),
        (10, 30, "live"),
        (15, 30, "live"),
        (16, 30, "late"),
        (30, 30, "late"),
        (31, 30, "lost"),
        # From the lease that is configured, not from a constant.
        (31, 300, "late"),
        (300, 300, "late"),
        (301, 300, "lost"),
        # The clocks of two hosts may differ.
        (-5, 30, "live"),
    ],
)
def test_state_follows_the_last_beat_and_the_lease(silence: float, lost_after: float, state: str) -> None:
    assert worker_state(seen(silence), NOW, timedelta(seconds=lost_after)) == state


def test_stopped_worker_is_not_lost() -> None:
    assert worker_state(seen(3_600, stopped=True), NOW, timedelta(seconds=30)) == "stopped"


def test_page_knows_the_beat_and_how_long_workers_are_kept() -> None:
    assert timedelta(seconds=HEARTBEAT_SECONDS) == BEAT
    assert timedelta(milliseconds=KEEP_WORKERS_MS) == KEPT


def test_page_shows_what_each_worker_does(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    worker = rows.worker("mailer", host="web-2", pid=815, queues='["mail", "default"]', seen_ago=4)
    run = rows.run("running", worker=worker, due_at=NOW_MS + 20_000)
    rows.step(run, "fetch", 4, "running", started_at=NOW_MS - 12_000)
    between = rows.run("running", worker=worker, due_at=NOW_MS + 20_000)

    response = client.get("/workflows/workers")

    text = text_of(response)
    assert response.status_code == 200
    assert "mailer web-2, pid 815 Runs 1 workflow onboarding 1 Live" in text
    assert f"onboarding …{run[-6:]} step 4, fetch, for 12 s" in text
    assert f"onboarding …{between[-6:]} between steps" in text
    assert "2 of 4 mail, default 11:00:00 4 s ago" in text
    assert "Release" not in text
    assert f"/workflows/run/{run}" in links(response)
    assert polled(client, response).status_code == 204


def test_versions_are_told_by_their_ranges(app: Flask, rows: Rows) -> None:
    offers = [["renewal", 3, 5], ["renewal", 1, 1], ["onboarding", 2, 2]]
    rows.worker("web-1:4711", workflows=json.dumps(offers), queues=None)

    text = text_of(app.test_client().get("/workflows/workers"))

    assert "web-1:4711 Runs 2 workflows onboarding 2 renewal 1, 3 to 5 Live idle 0 of 4 all" in text


def test_lost_worker_says_when_its_runs_are_taken_over(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    lost = rows.worker("web-9:1", seen_ago=40)
    run = rows.run("running", worker=lost, due_at=NOW_MS + 11_000)
    rows.run("running", worker=lost, due_at=NOW_MS + 15_000)
    rows.worker("web-1:1")

    response = client.get("/workflows/workers")

    text = text_of(response)
    assert "Lost Its 2 runs are taken over by 12:00:15." in text
    assert text.index("web-9:1") < text.index("web-1:1")
    assert f"/workflows/run/{run}/release" in links(response)
    assert polled(client, response).status_code == 204

    with rows.engine.begin() as connection:
        connection.execute(models.runs.update().values(due_at=NOW_MS - 1_000))
    assert "Its 2 runs are taken over at the next look of a live worker." in text_of(client.get("/workflows/workers"))


def test_runs_that_no_live_worker_can_take_over_are_told(app: Flask, rows: Rows) -> None:
    lost = rows.worker("web-9:1", seen_ago=40)
    rows.run("running", worker=lost, due_at=NOW_MS - 11_000)
    rows.worker("web-1:1", queues='["mail"]')

    text = text_of(app.test_client().get("/workflows/workers"))

    assert "Its run waits: no live worker can take over." in text
    assert "its lease ran out 11 s ago" in text


def test_late_worker_says_when_it_counts_as_lost(app: Flask, rows: Rows) -> None:
    late = rows.worker("web-9:1", seen_ago=20)
    rows.run("running", worker=late, due_at=NOW_MS + 5_000)
    rows.worker("web-1:1")

    text = text_of(app.test_client().get("/workflows/workers"))

    assert "Late Unless it is heard of, it counts as lost at 12:00:10. Its run is taken over at 12:00:05." in text
    assert "Release" not in text


def test_lease_is_the_configured_one(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> None:
    app = make_app(database_url, workflows=workflows, WORKFLOWS_LOCK_TIMEOUT_SECS=600)
    rows_of(app).worker("web-9:1", seen_ago=120)

    text = text_of(app.test_client().get("/workflows/workers"))

    assert "Late Unless it is heard of, it counts as lost at 12:08:00." in text


def test_gone_workers_stay_listed_for_a_day(app: Flask, rows: Rows) -> None:
    rows.worker("web-7:1", seen_ago=7_200, stopped_at=NOW_MS - 7_200_000)
    rows.worker("web-8:1", seen_ago=600)
    rows.worker("web-1:1")

    text = text_of(app.test_client().get("/workflows/workers"))

    assert "Gone 2 workers" in text
    assert "web-8:1 web-1, pid 4711 Lost 11:00:00 11:50:00, 10 min ago Listed until Tue 1 Dec 11:50." in text
    assert "web-7:1 web-1, pid 4711 Stopped 11:00:00 10:00:00, 2 h ago Listed until Tue 1 Dec 10:00." in text


def test_no_live_worker_is_told_with_the_command(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    assert "No worker is known." in text_of(client.get("/workflows/workers"))
    assert "flask workflows work" in text_of(client.get("/workflows/workers"))

    rows.worker("web-8:1", host="web-8", seen_ago=600)

    text = text_of(client.get("/workflows/workers"))
    assert "No worker is live. The last was seen 11:50:00 on web-8. Start one: flask workflows work" in text


def test_inline_execution_needs_none(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> None:
    app = make_app(database_url, workflows=workflows, WORKFLOWS_EXECUTION="inline")

    assert "No worker is needed." in text_of(app.test_client().get("/workflows/workers"))


def test_runs_of_no_listed_worker_are_shown(app: Flask, rows: Rows) -> None:
    run = rows.run("running", worker="some-tick", due_at=NOW_MS - 5_000)
    rows.worker("web-1:1")

    response = app.test_client().get("/workflows/workers")

    assert "Held by no worker that is listed" in text_of(response)
    assert f"/workflows/run/{run}/release" in links(response)


def test_release_is_offered_to_those_who_may(app: Flask, rows: Rows, workflows: Workflows) -> None:
    workflows.authorize(lambda action, run=None: action != "release")
    rows.run("running", worker=rows.worker("web-9:1", seen_ago=40), due_at=NOW_MS - 5_000)

    assert "Release" not in text_of(app.test_client().get("/workflows/workers"))


def test_many_runs_of_a_worker_are_cut(app: Flask, rows: Rows) -> None:
    worker = rows.worker("web-1:1", concurrency=64)
    rows.insert(models.runs, [run_row("running", worker=worker, due_at=NOW_MS + 5_000) for _ in range(33)])

    text = text_of(app.test_client().get("/workflows/workers"))

    assert "and 13 more" in text
    assert "33 of 64" in text


def test_beat_is_a_change(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    worker = rows.worker("web-1:1", seen_ago=9)
    page = client.get("/workflows/workers")
    assert polled(client, page).status_code == 204

    with rows.engine.begin() as connection:
        connection.execute(models.workers.update().where(models.workers.c.id == worker).values(seen_at=NOW_MS))

    assert polled(client, page).status_code == 200


def test_b110_confined_visitor_sees_workers_and_only_their_own_runs(
    app: Flask, rows: Rows, workflows: Workflows
) -> None:
    workflows.scope(lambda: "north")
    live, lost = rows.worker("web-1:1"), rows.worker("web-9:1", seen_ago=40)
    ours = rows.run("running", worker=live, workspace="north", due_at=NOW_MS + 5_000)
    theirs = [
        rows.run("running", worker=live, workspace="south", workflow="their_workflow", due_at=NOW_MS + 5_000),
        rows.run("running", worker=lost, workspace="south", workflow="their_workflow", due_at=NOW_MS + 5_000),
        rows.run("running", worker="some-tick", workspace="", due_at=NOW_MS + 5_000),
    ]
    client = app.test_client()

    response = client.get("/workflows/workers")

    text = text_of(response)
    assert "web-1:1" in text
    assert "web-9:1 web-1, pid 4711 Lost" in text
    assert ours in response.text
    assert not any(run in response.text for run in theirs)
    assert "their_workflow" not in text
    assert "2 of 4" not in text
    assert "1 of 4" not in text
    assert "taken over" not in text
    assert "Held by no worker" not in text
    assert "idle" not in text

    # And nothing of it shows in whether the page changed.
    rows.run("running", worker=live, workspace="south", due_at=NOW_MS + 5_000)
    assert polled(client, response).status_code == 204


def test_b109_names_and_hosts_are_text(app: Flask, rows: Rows) -> None:
    offers = json.dumps([[EVIL, 1, 1]])
    live = rows.worker(EVIL, host=EVIL, queues=json.dumps([EVIL]), workflows=offers)
    lost = rows.worker(EVIL, host=EVIL, seen_ago=3_600)
    rows.worker(EVIL, host=EVIL, seen_ago=3_600)
    for worker in (live, lost, EVIL[:36]):
        run = rows.run("running", worker=worker, workflow=EVIL, due_at=NOW_MS - 60_000)
        rows.step(run, EVIL, 1, "running")
    client = app.test_client()

    assert "<img" not in client.get("/workflows/workers").text
    with rows.engine.begin() as connection:
        connection.execute(models.workers.delete().where(models.workers.c.id == live))
    gone = client.get("/workflows/workers")

    assert gone.status_code == 200
    assert "<img" not in gone.text
    assert "&lt;img src=x" in gone.text


@pytest.mark.parametrize("stored", ["no JSON", "{}", "7", "[7]", '[["a"]]', '[["a", "b", "c"]]', "[[[[]]]]"])
def test_unreadable_offers_spoil_nothing(app: Flask, rows: Rows, stored: str) -> None:
    rows.worker("web-1:1", workflows=stored, queues=stored)

    assert app.test_client().get("/workflows/workers").status_code == 200


# Plans -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(shared_url: str) -> Iterator[Rows]:
    """A backlog, many that are done, and a few that run."""
    with tables(shared_url) as rows:
        made = [
            run_row(
                "running" if n % 500 == 0 else "pending" if n % 2 else "completed",
                worker="worker" if n % 500 == 0 else None,
                due_at=NOW_MS + 5_000 if n % 500 == 0 or n % 2 else None,
                workspace=("", "north")[n // 2 % 2],
            )
            for n in range(10_000)
        ]
        rows.insert(models.runs, made)
        rows.insert(models.steps, [step_row(run["id"], "fetch", 1, "running") for run in made[::500]])
        rows.insert(models.workers, [worker_row(f"web-{n}:1", seen_ago=n) for n in range(100)])
        analyze(rows)
        yield rows
        models.metadata.drop_all(rows.engine)


@pytest.mark.parametrize("workspaces", [None, ("north",), ("", "north")], ids=str)
def test_what_workers_hold_is_found_through_an_index(large: Rows, workspaces: tuple[str, ...] | None) -> None:
    def look(connection: sa.Connection) -> object:
        return read.list_held(connection, workspaces)

    assert_served(plans(large, look))
    assert not any(word in sql for sql, _ in statements(large, look) for word in (".input", ".output"))
    with read.reading(large.engine) as connection:
        held = read.list_held(connection, workspaces)
    assert len(held) == (20 if workspaces != ("north",) else 0)


def test_workers_come_by_their_last_beat_up_to_a_limit(large: Rows) -> None:
    with read.reading(large.engine) as connection:
        found = read.list_workers(connection, limit=10)

    assert [worker.name for worker in found] == [f"web-{n}:1" for n in range(10)]
