"""Steps that take longer than they may: the attempt fails, its call goes on and counts no more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from flask.testing import FlaskCliRunner
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import current_run
from flask_workflows import Handle
from flask_workflows import Retry
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import step_failed
from flask_workflows import StepFailed
from flask_workflows import StepTimeout
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import DefinitionError
from flask_workflows.runs import Step
from flask_workflows.testing import assert_replays
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock
from flask_workflows.testing import run_until_idle
from tests import apps
from tests.apps import runtime_of
from tests.pages import text_of
from tests.processes import eventually
from tests.processes import execute
from tests.processes import outsider
from tests.processes import rows
from tests.running import at_once
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import on_postgresql
from tests.running import Order
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

#: Five seconds between two attempts, so that the leases outlast them.
TWICE = Retry(attempts=2, backoff=Retry.constant(5))


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(database_url, db=make_orders_db())


class Call:
    """The inside of a step whose first call is held until the test lets it go on."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self, then: Callable[[], Any] = lambda: None) -> Any:
        number = sum(line.startswith("begin") for line in self.log) + 1
        self.log.append(f"begin {number}")
        if number == 1:
            self.entered.set()
            assert self.released.wait(60)
        try:
            return then()
        finally:
            self.log.append(f"end {number}")


@contextmanager
def ticking(app: Flask, call: Call) -> Iterator[threading.Thread]:
    """Execute what is due on a thread, which is in the held call; all of it is done when the block is left."""

    def tick() -> None:
        with app.app_context():
            apps.workflows_of(app).tick()

    thread = threading.Thread(target=tick, name="ticks")
    thread.start()
    try:
        assert call.entered.wait(60)
        yield thread
    finally:
        call.released.set()
        thread.join(60)

    assert not thread.is_alive()


def step_of(workflows: Workflows, handle: Handle[Any], name: str) -> Step | None:
    return next((step for step in workflows.details(handle.id).steps if step.key == name), None)


def await_status(workflows: Workflows, handle: Handle[Any], name: str, status: str) -> Step:
    """Wait until that is what is stored of the step."""

    def look() -> Step | None:
        step = step_of(workflows, handle, name)
        return step if step is not None and step.status == status else None

    found = eventually(look)
    assert found is not None

    return found


def write_order(db: SQLAlchemy, note: str) -> str:
    db.session.add(Order(note=note))
    db.session.flush()

    return note


# What becomes of an attempt ------------------------------------------------------------------


