"""A run's page where it has branches, children, forks and undo steps: what is drawn under what, and where it leads."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.runs import RunQuery
from flask_workflows.store import reading as read
from tests import apps
from tests.pages import links
from tests.pages import Tags
from tests.pages import text_of
from tests.plans import analyze
from tests.plans import assert_served
from tests.plans import plans
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row
from tests.running import Clock
from tests.running import run_out
from tests.test_run_page import statements_of


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


@pytest.fixture
def one_client(sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows) -> FlaskClient:
    """For what does not depend on the database."""
    return make_app(sqlite_url, workflows=workflows).test_client()


def page(client: FlaskClient, run_id: str, query: str = "") -> str:
    response = client.get(f"/workflows/run/{run_id}{query}")
    assert response.status_code == 200
    return text_of(response)


def starting(rows: Rows, **child: object) -> tuple[str, str]:
    """A run that waits for the one it started; answers both."""
    parent = rows.run("waiting", due_at=None, workflow="billing")
    made = rows.run(
        "running", workflow="mailing", parent_id=parent, worker=rows.worker(), due_at=NOW_MS + 9_000, **child
    )
    rows.step(parent, "$start:mailing", 1, kind="start", output=json.dumps({"id": made, "workflow": "mailing"}))
    rows.step(parent, "$result", 2, "waiting", kind="result")
    return parent, made


# Children and forks --------------------------------------------------------------------------


def test_child_stands_under_the_call_that_started_it(client: FlaskClient, rows: Rows) -> None:
    parent, child = starting(rows)

    response = client.get(f"/workflows/run/{parent}")
    row = response.text.partition('id="step-1"')[2].partition("<tr")[0]

    assert "start mailing mailing Running Completed" in text_of(response)
    assert "Waiting for the end of another run." in text_of(response)
    assert "Deliver event…" not in text_of(response)
    assert f'href="/workflows/run/{child}"' in row
    assert f"It started mailing Running …{child[-6:]}" in text_of(response)
    below = client.get(f"/workflows/run/{child}")
    assert f"Started by billing Waiting …{parent[-6:]}" in text_of(below)
    assert f"/workflows/run/{parent}" in links(below)
    step = client.get(f"/workflows/run/{parent}/step/1")
    assert f"/workflows/run/{child}" in links(step)


def test_fork_and_what_it_is_of_lead_to_one_another(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("completed")
    rows.step(run_id, "load", 1)
    with app.app_context():
        fork = service.fork(apps.runtime_of(app), run_id, "load")

    assert f"Its forks onboarding Pending …{fork[-6:]}" in page(client, run_id)
    assert f"Forked from onboarding Completed …{run_id[-6:]}" in page(client, fork)


def test_b110_relatives_outside_the_scope_are_not_told_of(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    parent, child = starting(rows, workspace="theirs")
    rows.run("failed", workflow="theirs-too", workspace="theirs", forked_from=parent)
    workflows.scope(lambda: "")

    text = page(client, parent)

    assert "Related runs" not in text
    assert "theirs" not in text
    assert "mailing Running" not in text
    rows.change(child, workspace="")
    rows.change(parent, workspace="theirs")
    assert "billing" not in page(client, child)


def test_many_relatives_are_found_by_a_search(client: FlaskClient, rows: Rows) -> None:
    parent = rows.run("waiting", due_at=None)
    rows.insert(models.runs, [run_row(parent_id=parent, forked_from=parent) for _ in range(30)])

    response = client.get(f"/workflows/run/{parent}")

    assert text_of(response).count("onboarding Completed") == 20
    assert "Only the newest 10 are shown." in text_of(response)
    (more,) = [link for link in links(response) if "q=parent" in link]
    found = client.get(more)
    assert found.status_code == 200
    assert "onboarding" in text_of(found)


def test_parent_of_hundreds_stays_a_small_page(app: Flask, client: FlaskClient, rows: Rows) -> None:
    counts = []
    for number in (70, 2_000):
        parent = rows.run("waiting", due_at=None)
        made = [run_row("completed", workflow="mailing", parent_id=parent) for _ in range(number)]
        rows.insert(models.runs, made)
        starts = [
            step_row(parent, f"$start:mailing#{n}", n, kind="start", output=json.dumps({"id": run["id"]}))
            for n, run in enumerate(made, start=1)
        ]
        rows.insert(models.steps, starts)
        with statements_of(app) as seen:
            response = client.get(f"/workflows/run/{parent}")
        counts.append(len(seen))
        assert len(response.data) < 60_000

    assert counts[0] == counts[1]


# Branches ------------------------------------------------------------------------------------


def branched(rows: Rows) -> str:
    run_id = rows.run("waiting", due_at=None)
    rows.step(run_id, "load", 1)
    rows.step(run_id, "$parallel", 2, "running", kind="parallel")
    rows.step(run_id, "2.0/charge", 1)
    rows.step(run_id, "2.0/$parallel", 2, "running", kind="parallel")
    rows.step(run_id, "2.0/2.0/mail", 1)
    rows.step(run_id, "2.0/2.1/print", 1)
    rows.step(run_id, "2.1/pack", 1)
    rows.step(run_id, "2.1/$wait:paid", 2, "waiting", kind="wait")
    rows.step(run_id, "2.2/weigh", 1)
    return run_id


def classes_of(client: FlaskClient, run_id: str) -> dict[str, set[str]]:
    found = Tags(client.get(f"/workflows/run/{run_id}").text).found
    rows = [attributes for tag, attributes in found if tag == "tr" and (attributes.get("id") or "").startswith("step-")]
    return {str(row["id"]): set((row.get("class") or "").split()) for row in rows}


def test_branches_stand_under_their_parallel_call(client: FlaskClient, rows: Rows) -> None:
    run_id = branched(rows)
    found = classes_of(client, run_id)

    assert [number for number, names in found.items() if "fw-in" in names] == [f"step-{n}" for n in range(3, 10)]
    assert [number for number, names in found.items() if "fw-deep" in names] == ["step-3", "step-4"]
    begins = [number for number, names in found.items() if "fw-begins" in names]
    assert begins == ["step-3", "step-4", "step-5", "step-7", "step-9"]
    text = page(client, run_id)
    assert "2 parallel 3 branches, last calls: 1 running, 1 waiting, 1 completed" in text
    assert "2.0 parallel 2 branches, last calls: 2 completed" in text


def test_branches_are_not_counted_where_some_are_left_out(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 9_000)
    rows.step(run_id, "$parallel", 1, "running", kind="parallel")
    rows.insert(models.steps, [step_row(run_id, f"1.{n}/send#{n}", 1) for n in range(2_000)])

    response = client.get(f"/workflows/run/{run_id}")

    assert "last calls" not in text_of(response)
    assert "fw-in" in response.text
    assert len(response.data) < 60_000
    assert "last calls" not in page(client, branched(rows), "?step=parallel")


def test_branches_of_a_real_run_are_drawn(app: Flask, client: FlaskClient, workflows: Workflows) -> None:
    clock = Clock()
    workflows.clock = clock

    @workflows.step(name="kin-note")
    def note(what: str) -> str:
        return what

    @workflows.workflow(name="kin-branched")
    def both(ctx: WorkflowContext) -> list[str]:
        return ctx.parallel(lambda: note("a"), lambda: note("b"))

    with app.app_context():
        run_id = both.spawn().id
        run_out(workflows, clock)

    assert "2 branches, last calls: 2 completed" in page(client, run_id)
    assert "fw-begins" in client.get(f"/workflows/run/{run_id}").text


# Undo ----------------------------------------------------------------------------------------


def test_undo_steps_say_what_they_are_pushed_after_and_what_came_of_it(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("failed", error=error_json(), undoing="{}")
    rows.step(run_id, "book", 1)
    rows.step(run_id, "$undo:unbook", 2, kind="undo")
    rows.step(run_id, "charge", 3)
    rows.step(run_id, "$undo:refund", 4, "failed", kind="undo", error=error_json())

    text = page(client, run_id)

    assert "undo unbook Undone, pushed after 1 book Completed" in text
    assert "undo refund Could not be undone, pushed after 3 charge" in text


@pytest.mark.parametrize(
    ("status", "word"), [("waiting", "Stands by to undo, pushed after 1 book"), ("completed", "Was not needed, pushed")]
)
def test_undo_that_was_not_done_says_so(one_client: FlaskClient, status: str, word: str) -> None:
    rows = rows_of(one_client.application)
    run_id = rows.run(status)
    rows.step(run_id, "book", 1)
    rows.step(run_id, "$undo:unbook", 2, "pushed", kind="undo")

    assert word in page(one_client, run_id)


def test_undone_real_run_says_so(app: Flask, client: FlaskClient, workflows: Workflows) -> None:
    clock = Clock()
    workflows.clock = clock

    @workflows.step(name="kin-book", retry=Retry(attempts=1))
    def book() -> None:
        """Is undone by the other."""

    @workflows.step(name="kin-unbook")
    def unbook() -> None:
        """Undoes it."""

    @workflows.workflow(name="kin-undone")
    def trip(ctx: WorkflowContext) -> None:
        book()
        ctx.on_failure(unbook)
        raise LookupError("no hotel")

    with app.app_context():
        run_id = trip.spawn().id
        run_out(workflows, clock)

    assert "undo kin-unbook Undone, pushed after 1 kin-book Completed" in page(client, run_id)
    assert "What it did was undone when it ended" in page(client, run_id)
    assert "Its undo steps were executed before it ended, so it cannot be retried." in page(client, run_id)
    assert "Start one like this…" in page(client, run_id)


# How they are read -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda c: read.list_children(c, "run-7", None, limit=11), "workflow_runs_parent"),
        (lambda c: read.list_children(c, "run-7", ("acme",), limit=11), "workflow_runs_parent"),
        (lambda c: read.count_unfinished_children(c, "run-7", None), "workflow_runs_parent"),
        (lambda c: read.list_forks(c, "run-7", None, limit=11), "workflow_runs_forks"),
        (lambda c: read.count_paused(c, None), "workflow_runs_paused"),
        (lambda c: read.count_paused(c, ("acme",)), "workflow_runs_paused"),
        (lambda c: read.list_runs(c, RunQuery(search="is:paused"), scan=100), "workflow_runs_paused"),
    ],
    ids=["children", "children in a scope", "unfinished", "forks", "paused", "paused in a scope", "search"],
)
@pytest.mark.parametrize("known", [True, False], ids=["analysed", "fresh"])
def test_relatives_and_paused_runs_are_found_by_indexes(
    rows: Rows, ask: Callable[[sa.Connection], object], index: str, known: bool
) -> None:
    made = [run_row("waiting", due_at=None, parent_id=f"run-{n}", forked_from=f"run-{n}") for n in range(3_000)]
    rows.insert(models.runs, made)
    rows.run("waiting", due_at=None, paused_at=NOW_MS)
    if known:
        analyze(rows)

    found = plans(rows, ask)

    assert_served(found)
    assert any(index in plan for plan in found), found
