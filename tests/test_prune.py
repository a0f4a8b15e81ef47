"""Deleting what is old: runs, with all that belongs to them, and events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import models
from flask_workflows import RunStatus
from flask_workflows import SessionBusy
from flask_workflows import WorkflowContext
from flask_workflows.names import id_at
from flask_workflows.service import PRUNE_BATCH
from tests import apps
from tests.dbapi import watched_options
from tests.event_app import awaiting_any
from tests.event_app import declared
from tests.event_app import finished_at_once
from tests.event_app import receiving
from tests.event_app import working
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import eventually
from tests.processes import execute
from tests.processes import outsider
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db
from tests.running import on_postgresql
from tests.running import on_sqlite
from tests.running import Order

pytestmark = pytest.mark.usefixtures("app_context", "clock")

TABLES = ("workflow_runs", "workflow_steps", "workflow_events", "workflow_waits", "workflow_state")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False)

    declared.clock = None


def counts(app: Flask) -> dict[str, int]:
    """How many rows each table has; those without are left out."""
    found = {table: rows(app, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}

    return {table: count for table, count in found.items() if count}


@declared.workflow
def leaving(ctx: WorkflowContext) -> None:
    """Leave something in every table."""
    ctx.set("page", 1)
    ctx.receive("line")
    ctx.now()


def leave(db: SQLAlchemy) -> str:
    """A finished run, with what it published and what was sent to it."""
    run = leaving.spawn()
    run.send("line", 1)
    run.send("line", "never read")
    db.session.commit()
    declared.tick()

    return run.id


def test_an_old_run_goes_with_its_steps_its_messages_and_what_it_published(
    app: Flask, db: SQLAlchemy, clock: Clock
) -> None:
    leave(db)
    before = counts(app)
    clock.move(days=30, seconds=1)

    deleted = declared.prune()

    assert before == {"workflow_runs": 1, "workflow_steps": 2, "workflow_events": 2, "workflow_state": 1}
    assert deleted == 1
    assert counts(app) == {}


def test_what_is_not_old_enough_stays(app: Flask, db: SQLAlchemy, clock: Clock) -> None:
    leave(db)
    declared.deliver("paid")
    declared.tick()
    before = counts(app)
    clock.move(days=30, seconds=-1)

    deleted = declared.prune()

    assert deleted == 0
    assert counts(app) == before


def test_an_unfinished_run_stays_however_old_with_the_messages_it_has_and_will_read(
    app: Flask, db: SQLAlchemy, clock: Clock
) -> None:
    run = receiving.spawn(1, name="later")
    run.send("line", "kept")
    db.session.commit()
    declared.tick()
    execute(app, "UPDATE workflow_runs SET due_at = NULL")
    execute(app, "UPDATE workflow_steps SET due_at = NULL")
    clock.move(days=400)

    declared.prune()
    run.send("later", "read")
    db.session.commit()
    declared.tick()

    assert run.output() == ["read"]
    assert rows(app, "SELECT payload FROM workflow_events ORDER BY seq") == [('"kept"',), ('"read"',)]


def test_events_go_when_they_are_old_matched_or_not_ended_any_wait_or_not(app: Flask, clock: Clock) -> None:
    awaiting_any.spawn()
    declared.tick()
    declared.deliver("paid", "ends a wait")
    declared.deliver("shipped", "ends none")
    declared.tick()
    clock.move(days=10)
    declared.deliver("paid", "younger")
    declared.tick()
    clock.move(days=21)

    declared.prune()

    assert rows(app, "SELECT payload FROM workflow_events") == [('"younger"',)]


def test_an_event_that_no_worker_has_matched_yet_stays(app: Flask, clock: Clock) -> None:
    run = awaiting_any.spawn("paid", minutes=None)
    declared.tick()
    declared.deliver("paid", "while all workers were down")
    clock.move(days=60)

    declared.prune()
    declared.tick()

    assert run.output() == "while all workers were down"


def test_an_event_number_is_never_used_again(app: Flask, clock: Clock) -> None:
    """A run that received event 1 would take another event 1 for the same."""
    declared.deliver("paid")
    declared.tick()
    clock.move(days=31)
    declared.prune()

    declared.deliver("paid")

    assert rows(app, "SELECT seq FROM workflow_events") == [(2,)]


def test_a_wait_goes_on_after_the_event_before_it_was_pruned(app: Flask, clock: Clock) -> None:
    declared.deliver("paid", "old")
    declared.tick()
    run = awaiting_any.spawn("paid", minutes=None)
    declared.tick()
    clock.move(days=31)
    declared.prune()

    declared.deliver("paid", "new")
    declared.tick()

    assert run.output() == "new"


def test_a_dry_run_counts_and_deletes_nothing(app: Flask, db: SQLAlchemy, clock: Clock) -> None:
    for _ in range(3):
        leave(db)
    declared.deliver("paid")
    declared.tick()
    before = counts(app)
    clock.move(days=31)

    would_go = declared.prune(dry_run=True)

    assert would_go == 3
    assert counts(app) == before
    assert declared.prune() == 3


def test_the_age_may_be_given(app: Flask, clock: Clock) -> None:
    finished_at_once.spawn()
    declared.tick()
    clock.move(hours=2)

    assert declared.prune(timedelta(hours=3)) == 0
    assert declared.prune(timedelta(hours=1)) == 1


def test_nothing_is_kept_for_nobody_where_no_days_are_set(
    database_url: str, make_app: apps.MakeApp, clock: Clock
) -> None:
    app = make_app(
        database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False, WORKFLOWS_PRUNE_AFTER_DAYS=0
    )
    with app.app_context():
        finished_at_once.spawn()
        declared.tick()
        clock.move(days=4_000)

        assert declared.prune() == 0
        assert declared.prune(timedelta(days=1)) == 1


@on_sqlite
def test_pruning_is_refused_in_a_session_that_holds_the_write_lock(db: SQLAlchemy) -> None:
    db.session.add(Order(note="first"))
    db.session.flush()

    with pytest.raises(SessionBusy):
        declared.prune()


@on_postgresql
def test_a_run_that_is_retried_at_this_moment_is_not_deleted(app: Flask, clock: Clock) -> None:
    """The lock on its row decides: what was finished and old when it was looked at may not be any more."""
    run = finished_at_once.spawn()
    declared.tick()
    execute(app, "UPDATE workflow_runs SET status = 'failed'")
    clock.move(days=31)

    with outsider(app).begin() as connection:
        connection.execute(sa.text("UPDATE workflow_runs SET status = 'pending', finished_at = NULL, due_at = 1"))
        pruning = threading.Thread(target=with_context(app, declared.prune))
        pruning.start()
        eventually(
            lambda: rows(
                app,
                """SELECT 1 FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'""",
            )
        )
    pruning.join(30)

    assert run.status() is RunStatus.PENDING
    assert counts(app)["workflow_runs"] == 1


