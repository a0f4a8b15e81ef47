"""Runs taken from a worker that is lost, or only seems to be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import current_run
from flask_workflows import Handle
from flask_workflows import Run
from flask_workflows import RunChanged
from flask_workflows import RunNotFound
from flask_workflows import RunNotLost
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import Workflows
from flask_workflows.runtime import Runtime
from flask_workflows.store import Scope
from tests import apps
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import Order
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

declared = Workflows()
effects: list[str] = []
#: What the step does in the middle of it, once.
meanwhile: list[str] = []


@declared.step
def first(writes: bool) -> str:
    effects.append("first")
    if writes:
        db: SQLAlchemy = current_app.extensions["sqlalchemy"]
        db.session.add(Order(note=f"written at attempt {current_run.attempt}"))
    if meanwhile:
        meanwhile.pop()
        declared.release(current_run.run_id)
    return f"attempt {current_run.attempt}"


@declared.step
def second() -> None:
    effects.append("second")


@declared.workflow
def steady(writes: bool = False) -> str:
    answer = first(writes)
    second()
    return answer


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    meanwhile.clear()

    yield make_app(database_url, db=make_orders_db(), workflows=declared)

    declared.clock = None


@pytest.fixture
def runtime(app: Flask) -> Runtime:
    return apps.runtime_of(app)


def claimed(runtime: Runtime, *, begin: bool = True) -> Handle[str]:
    """A run that the worker "w" holds and will say nothing more of."""
    handle = steady.spawn()
    runtime.store.claim(Scope.of(runtime.registry.ranges()), "w", 10, begin=begin)
    return handle


def beat(runtime: Runtime) -> None:
    runtime.store.save_worker(id="w", name="web-1:7", host="web-1", pid=7, queues=None, workflows="[]", concurrency=4)


@pytest.mark.parametrize("writes", [False, True], ids=["held", "with rows of the app"])
def test_b129_a_worker_that_is_alive_after_all_does_nothing_further(runtime: Runtime, writes: bool) -> None:
    """Its step in flight is not stored, and the next one is not begun: both are left to who takes the run over."""
    meanwhile.append("release")
    handle = steady.spawn(writes)

    executions = declared.tick()

    assert executions == 2
    assert effects == ["first", "first", "second"]
    assert handle.output() == "attempt 2"
    assert committed_notes() == (["written at attempt 2"] if writes else [])


def test_the_take_over_of_a_released_run_counts_as_a_lost_worker(runtime: Runtime, clock: Clock) -> None:
    handle = claimed(runtime)
    before = handle.run()

    after = declared.release(handle.id, epoch=before.epoch)
    (taken,) = runtime.store.claim(Scope.of(runtime.registry.ranges()), "v", 10, alone=True)

    assert (after.status, after.epoch, after.due_at) == (RunStatus.RUNNING, before.epoch + 1, clock.now())
    assert (taken.id, taken.epoch, taken.losses, taken.attempts) == (handle.id, after.epoch + 1, 1, 1)


def test_a_run_claimed_ahead_and_released_uses_no_attempt(runtime: Runtime) -> None:
    handle = claimed(runtime, begin=False)

    declared.release(handle.id)
    (taken,) = runtime.store.claim(Scope.of(runtime.registry.ranges()), "v", 10, alone=True)

    assert (taken.losses, taken.attempts) == (1, 0)


def test_a_run_released_again_and_again_fails_as_one_that_kills_its_workers(runtime: Runtime, clock: Clock) -> None:
    handle = claimed(runtime)
    for _ in range(2):
        declared.release(handle.id)
        runtime.store.claim(Scope.of(runtime.registry.ranges()), "w", 10, alone=True)
    declared.release(handle.id)

    run_out(declared, clock)

    error = handle.run().error
    assert error is not None
    assert (error.type, effects) == ("WorkerLost", [])


@pytest.mark.parametrize("sign", ["stopped", "silent", "unknown"])
def test_a_worker_is_lost_that_stopped_or_fell_silent_or_is_unknown(runtime: Runtime, clock: Clock, sign: str) -> None:
    if sign != "unknown":
        beat(runtime)
    handle = claimed(runtime)
    if sign == "stopped":
        runtime.store.stop_worker("w")
    elif sign == "silent":
        clock.move(seconds=30)
        with pytest.raises(RunNotLost, match=r"held by web-1:7, seen 12:00:00 UTC.* not seen for 30 s"):
            declared.release(handle.id)
        clock.move(seconds=0.001)

    assert declared.release(handle.id).status is RunStatus.RUNNING
    assert declared.tick() == 1
    assert handle.output() == "attempt 2"


def test_the_lease_says_how_long_a_worker_may_be_silent_but_three_heartbeats_it_may(
    database_url: str, make_app: apps.MakeApp
) -> None:
    silences = {}
    for lease in (2, 300):
        app = make_app(database_url, workflows=Workflows(), WORKFLOWS_LOCK_TIMEOUT_SECS=lease)
        silences[lease] = service.lost_after(apps.runtime_of(app))

    assert silences == {2: timedelta(seconds=30), 300: timedelta(seconds=300)}


def test_what_no_lost_worker_holds_is_not_released(runtime: Runtime, clock: Clock) -> None:
    beat(runtime)
    waiting = steady.using(delay=60).spawn()
    ended = steady.spawn()
    declared.tick()
    held = claimed(runtime)
    before: list[Run] = [handle.run() for handle in (waiting, ended, held)]

    for run in before:
        with pytest.raises(RunNotLost, match=run.id):
            declared.release(run.id)
    with pytest.raises(RunChanged):
        declared.release(held.id, epoch=before[2].epoch - 1)
    with pytest.raises(RunNotFound):
        declared.release("0000")

    assert [handle.run() for handle in (waiting, ended, held)] == before


def test_a_released_run_may_be_cancelled_at_once(runtime: Runtime) -> None:
    handle = claimed(runtime)
    declared.release(handle.id)

    assert declared.cancel(handle.id).status is RunStatus.CANCELLED
    assert declared.tick() == 0
