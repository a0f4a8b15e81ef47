"""Workers of which threads are stuck in calls that timed out: threads cannot be ended, processes can."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from flask import Flask

from tests import busy_app
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import unfinished
from tests.processes import waiting
from tests.processes import working

ROOT = Path(__file__).parent.parent

#: As workers in other processes have them, whose clock is the database's.
SHORT_LEASE: dict[str, Any] = {"WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_POLL_INTERVAL_MS": 100}


def timed_out(app: Flask) -> int:
    """How many calls of `hung` are stored as timed out."""
    found = rows(app, "SELECT count(*) FROM workflow_steps WHERE status = 'retrying' AND error LIKE '%StepTimeout%'")

    return int(found[0][0])


def executors() -> int:
    return sum(re.fullmatch(r"workflows-\d+", thread.name) is not None for thread in threading.enumerate())


def spawn_hanging(app: Flask, number: int) -> list[str]:
    with app.app_context():
        return [busy_app.hanging.spawn("release").id for _ in range(number)]


def test_next_attempt_is_another_workers_when_the_process_with_the_call_was_killed(busy: Flask, fleet: Fleet) -> None:
    (run,) = spawn_hanging(busy, 1)
    first = fleet.start(**SHORT_LEASE)
    eventually(lambda: timed_out(busy))
    other = fleet.start(**SHORT_LEASE)
    # It is due, and its lease would be over by now.
    for _ in waiting(3):
        assert [entry.words for entry in fleet.journal()] == ["hung"]
    assert "took longer than its time-out of 1 s" in first.log

    first.kill()
    ((lease_end,),) = rows(busy, "SELECT due_at FROM workflow_runs")
    eventually(lambda: not unfinished(busy))

    assert [(entry.pid, entry.words) for entry in fleet.journal()] == [
        (first.pid, "hung"),
        (other.pid, "hung"),
        (other.pid, "after"),
    ]
    ((started, attempts, status),) = rows(
        busy, "SELECT started_at, attempts, status FROM workflow_steps WHERE \"key\" = 'hung'"
    )
    assert started >= lease_end
    assert (attempts, status) == (2, "completed")
    assert rows(busy, "SELECT status FROM workflow_runs WHERE id = :id", id=run) == [("completed",)]


def test_slots_of_stuck_threads_are_replaced_until_they_are_free_again(busy: Flask, tmp_path: Path) -> None:
    def held() -> int:
        return [entry.words for entry in read_journal(tmp_path)].count("before")

    hanging = spawn_hanging(busy, 2)
    with working(busy, concurrency=2), busy.app_context():
        eventually(lambda: timed_out(busy) == 2)
        eventually(lambda: executors() == 4)
        blocked = [busy_app.waiting_for.spawn("more").id for _ in range(3)]
        eventually(lambda: held() == 2)
        # As many as ever, not one more.
        for _ in waiting(0.5):
            assert held() == 2
        (tmp_path / "more").touch()
        eventually(lambda: sorted(unfinished(busy)) == sorted(hanging))

        (tmp_path / "release").touch()
        eventually(lambda: not unfinished(busy))
        eventually(lambda: executors() == 2)
        blocked = [busy_app.waiting_for.spawn("still more").id for _ in range(3)]
        eventually(lambda: held() == 5)
        for _ in waiting(0.5):
            assert held() == 5
        (tmp_path / "still more").touch()
        eventually(lambda: not unfinished(busy))

    words = [(entry.run, entry.words) for entry in read_journal(tmp_path)]
    for run in hanging:
        assert [word for of, word in words if of == run] == ["hung", "returns", "hung", "after"]
    assert all((run, "after") in words for run in blocked)


def test_worker_without_a_thread_to_replace_ends_with_an_error_once_the_others_are_done(
    busy: Flask, fleet: Fleet
) -> None:
    places = {"BUSY_URL": fleet.url, "BUSY_DIRECTORY": str(fleet.directory), "PYTHONPATH": str(ROOT)}
    config = {f"FLASK_{key}": str(value) for key, value in SHORT_LEASE.items()}
    command = [sys.executable, "-m", "flask", "--app", "tests.busy_app", "workflows", "work", "--concurrency", "2"]
    hanging = spawn_hanging(busy, 2)
    log = fleet.directory / "command"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=os.environ | places | config, cwd=ROOT, stderr=output)
    try:
        # On a busy machine the command takes its time to begin.
        eventually(lambda: " serves " in log.read_text(), within=60)
        eventually(lambda: timed_out(busy) == 2)
        with busy.app_context():
            busy_app.waiting_for.spawn("finish")
        eventually(lambda: "before" in [entry.words for entry in fleet.journal()])
        hanging += spawn_hanging(busy, 1)
        eventually(lambda: "3 calls of steps that timed out go on in this worker" in log.read_text())
        with busy.app_context():
            late = busy_app.one.spawn().id
        for _ in waiting(0.5):
            assert process.poll() is None
        fleet.touch("finish")

        assert process.wait(timeout=20) == 1
    finally:
        process.kill()
        process.wait()
    assert rows(busy, "SELECT status FROM workflow_runs WHERE workflow = 'waiting_for'") == [("completed",)]
    # What is stuck is left to its lease.
    held = rows(busy, "SELECT id FROM workflow_runs WHERE worker IS NOT NULL AND status = 'running'")
    assert sorted(run for (run,) in held) == sorted(hanging)
    assert [entry.run for entry in fleet.journal()].count(late) == 0

    fleet.start(**SHORT_LEASE)
    eventually(lambda: not unfinished(busy))
    assert rows(busy, "SELECT DISTINCT status, attempts, losses FROM workflow_runs") == [("completed", 0, 0)]
    assert "returns" not in [entry.words for entry in fleet.journal()]


def test_stopped_worker_leaves_a_stuck_run_to_its_lease(busy: Flask, fleet: Fleet) -> None:
    (run,) = spawn_hanging(busy, 1)
    worker = fleet.start(WORKFLOWS_DRAIN_SECS=1, **SHORT_LEASE)
    eventually(lambda: timed_out(busy))

    code = worker.terminate()
    ((status, holder, lease_end),) = rows(busy, "SELECT status, worker, due_at FROM workflow_runs")
    other = fleet.start(**SHORT_LEASE)
    eventually(lambda: not unfinished(busy))

    assert code == 0
    assert "handing back" not in worker.log
    assert (status, holder is None) == ("running", False)
    assert [(entry.pid, entry.words) for entry in fleet.journal() if entry.run == run][1:] == [
        (other.pid, "hung"),
        (other.pid, "after"),
    ]
    assert rows(busy, "SELECT started_at FROM workflow_steps WHERE \"key\" = 'hung'") >= [(lease_end,)]


def test_run_on_its_last_chance_is_not_kept_waiting_by_a_stuck_call(busy: Flask, tmp_path: Path) -> None:
    hanging = spawn_hanging(busy, 1)
    with working(busy, concurrency=1), busy.app_context():
        eventually(lambda: timed_out(busy) == 1)
        # It took its worker with it twice: it is for a worker that does nothing else.
        dangerous = busy_app.one.using(delay=0.5).spawn().id
        execute(busy, "UPDATE workflow_runs SET attempts = 2, losses = 2 WHERE id = :id", id=dangerous)
        eventually(lambda: unfinished(busy) == hanging)
        (tmp_path / "release").touch()
        eventually(lambda: not unfinished(busy))

    assert [entry.words for entry in read_journal(tmp_path)] == ["hung", "1", "returns", "hung", "after"]


def test_call_that_returns_while_its_worker_drains_is_followed_by_the_next_attempt_elsewhere(
    busy: Flask, fleet: Fleet
) -> None:
    spawn_hanging(busy, 1)
    draining = fleet.start(**SHORT_LEASE)
    eventually(lambda: timed_out(busy))
    draining.send(signal.SIGTERM)
    other = fleet.start(**SHORT_LEASE)
    # Longer than the lease: it is renewed all the while.
    for _ in waiting(3):
        assert draining.alive
    fleet.touch("release")
    code = draining.wait()
    eventually(lambda: not unfinished(busy))

    assert code == 0
    assert [(entry.pid, entry.words) for entry in fleet.journal()] == [
        *[(draining.pid, "hung"), (draining.pid, "returns")],
        *[(other.pid, "hung"), (other.pid, "after")],
    ]
