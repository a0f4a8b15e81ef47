"""A PostgreSQL server that restarts, falls silent, or refuses to write."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy.exc import OperationalError

from tests import busy_app
from tests.databases import PrivatePostgres
from tests.databases import StopMode
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import unfinished
from tests.processes import waiting
from tests.processes import working

#: Steps that use the app's own connections fail when these are gone, and are tried again at once.
PATIENT: dict[str, Any] = {
    "WORKFLOWS_LOCK_TIMEOUT_SECS": 2,
    "WORKFLOWS_POLL_INTERVAL_MS": 100,
    "WORKFLOWS_STEP_ATTEMPTS": 1_000,
    "WORKFLOWS_STEP_BACKOFF_SECS": 0,
}


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    server = PrivatePostgres()

    yield server

    server.close()


@pytest.fixture
def database_url(server: PrivatePostgres) -> str:
    return server.url(server.create_database())


def all_done(app: Flask) -> bool:
    """Whether every run has finished; the server may be away."""
    try:
        return not unfinished(app)
    except OperationalError:
        return False


def complaints(log: str) -> list[str]:
    return [line for line in log.splitlines() if " WARNING " in line or " ERROR " in line or " CRITICAL " in line]


def start_five(app: Flask, number: int, pause_ms: int = 0) -> list[str]:
    with app.app_context():
        handles = busy_app.five.start_many([{"pause_ms": pause_ms}] * number)
        app.extensions["sqlalchemy"].session.commit()

    return sorted(handle.id for handle in handles)


@contextmanager
def frozen(server: PrivatePostgres) -> Iterator[None]:
    """No process of the server does anything, while its sockets stay open."""
    with server.connect() as connection:
        found = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
    pids = [int((server.home / "data" / "postmaster.pid").read_text().split()[0]), *(pid for (pid,) in found)]
    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            send(pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_b15_restart_of_the_database_during_a_recovery_loses_no_run(
    busy: Flask, fleet: Fleet, server: PrivatePostgres, mode: StopMode
) -> None:
    runs = start_five(busy, 250)
    worker = fleet.start(**PATIENT)
    eventually(lambda: len(fleet.journal()) > 50)

    worker.kill()
    worker = fleet.start(**PATIENT)
    time.sleep(0.2)
    server.restart(mode)
    eventually(lambda: all_done(busy), within=40)

    assert rows(busy, "SELECT status, count(*) FROM workflow_runs GROUP BY 1") == [("completed", 250)]
    assert rows(busy, "SELECT run, step FROM effects ORDER BY run, step") == list(itertools.product(runs, "24"))
    assert worker.terminate() == 0
    assert "Traceback" not in worker.log
    assert len(complaints(worker.log)) < 10


def test_connections_killed_again_and_again_lose_and_repeat_no_effect(busy: Flask, fleet: Fleet) -> None:
    runs = start_five(busy, 150, pause_ms=20)
    chance = random.Random(0)
    workers = [fleet.start(**PATIENT) for _ in range(2)]
    eventually(lambda: fleet.journal())

    for _ in range(30):
        pids = rows(
            busy, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for (pid,) in chance.sample(pids, min(3, len(pids))):
            execute(busy, "SELECT pg_terminate_backend(:pid)", pid=pid)
        time.sleep(chance.uniform(0, 0.1))
    eventually(lambda: all_done(busy), within=30)

    assert rows(busy, "SELECT status, count(*) FROM workflow_runs GROUP BY 1") == [("completed", 150)]
    assert rows(busy, "SELECT run, step FROM effects ORDER BY run, step") == list(itertools.product(runs, "24"))
    assert all(worker.alive for worker in workers)


def test_b81_b123_outage_and_read_only_standby_are_borne_quietly(
    busy: Flask, fleet: Fleet, server: PrivatePostgres
) -> None:
    with busy.app_context():
        busy_app.waiting_for.spawn("release")
    worker = fleet.start(**PATIENT)
    eventually(lambda: fleet.journal())

    # A crash of the server, and no server for a while.
    began = time.monotonic()
    os.kill(int((server.home / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    server.stop("immediate")
    for _ in waiting(2):
        assert worker.alive
    server.start()
    with server.connect() as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    server.restart("fast")
    for _ in waiting(2):
        assert worker.alive
    with server.connect() as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("ALTER SYSTEM RESET default_transaction_read_only")
        connection.execute("SELECT pg_reload_conf()")
    fleet.touch("release")
    eventually(lambda: all_done(busy), within=10)
    with busy.app_context():
        # The connections of this process are dead, which is found before they are used.
        busy_app.five.spawn()
    eventually(lambda: all_done(busy), within=5)

    assert rows(busy, "SELECT DISTINCT status FROM workflow_runs") == [("completed",)]
    assert [entry.words for entry in fleet.journal()].count("before") == 1
    assert "Traceback" not in worker.log
    # One of each kind in ten seconds.
    assert len(complaints(worker.log)) <= 6 + 4 * (time.monotonic() - began) / 10


def handles_sigterm(pid: int) -> bool:
    """Whether the process would hear of the signal, instead of being ended by it."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_b14_worker_stops_while_the_database_is_silent(busy: Flask, fleet: Fleet, server: PrivatePostgres) -> None:
    with busy.app_context():
        for _ in range(2):
            busy_app.waiting_for.spawn("release")
    patient, urged = (fleet.start(concurrency=1, WORKFLOWS_DRAIN_SECS=1) for _ in range(2))
    eventually(lambda: len(fleet.journal()) == 2)

    with frozen(server):
        booting = fleet.start()
        fleet.touch("release")
        for worker in (patient, urged):
            worker.send(signal.SIGTERM)
        time.sleep(0.5)
        urged.send(signal.SIGTERM)
        urged_code = urged.wait(30)
        eventually(lambda: handles_sigterm(booting.pid))
        booting.send(signal.SIGTERM)
        booting_code = booting.wait(30)
        patient_code = patient.wait(30)

    assert urged_code == 128 + signal.SIGTERM
    assert "second signal: leaving at once" in urged.log
    assert booting_code == 0
    assert patient_code == 0


def test_second_worker_of_a_process_waits_for_the_database_like_the_first(
    make_busy: Callable[..., Flask], tmp_path: Path, server: PrivatePostgres
) -> None:
    busy = make_busy()
    with working(busy):
        start_five(busy, 1)
        eventually(lambda: all_done(busy))
    with busy.app_context():
        busy_app.waiting_for.spawn("release")

    with working(busy):
        eventually(lambda: [entry for entry in read_journal(tmp_path) if entry.words == "before"])
        server.stop("fast")
        (tmp_path / "release").touch()
        for _ in waiting(0.5):
            pass
        server.start()

        # Soon, and not only when its lease ends.
        eventually(lambda: all_done(busy), within=10)
    assert rows(busy, "SELECT DISTINCT status, attempts, losses FROM workflow_runs") == [("completed", 0, 0)]
