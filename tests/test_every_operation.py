"""Every operation on a run in every state it can be in, alone and while a worker executes it (R33).

One table says what each does. The same table is asked when an operation comes in the middle of an execution, before
any of its transactions: whatever state the run is in by then, the outcome is the one of that state.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from threading import get_ident
from threading import Thread

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import models
from flask_workflows import Retry
from flask_workflows import Run
from flask_workflows import RunFinished
from flask_workflows import RunNotFailed
from flask_workflows import RunNotSleeping
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows import WorkflowsError
from flask_workflows.errors import RunChanged
from flask_workflows.errors import RunCompensated
from flask_workflows.errors import RunNotLost
from flask_workflows.errors import RunNotPaused
from flask_workflows.errors import StepNotFound
from flask_workflows.runs import LIVE
from flask_workflows.runs import RunQuery
from flask_workflows.runs import RunStatus
from flask_workflows.store import Scope
from tests import apps
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import eventually
from tests.processes import working
from tests.running import Clock
from tests.running import run_out

declared = Workflows()
declared.event("go")
effects: Counter[str] = Counter()


def once(what: str) -> int:
    """How often it has been done in this run's test, this time included."""
    effects[what] += 1
    return effects[what]


@declared.step
def note(what: str) -> str:
    once(what)
    return what


@declared.step(retry=Retry(attempts=3, backoff=Retry.constant(60)))
def unsteady() -> None:
    if once("unsteady") == 1:
        raise OSError("down")


@declared.step(retry=Retry(attempts=1))
def broken() -> None:
    if once("broken") == 1:
        raise OSError("down")


@declared.step(retry=Retry(attempts=3, backoff=Retry.constant(60)))
def give_back(failures: int) -> None:
    if once("give back") <= failures:
        raise OSError("down")


@declared.workflow
def child(ctx: WorkflowContext) -> str:
    ctx.wait_for("go")
    return note("child")


def fault() -> None:
    if once("fault") == 1:
        raise ValueError("wrong")


def undone(ctx: WorkflowContext, failures: int) -> None:
    ctx.on_failure(give_back, failures)
    broken()


def beside(ctx: WorkflowContext) -> None:
    ctx.parallel(lambda: ctx.sleep(3_600), lambda: note("beside"), lambda: ctx.wait_for("go"))


def sleepy(ctx: WorkflowContext) -> None:
    ctx.parallel(lambda: ctx.sleep(3_600), lambda: unsteady(), lambda: note("beside"))


def pushed(ctx: WorkflowContext) -> None:
    ctx.on_failure(give_back, 0)
    ctx.sleep(3_600)


WAYS: dict[str, Callable[[WorkflowContext], object]] = {
    "goes on": lambda ctx: None,
    "sleeps": lambda ctx: ctx.sleep(3_600),
    "tries": lambda ctx: unsteady(),
    "raises": lambda ctx: fault(),
    "waits": lambda ctx: ctx.wait_for("go"),
    "waits for a child": lambda ctx: child.start().result(),
    "waits beside": beside,
    "sleeps beside": sleepy,
    "fails": lambda ctx: broken(),
    "is undone": lambda ctx: undone(ctx, 0),
    "is undone slowly": lambda ctx: undone(ctx, 1),
    "sleeps with something to undo": pushed,
}


@declared.workflow
def acting(ctx: WorkflowContext, way: str) -> str:
    note("before")
    WAYS[way](ctx)
    return note("after")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()

    yield make_app(database_url, workflows=declared, WORKFLOWS_POLL_INTERVAL_MS=20)

    declared.clock = None


# The states ------------------------------------------------------------------------------------


def claim(app: Flask, worker: str) -> None:
    """Take what is due, as a worker does that then says nothing more."""
    runtime = apps.runtime_of(app)
    runtime.store.claim(Scope.of(runtime.registry.ranges()), worker, 10)


def claim_alive(app: Flask, clock: Clock) -> None:
    described = {"name": "w", "host": "h", "pid": 1, "queues": None, "workflows": "[]", "concurrency": 1}
    apps.runtime_of(app).store.save_worker(id="alive", **described)
    claim(app, "alive")


