"""Undoing what a run did, when it fails or is cancelled (R33)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from datetime import UTC

import pytest
from flask import Flask

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import RunCompensated
from flask_workflows.errors import RunFinished
from flask_workflows.runs import Step
from flask_workflows.testing import assert_replays
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock
from flask_workflows.testing import run_until_idle
from tests import apps
from tests.running import Clock
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context")

declared = Workflows()
declared.event("paid")
effects: list[str] = []
refusing: set[str] = set()


@declared.step
def reserve(what: str) -> str:
    effects.append(f"reserve {what}")
    return what


@declared.step(retry=Retry(attempts=2, backoff=Retry.constant(60)))
def give_back(what: str) -> None:
    effects.append(f"give back {what}")
    if what in refusing:
        raise OSError(f"{what} cannot be given back")


@declared.step(retry=Retry(attempts=1))
def charge() -> None:
    effects.append("charge")
    raise ValueError("declined")


def reserve_both(ctx: WorkflowContext) -> None:
    for what in ("flight", "hotel"):
        reserve(what)
        ctx.on_failure(give_back, what)


@declared.workflow
def trip(ctx: WorkflowContext) -> None:
    reserve_both(ctx)
    charge()


@declared.workflow
def waiting_trip(ctx: WorkflowContext) -> str:
    reserve_both(ctx)
    ctx.wait_for("paid")
    return "paid"


@declared.workflow
def faulty_trip(ctx: WorkflowContext) -> None:
    reserve_both(ctx)
    raise RuntimeError("a fault of the body")


@declared.workflow
def parallel_trip(ctx: WorkflowContext) -> None:
    def one(what: str) -> None:
        reserve(what)
        ctx.on_failure(give_back, what)

    ctx.map(one, ["flight", "hotel", "car"])
    charge()


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()
    refusing.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def undone(workflows: Workflows, run_id: str) -> dict[str, Step]:
    return {step.key: step for step in workflows.details(run_id).steps if step.kind == "undo"}


def test_failed_run_is_undone_in_reverse_and_then_ends(workflows: Workflows, clock: Clock) -> None:
    handle = trip.spawn()
    run_out(workflows, clock)

    assert effects == ["reserve flight", "reserve hotel", "charge", "give back hotel", "give back flight"]
    assert handle.status() is RunStatus.FAILED
    with pytest.raises(RunFailed, match="declined"):
        handle.output()
    assert {key: step.status for key, step in undone(workflows, handle.id).items()} == {
        "$undo:give_back": "completed",
        "$undo:give_back#2": "completed",
    }


def test_run_that_completes_undoes_nothing(workflows: Workflows, clock: Clock) -> None:
    handle = waiting_trip.spawn()
    workflows.tick()
    workflows.deliver("paid")
    run_out(workflows, clock)

    assert handle.output() == "paid"
    assert effects == ["reserve flight", "reserve hotel"]
    assert {step.status for step in undone(workflows, handle.id).values()} == {"pushed"}
    assert_replays(workflows, handle)


def test_cancelled_run_is_undone_then_cancelled(workflows: Workflows, clock: Clock) -> None:
    handle = waiting_trip.spawn()
    workflows.tick()
    marked = handle.cancel()
    run_out(workflows, clock)

    assert marked.cancelling
    assert handle.status() is RunStatus.CANCELLED
    assert effects == ["reserve flight", "reserve hotel", "give back hotel", "give back flight"]


def test_fault_of_the_body_is_tried_again_before_anything_is_undone(workflows: Workflows, clock: Clock) -> None:
    handle = faulty_trip.spawn()
    workflows.tick()
    first = list(effects)
    run_out(workflows, clock)

    assert first == ["reserve flight", "reserve hotel"]
    assert effects[2:] == ["give back hotel", "give back flight"]
    error = handle.run().error
    assert error is not None
    assert error.message == "a fault of the body"


def test_step_that_undoes_is_retried_and_the_others_go_on_when_it_fails(workflows: Workflows, clock: Clock) -> None:
    refusing.add("hotel")
    handle = trip.spawn()
    workflows.tick()
    between = handle.run()
    run_out(workflows, clock)

    assert (between.status, between.undoing) == (RunStatus.SLEEPING, True)
    assert between.error is not None
    assert "declined" in between.error.message
    assert effects[3:] == ["give back hotel", "give back hotel", "give back flight"]
    steps = undone(workflows, handle.id)
    assert steps["$undo:give_back#2"].status == "failed"
    assert steps["$undo:give_back#2"].attempts == 2
    assert steps["$undo:give_back"].status == "completed"
    assert handle.status() is RunStatus.FAILED


def test_undone_run_cannot_be_retried_nor_cancelled(workflows: Workflows, clock: Clock) -> None:
    refusing.add("hotel")
    handle = trip.spawn()
    workflows.tick()
    with pytest.raises(RunFinished, match="being undone"):
        handle.cancel()
    run_out(workflows, clock)

    with pytest.raises(RunCompensated, match="start a new run"):
        handle.retry()


def test_pushes_of_branches_are_undone_too(workflows: Workflows, clock: Clock) -> None:
    parallel_trip.spawn()
    run_out(workflows, clock)

    at = effects.index("charge")
    assert sorted(effects[:at]) == ["reserve car", "reserve flight", "reserve hotel"]
    assert sorted(effects[at + 1 :]) == ["give back car", "give back flight", "give back hotel"]


def test_run_whose_code_changed_is_not_undone(workflows: Workflows, clock: Clock) -> None:
    names = ["flight"]

    @workflows.workflow(name="changing_trip")
    def changing(ctx: WorkflowContext) -> None:
        reserve(names[0])
        ctx.on_failure(give_back, "flight")
        ctx.sleep(60)

    handle = changing.spawn()
    workflows.tick()
    names[0] = "train"
    run_out(workflows, clock)
    failed = handle.status()
    names[0] = "flight"
    handle.retry()
    run_out(workflows, clock)

    assert failed is RunStatus.FAILED
    assert handle.status() is RunStatus.COMPLETED
    assert effects == ["reserve flight"]


def test_what_the_code_cannot_undo_any_more_is_shown_as_failed(app: Flask, workflows: Workflows, clock: Clock) -> None:
    handle = waiting_trip.spawn()
    workflows.tick()
    with apps.runtime_of(app).engine.begin() as connection:
        steps = models.steps
        key = {"flight": "$undo:give_back", "hotel": "$undo:give_back#2"}
        connection.execute(steps.update().where(steps.c.key == key["hotel"]).values(input='{"gone": 1}'))
        connection.execute(steps.update().where(steps.c.key == key["flight"]).values(key="$undo:forgotten"))
    handle.cancel()
    run_out(workflows, clock)

    found = undone(workflows, handle.id)
    assert handle.status() is RunStatus.CANCELLED
    assert {name: step.status for name, step in found.items()} == {
        "$undo:forgotten": "failed",
        "$undo:give_back#2": "failed",
    }
    errors = [step.error.message for step in found.values() if step.error is not None]
    assert any("no step 'forgotten' is registered" in message for message in errors)
    assert len(errors) == 2


def test_only_a_declared_step_can_be_pushed(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="wrong_push")
    def wrong(ctx: WorkflowContext) -> str:
        try:
            ctx.on_failure(lambda: None)  # type: ignore[arg-type]
        except TypeError as error:
            return str(error)
        return "taken"

    handle = wrong.spawn()
    run_out(workflows, clock)

    assert (handle.output() or "").startswith(
        "ctx.on_failure() takes a step declared with @workflows.step, not <function"
    )


def test_crash_between_any_two_writes_undoes_each_once_or_again(app: Flask, workflows: Workflows) -> None:
    workflows.clock = FixedClock(datetime(2040, 1, 1, 12, tzinfo=UTC))
    engine = apps.runtime_of(app).engine
    for attempt in every_crash(workflows):
        effects.clear()
        with engine.begin() as connection:
            for table in reversed(models.metadata.sorted_tables):
                connection.execute(table.delete())
        with attempt:
            trip.spawn()
            run_until_idle(workflows)
        run_until_idle(workflows)

        runs = workflows.runs()
        if runs:
            assert [run.status for run in runs] == [RunStatus.FAILED]
            assert {"give back flight", "give back hotel"} <= set(effects)
            # Only the step under way when the process died is executed twice.
            assert len(effects) <= 6
            assert {step.status for step in undone(workflows, runs[0].id).values()} == {"completed"}
