"""The chaos harness itself: its schedule follows from the seed, its proxy loses replies, its ledger can fail."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from flask import Flask

from chaos import app as load
from chaos import ledger
from chaos.app import create_app
from chaos.app import create_tables
from chaos.app import db
from chaos.app import Entry
from chaos.app import EXPECTED
from chaos.app import Order
from chaos.app import workflows
from chaos.faults import Fault
from chaos.faults import plan
from chaos.faults import SQLITE_FAULTS
from chaos.faults import WORKER_FAULTS
from chaos.ledger import Record
from chaos.load import BY
from chaos.load import is_refusal
from chaos.proxy import Loss
from chaos.proxy import Proxy
from flask_workflows import Handle
from flask_workflows.definition import Workflow
from tests.apps import dispose_engines
from tests.databases import PostgresServer
from tests.processes import eventually
from tests.running import Clock
from tests.running import run_out

ROOT = Path(__file__).resolve().parent.parent
KINDS = [*WORKER_FAULTS, *SQLITE_FAULTS]


def test_schedule_follows_from_the_seed() -> None:
    schedule = plan(7, 60, KINDS)

    assert schedule == plan(7, 60, KINDS)
    assert schedule != plan(8, 60, KINDS)
    assert plan(7, 30, KINDS) == [planned for planned in schedule if planned.at < 30]


def test_no_fault_comes_twice_before_each_other_came() -> None:
    kinds = [planned.kind for planned in plan(7, 60, KINDS)]

    for start in range(0, len(kinds) - len(KINDS), len(KINDS)):
        assert sorted(kinds[start : start + len(KINDS)]) == sorted(KINDS)


# The proxy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "autocommit"),
    [
        (Loss("commit"), False),
        (Loss("commit", "cut"), False),
        (Loss("commit", "ended"), False),
        (Loss("statement"), True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, Loss) else "",
)
def test_proxy_loses_the_reply_to_what_is_done(
    postgres_server: PostgresServer, postgresql_url: str, loss: Loss, autocommit: bool
) -> None:
    url = sa.make_url(postgresql_url).set(drivername="postgresql")
    assert url.port is not None
    with closing(Proxy(url.port)) as proxy:
        conninfo = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE said (word text)")

        connection = psycopg.connect(conninfo, autocommit=autocommit)
        write = partial(connection.execute, "INSERT INTO said VALUES ('done')")
        if not autocommit:
            write()
        lost = _lose_soon(proxy, loss)
        with pytest.raises(psycopg.Error) as caught:
            (write if autocommit else connection.commit)()

        assert lost() is not None
        assert is_refusal(caught.value)
        with psycopg.connect(conninfo) as another:
            eventually(lambda: another.execute("SELECT word FROM said").fetchall() == [("done",)])


def _lose_soon(proxy: Proxy, loss: Loss) -> Callable[[], float | None]:
    """Arm the proxy; what is answered waits for what came of it."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(proxy.lose, loss, 10.0)
    while proxy.armed is None:
        time.sleep(0.001)
    pool.shutdown(wait=False)
    return future.result


# The ledger --------------------------------------------------------------------------------


@workflows.step(transactional=True)
def booked_twice(number: int) -> int:
    load.enter(transactional=True)
    load.enter(transactional=True)
    return number


@workflows.step
def repeated(number: int) -> int:
    load.enter()
    load.enter()
    return number


@workflows.workflow
def booking_twice(number: int) -> int:
    return booked_twice(number)


@workflows.workflow
def repeating(number: int) -> int:
    return repeated(number)


@contextmanager
def working(url: str) -> Iterator[Flask]:
    """The load's app, by a clock that only moves when everything waits."""
    app = create_app(url, 0, WORKFLOWS_RETRY_BACKOFF_SECS=0)
    workflows.clock = Clock()
    with app.app_context():
        create_tables()
        yield app

    workflows.clock = None
    dispose_engines(app)