def tick(app: Flask, clock: Clock) -> None:
    declared.tick()


def cancel_it(app: Flask, clock: Clock) -> None:
    declared.cancel(declared.runs()[0].id)


def pause_it(app: Flask, clock: Clock) -> None:
    declared.pause(declared.runs()[0].id)


def then(*acts: Callable[[Flask, Clock], None]) -> Callable[[Flask, Clock], None]:
    def act(app: Flask, clock: Clock) -> None:
        for one in acts:
            one(app, clock)

    return act


def nothing(app: Flask, clock: Clock) -> None:
    pass


def later(seconds: float) -> Callable[[Flask, Clock], None]:
    return lambda app, clock: clock.move(seconds=seconds)


#: What the run is to do, and what brings it there.
STATES: dict[str, tuple[str, Callable[[Flask, Clock], None]]] = {
    "pending": ("goes on", nothing),
    "delayed": ("goes on", nothing),
    "running": ("goes on", claim_alive),
    "lost": ("goes on", lambda app, clock: claim(app, "gone")),
    "abandoned": ("goes on", then(claim_alive, later(31))),
    "sleeping": ("sleeps", tick),
    "retrying": ("tries", tick),
    "between attempts": ("raises", tick),
    "waiting": ("waits", tick),
    "waiting for a child": ("waits for a child", tick),
    "waiting in a parallel call": ("waits beside", tick),
    "sleeping in a parallel call": ("sleeps beside", tick),
    "to be undone": ("sleeps with something to undo", then(tick, cancel_it)),
    "undoing, asleep": ("is undone slowly", tick),
    "undoing, running": ("is undone slowly", then(tick, later(60), claim_alive)),
    "cancelling": ("goes on", then(claim_alive, cancel_it)),
    "paused": ("goes on", pause_it),
    "paused asleep": ("sleeps", then(tick, pause_it)),
    "paused while it waits": ("waits", then(tick, pause_it)),
    "pausing": ("goes on", then(claim_alive, pause_it)),
    "paused while undoing": ("is undone slowly", then(tick, pause_it)),
    "completed": ("goes on", tick),
    "failed": ("fails", tick),
    "cancelled": ("sleeps", then(tick, cancel_it)),
    "undone": ("is undone", tick),
}


def bring_to(app: Flask, clock: Clock, state: str) -> str:
    way, act = STATES[state]
    handle = acting.using(delay=3_600 if state == "delayed" else None).spawn(way)
    act(app, clock)

    return handle.id


# The operations --------------------------------------------------------------------------------


def last_step(run_id: str) -> str:
    steps = declared.details(run_id).steps
    return steps[-1].key if steps else "none"


OPERATIONS: dict[str, Callable[[str], object]] = {
    "cancel": lambda run_id: declared.cancel(run_id),
    "cancel alone": lambda run_id: declared.cancel(run_id, cancel_children=False),
    "retry": lambda run_id: declared.retry(run_id),
    "retry from": lambda run_id: declared.retry(run_id, from_step="note"),
    "fork": lambda run_id: declared.fork(run_id, last_step(run_id)),
    "wake": lambda run_id: declared.wake(run_id),
    "move": lambda run_id: declared.wake(run_id, at=declared.get(run_id).created_at + timedelta(days=30)),
    "release": lambda run_id: declared.release(run_id),
    "pause": lambda run_id: declared.pause(run_id),
    "resume": lambda run_id: declared.resume(run_id),
}

#: The status of the run after it, or what is raised.
Outcome = str | type[WorkflowsError]

_COLUMNS = ("cancel", "retry", "retry from", "fork", "wake", "move", "release", "pause", "resume")

_NOT_FAILED = (RunNotFailed, RunNotFailed)
_AWAKE = (RunNotSleeping, RunNotSleeping)
_OVER = (RunFinished, RunFinished)

