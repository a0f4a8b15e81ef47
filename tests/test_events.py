"""Emitting events and waiting for them (R26, R27)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from enum import Enum
from typing import Any
from typing import TypedDict

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import Event
from flask_workflows import EventMatch
from flask_workflows import Happened
from flask_workflows import InlineNeedsCommit
from flask_workflows import models
from flask_workflows import RunStatus
from flask_workflows import SessionBusy
from flask_workflows import UnregisteredEvent
from flask_workflows import ValueRefused
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.errors import InvalidInstant
from flask_workflows.errors import InvalidName
from tests import apps
from tests.event_app import awaiting
from tests.event_app import awaiting_any
from tests.event_app import awaiting_several
from tests.event_app import awaiting_since
from tests.event_app import Completed
from tests.event_app import counting
from tests.event_app import declared
from tests.event_app import emitting
from tests.event_app import HOUR
from tests.event_app import in_context
from tests.event_app import session_of
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import execute
from tests.processes import outsider
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db
from tests.running import on_postgresql
from tests.running import on_sqlite
from tests.running import Order

pytestmark = pytest.mark.usefixtures("app_context", "clock")

INLINE = {"WORKFLOWS_EXECUTION": "inline", "WORKFLOWS_DASHBOARD": False}


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False)

    declared.clock = None


def events(app: Flask) -> list[tuple[Any, ...]]:
    """Each event's name, whether it was matched, and how many waits it ended."""
    return [
        (name, matched is not None, woke)
        for name, matched, woke in rows(app, "SELECT name, matched_at, woke FROM workflow_events ORDER BY seq")
    ]


def match(app: Flask) -> None:
    """Match what was emitted so far, as a worker does that finds no run to execute."""
    apps.runtime_of(app).events.match_all()


def open_waits(app: Flask) -> int:
    ((count,),) = rows(app, "SELECT count(*) FROM workflow_waits")

    return int(count)


# Whose transaction -------------------------------------------------------------------------


def test_an_emitted_event_counts_once_its_session_commits(app: Flask, db: SQLAlchemy) -> None:
    run = awaiting_any.spawn()
    declared.tick()

    declared.emit("paid", {"order": 1})
    executed_before = declared.tick() if db.engine.dialect.name == "postgresql" else 0
    db.session.commit()
    declared.tick()

    assert executed_before == 0
    assert run.output() == {"order": 1}
    assert events(app) == [("paid", True, 1)]


def test_an_emitted_event_vanishes_with_a_rollback(app: Flask, db: SQLAlchemy) -> None:
    run = awaiting_any.spawn()
    declared.tick()

    declared.emit("paid", {"order": 1})
    db.session.rollback()
    db.session.commit()
    declared.tick()

    assert run.status() is RunStatus.WAITING
    assert events(app) == []


def test_an_event_of_a_savepoint_vanishes_with_it(app: Flask, db: SQLAlchemy) -> None:
    run = awaiting_any.spawn()
    declared.tick()

    declared.emit("paid", "before")
    with suppress(ZeroDivisionError), db.session.begin_nested():
        declared.emit("paid", "inside")
        raise ZeroDivisionError
    declared.emit("paid", "after")
    db.session.commit()
    declared.tick()

    assert run.output() == "before"
    assert rows(app, "SELECT payload FROM workflow_events ORDER BY seq") == [('"before"',), ('"after"',)]


def test_an_event_of_a_released_savepoint_vanishes_with_the_outer_rollback(app: Flask, db: SQLAlchemy) -> None:
    run = awaiting_any.spawn()
    declared.tick()

    # The savepoint comes first: SQLite's driver opens no transaction around it by itself.
    with db.session.begin_nested():
        declared.emit("paid", "inside")
    db.session.rollback()
    declared.tick()

    assert run.status() is RunStatus.WAITING
    assert events(app) == []


def test_an_event_of_a_released_savepoint_counts_once_the_outer_transaction_commits(app: Flask, db: SQLAlchemy) -> None:
    run = awaiting_any.spawn()
    declared.tick()

    with db.session.begin_nested(), db.session.begin_nested():
        declared.emit("paid", "inside")
    db.session.commit()
    declared.tick()

    assert run.output() == "inside"


def test_emitting_flushes_nothing(db: SQLAlchemy) -> None:
    order = Order()  # without its note, which must not be null
    db.session.add(order)

    declared.emit("paid")
    order.note = "given later"
    db.session.commit()

    assert db.session.scalar(sa.select(Order.note)) == "given later"


def test_delivering_commits_at_once_whatever_becomes_of_the_session(app: Flask, db: SQLAlchemy) -> None:
    db.session.execute(sa.select(Order)).all()

    created = declared.deliver("paid", {"order": 1})
    db.session.rollback()

    assert created
    assert events(app) == [("paid", False, 0)]


@on_sqlite
def test_delivering_is_refused_in_a_session_that_holds_the_write_lock(db: SQLAlchemy) -> None:
    db.session.add(Order(note="first"))
    db.session.flush()

    with pytest.raises(SessionBusy, match="use start\\(\\) or emit\\(\\)"):
        declared.deliver("paid")