@pytest.fixture
def app(database_url: str) -> Iterator[Flask]:
    with working(database_url) as app:
        yield app


def finish_all() -> None:
    clock = workflows.clock
    assert isinstance(clock, Clock)
    run_out(workflows, clock)


def start(workflow: Workflow[Any, Any], number: int) -> Handle[Any]:
    handle = workflow.start(number)
    db.session.add(Order(number=number, run=handle.id, workflow=workflow.name))
    db.session.commit()
    return handle


@pytest.fixture(scope="module")
def worked(shared_url: str) -> Iterator[Flask]:
    """An app of whose workflows each came to its end, with no fault; tests leave it as it is."""
    with working(shared_url) as app:
        _work_all()
        yield app


def _work_all() -> None:
    several: list[Workflow[Any, Any]] = [load.ordered, load.awaiting, load.told, load.parent, load.spread]
    for number, workflow in enumerate([*several, load.failing, load.undone], start=1):
        handle = start(workflow, number)
        if workflow is load.told:
            handle.send("note", {"number": number, "amount": number})
            db.session.commit()
        elif workflow is load.awaiting:
            workflows.deliver("paid", {"number": number, "amount": number})
    cancelled = start(load.ordered, 8)
    workflows.cancel(cancelled.id, by=BY)
    finish_all()
    retried = start(load.failing, 9)
    finish_all()
    db.session.execute(sa.update(Order).where(Order.number == 9).values(repaired=True))
    db.session.commit()
    workflows.retry(retried.id, by=BY)
    finish_all()


def read(faults: Sequence[Fault] = (), committed: Collection[int] = ()) -> Record:
    db.session.rollback()
    with db.engine.connect() as connection:
        return Record.read(connection, faults, committed)


def broken(record: Record) -> set[str]:
    return {violation.check for violation in ledger.violations(record)}


def test_ledger_finds_nothing_where_nothing_is_wrong(worked: Flask) -> None:
    record = read(committed=range(1, 10))

    assert ledger.violations(record) == []
    assert Counter(run.status for run in record.runs.values()) == {"completed": 8, "failed": 2, "cancelled": 1}
    assert {run.workflow for run in record.runs.values()} >= EXPECTED.keys()


_ONE = "(SELECT run FROM chaos_orders WHERE workflow = 'ordered' AND number = 1)"


@pytest.mark.parametrize(
    ("statements", "check"),
    [
        ([f"DELETE FROM workflow_runs WHERE id = {_ONE}"], "no run lost"),
        (["DELETE FROM chaos_orders WHERE number = 1"], "no run lost"),
        ([f"UPDATE workflow_runs SET status = 'running', finished_at = NULL WHERE id = {_ONE}"], "no run lost"),
        (
            [
                f"UPDATE workflow_runs SET status = 'running', finished_at = NULL WHERE id = {_ONE}",
                f"UPDATE workflow_runs SET status = 'completed', finished_at = 1 WHERE id = {_ONE}",
            ],
            "none settled twice",
        ),
        ([f"UPDATE workflow_runs SET status = 'cancelled' WHERE id = {_ONE}"], "none settled twice"),
        ([f"UPDATE workflow_runs SET epoch = epoch - 1 WHERE id = {_ONE}"], "epochs only rise"),
        ([f"UPDATE workflow_runs SET worker = 'another' WHERE id = {_ONE}"], "epochs only rise"),
        ([f"UPDATE workflow_runs SET epoch = epoch + 1, attempts = max_attempts + 1 WHERE id = {_ONE}"], "limits kept"),
        (["UPDATE workflow_steps SET attempts = 4 WHERE key = 'declined'"], "limits kept"),
        ([f"UPDATE workflow_steps SET output = '0' WHERE run_id = {_ONE} AND key = 'plain'"], "stored steps stay"),
        ([f"DELETE FROM workflow_steps WHERE run_id = {_ONE} AND key = 'plain'"], "stored steps stay"),
        (["DELETE FROM chaos_entries WHERE key = 'slowly_booked'"], "transactional steps exactly once"),
        (["DELETE FROM chaos_entries WHERE key = '$undo:given_back'"], "transactional steps exactly once"),
        (["DELETE FROM workflow_steps WHERE key = 'booked'"], "transactional steps exactly once"),
        (["DELETE FROM chaos_entries WHERE key = 'plain'"], "plain steps repeated only in faults"),
        ([f"UPDATE workflow_runs SET output = '0' WHERE id = {_ONE}"], "outcomes right"),
        ([f"UPDATE workflow_runs SET status = 'failed' WHERE id = {_ONE}"], "outcomes right"),
        (["UPDATE workflow_audit SET action = 'wake' WHERE action = 'cancel'"], "outcomes right"),
        (["UPDATE workflow_runs SET output = 'null' WHERE workflow = 'awaiting'"], "no wake-up lost"),
        (["UPDATE workflow_runs SET output = 'null' WHERE workflow = 'told'"], "no wake-up lost"),
        (["UPDATE workflow_runs SET parent_id = NULL WHERE workflow = 'child'"], "children exactly once"),
    ],
)
def test_ledger_tells_what_was_broken(worked: Flask, statements: Sequence[str], check: str) -> None:
    db.session.rollback()
    with db.engine.connect() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
        record = Record.read(connection)
        connection.rollback()

    assert check in broken(record)


