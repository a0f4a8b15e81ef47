"""Many processes and threads on one database."""

from __future__ import annotations

import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows.errors import KeyBusy
from tests import busy_app
from tests import user_suite
from tests.processes import eventually
from tests.processes import Fleet
from tests.processes import rows
from tests.processes import unfinished
from tests.processes import waiting

#: For how long threads of the app write beside the workers, and how often a user's test suite is repeated.
WRITE_SECONDS = float(os.environ.get("WRITE_SECONDS", "4"))
REPEATS = int(os.environ.get("REPEATS", "2"))

only_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def start_many(app: Flask, workflow: str, number: int) -> None:
    with app.app_context():
        getattr(busy_app, workflow).start_many([{}] * number)
        app.extensions["sqlalchemy"].session.commit()


@pytest.mark.parametrize("processes", [2, 4])
def test_worker_processes_execute_a_thousand_runs_a_thousand_times(busy: Flask, fleet: Fleet, processes: int) -> None:
    workers = [fleet.start() for _ in range(processes)]
    eventually(lambda: fleet.logs().count("serves") == processes)

    start_many(busy, "one", 1_000)
    eventually(lambda: not unfinished(busy), within=60, every=0.1)

    assert all(worker.terminate() == 0 for worker in workers)
    journal = fleet.journal()
    assert len(journal) == len({entry.run for entry in journal}) == 1_000
    assert {entry.pid for entry in journal} == {worker.pid for worker in workers}
    assert rows(busy, "SELECT status, count(*) FROM workflow_runs GROUP BY 1") == [("completed", 1_000)]
    assert fleet.logs().count(" INFO ") == len(fleet.logs().splitlines())


def test_b151_starts_are_heard_of_and_taken_up_at_once(busy: Flask, fleet: Fleet) -> None:
    # Were they only found by looking, it would take a minute.
    for _ in range(2):
        fleet.start(WORKFLOWS_POLL_INTERVAL_MS=60_000)
    eventually(lambda: fleet.logs().count("serves") == 2)

    with busy.app_context():
        for _ in range(100):
            busy_app.one.start()
            busy.extensions["sqlalchemy"].session.commit()
            time.sleep(0.02)
    eventually(lambda: not unfinished(busy), within=30)

    ((slowest,),) = rows(busy, "SELECT max(started_at - created_at) FROM workflow_runs")
    assert slowest < 30_000


def test_b87_forked_processes_share_no_connection_and_no_lock(busy: Flask, fleet: Fleet, database_url: str) -> None:
    # SQLite's own library must not be forked while other threads of the process use it.
    forks = 0 if database_url.startswith("sqlite") else 5
    fleet.start(concurrency=4)
    with busy.app_context():
        for _ in range(4):
            busy_app.forking.spawn(forks)
    start_many(busy, "five", 50)

    preforked = fleet.run(user_suite.fork_and_start, fleet.url, str(fleet.directory), 4)
    code = preforked.wait(30)
    # Ten by the server and each of its children, and one by each process that a step forked.
    expected = 5 * 10 + 4 * forks
    eventually(lambda: len(rows(busy, "SELECT 1 FROM workflow_runs WHERE workflow = 'one'")) == expected, within=20)
    eventually(lambda: not unfinished(busy), within=20)

    assert code == 0, preforked.log
    assert rows(busy, "SELECT DISTINCT status FROM workflow_runs") == [("completed",)]
    assert "WARNING" not in fleet.logs()


@only_sqlite
def test_b89_requests_that_write_beside_workers_meet_no_lock_error(busy: Flask, fleet: Fleet) -> None:
    for _ in range(2):
        fleet.start()
    until = time.monotonic() + WRITE_SECONDS

    def request(reads_first: bool) -> int:
        done = 0
        while time.monotonic() < until:
            with busy.app_context():
                session = busy.extensions["sqlalchemy"].session
                if reads_first:
                    session.scalar(sa.select(sa.func.count()).select_from(busy_app.Effect))
                else:
                    session.add(busy_app.Effect(run="request", step="write"))
                    session.flush()
                try:
                    busy_app.one.start()
                except KeyBusy:
                    session.rollback()
                else:
                    session.commit()
                    done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(request, [False] * 6 + [True] * 2))
    eventually(lambda: not unfinished(busy), within=60, every=0.1)

    assert len(fleet.journal()) == done > 50
    assert "locked" not in fleet.logs()
    assert "WARNING" not in fleet.logs()


@only_sqlite
def test_b90_log_of_changes_stops_growing_once_a_long_reader_is_gone(busy: Flask, fleet: Fleet, tmp_path: Path) -> None:
    wal = tmp_path / "app.sqlite3-wal"
    fleet.start()
    with closing(sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM workflow_runs").fetchone()
        start_many(busy, "five", 200)
        eventually(lambda: not unfinished(busy), within=30)
        grown = wal.stat().st_size

    for _ in range(3):
        start_many(busy, "five", 60)
        eventually(lambda: not unfinished(busy), within=30)

    assert wal.stat().st_size <= grown * 1.1 < 64_000_000


@only_sqlite
def test_b90_workers_that_meet_a_writer_at_their_first_connection_wait(
    busy: Flask, fleet: Fleet, tmp_path: Path
) -> None:
    with busy.app_context():
        busy.extensions["sqlalchemy"].engine.dispose()
    with closing(sqlite3.connect(tmp_path / "app.sqlite3", isolation_level=None)) as writer:
        assert writer.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        writer.execute("BEGIN IMMEDIATE")
        for _ in range(4):
            fleet.start()
        for _ in waiting(1.5):
            pass
        writer.execute("COMMIT")
    start_many(busy, "one", 40)
    eventually(lambda: not unfinished(busy), within=20)

    assert len(fleet.journal()) == 40
    assert "locked" not in fleet.logs()


@only_sqlite
def test_b90_database_in_a_folder_that_is_missing_is_refused(busy: Flask, fleet: Fleet, tmp_path: Path) -> None:
    fleet.url = f"sqlite:///{tmp_path / 'missing' / 'app.sqlite3'}"

    worker = fleet.start()

    assert worker.wait(5) != 0
    assert "missing" in worker.log


@only_sqlite
def test_b161_suites_of_users_side_by_side_do_not_flake(busy: Flask, fleet: Fleet) -> None:
    suites = [fleet.run(user_suite.repeat, str(fleet.directory / f"suite-{n}"), REPEATS) for n in range(8)]

    for suite in suites:
        assert suite.wait(60) == 0, suite.log
    assert "locked" not in fleet.logs()
