"""Runs that must have finished by an instant."""

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
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Handle
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import InvalidInstant
from tests import apps
from tests.running import Clock
from tests.running import run_out

declared = Workflows()
declared.event("paid")
effects: list[str] = []
during: dict[str, Callable[[], Any]] = {}

EXCEEDED = "flask_workflows.errors.DeadlineExceeded"


@declared.step
def note(what: str) -> str:
    effects.append(what)
    if what in during:
        during.pop(what)()
    return what


@declared.step
def give_back(what: str) -> None:
    effects.append(f"back {what}")


@declared.workflow
def two(ctx: WorkflowContext) -> list[str]:
    return [note("a"), note("b")]


@declared.workflow
def naps(ctx: WorkflowContext, seconds: int = 3600) -> str:
    ctx.sleep(seconds)
    return note("awake")


@declared.workflow
def waits(ctx: WorkflowContext) -> str:
    return note("paid" if ctx.wait_for("paid") is not None else "not paid")


@declared.workflow(timeout=timedelta(minutes=10))
def bounded(ctx: WorkflowContext) -> str:
    ctx.sleep(3600)
    return note("awake")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    during.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def failure_of(handle: Handle[Any]) -> tuple[RunStatus, str | None, str | None]:
    run = handle.run()

    return run.status, run.error.type if run.error else None, run.error.kind if run.error else None


FAILED = (RunStatus.FAILED, EXCEEDED, "deadline")


@pytest.mark.usefixtures("app_context")
@pytest.mark.parametrize("sleeper", [naps, waits])
def test_suspended_run_fails_at_its_deadline(workflows: Workflows, clock: Clock, sleeper: Any) -> None:
    handle = sleeper.using(deadline=60).spawn()
    workflows.tick()
    deadline = clock.now() + timedelta(seconds=60)

    assert (handle.run().due_at, handle.run().deadline_at) == (deadline, deadline)

    clock.move(seconds=59)

    assert workflows.tick() == 0

    clock.move(seconds=1)
    workflows.tick()

    assert (failure_of(handle), effects) == (FAILED, [])
    assert "had not finished at its deadline, 2040-01-01 12:01:00 UTC" in str(handle.run().error)
    with pytest.raises(RunFailed, match="DeadlineExceeded"):
        handle.output()


@pytest.mark.usefixtures("app_context")
def test_run_that_wakes_in_time_is_not_bothered(workflows: Workflows, clock: Clock) -> None:
    handle = naps.using(deadline=60).spawn(30)
    run_out(workflows, clock)

    assert handle.output() == "awake"


@pytest.mark.usefixtures("app_context")
def test_event_in_time_counts_and_one_too_late_does_not(workflows: Workflows, clock: Clock) -> None:
    early, late = waits.using(deadline=60).spawn(), waits.using(deadline=30).spawn()
    workflows.tick()
    clock.move(seconds=40)
    workflows.deliver("paid")
    workflows.tick()

    assert early.output() == "paid"
    assert failure_of(late) == FAILED


@pytest.mark.usefixtures("app_context")
def test_start_that_is_delayed_beyond_the_deadline_is_never_executed(workflows: Workflows, clock: Clock) -> None:
    handle = two.using(delay=600, deadline=60).spawn()

    assert handle.run().due_at == clock.now() + timedelta(seconds=60)

    run_out(workflows, clock)

    assert (failure_of(handle), effects) == (FAILED, [])


@pytest.mark.usefixtures("app_context")
def test_no_step_begins_after_the_deadline(workflows: Workflows, clock: Clock) -> None:
    handle = two.using(deadline=60).spawn()
    during["a"] = lambda: clock.move(seconds=61)
    workflows.tick()

    assert (failure_of(handle), effects) == (FAILED, ["a"])
    assert [step.status for step in workflows.details(handle.id).steps] == ["completed"]


@pytest.mark.usefixtures("app_context")
def test_body_that_ends_late_has_completed(workflows: Workflows, clock: Clock) -> None:
    handle = two.using(deadline=60).spawn()
    during["b"] = lambda: clock.move(seconds=61)
    workflows.tick()

    assert handle.output() == ["a", "b"]


@pytest.mark.usefixtures("app_context")
def test_deadline_in_branches_lets_those_under_way_be_stored(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="branched")
    def branched(ctx: WorkflowContext) -> list[list[str]]:
        return ctx.map(lambda name: [note(f"{name}1"), note(f"{name}2")], ["x", "y"], max_workers=1)

    handle = branched.using(deadline=60).spawn()
    during["x2"] = lambda: clock.move(seconds=61)
    workflows.tick()

    assert (failure_of(handle), effects) == (FAILED, ["x1", "x2"])
    assert "1.0/note#2" in [step.key for step in workflows.details(handle.id).steps]


