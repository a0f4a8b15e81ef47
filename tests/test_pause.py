"""Pausing one run and resuming it: whatever it is at, nothing new begins and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskCliRunner

from flask_workflows import Handle
from flask_workflows import Retry
from flask_workflows import Run
from flask_workflows import RunChanged
from flask_workflows import RunFinished
from flask_workflows import RunNotPaused
from flask_workflows import RunStatus
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.runtime import current_runtime
from flask_workflows.store import Scope
from flask_workflows.store.reading import list_audit
from flask_workflows.store.reading import reading
from flask_workflows.testing import assert_replays
from flask_workflows.testing import Crash
from flask_workflows.testing import FixedClock
from tests import apps
from tests.running import at_once
from tests.running import Clock
from tests.running import run_out

declared = Workflows()
declared.event("paid")
effects: list[str] = []
#: What a step does besides, by its argument.
during: dict[str, Callable[[], Any]] = {}


def in_order(*calls: Callable[[], object]) -> Callable[[], None]:
    """What makes these calls."""

    def make_them() -> None:
        for call in calls:
            call()

    return make_them


@declared.step(retry=Retry(attempts=1))
def note(what: str) -> str:
    effects.append(what)
    if what in during:
        during.pop(what)()
    return what


@declared.step
def give_back(what: str) -> None:
    effects.append(f"back {what}")
    if what in during:
        during.pop(what)()


@declared.workflow
def two(ctx: WorkflowContext) -> list[str]:
    return [note("a"), note("b")]


@declared.workflow
def naps(ctx: WorkflowContext) -> str:
    ctx.sleep(60)
    return note("awake")


@declared.workflow
def waits(ctx: WorkflowContext, seconds: int | None = None) -> str:
    found = ctx.wait_for("paid", timeout=seconds)
    return note("paid" if found is not None else "not paid")


@declared.workflow
def bought(ctx: WorkflowContext) -> None:
    ctx.on_failure(give_back, "seat")
    ctx.on_failure(give_back, "meal")
    note("a")
    raise ValueError("sold out")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    during.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def audit_of(run: Run) -> list[tuple[str, str | None, str | None]]:
    with reading(current_runtime().engine) as connection:
        entries = list_audit(connection, run_id=run.id).entries

    return [(entry.action, entry.before, entry.after) for entry in reversed(entries)]


# Runs that nobody executes -----------------------------------------------------------------


@pytest.mark.usefixtures("app_context")
def test_pending_run_is_executed_only_once_it_is_resumed(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    paused = handle.pause(by=By("ana"))
    workflows.tick()

    assert (paused.status, paused.paused, paused.due_at, effects) == (RunStatus.PENDING, True, None, [])
    assert paused.paused_at == clock.now()

    resumed = handle.resume(by=By("ana"))
    workflows.tick()

    assert (resumed.paused, resumed.paused_due_at, handle.output()) == (False, None, ["a", "b"])
    assert resumed.epoch == paused.epoch + 1
    assert audit_of(resumed) == [("pause", "pending", "paused"), ("resume", "paused", "pending")]


@pytest.mark.usefixtures("app_context")
@pytest.mark.parametrize("seconds_paused", [30, 90])
def test_sleep_goes_on_to_its_time_or_ends_at_once(workflows: Workflows, clock: Clock, seconds_paused: int) -> None:
    handle = naps.spawn()
    workflows.tick()
    due_at = handle.run().due_at
    handle.pause()
    clock.move(seconds=seconds_paused)

    assert workflows.tick() == 0

    resumed = handle.resume()
    workflows.tick()

    assert resumed.due_at == due_at
    assert effects == ([] if seconds_paused == 30 else ["awake"])

    run_out(workflows, clock)

    assert handle.output() == "awake"


@pytest.mark.usefixtures("app_context")
def test_delayed_start_is_paused_like_a_sleep(workflows: Workflows, clock: Clock) -> None:
    handle = two.using(delay=60).spawn()
    handle.pause()
    clock.move(seconds=90)

    assert workflows.tick() == 0

    handle.resume()
    run_out(workflows, clock)

    assert handle.output() == ["a", "b"]


@pytest.mark.usefixtures("app_context")
@pytest.mark.parametrize("seconds", [None, 60])
def test_event_that_comes_during_the_pause_counts_after_it(
    workflows: Workflows, clock: Clock, seconds: int | None
) -> None:
    handle = waits.spawn(seconds)
    workflows.tick()
    handle.pause()
    workflows.deliver("paid")
    workflows.tick()
    clock.move(seconds=90)
    workflows.tick()

    assert (handle.run().paused, effects) == (True, [])

    handle.resume()
    workflows.tick()

    assert handle.output() == "paid"


@pytest.mark.usefixtures("app_context")
def test_time_out_that_passes_during_the_pause_counts_after_it(workflows: Workflows, clock: Clock) -> None:
    handle = waits.spawn(60)
    workflows.tick()
    handle.pause()
    clock.move(seconds=90)

    assert workflows.tick() == 0

    handle.resume()
    workflows.tick()

    assert handle.output() == "not paid"


@pytest.mark.usefixtures("app_context")
def test_wait_without_a_time_out_waits_on_when_resumed(workflows: Workflows, clock: Clock) -> None:
    handle = waits.spawn()
    workflows.tick()
    handle.pause()
    resumed = handle.resume()

    assert (resumed.status, resumed.due_at, workflows.tick()) == (RunStatus.WAITING, None, 0)

    workflows.deliver("paid")
    workflows.tick()

    assert handle.output() == "paid"


@pytest.mark.usefixtures("app_context")
def test_timer_of_a_paused_run_can_be_moved(workflows: Workflows, clock: Clock) -> None:
    handle = naps.spawn()
    workflows.tick()
    handle.pause()
    workflows.wake(handle.id)

    assert workflows.tick() == 0
    assert handle.run().paused_due_at == clock.now()

    handle.resume()
    workflows.tick()

    assert handle.output() == "awake"


@pytest.mark.usefixtures("app_context")
def test_run_that_was_claimed_and_not_begun_is_paused_at_once(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    runtime = current_runtime()
    (claimed,) = runtime.store.claim(Scope.of(runtime.registry.ranges()), "w", 1, begin=False)
    paused = handle.pause()

    assert (paused.worker, paused.paused_due_at, paused.epoch) == (None, clock.now(), claimed.epoch + 1)

    handle.resume()
    workflows.tick()

    assert handle.output() == ["a", "b"]


# Runs that are executed --------------------------------------------------------------------


@pytest.mark.usefixtures("app_context")
def test_step_under_way_is_stored_and_the_next_one_not_begun(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    during["a"] = in_order(lambda: handle.pause(by=By("ana")), lambda: clock.move(seconds=2))
    workflows.tick()
    paused = handle.run()

    assert (paused.status, paused.paused, paused.due_at, paused.worker) == (RunStatus.PENDING, True, None, None)
    assert audit_of(paused) == [("pause", "running", "pausing")]
    assert [step.status for step in workflows.details(handle.id).steps] == ["completed"]

    handle.resume()
    workflows.tick()

    assert (handle.output(), effects) == (["a", "b"], ["a", "b"])
    assert_replays(workflows, handle)


@pytest.mark.usefixtures("app_context")
def test_run_that_suspends_before_it_sees_the_mark_is_paused_all_the_same(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="unseen")
    def unseen(ctx: WorkflowContext) -> str:
        if not workflows.get(ctx.run_id).attempts and not effects:
            effects.append("pause")
            workflows.pause(ctx.run_id)
        ctx.sleep(60)
        return "slept"

    handle = unseen.spawn()
    workflows.tick()
    paused = handle.run()

    assert (paused.status, paused.due_at, paused.paused) == (RunStatus.SLEEPING, None, True)
    assert paused.paused_due_at == clock.now() + timedelta(seconds=60)

    clock.move(seconds=90)

    assert workflows.tick() == 0

    handle.resume()
    run_out(workflows, clock)

    assert handle.output() == "slept"


@pytest.mark.usefixtures("app_context")
def test_run_that_comes_to_its_end_has_ended(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    during["b"] = handle.pause
    workflows.tick()
    run = handle.run()

    assert (run.status, run.paused, handle.output()) == (RunStatus.COMPLETED, False, ["a", "b"])
    with pytest.raises(RunNotPaused, match="is completed, and not paused"):
        handle.resume()


@pytest.mark.usefixtures("app_context")
def test_run_resumed_before_it_stopped_goes_on(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    during["a"] = in_order(handle.pause, handle.resume, lambda: clock.move(seconds=2))

    assert workflows.tick() == 1
    assert handle.output() == ["a", "b"]


@pytest.mark.usefixtures("app_context")
def test_branches_store_what_they_have_done(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="branched")
    def branched(ctx: WorkflowContext) -> list[list[str]]:
        return ctx.map(lambda name: [note(f"{name}1"), note(f"{name}2")], ["x", "y", "z"], max_workers=1)

    handle = branched.spawn()
    during["y1"] = in_order(handle.pause, lambda: clock.move(seconds=2))
    workflows.tick()

    assert (handle.run().paused, effects) == (True, ["x1", "x2", "y1"])

    handle.resume()
    workflows.tick()

    assert handle.output() == [["x1", "x2"], ["y1", "y2"], ["z1", "z2"]]
    assert effects == ["x1", "x2", "y1", "y2", "z1", "z2"]


@pytest.mark.usefixtures("app_context")
def test_undoing_is_paused_between_its_steps(workflows: Workflows, clock: Clock) -> None:
    handle = bought.spawn()
    during["meal"] = in_order(handle.pause, lambda: clock.move(seconds=2))
    run_out(workflows, clock)
    paused = handle.run()

    assert (paused.paused, paused.undoing, effects[-1]) == (True, True, "back meal")
    assert paused.error is not None

    handle.resume()
    run_out(workflows, clock)

    assert (handle.status(), effects.count("back meal"), effects[-1]) == (RunStatus.FAILED, 1, "back seat")


@pytest.mark.usefixtures("app_context")
def test_lost_worker_of_a_run_to_be_paused_is_counted_and_nothing_is_executed(
    workflows: Workflows, clock: Clock
) -> None:
    handle = two.spawn()
    runtime = current_runtime()
    runtime.store.claim(Scope.of(runtime.registry.ranges()), "w", 1)
    handle.pause()
    clock.move(minutes=5)

    assert workflows.tick() == 1

    run = handle.run()

    assert (run.paused, run.due_at, run.attempts, run.losses, effects) == (True, None, 1, 1, [])

    handle.resume()
    run_out(workflows, clock)

    assert handle.output() == ["a", "b"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.usefixtures("app_context")
def test_death_while_it_pauses_loses_nothing(workflows: Workflows, number: int, when: Any) -> None:
    clock = workflows.clock = FixedClock(datetime(2040, 1, 1, tzinfo=UTC))
    handle = two.spawn()
    during["a"] = in_order(handle.pause, lambda: clock.advance(2))
    with Crash(workflows, number, when):
        workflows.tick()
    workflows.tick()
    run = handle.run()
    if run.paused:
        assert "b" not in effects
        handle.resume()
    clock.advance(60)
    workflows.tick()

    assert handle.output() == ["a", "b"]
    assert effects.count("b") == 1


# Other actions -----------------------------------------------------------------------------


@pytest.mark.usefixtures("app_context")
def test_pausing_twice_is_one_pause(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    first = handle.pause(by=By("ana"))
    clock.move(seconds=5)

    assert handle.pause(by=By("bob")) == first
    assert len(audit_of(first)) == 1


@pytest.mark.usefixtures("app_context")
def test_runs_that_cannot_be_paused_or_resumed_are_told_apart(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    with pytest.raises(RunNotPaused, match="is pending, and not paused: there is nothing to resume"):
        handle.resume()
    with pytest.raises(RunChanged):
        workflows.pause(handle.id, epoch=7)
    handle.pause()
    for act in (workflows.resume, workflows.pause):
        with pytest.raises(RunChanged):
            act(handle.id, epoch=7)
    handle.cancel()
    with pytest.raises(RunFinished, match="is cancelled: it cannot be paused"):
        handle.pause()


@pytest.mark.usefixtures("app_context")
def test_run_that_is_being_cancelled_cannot_be_paused(workflows: Workflows, clock: Clock) -> None:
    refused: list[str] = []

    def cancel_then_pause() -> None:
        handle.cancel()
        try:
            handle.pause()
        except RunFinished as error:
            refused.append(str(error))
        clock.move(seconds=2)

    handle = two.spawn()
    during["a"] = cancel_then_pause
    workflows.tick()

    assert refused == [f"run {handle.id} is being cancelled: it cannot be paused"]
    assert handle.status() is RunStatus.CANCELLED


@pytest.mark.usefixtures("app_context")
def test_cancelling_takes_the_pause_away(workflows: Workflows, clock: Clock) -> None:
    sleeping = naps.spawn()
    workflows.tick()
    sleeping.pause()
    ended = sleeping.cancel()

    assert (ended.status, ended.paused, ended.paused_due_at) == (RunStatus.CANCELLED, False, None)

    @workflows.workflow(name="holds")
    def holds(ctx: WorkflowContext) -> None:
        ctx.on_failure(give_back, "room")
        ctx.sleep(60)

    holding = holds.spawn()
    workflows.tick()
    holding.pause()
    holding.cancel()
    run_out(workflows, clock)

    assert (holding.status(), effects) == (RunStatus.CANCELLED, ["back room"])


@pytest.mark.usefixtures("app_context")
def test_executed_run_that_was_paused_then_cancelled_ends(workflows: Workflows, clock: Clock) -> None:
    handle = two.spawn()
    during["a"] = in_order(handle.pause, handle.cancel, lambda: clock.move(seconds=2))
    workflows.tick()
    run = handle.run()

    assert (run.status, run.paused, effects) == (RunStatus.CANCELLED, False, ["a"])


@pytest.mark.parametrize("round", range(5))
def test_opposite_actions_at_once_leave_one_of_two_states(
    app: Flask, workflows: Workflows, clock: Clock, round: int
) -> None:
    with app.app_context():
        handle = naps.spawn()
        workflows.tick()

    def tolerant(act: Callable[[Handle[Any]], Run]) -> Callable[[], str]:
        def call() -> str:
            try:
                return str(act(handle).status)
            except (RunFinished, RunNotPaused, RunChanged) as error:
                return type(error).__name__

        return call

    at_once(app, tolerant(Handle.pause), tolerant(Handle.cancel), tolerant(Handle.resume), tolerant(Handle.pause))
    with app.app_context():
        run = handle.run()

        assert (run.status, run.paused) == (RunStatus.CANCELLED, False)


@pytest.mark.usefixtures("app_context")
def test_key_of_a_paused_run_stays_taken(workflows: Workflows, clock: Clock) -> None:
    handle = two.using(key="k").spawn()
    handle.pause()

    assert two.using(key="k").spawn().id == handle.id


@pytest.mark.usefixtures("app_context")
def test_parent_waits_for_a_paused_child(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="parent")
    def parent(ctx: WorkflowContext) -> list[str]:
        child = two.start()
        during.setdefault("a", in_order(lambda: workflows.pause(child.id), lambda: clock.move(seconds=2)))
        found: list[str] = child.result()
        return found

    handle = parent.spawn()
    workflows.tick()
    (child,) = [run for run in workflows.runs() if run.parent_id == handle.id]

    assert (child.paused, handle.status()) == (True, RunStatus.WAITING)

    workflows.resume(child.id)
    run_out(workflows, clock)

    assert handle.output() == ["a", "b"]


def test_command_line_pauses_and_resumes(app: Flask, workflows: Workflows, runner: FlaskCliRunner) -> None:
    with app.app_context():
        handle = two.spawn()
    paused = runner.invoke(args=["workflows", "pause", handle.id, "--reason", "the bank is down"])
    shown = runner.invoke(args=["workflows", "show", handle.id])
    resumed = runner.invoke(args=["workflows", "resume", handle.id])
    again = runner.invoke(args=["workflows", "resume", handle.id])

    assert (paused.exit_code, resumed.exit_code) == (0, 0)
    assert "paused" in paused.output
    assert "nothing of it is executed until it is resumed" in shown.output
    assert again.exit_code == 1
    assert "not paused: there is nothing to resume" in again.output
    with app.app_context():
        assert audit_of(service.get(current_runtime(), handle.id)) == [
            ("pause", "pending", "paused"),
            ("resume", "paused", "pending"),
        ]
