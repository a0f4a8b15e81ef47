"""Runs that are kept in the process: WORKFLOWS_STORE="memory", and apps on `sqlite://` (R42)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Retry
from flask_workflows import RunFailed
from flask_workflows import RunNotFound
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import SetupError
from tests import apps
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import Order

pytestmark = pytest.mark.usefixtures("app_context")

declared = Workflows()
effects: list[str] = []


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.workflow
def noting(what: str) -> str:
    return note(what)


@declared.workflow
def sleeping(ctx: WorkflowContext) -> None:
    ctx.sleep(3600)


@pytest.fixture(params=["memory on sqlite", "memory on postgresql", "sqlite://"])
def app(request: pytest.FixtureRequest, make_app: apps.MakeApp) -> Iterator[Flask]:
    """Its runs are in another database than its rows, and are executed where they are started."""
    effects.clear()
    store, _, kind = request.param.partition(" on ")
    url = request.getfixturevalue(f"{kind}_url") if kind else "sqlite://"
    app = make_app(
        url,
        db=make_orders_db(),
        workflows=declared,
        WORKFLOWS_EXECUTION="inline",
        WORKFLOWS_STORE="memory" if store == "memory" else "database",
    )

    yield app

    apps.runtime_of(app).close()
    declared.clock = None


def test_a_run_kept_apart_is_applied_and_executed_at_the_commit(db: SQLAlchemy) -> None:
    handle = noting.start("apart")
    db.session.add(Order(note="with it"))
    before = list(effects)
    with pytest.raises(RunNotFound):
        handle.run()
    db.session.commit()

    assert before == []
    assert handle.result(timeout=5) == "apart"
    assert committed_notes() == ["with it"]


def test_a_run_kept_apart_vanishes_with_its_transaction_or_savepoint(db: SQLAlchemy) -> None:
    noting.start("rolled back")
    db.session.rollback()
    with db.session.begin_nested():
        noting.start("released and rolled back")
    db.session.rollback()
    outer = db.session.begin_nested()
    with db.session.begin_nested():
        noting.start("released inside of one rolled back")
    outer.rollback()
    with db.session.begin_nested():
        kept = noting.start("released")
    db.session.commit()

    assert effects == ["released"]
    assert [run.id for run in declared.runs()] == [kept.id]


def test_keys_hold_among_runs_kept_apart(db: SQLAlchemy) -> None:
    first = sleeping.using(key="k").start()
    within = sleeping.using(key="k").start()
    db.session.commit()
    later = sleeping.using(key="k").start()
    db.session.commit()
    spawned = sleeping.using(key="k").spawn()

    assert first.created
    assert [(handle.id, handle.created) for handle in (within, later, spawned)] == [(first.id, False)] * 3
    assert len(declared.runs()) == 1


def test_runs_kept_apart_sleep_fail_and_retry_as_all_do(clock: Clock) -> None:
    down = [OSError("down")]

    @declared.step(name="unsteady-apart", retry=Retry(attempts=1))
    def unsteady() -> str:
        if down:
            raise down.pop()
        return "up"

    @declared.workflow(name="living-apart")
    def living(ctx: WorkflowContext) -> str:
        note("once")
        ctx.sleep(60)
        return unsteady()

    handle = living.spawn()
    clock.move(seconds=60)
    declared.tick()
    failed = handle.status()
    declared.retry(handle.id)

    assert failed is RunStatus.FAILED
    assert handle.output() == "up"
    assert effects == ["once"]


def test_the_writes_of_a_step_of_a_run_kept_apart_are_committed(db: SQLAlchemy) -> None:
    @declared.step(name="order-apart")
    def order() -> None:
        db.session.add(Order(note="ordered"))

    @declared.workflow(name="ordering-apart")
    def ordering() -> None:
        order()

    ordering.spawn()

    assert committed_notes() == ["ordered"]


def test_a_transactional_step_of_a_run_kept_apart_is_refused(db: SQLAlchemy) -> None:
    @declared.step(name="transactional-apart", transactional=True)
    def order() -> None:
        db.session.add(Order(note="never"))

    @declared.workflow(name="transacting-apart")
    def ordering() -> None:
        order()

    handle = ordering.spawn()

    assert committed_notes() == []
    with pytest.raises(RunFailed, match=r"TransactionalRefused: .*use a database file or server"):
        handle.output()


def test_runs_kept_apart_are_in_no_database_of_the_app_and_leave_nothing_on_disk(app: Flask, db: SQLAlchemy) -> None:
    noting.spawn("apart")
    runtime = apps.runtime_of(app)
    path = runtime.engine.url.database or ""

    with db.engine.connect() as connection:
        mirrored = "workflow_runs" in sa.inspect(connection).get_table_names()
        in_app = connection.scalar(sa.text("SELECT count(*) FROM workflow_runs")) if mirrored else 0
    existed = os.path.exists(path)
    runtime.close()

    assert in_app == 0
    assert existed
    assert not os.path.exists(path)


def test_a_worker_refuses_runs_that_only_another_process_could_see() -> None:
    with pytest.raises(SetupError, match='WORKFLOWS_EXECUTION="inline"'):
        declared.worker().run()