@pytest.mark.usefixtures("app_context")
def test_what_was_done_is_undone_without_any_deadline(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="holds")
    def holds(ctx: WorkflowContext) -> None:
        ctx.on_failure(give_back, "seat")
        ctx.sleep(3600)

    handle = holds.using(deadline=60).spawn()
    run_out(workflows, clock)

    assert (failure_of(handle), effects) == (FAILED, ["back seat"])


@pytest.mark.usefixtures("app_context")
def test_earlier_of_deadline_and_time_out_counts(workflows: Workflows, clock: Clock) -> None:
    def after(handle: Handle[Any]) -> timedelta:
        deadline = handle.run().deadline_at
        assert deadline is not None

        return deadline - clock.now()

    assert after(bounded.spawn()) == timedelta(minutes=10)
    assert after(bounded.using(deadline=60).spawn()) == timedelta(seconds=60)
    assert after(bounded.using(deadline=timedelta(hours=1)).spawn()) == timedelta(minutes=10)
    assert after(bounded.using(deadline=clock.now() + timedelta(hours=1)).spawn()) == timedelta(minutes=10)
    assert after(bounded.using(deadline=clock.now() + timedelta(minutes=1)).spawn()) == timedelta(minutes=1)
    assert after(two.using(key="k").using(deadline=clock.now() + timedelta(hours=1)).spawn()) == timedelta(hours=1)
    assert two.spawn().run().deadline_at is None


@pytest.mark.usefixtures("app_context")
def test_many_runs_started_together_have_their_deadline(workflows: Workflows, db: SQLAlchemy, clock: Clock) -> None:
    handles = bounded.start_many([{}, {}])
    db.session.commit()
    run_out(workflows, clock)

    assert [failure_of(handle) for handle in handles] == [FAILED, FAILED]


@pytest.mark.usefixtures("app_context")
def test_child_misses_its_deadline_and_the_parent_goes_on(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="parent")
    def parent(ctx: WorkflowContext) -> str:
        try:
            return str(bounded.start().result())
        except RunFailed as error:
            return error.error_type

    handle = parent.spawn()
    run_out(workflows, clock)

    assert handle.output() == EXCEEDED


@pytest.mark.usefixtures("app_context")
def test_timer_moved_beyond_the_deadline_ends_there(workflows: Workflows, clock: Clock) -> None:
    handle = naps.using(deadline=60).spawn(30)
    workflows.tick()
    moved = workflows.wake(handle.id, at=clock.now() + timedelta(hours=1))

    assert moved.due_at == moved.deadline_at

    run_out(workflows, clock)

    assert failure_of(handle) == FAILED


@pytest.mark.usefixtures("app_context")
def test_paused_run_meets_its_deadline_once_it_is_resumed(workflows: Workflows, clock: Clock) -> None:
    handle = naps.using(deadline=60).spawn()
    workflows.tick()
    handle.pause()
    clock.move(seconds=90)

    assert workflows.tick() == 0

    handle.resume()
    workflows.tick()

    assert failure_of(handle) == FAILED


@pytest.mark.usefixtures("app_context")
def test_retry_takes_the_deadline_away_and_a_fork_has_the_workflows(workflows: Workflows, clock: Clock) -> None:
    handle = bounded.using(deadline=60).spawn()
    workflows.tick()
    fork = workflows.fork(handle.id, "$sleep")

    assert fork.run().deadline_at == clock.now() + timedelta(minutes=10)

    clock.move(seconds=60)
    workflows.tick()
    retried = handle.retry()

    assert retried.deadline_at is None

    run_out(workflows, clock)

    assert (handle.output(), failure_of(fork)) == ("awake", FAILED)


@pytest.mark.parametrize(
    ("deadline", "refused"),
    [
        (0, InvalidDuration),
        (timedelta(0), InvalidDuration),
        (-1, InvalidDuration),
        (float("nan"), InvalidDuration),
        (datetime(2040, 1, 1), InvalidInstant),  # noqa: DTZ001
    ],
)
def test_deadlines_that_make_no_sense_are_refused(deadline: Any, refused: type[Exception]) -> None:
    with pytest.raises(refused):
        two.using(deadline=deadline)


def test_time_out_that_makes_no_sense_is_refused_where_it_is_declared() -> None:
    with pytest.raises(InvalidDuration, match=r"the timeout of the workflow .*nothing at .*test_deadlines.py"):

        @Workflows().workflow(timeout=0)
        def nothing(ctx: WorkflowContext) -> None: ...


def test_command_line_starts_with_a_deadline(app: Flask, workflows: Workflows, runner: FlaskCliRunner) -> None:
    started = runner.invoke(args=["workflows", "start", "two", "--deadline", "2h"])

    assert started.exit_code == 0
    with app.app_context():
        run = workflows.get(started.output.strip())

        assert run.deadline_at is not None
        assert run.deadline_at - run.created_at == timedelta(hours=2)
        assert run.created_at.tzinfo is UTC
