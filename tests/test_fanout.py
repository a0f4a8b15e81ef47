"""Many branches and many children in worker processes, of which some are killed (R14, R23)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flask import Flask

from flask_workflows.testing import assert_replays
from tests import busy_app
from tests.processes import eventually
from tests.processes import Fleet
from tests.processes import rows
from tests.processes import unfinished
from tests.running import on_sqlite

#: Items of the one parallel call whose workers are killed.
ITEMS = int(os.environ.get("ITEMS", "1000"))

#: A dead worker's runs are taken over soon.
QUICK: dict[str, Any] = {"WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_POLL_INTERVAL_MS": 100}

HOLDER = """
SELECT w.pid FROM workflow_runs r JOIN workflow_workers w ON w.id = r.worker WHERE r.finished_at IS NULL
"""


def test_a_thousand_branches_are_done_once_each_though_a_worker_is_killed_every_second(
    make_busy: Callable[..., Flask], fleet: Fleet
) -> None:
    # What is looked at is not how many losses a run bears.
    busy = make_busy(WORKFLOWS_MAX_ATTEMPTS=1_000)
    workers = [fleet.start(**QUICK) for _ in range(4)]
    for worker in workers:
        eventually(worker.serves, within=60)
    with busy.app_context():
        handle = busy_app.fanned_out.spawn(ITEMS)

    killed = kill_every_second(busy, fleet)

    assert killed >= 1
    with busy.app_context():
        assert handle.output() == [2 * number for number in range(ITEMS)]
        assert_replays(busy_app.workflows, handle)
    assert rows(busy, "SELECT run FROM effects GROUP BY run") == [(handle.id,)]
    assert sorted(int(step) for (step,) in rows(busy, "SELECT step FROM effects")) == list(range(ITEMS))
    steps = rows(busy, 'SELECT "key", output FROM workflow_steps WHERE kind = :kind', kind="step")
    assert dict(steps) == {f"1.{number}/tally": str(2 * number) for number in range(ITEMS)}


def kill_every_second(app: Flask, fleet: Fleet) -> int:
    """Kill each worker after it held the run for a second, until the run has finished; answer how many were killed."""
    killed = 0
    holder, since = None, time.monotonic()
    while unfinished(app):
        holding = {pid for (pid,) in rows(app, HOLDER)}
        found = next((worker for worker in fleet.processes if worker.pid in holding and worker.alive), None)
        if found is not holder:
            holder, since = found, time.monotonic()
        elif found is not None and time.monotonic() - since >= 1:
            found.kill()
            fleet.start(**QUICK)
            killed += 1
        time.sleep(0.05)
    return killed


#: For a process whose hashes, and with them the order of sets, are others.
REPLAY = """
import sys
from flask_workflows.testing import assert_replays
from tests.busy_app import create_app
from tests.busy_app import workflows
with create_app().app_context():
    assert_replays(workflows, sys.argv[1])
"""


def replay_elsewhere(fleet: Fleet, run_id: str, seed: int) -> str:
    """Replay a run in a process of that PYTHONHASHSEED; answer what it complains of."""
    environment = {"BUSY_URL": fleet.url, "BUSY_DIRECTORY": str(fleet.directory), "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, run_id],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@on_sqlite
def test_b41_a_thousand_branches_replay_whatever_the_hashes(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        handle = busy_app.fanned_out.spawn(ITEMS)
        busy_app.workflows.tick()

    for seed in range(6):
        assert replay_elsewhere(fleet, handle.id, seed) == ""


# Children ----------------------------------------------------------------------------------

GENERATIONS = ("grandparent", "waiting_parent", "waiting_for")


def states(app: Flask) -> dict[str, list[tuple[str, bool]]]:
    """Of each workflow the status of its runs, and whether a worker holds them."""
    found: dict[str, list[tuple[str, bool]]] = {}
    statement = "SELECT workflow, status, worker IS NOT NULL FROM workflow_runs ORDER BY id"
    for workflow, status, held in rows(app, statement):
        found.setdefault(workflow, []).append((status, bool(held)))

    return found


def test_b46_one_slot_is_enough_for_three_generations(busy: Flask, fleet: Fleet) -> None:
    fleet.start(concurrency=1)
    with busy.app_context():
        handle = busy_app.grandparent.spawn("release")
    the_slot_is_the_grandchilds = {
        "grandparent": [("waiting", False)],
        "waiting_parent": [("waiting", False)],
        "waiting_for": [("running", True)],
    }
    eventually(lambda: states(busy) == the_slot_is_the_grandchilds, within=60)
    fleet.touch("release")
    eventually(lambda: not unfinished(busy), within=60)

    with busy.app_context():
        assert handle.output() == "after"


def test_b46_eight_parents_leave_four_slots_to_their_children(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        handles = [busy_app.grandparent.spawn("release") for _ in range(8)]
    fleet.start(concurrency=4)
    at_work = [("running", True)] * 4

    def all_slots_are_the_grandchildrens() -> bool:
        found = states(busy)
        # Whether the last parents had their turn before the first grandchildren is chance.
        return sorted(found.get("waiting_for", ()))[-4:] == at_work and not any(
            held for generation in GENERATIONS[:2] for _, held in found.get(generation, ())
        )

    eventually(all_slots_are_the_grandchildrens, within=60)
    fleet.touch("release")
    eventually(lambda: not unfinished(busy), within=60)

    with busy.app_context():
        assert [handle.output() for handle in handles] == ["after"] * 8