@on_postgresql
def test_b37_an_event_whose_transaction_commits_late_is_delivered_too(app: Flask, db: SQLAlchemy) -> None:
    first, second = awaiting.spawn(1), awaiting.spawn(2)
    declared.tick()

    declared.emit("paid", {"order": 1})
    with app.app_context():  # a session of its own
        declared.emit("paid", {"order": 2})
        db.session.commit()
    declared.tick()
    before = [first.status(), second.status()]
    db.session.commit()
    declared.tick()

    assert before == [RunStatus.WAITING, RunStatus.SLEEPING]
    assert first.status() is RunStatus.SLEEPING
    assert events(app) == [("paid", True, 1), ("paid", True, 1)]


@on_postgresql
def test_b37_a_wait_stored_between_an_emit_and_its_commit_takes_the_event(app: Flask, db: SQLAlchemy) -> None:
    declared.emit("paid", {"order": 1})
    with app.app_context():
        run = awaiting.spawn(1)
        declared.tick()
    before = run.status()

    db.session.commit()
    declared.tick()

    assert before is RunStatus.WAITING
    assert run.status() is RunStatus.SLEEPING


@on_sqlite
def test_b37_of_two_transactions_that_emit_the_second_waits_and_both_events_are_delivered(
    app: Flask, db: SQLAlchemy
) -> None:
    first, second = awaiting.spawn(1), awaiting.spawn(2)
    declared.tick()
    begun = threading.Event()

    def emit_second() -> None:
        begun.set()
        declared.emit("paid", {"order": 2})
        db.session.commit()

    declared.emit("paid", {"order": 1})
    thread = threading.Thread(target=in_context(app, emit_second))
    thread.start()
    begun.wait(10)
    db.session.commit()
    thread.join(10)
    declared.tick()

    assert [first.status(), second.status()] == [RunStatus.SLEEPING, RunStatus.SLEEPING]


@on_postgresql
def test_an_emitter_holds_up_no_run_and_no_run_holds_up_an_emitter(app: Flask, db: SQLAlchemy) -> None:
    runs = [awaiting.spawn(number) for number in range(3)]
    declared.tick()

    for number in range(3):
        declared.emit("paid", {"order": number})
    locked = rows(
        app,
        """SELECT c.relname FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
           WHERE c.relname IN ('workflow_runs', 'workflow_steps', 'workflow_waits') AND l.mode <> 'AccessShareLock'""",
    )
    with app.app_context():
        cancelled = declared.cancel(runs[0].id)
        declared.clock.move(hours=2)  # type: ignore[union-attr]
        declared.tick()
    db.session.commit()

    assert locked == []
    assert cancelled.status is RunStatus.CANCELLED
    assert [run.status() for run in runs[1:]] == [RunStatus.SLEEPING, RunStatus.SLEEPING]


# What counts for a wait --------------------------------------------------------------------


def test_events_are_listed_newest_first_matched_or_not(app: Flask) -> None:
    awaiting.spawn(order=7)
    declared.tick()
    declared.deliver("paid", {"order": 8})
    declared.deliver("paid", {"order": 7})
    new = declared.emitted("paid")
    declared.tick()

    listed = declared.emitted("paid", limit=2)

    assert [event.matched_at for event in new] == [None, None]
    assert [(event.payload, event.woke, event.unmatched) for event in listed] == [
        ({"order": 7}, 1, False),
        ({"order": 8}, 0, True),
    ]
    assert declared.emitted("course.completed") == ()


def test_an_event_that_came_before_the_wait_does_not_count_and_is_listed_as_unmatched(app: Flask) -> None:
    declared.deliver("paid", {"order": 1})
    run = awaiting.spawn(1)

    declared.tick()

    assert run.status() is RunStatus.WAITING
    assert events(app) == [("paid", True, 0)]


@pytest.mark.parametrize("matched", [False, True], ids=["new", "matched"])
def test_b33_an_event_right_after_the_start_is_not_lost_to_a_wait_since_the_start(
    app: Flask, db: SQLAlchemy, matched: bool
) -> None:
    run = awaiting_since.start(1)
    declared.emit("paid", {"order": 1})
    db.session.commit()
    if matched:
        match(app)

    declared.tick()

    assert run.output() == "event 1"
    assert events(app) == [("paid", True, 1)]


def test_since_takes_what_was_emitted_at_that_very_instant_and_nothing_older(clock: Clock) -> None:
    declared.deliver("paid", {"order": 1})
    clock.move(milliseconds=1)
    run = awaiting_since.spawn(1)
    declared.deliver("paid", {"order": 2})
    declared.tick()
    before = run.status()

    declared.deliver("paid", {"order": 1})
    declared.tick()

    assert before is RunStatus.WAITING
    assert run.output() == "event 3"


@pytest.mark.parametrize("matched", [False, True], ids=["new", "matched"])
def test_of_several_stored_events_the_oldest_is_taken(app: Flask, matched: bool) -> None:
    run = counting.spawn(3)
    for number in (1, 2, 3):
        declared.deliver("paid", {"number": number})
    if matched:
        match(app)

    declared.tick()

    assert run.output() == [1, 2, 3]