TABLE: dict[str, tuple[Outcome, ...]] = {
    # state: cancel, retry, retry from, fork, wake, move, release, pause, resume
    "pending": ("cancelled", *_NOT_FAILED, StepNotFound, *_AWAKE, RunNotLost, "pending", RunNotPaused),
    "delayed": ("cancelled", *_NOT_FAILED, StepNotFound, "sleeping", "sleeping", RunNotLost, "sleeping", RunNotPaused),
    "running": ("running", *_NOT_FAILED, StepNotFound, *_AWAKE, RunNotLost, "running", RunNotPaused),
    "lost": ("running", *_NOT_FAILED, StepNotFound, *_AWAKE, "running", "running", RunNotPaused),
    "abandoned": ("cancelled", *_NOT_FAILED, StepNotFound, *_AWAKE, "running", "running", RunNotPaused),
    "sleeping": ("cancelled", *_NOT_FAILED, "sleeping", "sleeping", "sleeping", RunNotLost, "sleeping", RunNotPaused),
    "retrying": ("cancelled", *_NOT_FAILED, "sleeping", "sleeping", "sleeping", RunNotLost, "sleeping", RunNotPaused),
    "between attempts": (
        "cancelled",
        *_NOT_FAILED,
        "sleeping",
        "sleeping",
        "sleeping",
        RunNotLost,
        "sleeping",
        RunNotPaused,
    ),
    "waiting": ("cancelled", *_NOT_FAILED, "waiting", *_AWAKE, RunNotLost, "waiting", RunNotPaused),
    "waiting for a child": ("cancelled", *_NOT_FAILED, "waiting", *_AWAKE, RunNotLost, "waiting", RunNotPaused),
    "waiting in a parallel call": ("cancelled", *_NOT_FAILED, "waiting", *_AWAKE, RunNotLost, "waiting", RunNotPaused),
    "sleeping in a parallel call": (
        "cancelled",
        *_NOT_FAILED,
        "sleeping",
        "sleeping",
        "sleeping",
        RunNotLost,
        "sleeping",
        RunNotPaused,
    ),
    "to be undone": ("pending", *_NOT_FAILED, "pending", *_AWAKE, RunNotLost, RunFinished, RunNotPaused),
    "undoing, asleep": (
        RunFinished,
        *_NOT_FAILED,
        RunCompensated,
        "sleeping",
        "sleeping",
        RunNotLost,
        "sleeping",
        RunNotPaused,
    ),
    "undoing, running": (RunFinished, *_NOT_FAILED, RunCompensated, *_AWAKE, RunNotLost, "running", RunNotPaused),
    "cancelling": ("running", *_NOT_FAILED, StepNotFound, *_AWAKE, RunNotLost, RunFinished, RunNotPaused),
    "paused": ("cancelled", *_NOT_FAILED, StepNotFound, *_AWAKE, RunNotLost, "pending", "pending"),
    "paused asleep": ("cancelled", *_NOT_FAILED, *["sleeping"] * 3, RunNotLost, "sleeping", "sleeping"),
    "paused while it waits": ("cancelled", *_NOT_FAILED, "waiting", *_AWAKE, RunNotLost, "waiting", "waiting"),
    "pausing": ("running", *_NOT_FAILED, StepNotFound, *_AWAKE, RunNotLost, "running", "running"),
    "paused while undoing": (
        RunFinished,
        *_NOT_FAILED,
        RunCompensated,
        *["sleeping"] * 2,
        RunNotLost,
        "sleeping",
        "sleeping",
    ),
    "completed": (RunFinished, *_NOT_FAILED, "completed", *_OVER, RunNotLost, RunFinished, RunNotPaused),
    "failed": (RunFinished, "pending", "pending", "failed", *_OVER, RunNotLost, RunFinished, RunNotPaused),
    "cancelled": (RunFinished, "pending", "pending", "cancelled", *_OVER, RunNotLost, RunFinished, RunNotPaused),
    "undone": (
        RunFinished,
        RunCompensated,
        RunCompensated,
        RunCompensated,
        *_OVER,
        RunNotLost,
        RunFinished,
        RunNotPaused,
    ),
}


