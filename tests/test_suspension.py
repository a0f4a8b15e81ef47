"""Runs that sleep, and code that stands in the way of it (R16, R23, R24)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from threading import Thread
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from flask import Flask

from flask_workflows import current_run
from flask_workflows import Handle
from flask_workflows import Retry
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import InvalidDuration
from flask_workflows.errors import InvalidInstant
from tests import apps
from tests.running import Clock
from tests.running import on_sqlite
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")

declared = Workflows()
effects: list[str] = []


@declared.step
def note(what: str) -> str:
    effects.append(what)
    return what


@declared.step(retry=Retry(attempts=2, backoff=Retry.constant(60)))
def second_time_lucky() -> str:
    effects.append("tried")
    if effects.count("tried") == 1:
        raise OSError("down")
    return "lucky"


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    effects.clear()

    yield make_app(database_url, workflows=declared)

    declared.clock = None


# Sleeping ----------------------------------------------------------------------------------


def test_a_sleeping_run_goes_on_when_it_is_due_and_not_before(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="sleeper")
    def sleeper(ctx: WorkflowContext) -> list[str]:
        started = ctx.now()
        ctx.sleep(90)
        middle = ctx.now()
        ctx.sleep(timedelta(hours=1))
        return [str(middle - started), str(ctx.now() - middle)]

    handle = sleeper.spawn()
    workflows.tick()
    asleep = handle.run()
    clock.move(seconds=89.999)
    early = workflows.tick()
    clock.move(seconds=0.001)
    due = workflows.tick()
    clock.move(hours=1)
    workflows.tick()

    assert (asleep.status, asleep.worker) == (RunStatus.SLEEPING, None)
    assert asleep.due_at == asleep.created_at + timedelta(seconds=90)
    assert (early, due) == (0, 1)
    assert handle.output() == ["0:01:30", "1:00:00"]


def test_a_sleep_until_an_instant_ends_then_in_any_time_zone(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="until")
    def until(ctx: WorkflowContext, hours: int, zone: str) -> str:
        local = datetime(2040, 1, 1, 12, tzinfo=UTC).astimezone(ZoneInfo(zone)) + timedelta(hours=hours)
        ctx.sleep_until(local)
        return "woken"

    handles = [until.spawn(1, zone) for zone in ("America/Los_Angeles", "Asia/Kolkata", "UTC")]
    workflows.tick()
    asleep = {handle.run().due_at for handle in handles}
    clock.move(hours=1)
    workflows.tick()

    assert asleep == {clock.now()}
    assert [handle.output() for handle in handles] == ["woken"] * 3


def test_a_sleep_of_nothing_or_into_the_past_is_none(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="wakeful")
    def wakeful(ctx: WorkflowContext) -> None:
        ctx.sleep(0)
        ctx.sleep(timedelta())
        ctx.sleep_until(ctx.now())
        ctx.sleep_until(datetime(1969, 1, 1, tzinfo=UTC))

    handle = wakeful.spawn()
    executions = workflows.tick()

    assert executions == 1
    assert handle.status() is RunStatus.COMPLETED
    assert {step.status for step in workflows.details(handle.id).steps} == {"completed"}


def test_b67_a_sleep_that_is_no_sensible_duration_or_instant_is_refused(workflows: Workflows) -> None:
    durations: list[Any] = [-1, 1e18, float("nan"), float("inf"), True, "10", timedelta.max, None]
    instants: list[Any] = [datetime(2041, 1, 1), 5, None, timedelta(1)]  # noqa: DTZ001
    refused: list[type[Exception]] = []

    @workflows.workflow(name="restless")
    def restless(ctx: WorkflowContext) -> None:
        for duration in durations:
            with pytest.raises(InvalidDuration) as error:
                ctx.sleep(duration)
            refused.append(error.type)
        for instant in instants:
            with pytest.raises(InvalidInstant) as late:
                ctx.sleep_until(instant)
            refused.append(late.type)

    handle = restless.spawn()
    workflows.tick()

    assert handle.status() is RunStatus.COMPLETED
    assert len(refused) == len(durations) + len(instants)


def test_b67_a_sleep_of_decades_or_to_the_end_of_the_calendar_is_kept(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="patient")
    def patient(ctx: WorkflowContext, forever: bool) -> None:
        if forever:
            ctx.sleep_until(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        ctx.sleep(1e9)

    decades, forever = patient.spawn(False), patient.spawn(True)
    workflows.tick()

    assert decades.run().due_at == clock.now() + timedelta(seconds=1e9)
    assert forever.run().due_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_the_present_instant_is_read_once_and_the_same_on_replay(workflows: Workflows, clock: Clock) -> None:
    seen: list[tuple[datetime, datetime]] = []
    began = clock.now()

    @workflows.workflow(name="telling-time")
    def telling_time(ctx: WorkflowContext) -> None:
        first = ctx.now()
        ctx.sleep(60)
        seen.append((first, ctx.now()))
        ctx.sleep(60)

    telling_time.spawn()
    run_out(workflows, clock)

    assert seen == [(began, began + timedelta(seconds=60))] * 2


def test_the_start_of_a_run_is_the_same_on_every_execution(workflows: Workflows, clock: Clock) -> None:
    seen: list[datetime] = []
    began = clock.now()

    @workflows.workflow(name="started")
    def started(ctx: WorkflowContext) -> None:
        seen.append(ctx.started_at)
        ctx.sleep(60)

    started.using(delay=30).spawn()
    run_out(workflows, clock)

    assert seen == [began] * 2


def test_b39_a_sleep_that_ends_while_nobody_works_wakes_once_afterwards(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="overslept")
    def overslept(ctx: WorkflowContext) -> str:
        ctx.sleep(3)
        note("woken")
        return str(ctx.now())

    handle = overslept.spawn()
    workflows.tick()
    clock.move(days=400)
    executions = workflows.tick()

    assert executions == 1
    assert effects == ["woken"]
    assert handle.output() == str(clock.now())


def test_b24_sleeps_and_recovered_steps_eat_no_attempts(workflows: Workflows, clock: Clock) -> None:
    failing = {f"step {number}" for number in range(5)}

    @workflows.step(name="unsteady")
    def unsteady(number: int) -> None:
        if f"step {number}" in failing:
            failing.discard(f"step {number}")
            raise OSError("once")

    @workflows.workflow(name="long-lived")
    def long_lived(ctx: WorkflowContext) -> str:
        for number in range(25):
            ctx.sleep(60)
            if number < 5:
                unsteady(number)
            ctx.sleep_until(ctx.now() + timedelta(minutes=1))
        return "lived"

    handle = long_lived.spawn()
    executions = run_out(workflows, clock)

    assert handle.output() == "lived"
    assert executions == 1 + 50 + 5
    assert handle.run().attempts == 0


def test_tick_executes_what_is_due_at_the_instant_it_is_given(workflows: Workflows, clock: Clock) -> None:
    @workflows.workflow(name="by-instant")
    def by_instant(ctx: WorkflowContext) -> str:
        ctx.sleep(60)
        return str(ctx.now() - ctx.started_at)

    handle = by_instant.spawn()
    workflows.tick()

    executions = workflows.tick(now=clock.now() + timedelta(seconds=61))

    assert executions == 1
    assert handle.output() == "0:01:01"
    with pytest.raises(InvalidInstant):
        workflows.tick(now=datetime(2041, 1, 1))  # noqa: DTZ001


# Code in the way ---------------------------------------------------------------------------

Stop = Callable[[], object]


def bare_except(stop: Stop) -> None:
    try:
        stop()
    except:  # noqa: E722
        effects.append("caught")


def suppressed(stop: Stop) -> None:
    with contextlib.suppress(BaseException):
        stop()


def returned_in_finally(stop: Stop) -> None:
    try:
        stop()
    finally:
        return  # noqa: B012


def broken_out_in_finally(stop: Stop) -> None:
    for _ in range(1):
        try:
            stop()
        finally:
            break  # noqa: B012


def raised_from(stop: Stop) -> None:
    try:
        stop()
    except BaseException as error:
        raise ValueError("wrapped") from error


def b45_wrapped_by_a_helper_and_swallowed(stop: Stop) -> None:
    try:
        raised_from(stop)
    except Exception:
        effects.append("cleaned up")


def raised_from_none(stop: Stop) -> None:
    try:
        stop()
    except BaseException:
        raise SystemExit(1) from None


def tried_again_and_again(stop: Stop) -> None:
    for _ in range(10):
        try:
            stop()
            break
        except BaseException:
            continue


def kept_by_a_context_manager(stop: Stop) -> None:
    class Keeps:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> bool:
            return True

    with Keeps():
        stop()


def kept_by_a_generator(stop: Stop) -> None:
    def generate() -> Iterator[object]:
        with contextlib.suppress(BaseException):
            yield stop()

    list(generate())


def gathered(stop: Stop) -> None:
    async def one() -> object:
        return stop()

    async def both() -> None:
        await asyncio.gather(one(), asyncio.sleep(0), return_exceptions=True)

    asyncio.run(both())


def grouped(stop: Stop) -> None:
    async def one() -> object:
        return stop()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one())

    with contextlib.suppress(BaseException):
        asyncio.run(both())


IN_THE_WAY = [
    bare_except,
    suppressed,
    returned_in_finally,
    broken_out_in_finally,
    raised_from,
    b45_wrapped_by_a_helper_and_swallowed,
    raised_from_none,
    tried_again_and_again,
    kept_by_a_context_manager,
    kept_by_a_generator,
    gathered,
    grouped,
]

#: Nothing of the body comes after these.
LEFT_AT_ONCE = [raised_from, raised_from_none]

STOPS: dict[str, Callable[[WorkflowContext], object]] = {
    "sleep": lambda ctx: ctx.sleep(60),
    "sleep_until": lambda ctx: ctx.sleep_until(ctx.started_at + timedelta(minutes=1)),
    "back-off": lambda ctx: second_time_lucky(),
}


@declared.workflow(name="in-the-way")
def in_the_way(ctx: WorkflowContext, way: str, stop: str, then_calls: bool) -> str:
    """Stops once, in whatever way, and goes on as if nothing had happened."""
    ways = {function.__name__: function for function in IN_THE_WAY}
    ways[way](lambda: STOPS[stop](ctx))
    if then_calls:
        note("went on")
    return "done"


@pytest.mark.parametrize("then_calls", [False, True])
@pytest.mark.parametrize("stop", STOPS)
def test_b43_a_suspension_that_user_code_swallows_suspends_all_the_same(
    clock: Clock, caplog: pytest.LogCaptureFixture, stop: str, then_calls: bool
) -> None:
    for way in IN_THE_WAY:
        effects.clear()
        caplog.clear()
        handle = in_the_way.spawn(way.__name__, stop, then_calls)
        declared.tick()
        before = handle.run()
        went_on_before = "went on" in effects
        # The attempt that failed is warned of too.
        warned = [record.getMessage() for record in caplog.records if "its code caught" in record.msg]
        clock.move(seconds=59)
        early = declared.tick()
        clock.move(seconds=1)
        declared.tick()

        named = way.__name__
        assert (before.status, before.attempts, early) == (RunStatus.SLEEPING, 0, 0), named
        assert before.due_at == clock.now(), named
        assert not went_on_before, named
        assert handle.output() == "done", named
        # Where a further call of the body stopped it after all, there is nothing to warn of.
        assert [handle.id in message for message in warned] == (
            [] if then_calls and way not in LEFT_AT_ONCE else [True]
        )


def test_b43_except_exception_lets_a_suspension_through_without_a_warning(
    workflows: Workflows, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflows.workflow(name="careful")
    def careful(ctx: WorkflowContext) -> str:
        try:
            ctx.sleep(60)
        except Exception:
            return "swallowed"
        return "slept"

    handle = careful.spawn()
    run_out(workflows, clock)

    assert handle.output() == "slept"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_b44_what_stands_in_finally_runs_at_each_suspension_but_a_step_there_only_at_the_end(
    workflows: Workflows, clock: Clock
) -> None:
    finals: list[str] = []

    @workflows.workflow(name="tidying")
    def tidying(ctx: WorkflowContext) -> str:
        try:
            ctx.sleep(60)
            note("between")
            ctx.sleep(60)
            return "tidied"
        finally:
            finals.append("plain")
            note("in finally")

    handle = tidying.spawn()
    run_out(workflows, clock)

    assert handle.output() == "tidied"
    assert finals == ["plain"] * 3
    assert effects == ["between", "in finally"]


# Foreign threads ---------------------------------------------------------------------------


def in_a_pool(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call)  # never asked for its result


def in_a_pool_with_the_context(call: Callable[[], object]) -> None:
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(context.run, call)


def in_a_thread_of_asyncio(call: Callable[[], object]) -> None:
    async def gather() -> None:
        await asyncio.gather(asyncio.to_thread(call), return_exceptions=True)

    asyncio.run(gather())


FOREIGN = [in_a_pool, in_a_pool_with_the_context, in_a_thread_of_asyncio]


@pytest.mark.parametrize("call", ["sleep", "now", "step", "ad-hoc step"])
def test_b154_a_call_on_a_foreign_thread_fails_the_run_naming_the_line(
    make_app: apps.MakeApp, database_url: str, call: str
) -> None:
    app = make_app(database_url, WORKFLOWS_MAX_ATTEMPTS=1)
    workflows = apps.workflows_of(app)
    made: list[str] = []

    @workflows.step
    def act() -> None:
        made.append("acted")

    @workflows.workflow
    def threaded(ctx: WorkflowContext, foreign: int) -> str:
        calls: dict[str, Callable[[], object]] = {
            "sleep": lambda: ctx.sleep(60),
            "now": lambda: ctx.now(),
            "step": lambda: act(),
            "ad-hoc step": lambda: ctx.step("act", act.function),
        }
        FOREIGN[foreign](calls[call])
        return "done"

    # In a plain pool a declared step cannot know of the run: it is the plain function there.
    first = 1 if call == "step" else 0
    with app.app_context():
        handles = [threaded.spawn(foreign) for foreign in range(first, len(FOREIGN))]
        workflows.tick()

        assert made == []
        for handle in handles:
            with pytest.raises(RunFailed, match=rf"MisplacedCall: .* was called at {__file__}:\d+ .*lambda") as failed:
                handle.output()
            assert "on a thread the run does not own" in str(failed.value)


def test_a_thread_of_a_step_may_call_other_steps_as_plain_functions(workflows: Workflows, clock: Clock) -> None:
    @workflows.step(name="fan-out")
    def fan_out() -> list[str]:
        context = contextvars.copy_context()
        results: list[str] = []
        thread = Thread(target=context.run, args=(lambda: results.append(note("in a thread")),))
        thread.start()
        thread.join()
        return results

    @workflows.workflow(name="fanning")
    def fanning() -> list[str]:
        return fan_out()

    handle = fanning.spawn()
    run_out(workflows, clock)

    assert handle.output() == ["in a thread"]
    assert [step.key for step in workflows.details(handle.id).steps] == ["fan-out"]


# What is where -----------------------------------------------------------------------------


@on_sqlite
def test_the_current_run_is_there_in_bodies_and_steps_and_nowhere_else(workflows: Workflows, clock: Clock) -> None:
    seen: list[object] = []

    @workflows.step(name="looking")
    def looking() -> str:
        seen.append(WorkflowContext.is_active())
        return current_run.run_id

    @workflows.workflow(name="current")
    def current(ctx: WorkflowContext) -> list[str]:
        seen.append(WorkflowContext.current() is ctx)
        return [current_run.run_id, looking()]

    outside: Handle[Any] = current.spawn()
    before = (bool(current_run), WorkflowContext.current(), WorkflowContext.is_active())
    workflows.tick()

    assert before == (False, None, False)
    assert seen == [True, True]
    assert outside.output() == [outside.id, outside.id]
    assert not current_run
    with pytest.raises(RuntimeError, match="no workflow runs here"):
        current_run.run_id  # noqa: B018