def test_events_beyond_the_first_five_hundred_are_looked_at(app: Flask, clock: Clock) -> None:
    run = awaiting_since.spawn(7)
    other = {"name": "paid", "workspace": "", "payload": '{"order":8}', "matched_at": 1, "woke": 0}
    at = int(clock.now().timestamp() * 1000)
    with outsider(app).begin() as connection:
        connection.execute(models.events.insert(), [{**other, "emitted_at": at} for _ in range(600)])
    declared.deliver("paid", {"order": 7})

    declared.tick()

    assert run.output() == "event 601"


@on_postgresql
def test_since_does_not_take_away_what_commits_after_the_wait(app: Flask, db: SQLAlchemy, clock: Clock) -> None:
    """Emitted before `since`, but committed after the wait was stored: the first of the two rules has it."""
    declared.emit("paid", {"order": 1})
    clock.move(minutes=1)
    with app.app_context():
        run = awaiting_since.spawn(1)
        declared.tick()
    # As if the event had been matched between the wait's snapshot and its commit, and the wait looked through after it.
    execute(app, "UPDATE workflow_waits SET checked = 0")

    db.session.commit()
    execute(app, "UPDATE workflow_events SET matched_at = 1")
    declared.tick()

    assert run.output() == "event 1"


def test_a_run_receives_one_event_once_under_a_name(app: Flask) -> None:
    run = counting.spawn(2)
    declared.deliver("paid", {"number": 1})
    declared.tick()
    before = run.status()

    declared.deliver("paid", {"number": 2})
    declared.tick()

    assert before is RunStatus.WAITING
    assert run.output() == [1, 2]
    assert events(app) == [("paid", True, 1), ("paid", True, 1)]


def test_one_event_goes_to_every_run_that_waits_for_it(app: Flask) -> None:
    runs = [awaiting_any.spawn() for _ in range(5)]
    declared.tick()

    declared.deliver("paid", "all")
    declared.tick()

    assert [run.output() for run in runs] == ["all"] * 5
    assert events(app) == [("paid", True, 5)]


def test_only_waits_with_a_match_that_holds_are_ended(app: Flask) -> None:
    runs = [awaiting.spawn(1), awaiting.spawn(2), awaiting_any.spawn(), awaiting_any.spawn("shipped")]
    declared.tick()

    declared.deliver("paid", {"order": 2})
    declared.tick()

    assert [str(run.status()) for run in runs] == ["waiting", "sleeping", "completed", "waiting"]


@pytest.mark.parametrize("payload", ["1", True, "x", None, [1], {"id": 1}])
def test_one_is_neither_the_text_one_nor_true(payload: object) -> None:
    run = awaiting.spawn(1)
    declared.tick()

    declared.deliver("paid", {"order": payload})
    declared.tick()
    before = run.status()
    declared.deliver("paid", {"order": 1.0})
    declared.tick()

    assert before is RunStatus.WAITING
    assert run.status() is RunStatus.SLEEPING


def test_a_dotted_path_matches_in_stored_events_and_in_new_ones(app: Flask) -> None:
    workflows = declared

    @workflows.workflow(name="dotted")
    def dotted(ctx: WorkflowContext) -> list[Any]:
        match = {"invoice.lines.0.sku": "knots", "invoice.paid": True}
        events = [ctx.wait_for("paid", match=match, timeout=HOUR, since=ctx.started_at) for _ in range(2)]
        return [event.payload["number"] for event in events]

    run = dotted.spawn()
    for number, sku in enumerate(["knots", "loops", "knots"]):
        if number == 2:
            match(app)
            declared.tick()
        declared.deliver("paid", {"invoice": {"lines": [{"sku": sku}], "paid": True}, "number": number})

    declared.tick()

    assert run.output() == [0, 2]


@pytest.mark.parametrize("payload", [None, False, 0, "", [], {}])
def test_an_event_whose_payload_says_nothing_is_an_event_all_the_same(payload: object) -> None:
    workflows = declared

    @workflows.workflow(name="hearing")
    def hearing(ctx: WorkflowContext) -> bool:
        event = ctx.wait_for("paid", timeout=HOUR)
        return isinstance(event, Event) and event.payload == payload

    run = hearing.spawn()
    declared.tick()

    declared.deliver("paid", payload)
    declared.tick()

    assert run.output() is True


def test_an_event_tells_its_name_its_number_and_when_it_was_emitted(app: Flask, clock: Clock) -> None:
    seen: list[Event] = []

    @declared.workflow(name="telling")
    def telling(ctx: WorkflowContext) -> None:
        seen.append(ctx.wait_for("paid"))

    telling.spawn()
    declared.tick()
    clock.move(minutes=5)
    emitted_at = clock.now()

    declared.deliver("paid", {"order": 1})
    clock.move(minutes=5)
    declared.tick()

    assert seen == [Event(1, "paid", {"order": 1}, emitted_at)]


# Time-outs ---------------------------------------------------------------------------------


