"""How many runs ended, and how: counted in memory, added to the table now and then."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import datetime
from datetime import timedelta
from datetime import UTC

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.store import reading as read
from flask_workflows.store import Scope
from flask_workflows.testing import crash_at
from flask_workflows.testing import FixedClock
from tests import apps
from tests import busy_app
from tests.dbapi import watched_options
from tests.processes import eventually
from tests.processes import Fleet
from tests.processes import unfinished
from tests.rows import rows_of
from tests.running import at_once
from tests.running import Clock
from tests.running import run_out

declared = Workflows()


@declared.step
def busy(seconds: float) -> None:
    clock = declared.clock
    assert isinstance(clock, Clock)
    clock.move(seconds=seconds)


@declared.workflow
def behaving(ctx: WorkflowContext, how: str = "ends", seconds: float = 0) -> None:
    if seconds:
        busy(seconds)
    if how == "sleeps":
        ctx.sleep(3600)
    elif how == "raises":
        raise ValueError("wrong")


@declared.workflow
def other() -> None:
    pass


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, workflows=declared)

    declared.clock = None


def totals(app: Flask) -> dict[tuple[str, str], tuple[int, float]]:
    with read.reading(apps.runtime_of(app).engine) as connection:
        found = read.total_stats(connection)
    return {(each.workflow, each.outcome): (each.count, each.busy.total_seconds()) for each in found}


def finished(app: Flask, since: datetime) -> list[tuple[str, str, int]]:
    with read.reading(apps.runtime_of(app).engine) as connection:
        found = read.finished_stats(connection, since)
    return [(f"{each.at:%d %H:%M}", each.outcome, each.count) for each in found if each.at is not None]


def stored(app: Flask) -> int:
    with apps.runtime_of(app).engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(models.stats)) or 0


# What is counted ---------------------------------------------------------------------------


def test_a_tick_adds_what_it_ended_and_how_long_that_took(app: Flask, app_context: None, clock: Clock) -> None:
    for seconds in (2, 3):
        behaving.spawn(seconds=seconds)
    behaving.spawn("raises", 1)
    other.spawn()
    run_out(declared, clock)

    assert totals(app) == {
        ("behaving", "completed"): (2, 5),
        # The time of the attempt it failed at, and not of those before.
        ("behaving", "failed"): (1, 0),
        ("other", "completed"): (1, 0),
    }


def test_a_run_that_sleeps_is_not_counted_until_it_ends(app: Flask, app_context: None, clock: Clock) -> None:
    behaving.spawn("sleeps", 5)
    declared.tick()
    asleep = stored(app)
    clock.move(hours=1)
    declared.tick()

    assert asleep == 0
    assert totals(app) == {("behaving", "completed"): (1, 0)}


def test_a_cancelled_run_counts_whoever_ends_it(app: Flask, app_context: None, clock: Clock) -> None:
    runtime = apps.runtime_of(app)
    declared.cancel(behaving.using(delay=60).spawn().id)
    at_hand, abandoned = behaving.spawn(), behaving.spawn()
    claimed = runtime.store.claim(Scope.of(runtime.registry.ranges()), "w", 10)
    for handle in (at_hand, abandoned):
        declared.cancel(handle.id)
        # Asked for twice it is done once.
        declared.cancel(handle.id)
    runtime.store.hand_back([(run.id, run.epoch) for run in claimed if run.id == at_hand.id])
    declared.tick()
    clock.move(minutes=1)
    ended = runtime.store.end_cancelled()

    # What a sweep ends, the worker that sweeps counts.
    assert ended == ["behaving"]
    assert totals(app) == {("behaving", "cancelled"): (2, 0)}


def test_a_run_that_is_taken_over_counts_as_lost_and_one_that_was_handed_back_does_not(
    app: Flask, app_context: None, clock: Clock
) -> None:
    runtime = apps.runtime_of(app)
    lost, released, returned = behaving.spawn(), behaving.spawn(), behaving.spawn()
    claimed = {run.id: run for run in runtime.store.claim(Scope.of(runtime.registry.ranges()), "w", 10)}
    runtime.store.hand_back([(returned.id, claimed[returned.id].epoch)])
    declared.release(released.id)
    clock.move(minutes=1)
    declared.tick()

    assert not any(run.taken_over for run in claimed.values())
    assert {handle.status() for handle in (lost, released, returned)} == {"completed"}
    assert totals(app) == {("behaving", "completed"): (3, 0), ("behaving", "lost"): (2, 0)}


def test_a_retried_run_counts_each_time_it_ends(app: Flask, app_context: None, clock: Clock) -> None:
    handle = behaving.spawn("raises")
    run_out(declared, clock)
    declared.retry(handle.id)
    run_out(declared, clock)

    assert totals(app) == {("behaving", "failed"): (2, 0)}


def test_the_quarter_of_an_hour_is_that_of_the_databases_clock(app: Flask, app_context: None, clock: Clock) -> None:
    began = clock.now()
    for minutes in (14, 0.999, 0.002, 14, 60):
        clock.move(minutes=minutes)
        other.spawn()
        declared.tick()

    assert finished(app, began) == [
        ("01 12:00", "completed", 2),
        ("01 12:15", "completed", 2),
        ("01 13:15", "completed", 1),
    ]
    assert finished(app, began + timedelta(minutes=20))[0] == ("01 12:15", "completed", 2)
    assert finished(app, began + timedelta(minutes=15))[0] == ("01 12:15", "completed", 2)
    declared.clock = None
    other.spawn()
    declared.tick()
    with read.reading(apps.runtime_of(app).engine) as connection:
        now = read.database_now(connection)
        (first, *_) = read.finished_stats(connection, now)
    assert first.at is not None
    assert first.at.minute % 15 == first.at.second == first.at.microsecond == 0
    assert timedelta(0) <= now - first.at <= timedelta(minutes=15)


# What it costs, and what is lost -----------------------------------------------------------


def test_b31_many_runs_cost_one_statement_and_none_costs_none(
    database_url: str, make_app: apps.MakeApp, clock: Clock
) -> None:
    asked: list[str] = []
    options = watched_options(database_url, lambda statement: asked.append(statement))
    app = make_app(database_url, workflows=declared, SQLALCHEMY_ENGINE_OPTIONS=options)
    declared.clock = clock
    with app.app_context():
        for _ in range(20):
            other.spawn()
        behaving.spawn("sleeps")
        asked.clear()
        declared.tick()
        ended = [statement for statement in asked if "workflow_stats" in statement]
        asked.clear()
        declared.tick()
        declared.wake(behaving.using(delay=60).spawn("sleeps").id)
        declared.tick()
    declared.clock = None

    assert len(ended) == 1
    assert [statement for statement in asked if "workflow_stats" in statement] == []


def test_a_process_that_dies_takes_its_last_counts_with_it_and_counts_nothing_twice(
    app: Flask, app_context: None
) -> None:
    declared.clock = FixedClock(datetime(2040, 1, 1, tzinfo=UTC))
    other.spawn()
    # The claim, the outcome, the statistics.
    with crash_at(declared, 3, when="before") as crash:
        declared.tick()
    declared.tick()
    missed = totals(app)
    other.spawn()
    with crash_at(declared, 3, when="after"):
        declared.tick()
    declared.tick()

    assert crash.happened
    assert missed == {}
    assert totals(app) == {("other", "completed"): (1, 0)}


def test_counts_are_kept_while_the_database_refuses_them(
    app: Flask, app_context: None, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = apps.runtime_of(app).engine
    other.spawn()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE workflow_stats RENAME TO elsewhere")
    executions = declared.tick()
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO workflow_stats")
    other.spawn()
    declared.tick()

    assert executions == 1
    assert "could not be counted" in caplog.text
    assert totals(app) == {("other", "completed"): (2, 0)}


def test_a_forked_process_adds_nothing_that_its_parent_counted(app: Flask, app_context: None, clock: Clock) -> None:
    tally = apps.runtime_of(app).tally
    tally.ended("other", "completed")
    tally._pid = os.getpid() + 1
    tally.ended("behaving", "completed")
    tally.flush()
    tally.ended("other", "completed")
    tally._pid = os.getpid() + 1
    tally.flush()

    assert totals(app) == {("behaving", "completed"): (1, 0)}


def test_processes_that_add_at_once_lose_nothing(app: Flask, app_context: None, clock: Clock) -> None:
    store = apps.runtime_of(app).store

    def add(names: tuple[str, ...]) -> None:
        from flask_workflows.store.rows import Ended

        for _ in range(20):
            store.count_ended([Ended(name, "completed", 1, 10) for name in names])

    at_once(app, *[lambda: add(("a", "b", "c")), lambda: add(("c", "b", "a"))] * 3)

    assert totals(app) == {(name, "completed"): (120, 1.2) for name in "abc"}


def test_workers_add_what_they_ended_at_their_end(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        for _ in range(30):
            busy_app.one.spawn()
    workers = [fleet.start() for _ in range(2)]
    eventually(lambda: all(worker.serves() for worker in workers), within=40)
    eventually(lambda: not unfinished(busy), within=40)
    codes = [worker.terminate(40) for worker in workers]

    assert codes == [0, 0]
    assert {key: count for key, (count, _) in totals(busy).items()} == {("one", "completed"): 30}


def test_a_worker_adds_what_it_ended_with_its_heartbeat(
    database_url: str, make_app: apps.MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_workflows.worker.HEARTBEAT_SECONDS", 0.05)
    app = make_app(database_url, workflows=declared, WORKFLOWS_POLL_INTERVAL_MS=10)
    with app.app_context():
        worker = declared.worker(concurrency=1)
        thread = threading.Thread(target=worker.run)
        other.spawn()
        thread.start()
        try:
            eventually(lambda: stored(app) == 1)
        finally:
            worker.stop()
            thread.join(20)

    assert totals(app)["other", "completed"][0] == 1


# Pruning -----------------------------------------------------------------------------------


def test_old_statistics_are_added_up_and_totals_stay(app: Flask, app_context: None, clock: Clock) -> None:
    began = clock.now()
    for _ in range(6):
        other.spawn()
        behaving.spawn(seconds=1)
        declared.tick()
        clock.move(hours=20)
    before = totals(app)
    clock.move_to(began + timedelta(days=37))

    declared.prune()
    kept = finished(app, began)
    once = totals(app)
    clock.move(days=365)
    declared.prune()

    # From two days later on.
    assert [at for at, *_ in kept] == ["04 00:00", "04 00:00", "04 20:00", "04 20:00", "05 16:00", "05 16:00"]
    assert once == totals(app) == before == {("behaving", "completed"): (6, 6), ("other", "completed"): (6, 0)}
    assert finished(app, began) == []
    assert stored(app) == 2


def test_several_that_prune_at_once_add_each_row_up_once(app: Flask, app_context: None, clock: Clock) -> None:
    rows_of(app).insert(
        models.stats,
        [
            {"at": 900_000 * number, "workflow": "other", "outcome": "completed", "count": number, "busy_ms": 1}
            for number in range(1, 301)
        ],
    )
    before = totals(app)

    at_once(app, *[declared.prune] * 4)

    assert totals(app) == before
    assert stored(app) == 1


def test_dying_while_it_prunes_changes_no_total(app: Flask, app_context: None) -> None:
    declared.clock = FixedClock(datetime(2040, 1, 1, tzinfo=UTC))
    row = {"workflow": "other", "outcome": "completed", "busy_ms": 1_000}
    rows_of(app).insert(models.stats, [{**row, "at": 900_000 * number, "count": number} for number in (1, 2, 200)])

    seen = []
    for number, when in ((1, "before"), (1, "after"), (1, "before"), (1, "after")):
        with crash_at(declared, number, when=when):  # type: ignore[arg-type]
            declared.prune()
        seen.append((totals(app)["other", "completed"], stored(app)))

    assert [total for total, _ in seen] == [(203, 3)] * 4
    assert [count for _, count in seen] == [3, 2, 2, 1]
