"""A run belongs to whoever claimed it last: nobody else changes it, or goes on with it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from flask import Flask

from flask_workflows.engine import Engine
from flask_workflows.store import Change
from flask_workflows.store import ClaimedRun
from flask_workflows.store import LeaseGone
from flask_workflows.store import NewRun
from flask_workflows.store import Scope
from flask_workflows.store import StepWrite
from tests import busy_app
from tests.apps import runtime_of
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import Process
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import snapshot
from tests.processes import unfinished
from tests.running import Clock

SHORT_LEASE: dict[str, Any] = {"WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_POLL_INTERVAL_MS": 100}


def claim(app: Flask, limit: int = 1) -> list[ClaimedRun]:
    runtime = runtime_of(app)
    return runtime.store.claim(Scope.of(runtime.registry.ranges()), "somebody", limit, alone=True)


def execute_claimed(app: Flask, run: ClaimedRun) -> Thread:
    """Execute it on a thread of its own, with nobody to renew its lease."""

    def target() -> None:
        engine = Engine(runtime_of(app))
        stored = [] if run.fresh else runtime_of(app).store.histories([run.id])[run.id]
        engine.execute(engine.begin(run, stored), "somebody")

    thread = Thread(target=target, daemon=True)
    thread.start()

    return thread


@pytest.mark.parametrize("handed_back", [False, True], ids=["lease over", "handed back"])
@pytest.mark.parametrize("write", busy_app.WRITES)
def test_zombie_changes_nothing_and_does_nothing_further(
    busy: Flask, busy_clock: Clock, tmp_path: Path, write: str, handed_back: bool
) -> None:
    with busy.app_context():
        run = busy_app.held.spawn(write)
        (claimed,) = claim(busy)
        zombie = execute_claimed(busy, claimed)
        eventually(lambda: any(entry.words == "gate" for entry in read_journal(tmp_path)))

        if handed_back:
            # The clock stands still: nothing but the fence tells the zombie.
            runtime_of(busy).store.hand_back([(claimed.id, claimed.epoch)])
            busy_app.workflows.tick()
        else:
            for _ in range(3):
                busy_clock.move(seconds=31)
                busy_app.workflows.tick()
        if write == "a cancellation":
            run.retry()
            busy_app.workflows.tick()
        before, journal = snapshot(busy), read_journal(tmp_path)
        (tmp_path / "release").touch()
        zombie.join(20)

    assert not zombie.is_alive()
    assert snapshot(busy) == before
    assert read_journal(tmp_path) == journal
    # The others got further than the gate.
    assert len([entry for entry in journal if entry.words == "gate"]) > 1


def test_store_refuses_every_write_under_an_older_epoch(busy: Flask, busy_clock: Clock) -> None:
    store = runtime_of(busy).store
    with busy.app_context():
        run_id = busy_app.one.spawn().id
        (old,) = claim(busy)
        busy_clock.move(seconds=31)
        (new,) = claim(busy)
        store.record(run_id, new.epoch, [StepWrite("1", 1, "step", "running")], touch=True)
    before = snapshot(busy)
    write = StepWrite("1", 1, "step", "completed", output='"of the zombie"')
    child = NewRun("of-the-zombie", "one", 1, "default", "", None, "{}", 3, None)

    refused: list[Callable[[], object]] = [
        lambda: store.record(run_id, old.epoch, [write], touch=False),
        lambda: store.record(run_id, old.epoch, [write], touch=True),
        lambda: store.record(run_id, old.epoch, [write, write._replace(key="2", position=2)], touch=False),
        lambda: store.record_effect(old, "1", lambda c: str(store.insert(c, [child])), lambda done: write),
        *(
            lambda change=change, writes=writes: store.settle(run_id, old.epoch, change, writes)
            for writes in ([], [write])
            for change in [
                Change("completed", output="1", finished=True),
                Change("failed", error="{}", finished=True),
                Change("cancelled", finished=True),
                Change("sleeping", due_in=1_000),
                Change("waiting"),
            ]
        ),
    ]
    for act in refused:
        with pytest.raises(LeaseGone):
            act()
    renewed, lost = store.renew([(run_id, old.epoch)])
    store.hand_back([(run_id, old.epoch)])

    assert (renewed, lost) == ([], [run_id])
    assert snapshot(busy) == before


def test_run_that_waited_in_its_worker_until_it_was_somebody_elses_is_not_begun(
    busy: Flask, busy_clock: Clock, tmp_path: Path
) -> None:
    with busy.app_context():
        busy_app.five.spawn()
        (waited,) = claim(busy)
        busy_clock.move(seconds=31)
        busy_app.workflows.tick()
    before, journal = snapshot(busy), read_journal(tmp_path)

    execute_claimed(busy, waited).join(20)

    assert [entry.words for entry in journal] == list("12345")
    assert snapshot(busy) == before
    assert read_journal(tmp_path) == journal


def stop_between_writes(app: Flask, process: Process) -> None:
    """Stop a process where it holds no lock on the database, as SQLite's only one would hold up everybody."""
    with outsider(app).connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        process.send(signal.SIGSTOP)
        eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        connection.rollback()