def test_a_wait_without_an_event_times_out(clock: Clock, app: Flask) -> None:
    run = awaiting.spawn(1, minutes=5)
    declared.tick()

    clock.move(minutes=4, seconds=59)
    early = declared.tick()
    clock.move(seconds=1)
    declared.tick()
    clock.move(seconds=1)
    declared.tick()

    assert early == 0
    assert run.output() == "time-out"
    assert open_waits(app) == 0


def test_an_event_after_the_time_out_changes_nothing(clock: Clock, app: Flask) -> None:
    run = awaiting.spawn(1, minutes=5)
    declared.tick()
    clock.move(minutes=5)
    declared.tick()

    declared.deliver("paid", {"order": 1})
    clock.move(seconds=1)
    declared.tick()

    assert run.output() == "time-out"
    assert events(app) == [("paid", True, 0)]


@pytest.mark.parametrize("timeout", [0, 0.0005])
def test_a_wait_of_no_time_takes_what_is_stored(timeout: float) -> None:
    @declared.workflow(name=f"glancing{timeout}")
    def glancing(ctx: WorkflowContext) -> list[Any]:
        events = [ctx.wait_for("paid", timeout=timeout, since=ctx.started_at) for _ in range(2)]
        return [event and event.payload for event in events]

    run = glancing.spawn()
    declared.deliver("paid", "stored")

    for _ in range(4):
        declared.clock.move(milliseconds=1)  # type: ignore[union-attr]
        declared.tick()

    assert run.output() == ["stored", None]


def test_an_event_that_came_in_time_counts_though_no_worker_was_there_until_after_it(clock: Clock) -> None:
    """B39: the workers are down from before the event until after the time-out."""
    run = awaiting.spawn(1, minutes=5)
    declared.tick()

    clock.move(minutes=4)
    declared.deliver("paid", {"order": 1})
    clock.move(minutes=10)
    declared.tick()
    clock.move(seconds=1)
    declared.tick()

    assert run.output() == "event 1"


def test_b39_a_time_out_that_passed_while_all_workers_were_down_is_seen_by_the_next(clock: Clock) -> None:
    run = awaiting.spawn(1, minutes=5)
    declared.tick()

    clock.move(days=3)
    executed = declared.tick()
    again = declared.tick()

    assert (executed, again) == (1, 0)
    assert run.status() is RunStatus.SLEEPING


def test_a_wait_without_a_time_out_waits_for_years(clock: Clock) -> None:
    run = awaiting.spawn(1, minutes=None)
    declared.tick()
    clock.move(days=4_000)
    executed = declared.tick()

    declared.deliver("paid", {"order": 1})
    declared.tick()

    assert executed == 0
    assert run.status() is RunStatus.SLEEPING


def test_a_wait_starts_the_count_of_attempts_again(clock: Clock) -> None:
    """R18, B24: a run that only waits, and stumbles now and then, goes on for years."""
    stumbles: list[int] = []

    @declared.workflow(name="stumbling")
    def stumbling(ctx: WorkflowContext) -> int:
        for number in range(5):
            ctx.wait_for("paid", timeout=HOUR)
            if number not in stumbles:
                stumbles.append(number)
                raise ConnectionError("once")
        return len(stumbles)

    run = stumbling.spawn()
    for _ in range(12):
        declared.tick()
        declared.deliver("paid")
        clock.move(minutes=1)

    assert run.output() == 5


def test_what_a_wait_came_to_is_the_same_at_every_replay(clock: Clock) -> None:
    seen: list[Any] = []

    @declared.workflow(name="replayed")
    def replayed(ctx: WorkflowContext) -> None:
        seen.append((ctx.wait_for("paid", timeout=HOUR), ctx.wait_for("shipped", timeout=60)))
        for _ in range(3):
            ctx.sleep(1)
            seen.append(seen[-1])

    replayed.spawn()
    declared.tick()
    declared.deliver("paid", {"order": 1})
    for _ in range(6):
        declared.tick()
        clock.move(minutes=1)

    outcomes = [outcome for outcome in seen if outcome != seen[0]]
    assert seen[0][0].payload == {"order": 1}
    assert seen[0][1] is None
    assert outcomes == []


# Several events ----------------------------------------------------------------------------


def test_b124_the_first_of_several_events_ends_the_wait_and_drops_the_others(app: Flask, clock: Clock) -> None:
    run = awaiting_several.spawn(1)
    declared.tick()
    waiting_before = open_waits(app)

    declared.deliver("shipped", {"order": 1})
    declared.tick()
    clock.move(hours=2)
    later = declared.tick()

    assert waiting_before == 3
    assert run.output() == [1, {"order": 1}]
    assert open_waits(app) == 0
    assert later == 0
    assert rows(app, "SELECT due_at FROM workflow_runs") == [(None,)]


def test_several_events_may_time_out_together(app: Flask, clock: Clock) -> None:
    run = awaiting_several.spawn(1)
    declared.tick()

    clock.move(hours=1)
    declared.tick()

    assert run.output() == ["time-out"]
    assert open_waits(app) == 0