def expected(state: str, operation: str) -> Outcome:
    return TABLE[state][_COLUMNS.index(operation.removesuffix(" alone"))]


def assert_outcome(run_id: str, operation: str, outcome: Outcome, where: str) -> None:
    """Do it; what comes of it is this, and nothing else has changed where it is an error."""
    before = declared.details(run_id)
    if isinstance(outcome, str):
        OPERATIONS[operation](run_id)
        assert declared.get(run_id).status == outcome, where
    else:
        with pytest.raises(outcome) as raised:
            OPERATIONS[operation](run_id)
        assert raised.type is outcome, where
        assert declared.details(run_id) == before, where


def end(app: Flask, clock: Clock) -> None:
    """Drive every run to its end: who is paused is resumed, lost workers are, and what is waited for comes."""
    for _ in range(10):
        clock.move(seconds=31)
        resume_all()
        run_out(declared, clock)
        if all(run.finished for run in declared.runs()):
            break
        declared.deliver("go")
    assert all(run.finished for run in declared.runs())


def resume_all() -> None:
    for run in declared.runs(RunQuery(limit=500)):
        if run.paused:
            with suppress(RunNotPaused):
                declared.resume(run.id)


#: How a run ends that is cancelled in no way; of those that were there before all else.
ENDS = {"failed": "failed", "cancelled": "cancelled", "undone": "failed", "to be undone": "cancelled"}
ENDS |= {"undoing, asleep": "failed", "undoing, running": "failed", "cancelling": "cancelled"}
ENDS |= {"paused while undoing": "failed"}


@pytest.mark.usefixtures("app_context")
@pytest.mark.parametrize("state", STATES)
def test_each_operation_has_one_outcome_in_each_state_and_the_run_then_ends(
    app: Flask, clock: Clock, state: str
) -> None:
    for operation in OPERATIONS:
        effects.clear()
        run_id = bring_to(app, clock, state)
        outcome = expected(state, operation)
        assert_outcome(run_id, operation, outcome, f"{operation} of {state}")
        end(app, clock)

        run, done = declared.get(run_id), isinstance(outcome, str)
        cancelled, retried = done and operation.startswith("cancel"), done and operation.startswith("retry")
        status = "cancelled" if cancelled else "completed" if retried else ENDS.get(state, "completed")
        assert (operation, run.status) == (operation, status)
        assert_sound(app, run)
        again = 2 if done and operation in ("retry from", "fork") else 1
        assert max(effects[what] for what in ("before", "beside", "after")) <= again, operation
        if status == "completed":
            assert effects["before"] >= (2 if operation == "retry from" and retried else 1), operation
            assert effects["after"] >= 1, operation


def assert_sound(app: Flask, run: Run) -> None:
    """It has ended for good, nothing waits for it any more, and no call is left half done where it completed."""
    assert (run.due_at, run.worker) == (None, None)
    with apps.runtime_of(app).engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(models.waits)) == 0
    if run.status == "completed":
        assert {step.status for step in declared.details(run.id).steps} <= {"completed", "failed", "pushed"}


def test_children_that_are_kept_go_on(app: Flask, clock: Clock, app_context: None) -> None:
    for operation, status in (("cancel", "cancelled"), ("cancel alone", "waiting")):
        run_id = bring_to(app, clock, "waiting for a child")
        OPERATIONS[operation](run_id)
        (of_it,) = [run for run in declared.runs() if run.parent_id == run_id]
        assert of_it.status == status
    end(app, clock)

    assert effects["child"] == 1


# While a worker executes it --------------------------------------------------------------------