def test_order_whose_commit_was_heard_of_is_missed(worked: Flask) -> None:
    assert broken(read(committed=[1, 99])) == {"no run lost"}


@pytest.mark.parametrize(
    ("workflow", "check"),
    [(booking_twice, "transactional steps exactly once"), (repeating, "plain steps repeated only in faults")],
    ids=["transactional", "plain"],
)
def test_step_that_writes_twice_is_a_violation(app: Flask, workflow: Workflow[Any, Any], check: str) -> None:
    handle = start(workflow, 1)
    finish_all()

    found = ledger.violations(read())

    assert [(violation.check, violation.run) for violation in found] == [(check, handle.id)]
    assert workflow.name in ledger.evidence(read(), handle.id)


@pytest.mark.parametrize(
    ("fault", "excused"),
    [
        (Fault("kill", frozenset({0}), 104.0, 104.1), True),
        (Fault("kill", frozenset({1}), 104.0, 104.1), True),
        (Fault("restart", None, 90.0, 120.0), True),
        (Fault("kill", frozenset({2}), 104.0, 104.1), False),
        (Fault("kill", frozenset({0}), 90.0, 98.0), False),
        (Fault("kill", frozenset({0}), 110.5, 111.0), False),
    ],
    ids=["of the first", "of the second", "of all", "of another", "before", "after"],
)
def test_plain_step_may_be_repeated_when_a_fault_of_its_worker_came_between(
    app: Flask, fault: Fault, excused: bool
) -> None:
    handle = start(load.child, 1)
    finish_all()
    db.session.execute(sa.delete(Entry).where(Entry.key == "plain"))
    for slot, at in [(0, 100.0), (1, 110.0)]:
        db.session.add(Entry(run=handle.id, key="plain", transactional=False, raised=False, slot=slot, at=at))
    db.session.commit()

    assert (ledger.violations(read([fault])) == []) is excused


def test_what_is_violated_is_printed_with_its_evidence_and_fails_the_command(tmp_path: Path) -> None:
    wrong = "import sys; from chaos import app, command; app.EXPECTED['ordered'] = lambda number: 0; "
    command = (
        f"{wrong} sys.exit(command.main(['--database', 'sqlite', '--seconds', '0', '--folder', {str(tmp_path)!r}]))"
    )

    ended = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "outcomes right: run " in ended.stdout
    assert str(tmp_path) in ended.stdout
    told = (tmp_path / "sqlite" / "violations.txt").read_text()
    assert "== outcomes right: ordered returned" in told
    assert "entry    " in told
    assert "change   " in told
    assert "run settled" in told
