"""The worker as a process and as a thread: how it ends, what it bears, what it costs."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import run_completed
from flask_workflows.worker import Worker
from tests import busy_app
from tests.apps import runtime_of
from tests.dbapi import watched_options
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import unfinished

ROOT = Path(__file__).parent.parent

#: How often a worker is stopped under load, and how often at each moment of its start.
STOPS = int(os.environ.get("STOPS", "20"))
STARTS = int(os.environ.get("STARTS", "1"))


@contextmanager
def working(app: Flask, *, code: int = 0, **options: Any) -> Iterator[Worker]:
    """A worker on a thread, which has ended with that code when the block is left."""
    codes: list[int] = []
    with app.app_context():
        worker = runtime_of(app).workflows.worker(**options)
    thread = threading.Thread(target=lambda: codes.append(worker.run()), name="runs-a-worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)

    assert codes == [code]


def in_worker() -> bool:
    return threading.current_thread().name.startswith("workflows-")


# How it ends -------------------------------------------------------------------------------


def test_b12_b137_stopping_under_load_leaves_no_run_taken_and_repeats_none(busy: Flask, fleet: Fleet) -> None:
    chance = random.Random(0)
    with busy.app_context():
        for _ in range(STOPS * 40):
            busy_app.written.start()
        busy.extensions["sqlalchemy"].session.commit()

    for _ in range(STOPS):
        worker = fleet.start(concurrency=chance.choice([1, 4]), WORKFLOWS_DRAIN_SECS=chance.choice([0, 30]))
        eventually(lambda log=worker: "serves" in log.log)
        time.sleep(chance.uniform(0, 0.15))

        assert worker.terminate() == 0
        assert rows(busy, "SELECT id FROM workflow_runs WHERE worker IS NOT NULL") == []
        assert rows(busy, "SELECT DISTINCT status FROM workflow_runs WHERE finished_at IS NULL") in ([], [("pending",)])
    fleet.start()
    eventually(lambda: not unfinished(busy), within=30)

    assert rows(busy, "SELECT status, attempts, losses, count(*) FROM workflow_runs GROUP BY 1, 2, 3") == [
        ("completed", 0, 0, STOPS * 40)
    ]
    assert rows(busy, "SELECT count(*), count(DISTINCT run) FROM effects") == [(STOPS * 40, STOPS * 40)]


def test_b13_stop_during_the_start_is_obeyed_at_any_moment(busy: Flask, fleet: Fleet) -> None:
    places = {"BUSY_URL": fleet.url, "BUSY_DIRECTORY": str(fleet.directory), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flask", "--app", "tests.busy_app", "workflows", "work"]
    ended: list[tuple[float, int, float]] = []

    for delay in [0, 0.02, 0.05, 0.1, 0.3, 0.6, 0.9] * STARTS:
        process = subprocess.Popen(command, env=os.environ | places, cwd=ROOT, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        asked = time.monotonic()
        process.terminate()
        ended.append((delay, process.wait(timeout=10), time.monotonic() - asked))

    # Before the command has begun nobody is there to take the signal: the process ends by it.
    assert all(code in (0, -signal.SIGTERM) and seconds < 5 for _, code, seconds in ended), ended


def test_b144_worker_that_lost_a_thread_of_its_own_ends_with_an_error(
    make_busy: Callable[..., Flask], database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    raised: list[str] = []

    def watch(asked: str) -> None:
        if threading.current_thread().name == "workflows-claimer" and not raised:
            raised.append(asked)
            raise SystemExit("nothing that the claimer expects")

    busy = make_busy(SQLALCHEMY_ENGINE_OPTIONS=watched_options(database_url, watch))

    with working(busy, code=1) as worker:
        eventually(lambda: worker.id and "the worker's threads died (workflows-claimer), it stops" in caplog.messages)


# What it bears -----------------------------------------------------------------------------


def test_b102_worker_on_a_thread_works_and_ends_by_stop(busy: Flask) -> None:
    with working(busy) as worker, busy.app_context():
        status = busy_app.five.spawn().wait(10, poll=0.02)

    assert status == "completed"
    assert not worker.abandoned
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("workflows-")])


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_second_worker_of_a_process_outlives_lost_connections_like_the_first(busy: Flask, tmp_path: Path) -> None:
    with working(busy), busy.app_context():
        busy_app.one.spawn().wait(10, poll=0.02)

    with working(busy), busy.app_context():
        run = busy_app.waiting_for.spawn("release")
        eventually(lambda: "before" in [entry.words for entry in read_journal(tmp_path)])
        execute(
            busy,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        (tmp_path / "release").touch()

        # At once, not when its lease ends.
        eventually(lambda: not unfinished(busy), within=10)
        assert rows(busy, "SELECT attempts, losses FROM workflow_runs WHERE id = :id", id=run.id) == [(0, 0)]


def test_b121_whatever_raises_after_a_run_costs_no_thread(busy: Flask, tmp_path: Path) -> None:
    def teardown(error: BaseException | None) -> None:
        if in_worker() and broken == "teardown":
            raise RuntimeError("teardown")

    def receiver(sender: object, **given: object) -> None:
        if in_worker() and broken == "receiver":
            raise RuntimeError("receiver")

    class Handler(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            if in_worker() and broken == "handler":
                raise RuntimeError("handler")
            return True

    busy.teardown_appcontext(teardown)
    run_completed.connect(receiver, busy)
    handler = Handler()
    logging.getLogger("flask_workflows").addHandler(handler)
    logging.getLogger("flask_workflows").setLevel(logging.INFO)
    try:
        with working(busy, concurrency=3):
            for broken in ("teardown", "receiver", "handler"):
                with busy.app_context():
                    for _ in range(100):
                        busy_app.one.start()
                    busy.extensions["sqlalchemy"].session.commit()
                eventually(lambda: not unfinished(busy))
            with busy.app_context():
                for _ in range(3):
                    busy_app.waiting_for.spawn("release")

            # As many as there are threads run at the same time.
            eventually(lambda: [entry.words for entry in read_journal(tmp_path)].count("before") == 3)
            (tmp_path / "release").touch()
            eventually(lambda: not unfinished(busy))
    finally:
        logging.getLogger("flask_workflows").removeHandler(handler)
        logging.getLogger("flask_workflows").setLevel(logging.NOTSET)

    assert rows(busy, "SELECT DISTINCT status FROM workflow_runs") == [("completed",)]


#: What one of the loops asks of the database, by a part of its text.
LOOPS = {
    "heartbeat": "INSERT INTO workflow_workers",
    "sweep": "cancel_requested_at IS NOT NULL",
    "claim": "losses = 0 AND worker IS NULL",
    "lease": "status = 'running', updated_at",
    "record": "INSERT INTO workflow_steps",
    "listener": "LISTEN flask_workflows",
    "watch": "data_version",
}


def test_b157_error_in_one_of_its_loops_leaves_no_idle_worker_behind(
    make_busy: Callable[..., Flask], database_url: str, tmp_path: Path
) -> None:
    left = dict(LOOPS)
    del left["listener" if database_url.startswith("sqlite") else "watch"]

    def watch(asked: str) -> None:
        if in_worker() and armed:
            for loop, part in list(left.items()):
                if part in asked and left.pop(loop, None):
                    raise RuntimeError(f"a bug in the {loop}")

    armed = False
    options = watched_options(database_url, watch)
    busy = make_busy(SQLALCHEMY_ENGINE_OPTIONS=options, WORKFLOWS_LOCK_TIMEOUT_SECS=2)
    armed = True
    with working(busy), busy.app_context():
        busy_app.waiting_for.spawn("release")
        eventually(lambda: not left, within=10)
        (tmp_path / "release").touch()

        eventually(lambda: not unfinished(busy), within=10)
        assert busy_app.five.spawn().wait(10, poll=0.02) == "completed"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_b148_run_that_somebody_locks_holds_up_no_sweep(busy: Flask, fleet: Fleet) -> None:
    gone = "UPDATE workflow_runs SET workflow = 'gone', status = 'running', worker = 'w', cancel_requested_at = 1"
    with busy.app_context():
        locked, other = busy_app.one.spawn().id, busy_app.one.spawn().id
        execute(busy, gone)
        run = busy_app.one.spawn()

    with outsider(busy).connect() as connection:
        connection.execute(sa.text("SELECT 1 FROM workflow_runs WHERE id = :id FOR UPDATE"), {"id": locked})
        fleet.start(WORKFLOWS_LOCK_TIMEOUT_SECS=2)
        eventually(lambda: unfinished(busy) == [locked], within=4)

    assert dict(rows(busy, "SELECT id, status FROM workflow_runs")) == {
        locked: "running",
        other: "cancelled",
        run.id: "completed",
    }
