"""Messages to one run: `handle.send` and `ctx.receive`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Event
from flask_workflows import Handle
from flask_workflows import RunFinished
from flask_workflows import RunNotFound
from flask_workflows import RunStatus
from flask_workflows import ValueRefused
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import InvalidName
from tests import apps
from tests.event_app import declared
from tests.event_app import finished_at_once
from tests.event_app import receiving
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import execute
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db
from tests.running import on_sqlite
from tests.running import Order

pytestmark = pytest.mark.usefixtures("app_context", "clock")


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False)

    declared.clock = None


def test_messages_are_received_in_their_order_each_once(db: SQLAlchemy, app: Flask) -> None:
    run = receiving.spawn(5)
    for number in (1, 2):
        run.send("line", number)
    db.session.commit()
    declared.tick()
    for number in (3, 4):
        run.send("line", number)
    db.session.commit()
    declared.tick()
    before = run.status()
    run.send("line", 5)
    db.session.commit()
    declared.tick()

    assert before is RunStatus.WAITING
    assert run.output() == [1, 2, 3, 4, 5]
    assert rows(app, "SELECT woke FROM workflow_events") == [(1,)] * 5


def test_a_message_sent_long_before_it_is_asked_for_is_kept(db: SQLAlchemy, clock: Clock) -> None:
    @declared.workflow(name="sleeping-first")
    def sleeping_first(ctx: WorkflowContext) -> Any:
        ctx.sleep(timedelta(days=30))
        return ctx.receive("line").payload  # type: ignore[union-attr]

    run = sleeping_first.spawn()
    declared.tick()
    run.send("line", "kept")
    db.session.commit()
    declared.tick()
    clock.move(days=30)

    declared.tick()

    assert run.output() == "kept"


def test_a_message_is_for_its_run_and_its_name_alone(db: SQLAlchemy) -> None:
    run, other, elsewhere = receiving.spawn(1), receiving.spawn(1), receiving.spawn(1, name="page")
    declared.tick()

    run.send("line", "for the first")
    db.session.commit()
    declared.tick()

    assert run.output() == ["for the first"]
    assert [other.status(), elsewhere.status()] == [RunStatus.WAITING, RunStatus.WAITING]


def test_a_message_is_no_event_and_an_event_is_no_message(db: SQLAlchemy) -> None:
    @declared.workflow(name="hearing-events")
    def hearing(ctx: WorkflowContext) -> Any:
        return ctx.wait_for("paid").payload

    hears, receives = hearing.spawn(), receiving.spawn(1, name="paid")
    declared.tick()
    hears.send("paid", "message")
    db.session.commit()
    declared.deliver("paid", "event")
    declared.tick()
    before = receives.status()
    receives.send("paid", "message")
    db.session.commit()
    declared.tick()

    assert hears.output() == "event"
    assert before is RunStatus.WAITING
    assert receives.output() == ["message"]


def test_a_message_of_a_transaction_that_is_rolled_back_is_none(db: SQLAlchemy, app: Flask) -> None:
    run = receiving.spawn(1)
    declared.tick()

    run.send("line", 1)
    db.session.rollback()
    with suppress(ZeroDivisionError), db.session.begin_nested():
        run.send("line", 2)
        raise ZeroDivisionError
    db.session.commit()
    declared.tick()

    assert run.status() is RunStatus.WAITING
    assert rows(app, "SELECT seq FROM workflow_events") == []


def test_a_message_may_be_sent_in_the_transaction_that_starts_its_run(db: SQLAlchemy) -> None:
    run = receiving.start(1)
    run.send("line", "first of all")
    db.session.commit()

    declared.tick()

    assert run.output() == ["first of all"]


def test_a_receive_times_out_and_takes_the_message_the_next_time(db: SQLAlchemy, clock: Clock) -> None:
    run = receiving.spawn(2)
    declared.tick()
    clock.move(hours=1)
    declared.tick()

    run.send("line", "late")
    db.session.commit()
    declared.tick()

    assert run.output() == [None, "late"]


def test_a_message_sent_in_time_is_received_though_no_worker_was_there_until_later(
    db: SQLAlchemy, clock: Clock
) -> None:
    run = receiving.spawn(1)
    declared.tick()
    clock.move(minutes=59)
    run.send("line", "in time")
    db.session.commit()
    clock.move(hours=5)

    declared.tick()

    assert run.output() == ["in time"]


def test_a_message_tells_its_name_its_number_and_when_it_was_sent(db: SQLAlchemy, clock: Clock) -> None:
    seen: list[Event | None] = []

    @declared.workflow(name="reading")
    def reading(ctx: WorkflowContext) -> None:
        seen.append(ctx.receive("line"))

    run = reading.spawn()
    run.send("line")
    db.session.commit()
    declared.tick()

    assert seen[-1] == Event(1, "line", None, clock.now())


@pytest.mark.parametrize("end", ["completed", "cancelled"])
def test_a_message_to_a_finished_run_is_refused(db: SQLAlchemy, end: str) -> None:
    run: Handle[Any] = finished_at_once.spawn() if end == "completed" else receiving.spawn(1)
    declared.tick()
    if end == "cancelled":
        run.cancel()

    with pytest.raises(RunFinished, match="nobody would read the message"):
        run.send("line")

    db.session.commit()


def test_a_message_to_a_run_that_is_gone_is_refused(app: Flask) -> None:
    run = receiving.spawn(1)
    execute(app, "DELETE FROM workflow_runs")

    with pytest.raises(RunNotFound, match="there is no run"):
        run.send("line")


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 256])
def test_b32_a_message_name_that_cannot_be_stored_is_refused(name: str) -> None:
    run = receiving.spawn(1)

    with pytest.raises(InvalidName):
        run.send(name)


@on_sqlite  # nothing of it comes to the database
def test_b70_a_message_that_is_no_json_is_refused() -> None:
    run = receiving.spawn(1)

    with pytest.raises(ValueRefused, match=r"message 'line': the payload: \$\.a is NaN"):
        run.send("line", {"a": float("nan")})


def test_a_message_sent_in_a_body_is_sent_once_whatever_is_replayed(app: Flask, clock: Clock) -> None:
    receiver = receiving.spawn(1)
    declared.tick()

    @declared.workflow(name="answering")
    def answering(ctx: WorkflowContext, to: str) -> None:
        declared.handle(to).send("line", "from a body")
        ctx.sleep(1)
        ctx.sleep(1)

    answering.spawn(receiver.id)
    for _ in range(3):
        declared.tick()
        clock.move(seconds=1)

    assert receiver.output() == ["from a body"]
    assert rows(app, "SELECT count(*) FROM workflow_events") == [(1,)]


def test_a_body_that_sends_to_a_finished_run_is_told_so_at_every_replay(clock: Clock) -> None:
    done = finished_at_once.spawn()
    refused: list[str] = []

    @declared.workflow(name="insisting")
    def insisting(ctx: WorkflowContext, to: str) -> None:
        with pytest.raises(RunFinished):
            declared.handle(to).send("line")
        refused.append(to)
        ctx.sleep(1)

    declared.tick()
    run = insisting.spawn(done.id)
    for _ in range(2):
        declared.tick()
        clock.move(seconds=1)

    assert refused == [done.id] * 2
    assert run.status() is RunStatus.COMPLETED


def test_a_message_sent_in_a_step_commits_with_its_rows(db: SQLAlchemy, app: Flask, clock: Clock) -> None:
    receiver = receiving.spawn(1)
    declared.tick()
    attempts: list[int] = []

    def send(to: str) -> None:
        db.session.add(Order(note=f"attempt {len(attempts)}"))
        declared.handle(to).send("line", len(attempts))
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("after the message")

    @declared.workflow(name="sending-in-a-step")
    def sending(ctx: WorkflowContext, to: str) -> None:
        ctx.step("send", send, to)

    sending.spawn(receiver.id)
    for _ in range(2):
        declared.tick()
        clock.move(minutes=1)

    assert receiver.output() == [1]
    assert rows(app, "SELECT note FROM orders") == [("attempt 1",)]


def test_two_runs_may_talk_to_each_other(db: SQLAlchemy) -> None:
    @declared.workflow(name="ping")
    def ping(ctx: WorkflowContext) -> list[Any]:
        heard = []
        for number in range(3):
            message = ctx.receive("ball")
            assert message is not None
            heard.append(message.payload["number"])
            declared.handle(message.payload["back"]).send("ball", {"number": number, "back": ctx.run_id})
        return heard

    @declared.workflow(name="pong")
    def pong(ctx: WorkflowContext, to: str) -> list[Any]:
        heard = []
        for number in range(3):
            declared.handle(to).send("ball", {"number": 10 + number, "back": ctx.run_id})
            message = ctx.receive("ball")
            assert message is not None
            heard.append(message.payload["number"])
        return heard

    first = ping.spawn()
    second = pong.spawn(first.id)
    declared.tick()

    assert [first.output(), second.output()] == [[10, 11, 12], [0, 1, 2]]


def test_a_retried_run_does_not_receive_a_message_twice(db: SQLAlchemy, clock: Clock) -> None:
    run = receiving.spawn(2)
    run.send("line", 1)
    db.session.commit()
    declared.tick()
    run.cancel()
    run.retry()
    run.send("line", 2)
    db.session.commit()

    declared.tick()

    assert run.output() == [1, 2]


@on_sqlite
def test_in_memory_a_message_is_sent_at_the_commit_and_refused_to_a_finished_run(
    make_app: apps.MakeApp, database_url: str
) -> None:
    workflows = Workflows()

    @workflows.workflow
    def once(ctx: WorkflowContext) -> Any:
        return ctx.receive("line").payload  # type: ignore[union-attr]

    app = make_app(database_url, workflows=workflows, WORKFLOWS_STORE="memory", WORKFLOWS_DASHBOARD=False)
    session = apps.database_of(app).session
    with app.app_context():
        run = once.start()
        run.send("line", 1)
        session.commit()
        workflows.tick()
        output = run.output()
        with pytest.raises(RunFinished):
            run.send("line", 2)

        assert output == 1
    apps.runtime_of(app).close()
