"""What a person may do to a run: cancel, retry, wake, in every state it can be in (R33)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import current_run
from flask_workflows import Handle
from flask_workflows import KeyTaken
from flask_workflows import Retry
from flask_workflows import Run
from flask_workflows import run_cancelled
from flask_workflows import run_completed
from flask_workflows import RunCancelled
from flask_workflows import RunChanged
from flask_workflows import RunFailed
from flask_workflows import RunFinished
from flask_workflows import RunNotFailed
from flask_workflows import RunNotFound
from flask_workflows import RunNotSleeping
from flask_workflows import RunStatus
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows import WorkflowsError
from flask_workflows.errors import InvalidInstant
from flask_workflows.store import Scope
from tests import apps
from tests.running import at_once
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import Order
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

declared = Workflows()
effects: list[str] = []


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.step(retry=Retry(attempts=2, backoff=Retry.constant(60)))
def unsteady() -> str:
    effects.append("tried")
    raise OSError("down")


@declared.workflow
def behaving(ctx: WorkflowContext, how: str) -> str:
    note("before")
    if how == "sleeps":
        ctx.sleep(3600)
    elif how == "tries":
        unsteady()
    elif how == "raises":
        raise ValueError("wrong")
    return note("after")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()

    yield make_app(database_url, db=make_orders_db(), workflows=declared)

    declared.clock = None


@pytest.fixture
def in_state(app: Flask, clock: Clock) -> Callable[[str], Handle[str]]:
    """Make a run that is in a state."""

    def make(state: str) -> Handle[str]:
        how = {"sleeping": "sleeps", "backing off": "tries", "between attempts": "raises"}.get(state, "ends")
        if state == "delayed":
            return behaving.using(delay=3600).spawn("ends")
        handle = behaving.spawn("raises" if state == "failed" else how)
        if state.startswith("running"):
            take_up(app)
            if state == "running, cancelling":
                declared.cancel(handle.id)
            elif state == "running, abandoned":
                clock.move(seconds=31)
        elif state == "cancelled":
            declared.cancel(handle.id)
        elif state == "failed":
            run_out(declared, clock)
        elif state != "pending":
            declared.tick()
        return handle

    return make


def take_up(app: Flask) -> None:
    """Claim what is due, as a worker does that then says nothing more."""
    runtime = apps.runtime_of(app)
    runtime.store.claim(Scope.of(runtime.registry.ranges()), "another worker", 10)


# Every verb in every state -----------------------------------------------------------------

Outcome = RunStatus | type[WorkflowsError]

VERBS = ["cancel", "retry", "wake"]

#: What each of them does.
STATES: dict[str, tuple[Outcome, Outcome, Outcome]] = {
    "pending": (RunStatus.CANCELLED, RunNotFailed, RunNotSleeping),
    "delayed": (RunStatus.CANCELLED, RunNotFailed, RunStatus.SLEEPING),
    "sleeping": (RunStatus.CANCELLED, RunNotFailed, RunStatus.SLEEPING),
    "backing off": (RunStatus.CANCELLED, RunNotFailed, RunStatus.SLEEPING),
    "between attempts": (RunStatus.CANCELLED, RunNotFailed, RunStatus.SLEEPING),
    "running": (RunStatus.RUNNING, RunNotFailed, RunNotSleeping),
    "running, cancelling": (RunStatus.RUNNING, RunNotFailed, RunNotSleeping),
    "running, abandoned": (RunStatus.CANCELLED, RunNotFailed, RunNotSleeping),
    "completed": (RunFinished, RunNotFailed, RunFinished),
    "failed": (RunFinished, RunStatus.PENDING, RunFinished),
    "cancelled": (RunFinished, RunStatus.PENDING, RunFinished),
}


@pytest.mark.parametrize("verb", VERBS)
def test_b20_a_verb_does_what_it_says_or_says_why_not_in_every_state(
    in_state: Callable[[str], Handle[str]], clock: Clock, verb: str
) -> None:
    for state, outcomes in STATES.items():
        handle = in_state(state)
        before = handle.run()
        outcome = outcomes[VERBS.index(verb)]
        act: Callable[..., Run] = getattr(declared, verb)

        if isinstance(outcome, RunStatus):
            with pytest.raises(RunChanged):
                act(handle.id, epoch=before.epoch + 1)
            assert handle.run() == before, state
            after = act(handle.id, epoch=before.epoch)
            assert after == handle.run(), state
            assert after.status is outcome, state
            assert after.cancelling == (after.status is RunStatus.RUNNING), state
            assert (after.epoch > before.epoch) == (after.status is not RunStatus.RUNNING), state
            if verb == "wake":
                assert after.due_at == clock.now(), state
        else:
            with pytest.raises(outcome, match=handle.id):
                act(handle.id)
            assert handle.run() == before, state


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_on_an_unknown_run_says_that_there_is_none(verb: str) -> None:
    with pytest.raises(RunNotFound, match="there is no run 0000"):
        getattr(declared, verb)("0000")


# Cancelling --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "delayed", "sleeping", "backing off", "between attempts"])
def test_b22_a_cancelled_run_is_never_executed_again(
    in_state: Callable[[str], Handle[str]], clock: Clock, state: str
) -> None:
    handle = in_state(state)
    effects.clear()

    declared.cancel(handle.id)
    clock.move(days=1)
    executions = declared.tick()

    assert executions == 0
    assert effects == []
    run = handle.run()
    assert (run.status, run.due_at, run.worker) == (RunStatus.CANCELLED, None, None)
    with pytest.raises(RunCancelled):
        handle.output()


def test_a_run_cancelled_during_a_step_stores_it_and_starts_nothing_later(workflows: Workflows, db: SQLAlchemy) -> None:
    @workflows.step(name="cancelled-in-the-middle")
    def middle(writes: bool) -> str:
        workflows.cancel(current_run.run_id)
        if writes:
            db.session.add(Order(note="written after"))
        return "stored"

    @workflows.workflow(name="cancelled-during-a-step")
    def interrupted(ctx: WorkflowContext, writes: bool, then: str) -> str:
        middle(writes)
        if then == "step":
            note("later")
        elif then == "sleep":
            ctx.sleep(60)
        elif then == "now":
            ctx.now()
        elif then == "start":
            behaving.start("ends")
        elif then == "swallow":
            try:
                note("later")
            except BaseException:
                return "swallowed"
        return "ended"

    handles = [interrupted.spawn(writes=False, then=then) for then in ("step", "sleep", "now", "start", "swallow")]
    handles.append(interrupted.spawn(writes=True, then="step"))
    executions = workflows.tick()

    assert executions == len(handles)
    assert effects == []
    assert len(workflows.runs()) == len(handles)
    assert committed_notes() == ["written after"]
    for handle in handles:
        assert handle.status() is RunStatus.CANCELLED
        (step,) = workflows.details(handle.id).steps
        assert (step.key, step.status, step.output) == ("cancelled-in-the-middle", "completed", "stored")


@pytest.mark.parametrize("ending", ["returns", "raises", "fails"])
def test_b19_a_run_cancelled_just_before_its_end_is_cancelled(workflows: Workflows, ending: str) -> None:
    told: list[str] = []

    @workflows.step(name="cancelled-at-the-end", retry=Retry(attempts=1))
    def last() -> None:
        workflows.cancel(current_run.run_id)
        if ending == "fails":
            raise OSError("down")

    @workflows.workflow(name="cancelled-before-the-end")
    def ends() -> str:
        last()
        if ending == "raises":
            raise ValueError("wrong")
        return "ended"

    def tell(sender: Flask, **values: Any) -> None:
        told.append(values["run_id"])

    handle = ends.spawn()
    with run_completed.connected_to(lambda *args, **values: told.append("completed")), run_cancelled.connected_to(tell):
        workflows.tick()

    run = handle.run()
    assert (run.status, run.output, run.error) == (RunStatus.CANCELLED, None, None)
    assert told == [handle.id]


def test_a_long_step_can_notice_that_it_is_cancelled(workflows: Workflows, clock: Clock) -> None:
    rounds: list[int] = []

    @workflows.step(name="long")
    def long() -> None:
        for number in range(10):
            rounds.append(number)
            clock.move(seconds=1)
            if number == 2:
                workflows.cancel(current_run.run_id)
            current_run.check_cancelled()

    @workflows.workflow(name="long-running")
    def long_running() -> None:
        long()

    handle = long_running.spawn()
    workflows.tick()

    assert handle.status() is RunStatus.CANCELLED
    assert rounds == [0, 1, 2]


def test_b125_a_run_whose_worker_and_code_are_gone_ends_at_once_when_cancelled(
    in_state: Callable[[str], Handle[str]], workflows: Workflows
) -> None:
    handle = in_state("running, abandoned")
    registry, workflows.registry = workflows.registry, type(workflows.registry)()

    run = workflows.cancel(handle.id)
    executions = workflows.tick()
    workflows.registry = registry

    assert run.status is RunStatus.CANCELLED
    assert executions == 0


def test_cancelling_frees_the_key(clock: Clock) -> None:
    first = behaving.using(key="k", delay=60).spawn("ends")

    declared.cancel(first.id)
    second = behaving.using(key="k").spawn("ends")

    assert second.created
    assert second.id != first.id


def test_of_many_who_cancel_at_once_one_does_and_the_others_are_told(app: Flask) -> None:
    handle = behaving.using(delay=60).spawn("ends")

    def cancel() -> str:
        try:
            declared.cancel(handle.id)
        except (RunFinished, RunChanged) as error:
            return type(error).__name__
        return "did"

    answers = at_once(app, *[cancel] * 8)

    assert answers.count("did") == 1
    assert set(answers) <= {"did", "RunFinished"}


# Retrying ----------------------------------------------------------------------------------


def test_a_retried_run_goes_on_where_it_stopped_with_fresh_attempts(clock: Clock) -> None:
    handle = behaving.spawn("tries")
    run_out(declared, clock)
    failed = handle.run()

    run = declared.retry(handle.id)
    run_out(declared, clock)

    assert failed.status is RunStatus.FAILED
    assert (run.status, run.attempts, run.error, run.finished_at) == (RunStatus.PENDING, 0, None, None)
    assert effects == ["before", "tried", "tried", "tried", "tried"]
    assert handle.status() is RunStatus.FAILED
    assert declared.details(handle.id).steps[-1].attempts == 2


def test_a_run_that_failed_by_itself_has_all_its_attempts_again(clock: Clock) -> None:
    handle = behaving.spawn("raises")
    run_out(declared, clock)

    declared.retry(handle.id)
    executions = run_out(declared, clock)

    assert executions == 3
    assert effects == ["before"]
    assert handle.run().attempts == 3


def test_a_retry_keeps_a_failure_that_the_body_went_on_from(workflows: Workflows, clock: Clock) -> None:
    tried: list[str] = []
    down = {"first", "second", "last"}

    @workflows.step(name="maybe", retry=Retry(attempts=1))
    def maybe(what: str) -> str:
        tried.append(what)
        if what in down:
            raise OSError(f"{what} is down")
        return what

    @workflows.workflow(name="catching")
    def catching() -> list[str]:
        answers = []
        for what in ("first", "second"):
            try:
                answers.append(maybe(what))
            except StepFailed as error:
                answers.append(error.message)
        return [*answers, maybe("last")]

    handle = catching.spawn()
    workflows.tick()
    down.clear()
    workflows.retry(handle.id)
    workflows.tick()

    assert tried == ["first", "second", "last", "last"]
    assert handle.output() == ["first is down", "second is down", "last"]


def test_a_retry_tries_a_business_error_again_where_it_ended_the_run(workflows: Workflows, clock: Clock) -> None:
    declined = [LookupError("declined")]

    @workflows.step(name="pay-by-card", raises=LookupError)
    def pay() -> str:
        if declined:
            raise declined.pop()
        return "paid"

    @workflows.workflow(name="paying-by-card")
    def paying() -> str:
        return pay()

    handle = paying.spawn()
    workflows.tick()
    with pytest.raises(RunFailed, match="LookupError: declined"):
        handle.output()

    workflows.retry(handle.id)
    workflows.tick()

    assert handle.output() == "paid"


def test_a_sleeping_run_that_was_cancelled_and_retried_sleeps_out_its_time(clock: Clock) -> None:
    handle = behaving.spawn("sleeps")
    declared.tick()
    declared.cancel(handle.id)
    clock.move(minutes=20)

    declared.retry(handle.id)
    declared.tick()
    asleep = handle.run()
    clock.move(minutes=40)
    declared.tick()

    assert asleep.status is RunStatus.SLEEPING
    assert asleep.due_at == clock.now()
    assert handle.output() == "after"
    assert effects == ["before", "after"]


def test_b29_a_retry_onto_a_key_held_by_a_newer_run_is_refused_naming_the_key(clock: Clock) -> None:
    old = behaving.using(key="k", workspace="w").spawn("raises")
    run_out(declared, clock)
    new = behaving.using(key="k", workspace="w").spawn("ends")
    before = (old.run(), new.run())

    with pytest.raises(KeyTaken, match=r"newer unfinished run of 'behaving' has its key 'k'"):
        declared.retry(old.id)

    assert (old.run(), new.run()) == before
    declared.tick()
    assert new.status() is RunStatus.COMPLETED
    assert declared.retry(old.id).status is RunStatus.PENDING
    assert not behaving.using(key="k", workspace="w").spawn("ends").created


def test_of_many_who_retry_at_once_one_does_and_the_others_are_told(app: Flask, clock: Clock) -> None:
    handle = behaving.spawn("raises")
    run_out(declared, clock)

    def retry() -> str:
        try:
            declared.retry(handle.id)
        except (RunNotFailed, RunChanged) as error:
            return type(error).__name__
        return "did"

    answers = at_once(app, *[retry] * 8)

    assert answers.count("did") == 1
    assert set(answers) <= {"did", "RunNotFailed", "RunChanged"}


# Waking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["delayed", "sleeping", "backing off", "between attempts"])
def test_a_woken_run_goes_on_now(in_state: Callable[[str], Handle[str]], state: str) -> None:
    handle = in_state(state)
    effects.clear()

    declared.wake(handle.id)
    executions = declared.tick()

    run = handle.run()
    assert executions == 1
    if state == "backing off":
        assert (effects, run.status) == (["tried"], RunStatus.FAILED)
    elif state == "between attempts":
        assert (effects, run.status, run.attempts) == ([], RunStatus.SLEEPING, 2)
    else:
        assert (effects[-1], run.status) == ("after", RunStatus.COMPLETED)


def test_a_woken_sleep_is_over_for_good(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="woken-twice")
    def woken(ctx: WorkflowContext) -> str:
        ctx.sleep(timedelta(days=1))
        woken_at = ctx.now()
        ctx.sleep(timedelta(days=1))
        return str(ctx.now() - woken_at)

    handle = woken.spawn()
    workflows.tick()
    workflows.wake(handle.id)
    workflows.tick()
    again_asleep = handle.run()
    clock.move(days=1)
    workflows.tick()

    assert again_asleep.status is RunStatus.SLEEPING
    assert again_asleep.due_at == clock.now()
    assert handle.output() == "1 day, 0:00:00"


@pytest.mark.parametrize("state", ["delayed", "sleeping", "backing off", "between attempts"])
def test_a_timer_moved_twice_ends_at_the_last_instant_and_no_replay_sleeps_on(
    in_state: Callable[[str], Handle[str]], clock: Clock, state: str
) -> None:
    handle = in_state(state)
    effects.clear()
    later, sooner = clock.now() + timedelta(days=3), clock.now() + timedelta(minutes=10)

    moved = declared.wake(handle.id, at=later)
    again = declared.wake(handle.id, epoch=moved.epoch, at=sooner)
    with pytest.raises(RunChanged):
        declared.wake(handle.id, epoch=moved.epoch, at=later)
    early = declared.tick()
    clock.move_to(sooner)
    executions = declared.tick()

    assert (moved.due_at, again.due_at) == (later, sooner)
    assert (early, executions) == (0, 1)
    if state == "backing off":
        assert effects == ["tried"]
    elif state == "between attempts":
        assert handle.run().attempts == 2
    else:
        assert (effects[-1], handle.status()) == ("after", RunStatus.COMPLETED)


def test_a_timer_put_off_is_slept_out_although_the_time_it_had_first_is_over(clock: Clock) -> None:
    handle = behaving.spawn("sleeps")
    declared.tick()

    declared.wake(handle.id, at=clock.now() + timedelta(hours=5))
    clock.move(hours=4)
    early = declared.tick()
    declared.cancel(handle.id)
    declared.retry(handle.id)
    replayed = declared.tick()
    asleep = handle.run()
    clock.move(hours=1)
    declared.tick()

    assert (early, replayed) == (0, 1)
    assert (asleep.status, asleep.due_at) == (RunStatus.SLEEPING, clock.now())
    assert handle.output() == "after"


def test_a_timer_moved_into_the_past_ends_now(clock: Clock) -> None:
    handle = behaving.spawn("sleeps")
    declared.tick()

    moved = declared.wake(handle.id, at=clock.now() - timedelta(days=1))
    declared.tick()

    assert moved.due_at == clock.now()
    assert handle.output() == "after"


def test_a_timer_is_moved_to_an_instant_with_a_zone_only(clock: Clock) -> None:
    handle = behaving.spawn("sleeps")
    declared.tick()
    before = handle.run()

    with pytest.raises(InvalidInstant, match="time zone"):
        declared.wake(handle.id, at=clock.now().replace(tzinfo=None))

    assert handle.run() == before


# Pruning -----------------------------------------------------------------------------------


def test_b31_pruning_deletes_old_finished_runs_with_their_steps_and_nothing_else(clock: Clock, db: SQLAlchemy) -> None:
    def rows(table: str, run_id: str) -> int:
        with db.engine.connect() as connection:
            column = "id" if table == "workflow_runs" else "run_id"
            count = connection.scalar(
                sa.text(f"SELECT count(*) FROM {table} WHERE {column} = :run_id"), {"run_id": run_id}
            )
        return int(count or 0)

    old = [behaving.using(key="k").spawn("ends"), behaving.spawn("raises")]
    run_out(declared, clock)
    asleep = behaving.spawn("sleeps")
    declared.tick()
    clock.move(days=31)
    young = behaving.using(delay=60).spawn("ends")
    declared.cancel(young.id)

    would_go = declared.prune(dry_run=True)
    gone = declared.prune()
    again = declared.prune()

    assert (would_go, gone, again) == (2, 2, 0)
    for handle in old:
        assert (rows("workflow_runs", handle.id), rows("workflow_steps", handle.id)) == (0, 0)
        with pytest.raises(RunNotFound, match="pruned"):
            handle.run()
    assert asleep.status() is RunStatus.SLEEPING
    assert young.status() is RunStatus.CANCELLED
    assert declared.prune(timedelta()) == 0
    clock.move(seconds=1)
    assert declared.prune(timedelta()) == 1
