"""Workspaces: keys, events and cancelling in one do not touch the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import RunQuery
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows.errors import InvalidName
from tests import apps
from tests.event_app import awaiting
from tests.event_app import awaiting_any
from tests.event_app import declared
from tests.event_app import finished_at_once
from tests.event_app import HOUR
from tests.event_app import working
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import eventually
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db
from tests.running import on_sqlite

pytestmark = pytest.mark.usefixtures("app_context", "clock")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(
        database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False, WORKFLOWS_POLL_INTERVAL_MS=20
    )

    declared.clock = None


@pytest.mark.parametrize("stored_before", [False, True], ids=["new", "stored"])
def test_b110_an_event_of_a_workspace_wakes_its_runs_alone(app: Flask, stored_before: bool) -> None:
    @declared.workflow(name="in-workspace")
    def in_workspace(ctx: WorkflowContext) -> Any:
        event = ctx.wait_for("paid", match={"order": 1}, timeout=HOUR, since=ctx.started_at)
        return event and event.payload

    north, south = (in_workspace.using(workspace=name).spawn() for name in ("north", "south"))
    nowhere = in_workspace.spawn()
    if not stored_before:
        declared.tick()

    declared.deliver("paid", {"order": 1}, workspace="north")
    apps.runtime_of(app).events.match_all()
    declared.tick()

    assert [str(run.status()) for run in (north, south, nowhere)] == ["completed", "waiting", "waiting"]
    assert rows(app, "SELECT workspace, woke FROM workflow_events") == [("north", 1)]


@pytest.mark.parametrize("stored_before", [False, True], ids=["new", "stored"])
def test_an_event_of_no_workspace_wakes_the_runs_of_all(app: Flask, stored_before: bool) -> None:
    @declared.workflow(name="in-any-workspace")
    def in_any(ctx: WorkflowContext) -> Any:
        return ctx.wait_for("paid", since=ctx.started_at).payload

    runs = [in_any.using(workspace=name).spawn() for name in ("north", "south", None)]
    if not stored_before:
        declared.tick()

    declared.deliver("paid", "all")
    apps.runtime_of(app).events.match_all()
    declared.tick()

    assert [run.output() for run in runs] == ["all"] * 3


def test_a_workspace_may_be_a_number() -> None:
    run = awaiting_any.using(workspace=7).spawn()
    declared.tick()

    declared.deliver("paid", "seven", workspace=7)
    declared.tick()

    assert run.output() == "seven"
    assert declared.get(run.id).workspace == "7"


def test_a_workspace_named_as_the_beginning_of_another_is_another(db: SQLAlchemy) -> None:
    """B79: nothing in a name is a wildcard."""
    runs = [awaiting_any.using(workspace=name).spawn() for name in ("north", "north-east", "n%", "_orth", "NORTH")]
    declared.tick()

    declared.emit("paid", "north", workspace="north")
    db.session.commit()
    declared.tick()

    assert [run.status() is RunStatus.COMPLETED for run in runs] == [True, False, False, False, False]


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize("workspace", ["", " ", "a\0", "x" * 256, 1.5, True])
def test_b32_a_workspace_that_cannot_be_stored_is_refused(workspace: Any) -> None:
    with pytest.raises(InvalidName):
        declared.emit("paid", workspace=workspace)
    with pytest.raises(InvalidName):
        awaiting_any.using(workspace=workspace)


def test_an_event_emitted_in_a_body_goes_to_the_workspace_it_names(clock: Clock) -> None:
    @declared.workflow(name="telling-south")
    def telling(ctx: WorkflowContext) -> None:
        declared.emit("paid", {"order": 1}, workspace="south")

    north, south = (awaiting.using(workspace=name).spawn(1) for name in ("north", "south"))
    declared.tick()

    telling.using(workspace="north").spawn()
    declared.tick()

    assert [north.status(), south.status()] == [RunStatus.WAITING, RunStatus.SLEEPING]


def test_b30_one_key_in_two_workspaces_is_two_runs() -> None:
    runs = [awaiting_any.using(key="k", workspace=name).spawn() for name in ("a", "b", None, "a")]

    assert [run.created for run in runs] == [True, True, True, False]
    assert runs[3].id == runs[0].id
    assert len({run.id for run in runs}) == 3


def test_runs_are_listed_by_workspace() -> None:
    north = [awaiting_any.using(workspace="north").spawn() for _ in range(3)]
    awaiting_any.using(workspace="south").spawn()
    awaiting_any.spawn()

    found = declared.runs(RunQuery(workspace="north"))

    assert {run.id for run in found} == {run.id for run in north}


def test_cancelling_a_workspace_ends_its_unfinished_runs_in_whatever_state(app: Flask, clock: Clock) -> None:
    done = finished_at_once.using(workspace="north").spawn()
    waiting = awaiting_any.using(workspace="north").spawn()
    declared.tick()
    pending = awaiting_any.using(workspace="north").spawn()
    sleeping = awaiting_any.using(workspace="north", delay=60).spawn()
    other, nowhere = awaiting_any.using(workspace="south").spawn(), awaiting_any.spawn()

    cancelled = declared.cancel_workspace("north")
    again = declared.cancel_workspace("north")

    assert (cancelled, again) == (3, 0)
    assert [str(run.status()) for run in (waiting, pending, sleeping)] == ["cancelled"] * 3
    assert done.status() is RunStatus.COMPLETED
    assert [str(run.status()) for run in (other, nowhere)] == ["pending"] * 2
    assert rows(app, "SELECT * FROM workflow_waits") == []


def test_cancelling_a_workspace_of_more_runs_than_a_page_holds_ends_all(app: Flask, db: SQLAlchemy) -> None:
    awaiting_any.using(workspace="north").start_many([{} for _ in range(230)])
    db.session.commit()

    cancelled = declared.cancel_workspace("north")

    assert cancelled == 230
    assert rows(app, "SELECT status, count(*) FROM workflow_runs GROUP BY status") == [("cancelled", 230)]


def test_cancelling_a_workspace_marks_a_run_that_is_executed_and_counts_it_once(app: Flask) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def block() -> None:
        reached.set()
        go_on.wait(30)

    @declared.workflow(name="blocked-in-workspace")
    def blocked(ctx: WorkflowContext) -> None:
        ctx.step("block", block)
        ctx.step("never", block)

    run = blocked.using(workspace="north").spawn()
    with working(app):
        assert reached.wait(30)
        reached.clear()
        counts = (declared.cancel_workspace("north"), declared.cancel_workspace("north"))
        cancelling = declared.get(run.id).cancelling
        go_on.set()
        eventually(lambda: run.status().finished)

    assert counts == (1, 0)
    assert cancelling
    assert run.status() is RunStatus.CANCELLED
    assert not reached.is_set()


def test_cancelling_a_workspace_while_its_runs_move_on_leaves_none(app: Flask, db: SQLAlchemy) -> None:
    runs = awaiting_any.using(workspace="north").start_many([{} for _ in range(150)])
    db.session.commit()

    with working(app, 2):
        declared.cancel_workspace("north")
        eventually(lambda: rows(app, "SELECT 1 FROM workflow_runs WHERE finished_at IS NULL") == [])

    assert {str(declared.get(run.id).status) for run in runs} == {"cancelled"}
    assert rows(app, "SELECT * FROM workflow_waits") == []
