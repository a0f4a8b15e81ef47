"""What can happen between an app, its workers and PostgreSQL."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.engine import make_url

from flask_workflows.errors import RunChanged
from flask_workflows.errors import RunFinished
from flask_workflows.errors import RunNotFailed
from tests import busy_app
from tests.apps import runtime_of
from tests.dbapi import watched_options
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import read_journal
from tests.processes import rows
from tests.processes import unfinished
from tests.processes import waiting
from tests.processes import working

#: Of each of eight threads; about half of them find a run that lets them.
MEDDLINGS = 80

#: Sleeping runs, as if they had been started one by one.
SLEEPERS = """
INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, due_at, attempts,
    max_attempts, losses, created_at, updated_at)
SELECT 'sleeper-' || n, 'one', 1, 'default', '', 'sleeping', '{}', 1, 4000000000000 + n, 0, 3, 0, 1, 1
FROM generate_series(1, :number) AS n
"""


#: Connections of this database that stored a step last.
ENGINES = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%INSERT INTO workflow_steps%'
"""


@pytest.fixture
def database_url(postgresql_url: str) -> str:
    return postgresql_url


def listener(url: str) -> psycopg.Connection:
    """A connection that hears what workers hear."""
    connection = psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(False), autocommit=True)
    connection.execute("LISTEN flask_workflows")

    return connection


def session_of(app: Flask) -> sa.orm.Session:
    session: sa.orm.Session = app.extensions["sqlalchemy"].session

    return session


# Replies that are lost ----------------------------------------------------------------------


def test_reply_lost_anywhere_costs_no_lease_and_repeats_no_effect(
    make_busy: Callable[..., Flask], database_url: str, tmp_path: Path
) -> None:
    exchanges, lost_at = 0, 0
    lost: list[str] = []

    def lose(asked: str) -> bool:
        nonlocal exchanges
        # What an executing thread asks for; the others go on by themselves.
        if not lost_at or not threading.current_thread().name.startswith("workflows-0") or "notifies" in asked:
            return False
        exchanges += 1
        if exchanges == lost_at:
            lost.append(asked)
        return exchanges == lost_at

    busy = make_busy(
        SQLALCHEMY_ENGINE_OPTIONS=watched_options(database_url, lose=lose),
        WORKFLOWS_STEP_ATTEMPTS=100,
        WORKFLOWS_STEP_BACKOFF_SECS=0,
    )
    with working(busy, concurrency=1), busy.app_context():
        for number in itertools.count(1):
            exchanges, lost_at = 0, number
            run = busy_app.parent.spawn()
            eventually(lambda: not unfinished(busy), within=10)
            if len(lost) < number:
                break
            assert run.output() == "5", lost[-1]
            words = [entry.words for entry in read_journal(tmp_path) if entry.run == run.id]
            assert [word for word in words if word in "135"] == ["1", "3", "5"], lost[-1]
            assert rows(busy, "SELECT step FROM effects WHERE run = :id ORDER BY step", id=run.id) == [("2",), ("4",)]
            assert rows(busy, "SELECT attempts, losses FROM workflow_runs WHERE id = :id", id=run.id) == [(0, 0)]

    assert rows(busy, "SELECT workflow, status, count(*) FROM workflow_runs GROUP BY 1, 2 ORDER BY 1") == [
        ("one", "completed", number),
        ("parent", "completed", number),
    ]
    assert number > 10


def test_runs_of_a_claim_whose_reply_was_lost_go_back_at_once(
    make_busy: Callable[..., Flask], database_url: str
) -> None:
    lost: list[str] = []

    def lose(asked: str) -> bool:
        if len(lost) < 3 and armed and "SKIP LOCKED" in asked and "due AS" in asked:
            lost.append(asked)
            return True
        return False

    armed = False
    busy = make_busy(SQLALCHEMY_ENGINE_OPTIONS=watched_options(database_url, lose=lose))
    with working(busy), busy.app_context():
        armed = True
        for _ in range(4):
            busy_app.one.start()
        session_of(busy).commit()
        eventually(lambda: not unfinished(busy), within=10)

    assert len(lost) == 3
    assert rows(busy, "SELECT DISTINCT status, attempts, losses FROM workflow_runs") == [("completed", 0, 0)]


# Notifications ------------------------------------------------------------------------------