def test_of_several_stored_events_the_oldest_ends_the_wait_whatever_their_names(app: Flask) -> None:
    @declared.workflow(name="choosing")
    def choosing(ctx: WorkflowContext) -> int:
        since = ctx.started_at
        happened = ctx.wait_any([EventMatch("shipped", since=since), EventMatch("paid", since=since)])
        assert isinstance(happened, Happened)
        return happened.number

    run = choosing.spawn()
    declared.deliver("paid")
    declared.deliver("shipped")
    match(app)

    declared.tick()

    assert run.output() == 1


def test_an_event_that_answers_two_of_several_is_the_first_of_them(app: Flask) -> None:
    @declared.workflow(name="doubling")
    def doubling(ctx: WorkflowContext) -> int:
        happened = ctx.wait_any([EventMatch("shipped"), EventMatch("paid", {"order": 1}), "paid", EventMatch("paid")])
        assert happened is not None
        return happened.number

    run = doubling.spawn()
    declared.tick()

    declared.deliver("paid", {"order": 1})
    declared.tick()

    assert run.output() == 1
    assert events(app) == [("paid", True, 1)]


@on_sqlite  # nothing of it comes to the database
def test_waiting_for_none_of_no_events_is_refused() -> None:
    @declared.workflow(name="nothing")
    def nothing(ctx: WorkflowContext) -> None:
        ctx.wait_any([])

    run = nothing.spawn()
    declared.tick()

    error = run.run().error
    assert error is not None
    assert "wait_any() needs at least one event" in error.message


# Types of payloads -------------------------------------------------------------------------


class Level(Enum):
    BASIC = "basic"


class Priced(TypedDict):
    price: int
    due: datetime


@pytest.mark.parametrize("emitted", [Completed(8, "knots"), {"user_id": 8, "course": "knots"}])
def test_an_event_of_a_dataclass_comes_back_as_its_object(emitted: Any) -> None:
    seen: list[Any] = []

    @declared.workflow(name="graduating")
    def graduating(ctx: WorkflowContext) -> None:
        seen.append(ctx.wait_for(Completed, match={"user_id": 8}))
        ctx.sleep(0)

    graduating.spawn()
    declared.tick()
    if isinstance(emitted, Completed):
        declared.deliver(emitted)
    else:
        declared.deliver("completed", emitted)
    declared.tick()

    assert seen == [Completed(8, "knots")]


def test_an_event_of_a_typed_dict_keeps_the_types_of_its_values(db: SQLAlchemy) -> None:
    workflows = declared
    workflows.event("priced")(Priced)
    due = datetime(2026, 11, 30, 12, tzinfo=UTC)
    seen: list[Any] = []

    @workflows.workflow(name="pricing")
    def pricing(ctx: WorkflowContext) -> None:
        seen.append(ctx.wait_for(Priced, match={"due": due}))

    pricing.spawn()
    declared.tick()

    declared.emit("priced", Priced(price=3, due=due))
    db.session.commit()
    declared.tick()

    assert seen == [{"price": 3, "due": due}]
    with pytest.raises(ValueRefused, match=r"event 'priced'.*price"):
        declared.emit("priced", {"price": "3", "due": due})


def test_an_event_of_a_pydantic_model_comes_back_as_the_model() -> None:
    pydantic = pytest.importorskip("pydantic")
    Signed = declared.event("signed")(pydantic.create_model("Signed", user_id=(int, ...), name=(str, "nobody")))
    seen: list[Any] = []

    @declared.workflow(name="signing")
    def signing(ctx: WorkflowContext) -> None:
        seen.extend(ctx.wait_for("signed", match={"user_id": 8}) for _ in range(2))

    signing.spawn()
    declared.tick()
    declared.deliver(Signed(user_id=8))
    declared.tick()
    declared.deliver("signed", {"user_id": 8, "name": "Ann"})
    declared.tick()

    assert seen[-2:] == [Signed(user_id=8), Signed(user_id=8, name="Ann")]


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"user_id": "8", "course": "knots"}, "the payload is no Completed"),
        ({"user_id": 8}, "the payload is no Completed"),
        (None, "event 'completed'"),
        ("knots", "event 'completed'"),
    ],
)
def test_a_payload_that_does_not_fit_its_class_is_refused_where_it_is_emitted(payload: Any, reason: str) -> None:
    with pytest.raises(ValueRefused, match=reason):
        declared.emit("completed", payload)


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize("payload", [float("nan"), {"a": "x\0"}, {1: 2}, object(), Level.BASIC, (1, 2)])
def test_b70_a_payload_that_is_no_json_is_refused_where_it_is_emitted(payload: Any) -> None:
    with pytest.raises(ValueRefused, match="event 'paid'"):
        declared.emit("paid", payload)


@on_sqlite  # nothing of it comes to the database
def test_a_payload_has_a_largest_size(app: Flask) -> None:
    with pytest.raises(ValueRefused, match="1,048,576 are allowed"):
        declared.emit("paid", "x" * 1_048_576)


# Names -------------------------------------------------------------------------------------


