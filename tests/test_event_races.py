"""Events against time-outs, cancellations, crashes and each other (R26-R29)."""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.engine import make_url

from flask_workflows import RunFinished
from flask_workflows import RunStatus
from flask_workflows import WorkflowContext
from flask_workflows.definition import Workflow
from tests import apps
from tests.dbapi import watched_options
from tests.event_app import awaiting
from tests.event_app import awaiting_any
from tests.event_app import awaiting_only
from tests.event_app import awaiting_since
from tests.event_app import declared
from tests.event_app import in_context
from tests.event_app import make_event_app
from tests.event_app import receiving
from tests.event_app import session_of
from tests.event_app import work
from tests.event_app import working
from tests.kept import kept_database  # noqa: F401
from tests.kept import postgresql_url  # noqa: F401
from tests.processes import eventually
from tests.processes import execute
from tests.processes import outsider
from tests.processes import Process
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db
from tests.running import on_postgresql

ROUNDS = int(os.environ.get("ROUNDS", "500"))

#: Workers look this often, as nobody tells them of a clock that is moved.
QUICK = {"WORKFLOWS_DASHBOARD": False, "WORKFLOWS_POLL_INTERVAL_MS": 20}

CRASHED = 77


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Iterator[Flask]:
    yield make_app(database_url, db=make_orders_db(), workflows=declared, **QUICK)

    declared.clock = None


