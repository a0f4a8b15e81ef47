"""A run belongs to whoever claimed it last: nobody else changes it, or goes on with it."""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Thread

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
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import snapshot
from tests.running import Clock

SHORT_LEASE = {"WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_POLL_INTERVAL_MS": 100}


def claim(app: Flask, limit: int = 1) -> list[ClaimedRun]:
    runtime = runtime_of(app)
    return runtime.store.claim(Scope.of(runtime.registry.ranges()), "somebody", limit, alone=True)


def execute_claimed(app: Flask, run: ClaimedRun) -> Thread:
    """Execute it on a thread of its own, with nobody to renew its lease."""

    def target() -> None:
        engine = Engine(runtime_of(app))
        engine.execute(engine.begin(run, runtime_of(app).store.histories([run.id])[run.id]), "somebody")

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
