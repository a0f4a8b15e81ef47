"""Execution without a worker: where runs are started, and by `tick` (R46)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from datetime import UTC
from decimal import Decimal
from threading import get_ident
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Handle
from flask_workflows import InlineNeedsCommit
from flask_workflows import run_completed
from flask_workflows import RunFailed
from flask_workflows import RunNotFound
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from tests import apps
from tests.running import at_once
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
def sleeping(ctx: WorkflowContext) -> str:
    note("before")
    ctx.sleep(3600)
    return note("after")


@declared.workflow
def failing() -> None:
    raise ValueError("wrong")


@declared.workflow
def starting(what: str) -> str:
    noting.start(f"{what} by a body")
    return note(what)


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    """Its runs are executed where they are started."""
    effects.clear()

    yield make_app(database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_EXECUTION="inline")

    declared.clock = None


# Inline ------------------------------------------------------------------------------------


def test_a_started_run_is_executed_by_the_commit_on_the_same_thread(db: SQLAlchemy) -> None:
    threads: list[int] = []

    @declared.workflow(name="telling-its-thread")
    def telling() -> str:
        threads.append(get_ident())
        return "told"

    handle = telling.start()
    db.session.add(Order(note="committed before"))
    before = list(threads)
    db.session.commit()

    assert before == []
    assert threads == [get_ident()]
    assert handle.result(timeout=5) == "told"


def test_a_run_executed_inline_sees_what_was_committed_with_its_start(db: SQLAlchemy) -> None:
    @declared.step(name="count-orders")
    def count() -> int:
        return len(db.session.scalars(sa.select(Order)).all())

    @declared.workflow(name="counting-orders")
    def counting() -> int:
        return count()

    db.session.add(Order(note="one"))
    handle = counting.start()
    db.session.commit()

    assert handle.output() == 1


def test_a_spawned_run_is_executed_at_once(db: SQLAlchemy) -> None:
    handle = noting.spawn("spawned")

    assert handle.output() == "spawned"


def test_nothing_is_executed_by_a_rollback_or_by_the_end_of_a_savepoint(db: SQLAlchemy) -> None:
    with db.session.begin_nested():
        noting.start("in a savepoint")
    after_release = list(effects)
    nested = db.session.begin_nested()
    noting.start("given up with its savepoint")
    nested.rollback()
    db.session.commit()
    after_commit = list(effects)
    noting.start("given up")
    db.session.rollback()
    db.session.commit()

    assert after_release == []
    assert after_commit == effects == ["in a savepoint"]


def test_the_errors_of_a_run_go_to_the_run_and_not_to_the_commit(db: SQLAlchemy) -> None:
    @declared.workflow(name="leaving")
    def leaving() -> None:
        raise SystemExit(3)

    handles = [failing.start(), leaving.start()]
    db.session.add(Order(note="committed all the same"))
    db.session.commit()

    errors = [handle.run().error for handle in handles]
    assert [error.type for error in errors if error] == ["ValueError", "SystemExit"]
    assert committed_notes() == ["committed all the same"]


def test_an_engine_that_cannot_execute_after_the_commit_does_not_undo_it(
    db: SQLAlchemy, caplog: pytest.LogCaptureFixture
) -> None:
    with db.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE workflow_steps RENAME TO steps_elsewhere"))

    handle = sleeping.start()
    db.session.add(Order(note="committed all the same"))
    db.session.commit()
    with db.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE steps_elsewhere RENAME TO workflow_steps"))

    assert committed_notes() == ["committed all the same"]
    assert handle.status() is RunStatus.RUNNING
    assert handle.id in caplog.text


def test_a_session_is_usable_in_the_moment_after_an_inline_commit(db: SQLAlchemy) -> None:
    for number in range(3):
        handle = noting.start(f"round {number}")
        db.session.add(Order(note=f"round {number}"))
        db.session.commit()
        assert handle.output() == f"round {number}"

    assert committed_notes() == ["round 0", "round 1", "round 2"]


def test_runs_started_by_a_run_are_executed_after_it_in_the_same_commit(db: SQLAlchemy) -> None:
    starting.start("parent")
    db.session.commit()

    assert effects == ["parent", "parent by a body"]
    assert {run.status for run in declared.runs()} == {RunStatus.COMPLETED}


def test_a_sleeping_run_is_executed_by_the_tick_after_its_time(clock: Clock) -> None:
    handle = sleeping.spawn()
    asleep = handle.status()
    clock.move(minutes=59)
    early = declared.tick()
    clock.move(minutes=1)
    due = declared.tick()

    assert asleep is RunStatus.SLEEPING
    assert (early, due) == (0, 1)
    assert effects == ["before", "after"]
    assert handle.output() == "after"


def test_any_object_that_tells_the_time_is_a_clock() -> None:
    class FixedClock:
        instant = datetime(2040, 5, 1, tzinfo=UTC)

        def now(self) -> datetime:
            return self.instant

    @declared.workflow(name="telling-the-time")
    def telling(ctx: WorkflowContext) -> str:
        ctx.sleep(60)
        return str(ctx.now())

    declared.clock = clock = FixedClock()
    handle = telling.spawn()
    clock.instant = datetime(2040, 5, 2, tzinfo=UTC)
    declared.tick()

    assert handle.output() == "2040-05-02 00:00:00+00:00"
    assert handle.run().created_at == datetime(2040, 5, 1, tzinfo=UTC)


def test_a_clock_that_tells_no_time_zone_is_refused() -> None:
    class NaiveClock:
        def now(self) -> datetime:
            return datetime(2040, 5, 1)  # noqa: DTZ001

    declared.clock = NaiveClock()

    with pytest.raises(ValueError, match=r"the clock's now\(\) must have a time zone"):
        noting.spawn("never")


def test_values_are_stored_and_replayed_for_real(clock: Clock) -> None:
    seen: list[object] = []

    @declared.step(name="priced")
    def priced() -> tuple[Decimal, list[str]]:
        return Decimal("1.10"), effects

    @declared.step(name="unstorable")
    def unstorable() -> Any:
        return {1: 2}

    @declared.workflow(name="replaying")
    def replaying(ctx: WorkflowContext, fails: bool) -> None:
        price, same = priced()
        seen.append((price, same is effects))
        ctx.sleep(60)
        if fails:
            unstorable()

    replaying.spawn(False)
    fails = replaying.spawn(True)
    clock.move(minutes=1)
    declared.tick()

    assert seen == [(Decimal("1.10"), False)] * 4
    with pytest.raises(RunFailed, match="has a key of type int"):
        fails.output()


def test_a_retried_or_woken_run_is_executed_at_once(clock: Clock) -> None:
    asleep = sleeping.spawn()
    cancelled = sleeping.spawn()
    declared.cancel(cancelled.id)
    clock.move(hours=1)

    retried = declared.retry(cancelled.id)
    woken = declared.wake(sleeping.spawn().id)

    assert asleep.status() is RunStatus.COMPLETED
    assert {retried.status, woken.status} == {RunStatus.COMPLETED}


def test_a_tick_inside_a_run_leaves_it_to_the_tick_around_it() -> None:
    ticked: list[int] = []

    @declared.workflow(name="ticking")
    def ticking() -> str:
        ticked.append(declared.tick())
        return "ticked"

    handle = ticking.spawn()

    assert ticked == [0]
    assert handle.output() == "ticked"


def test_threads_that_commit_at_once_execute_each_run_once(app: Flask, db: SQLAlchemy) -> None:
    def start(number: int) -> Handle[str]:
        handle = noting.start(f"{number}")
        db.session.commit()
        return handle

    handles = at_once(app, *[lambda number=number: start(number) for number in range(8)])

    assert [handle.result(timeout=30) for handle in handles] == [str(number) for number in range(8)]
    assert sorted(effects) == [str(number) for number in range(8)]


def test_signals_come_after_the_commit_of_the_run(app: Flask, db: SQLAlchemy) -> None:
    seen: list[RunStatus] = []

    def look(sender: Flask, **values: Any) -> None:
        seen.append(declared.get(values["run_id"]).status)

    with run_completed.connected_to(look):
        noting.start("told")
        db.session.commit()

    assert seen == [RunStatus.COMPLETED]


# Sessions that never commit ----------------------------------------------------------------


@pytest.fixture
def joined(app_context: None, app: Flask, db: SQLAlchemy) -> Iterator[None]:
    """What test suites do to roll everything back: each session joins one open transaction."""
    engines = db._app_engines[app]
    engine: Any = engines[None]
    with engine.connect() as connection:
        transaction = connection.begin()
        engines[None] = connection

        yield

        db.session.remove()
        transaction.rollback()
        engines[None] = engine


@pytest.mark.usefixtures("joined")
def test_a_session_joined_to_a_transaction_that_never_commits_is_refused_with_the_way_out(db: SQLAlchemy) -> None:
    with pytest.raises(InlineNeedsCommit, match='WORKFLOWS_STORE="memory"'):
        noting.start("never")

    db.session.commit()
    assert effects == []


def test_without_inline_execution_such_a_session_starts_runs_that_vanish_with_it(
    make_app: apps.MakeApp, database_url: str
) -> None:
    app = make_app(database_url, workflows=declared)
    db = apps.database_of(app)
    with app.app_context():
        engines = db._app_engines[app]
        engine: Any = engines[None]
        with engine.connect() as connection:
            transaction = connection.begin()
            engines[None] = connection
            handle = noting.start("never")
            db.session.commit()
            inside = connection.scalar(sa.text("SELECT count(*) FROM workflow_runs"))
            db.session.remove()
            transaction.rollback()
            engines[None] = engine

        assert inside == 1
        with pytest.raises(RunNotFound):
            handle.run()