@on_sqlite  # nothing of it comes to the database
def test_an_unregistered_event_can_neither_be_emitted_nor_waited_for() -> None:
    @declared.workflow(name="mistaken")
    def mistaken(ctx: WorkflowContext) -> None:
        ctx.wait_for("payed")

    for emit in (declared.emit, declared.deliver):
        with pytest.raises(UnregisteredEvent, match=r"no event 'payed' is registered here \(registered: .*paid"):
            emit("payed")
    with pytest.raises(UnregisteredEvent, match="of class Level"):
        declared.emit(Level.BASIC)
    run = mistaken.spawn()
    for _ in range(3):
        declared.tick()
        declared.clock.move(minutes=1)  # type: ignore[union-attr]

    error = run.run().error
    assert run.status() is RunStatus.FAILED
    assert error is not None
    assert error.short_type == "UnregisteredEvent"


@on_sqlite  # nothing of it comes to the database
def test_an_object_is_emitted_alone() -> None:
    with pytest.raises(ValueRefused, match="an object of the event's class alone"):
        declared.emit(Completed(8, "knots"), {"user_id": 8})


@pytest.mark.parametrize("name", ["x" * 255, "😀" * 255, "a/b", "..", "?x=1#y", "%s", "o'clock", "שלום"])
def test_b32_any_other_name_can_be_waited_for_emitted_and_received(app: Flask, name: str) -> None:
    declared.event(name)

    @declared.workflow(name="named")
    def named(ctx: WorkflowContext, name: str) -> list[Any]:
        events = [ctx.wait_for(name, timeout=HOUR) for _ in range(2)]
        declared.emit(name)
        return [event.payload for event in events] + [ctx.receive(name, timeout=HOUR).payload]  # type: ignore[union-attr]

    run = named.using(key=name, workspace=name).spawn(name)
    for number in (1, 2):
        declared.tick()
        declared.deliver(name, number, workspace=name, delivery_id=f"{name[:250]}{number}")
    run.send(name, 3)
    session_of(app).commit()
    declared.tick()

    assert run.output() == [1, 2, 3]
    assert max(len(key) for (key,) in rows(app, 'SELECT "key" FROM workflow_steps')) <= 150


@on_sqlite  # nothing of it comes to the database
def test_a_naive_instant_to_wait_since_is_refused() -> None:
    @declared.workflow(name="naive")
    def naive(ctx: WorkflowContext) -> str:
        with pytest.raises(InvalidInstant):
            ctx.wait_for("paid", since=datetime(2026, 11, 30))  # noqa: DTZ001
        return "refused"

    run = naive.spawn()
    declared.tick()

    assert run.output() == "refused"


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize("call", ["wait_for", "receive"])
def test_a_wait_inside_a_step_is_refused(call: str) -> None:
    @declared.workflow(name=f"misplaced-{call.replace('_', '-')}")
    def misplaced(ctx: WorkflowContext) -> None:
        ctx.step("inside", lambda: getattr(ctx, call)("paid"))

    run = misplaced.spawn()
    for _ in range(3):
        declared.tick()
        declared.clock.move(minutes=1)  # type: ignore[union-attr]

    error = run.run().error
    assert error is not None
    assert f"ctx.{call}() was called inside the step 'inside'" in error.message


# In bodies and steps -----------------------------------------------------------------------


def test_an_event_emitted_in_a_body_is_emitted_once_whatever_is_replayed(app: Flask, clock: Clock) -> None:
    waiting = awaiting.spawn(1)
    declared.tick()

    run = emitting.spawn(1)
    for _ in range(4):
        declared.tick()
        clock.move(seconds=1)

    assert run.output() == "slept"
    assert waiting.output() == "event 1"
    assert events(app) == [("paid", True, 1)]
    assert [step.key for step in declared.details(run.id).steps][:2] == ["$emit:paid", "remember"]


def test_an_event_emitted_in_a_step_commits_with_its_rows(app: Flask, db: SQLAlchemy, clock: Clock) -> None:
    attempts: list[int] = []

    def pay() -> None:
        db.session.add(Order(note=f"attempt {len(attempts)}"))
        declared.emit("paid", {"order": 1})
        attempts.append(1)
        if len(attempts) == 1:
            raise ConnectionError("after the emit")

    @declared.workflow(name="paying")
    def paying(ctx: WorkflowContext) -> None:
        ctx.step("pay", pay)

    waiting = awaiting.spawn(1)
    run = paying.spawn()
    declared.tick()
    after_the_error = (events(app), waiting.status())
    clock.move(minutes=1)
    declared.tick()

    assert after_the_error == ([], RunStatus.WAITING)
    assert run.status() is RunStatus.COMPLETED
    assert events(app) == [("paid", True, 1)]
    assert rows(app, "SELECT note FROM orders") == [("attempt 1",)]
    assert waiting.status() is RunStatus.SLEEPING


def test_a_step_that_only_emits_commits_its_event(app: Flask) -> None:
    @declared.workflow(name="only-emitting")
    def only_emitting(ctx: WorkflowContext) -> None:
        ctx.step("emit", declared.emit, "paid", {"order": 1})

    only_emitting.spawn()
    declared.tick()

    assert events(app) == [("paid", True, 0)]