def test_process_that_was_stopped_past_its_leases_changes_nothing_when_it_goes_on(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        runs = [busy_app.held.spawn(write).id for write in busy_app.WRITES]
    stopped = fleet.start(concurrency=len(runs), **SHORT_LEASE)
    eventually(lambda: sum(entry.words == "gate" for entry in fleet.journal()) == len(runs))

    stop_between_writes(busy, stopped)
    other = fleet.start(**SHORT_LEASE)
    eventually(lambda: not unfinished(busy))
    before, journal = snapshot(busy), fleet.journal()
    fleet.touch("release")
    stopped.send(signal.SIGCONT)
    # Its threads have all come to their ends when it exits.
    code = stopped.terminate()

    assert code == 0
    assert snapshot(busy) == before
    assert fleet.journal() == journal
    assert {entry.pid for entry in journal if entry.words == "next"} == {other.pid}
    ended = {"a cancellation": "cancelled"}
    assert dict(rows(busy, "SELECT id, status FROM workflow_runs WHERE workflow = 'held'")) == {
        run: ended.get(write, "completed") for run, write in zip(runs, busy_app.WRITES, strict=True)
    }
    for run in runs:
        assert stopped.log.count(f"the lease of run {run} was lost") <= 1
    # Which thread notices first, the one that renews or the one that wanted to write, is chance.
    assert "was lost: it is executed elsewhere" in stopped.log or "was taken over before" in stopped.log


def test_b03_b129_second_execution_of_a_run_loses_the_race_and_stops(
    busy: Flask, busy_clock: Clock, tmp_path: Path
) -> None:
    with busy.app_context():
        run = busy_app.racing.spawn()
        (first,) = claim(busy)
        threads = [execute_claimed(busy, first)]
        eventually(lambda: len(read_journal(tmp_path)) == 1)
        busy_clock.move(seconds=31)
        (second,) = claim(busy)
        threads.append(execute_claimed(busy, second))
        eventually(lambda: len(read_journal(tmp_path)) == 2)

        # Both are in the same step, and store it now.
        (tmp_path / "release").touch()
        for thread in threads:
            thread.join(20)
        winner = str(threads[1].native_id)

        assert run.output() == winner
    following = [entry for entry in read_journal(tmp_path) if entry.words.isdigit()]
    assert [(entry.thread, entry.words) for entry in following] == [(int(winner), str(n)) for n in range(1, 6)]


def test_b05_run_whose_input_cannot_be_read_strands_nobody_of_its_batch(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        runs = [busy_app.one.spawn().id for _ in range(3)]
    execute(busy, "UPDATE workflow_runs SET input = '{\"pause_ms\": [' WHERE id = :id", id=runs[0])

    fleet.start(concurrency=3)
    eventually(lambda: not unfinished(busy))

    found = rows(busy, "SELECT status, error FROM workflow_runs ORDER BY id")
    assert [status for status, _ in found] == ["failed", "completed", "completed"]
    assert "workflow 'one'" in found[0][1]


def test_b06_run_whose_key_is_taken_by_a_newer_one_holds_up_no_other_take_over(busy: Flask, busy_clock: Clock) -> None:
    with busy.app_context():
        runs = [busy_app.one.using(key=f"{number}").spawn().id for number in range(5)]
        claim(busy, limit=5)
        # As nothing in the package would leave it: the key is another run's by now.
        execute(busy, "UPDATE workflow_runs SET live_key = NULL WHERE id = :id", id=runs[0])
        newer = busy_app.one.using(key="0").spawn()
        busy_clock.move(seconds=31)

        busy_app.workflows.tick()

        assert newer.created
        assert rows(busy, "SELECT DISTINCT status FROM workflow_runs") == [("completed",)]


def test_b08_b147_runs_of_a_killed_worker_are_taken_over_whatever_became_of_its_row(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        runs = [busy_app.waiting_for.spawn("release").id for _ in range(2)]
    same_name: dict[str, Any] = {"name": "pod-1", "concurrency": 1}
    first, second = fleet.start(**same_name, **SHORT_LEASE), fleet.start(**same_name, **SHORT_LEASE)
    eventually(lambda: len(fleet.journal()) == 2)

    # One comes back under its name before its row is deleted, the other after.
    first.kill()
    fleet.start(**same_name, **SHORT_LEASE)
    second.kill()
    execute(busy, "DELETE FROM workflow_workers")
    fleet.start(**same_name, **SHORT_LEASE)
    fleet.touch("release")

    eventually(lambda: not unfinished(busy), within=5)
    assert sorted(entry.run for entry in fleet.journal() if entry.words == "after") == sorted(runs)


def test_b39_sleep_that_ends_while_no_worker_lives_ends_once_when_there_are_some(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        busy_app.napping.spawn(1)
    worker = fleet.start()
    eventually(lambda: rows(busy, "SELECT id FROM workflow_runs WHERE status = 'sleeping'"))
    worker.terminate()
    with busy.app_context():
        ((due_at,),) = rows(busy, "SELECT due_at FROM workflow_runs")
        eventually(lambda: runtime_of(busy).store.now() > due_at)

    for _ in range(2):
        fleet.start()
    eventually(lambda: not unfinished(busy), within=3)

    assert [entry.words for entry in fleet.journal()] == ["before", "after"]


def test_run_with_no_attempt_left_counts_no_further_loss(busy: Flask, busy_clock: Clock) -> None:
    with busy.app_context():
        run = busy_app.one.spawn()
        counts = []
        for _ in range(6):
            # Whoever claims it dies at once; from the fourth on all it had to do was to fail the run.
            (claimed,) = claim(busy)
            counts.append((claimed.attempts, claimed.losses))
            busy_clock.move(seconds=31)
        busy_app.workflows.tick()

        assert counts == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 3), (3, 3)]
        assert str(run.status()) == "failed"
        assert rows(busy, "SELECT attempts, losses, max_attempts FROM workflow_runs") == [(3, 3, 3)]
        error = run.run().error
        assert error is not None
        assert "3 executions ended" in error.message