def test_b103_call_that_takes_too_long_counts_no_more_and_the_next_attempt_waits_for_it(
    app: Flask, workflows: Workflows, db: SQLAlchemy, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call()

    @workflows.step(timeout=1, transactional=True, retry=TWICE)
    def book() -> str:
        return str(call(lambda: write_order(db, "booked")))

    @workflows.workflow
    def trip() -> str:
        return book()

    handle = trip.spawn()
    with caplog.at_level(logging.WARNING, "flask_workflows"), ticking(app, call):
        clock.move(seconds=1)
        step = await_status(workflows, handle, "book", "retrying")
        run = handle.run()

        assert run is not None
        assert run.status is RunStatus.RUNNING
        assert step.attempts == 1
        assert step.error is not None
        assert step.error.type == "flask_workflows.errors.StepTimeout"
        assert step.error.message.startswith("took longer than its time-out of 1 s; the run waits for its call, in '")
        # Where it hangs.
        assert "assert self.released.wait(60)" in str(step.error.traceback)
        assert step.due_at == clock.now() + timedelta(seconds=5)

        # Due by now, and nobody else may have it.
        clock.move(seconds=6)
        assert workflows.tick() == 0
        assert call.log == ["begin 1"]

    told = [record.getMessage() for record in caplog.records if "took longer than its time-out" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f"step book of run {handle.id} took longer than its time-out of 1 s")
    assert call.log == ["begin 1", "end 1", "begin 2", "end 2"]
    assert committed_notes() == ["booked"]
    assert handle.output() == "booked"
    found = step_of(workflows, handle, "book")
    assert found is not None
    assert (found.status, found.attempts, len(found.earlier)) == ("completed", 2, 1)
    assert found.earlier[0].finished_at == found.earlier[0].started_at + timedelta(seconds=1)  # type: ignore[operator]


def raise_error() -> None:
    raise ValueError("too late anyway")


def swallow_everything() -> str:
    with suppress(BaseException):
        current_run.check_cancelled()
    return "too late"


#: How a call that took too long comes to its end.
ENDS: dict[str, Callable[[], object]] = {
    "a value": lambda: "too late",
    "no value that can be stored": lambda: threading.Lock(),
    "an error": raise_error,
    "a look whether to go on": lambda: current_run.check_cancelled(),
    "a swallowed look": swallow_everything,
    "something published": lambda: current_run.set("late", True),
}


@pytest.mark.parametrize("ends", ENDS)
def test_whatever_a_late_call_comes_to_the_run_sleeps_until_its_next_attempt(
    app: Flask, workflows: Workflows, clock: Clock, ends: str
) -> None:
    call = Call()

    @workflows.workflow
    def waits(ctx: WorkflowContext) -> Any:
        return ctx.step("slow", lambda: call(ENDS[ends]) if not call.log else "in time", timeout=1, retry=TWICE)

    handle = waits.spawn()
    with ticking(app, call):
        clock.move(seconds=2)
        before = await_status(workflows, handle, "slow", "retrying")

    assert call.log == ["begin 1", "end 1"]
    run = handle.run()
    assert run is not None
    assert run.status is RunStatus.SLEEPING
    assert run.due_at == before.due_at
    assert (run.attempts, run.losses) == (0, 0)
    assert step_of(workflows, handle, "slow") == before
    assert handle.get("late") is None
    assert run_out(workflows, clock) == 1
    assert handle.output() == "in time"


@pytest.mark.parametrize("caught", [True, False])
def test_after_the_last_attempt_the_body_sees_the_failure_that_a_replay_sees(
    app: Flask, workflows: Workflows, clock: Clock, caught: bool
) -> None:
    call = Call()
    seen: list[tuple[Any, ...]] = []
    signals: list[Any] = []

    @workflows.step(timeout=timedelta(seconds=1), retry=Retry(attempts=1))
    def slow() -> str:
        return str(call())

    @workflows.workflow
    def waits(ctx: WorkflowContext) -> str:
        try:
            return slow()
        except StepFailed as error:
            seen.append((type(error), error.step, error.attempts, error.message, error.error_type))
            if not caught:
                raise
        ctx.sleep(60)
        return "went on"

    def receive(sender: object, **given: Any) -> None:
        signals.append(given["step"])

    handle = waits.spawn()
    with step_failed.connected_to(receive, app), ticking(app, call):
        clock.move(seconds=1)
        before = await_status(workflows, handle, "slow", "failed")
        # The body does not see it before the call has returned: two of its lines would run at once.
        assert seen == signals == []

    assert step_of(workflows, handle, "slow") == before
    assert signals == ["slow"]
    assert seen[0][:3] == (StepFailed, "slow", 1)
    assert seen[0][4] == "flask_workflows.errors.StepTimeout"
    if caught:
        assert run_out(workflows, clock) == 1
        assert handle.output() == "went on"
        assert seen[0] == seen[1]
        assert_replays(workflows, handle)
    else:
        with pytest.raises(RunFailed, match="StepTimeout: took longer than its time-out of 1 s"):
            handle.result(timeout=1)
        handle.retry()
        workflows.tick()
        assert handle.output() == "None"
    assert call.log[:2] == ["begin 1", "end 1"]


@pytest.mark.parametrize(
    "retry", [Retry(attempts=5, give_up_on=(StepTimeout,)), Retry(attempts=5, retry_on=(OSError,))]
)
def test_policy_says_whether_a_time_out_is_tried_again(workflows: Workflows, clock: Clock, retry: Retry) -> None:
    @workflows.workflow
    def waits(ctx: WorkflowContext) -> None:
        ctx.step("slow", lambda: clock.move(seconds=2), timeout=1, retry=retry)

    handle = waits.spawn()
    run_out(workflows, clock)

    found = step_of(workflows, handle, "slow")
    assert found is not None
    assert (found.status, found.attempts) == ("failed", 1)


def test_declared_time_out_comes_back_as_it_is(workflows: Workflows, clock: Clock) -> None:
    seen: list[str] = []

    @workflows.step(timeout=1, raises=StepTimeout)
    def slow() -> None:
        clock.move(seconds=2)

    @workflows.workflow
    def waits(ctx: WorkflowContext) -> None:
        try:
            slow()
        except StepTimeout as error:
            seen.append(str(error))
        ctx.sleep(60)

    waits.spawn()
    run_out(workflows, clock)

    assert seen == ["took longer than its time-out of 1 s; what it came to is discarded"] * 2


@pytest.mark.parametrize("seconds", [0.9, 1, 1.1])
def test_call_that_nobody_noticed_is_late_all_the_same(
    workflows: Workflows, db: SQLAlchemy, clock: Clock, seconds: float
) -> None:
    """On SQLite nobody can: the step holds the write lock all the while."""
    tries: list[float] = []

    @workflows.step(timeout=1, retry=TWICE)
    def slow() -> str:
        tries.append(seconds)
        write_order(db, f"order {len(tries)}")
        if len(tries) == 1:
            clock.move(seconds=seconds)
        return "done"

    @workflows.workflow
    def waits() -> str:
        return slow()

    handle = waits.spawn()
    run_out(workflows, clock)

    assert handle.output() == "done"
    assert committed_notes() == (["order 1"] if seconds < 1 else ["order 2"])


def test_run_page_and_command_say_that_the_call_goes_on(
    app: Flask, workflows: Workflows, clock: Clock, client: FlaskClient, runner: FlaskCliRunner
) -> None:
    call = Call()

    @workflows.step(timeout=1, retry=TWICE)
    def slow() -> None:
        call()

    @workflows.workflow
    def waits() -> None:
        slow()

    handle = waits.spawn()
    with ticking(app, call):
        clock.move(seconds=1)
        await_status(workflows, handle, "slow", "retrying")
        page = text_of(client.get(f"/workflows/run/{handle.id}"))
        shown = runner.invoke(args=["workflows", "show", handle.id]).output
        listed = text_of(client.get("/workflows/runs"))

    sentence = "Step 1, slow, timed out after 1 s; its call goes on in a process that is no live worker"
    assert f"{sentence}, and the next attempt waits for it." in page
    assert f"{sentence}, and the next attempt waits for it." in shown
    assert "step 1, slow, timed out, on a process" in listed
    assert "StepTimeout: took longer than its time-out of 1 s" in shown


# Beside other steps --------------------------------------------------------------------------


def test_siblings_in_other_branches_go_on(app: Flask, workflows: Workflows, clock: Clock) -> None:
    call, done = Call(), threading.Event()

    @workflows.step(timeout=1, retry=TWICE)
    def slow() -> str:
        call()
        return "slow"

    @workflows.step
    def quick(number: int) -> int:
        if number == 1:
            assert done.wait(60)
        return number

    @workflows.workflow
    def fan_out(ctx: WorkflowContext) -> list[Any]:
        def several(ctx: WorkflowContext) -> list[int]:
            first = quick(1)
            ctx.sleep(1)
            return [first, quick(2), quick(3)]

        return ctx.parallel(slow, several)

    handle = fan_out.spawn()
    with ticking(app, call):
        clock.move(seconds=1)
        await_status(workflows, handle, "1.0/slow", "retrying")
        done.set()
        await_status(workflows, handle, "1.1/$sleep", "sleeping")
        clock.move(seconds=2)
        await_status(workflows, handle, "1.1/quick#3", "completed")
        assert call.log == ["begin 1"]

    run = handle.run()
    assert run is not None
    assert run.status is RunStatus.SLEEPING
    assert run_out(workflows, clock) == 1
    assert handle.output() == ["slow", [1, 2, 3]]
    assert call.log == ["begin 1", "end 1", "begin 2", "end 2"]
    assert_replays(workflows, handle)


def test_branch_whose_call_returned_late_goes_on_while_others_do(
    app: Flask, workflows: Workflows, clock: Clock
) -> None:
    call, other = Call(), Call()

    @workflows.step(timeout=1, retry=TWICE)
    def slow() -> str:
        call()
        return "slow"

    @workflows.step
    def long() -> str:
        other()
        return "long"

    @workflows.workflow
    def fan_out(ctx: WorkflowContext) -> list[Any]:
        return ctx.parallel(slow, long)

    handle = fan_out.spawn()
    with ticking(app, other):
        assert call.entered.wait(60)
        clock.move(seconds=1)
        await_status(workflows, handle, "1.0/slow", "retrying")
        call.released.set()
        eventually(lambda: call.log == ["begin 1", "end 1"])
        clock.move(seconds=6)
        await_status(workflows, handle, "1.0/slow", "completed")

    assert call.log == ["begin 1", "end 1", "begin 2", "end 2"]
    assert handle.output() == ["slow", "long"]


def test_step_that_undoes_times_out_and_is_tried_again(app: Flask, workflows: Workflows, clock: Clock) -> None:
    call = Call()

    @workflows.step(timeout=1, retry=TWICE)
    def give_back() -> None:
        call()

    @workflows.step(retry=Retry(attempts=1))
    def charge() -> None:
        raise OSError("declined")

    @workflows.workflow
    def trip(ctx: WorkflowContext) -> None:
        ctx.on_failure(give_back)
        charge()

    handle = trip.spawn()
    with ticking(app, call):
        clock.move(seconds=1)
        await_status(workflows, handle, "$undo:give_back", "retrying")

    assert call.log == ["begin 1", "end 1"]
    run_out(workflows, clock)
    assert handle.status() is RunStatus.FAILED
    assert call.log == ["begin 1", "end 1", "begin 2", "end 2"]
    found = step_of(workflows, handle, "$undo:give_back")
    assert found is not None
    assert (found.status, found.attempts) == ("completed", 2)


@pytest.mark.parametrize("looks", [True, False])
def test_cancelling_ends_the_run_once_the_late_call_has_returned(
    app: Flask, workflows: Workflows, clock: Clock, looks: bool
) -> None:
    call = Call()

    @workflows.step(timeout=1)
    def slow() -> None:
        call(lambda: current_run.check_cancelled() if looks else None)

    @workflows.workflow
    def waits() -> None:
        slow()

    handle = waits.spawn()
    with ticking(app, call):
        clock.move(seconds=1)
        await_status(workflows, handle, "slow", "retrying")
        handle.cancel()
        assert handle.status() is RunStatus.RUNNING

    assert handle.status() is RunStatus.CANCELLED
    assert call.log == ["begin 1", "end 1"]


def test_run_that_is_paused_meanwhile_goes_on_with_the_next_attempt_when_it_is_resumed(
    app: Flask, workflows: Workflows, clock: Clock
) -> None:
    call = Call()

    @workflows.step(timeout=1, retry=TWICE)
    def slow() -> str:
        call()
        return "done"

    @workflows.workflow
    def waits() -> str:
        return slow()

    handle = waits.spawn()
    with ticking(app, call):
        workflows.pause(handle.id)
        clock.move(seconds=1)
        await_status(workflows, handle, "slow", "retrying")

    clock.move(minutes=1)
    assert workflows.tick() == 0
    workflows.resume(handle.id)
    run_out(workflows, clock)
    assert handle.output() == "done"
    assert call.log == ["begin 1", "end 1", "begin 2", "end 2"]


# At the very moment --------------------------------------------------------------------------


class Held:
    """Holds the first transaction that a thread is about to commit, as a watcher."""

    def __init__(self, thread: str) -> None:
        self.reached, self.released = threading.Event(), threading.Event()
        self._thread = thread

    def entering(self) -> None:
        pass

    def committing(self) -> None:
        if threading.current_thread().name != self._thread or self.reached.is_set():
            return
        self.reached.set()
        assert self.released.wait(60)

    def committed(self) -> None:
        pass


def test_result_that_is_being_committed_when_the_time_is_over_counts(
    app: Flask, workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    call = Call()

    @workflows.step(timeout=1, retry=TWICE)
    def book() -> str:
        return str(call(lambda: write_order(db, "booked")))

    @workflows.workflow
    def trip() -> str:
        return book()

    handle = trip.spawn()
    with ticking(app, call):
        watcher = runtime_of(app).store.watcher = Held("ticks")
        call.released.set()
        assert watcher.reached.wait(60)
        clock.move(seconds=2)
        # The records thread comes by several times.
        assert not threading.Event().wait(0.2)
        watcher.released.set()

    assert handle.output() == "booked"
    found = step_of(workflows, handle, "book")
    assert found is not None
    assert (found.status, found.attempts, found.earlier) == ("completed", 1, ())
    assert committed_notes() == ["booked"]


@on_postgresql
def test_result_that_comes_while_the_time_out_is_being_stored_counts_no_more(
    app: Flask, workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    call = Call()

    @workflows.step(timeout=1, retry=TWICE)
    def book() -> str:
        return str(call(lambda: write_order(db, "booked")))

    @workflows.workflow
    def trip() -> str:
        return book()

    handle = trip.spawn()
    with ticking(app, call):
        with outsider(app).begin() as connection:
            connection.execute(sa.text("SELECT 1 FROM workflow_runs FOR UPDATE"))
            clock.move(seconds=1)
            eventually(lambda: rows(app, "SELECT 1 FROM pg_locks WHERE NOT granted"))
            call.released.set()
            eventually(lambda: call.log == ["begin 1", "end 1"])
            assert step_of(workflows, handle, "book") is None
        await_status(workflows, handle, "book", "retrying")

    found = step_of(workflows, handle, "book")
    assert found is not None
    assert (found.status, found.attempts) == ("retrying", 1)
    assert committed_notes() == []


def test_of_result_and_time_out_at_one_moment_one_is_stored(
    app: Flask, workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    calls: dict[str, Call] = {}
    outcomes: set[tuple[str, int, bool]] = set()

    @workflows.step(timeout=1, retry=TWICE)
    def book(note: str) -> str:
        return str(calls[note](lambda: write_order(db, note)))

    @workflows.workflow
    def trip(note: str) -> str:
        return book(note)

    for number in range(20):
        note = f"order {number:02}"
        calls[note] = call = Call()
        handle = trip.spawn(note)
        with ticking(app, call):
            at_once(app, lambda: clock.move(seconds=1), call.released.set)
        found = step_of(workflows, handle, "book")
        assert found is not None
        outcomes.add((found.status, found.attempts, note in committed_notes()))
        run_out(workflows, clock)
        assert handle.output() == note

    assert outcomes <= {("completed", 1, True), ("retrying", 1, False)}
    assert committed_notes() == sorted(calls)


def test_time_out_that_cannot_be_stored_is_stored_later(
    app: Flask, workflows: Workflows, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call()

    @workflows.step(timeout=1, retry=TWICE)
    def slow() -> None:
        call()

    @workflows.workflow
    def waits() -> None:
        slow()

    handle = waits.spawn()
    with ticking(app, call):
        execute(app, "ALTER TABLE workflow_steps RENAME TO gone")
        clock.move(seconds=1)
        eventually(lambda: "leases and results could not be written, trying again" in caplog.text)
        execute(app, "ALTER TABLE gone RENAME TO workflow_steps")
        await_status(workflows, handle, "slow", "retrying")

    assert caplog.text.count("took longer than its time-out") == 1


def test_time_out_of_a_run_that_is_somebody_elses_changes_nothing(
    app: Flask, workflows: Workflows, clock: Clock
) -> None:
    call = Call()

    @workflows.step(timeout=1)
    def slow() -> str:
        call()
        return "done"

    @workflows.workflow
    def waits() -> str:
        return slow()

    handle = waits.spawn()
    with ticking(app, call):
        ((epoch,),) = rows(app, "SELECT epoch FROM workflow_runs")
        # To be executed again in an hour, so that this tick does not.
        runtime_of(app).store.hand_back([(handle.id, epoch)], delay_ms=3_600_000)
        clock.move(seconds=2)
        before = rows(app, "SELECT * FROM workflow_runs")
        call.released.set()

    assert rows(app, "SELECT * FROM workflow_runs") == before
    assert rows(app, "SELECT count(*) FROM workflow_steps") == [(0,)]


def test_crash_between_any_two_writes_repeats_the_attempt_and_commits_once(
    app: Flask, workflows: Workflows, db: SQLAlchemy
) -> None:
    workflows.clock = clock = FixedClock(datetime(2040, 1, 1, 12, tzinfo=UTC))
    calls: list[str] = []

    @workflows.step(timeout=1, transactional=True, retry=Retry(attempts=2, backoff=Retry.constant(0)))
    def book() -> str:
        calls.append(f"call {len(calls) + 1}")
        write_order(db, calls[-1])
        if len(calls) == 1:
            clock.advance(2)
        return calls[-1]

    @workflows.workflow
    def trip() -> str:
        return book()

    engine = runtime_of(app).engine
    for attempt in every_crash(workflows):
        calls.clear()
        with engine.begin() as connection:
            for table in reversed(db.metadata.sorted_tables):
                connection.execute(table.delete())
        with attempt:
            trip.spawn()
            run_until_idle(workflows)
        run_until_idle(workflows)

        for run in workflows.runs():
            assert run.status is RunStatus.COMPLETED
            # One more where the process died with a call that had not been stored.
            assert len(calls) in (2, 3)
            assert committed_notes() == [workflows.get(run.id).output]


# Declaring it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout", [0, -1, float("nan"), float("inf"), True, "5", timedelta(0), timedelta(days=40_000), object()]
)
def test_time_out_that_is_none_is_refused_when_it_is_declared(workflows: Workflows, timeout: Any) -> None:
    def slow() -> None:
        pass

    with pytest.raises(DefinitionError, match=r"the step slow at .*test_timeouts\.py:\d+ has timeout="):
        workflows.step(timeout=timeout)(slow)


def test_time_out_of_a_step_without_a_declaration_is_refused_at_the_call(workflows: Workflows) -> None:
    @workflows.workflow
    def waits(ctx: WorkflowContext) -> None:
        ctx.step("slow", lambda: None, timeout=-1)

    handle = waits.spawn()
    workflows.tick()

    run = handle.run()
    assert run is not None
    assert run.error is not None
    assert "has timeout=-1, but it must not be negative" in run.error.message
