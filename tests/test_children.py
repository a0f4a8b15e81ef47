"""Runs that start others, wait for their ends, and are cancelled with them (R14, R23, R33)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import Run
from flask_workflows import RunCancelled
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import WaitTimeout
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.errors import MisplacedCall
from flask_workflows.errors import RunFinished
from flask_workflows.errors import RunNotFound
from flask_workflows.runs import RunQuery
from flask_workflows.testing import assert_replays
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock
from flask_workflows.testing import run_until_idle
from tests import apps
from tests.processes import working
from tests.running import at_once
from tests.running import Clock
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context")

declared = Workflows()
declared.event("go")
effects: list[str] = []


@dataclass
class Receipt:
    number: int
    at: timedelta


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.step(retry=Retry(attempts=1))
def broken() -> None:
    raise ValueError("no")


@declared.workflow
def child(ctx: WorkflowContext, name: str, seconds: float = 0) -> Receipt:
    note(f"{name} begins")
    if seconds:
        ctx.sleep(seconds)
    note(f"{name} ends")
    return Receipt(len(name), timedelta(seconds=seconds))


@declared.workflow
def failing_child() -> None:
    broken()


@declared.workflow
def waiting_child(ctx: WorkflowContext) -> str:
    ctx.wait_for("go")
    return "gone"


@declared.workflow
def parent(ctx: WorkflowContext, seconds: float = 0) -> list[Any]:
    handle = child.start("one", seconds=seconds)
    receipt = handle.result()
    assert isinstance(receipt, Receipt)
    return [receipt.number, str(receipt.at)]


@declared.workflow
def grandparent(ctx: WorkflowContext, seconds: float = 0) -> list[Any]:
    return ["grand", *parent.start(seconds=seconds).result()]


@declared.workflow
def parent_of_failing() -> str:
    try:
        failing_child.start().result()
    except RunFailed as error:
        return f"{error.error_type}: {error.message}"
    return "nothing"


@declared.workflow
def strict_parent() -> None:
    failing_child.start().result()


@declared.workflow
def family(count: int) -> list[str]:
    handles = [waiting_child.start() for _ in range(count)]
    return [handle.result() for handle in handles]


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


def ids(workflows: Workflows, workflow: str, status: str | None = None) -> list[str]:
    query = RunQuery(workflow=workflow, status=None if status is None else RunStatus(status), limit=1000)
    return sorted(run.id for run in workflows.runs(query))


@pytest.mark.parametrize("seconds", [0, 60])
def test_parent_child_and_grandchild_finish_one_after_another(
    workflows: Workflows, clock: Clock, seconds: float
) -> None:
    handle = grandparent.spawn(seconds=seconds)
    run_out(workflows, clock)

    assert handle.output() == ["grand", 3, str(timedelta(seconds=seconds))]
    assert effects == ["one begins", "one ends"]
    (middle,) = ids(workflows, "parent")
    assert workflows.get(middle).parent_id == handle.id
    for run_id in (handle.id, middle):
        assert_replays(workflows, run_id)


def test_concurrency_of_one_is_enough(app: Flask, workflows: Workflows) -> None:
    with working(app, concurrency=1):
        assert grandparent.spawn(seconds=0.1).result(timeout=30) == ["grand", 3, "0:00:00.100000"]


def test_eight_parents_do_not_fill_four_threads(app: Flask, workflows: Workflows) -> None:
    handles = [grandparent.spawn(seconds=0.05) for _ in range(8)]
    with working(app, concurrency=4):
        assert [handle.result(timeout=60)[0] for handle in handles] == ["grand"] * 8


def test_waiting_parent_holds_nothing(workflows: Workflows, clock: Clock) -> None:
    handle = family.spawn(count=1)
    workflows.tick()

    run = handle.run()
    assert (run.status, run.worker, run.due_at) == (RunStatus.WAITING, None, None)


def test_b47_failure_of_a_child_is_an_error_of_its_own_kind(workflows: Workflows, clock: Clock) -> None:
    handle = parent_of_failing.spawn()
    run_out(workflows, clock)

    assert (
        handle.output() == "flask_workflows.errors.StepFailed: step 'broken' failed after 1 attempt(s): ValueError: no"
    )
    assert_replays(workflows, handle)


def test_b47_failure_of_a_child_left_uncaught_fails_the_parent_at_once(workflows: Workflows, clock: Clock) -> None:
    handle = strict_parent.spawn()
    run_out(workflows, clock)

    assert handle.status() is RunStatus.FAILED
    assert handle.run().attempts == 1
    error = handle.run().error
    assert error is not None
    assert error.short_type == "RunFailed"


@pytest.mark.parametrize(("from_step", "children"), [("$result", 1), ("$start:waiting_child", 2)])
def test_parent_is_retried_from_the_wait_for_a_child_or_from_its_start(
    workflows: Workflows, clock: Clock, from_step: str, children: int
) -> None:
    @workflows.workflow(name="asks_again")
    def asks_again() -> str:
        return waiting_child.start().result()

    def started() -> list[Run]:
        return list(workflows.runs(RunQuery(workflow="waiting_child")))

    handle = asks_again.spawn()
    workflows.tick()
    workflows.cancel(started()[0].id)
    run_out(workflows, clock)
    if from_step == "$result":
        workflows.retry(started()[0].id)
    handle.retry()
    workflows.tick()
    alone = handle.status()
    workflows.retry(handle.id, from_step=from_step)
    run_until_idle_now(workflows)
    workflows.deliver("go")
    run_until_idle_now(workflows)

    assert alone is RunStatus.FAILED
    assert handle.output() == "gone"
    assert len(started()) == children


def test_b47_cancelled_child_is_said_to_the_parent(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="asks_cancelled")
    def asks() -> str:
        try:
            return waiting_child.start().result()
        except RunCancelled as error:
            return str(error)

    handle = asks.spawn()
    workflows.tick()
    (run_id,) = ids(workflows, "waiting_child")
    workflows.cancel(run_id)
    run_out(workflows, clock)

    assert handle.output() == f"run {run_id} was cancelled, so it has no result"


def test_b47_child_in_another_workspace_is_waited_for_as_any_other(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="abroad")
    def abroad() -> list[Any]:
        awaited = child.using(workspace="elsewhere").start("one").result().number
        try:
            failing_child.using(workspace="elsewhere").start().result()
        except RunFailed as error:
            return [awaited, error.error_type]
        return []

    handle = abroad.using(workspace="here").spawn()
    run_out(workflows, clock)

    assert handle.output() == [3, "flask_workflows.errors.StepFailed"]
    assert {run.workspace for run in workflows.runs(RunQuery(workflow="child"))} == {"elsewhere"}
    assert_replays(workflows, handle)


@pytest.mark.parametrize("when", ["before", "while"])
def test_b47_child_that_is_gone_is_said_to_the_parent(
    app: Flask, workflows: Workflows, clock: Clock, when: str
) -> None:
    @workflows.workflow(name=f"asks_gone_{when}")
    def asks(ctx: WorkflowContext) -> str:
        handle = waiting_child.start()
        if when == "before":
            ctx.sleep(60)
        try:
            return handle.result()
        except RunNotFound as error:
            return str(error)

    handle = asks.spawn()
    workflows.tick()
    (run_id,) = ids(workflows, "waiting_child")
    with app.extensions["workflows"].engine.begin() as connection:
        for table in (models.waits, models.steps):
            connection.execute(table.delete().where(table.c.run_id == run_id))
        connection.execute(models.runs.delete().where(models.runs.c.id == run_id))
    workflows.prune(timedelta(days=30))
    run_out(workflows, clock)

    assert handle.output() == f"there is no run {run_id}: it was pruned, or deleted by hand"


def test_child_that_finished_long_ago_and_was_pruned_has_given_its_result(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="patient")
    def patient(ctx: WorkflowContext) -> int:
        number = child.start("early").result().number
        ctx.sleep(timedelta(days=90))
        return number

    handle = patient.spawn()
    run_until_idle_now(workflows)
    clock.move(days=60)
    assert workflows.prune(timedelta(days=30)) == 1
    run_out(workflows, clock)

    assert handle.output() == 5
    assert_replays(workflows, handle)


def run_until_idle_now(workflows: Workflows) -> None:
    while workflows.tick():
        pass


def test_time_out_is_durable_and_cancels_nothing(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="hurried")
    def hurried(ctx: WorkflowContext) -> list[str]:
        handle = waiting_child.start()
        try:
            handle.result(timeout=60)
        except WaitTimeout as error:
            ctx.sleep(1)
            return [str(error), handle.result()]
        return []

    handle = hurried.spawn()
    workflows.tick()
    clock.move(seconds=61)
    workflows.tick()
    clock.move(seconds=2)
    workflows.tick()
    (run_id,) = ids(workflows, "waiting_child")
    assert workflows.get(run_id).status is RunStatus.WAITING
    workflows.deliver("go")
    run_until_idle_now(workflows)

    assert handle.output() == [f"run {run_id} had not finished in time; it goes on", "gone"]
    assert_replays(workflows, handle)


def test_status_is_waited_for_too(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="statuses")
    def statuses() -> list[str]:
        return [failing_child.start().wait().value, child.start("x").wait().value]

    handle = statuses.spawn()
    run_out(workflows, clock)

    assert handle.output() == ["failed", "completed"]


def test_run_that_would_wait_for_itself_is_told(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="narcissus")
    def narcissus(ctx: WorkflowContext) -> str:
        try:
            workflows.handle(ctx.run_id).wait()
        except MisplacedCall as error:
            return str(error)
        return "never"

    handle = narcissus.spawn()
    workflows.tick()

    assert "a run that waits for its own end never ends" in (handle.output() or "")
    assert_replays(workflows, handle)


def test_run_that_somebody_else_started_can_be_waited_for(workflows: Workflows, clock: Clock) -> None:
    other = waiting_child.spawn()

    @workflows.workflow(name="onlooker")
    def onlooker(run_id: str) -> str:
        return str(workflows.handle(run_id).result())

    handles = [onlooker.spawn(run_id=other.id) for _ in range(2)]
    run_until_idle_now(workflows)
    workflows.deliver("go")
    run_until_idle_now(workflows)

    assert [handle.output() for handle in handles] == ["gone", "gone"]
    assert workflows.get(other.id).parent_id is None


# Cancelling --------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
def test_cancelling_a_parent_cancels_its_unfinished_children_and_theirs(workflows: Workflows) -> None:
    done = child.spawn("other")
    handle = grandparent.spawn(seconds=3_600)
    run_until_idle_now(workflows)
    handle.cancel(by=By("ana"))

    assert [workflows.get(run_id).status for run_id in ids(workflows, "parent")] == ["cancelled"]
    assert sorted(run.status for run in workflows.runs(RunQuery(workflow="child"))) == ["cancelled", "completed"]
    assert done.status() is RunStatus.COMPLETED
    with apps.runtime_of(apps_current()).engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(models.audit)) == 3
        assert connection.scalar(sa.select(sa.func.count()).select_from(models.waits)) == 0


def apps_current() -> Flask:
    from flask import current_app

    return current_app._get_current_object()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.usefixtures("clock")
def test_children_can_be_kept(workflows: Workflows) -> None:
    handle = family.spawn(count=2)
    run_until_idle_now(workflows)
    handle.cancel(cancel_children=False)

    assert len(ids(workflows, "waiting_child", "waiting")) == 2


@pytest.mark.usefixtures("clock")
def test_child_of_a_finished_child_is_left_alone(workflows: Workflows) -> None:
    @workflows.workflow(name="forgetful")
    def forgetful() -> str:
        return waiting_child.start().id

    @workflows.workflow(name="watchful")
    def watchful(ctx: WorkflowContext) -> None:
        forgetful.start().result()
        ctx.sleep(3_600)

    handle = watchful.spawn()
    run_until_idle_now(workflows)
    handle.cancel()

    assert len(ids(workflows, "waiting_child", "waiting")) == 1


@pytest.mark.usefixtures("clock")
def test_child_started_at_the_moment_of_cancelling_is_cancelled_or_never_there(
    app: Flask, workflows: Workflows
) -> None:
    for _ in range(10):
        handle = family.spawn(count=3)

        def cancel(run_id: str = handle.id) -> None:
            try:
                workflows.cancel(run_id)
            except RunFinished:
                raise AssertionError("it waits for its children, so it cannot have finished") from None

        at_once(app, lambda: workflows.tick() and None, cancel)
        run_until_idle_now(workflows)

        assert handle.status() is RunStatus.CANCELLED
        assert ids(workflows, "waiting_child", "waiting") == []
        assert ids(workflows, "waiting_child", "pending") == []


# Races and crashes -------------------------------------------------------------------------


def test_no_end_is_missed_whenever_it_comes(app: Flask, workflows: Workflows) -> None:
    handles = [family.spawn(count=5) for _ in range(10)]
    stop = threading.Event()

    def emit() -> None:
        with app.app_context():
            while not stop.is_set():
                workflows.deliver("go")
                stop.wait(0.02)

    thread = threading.Thread(target=emit)
    with working(app, concurrency=4):
        thread.start()
        try:
            assert [handle.result(timeout=60) for handle in handles] == [["gone"] * 5] * 10
        finally:
            stop.set()
            thread.join()


def test_crash_between_any_two_writes_loses_no_child_and_starts_none_twice(app: Flask, workflows: Workflows) -> None:
    workflows.clock = FixedClock(datetime(2040, 1, 1, 12, tzinfo=UTC))
    engine = apps.runtime_of(app).engine
    for attempt in every_crash(workflows):
        with engine.begin() as connection:
            for table in reversed(models.metadata.sorted_tables):
                connection.execute(table.delete())
        with attempt:
            parent.spawn()
            run_until_idle(workflows)
        run_until_idle(workflows)

        if ids(workflows, "parent"):
            assert [workflows.get(run_id).status for run_id in ids(workflows, "parent")] == ["completed"]
            assert len(ids(workflows, "child")) == 1