@pytest.fixture
def no_trouble(app: Flask, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing may be logged as a warning: a deadlock would be."""
    caplog.set_level(logging.WARNING, "flask_workflows")

    yield

    assert [record.getMessage() for record in caplog.records] == []


def start_waiting(
    app: Flask, count: int, minutes: float | None = 60, workflow: Workflow[..., str] = awaiting
) -> list[str]:
    """Runs that each wait for the payment of the order of their number."""
    with app.app_context():
        inputs: list[dict[str, Any]] = [{"order": number, "minutes": minutes} for number in range(count)]
        handles = workflow.start_many(inputs)
        session_of(app).commit()
        declared.tick()

    return [handle.id for handle in handles]


def threads(app: Flask, *calls: Callable[[], Any]) -> list[threading.Thread]:
    """Make the calls at the same moment, each on a thread."""
    barrier = threading.Barrier(len(calls))

    def made(call: Callable[[], Any]) -> None:
        barrier.wait(30)
        call()

    started = [
        threading.Thread(target=in_context(app, lambda call=call: made(call)))  # type: ignore[misc]
        for call in calls
    ]
    for thread in started:
        thread.start()

    return started


def joined(started: list[threading.Thread]) -> None:
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def pay(orders: list[int]) -> Callable[[], None]:
    def paid() -> None:
        for order in orders:
            declared.deliver("paid", {"order": order})

    return paid


def outcomes(app: Flask) -> dict[str, str]:
    """What each completed run returned: `time-out`, or the number of its event."""
    found = rows(app, "SELECT id, output FROM workflow_runs WHERE status = 'completed'")

    return {run: output.strip('"') for run, output in found}


def woken(app: Flask) -> list[str]:
    """The events that ended a wait, as runs tell them; one that ended two is in it twice."""
    found = rows(app, "SELECT seq, woke FROM workflow_events WHERE woke > 0")

    return [f"event {seq}" for seq, woke in found for _ in range(woke)]


def count_unfinished(app: Flask) -> int:
    ((count,),) = rows(app, "SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL")

    return int(count)


def count_new(app: Flask) -> int:
    """Events that no worker has matched yet."""
    ((count,),) = rows(app, "SELECT count(*) FROM workflow_events WHERE matched_at IS NULL")

    return int(count)


def assert_settled(app: Flask) -> None:
    """No wait is open, no event is new, and each run has one outcome in its history."""
    assert rows(app, "SELECT * FROM workflow_waits") == []
    assert count_new(app) == 0
    assert (
        rows(
            app,
            """SELECT s.run_id FROM workflow_steps s JOIN workflow_runs r ON r.id = s.run_id
               WHERE s.kind = 'wait' AND r.status = 'completed'
               GROUP BY s.run_id HAVING count(*) <> 1 OR max(s.status) <> 'completed'""",
        )
        == []
    )


# One outcome -------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_trouble")
def test_b35_an_event_and_a_time_out_in_the_same_millisecond_have_one_outcome(app: Flask) -> None:
    """R29. It is the same at the replay: each run sleeps afterwards, and its next step compares what it is given."""
    declared.clock = clock = Clock()
    runs = start_waiting(app, ROUNDS)
    orders = random.Random(0).sample(range(ROUNDS), ROUNDS)

    with working(app, 2):
        clock.move(hours=1)
        # Once there are some time-outs, so that neither has finished when the other begins.
        timed_out = "SELECT 1 FROM workflow_steps WHERE output = 'null'"
        eventually(lambda: len(rows(app, timed_out)) >= ROUNDS // 5, every=0)
        joined(threads(app, pay(orders[::2]), pay(orders[1::2])))
        eventually(lambda: rows(app, "SELECT 1 FROM workflow_runs WHERE status <> 'sleeping'") == [], within=60)
        clock.move(seconds=1)
        eventually(lambda: count_unfinished(app) == count_new(app) == 0, within=60)

    found = outcomes(app)
    counted = Counter("time-out" if outcome == "time-out" else "event" for outcome in found.values())
    print(counted)
    assert set(found) == set(runs)
    assert sorted(outcome for outcome in found.values() if outcome != "time-out") == sorted(woken(app))
    assert min(counted["time-out"], counted["event"]) > 0, "they did not race"
    assert_settled(app)


@pytest.mark.usefixtures("no_trouble")
def test_an_event_and_a_cancellation_at_once_have_one_outcome(app: Flask) -> None:
    """R29: a run is cancelled or completes, for good, and `cancel` says which."""
    runs = start_waiting(app, ROUNDS, workflow=awaiting_only)
    orders = random.Random(0).sample(range(ROUNDS), ROUNDS)
    refused: list[str] = []

    def cancel(some: list[str]) -> Callable[[], None]:
        def cancelled() -> None:
            for run in some:
                try:
                    declared.cancel(run)
                except RunFinished:
                    refused.append(run)

        return cancelled

    with working(app, 2):
        joined(threads(app, pay(orders[::2]), pay(orders[1::2]), cancel(runs[::2]), cancel(runs[1::2])))
        eventually(lambda: count_unfinished(app) == count_new(app) == 0, within=60)

    statuses = dict(rows(app, "SELECT id, status FROM workflow_runs"))
    counted = Counter(statuses.values())
    print(counted)
    assert min(counted["completed"], counted["cancelled"]) > 0, "they did not race"
    assert counted["completed"] + counted["cancelled"] == ROUNDS
    assert {run for run in runs if statuses[run] == "completed"} == set(refused) == set(outcomes(app))
    assert set(outcomes(app).values()) <= set(woken(app))
    assert len(woken(app)) == len(set(woken(app)))
    assert_settled(app)


@pytest.mark.usefixtures("no_trouble")
def test_two_events_at_once_have_one_outcome(app: Flask) -> None:
    """R29: of two events for one wait, one ends it, and the other is listed as unmatched."""
    declared.clock = clock = Clock()
    runs = start_waiting(app, ROUNDS, minutes=None)

    with working(app, 2):
        orders = list(range(ROUNDS))
        joined(threads(app, pay(orders), pay(orders)))
        eventually(lambda: rows(app, "SELECT 1 FROM workflow_runs WHERE status <> 'sleeping'") == [], within=60)
        clock.move(seconds=1)
        eventually(lambda: count_unfinished(app) == count_new(app) == 0, within=60)

    found = outcomes(app)
    assert set(found) == set(runs)
    assert sorted(found.values()) == sorted(woken(app))
    assert rows(app, "SELECT woke, count(*) FROM workflow_events GROUP BY woke ORDER BY woke") == [
        (0, ROUNDS),
        (1, ROUNDS),
    ]
    assert_settled(app)


@pytest.mark.usefixtures("no_trouble")
def test_b33_events_emitted_right_after_the_start_are_never_lost(app: Flask) -> None:
    """With `since`, whatever the workers do meanwhile."""
    by_thread = [list(range(start, ROUNDS, 4)) for start in range(4)]

    def start_and_pay(orders: list[int]) -> Callable[[], None]:
        def started() -> None:
            for order in orders:
                awaiting_since.start(order)
                if order % 3 == 0:
                    session_of(app).commit()
                declared.emit("paid", {"order": order})
                session_of(app).commit()

        return started

    with working(app, 2):
        joined(threads(app, *map(start_and_pay, by_thread)))
        eventually(lambda: count_unfinished(app) == count_new(app) == 0, within=60)

    found = outcomes(app)
    assert len(found) == ROUNDS
    assert "time-out" not in found.values()
    assert sorted(found.values()) == sorted(woken(app))
    assert_settled(app)


def test_b33_without_since_an_event_right_after_the_start_is_received_or_listed_as_unmatched(app: Flask) -> None:
    """R26: it counts where its transaction committed after the wait was stored."""
    declared.clock = clock = Clock()
    rounds = ROUNDS // 4

    def start_and_pay() -> None:
        for order in range(rounds):
            awaiting_only.spawn(order)
            declared.deliver("paid", {"order": order})

    with working(app, 2):
        joined(threads(app, start_and_pay))
        eventually(lambda: rows(app, "SELECT 1 FROM workflow_runs WHERE status IN ('pending', 'running')") == [])
        clock.move(hours=2)
        eventually(lambda: count_unfinished(app) == count_new(app) == 0, within=60)

    found = outcomes(app)
    received = [outcome for outcome in found.values() if outcome != "time-out"]
    ((unmatched,),) = rows(app, "SELECT count(*) FROM workflow_events WHERE woke = 0")
    assert len(found) == rounds
    assert sorted(received) == sorted(woken(app))
    assert unmatched == list(found.values()).count("time-out")
    assert_settled(app)


def test_two_worker_processes_share_the_events(database_url: str, app: Flask, tmp_path: Path) -> None:
    runs = start_waiting(app, 200, minutes=None)
    workers = [Process(work, database_url, QUICK, log=tmp_path / f"log-{number}") for number in range(2)]

    try:
        joined(threads(app, pay(list(range(0, 200, 2))), pay(list(range(1, 200, 2)))))
        eventually(lambda: count_unfinished(app) == count_new(app) == 0, within=60)
        codes = [worker.terminate() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()

    assert codes == [0, 0]
    assert set(outcomes(app)) == set(runs)
    assert sorted(outcomes(app).values()) == sorted(woken(app))
    assert "deadlock" not in "".join(worker.log for worker in workers)
    assert_settled(app)


# In whatever order -------------------------------------------------------------------------


@on_postgresql
def test_looking_through_stored_events_and_matching_a_new_one_do_not_deadlock(app: Flask) -> None:
    """Both lock the event before the run, in whatever order they come to it."""
    declared.clock = Clock()
    (run,) = start_waiting(app, 1)
    events = apps.runtime_of(app).events
    execute(app, "UPDATE workflow_waits SET checked = 0")
    with app.app_context():
        declared.deliver("paid", {"order": 0})
    errors: list[BaseException] = []

    def look() -> None:
        try:
            events.check(run)
        except BaseException as error:
            errors.append(error)

    def match() -> None:
        try:
            events.match_next()
        except BaseException as error:
            errors.append(error)

    with outsider(app).begin() as connection:
        connection.execute(sa.text("SELECT 1 FROM workflow_runs FOR UPDATE"))
        looking = threads(app, look)
        eventually(lambda: waiting_for_locks(app) == 1)
        matching = threads(app, match)
        eventually(lambda: waiting_for_locks(app) == 2 or not matching[0].is_alive())
    joined(looking + matching)

    assert errors == []
    assert rows(app, "SELECT woke FROM workflow_events") == [(1,)]
    assert rows(app, "SELECT status FROM workflow_runs") == [("pending",)]


def waiting_for_locks(app: Flask) -> int:
    ((count,),) = rows(
        app, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    return int(count)


@on_postgresql
def test_an_event_that_ends_a_wait_while_its_run_suspends_again_wakes_it(app: Flask) -> None:
    """A matcher that found the wait before the run was cancelled and retried ends it after the run looked at it."""
    declared.clock = Clock()
    reached, go_on = threading.Event(), threading.Event()
    gate: list[bool] = []

    @declared.workflow(name="gated")
    def gated(ctx: WorkflowContext) -> Any:
        if gate:
            reached.set()
            go_on.wait(30)
        return ctx.wait_for("paid").payload

    with app.app_context():
        first, second = sorted(gated.spawn().id for _ in range(2))
        declared.tick()
        declared.deliver("paid", "both")
        with outsider(app).begin() as connection:
            connection.execute(sa.text("SELECT 1 FROM workflow_runs WHERE id = :id FOR UPDATE"), {"id": first})
            matching = threads(app, apps.runtime_of(app).events.match_next)
            eventually(lambda: waiting_for_locks(app) == 1)
            declared.cancel(second)
            declared.retry(second)
            gate.append(True)
            executing = threads(app, declared.tick)
            assert reached.wait(30)
            gate.clear()
        joined(matching)
        go_on.set()
        joined(executing)
        declared.tick()

        assert [declared.get(run).output for run in (first, second)] == ["both", "both"]


@on_postgresql
def test_a_run_that_suspends_just_while_it_is_cancelled_does_not_wait_on(
    database_url: str, make_app: apps.MakeApp
) -> None:
    """`cancel` looks whether it is idle, then marks it as one that is executed: in between it must not suspend."""
    reached, go_on, marking = threading.Event(), threading.Event(), threading.Event()

    def watch(asked: str) -> None:
        if "UPDATE workflow_runs SET cancel_requested_at" in asked and not marking.is_set():
            marking.set()
            go_on.set()
            eventually(
                lambda: (
                    rows(cancelling, "SELECT 1 FROM workflow_runs WHERE status = 'waiting'")
                    or waiting_for_locks(cancelling) == 1
                )
            )

    cancelling = make_app(
        database_url,
        db=make_orders_db(),
        workflows=declared,
        SQLALCHEMY_ENGINE_OPTIONS=watched_options(database_url, watch),
        **QUICK,
    )

    @declared.workflow(name="suspending")
    def suspending(ctx: WorkflowContext) -> None:
        reached.set()
        go_on.wait(30)
        ctx.wait_for("paid")

    with cancelling.app_context():
        run = suspending.spawn()
        executing = threads(cancelling, declared.tick)
        assert reached.wait(30)
        run.cancel()
        joined(executing)

        assert marking.is_set()
        assert run.status() is RunStatus.CANCELLED
        assert rows(cancelling, "SELECT * FROM workflow_waits") == []


def test_an_event_for_a_run_that_is_executed_because_of_its_time_out_is_its_outcome(app: Flask) -> None:
    declared.clock = clock = Clock()
    reached, go_on = threading.Event(), threading.Event()
    gate: list[bool] = []

    @declared.workflow(name="overtaken")
    def overtaken(ctx: WorkflowContext) -> Any:
        if gate:
            reached.set()
            go_on.wait(30)
        event = ctx.wait_for("paid", timeout=60)
        return event and event.payload

    with app.app_context():
        run = overtaken.spawn()
        declared.tick()
        gate.append(True)
        clock.move(seconds=60)
        executing = threads(app, declared.tick)
        assert reached.wait(30)
        gate.clear()
        declared.deliver("paid", "just in time")
        apps.runtime_of(app).events.match_all()
        before = run.status()
        go_on.set()
        joined(executing)

        assert before is RunStatus.RUNNING
        assert run.output() == "just in time"
        assert rows(app, "SELECT woke FROM workflow_events") == [(1,)]


def test_a_run_that_is_executed_because_of_its_time_out_takes_an_event_nobody_matched_yet(app: Flask) -> None:
    declared.clock = clock = Clock()
    with app.app_context():
        run = awaiting_any.spawn("paid", 1)
        declared.tick()
        clock.move(minutes=1)
        declared.deliver("paid", "unmatched so far")

        declared.tick()

        assert run.output() == "unmatched so far"
        assert rows(app, "SELECT woke FROM workflow_events") == [(1,)]


@on_postgresql
def test_messages_matched_by_two_workers_at_once_keep_their_order(app: Flask) -> None:
    """The second message's worker comes first: the run gets the first message all the same."""
    events = apps.runtime_of(app).events
    with app.app_context():
        run = receiving.spawn(2)
        declared.tick()
        run.send("line", 1)
        run.send("line", 2)
        session_of(app).commit()
        with outsider(app).begin() as connection:
            connection.execute(sa.text("SELECT 1 FROM workflow_events WHERE seq = 1 FOR UPDATE"))
            events.match_next()
        declared.tick()

        assert run.output() == [1, 2]
        assert rows(app, "SELECT seq, woke FROM workflow_events ORDER BY seq") == [(1, 1), (2, 1)]


@pytest.mark.parametrize("listen", [True, False], ids=["told", "polling"])
def test_b151_an_event_wakes_its_run_soon_beside_many_open_waits(
    database_url: str, make_app: apps.MakeApp, listen: bool
) -> None:
    """Scaled down: 300 waits and a burst of 100 events. By the database's clock, from the event to the run's end."""
    app = make_app(
        database_url,
        db=make_orders_db(),
        workflows=declared,
        WORKFLOWS_DASHBOARD=False,
        WORKFLOWS_LISTEN=listen,
        WORKFLOWS_POLL_INTERVAL_MS=500,
    )
    start_waiting(app, 300, minutes=None, workflow=awaiting_only)

    with working(app, 1):
        joined(threads(app, pay(list(range(0, 300, 3)))))
        eventually(lambda: len(outcomes(app)) == 100)
    took = [
        milliseconds
        for (milliseconds,) in rows(
            app,
            """SELECT r.finished_at - e.emitted_at FROM workflow_runs r
               JOIN workflow_steps s ON s.run_id = r.id JOIN workflow_events e ON e.seq = s.event_seq""",
        )
    ]

    assert len(took) == 100
    assert sorted(took)[98] < 30_000


# Lost replies ------------------------------------------------------------------------------


class Losing:
    """An app's `SQLALCHEMY_ENGINE_OPTIONS`: the reply to one commit is lost, after something else has happened.

    It is the commit of the transaction that stores the first wait.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.meanwhile: Callable[[], object] | None = None
        self._stored: set[int] = set()

    def options(self) -> dict[str, Any]:
        return {"creator": self._sqlite if self.url.startswith("sqlite") else self._postgresql}

    def asked(self, connection: object, statement: str) -> None:
        if "INSERT INTO workflow_waits" in statement:
            self._stored.add(id(connection))

    def committed(self, connection: object) -> bool:
        meanwhile = self.meanwhile
        if meanwhile is None or id(connection) not in self._stored:
            return False
        self.meanwhile = None
        meanwhile()
        return True

    def _postgresql(self) -> psycopg.Connection[Any]:
        losing = self

        class Cursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                losing.asked(self.connection, str(query))
                return super().execute(query, *args, **kwargs)

        class Connection(psycopg.Connection[Any]):
            def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
                result = super().wait(gen, *args, **kwargs)
                if "_exit_gen" in gen.__qualname__ and losing.committed(self):
                    raise psycopg.OperationalError("the reply was lost")
                return result

        conninfo = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = Connection.connect(conninfo)
        connection.cursor_factory = Cursor

        return connection

    def _sqlite(self) -> sqlite3.Connection:
        losing = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *args: Any) -> Any:
                losing.asked(self, statement)
                result = super().execute(statement, *args)
                if statement == "COMMIT" and losing.committed(self):
                    raise sqlite3.OperationalError("the reply was lost")
                return result

        return sqlite3.connect(make_url(self.url).database or "", factory=Connection, check_same_thread=False)


@pytest.mark.parametrize("event", [True, False], ids=["an event", "nothing"])
def test_a_wait_whose_commit_lost_its_reply_is_not_stored_over_the_event_that_ended_it(
    database_url: str, make_app: apps.MakeApp, event: bool
) -> None:
    """The worker repeats the write: by then the wait has ended, and the run is due."""
    losing = Losing(database_url)
    app = make_app(
        database_url, db=make_orders_db(), workflows=declared, SQLALCHEMY_ENGINE_OPTIONS=losing.options(), **QUICK
    )
    declared.clock = clock = Clock()
    happened: list[str] = []

    def meanwhile() -> None:
        happened.append("a commit")
        if event:
            declared.deliver("paid", {"order": 1})
            apps.runtime_of(app).events.match_all()

    with app.app_context():
        run = awaiting.spawn(1)
        losing.meanwhile = meanwhile
        declared.tick()
        if not event:
            declared.deliver("paid", {"order": 1})
            declared.tick()
        clock.move(seconds=1)
        declared.tick()

        assert happened == ["a commit"]
        assert run.output() == "event 1"
        assert_settled(app)


# Crashes -----------------------------------------------------------------------------------


def crash_at(url: str, before: int) -> None:
    """Execute what is due, and die before the so-manieth exchange with the database that has to do with events."""
    exchanges = 0
    armed = False

    def watch(asked: str) -> None:
        nonlocal exchanges
        if armed and re.search("workflow_(steps|events|waits)|COMMIT|_exit_gen", asked):
            exchanges += 1
            if exchanges == before:
                print("died before", " ".join(asked.split())[:100], flush=True)
                os._exit(CRASHED)

    app = make_event_app(url, SQLALCHEMY_ENGINE_OPTIONS=watched_options(url, watch), **QUICK)
    declared.clock = Clock()
    with app.app_context():
        armed = True
        declared.tick()
    os._exit(0)


Prepare = Callable[[Flask], None]


def nothing_stored(app: Flask) -> None:
    """The run is to be started, to store its wait, to find no event."""
    awaiting_since.spawn(1)


def an_event_stored(app: Flask) -> None:
    """The run is to be started, to store its wait, and to find the event that came, and was matched, before it."""
    awaiting_since.spawn(1)
    declared.deliver("paid", {"order": 1})
    apps.runtime_of(app).events.match_all()


def an_event_to_match(app: Flask) -> None:
    """The run waits, and the event is to wake it."""
    awaiting_since.spawn(1)
    declared.tick()
    declared.deliver("paid", {"order": 1})


def a_message_to_receive(app: Flask) -> None:
    run = receiving.spawn(1)
    declared.tick()
    run.send("line", 1)
    session_of(app).commit()


@pytest.mark.parametrize("prepare", [nothing_stored, an_event_stored, an_event_to_match, a_message_to_receive])
def test_b17_a_worker_that_dies_anywhere_between_event_wait_and_wake_loses_nothing(
    app: Flask, database_url: str, tmp_path: Path, prepare: Prepare
) -> None:
    """B33, B152: also between the wait that was stored and the look for events that came before it."""
    died = []
    for before in itertools.count(1):
        declared.clock = clock = Clock()
        with app.app_context():
            with outsider(app).begin() as connection:
                for table in ("runs", "steps", "events", "waits"):
                    connection.execute(sa.text(f"DELETE FROM workflow_{table}"))
            prepare(app)
        victim = Process(crash_at, database_url, before, log=tmp_path / f"log-{before}")
        code = victim.wait(30)
        assert code in (0, CRASHED), victim.log
        if code == 0:
            break
        died.append(victim.log)
        with app.app_context():
            executions = [declared.tick()]
            clock.move(minutes=2)  # the lease of the dead ends
            executions.append(declared.tick())
            if prepare is nothing_stored:
                assert rows(app, "SELECT status FROM workflow_runs") == [("waiting",)], victim.log
                declared.deliver("paid", {"order": 1})
                executions.append(declared.tick())
            executions.append(declared.tick())

        assert rows(app, "SELECT status FROM workflow_runs") == [("completed",)], victim.log
        assert rows(app, "SELECT woke FROM workflow_events") == [(1,)], victim.log
        assert_settled(app)
        assert sum(executions) <= 3
        assert executions[-1] == 0

    print("".join(died))
    assert len(died) > 5
    assert any("workflow_waits" in log for log in died)


def test_b17_workers_killed_while_events_come_in_lose_none_of_them(
    app: Flask, database_url: str, tmp_path: Path
) -> None:
    config = {**QUICK, "WORKFLOWS_LOCK_TIMEOUT_SECS": 2, "WORKFLOWS_MAX_ATTEMPTS": 1_000}
    chance = random.Random(0)
    numbers = itertools.count()
    started: list[Process] = []

    def start() -> Process:
        started.append(Process(work, database_url, config, log=tmp_path / f"log-{next(numbers)}"))

        return started[-1]

    workers = [start(), start()]
    runs: list[str] = []
    try:
        with app.app_context():
            for order in range(120):
                runs.append(awaiting_since.spawn(order).id)
                declared.deliver("paid", {"order": order})
                if order % 6 == 5:
                    time.sleep(chance.uniform(0, 0.1))
                    victim = order // 6 % 2
                    workers[victim].kill()
                    workers[victim] = start()
        eventually(lambda: count_unfinished(app) == 0, within=60)
    finally:
        for process in started:
            process.kill()

    found = outcomes(app)
    assert set(found) == set(runs)
    assert "time-out" not in found.values()
    assert sorted(found.values()) == sorted(woken(app))
    assert rows(app, "SELECT * FROM workflow_waits") == []


@on_postgresql
def test_b152_an_event_is_not_missed_while_the_listener_is_away(database_url: str, make_app: apps.MakeApp) -> None:
    """The listening connection is killed again and again; the workers poll all the same."""
    app = make_app(
        database_url, db=make_orders_db(), workflows=declared, WORKFLOWS_DASHBOARD=False, WORKFLOWS_POLL_INTERVAL_MS=500
    )
    kill_listener = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND query LIKE 'LISTEN%'"""
    waits: list[float] = []
    with app.app_context(), working(app, 1):
        for number in range(10):
            run = awaiting_since.spawn(number)
            eventually(lambda run=run: run.status() is RunStatus.WAITING, every=0.005)  # type: ignore[misc]
            rows(app, kill_listener)
            began = time.monotonic()
            with outsider(app).begin() as connection:
                # From a process that notifies nobody.
                connection.execute(
                    sa.text(
                        """INSERT INTO workflow_events (name, workspace, payload, xact, emitted_at, woke)
                           VALUES ('paid', '', :payload, CAST(CAST(pg_current_xact_id() AS text) AS bigint),
                               CAST(date_part('epoch', clock_timestamp()) * 1000 AS bigint), 0)"""
                    ),
                    {"payload": f'{{"order": {number}}}'},
                )
            run.wait(timeout=10, poll=0.01)
            waits.append(time.monotonic() - began)

    assert max(waits) < 10, waits
