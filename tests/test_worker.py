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
from pathlib import Path

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import run_completed
from tests import busy_app
from tests.dbapi import watched_options
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import unfinished
from tests.processes import working

ROOT = Path(__file__).parent.parent

#: How often a worker is stopped under load, and how often at each moment of its start.
STOPS = int(os.environ.get("STOPS", "12"))
STARTS = int(os.environ.get("STARTS", "1"))


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
        eventually(worker.serves)
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
        ended.append((delay, process.wait(timeout=60), time.monotonic() - asked))

    # Before the command has begun nobody is there to take the signal: the process ends by it.
    assert all(code in (0, -signal.SIGTERM) and seconds < 60 for _, code, seconds in ended), ended


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
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
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("workflows-")]


def test_b121_whatever_raises_after_a_run_costs_no_thread(busy: Flask, tmp_path: Path) -> None:
    broken = ""

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
            for part in ("teardown", "receiver", "handler"):
                broken = part
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
                if part in asked and left.pop(loop, ""):
                    raise RuntimeError(f"a bug in the {loop}")

    armed = False
    options = watched_options(database_url, watch)
    busy = make_busy(SQLALCHEMY_ENGINE_OPTIONS=options, WORKFLOWS_LOCK_TIMEOUT_SECS=2)
    armed = True
    with working(busy), busy.app_context():
        busy_app.waiting_for.spawn("release")
        eventually(lambda: not left, within=5)
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
