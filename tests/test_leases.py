"""Leases are kept while a worker lives, whatever its threads, its app and other people's locks do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from tests import busy_app
from tests.processes import eventually
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import unfinished
from tests.processes import waiting
from tests.processes import working

SHORT_LEASE: dict[str, Any] = {"WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_POLL_INTERVAL_MS": 100}
SMALL_POOL: dict[str, Any] = {"SQLALCHEMY_ENGINE_OPTIONS": {"pool_size": 2, "max_overflow": 0}}


def test_b10_b84_step_three_leases_long_runs_once_while_threads_and_pool_are_taken(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        for _ in range(2):
            busy_app.holding.spawn("release")
        for _ in range(4):
            busy_app.computing.spawn(6)
    worker = fleet.start(concurrency=6, **SHORT_LEASE, **SMALL_POOL)
    eventually(lambda: len(fleet.journal()) == 6)

    fleet.start(**SHORT_LEASE)
    eventually(lambda: len(unfinished(busy)) == 2, within=20)
    fleet.touch("release")
    eventually(lambda: not unfinished(busy))

    words = sorted(entry.words for entry in fleet.journal())
    assert words == ["after"] * 4 + ["compute"] * 4 + ["holding"] * 2
    assert {entry.pid for entry in fleet.journal()} == {worker.pid}
    assert "6 threads share 2 connections of the app's pool" in worker.log
    assert "WARNING" not in worker.log.replace("WARNING [- -] flask_workflows: 6 threads", "")


def test_b11_b134_leases_and_cancelling_go_on_while_a_worker_drains(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        busy_app.waiting_for.spawn("release")
        cancelled = busy_app.cooperative.spawn("never")
    draining = fleet.start(concurrency=2, **SHORT_LEASE)
    eventually(lambda: len(fleet.journal()) == 2)

    draining.send(signal.SIGTERM)
    fleet.start(**SHORT_LEASE)
    for _ in waiting(3):
        assert draining.alive
    with busy.app_context():
        cancelled.cancel()
    eventually(lambda: len(unfinished(busy)) == 1, within=2)
    fleet.touch("release")
    code = draining.wait()

    assert code == 0
    assert [entry.words for entry in fleet.journal()].count("before") == 1
    assert dict(rows(busy, "SELECT workflow, status FROM workflow_runs")) == {
        "waiting_for": "completed",
        "cooperative": "cancelled",
    }
    assert {entry.pid for entry in fleet.journal()} == {draining.pid}


def test_what_does_not_finish_in_time_is_handed_back_at_once_and_uses_no_attempt(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        for _ in range(2):
            busy_app.waiting_for.spawn("release")
    draining = fleet.start(concurrency=2, WORKFLOWS_DRAIN_SECS=0)
    eventually(lambda: len(fleet.journal()) == 2)

    code = draining.terminate()
    handed_back = rows(busy, "SELECT status, worker, attempts, losses FROM workflow_runs")
    fleet.touch("release")
    other = fleet.start(WORKFLOWS_POLL_INTERVAL_MS=100)
    eventually(lambda: not unfinished(busy), within=5)

    assert code == 0
    assert handed_back == [("pending", None, 0, 0)] * 2
    assert [entry.words for entry in fleet.journal() if entry.pid == other.pid].count("after") == 2


def test_step_that_holds_the_write_lock_for_long_is_stored_all_the_same(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        busy_app.writing_slowly.spawn(2)

    fleet.start(WORKFLOWS_POLL_INTERVAL_MS=100)
    eventually(lambda: not unfinished(busy), within=6)

    assert [entry.words for entry in fleet.journal()] == ["writing", "after"]
    assert rows(busy, "SELECT step FROM effects") == [("slow",)]
    assert "WARNING" not in fleet.logs()


def test_body_that_writes_between_steps_is_refused_and_does_not_wait_for_itself(
    make_busy: Callable[..., Flask], fleet: Fleet
) -> None:
    busy = make_busy(WORKFLOWS_MAX_ATTEMPTS=1)
    with busy.app_context():
        busy_app.writing_in_its_body.spawn()

    fleet.start()
    eventually(lambda: not unfinished(busy), within=6)

    ((status, error),) = rows(busy, "SELECT status, error FROM workflow_runs")
    assert status == "failed"
    assert "UncommittedBodyWrites" in error
    assert rows(busy, "SELECT * FROM effects") == []


def test_what_was_handed_back_begins_no_further_step_in_a_process_that_lives_on(
    make_busy: Callable[..., Flask], tmp_path: Path
) -> None:
    busy = make_busy(WORKFLOWS_DRAIN_SECS=0)
    with busy.app_context():
        busy_app.gated_before_its_first_step.spawn()

    with working(busy) as worker:
        eventually(lambda: read_journal(tmp_path))
    (thread,) = (thread for thread in threading.enumerate() if thread.name.startswith("workflows-"))
    (tmp_path / "release").touch()
    thread.join(10)

    assert worker.abandoned
    assert [entry.words for entry in read_journal(tmp_path)] == ["gate"]
    assert rows(busy, "SELECT status, worker, attempts FROM workflow_runs") == [("pending", None, 0)]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_row_that_somebody_locks_costs_no_other_run_its_lease(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        locked = busy_app.waiting_for.spawn("release").id
        busy_app.waiting_for.spawn("release")
    worker = fleet.start(**SHORT_LEASE)
    eventually(lambda: len(fleet.journal()) == 2)

    with outsider(busy).connect() as connection:
        connection.execute(sa.text("SELECT 1 FROM workflow_runs WHERE id = :id FOR UPDATE"), {"id": locked})
        fleet.start(**SHORT_LEASE)
        # The lease thread shows both steps as running meanwhile, or tries to.
        for _ in waiting(4):
            assert {entry.pid for entry in fleet.journal()} == {worker.pid}
    fleet.touch("release")
    eventually(lambda: not unfinished(busy))

    by_run = sorted((entry.run, entry.words) for entry in fleet.journal() if entry.run != locked)
    assert [words for _, words in by_run] == ["after", "before"]


def test_run_claimed_ahead_is_not_kept_behind_a_long_one(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        for _ in range(40):
            busy_app.one.spawn()
        busy_app.waiting_for.spawn("release")
        for _ in range(10):
            busy_app.one.spawn()
    # It looks seldom, but what it cannot begin goes back all the same.
    fleet.start(concurrency=1, WORKFLOWS_POLL_INTERVAL_MS=60_000)
    eventually(lambda: "before" in [entry.words for entry in fleet.journal()])

    fleet.start(WORKFLOWS_POLL_INTERVAL_MS=100)
    eventually(lambda: len(unfinished(busy)) == 1, within=5)

    assert sorted(entry.words for entry in fleet.journal()) == ["1"] * 50 + ["before"]
    assert rows(busy, "SELECT DISTINCT losses FROM workflow_runs") == [(0,)]
    fleet.touch("release")