def test_delivering_inside_a_body_is_recorded_and_keeps_its_delivery_id(app: Flask, clock: Clock) -> None:
    news: list[bool] = []

    @declared.workflow(name="forwarding")
    def forwarding(ctx: WorkflowContext) -> None:
        news.append(declared.deliver("paid", {"order": 1}, delivery_id="evt_1"))
        news.append(declared.deliver("paid", {"order": 1}, delivery_id="evt_1"))
        ctx.sleep(1)

    forwarding.spawn()
    declared.tick()
    clock.move(seconds=1)
    declared.tick()

    assert news == [True, False, True, False]
    assert len(events(app)) == 1


def test_delivering_inside_a_step_happens_at_once(app: Flask, clock: Clock) -> None:
    def deliver() -> None:
        declared.deliver("paid", {"order": 1}, delivery_id="evt_1")
        if len(attempts) == 0:
            attempts.append(1)
            raise ConnectionError("after the delivery")

    attempts: list[int] = []

    @declared.workflow(name="relaying")
    def relaying(ctx: WorkflowContext) -> None:
        ctx.step("deliver", deliver)

    run = relaying.spawn()
    declared.tick()
    after_the_error = len(events(app))
    clock.move(minutes=1)
    declared.tick()

    assert after_the_error == 1
    assert run.status() is RunStatus.COMPLETED
    assert len(events(app)) == 1


# Deliveries --------------------------------------------------------------------------------


def test_b150_a_delivery_repeated_with_its_id_is_one_event(app: Flask) -> None:
    run = counting.spawn(2)
    declared.tick()

    news = [declared.deliver("paid", {"number": number}, delivery_id="evt_1") for number in (1, 2, 3)]
    declared.tick()

    assert news == [True, False, False]
    assert run.status() is RunStatus.WAITING
    assert events(app) == [("paid", True, 1)]


