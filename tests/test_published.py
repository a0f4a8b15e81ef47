"""What a run publishes while it goes on: `ctx.progress`, `ctx.set`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import current_run
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows.errors import InvalidName
from flask_workflows.errors import ValueRefused
from flask_workflows.events import Progress
from tests import apps
from tests.event_app import declared
from tests.event_app import finished_at_once
from tests.event_app import in_context
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import execute
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db
from tests.running import on_postgresql
from tests.running import on_sqlite
from tests.running import Order

pytestmark = pytest.mark.usefixtures("app_context", "clock")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False)

    declared.clock = None


def test_a_run_that_published_nothing_has_no_progress_and_no_values() -> None:
    run = finished_at_once.spawn()
    declared.tick()

    assert run.progress() is None
    assert run.get("page") is None


def test_the_last_value_published_counts(clock: Clock) -> None:
    @declared.workflow(name="publishing")
    def publishing(ctx: WorkflowContext) -> None:
        ctx.set("page", 1)
        ctx.set("page", {"number": 2, "of": [1, 2]})
        ctx.set("other", None)
        ctx.progress(3, 10, "pages read")

    run = publishing.spawn()
    declared.tick()

    assert run.get("page") == {"number": 2, "of": [1, 2]}
    assert run.get("other") is None
    assert run.progress() == Progress(3, 10, "pages read")


def test_progress_needs_no_total() -> None:
    @declared.workflow(name="endless")
    def endless(ctx: WorkflowContext) -> None:
        ctx.progress(0.5)

    run = endless.spawn()
    declared.tick()

    assert run.progress() == Progress(0.5, None, None)


def test_what_a_step_publishes_is_seen_while_it_goes_on(app: Flask) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def read() -> None:
        for page in range(1, 4):
            current_run.progress(page, 3)
        reached.set()
        go_on.wait(30)

    @declared.workflow(name="going-on")
    def going_on(ctx: WorkflowContext) -> None:
        ctx.step("read", read)

    run = going_on.spawn()
    executing = threading.Thread(target=in_context(app, declared.tick))
    executing.start()
    assert reached.wait(30)
    seen = run.progress(), run.status()
    go_on.set()
    executing.join(30)

    assert seen == (Progress(3, 3, None), RunStatus.RUNNING)


def test_b49_a_step_that_is_tried_again_publishes_again_and_the_last_counts(clock: Clock) -> None:
    attempts: list[int] = []

    def read() -> None:
        attempts.append(1)
        current_run.set("attempt", len(attempts))
        if len(attempts) == 1:
            raise ConnectionError

    @declared.workflow(name="trying")
    def trying(ctx: WorkflowContext) -> None:
        ctx.step("read", read)

    run = trying.spawn()
    declared.tick()
    after_the_error = run.get("attempt")
    clock.move(minutes=1)
    declared.tick()

    assert (after_the_error, run.get("attempt")) == (1, 2)


def test_a_replay_publishes_nothing_that_is_older_than_what_was_published_since(clock: Clock) -> None:
    seen: list[Any] = []

    @declared.workflow(name="replaying")
    def replaying(ctx: WorkflowContext) -> None:
        ctx.set("at", "first")
        ctx.sleep(1)
        seen.append(declared.handle(ctx.run_id).get("at") if len(seen) == 0 else None)
        ctx.set("at", "second")
        ctx.sleep(1)
        ctx.sleep(1)

    run = replaying.spawn()
    values = []
    for _ in range(4):
        declared.tick()
        values.append(run.get("at"))
        clock.move(seconds=1)

    assert values == ["first", "second", "second", "second"]


def test_values_outlive_their_run_until_it_is_pruned(app: Flask, clock: Clock) -> None:
    @declared.workflow(name="lasting")
    def lasting(ctx: WorkflowContext) -> None:
        ctx.set("kept", True)

    run = lasting.spawn()
    declared.tick()
    kept = run.get("kept")
    clock.move(days=31)
    declared.prune()

    assert kept is True
    assert rows(app, "SELECT * FROM workflow_state") == []


def test_an_execution_that_lost_its_run_publishes_nothing(app: Flask) -> None:
    """B129: it is stopped there."""
    went_on: list[bool] = []

    def lose(run: str) -> None:
        execute(app, "UPDATE workflow_runs SET epoch = epoch + 1 WHERE id = :id", id=run)
        current_run.set("zombie", True)
        went_on.append(True)

    @declared.workflow(name="losing")
    def losing(ctx: WorkflowContext) -> None:
        ctx.step("lose", lose, ctx.run_id)

    run = losing.spawn()
    declared.tick()

    assert run.get("zombie") is None
    assert went_on == []


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize("key", ["", "$progress", "x" * 256, "a\0b"])
def test_a_key_that_cannot_be_published_under_is_refused(key: str) -> None:
    @declared.workflow(name="misnaming")
    def misnaming(ctx: WorkflowContext, key: str) -> bool:
        with pytest.raises(InvalidName):
            ctx.set(key.replace("\\0", "\0"), 1)
        return True

    run = misnaming.spawn(key.replace("\0", "\\0"))
    declared.tick()

    assert run.output() is True


@on_sqlite  # nothing of it comes to the database
def test_b70_a_value_that_is_no_json_is_refused() -> None:
    @declared.workflow(name="mistaking")
    def mistaking(ctx: WorkflowContext) -> bool:
        for value in (float("nan"), object(), "a\0b"):
            with pytest.raises(ValueRefused, match="set\\('value'\\)"):
                ctx.set("value", value)
        with pytest.raises(ValueRefused):
            ctx.progress(float("inf"))
        return True

    run = mistaking.spawn()
    declared.tick()

    assert run.output() is True


def test_a_step_that_wrote_can_publish_too(app: Flask, db: SQLAlchemy) -> None:
    """On SQLite its session holds the only write lock, which must not be waited for."""
    seen: list[Any] = []

    def read(run: str) -> None:
        for number in range(3):
            db.session.add(Order(note=str(number)))
            db.session.flush()
            current_run.progress(number, 3)
            seen.append(len(rows(app, "SELECT value FROM workflow_state")))

    @declared.workflow(name="writing")
    def writing(ctx: WorkflowContext) -> None:
        ctx.step("read", read, ctx.run_id)

    run = writing.spawn()
    declared.tick()

    assert run.status() is RunStatus.COMPLETED
    assert run.progress() == Progress(2, 3, None)
    assert rows(app, "SELECT note FROM orders ORDER BY note") == [("0",), ("1",), ("2",)]
    # There it is seen by others once the step is committed.
    assert seen == ([0, 0, 0] if db.engine.dialect.name == "sqlite" else [1, 1, 1])


@on_sqlite
def test_what_a_step_published_with_its_rows_vanishes_with_them(app: Flask, db: SQLAlchemy, clock: Clock) -> None:
    attempts: list[int] = []

    def read() -> None:
        attempts.append(1)
        db.session.add(Order(note="once"))
        db.session.flush()
        current_run.set("attempt", len(attempts))
        if len(attempts) == 1:
            raise ConnectionError

    @declared.workflow(name="withdrawing")
    def withdrawing(ctx: WorkflowContext) -> None:
        ctx.step("read", read)

    run = withdrawing.spawn()
    declared.tick()
    after_the_error = run.get("attempt")
    clock.move(minutes=1)
    declared.tick()

    assert (after_the_error, run.get("attempt")) == (None, 2)


def test_a_body_that_wrote_is_refused_at_once(db: SQLAlchemy, clock: Clock) -> None:
    @declared.workflow(name="writing-body")
    def writing_body(ctx: WorkflowContext) -> None:
        db.session.add(Order(note="body"))
        db.session.flush()
        ctx.set("after", "a write")

    run = writing_body.spawn()
    for _ in range(3):
        declared.tick()
        clock.move(minutes=1)

    error = run.run().error
    assert error is not None
    assert error.short_type == "UncommittedBodyWrites"


@on_postgresql
def test_publishing_does_not_wait_for_other_runs(app: Flask) -> None:
    @declared.workflow(name="quick")
    def quick(ctx: WorkflowContext) -> None:
        ctx.progress(1)

    other = finished_at_once.spawn()
    run = quick.spawn()
    with apps.database_of(app).engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1 FROM workflow_runs WHERE id = %(id)s FOR UPDATE", {"id": other.id})
        declared.tick()

        assert run.progress() == Progress(1, None, None)