def test_b82_commit_that_started_runs_is_followed_by_one_notification_outside_of_it(
    busy: Flask, database_url: str
) -> None:
    asked: list[str] = []
    with busy.app_context():
        sa.event.listen(
            busy.extensions["sqlalchemy"].engine, "before_cursor_execute", lambda *given: asked.append(given[2])
        )

    with listener(database_url) as heard, busy.app_context():
        for _ in range(3):
            busy_app.one.start()
        busy_app.five.start_many([{}] * 200)
        before = list(heard.notifies(timeout=0.1))
        session_of(busy).commit()
        after = list(heard.notifies(timeout=0.3))
        busy_app.one.start()
        session_of(busy).rollback()
        session_of(busy).execute(sa.text("SELECT 1"))
        session_of(busy).commit()
        rolled_back = list(heard.notifies(timeout=0.1))

    assert (len(before), len(after), len(rolled_back)) == (0, 1, 0)
    assert after[0].payload == ""
    assert not [statement for statement in asked if "NOTIFY" in statement.upper()]


def test_b82_starts_of_many_threads_share_notifications_and_none_goes_unheard(
    busy: Flask, fleet: Fleet, database_url: str
) -> None:
    def start(_: int) -> None:
        with busy.app_context():
            for _ in range(10):
                busy_app.one.start()
                session_of(busy).commit()

    # Were one unheard, the run would wait for a minute.
    fleet.start(WORKFLOWS_POLL_INTERVAL_MS=60_000)
    eventually(lambda: listening(busy))
    with listener(database_url) as heard, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            list(pool.map(start, range(8)))
            eventually(lambda: not unfinished(busy), within=5)
        notifications = list(heard.notifies(timeout=0.2))

    assert 5 <= len(notifications) < 400


def test_b78_start_with_the_largest_names_and_input_commits(busy: Flask) -> None:
    with busy.app_context():
        busy_app.large.using(key="k" * 255, workspace="w" * 255).start("x" * 1_000_000)
        session_of(busy).commit()

    assert len(unfinished(busy)) == 1


def listening(app: Flask) -> list[int]:
    return [pid for (pid,) in rows(app, "SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN flask_workflows'")]


def listens_anew(app: Flask, than: int) -> bool:
    return listening(app) not in ([], [than])


def test_b80_b152_listener_killed_twenty_times_hears_again_each_time(busy: Flask, fleet: Fleet) -> None:
    worker = fleet.start(WORKFLOWS_POLL_INTERVAL_MS=60_000)
    eventually(lambda: listening(busy))

    with busy.app_context():
        for _ in range(20):
            (pid,) = listening(busy)
            execute(busy, "SELECT pg_terminate_backend(:pid)", pid=pid)
            # Started in the gap: found when it listens again.
            busy_app.one.spawn()
            eventually(lambda: not unfinished(busy), within=2)
            eventually(partial(listens_anew, busy, pid), within=2)
            # Started later: heard.
            busy_app.one.spawn()
            eventually(lambda: not unfinished(busy), within=2)

    assert worker.alive
    assert worker.log.count("WARNING") <= 3


def test_worker_listens_at_the_url_it_is_given_for_that(busy: Flask, fleet: Fleet) -> None:
    direct = make_url(fleet.url).update_query_dict({"application_name": "direct"})
    fleet.start(WORKFLOWS_POLL_INTERVAL_MS=60_000, WORKFLOWS_LISTEN_URL=direct.render_as_string(False))
    eventually(lambda: listening(busy))

    with busy.app_context():
        busy_app.one.spawn()
    eventually(lambda: not unfinished(busy), within=2)

    assert rows(busy, "SELECT application_name FROM pg_stat_activity WHERE query = 'LISTEN flask_workflows'") == [
        ("direct",)
    ]


def test_worker_that_is_not_to_listen_polls(busy: Flask, fleet: Fleet) -> None:
    fleet.start(WORKFLOWS_LISTEN=False, WORKFLOWS_POLL_INTERVAL_MS=200)
    eventually(lambda: "serves" in fleet.logs())

    with busy.app_context():
        busy_app.one.spawn()
    eventually(lambda: not unfinished(busy), within=2)

    assert listening(busy) == []


# Sessions, locks and limits of the server ---------------------------------------------------


def test_b85_engine_holds_no_transaction_while_a_step_runs(busy: Flask, fleet: Fleet) -> None:
    idle = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    with busy.app_context():
        busy_app.reading_then_waiting.spawn()
    fleet.start()
    eventually(lambda: [entry.words for entry in fleet.journal()] == ["holding"])

    # The step's own session, and nothing else; others get on.
    assert len(rows(busy, idle)) == 1
    with busy.app_context():
        busy_app.five.spawn()
    eventually(lambda: len(unfinished(busy)) == 1, within=5)
    fleet.touch("first")
    eventually(lambda: "second" in [entry.words for entry in fleet.journal()])

    for _ in waiting(0.5):
        assert rows(busy, idle) == []
    fleet.touch("second")
    eventually(lambda: not unfinished(busy))