def test_b150_a_delivery_repeated_by_ten_threads_at_once_is_one_event(app: Flask) -> None:
    news: list[bool] = []

    def deliver() -> None:
        news.append(declared.deliver("paid", {"number": 1}, delivery_id="evt_1"))

    threads = [threading.Thread(target=in_context(app, deliver)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(news) == [False] * 9 + [True]
    assert len(events(app)) == 1


def test_one_delivery_id_may_be_used_by_another_event_and_another_workspace(app: Flask) -> None:
    news = [
        declared.deliver("paid", delivery_id="evt_1"),
        declared.deliver("shipped", delivery_id="evt_1"),
        declared.deliver("paid", delivery_id="evt_1", workspace="north"),
        declared.deliver("paid", delivery_id="evt_2"),
    ]

    assert news == [True] * 4


@on_sqlite  # nothing of it comes to the database
@pytest.mark.parametrize("delivery_id", ["", " ", "x" * 256, "a\0", 7])
def test_a_delivery_id_that_cannot_be_stored_is_refused(delivery_id: Any) -> None:
    with pytest.raises(InvalidName):
        declared.deliver("paid", delivery_id=delivery_id)


# What may be in the way --------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "nope", "[" * 100_000])
def test_b76_an_event_that_cannot_be_read_matches_nothing_and_holds_up_no_other(app: Flask, text: str) -> None:
    runs = [awaiting.spawn(1), awaiting_any.spawn()]
    declared.tick()
    declared.deliver("paid", "broken")
    execute(app, "UPDATE workflow_events SET payload = :text", text=text)

    declared.deliver("paid", {"order": 1})
    declared.tick()

    assert [str(run.status()) for run in runs] == ["sleeping", "completed"]
    assert events(app) == [("paid", True, 0), ("paid", True, 2)]


def test_b76_a_stored_event_that_cannot_be_read_holds_up_no_wait_for_a_later_one(app: Flask) -> None:
    run = awaiting_since.spawn(1)
    declared.deliver("paid", "broken")
    execute(app, "UPDATE workflow_events SET payload = '{'")

    declared.deliver("paid", {"order": 1})
    match(app)
    declared.tick()

    assert run.output() == "event 2"


def test_waits_of_a_run_that_fails_without_coming_to_them_go_with_it(app: Flask, clock: Clock) -> None:
    changed: list[bool] = []

    @declared.workflow(name="changing")
    def changing(ctx: WorkflowContext) -> None:
        if changed:
            raise ValueError("the code was changed")
        ctx.wait_for("paid", timeout=60)

    run = changing.spawn()
    declared.tick()
    waiting_before = open_waits(app)
    changed.append(True)
    for _ in range(3):
        clock.move(minutes=2)
        declared.tick()

    assert waiting_before == 1
    assert run.status() is RunStatus.FAILED
    assert open_waits(app) == 0


def test_waits_of_a_run_that_completes_without_coming_to_them_go_with_it(app: Flask, clock: Clock) -> None:
    changed: list[bool] = []

    @declared.workflow(name="lenient", strict=False)
    def lenient(ctx: WorkflowContext) -> None:
        if not changed:
            ctx.wait_for("paid", timeout=60)

    run = lenient.spawn()
    declared.tick()
    changed.append(True)
    clock.move(minutes=2)
    declared.tick()

    assert run.status() is RunStatus.COMPLETED
    assert open_waits(app) == 0


def test_runs_that_cannot_be_woken_do_not_keep_an_event_from_the_others(app: Flask, clock: Clock) -> None:
    """More of them than one transaction looks at come first."""
    stuck = [awaiting_any.spawn() for _ in range(450)]
    runs = [awaiting_any.spawn() for _ in range(3)]
    declared.tick()
    # As a run is that was to be cancelled while a worker, dead by now, executed it.
    execute(app, "UPDATE workflow_runs SET cancel_requested_at = 1 WHERE id <= :last", last=stuck[-1].id)

    declared.deliver("paid", "all")
    declared.tick()

    assert [run.output() for run in runs] == ["all"] * 3
    assert events(app) == [("paid", True, 3)]


def test_an_event_for_more_runs_than_one_transaction_wakes_reaches_all_of_them(app: Flask) -> None:
    runs = awaiting_any.start_many([{} for _ in range(450)])
    session_of(app).commit()
    declared.tick()

    declared.deliver("paid", "all")
    declared.tick()

    assert {run.id for run in runs} == {
        run for (run,) in rows(app, "SELECT id FROM workflow_runs WHERE status = 'completed'")
    }
    assert events(app) == [("paid", True, 450)]


def test_a_cancelled_run_leaves_no_open_wait_and_takes_no_event(app: Flask) -> None:
    run = awaiting.spawn(1)
    declared.tick()

    declared.cancel(run.id)
    waiting = open_waits(app)
    declared.deliver("paid", {"order": 1})
    declared.tick()

    assert waiting == 0
    assert run.status() is RunStatus.CANCELLED
    assert events(app) == [("paid", True, 0)]


def test_a_cancelled_run_that_is_retried_waits_on_for_what_comes_from_then_on(app: Flask, clock: Clock) -> None:
    run = awaiting.spawn(1, minutes=60)
    declared.tick()
    declared.cancel(run.id)
    clock.move(minutes=10)

    run.retry()
    declared.tick()
    before = run.run()
    declared.deliver("paid", {"order": 1})
    declared.tick()
    clock.move(seconds=1)
    declared.tick()

    assert before.status is RunStatus.WAITING
    assert before.due_at == clock.now() + timedelta(minutes=50, seconds=-1)
    assert run.output() == "event 1"


@on_postgresql
def test_b160_a_wait_restored_into_another_cluster_takes_the_events_emitted_there(app: Flask) -> None:
    """Transaction ids begin again there: none of the new ones is above those that the wait was stored under."""
    run = awaiting.spawn(1)
    declared.deliver("paid", {"order": 2})
    declared.tick()
    execute(app, "UPDATE workflow_waits SET snapshot = '9000000000:9000000002:9000000001'")

    declared.deliver("paid", {"order": 1})
    declared.tick()

    assert run.status() is RunStatus.SLEEPING


# Without workers ---------------------------------------------------------------------------


def test_inline_an_event_wakes_its_run_when_it_is_committed(database_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(database_url, db=make_orders_db(), workflows=Workflows(), **INLINE)
    workflows = apps.workflows_of(app)
    workflows.event("paid")

    @workflows.workflow
    def inline(ctx: WorkflowContext) -> Any:
        return ctx.wait_for("paid").payload

    with app.app_context():
        first = inline.spawn()
        second = inline.spawn()
        before = first.status()
        workflows.emit("paid", "both")
        session_of(app).commit()
        third = inline.spawn()
        workflows.deliver("paid", "third")

        assert before is RunStatus.WAITING
        assert [first.output(), second.output(), third.output()] == ["both", "both", "third"]


def test_inline_a_session_joined_to_a_transaction_that_is_never_committed_is_refused(
    database_url: str, make_app: apps.MakeApp
) -> None:
    app = make_app(database_url, db=make_orders_db(), workflows=Workflows(), **INLINE)
    workflows = apps.workflows_of(app)
    workflows.event("paid")
    with app.app_context():
        db = apps.database_of(app)
        engines: Any = db.engines
        real = engines[None]
        with real.connect() as connection, connection.begin():
            engines[None] = connection
            with pytest.raises(InlineNeedsCommit):
                workflows.emit("paid")
            db.session.remove()
        engines[None] = real


@on_sqlite
def test_in_memory_an_event_counts_at_the_commit_and_vanishes_with_its_savepoint(
    make_app: apps.MakeApp, database_url: str
) -> None:
    workflows = Workflows()
    workflows.event("paid")

    @workflows.workflow
    def remembering(ctx: WorkflowContext) -> list[Any]:
        events = [ctx.wait_for("paid", since=ctx.started_at) for _ in range(2)]
        return [event.payload for event in events]

    app = make_app(database_url, workflows=workflows, WORKFLOWS_STORE="memory", WORKFLOWS_DASHBOARD=False)
    session = session_of(app)
    with app.app_context():
        run = remembering.start()
        workflows.emit("paid", 1)
        with suppress(ZeroDivisionError), session.begin_nested():
            workflows.emit("paid", 2)
            raise ZeroDivisionError
        session.commit()
        workflows.tick()
        workflows.emit("paid", 3)
        session.rollback()
        workflows.emit("paid", 4)
        session.commit()
        workflows.tick()

        assert run.output() == [1, 4]
    apps.runtime_of(app).close()
