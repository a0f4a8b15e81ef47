"""Workers that are killed, and code that is left in the middle."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from tests import busy_app
from tests import crash_points
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import rows
from tests.processes import unfinished
from tests.running import Clock

#: How many workers are killed at random moments, on each database.
KILLS = int(os.environ.get("KILLS", "100"))

#: A dead worker's runs are taken over soon.
QUICK: dict[str, Any] = {"WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_POLL_INTERVAL_MS": 100}


def work_through(app: Flask, fleet: Fleet, at_death: Callable[[int], None] = lambda deaths: None) -> int:
    """Start a worker whenever there is none, until every run has finished; answer how many died."""
    workers = [fleet.start(**QUICK)]

    def work() -> bool:
        if not workers[-1].alive:
            at_death(len(workers))
            workers.append(fleet.start(**QUICK))
        return not unfinished(app)

    eventually(work, within=40)
    return len(workers) - 1


def test_workers_killed_at_random_moments_lose_no_run_and_repeat_only_the_step_in_flight(
    make_busy: Callable[..., Flask], fleet: Fleet
) -> None:
    # What is looked at is not how many losses a run bears: three by pure chance must not end it.
    busy = make_busy(WORKFLOWS_MAX_ATTEMPTS=1_000)
    chance = random.Random(0)
    workers = [fleet.start(**QUICK) for _ in range(3)]
    runs = []

    with busy.app_context():
        for number in range(KILLS):
            pauses = (chance.choice([0, 0, 50, 300]) for _ in range(2))
            runs += [busy_app.five.spawn(pause).id for pause in pauses]
            victim = number % len(workers)
            # On a busy machine it may not have begun yet, and would die without having done anything.
            eventually(workers[victim].serves, within=60)
            time.sleep(chance.uniform(0, 0.25))
            workers[victim].kill()
            workers[victim] = fleet.start(**QUICK)
    eventually(lambda: not unfinished(busy), within=60)

    assert set(rows(busy, "SELECT id, status FROM workflow_runs")) == {(run, "completed") for run in runs}
    assert rows(busy, "SELECT run, step FROM effects ORDER BY run, step") == sorted(itertools.product(runs, "24"))
    journal = fleet.journal()
    killed = {process.pid for process in fleet.processes if not process.alive}
    repeated = 0
    for run in runs:
        entries = [entry for entry in journal if entry.run == run]
        assert "".join(sorted({entry.words for entry in entries})) == "12345"
        for first, second in itertools.pairwise(entries):
            assert first.words < second.words or (first.words == second.words and first.pid in killed - {second.pid})
            repeated += first.words == second.words
    assert repeated >= KILLS / 10


def test_run_that_kills_its_worker_each_time_fails_after_three_and_takes_nobody_with_it(
    busy: Flask, fleet: Fleet
) -> None:
    with busy.app_context():
        neighbours = [busy_app.five.spawn(100).id for _ in range(3)]
        poisoned = busy_app.dangerous.spawn([99]).id
        neighbours += [busy_app.five.spawn(100).id for _ in range(8)]

    def at_death(deaths: int) -> None:
        if deaths == 2:
            # It is under way when the other is due for the last time.
            with busy.app_context():
                neighbours.append(busy_app.five.spawn(2_500).id)

    deaths = work_through(busy, fleet, at_death)

    assert deaths == 3
    ((status, attempts, error),) = rows(
        busy, "SELECT status, attempts, error FROM workflow_runs WHERE id = :id", id=poisoned
    )
    assert (status, attempts) == ("failed", 3)
    assert "worker lost at step 'deadly'" in json.loads(error)["message"]
    assert {run for (run,) in rows(busy, "SELECT id FROM workflow_runs WHERE status = 'completed'")} == set(neighbours)
    assert rows(busy, "SELECT run, step FROM effects ORDER BY run, step") == sorted(itertools.product(neighbours, "24"))
    # On its last chance nobody else was aboard.
    *_, last = (entry for entry in fleet.journal() if entry.run == poisoned)
    begun = [entry for entry in fleet.journal() if entry.pid == last.pid and entry.run != poisoned]
    assert {entry.run for entry in begun if entry.words == "5"} == {entry.run for entry in begun}


def test_stored_step_starts_the_count_of_losses_again(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        run = busy_app.dangerous.spawn([2, 2]).id

    deaths = work_through(busy, fleet)

    assert deaths == 4
    assert [entry.words for entry in fleet.journal()] == ["deadly 1"] * 3 + ["deadly 2"] * 3 + ["after"]
    assert rows(busy, "SELECT id, status, attempts, losses FROM workflow_runs") == [(run, "completed", 0, 0)]


#: What a crash may leave of an action, once the rest has been executed: the states its run may end in.
ENDS = {
    "execute_until_the_body_raises": {"failed"},
    "execute_until_it_fails": {"failed"},
    "cancel_one_that_sleeps": {"completed", "cancelled"},
    "execute_one_that_is_to_be_cancelled": {"cancelled"},
    "retry": {"completed", "cancelled"},
}

#: A dead process' transaction lives until the server finds its connection closed.
OPEN_TRANSACTIONS = {
    "sqlite": "SELECT 1 WHERE 1 = 0",
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND xact_start IS NOT NULL AND backend_type = 'client backend'",
}


@pytest.mark.parametrize("action", crash_points.ACTIONS)
def test_b17_b126_crash_between_any_two_statements_leaves_nothing_half_done(
    busy: Flask, fleet: Fleet, busy_clock: Clock, action: str
) -> None:
    for exchange in itertools.count(1):
        process = fleet.run(crash_points.crash, fleet.url, str(fleet.directory), action, exchange)
        code = process.wait()
        assert code in (0, crash_points.CRASHED), process.log
        with busy.app_context():
            assert_recovers(busy, busy_clock, action, process.log)
        if code == 0:
            break

    assert exchange > 3


def assert_recovers(app: Flask, clock: Clock, action: str, log: str) -> None:
    """What was left is executed to its end, without going round in circles; then the tables are emptied."""
    eventually(lambda: not rows(app, OPEN_TRANSACTIONS[outsider(app).name]))
    for _ in range(8):
        # Later than whatever the dead process had to wait for.
        clock.move(days=50)
        busy_app.workflows.tick()
        assert busy_app.workflows.tick() == 0, log
        if not unfinished(app):
            break
    runs = {
        run: (workflow, status) for run, workflow, status in rows(app, "SELECT id, workflow, status FROM workflow_runs")
    }
    written = rows(app, "SELECT run, step FROM effects")

    children = [run for run, (workflow, _) in runs.items() if workflow == "one"]
    parents = [run for run, (workflow, _) in runs.items() if workflow == "everything"]
    assert len(children) == len(parents), log
    assert {status for workflow, status in runs.values() if workflow != "one"} <= ENDS.get(action, {"completed"}), log
    assert len(written) == len(set(written)), log
    for run, (workflow, _) in runs.items():
        if workflow in ("five", "everything"):
            assert {step for owner, step in written if owner == run} == {"2", "4"}, log
    if action == "start_with_the_rows_of_the_app":
        assert (("app", "order") in written) == bool(runs), log
    # A finished run holds no key and is due no more; no step is left without its run, or open.
    assert rows(app, "SELECT id FROM workflow_runs WHERE finished_at IS NULL OR due_at IS NOT NULL") == [], log
    assert rows(app, "SELECT id FROM workflow_runs WHERE live_key IS NOT NULL OR worker IS NOT NULL") == [], log
    assert rows(app, "SELECT run_id FROM workflow_steps WHERE run_id NOT IN (SELECT id FROM workflow_runs)") == [], log
    for table in ("effects", "workflow_steps", "workflow_runs"):
        execute(app, f"DELETE FROM {table}")