def with_context(app: Flask, call: Callable[[], Any]) -> Callable[[], None]:
    def called() -> None:
        with app.app_context():
            call()

    return called


# Many --------------------------------------------------------------------------------------


def fill(app: Flask, clock: Clock, number: int) -> None:
    """So many runs of long ago, of two steps each, and as many events."""
    at = int(clock.now().timestamp() * 1000) - 90 * 86_400_000
    ids = [f"{id_at(at + index)[:24]}{index:012x}" for index in range(number)]
    run = {
        "workflow": "finished_at_once",
        "version": 1,
        "queue": "default",
        "workspace": "",
        "status": "completed",
        "input": "{}",
        "epoch": 1,
        "attempts": 0,
        "max_attempts": 3,
        "losses": 0,
        "finished_at": at + number,
    }
    step = {"kind": "step", "status": "completed", "output": "null", "attempts": 1}
    event = {"name": "paid", "workspace": "", "payload": "null", "matched_at": at, "woke": 0}
    with outsider(app).begin() as connection:
        connection.execute(
            models.runs.insert(),
            [{**run, "id": id, "created_at": at + n, "updated_at": at + n} for n, id in enumerate(ids)],
        )
        connection.execute(
            models.steps.insert(),
            [{**step, "run_id": id, "key": f"s#{n}", "position": n} for id in ids for n in (1, 2)],
        )
        connection.execute(models.events.insert(), [{**event, "emitted_at": at + n} for n in range(number)])


def test_b91_pruning_goes_by_batches_each_in_a_short_transaction(app: Flask, clock: Clock) -> None:
    """Scaled down. Other runs are started and finished all the while, and no statement holds them up."""
    fill(app, clock, 5 * PRUNE_BATCH)
    living = awaiting_any.spawn("paid", minutes=None)
    declared.tick()
    pruning = threading.Thread(target=with_context(app, declared.prune))
    pruning.start()
    done = 0
    while pruning.is_alive():
        finished_at_once.spawn()
        done += declared.tick()
    pruning.join(60)

    assert done > 0
    assert living.status() is RunStatus.WAITING
    assert counts(app) == {"workflow_runs": done + 1, "workflow_steps": 1, "workflow_waits": 1}