def test_b86_short_timeouts_of_the_role_end_no_run_and_cause_no_storm(busy: Flask, fleet: Fleet) -> None:
    execute(busy, SLEEPERS, number=100_000)
    for setting in (
        "statement_timeout = '300ms'",
        "lock_timeout = '100ms'",
        "idle_in_transaction_session_timeout = '1s'",
    ):
        execute(busy, f"ALTER DATABASE {make_url(fleet.url).database} SET {setting}")
    with busy.app_context():
        locked = [busy_app.five.spawn(200).id for _ in range(4)]
        for _ in range(60):
            busy_app.five.spawn()

    # A step whose transaction meets the lock is tried again.
    fleet.start(WORKFLOWS_STEP_BACKOFF_SECS=1)
    eventually(lambda: fleet.journal())
    with outsider(busy).connect() as connection:
        connection.execute(sa.text("SET idle_in_transaction_session_timeout = 0"))
        # Waits for those that are being written.
        connection.execute(sa.text("SET lock_timeout = 0"))
        connection.execute(sa.text("SELECT 1 FROM workflow_runs WHERE id = ANY(:ids) FOR UPDATE"), {"ids": locked})
        for _ in waiting(1.5):
            pass
    open_runs = "SELECT id FROM workflow_runs WHERE workflow = 'five' AND finished_at IS NULL"
    eventually(lambda: not rows(busy, open_runs), within=20)

    assert rows(busy, "SELECT status, count(*) FROM workflow_runs WHERE workflow = 'five' GROUP BY 1") == [
        ("completed", 64)
    ]
    assert rows(busy, "SELECT count(*), count(DISTINCT (run, step)) FROM effects") == [(128, 128)]
    assert fleet.logs().count("WARNING") < 20


def test_b18_cancelling_and_retrying_at_random_meets_no_deadlock(busy: Flask, fleet: Fleet) -> None:
    for _ in range(2):
        fleet.start()
    with busy.app_context():
        runs = [handle.id for handle in busy_app.five.start_many([{"pause_ms": 50}] * 300)]
        session_of(busy).commit()

    def meddle() -> int:
        chance, done = random.Random(), 0
        with busy.app_context():
            for _ in range(MEDDLINGS):
                with suppress(RunFinished, RunNotFailed, RunChanged):
                    run_id = chance.choice(runs)
                    if chance.random() < 0.5:
                        busy_app.workflows.cancel(run_id)
                    else:
                        busy_app.workflows.retry(run_id)
                    done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        meddled = sum(done.result() for done in [pool.submit(meddle) for _ in range(8)])
    eventually(lambda: not unfinished(busy), within=60)

    assert meddled > 100
    assert len(rows(busy, "SELECT id FROM workflow_runs WHERE status IN ('completed', 'cancelled')")) == 300
    assert rows(busy, "SELECT run, step FROM effects GROUP BY 1, 2 HAVING count(*) > 1") == []
    assert "WARNING" not in fleet.logs()
    assert "deadlock" not in fleet.logs()


def test_connections_do_not_prepare_statements_where_the_app_says_so(make_busy: Callable[..., Flask]) -> None:
    busy = make_busy(SQLALCHEMY_ENGINE_OPTIONS={"connect_args": {"prepare_threshold": None}})
    with busy.app_context():
        for _ in range(3):
            busy_app.five.spawn()
        busy_app.workflows.tick()
        store = runtime_of(busy).store
        with store.connections.use() as connection:
            prepared = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()

    assert prepared == (0,)


def test_b93_writes_planned_while_the_table_was_tiny_read_one_row_each_after_a_burst(
    busy: Flask, database_url: str
) -> None:
    store = runtime_of(busy).store
    plain = make_url(database_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(plain, autocommit=True) as connection, busy.app_context():
        busy_app.one.spawn()
        busy_app.workflows.tick()
        # A vacuumed table of one page is thought to stay one, until somebody looks at it again.
        connection.execute("ALTER TABLE workflow_runs SET (autovacuum_enabled = off)")
        connection.execute("VACUUM ANALYZE workflow_runs")
        for _ in range(10):
            busy_app.five.spawn()
            busy_app.workflows.tick()
        execute(busy, SLEEPERS, number=20_000)

        for _ in range(5):
            busy_app.five.spawn()
            busy_app.workflows.tick()

        # What a connection counted is known once it is closed.
        store.close()
        eventually(lambda: not rows(busy, ENGINES))
        read = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'workflow_runs'"
        assert rows(busy, read)[0][0] < 20_000
