"""Steps: what is recorded, tried again, replayed, and committed with them (R10-R22)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from typing import NoReturn

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import current_run
from flask_workflows import Handle
from flask_workflows import Retry
from flask_workflows import RunFailed
from flask_workflows import RunStatus
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import MisplacedCall
from tests import apps
from tests.running import begin_explicitly
from tests.running import Clock
from tests.running import committed_notes
from tests.running import make_orders_db
from tests.running import on_postgresql
from tests.running import on_sqlite
from tests.running import Order
from tests.running import run_out

pytestmark = pytest.mark.usefixtures("app_context", "clock")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    return make_app(database_url, db=make_orders_db())


def keys_of(workflows: Workflows, handle: Handle[Any]) -> list[str]:
    return [step.key for step in workflows.details(handle.id).steps]


# What is recorded --------------------------------------------------------------------------


def test_calls_are_recorded_by_name_and_use_and_run_once(workflows: Workflows, clock: Clock) -> None:
    made: list[str] = []

    @workflows.step(name="pack it")
    def pack(what: str) -> str:
        made.append(what)
        return f"packed {what}"

    @workflows.step
    def send(what: str) -> str:
        made.append(what)
        return f"sent {what}"

    @workflows.workflow
    def ship(ctx: WorkflowContext) -> list[str]:
        results = [pack("a"), send("b"), pack("c"), ctx.step("weigh", lambda grams: f"{grams} g", 5)]
        ctx.sleep(60)
        results.append(ctx.step("weigh", lambda *, grams: f"{grams} g", grams=6))
        ctx.sleep(60)
        return [*results, pack(what="d")]

    handle = ship.spawn()
    executions = run_out(workflows, clock)

    steps = workflows.details(handle.id).steps
    assert [step.key for step in steps] == [
        *["pack it", "send", "pack it#2", "weigh", "$sleep", "weigh#2", "$sleep#2", "pack it#3"]
    ]
    assert [step.position for step in steps] == list(range(1, 9))
    assert {step.status for step in steps} == {"completed"}
    assert steps[0].input == {"what": "a"}
    assert steps[0].output == "packed a"
    assert executions == 3
    assert made == ["a", "b", "c", "d"]
    assert handle.output() == ["packed a", "sent b", "packed c", "5 g", "6 g", "packed d"]


def test_a_step_called_in_a_step_is_a_plain_call(workflows: Workflows) -> None:
    @workflows.step
    def inner() -> str:
        return "inner"

    @workflows.step
    def outer() -> str:
        return f"{inner()} of outer"

    @workflows.workflow
    def nested() -> str:
        return outer()

    handle = nested.spawn()
    workflows.tick()

    assert handle.output() == "inner of outer"
    assert keys_of(workflows, handle) == ["outer"]


def test_a_call_of_the_context_in_a_step_fails_the_step(workflows: Workflows, clock: Clock) -> None:
    calls: dict[str, Callable[[WorkflowContext], object]] = {
        "sleep": lambda ctx: ctx.sleep(60),
        "sleep_until": lambda ctx: ctx.sleep_until(clock.now()),
        "now": lambda ctx: ctx.now(),
    }

    @workflows.step(retry=Retry(attempts=1))
    def misuse(name: str) -> None:
        calls[name](current_run)

    @workflows.workflow
    def misusing(name: str) -> None:
        misuse(name)

    handles = {name: misusing.spawn(name) for name in calls}
    workflows.tick()

    for name, handle in handles.items():
        error = handle.run().error
        assert error is not None
        assert f"ctx.{name.partition('_')[0]}() was called inside the step 'misuse'" in error.message


def test_what_a_step_returns_is_the_decoded_record_at_once_and_on_replay(workflows: Workflows, clock: Clock) -> None:
    seen: list[tuple[object, ...]] = []

    @workflows.step
    def measure() -> tuple[Decimal, set[str], Receipt]:
        return Decimal("1.10"), {"b", "a"}, Receipt(7, [timedelta(seconds=1)])

    @workflows.step
    def lists() -> list[list[int]]:
        return [shared, shared]

    shared = [1]

    @workflows.workflow
    def measuring(ctx: WorkflowContext) -> None:
        value, nested = measure(), lists()
        assert nested[0] is not nested[1]
        assert nested[0] is not shared
        seen.append((*value, nested))
        ctx.sleep(60)

    measuring.spawn()
    run_out(workflows, clock)

    first, replayed = seen
    assert first == replayed
    assert [type(part) for part in first] == [type(part) for part in replayed] == [Decimal, set, Receipt, list]


@dataclass(frozen=True)
class Receipt:
    number: int
    delays: list[timedelta]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        pytest.param("a\0b", r"\$ contains a NUL", id="b68-nul"),
        pytest.param({"lines": [{}, {"price": float("nan")}]}, r"\$\.lines\[1\]\.price is NaN", id="b70-nan"),
        pytest.param({1: "a"}, r"\$ has a key of type int", id="b71-int-key"),
        pytest.param({"found": (1, 2)}, r"\$\.found is of type tuple", id="b72-tuple"),
        pytest.param([Order(id=1, note="x")], r"\$\[0\] is of type .*Order", id="orm-object"),
        pytest.param({"lock": threading.Lock()}, r"\$\.lock is of type", id="lock"),
        pytest.param("x" * 2_000, "1,?024", id="too-large"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_once_without_repeating_the_side_effect(
    make_app: apps.MakeApp, database_url: str, value: object, where: str
) -> None:
    app = make_app(database_url, db=make_orders_db(), WORKFLOWS_MAX_PAYLOAD_BYTES=1024)
    workflows, db = apps.workflows_of(app), apps.database_of(app)
    effects: list[str] = []

    @workflows.step
    def answer() -> Any:
        effects.append("done")
        db.session.add(Order(note="written"))
        return value

    @workflows.workflow
    def answering() -> None:
        answer()

    with app.app_context():
        handle = answering.spawn()
        executions = workflows.tick()

        assert executions == 1
        assert effects == ["done"]
        assert committed_notes() == []
        with pytest.raises(RunFailed, match=rf"step 'answer'.*{where}"):
            handle.output()


def test_b68_a_message_that_cannot_be_stored_is_stored_with_what_can(workflows: Workflows) -> None:
    @workflows.step(retry=Retry(attempts=1))
    def fail() -> None:
        raise ValueError("a\0b \ud800 é")

    @workflows.workflow
    def failing() -> None:
        fail()

    handle = failing.spawn()
    workflows.tick()

    with pytest.raises(RunFailed, match="ValueError: a\ufffdb \ufffd é"):
        handle.output()


def test_b68_an_output_of_a_run_that_cannot_be_stored_fails_it_at_once(workflows: Workflows) -> None:
    @workflows.workflow
    def answering() -> Any:
        return {"text": "a\0b"}

    handle = answering.spawn()
    executions = workflows.tick()

    assert executions == 1
    with pytest.raises(RunFailed, match=r"workflow 'answering'.*\$\.text contains a NUL"):
        handle.output()


def test_b05_a_run_whose_input_is_broken_fails_alone(workflows: Workflows, db: SQLAlchemy) -> None:
    @workflows.workflow
    def doubling(number: int) -> int:
        return number * 2

    handles = [doubling.spawn(number) for number in range(3)]
    db.session.execute(
        sa.text("UPDATE workflow_runs SET input = '{\"number\": ' WHERE id = :id"), {"id": handles[0].id}
    )
    db.session.commit()
    workflows.tick()

    assert [handle.status() for handle in handles] == [RunStatus.FAILED, RunStatus.COMPLETED, RunStatus.COMPLETED]
    with pytest.raises(RunFailed, match="'doubling'"):
        handles[0].output()


def test_the_idempotency_key_of_a_step_is_the_same_at_each_attempt(workflows: Workflows, clock: Clock) -> None:
    used: list[str] = []

    @workflows.step(retry=Retry(attempts=2))
    def charge() -> None:
        used.append(current_run.idempotency_key)
        if len(used) == 1:
            raise OSError("down")

    @workflows.workflow
    def charging(ctx: WorkflowContext) -> None:
        charge()
        charge()
        with pytest.raises(MisplacedCall):
            ctx.idempotency_key  # noqa: B018

    handle = charging.spawn()
    run_out(workflows, clock)

    assert used == [f"{handle.id}:charge", f"{handle.id}:charge", f"{handle.id}:charge#2"]


def test_an_async_step_runs_through_the_apps_ensure_sync(app: Flask, workflows: Workflows, clock: Clock) -> None:
    def run_in_a_loop(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: asyncio.run(function(*args, **kwargs))

    app.async_to_sync = run_in_a_loop  # type: ignore[method-assign, assignment]
    calls: list[str] = []

    @workflows.step
    async def fetch(what: str) -> str:
        await asyncio.sleep(0)
        calls.append(what)
        return f"fetched {what}"

    @workflows.workflow
    def fetching(ctx: WorkflowContext) -> str:
        fetched: Any = fetch("it")
        ctx.sleep(60)
        return str(fetched)

    handle = fetching.spawn()
    run_out(workflows, clock)

    assert handle.output() == "fetched it"
    assert calls == ["it"]


# Attempts ----------------------------------------------------------------------------------


def test_a_failing_step_is_tried_three_times_ten_then_twenty_seconds_apart(workflows: Workflows, clock: Clock) -> None:
    tried: list[float] = []
    began = clock.now()

    @workflows.step
    def fail() -> None:
        tried.append((clock.now() - began).total_seconds())
        raise OSError(f"down at {tried[-1]}")

    @workflows.workflow
    def failing() -> None:
        fail()

    handle = failing.spawn()
    workflows.tick()
    between = handle.run()
    step = workflows.details(handle.id).steps[0]
    clock.move(seconds=9.999)
    early = workflows.tick()
    run_out(workflows, clock)

    assert (between.status, between.attempts, step.status, step.attempts) == (RunStatus.SLEEPING, 0, "retrying", 1)
    assert early == 0
    assert tried == [0, 10, 30]
    step = workflows.details(handle.id).steps[0]
    assert (step.status, step.attempts) == ("failed", 3)
    assert [attempt.error and attempt.error.message for attempt in step.earlier] == ["down at 0.0", "down at 10.0"]
    with pytest.raises(RunFailed, match=r"StepFailed.*after 3 attempt\(s\): OSError: down at 30\.0"):
        handle.output()


def test_b23_after_the_last_attempt_the_run_fails_without_another_wait(workflows: Workflows, clock: Clock) -> None:
    began = clock.now()

    @workflows.step(retry=Retry(attempts=2, backoff=Retry.constant(5)))
    def fail() -> None:
        raise OSError("down")

    @workflows.workflow
    def failing() -> None:
        fail()

    handle = failing.spawn()
    run_out(workflows, clock)

    run = handle.run()
    assert run.status is RunStatus.FAILED
    assert run.finished_at == began + timedelta(seconds=5)


def test_a_step_that_recovers_goes_on_with_its_result(workflows: Workflows, clock: Clock) -> None:
    errors = [OSError("down"), ValueError("odd")]

    @workflows.workflow
    def recovering(ctx: WorkflowContext) -> int:
        def unsteady() -> int:
            if errors:
                raise errors.pop(0)
            return 7

        return ctx.step("unsteady", unsteady, retry=Retry(attempts=3, backoff=Retry.constant(1)))

    handle = recovering.spawn()
    run_out(workflows, clock)

    step = workflows.details(handle.id).steps[0]
    assert handle.output() == 7
    assert (step.status, step.attempts, len(step.earlier), step.error) == ("completed", 3, 2, None)


# Errors that come back ---------------------------------------------------------------------


class CardDeclined(Exception):
    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason, code)
        self.code = code

    def __str__(self) -> str:
        return f"declined ({self.code})"


class StolenCard(CardDeclined):
    pass


class Forgetful(Exception):
    """Its args do not say what it was made of."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class Incomparable(Exception):
    """Carries something that cannot even be compared."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.frame = Ambiguous()


class Ambiguous:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


Caught = tuple[type[BaseException], str, tuple[object, ...], dict[str, object]]


def catch_twice(workflows: Workflows, clock: Clock, raised: BaseException, **options: Any) -> tuple[int, list[Caught]]:
    """Let a body catch what its step raises, at once and on replay; answer the calls and what was caught."""
    calls: list[int] = []
    caught: list[Caught] = []

    @workflows.step(retry=Retry(attempts=2, backoff=Retry.constant(1)), **options)
    def pay() -> None:
        calls.append(1)
        raise raised

    @workflows.workflow
    def paying(ctx: WorkflowContext) -> str:
        try:
            pay()
        except Exception as error:
            state = {name: value for name, value in vars(error).items() if name != "__notes__"}
            caught.append((type(error), str(error), error.args, state))
        ctx.sleep(60)
        return "went on"

    handle = paying.spawn()
    run_out(workflows, clock)

    assert handle.output() == "went on"
    return len(calls), caught


def test_b42_a_step_that_failed_raises_the_same_on_replay(workflows: Workflows, clock: Clock) -> None:
    calls, caught = catch_twice(workflows, clock, OSError(5, "Äther\0"))

    assert calls == 2
    assert len(caught) == 2
    assert caught[0] == caught[1]
    kind, message, _, state = caught[0]
    assert kind is StepFailed
    assert "OSError" in message
    assert state == {"step": "pay", "attempts": 2, "message": "[Errno 5] Äther\ufffd", "error_type": "OSError"}


@pytest.mark.parametrize("raised", [CardDeclined("lost", 7), StolenCard("stolen", 8)])
def test_b42_a_business_error_is_not_retried_and_comes_back_as_it_was(
    workflows: Workflows, clock: Clock, raised: CardDeclined
) -> None:
    calls, caught = catch_twice(workflows, clock, raised, raises=CardDeclined)

    assert calls == 1
    assert caught == [(type(raised), str(raised), raised.args, {"code": raised.code})] * 2


def test_b42_a_business_error_that_cannot_be_rebuilt_is_a_failed_step_both_times(
    workflows: Workflows, clock: Clock
) -> None:
    class Local(Exception):
        pass

    unstorable: list[Exception] = [
        Forgetful("lost", 7),
        Incomparable("lost"),
        Local("lost"),
        CardDeclined("lost", object()),  # type: ignore[arg-type]
        CardDeclined("a\0b", 7),
    ]
    for number, raised in enumerate(unstorable):
        workflows.registry = type(workflows.registry)()

        calls, caught = catch_twice(workflows, clock, raised, raises=(Exception,))

        assert len(caught) == 2, number
        assert caught[0] == caught[1]
        assert caught[0][0] is StepFailed
        assert calls == 1


def test_a_recorded_failure_left_uncaught_fails_the_run_at_once(workflows: Workflows, clock: Clock) -> None:
    bodies: list[str] = []

    @workflows.step(raises=CardDeclined, retry=Retry(attempts=1))
    def pay(how: str) -> None:
        raise CardDeclined("lost", 7) if how == "card" else OSError("down")

    @workflows.workflow
    def paying(how: str) -> None:
        bodies.append(how)
        pay(how)

    by_card, by_wire = paying.spawn("card"), paying.spawn("wire")
    workflows.tick()

    assert bodies == ["card", "wire"]
    assert {handle.run().attempts for handle in (by_card, by_wire)} == {1}
    with pytest.raises(RunFailed, match=r"CardDeclined: declined \(7\)"):
        by_card.output()
    error = by_wire.run().error
    assert error is not None
    assert (error.step, error.kind) == ("pay", "step")


def test_an_error_the_body_makes_of_a_failure_is_the_bodys_own(workflows: Workflows, clock: Clock) -> None:
    bodies: list[int] = []

    @workflows.step(retry=Retry(attempts=1))
    def pay() -> None:
        raise OSError("down")

    @workflows.workflow
    def paying() -> None:
        bodies.append(1)
        try:
            pay()
        except StepFailed as error:
            raise RuntimeError("unpaid") from error

    handle = paying.spawn()
    run_out(workflows, clock)

    assert len(bodies) == 3
    with pytest.raises(RunFailed, match="RuntimeError: unpaid"):
        handle.output()


# Exceptions that are hard to record --------------------------------------------------------


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")

    __repr__ = __str__


class Demanding(Exception):
    def __init__(self, *, wanted: int) -> None:
        self.wanted = wanted


class Odd(BaseException):
    pass


def recurse() -> NoReturn:
    recurse()


def cyclic() -> NoReturn:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def do() -> NoReturn:
        raise error

    return do


HARD: dict[str, tuple[Callable[[], NoReturn], str]] = {
    "SystemExit": (lambda: sys.exit(3), "SystemExit"),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "GeneratorExit": (raising(GeneratorExit()), "GeneratorExit"),
    "StopIteration": (raising(StopIteration(1)), "StopIteration"),
    "recursion": (recurse, "RecursionError"),
    "cyclic cause": (cyclic, "ValueError"),
    "no message": (raising(Unspeakable()), f"{__name__}.Unspeakable"),
    "required arguments": (raising(Demanding(wanted=1)), f"{__name__}.Demanding"),
    "own BaseException": (raising(Odd("odd")), f"{__name__}.Odd"),
    "group": (raising(ExceptionGroup("two", [OSError("a"), ValueError("b")])), "ExceptionGroup"),
    "base group": (raising(BaseExceptionGroup("two", [KeyboardInterrupt()])), "BaseExceptionGroup"),
    "5 MB": (raising(ValueError("x" * 5_000_000)), "ValueError"),
    "memory": (raising(MemoryError()), "MemoryError"),
    "cancelled": (raising(asyncio.CancelledError()), "asyncio.exceptions.CancelledError"),
}


def test_b75_whatever_a_step_raises_is_recorded_and_the_next_run_goes_on(workflows: Workflows) -> None:
    @workflows.step(retry=Retry(attempts=1))
    def fail(how: str) -> None:
        HARD[how][0]()

    @workflows.workflow
    def failing(how: str) -> None:
        fail(how)

    handles = {how: failing.spawn(how) for how in HARD}
    executions = workflows.tick()

    assert executions == len(HARD)
    for how, handle in handles.items():
        run, step = handle.run(), workflows.details(handle.id).steps[0]
        assert run.status is RunStatus.FAILED
        assert run.error is not None
        assert run.error.type.endswith("StepFailed")
        assert step.error is not None
        assert step.error.type == HARD[how][1]
        assert step.error.traceback is not None
        assert how == "recursion" or "HARD[how][0]()" in step.error.traceback
        assert len(step.error.message) < 11_000


def test_b75_whatever_a_body_raises_is_recorded_and_the_next_run_goes_on(
    make_app: apps.MakeApp, database_url: str
) -> None:
    app = make_app(database_url, WORKFLOWS_MAX_ATTEMPTS=1)
    workflows = apps.workflows_of(app)

    @workflows.workflow
    def failing(how: str) -> None:
        HARD[how][0]()

    with app.app_context():
        handles = {how: failing.spawn(how) for how in HARD}
        executions = workflows.tick()

        assert executions == len(HARD)
        for how, handle in handles.items():
            run = handle.run()
            assert run.status is RunStatus.FAILED
            assert run.error is not None
            assert run.error.type == HARD[how][1]
            assert run.error.traceback is not None
            assert how == "recursion" or "HARD[how][0]()" in run.error.traceback


def test_b145_an_error_of_the_body_uses_the_runs_attempts_five_then_ten_seconds_apart(
    workflows: Workflows, clock: Clock
) -> None:
    began = clock.now()
    tried: list[tuple[float, int]] = []

    @workflows.workflow
    def failing(ctx: WorkflowContext) -> None:
        tried.append(((clock.now() - began).total_seconds(), ctx.attempt))
        raise ValueError("wrong")

    handle = failing.spawn()
    workflows.tick()
    between = handle.run()
    run_out(workflows, clock)

    assert (between.status, between.attempts) == (RunStatus.SLEEPING, 1)
    assert between.error is not None
    assert between.error.message == "wrong"
    assert tried == [(0, 1), (5, 2), (15, 3)]
    run = handle.run()
    assert (run.status, run.attempts) == (RunStatus.FAILED, 3)
    assert run.error is not None
    assert (run.error.type, run.error.message) == ("ValueError", "wrong")
    assert 'raise ValueError("wrong")' in (run.error.traceback or "")


def test_the_runs_attempts_count_again_from_each_newly_stored_step(workflows: Workflows, clock: Clock) -> None:
    bodies: list[int] = []

    @workflows.step
    def note(number: int) -> None: ...

    @workflows.workflow
    def stumbling(ctx: WorkflowContext) -> str:
        """Falls twice before each of four steps: eight faults, never three without progress."""
        bodies.append(ctx.attempt)
        for number in range(4):
            if len(bodies) < 2 * number + 3:
                raise ValueError(f"before step {number}")
            note(number)
        return "arrived"

    handle = stumbling.spawn()
    run_out(workflows, clock)

    assert handle.output() == "arrived"
    assert bodies == [1, 2, 3, 2, 3, 2, 3, 2, 3]


# What a step writes ------------------------------------------------------------------------


def test_what_a_step_leaves_uncommitted_commits_once_with_its_record(
    workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    seen_in_body: list[list[str]] = []

    @workflows.step
    def order(note: str) -> str:
        db.session.add(Order(note=note))
        return note

    @workflows.workflow
    def ordering(ctx: WorkflowContext) -> None:
        order("first")
        seen_in_body.append(committed_notes())
        ctx.sleep(60)
        order("second")
        if ctx.attempt == 1 and len(seen_in_body) < 3:
            raise ValueError("a fault after the step")

    handle = ordering.spawn()
    run_out(workflows, clock)

    assert handle.status() is RunStatus.COMPLETED
    assert seen_in_body[0] == ["first"]
    assert committed_notes() == ["first", "second"]


@pytest.mark.parametrize("transactional", [False, True])
def test_what_a_failed_attempt_wrote_is_gone(
    workflows: Workflows, db: SQLAlchemy, clock: Clock, transactional: bool
) -> None:
    attempts: list[int] = []

    @workflows.step(transactional=transactional)
    def order() -> None:
        attempts.append(len(attempts))
        db.session.add(Order(note=f"attempt {len(attempts)}"))
        db.session.flush()
        if len(attempts) < 3:
            raise OSError("down")

    @workflows.workflow
    def ordering() -> None:
        order()

    handle = ordering.spawn()
    run_out(workflows, clock)

    assert handle.status() is RunStatus.COMPLETED
    assert committed_notes() == ["attempt 3"]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_write_the_database_refuses_at_the_commit_fails_the_attempt(
    workflows: Workflows, db: SQLAlchemy, clock: Clock, transactional: bool
) -> None:
    db.session.add(Order(note="taken"))
    db.session.commit()

    @workflows.step(transactional=transactional, retry=Retry(attempts=2, backoff=Retry.constant(1)))
    def order() -> None:
        db.session.add(Order(note="taken"))

    @workflows.workflow
    def ordering() -> None:
        order()

    handle = ordering.spawn()
    executions = run_out(workflows, clock)

    assert executions == 2
    with pytest.raises(RunFailed, match=r"after 2 attempt\(s\): sqlalchemy\.exc\.IntegrityError"):
        handle.output()


def test_b96_a_session_broken_and_swallowed_in_a_step_spoils_no_later_one(
    workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    db.session.add(Order(note="taken"))
    db.session.commit()

    @workflows.step
    def commit_and_swallow() -> None:
        db.session.add(Order(note="taken"))
        with suppress(sa.exc.IntegrityError):
            db.session.commit()

    @workflows.step
    def flush_and_swallow() -> None:
        db.session.add(Order(note="taken"))
        with suppress(sa.exc.IntegrityError):
            db.session.flush()

    @workflows.step
    def execute_and_swallow() -> None:
        with suppress(sa.exc.IntegrityError):
            db.session.execute(sa.insert(Order).values(note="taken"))

    @workflows.step
    def count() -> int:
        return len(db.session.scalars(sa.select(Order)).all())

    @workflows.workflow
    def swallowing() -> list[int]:
        counts = []
        for step in (commit_and_swallow, flush_and_swallow, execute_and_swallow):
            step()
            counts.append(count())
        return counts

    handle = swallowing.spawn()
    run_out(workflows, clock)

    assert handle.output() == [1, 1, 1]
    assert committed_notes() == ["taken"]


def test_a_step_may_commit_by_itself_where_it_is_not_transactional(
    workflows: Workflows, db: SQLAlchemy, clock: Clock
) -> None:
    @workflows.step
    def order() -> None:
        db.session.add(Order(note="own commit"))
        db.session.commit()
        db.session.add(Order(note="left over"))

    @workflows.workflow
    def ordering() -> None:
        order()

    handle = ordering.spawn()
    run_out(workflows, clock)

    assert handle.status() is RunStatus.COMPLETED
    assert committed_notes() == ["left over", "own commit"]


# Transactional steps -----------------------------------------------------------------------


def run_transactional(workflows: Workflows, function: Callable[[], Any]) -> Handle[Any]:
    step = workflows.step(name="inside", transactional=True)(function)

    @workflows.workflow
    def around() -> None:
        step()

    handle = around.spawn()
    workflows.tick()
    return handle


def test_a_transactional_step_commits_its_savepoints_and_writes_with_its_record(
    workflows: Workflows, db: SQLAlchemy
) -> None:
    def order() -> None:
        with db.session.begin_nested():
            db.session.add(Order(note="in a savepoint"))
        with db.session.begin_nested() as nested:
            db.session.add(Order(note="given up"))
            nested.rollback()
        db.session.add(Order(note="outside of it"))

    handle = run_transactional(workflows, order)

    assert handle.status() is RunStatus.COMPLETED
    assert committed_notes() == ["in a savepoint", "outside of it"]


def test_a_transactional_step_may_roll_back_and_begin_again(workflows: Workflows, db: SQLAlchemy) -> None:
    def order() -> None:
        db.session.add(Order(note="given up"))
        db.session.flush()
        db.session.rollback()
        db.session.add(Order(note="kept"))

    handle = run_transactional(workflows, order)

    assert handle.status() is RunStatus.COMPLETED
    assert committed_notes() == ["kept"]


def test_a_transactional_step_that_commits_is_refused_and_leaves_nothing(workflows: Workflows, db: SQLAlchemy) -> None:
    def order() -> None:
        db.session.add(Order(note="half of it"))
        db.session.commit()

    handle = run_transactional(workflows, order)

    assert committed_notes() == []
    with pytest.raises(RunFailed, match=r"TransactionalRefused: .*must not call db\.session\.commit"):
        handle.output()


def test_a_transactional_step_that_commits_another_session_is_refused_too(workflows: Workflows, db: SQLAlchemy) -> None:
    def order() -> None:
        db.session.remove()
        db.session.add(Order(note="half of it"))
        db.session.commit()

    handle = run_transactional(workflows, order)

    assert committed_notes() == []
    with pytest.raises(RunFailed, match="TransactionalRefused"):
        handle.output()


def test_a_commit_swallowed_in_a_transactional_step_has_not_happened(workflows: Workflows, db: SQLAlchemy) -> None:
    seen: list[list[str]] = []

    def order() -> None:
        db.session.add(Order(note="one transaction"))
        try:
            db.session.commit()
        except Exception:
            seen.append(committed_notes())

    handle = run_transactional(workflows, order)

    assert seen == [[]]
    assert handle.run().finished
    assert committed_notes() == (["one transaction"] if handle.status() is RunStatus.COMPLETED else [])


@pytest.mark.parametrize("how", ["flush", "execute"])
def test_a_transactional_step_that_swallows_the_failure_of_its_transaction_is_refused(
    workflows: Workflows, db: SQLAlchemy, how: str
) -> None:
    def order() -> None:
        db.session.add(Order(note="first"))
        db.session.flush()
        with suppress(sa.exc.IntegrityError):
            if how == "flush":
                db.session.add(Order(note="first"))
                db.session.flush()
            else:
                db.session.execute(sa.insert(Order).values(note="first"))

    handle = run_transactional(workflows, order)

    if how == "execute" and db.engine.dialect.name == "sqlite":
        # There a failed statement leaves the transaction as it was.
        assert handle.status() is RunStatus.COMPLETED
        assert committed_notes() == ["first"]
        return
    assert committed_notes() == []
    with pytest.raises(RunFailed, match=r"TransactionalRefused: .*begin_nested"):
        handle.output()


def test_a_transactional_step_that_uses_another_database_is_refused(make_app: apps.MakeApp, database_url: str) -> None:
    app = make_app(database_url, db=make_orders_db(), SQLALCHEMY_BINDS={"other": "sqlite://"})
    workflows, db = apps.workflows_of(app), apps.database_of(app)

    def order() -> None:
        db.session.add(Order(note="here"))
        db.session.execute(sa.text("SELECT 1"), bind_arguments={"bind": db.engines["other"]})

    with app.app_context():
        handle = run_transactional(workflows, order)

        assert committed_notes() == []
        with pytest.raises(RunFailed, match=r"TransactionalRefused: .*only use the database of the runs"):
            handle.output()


def test_a_transactional_step_where_each_statement_commits_by_itself_is_refused(
    workflows: Workflows, db: SQLAlchemy
) -> None:
    def order() -> None:
        db.session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        db.session.add(Order(note="by itself"))
        db.session.flush()

    handle = run_transactional(workflows, order)

    assert committed_notes() == []
    with pytest.raises(RunFailed, match=r'TransactionalRefused: .*isolation_level="AUTOCOMMIT"'):
        handle.output()


@on_postgresql
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transactional_step_under_a_stricter_isolation_is_refused(
    workflows: Workflows, db: SQLAlchemy, isolation: str
) -> None:
    def order() -> None:
        db.session.connection(execution_options={"isolation_level": isolation})
        db.session.add(Order(note="too strict"))

    handle = run_transactional(workflows, order)

    assert committed_notes() == []
    with pytest.raises(RunFailed, match=f"TransactionalRefused: .*needs READ COMMITTED.*{isolation.lower()}"):
        handle.output()


@on_postgresql
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_transactional_step_that_loses_to_a_rival_runs_again_without_using_an_attempt(
    workflows: Workflows, db: SQLAlchemy, code: str
) -> None:
    calls: list[int] = []

    def order() -> None:
        calls.append(1)
        db.session.add(Order(note=f"call {len(calls)}"))
        db.session.flush()
        if len(calls) < 4:
            db.session.execute(sa.text(f"DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END $$"))

    handle = run_transactional(workflows, order)

    step = workflows.details(handle.id).steps[0]
    assert handle.status() is RunStatus.COMPLETED
    assert (step.attempts, step.earlier) == (1, ())
    assert committed_notes() == ["call 4"]


@on_postgresql
@pytest.mark.parametrize(
    "options",
    [{"postgresql_readonly": True}, {"isolation_level": "REPEATABLE READ"}, {"isolation_level": "SERIALIZABLE"}],
)
def test_a_step_that_reads_in_a_transaction_of_another_kind_is_recorded_beside_it(
    workflows: Workflows, db: SQLAlchemy, options: dict[str, Any]
) -> None:
    calls: list[int] = []

    @workflows.step
    def read() -> int:
        calls.append(1)
        db.session.connection(execution_options=options)
        count = len(db.session.scalars(sa.select(Order)).all())
        # As the renewal of the lease does meanwhile.
        with db.engine.begin() as connection:
            connection.execute(sa.text("UPDATE workflow_runs SET updated_at = updated_at + 1"))
        return count

    @workflows.workflow
    def reading() -> int:
        return read()

    handle = reading.spawn()
    workflows.tick()

    assert handle.output() == 0
    assert len(calls) == 1


@on_sqlite
def test_a_transactional_step_that_finds_the_database_locked_runs_again_without_using_an_attempt(
    workflows: Workflows, db: SQLAlchemy
) -> None:
    calls: list[int] = []
    rival = sqlite3.connect(db.engine.url.database or "")

    def order() -> None:
        calls.append(1)
        db.session.execute(sa.text("PRAGMA busy_timeout = 1"))
        if len(calls) < 3:
            rival.execute("BEGIN IMMEDIATE")
        try:
            db.session.add(Order(note=f"call {len(calls)}"))
            db.session.flush()
        finally:
            rival.rollback()

    handle = run_transactional(workflows, order)
    rival.close()

    step = workflows.details(handle.id).steps[0]
    assert handle.status() is RunStatus.COMPLETED
    assert (step.attempts, step.earlier) == (1, ())
    assert committed_notes() == ["call 3"]


# What a body writes ------------------------------------------------------------------------

BODY_WRITES: dict[str, Callable[[Any], object]] = {
    "unflushed": lambda session: session.add(Order(note="body")),
    "flushed": lambda session: (session.add(Order(note="body")), session.flush()),
    "executed": lambda session: session.execute(sa.insert(Order).values(note="body")),
    "changed": lambda session: setattr(session.scalars(sa.select(Order)).one(), "note", "body"),
    "deleted": lambda session: session.delete(session.scalars(sa.select(Order)).one()),
}


@pytest.mark.parametrize("before", ["a step", "a sleep", "a start", "the end"])
def test_a_body_with_writes_of_its_own_at_a_call_is_refused(
    make_app: apps.MakeApp, database_url: str, before: str
) -> None:
    app = make_app(database_url, db=make_orders_db(), WORKFLOWS_MAX_ATTEMPTS=1)
    workflows, db = apps.workflows_of(app), apps.database_of(app)
    effects: list[str] = []

    @workflows.step
    def act() -> None:
        effects.append("acted")

    @workflows.workflow
    def other() -> None: ...

    @workflows.workflow
    def writing(ctx: WorkflowContext, how: str) -> None:
        BODY_WRITES[how](db.session)
        if before == "a step":
            act()
        elif before == "a sleep":
            ctx.sleep(60)
        elif before == "a start":
            other.start()

    with app.app_context():
        db.session.add(Order(note="there before"))
        db.session.commit()
        handles = [writing.spawn(how) for how in BODY_WRITES]
        workflows.tick()

        assert effects == []
        assert committed_notes() == ["there before"]
        assert len(workflows.runs()) == len(handles)
        for handle in handles:
            with pytest.raises(RunFailed, match=r"UncommittedBodyWrites: .*put the write into a step"):
                handle.output()


def test_a_body_that_reads_or_commits_by_itself_is_not_refused(workflows: Workflows, db: SQLAlchemy) -> None:
    @workflows.step
    def act() -> None: ...

    @workflows.workflow
    def reading() -> int:
        db.session.add(Order(note="committed by the body"))
        db.session.commit()
        count = len(db.session.scalars(sa.select(Order)).all())
        act()
        return count + len(db.session.scalars(sa.select(Order)).all())

    handle = reading.spawn()
    workflows.tick()

    assert handle.output() == 2


@on_sqlite
def test_a_body_that_reads_is_not_refused_where_the_app_begins_transactions_itself(
    workflows: Workflows, db: SQLAlchemy
) -> None:
    begin_explicitly(db.engine)

    @workflows.step
    def order(note: str) -> int:
        count = len(db.session.scalars(sa.select(Order)).all())
        db.session.add(Order(note=note))
        return count

    @workflows.workflow
    def reading(writes: bool) -> list[int]:
        count = len(db.session.scalars(sa.select(Order)).all())
        if writes:
            db.session.execute(sa.insert(Order).values(note="body"))
        return [count, order("a"), order("b")]

    reads, writes = reading.spawn(False), reading.spawn(True)
    workflows.tick()

    assert reads.output() == [0, 0, 1]
    assert writes.status() is RunStatus.SLEEPING
    error = writes.run().error
    assert error is not None
    assert error.type.endswith("UncommittedBodyWrites")
    assert committed_notes() == ["a", "b"]