@pytest.mark.parametrize("number", range(1, 8))
def test_b31_pruning_that_was_broken_off_leaves_no_orphans_and_goes_on_where_it_is_called_next(
    database_url: str, make_app: apps.MakeApp, clock: Clock, number: int
) -> None:
    broken: list[str] = []
    deletes = 0

    def watch(asked: str) -> None:
        nonlocal deletes
        if "DELETE FROM" in asked:
            deletes += 1
            if deletes == number:
                broken.append(asked)
                raise ConnectionError("broken off")

    app = make_app(
        database_url,
        db=make_orders_db(),
        workflows=declared,
        WORKFLOWS_DASHBOARD=False,
        SQLALCHEMY_ENGINE_OPTIONS=watched_options(database_url, watch),
    )
    fill(app, clock, 2)
    with app.app_context():
        with suppress(ConnectionError):
            declared.prune()
        orphans = rows(app, "SELECT run_id FROM workflow_steps WHERE run_id NOT IN (SELECT id FROM workflow_runs)")
        deletes = 100
        declared.prune()

    assert orphans == []
    assert counts(app) == {}
    assert len(broken) == (1 if number <= 6 else 0)


def test_pruning_looks_at_no_event_that_is_young(app: Flask, clock: Clock) -> None:
    """R40: it ends where the old ones end, and does not go through all of them."""
    declared.deliver("paid")
    declared.tick()
    clock.move(days=31)
    for _ in range(3):
        declared.deliver("paid")
    declared.tick()
    events = apps.runtime_of(app).events
    cutoff = int((clock.now() - timedelta(days=30)).timestamp() * 1000)

    pages = [events.prune_page(0, cutoff, 2)]
    while pages[-1] is not None:
        pages.append(events.prune_page(pages[-1], cutoff, 2))

    assert pages == [2, None]
    assert rows(app, "SELECT seq FROM workflow_events ORDER BY seq") == [(2,), (3,), (4,)]


# Daily -------------------------------------------------------------------------------------


def pruned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("pruned")]


def test_workers_prune_once_a_day_between_them(app: Flask, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """At 03:40 UTC, or as soon after it as there is a worker."""
    caplog.set_level(logging.INFO, "flask_workflows")
    clock.move_to(datetime(2040, 1, 2, 3, 39, tzinfo=UTC))
    seen = []

    for instant in (
        datetime(2040, 1, 2, 3, 39, tzinfo=UTC),
        datetime(2040, 1, 2, 3, 40, tzinfo=UTC),
        datetime(2040, 1, 2, 23, 59, tzinfo=UTC),
        datetime(2040, 1, 3, 3, 39, 59, tzinfo=UTC),
        datetime(2040, 1, 3, 4, tzinfo=UTC),
        datetime(2040, 1, 9, 1, tzinfo=UTC),
    ):
        clock.move_to(instant)
        with working(app, 2):
            eventually(lambda: len(swept(app, clock)) == 2)
        eventually(lambda: not pruning_threads())
        seen.append(len(pruned(caplog)))

    # The first worker ever does what yesterday's would have done.
    assert seen == [1, 2, 2, 2, 3, 4]


def swept(app: Flask, clock: Clock) -> list[Any]:
    """Workers that have kept house by now: what they do right after is to say so."""
    return rows(
        app,
        "SELECT id FROM workflow_workers WHERE stopped_at IS NULL AND seen_at = :now",
        now=int(clock.now().timestamp() * 1000),
    )


def pruning_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "workflows-prune"]


def test_a_worker_prunes_by_itself(app: Flask, db: SQLAlchemy, clock: Clock) -> None:
    leave(db)
    clock.move(days=31)

    with working(app):
        eventually(lambda: counts(app) == {})


def test_the_rows_of_dead_workers_go_after_a_day(app: Flask, clock: Clock) -> None:
    with working(app):
        eventually(lambda: len(swept(app, clock)) == 1)
    clock.move(days=2)

    with working(app):
        eventually(lambda: rows(app, "SELECT count(*) FROM workflow_workers") == [(1,)])