class Meanwhile:
    """Does something before the n-th transaction of the thread that made it."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.left = number
        self._act = act
        self._thread = get_ident()

    def entering(self) -> None:
        if get_ident() == self._thread and self.left > 0:
            self.left -= 1
            if not self.left:
                self._act()

    def committing(self) -> None:
        pass

    def committed(self) -> None:
        pass


def state_of(run: Run) -> str:
    """Which row of the table it is in; the workers of these tests are known to nobody."""
    if run.finished:
        return "undone" if run.undone else str(run.status)
    if run.undoing:
        return "undoing, lost" if run.worker else "undoing, asleep" if run.status == "sleeping" else "undoing, due"
    if run.cancelling:
        return "cancelling, lost" if run.worker else "to be undone"
    return "lost" if run.worker else str(run.status)


#: States that only others see, for a moment.
MOMENTS: dict[str, tuple[Outcome, ...]] = {
    "undoing, lost": (RunFinished, *_NOT_FAILED, RunCompensated, *_AWAKE, "running", "running", RunNotPaused),
    "undoing, due": (RunFinished, *_NOT_FAILED, RunCompensated, *_AWAKE, RunNotLost, "pending", RunNotPaused),
    "cancelling, lost": ("running", *_NOT_FAILED, StepNotFound, *_AWAKE, "running", RunFinished, RunNotPaused),
}


def outcome_now(run_id: str, operation: str) -> Outcome:
    run, steps = declared.get(run_id), declared.details(run_id).steps
    column = _COLUMNS.index(operation.removesuffix(" alone"))
    outcome = (TABLE | MOMENTS)[state_of(run)][column]
    if operation == "fork" and outcome is not RunCompensated:
        return str(run.status) if steps else StepNotFound
    return outcome


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("state", ["pending", "sleeping in a parallel call", "to be undone", "undoing, asleep"])
def test_operation_in_the_middle_of_an_execution_has_the_outcome_of_that_moment(
    app: Flask, clock: Clock, app_context: None, state: str, operation: str
) -> None:
    store = apps.runtime_of(app).store
    for number in count(1):
        effects.clear()
        run_id = bring_to(app, clock, state)
        clock.move(seconds=3_600)
        meanwhile = Meanwhile(number, lambda run_id=run_id: elsewhere(app, run_id, operation))  # type: ignore[misc]
        store.watcher = meanwhile
        try:
            declared.tick()
        finally:
            store.watcher = None
        end(app, clock)

        run = declared.get(run_id)
        assert_sound(app, run)
        # A released run is in two hands: what was in flight is done twice.
        most = 2 if operation in ("release", "fork", "retry from") else 1
        assert max(effects[what] for what in ("before", "beside", "after")) <= most, number
        if meanwhile.left:
            break
    assert number > 3


def elsewhere(app: Flask, run_id: str, operation: str) -> None:
    """On another thread, as another process would; the execution stands still meanwhile."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            with app.app_context():
                assert_outcome(run_id, operation, outcome_now(run_id, operation), operation)
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=act)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "a deadlock"
    if errors:
        raise errors[0]


def test_operations_at_random_beside_workers_end_in_no_deadlock(
    app: Flask, caplog: pytest.LogCaptureFixture, app_context: None
) -> None:
    caplog.set_level(logging.WARNING, "flask_workflows")
    chance = random.Random(0)
    ways = ["goes on", "waits", "waits for a child", "is undone", "fails"]
    runs = [acting.spawn(chance.choice(ways)).id for _ in range(40)]
    refused = (RunFinished, RunNotFailed, RunNotSleeping, RunNotLost, RunNotPaused, RunChanged, StepNotFound)

    def act(seed: int) -> None:
        own = random.Random(seed)
        with app.app_context():
            for _ in range(40):
                run_id, operation = own.choice(runs), own.choice(list(OPERATIONS))
                with suppress(*refused):
                    if operation != "move":
                        OPERATIONS[operation](run_id)

    threads = [Thread(target=act, args=(seed,)) for seed in range(4)]
    with working(app, concurrency=4):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a deadlock"

        def all_have_ended() -> bool:
            resume_all()
            declared.deliver("go")
            return not any(declared.page(_of(status)).runs for status in LIVE)

        eventually(all_have_ended, within=120, every=0.2)

    for run_id in runs:
        assert_sound(app, declared.get(run_id))
    assert not [record for record in caplog.records if "deadlock" in record.getMessage().lower()]


def _of(status: RunStatus) -> RunQuery:
    return RunQuery(status=status, limit=1)
