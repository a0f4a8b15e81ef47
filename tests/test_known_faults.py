"""Faults that other projects reported, tried here: those that no other module is about. The ids name them."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from flask import current_app
from flask import Flask
from flask.testing import FlaskCliRunner

from flask_workflows import EventMatch
from flask_workflows import Retry
from flask_workflows import run_failed
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import KeyTaken
from flask_workflows.names import new_id
from flask_workflows.runs import RunQuery
from flask_workflows.testing import assert_replays
from tests import apps
from tests import busy_app
from tests.processes import eventually
from tests.processes import Fleet
from tests.processes import unfinished
from tests.processes import waiting
from tests.processes import working
from tests.running import Clock
from tests.running import run_out

declared = Workflows()
declared.event("go")
effects: list[str] = []


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.step(retry=Retry(attempts=1))
def broken() -> None:
    raise OSError("down")


@declared.workflow
def one() -> str:
    return note("one")


@declared.workflow
def other() -> str:
    return note("other")


@declared.workflow
def failing() -> None:
    broken()


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()

    yield make_app(database_url, workflows=declared, WORKFLOWS_POLL_INTERVAL_MS=50)

    declared.clock = None


# State, keys -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("app_context", "clock")
def test_b28_id_of_a_run_is_not_taken_for_one_of_another_workflow(app: Flask, workflows: Workflows) -> None:
    runtime, run_id = apps.runtime_of(app), new_id()
    first = service.start(runtime, "one", {}, run_id=run_id)
    again = service.start(runtime, "one", {}, run_id=run_id)
    with pytest.raises(KeyTaken, match=f"{run_id} is one of 'one'"):
        service.start(runtime, "other", {}, run_id=run_id)
    workflows.tick()

    assert (first, again) == ((run_id, True), (run_id, False))
    assert workflows.handle(run_id).output() == "one"
    assert effects == ["one"]


@pytest.mark.usefixtures("app_context")
def test_b122_handler_of_failures_that_starts_the_same_and_raises_is_called_once_for_each(
    app: Flask, workflows: Workflows, clock: Clock
) -> None:
    failed: list[str] = []

    def start_again(sender: Flask, run_id: str, **values: Any) -> None:
        failed.append(run_id)
        if len(failed) == 1:
            failing.using(key="k").spawn()
        raise ValueError("the handler fails too")

    first = failing.using(key="k").spawn()
    with run_failed.connected_to(start_again, app):
        run_out(workflows, clock)

    runs = workflows.runs()
    assert [run.status for run in runs] == [RunStatus.FAILED] * 2
    assert sorted(failed) == sorted(run.id for run in runs)
    assert failed[0] == first.id


@pytest.mark.usefixtures("app_context")
def test_b122_step_that_undoes_by_starting_the_same_starts_none(workflows: Workflows, clock: Clock) -> None:
    held: list[bool] = []

    @workflows.step(name="start-again", retry=Retry(attempts=1))
    def start_again() -> None:
        held.append(circular.using(key="k").spawn().created)
        raise OSError("and fails too")

    @workflows.workflow(name="circular")
    def circular(ctx: WorkflowContext) -> None:
        ctx.on_failure(start_again)
        broken()

    handle = circular.using(key="k").spawn()
    run_out(workflows, clock)

    assert held == [False]
    assert [run.id for run in workflows.runs()] == [handle.id]
    assert handle.status() is RunStatus.FAILED


def test_b139_paused_runs_stay_paused_through_restarts_of_their_workers(busy: Flask, fleet: Fleet) -> None:
    quick: dict[str, Any] = {"WORKFLOWS_POLL_INTERVAL_MS": 50}
    with busy.app_context():
        runs = [
            busy_app.one.spawn(),
            busy_app.one.using(delay=0.2).spawn(),
            busy_app.napping.spawn(0.2),
            busy_app.everything.spawn(),
        ]
        for run in runs[:2]:
            run.pause()
        fleet.start(**quick)
        for run in runs[2:]:
            eventually(lambda run=run: run.status() is RunStatus.SLEEPING)  # type: ignore[misc]
            run.pause()
        before = {entry for entry in fleet.journal() if entry.run in {run.id for run in runs}}
        restarted = [fleet.start(**quick) for _ in range(2)]
        assert fleet.processes[0].terminate() == 0
        for worker in restarted:
            eventually(worker.serves, within=60)
        beside = busy_app.one.spawn()
        eventually(lambda: beside.status() is RunStatus.COMPLETED)
        for _ in waiting(1):
            pass

        assert {entry for entry in fleet.journal() if entry.run in {run.id for run in runs}} == before
        assert all(run.run().paused for run in runs)
    command = FlaskCliRunner(busy)
    for run in runs[:3]:
        assert command.invoke(args=["workflows", "resume", run.id]).exit_code == 0
    eventually(lambda: len(unfinished(busy)) == 1, within=30)
    with busy.app_context():
        assert [run.status() for run in runs[:3]] == [RunStatus.COMPLETED] * 3


# Replays -------------------------------------------------------------------------------------------


def test_b40_runs_woken_by_events_and_time_outs_at_once_replay(app: Flask, workflows: Workflows) -> None:
    @workflows.workflow(name="bursts")
    def bursts(ctx: WorkflowContext, order: int) -> list[str]:
        said = []
        for number in range(3):
            happened = ctx.wait_any([EventMatch("go", {"order": order}), EventMatch("go", {"all": True})], timeout=0.1)
            for _ in range(2 if happened is None else 1 + happened.number):
                said.append(note(f"{order} {number}"))
        return said

    done = threading.Event()

    def deliver() -> None:
        with app.app_context():
            while not done.is_set():
                for order in range(0, 40, 7):
                    workflows.deliver("go", {"order": order})
                workflows.deliver("go", {"all": True})
                time.sleep(0.02)

    with app.app_context():
        handles = bursts.start_many([{"order": order} for order in range(40)])
        app.extensions["sqlalchemy"].session.commit()
        thread = threading.Thread(target=deliver)
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(working(app, concurrency=2))
            thread.start()
            try:
                said = [handle.result(timeout=120) for handle in handles]
            finally:
                done.set()
                thread.join()
        for handle in handles:
            assert_replays(workflows, handle)

    assert sorted(what for words in said for what in words) == sorted(effects)


@pytest.mark.usefixtures("app_context")
def test_b153_results_of_branches_are_in_order_though_the_first_is_the_last_to_finish(
    workflows: Workflows, clock: Clock
) -> None:
    second_is_done = threading.Event()

    @workflows.step(name="slow-first")
    def slow_first(number: int) -> int:
        if number:
            second_is_done.set()
        else:
            assert second_is_done.wait(30)
        return number

    @workflows.workflow(name="as-they-come")
    def as_they_come(ctx: WorkflowContext) -> list[str]:
        fed = [note(f"after {number}") for number in ctx.map(slow_first, range(2))]
        ctx.sleep(60)
        return [*fed, note("last")]

    handle = as_they_come.spawn()
    run_out(workflows, clock)

    assert handle.output() == ["after 0", "after 1", "last"]
    assert effects == ["after 0", "after 1", "last"]
    assert_replays(workflows, handle)


def test_b131_async_steps_survive_the_collector(app: Flask, workflows: Workflows) -> None:
    def run_in_a_loop(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: asyncio.run(function(*args, **kwargs))

    app.async_to_sync = run_in_a_loop  # type: ignore[method-assign, assignment]

    @workflows.step(name="wait-a-little")
    async def wait_a_little(number: int) -> int:
        await asyncio.gather(*[asyncio.create_task(asyncio.sleep(0.001)) for _ in range(3)])
        return number

    @workflows.workflow(name="asynchronous")
    def asynchronous(number: int) -> int:
        awaited: Any = wait_a_little(number)
        return int(awaited)

    done = threading.Event()

    def collect() -> None:
        while not done.wait(0.05):
            gc.collect()

    thread = threading.Thread(target=collect)
    with app.app_context():
        handles = asynchronous.start_many([{"number": number} for number in range(30)])
        app.extensions["sqlalchemy"].session.commit()
        # The collector is to look at what this test makes, not at all that the tests before it left.
        gc.freeze()
        thread.start()
        try:
            with working(app, concurrency=4):
                assert [handle.result(timeout=120) for handle in handles] == list(range(30))
        finally:
            done.set()
            thread.join()
            gc.unfreeze()


# Forks ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("app_context")
def test_b50_fork_at_any_call_is_as_its_run_was_up_to_there(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="forked")
    def forked(ctx: WorkflowContext) -> list[Any]:
        said: list[Any] = [note("first"), ctx.patched("tips")]
        clock.move(seconds=1)
        ctx.set("colour", "red")
        clock.move(seconds=1)
        said.append(ctx.wait_for("go").payload)
        said.append(one.start().result())
        ctx.sleep(60)
        letter = ctx.receive("letter", timeout=60)
        said.append(None if letter is None else letter.payload)
        return [*said, note("last")]

    handle = forked.spawn()
    workflows.tick()
    workflows.deliver("go", {"number": 1})
    handle.send("letter", "read")
    app_session_commit()
    run_out(workflows, clock)
    assert handle.output() == ["first", True, {"number": 1}, "one", "read", "last"]

    for step in workflows.details(handle.id).steps:
        fork = workflows.fork(handle.id, step.key)
        run = fork.run()
        assert (run.forked_from, run.version) == (handle.id, 1)
        assert fork.get("colour") == (None if step.position <= 2 else "red"), step.key
        fork.send("letter", "read")
        app_session_commit()
        workflows.tick()
        workflows.deliver("go", {"number": 1})
        run_out(workflows, clock)

        assert fork.output() == handle.output(), step.key
        assert fork.get("colour") == "red", step.key
        assert_replays(workflows, fork)
    forks = [run.id for run in workflows.runs(RunQuery(workflow="forked")) if run.forked_from == handle.id]
    assert len(forks) == len(workflows.details(handle.id).steps)


def app_session_commit() -> None:
    current_app.extensions["sqlalchemy"].session.commit()
