"""Matching an event costs the same with one and with 100,000 open waits of its name (R28)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import psycopg
import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy.engine import make_url

from tests import apps
from tests.event_app import awaiting
from tests.event_app import awaiting_since
from tests.event_app import declared
from tests.event_app import receiving
from tests.event_app import session_of
from tests.processes import outsider
from tests.processes import rows
from tests.running import Clock
from tests.running import make_orders_db

MANY = 100_000

#: SQLite: an index may be gone through from end to end where it holds only what is to be done.
SMALL = ("workflow_events_new", "workflow_waits_unchecked")


class Asked(NamedTuple):
    statement: str
    params: Any


class Asking:
    """An app's `SQLALCHEMY_ENGINE_OPTIONS` that write down what is asked of the database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []

    def options(self) -> dict[str, Any]:
        return {"creator": self._sqlite if self.url.startswith("sqlite") else self._postgresql}

    def _postgresql(self) -> psycopg.Connection[Any]:
        asked = self.asked

        class Cursor(psycopg.Cursor[Any]):
            def execute(self, query: Any, params: Any = None, **kwargs: Any) -> Any:
                asked.append(Asked(str(query), params))
                return super().execute(query, params, **kwargs)

        conninfo = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(conninfo)
        connection.cursor_factory = Cursor

        return connection

    def _sqlite(self) -> sqlite3.Connection:
        asked = self.asked

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, params: Any = ()) -> Any:
                asked.append(Asked(statement, params))
                return super().execute(statement, params)

        return sqlite3.connect(make_url(self.url).database or "", factory=Connection, check_same_thread=False)


@pytest.fixture
def asking(database_url: str) -> Asking:
    return Asking(database_url)


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, asking: Asking) -> Iterator[Flask]:
    declared.clock = Clock()

    yield make_app(
        database_url,
        db=make_orders_db(),
        workflows=declared,
        WORKFLOWS_DASHBOARD=False,
        SQLALCHEMY_ENGINE_OPTIONS=asking.options(),
    )

    declared.clock = None


def fill(app: Flask) -> None:
    """100,000 runs that wait for other orders to be paid, and as many events of that name long ago."""
    numbers = (
        f"SELECT generate_series(1, {MANY}) AS n"
        if outsider(app).dialect.name == "postgresql"
        else f"WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {MANY}) SELECT n FROM c"
    )
    id = "'run-' || CAST(n AS varchar(10))"
    filled = (
        f"""INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, attempts,
                max_attempts, losses, created_at, updated_at)
            SELECT {id}, 'awaiting', 1, 'default', '', 'waiting', '', 1, 0, 3, 0, 1, 1 FROM ({numbers}) AS numbers""",
        f"""INSERT INTO workflow_steps (run_id, "key", position, kind, status, attempts)
            SELECT {id}, '$wait:paid', 1, 'wait', 'waiting', 1 FROM ({numbers}) AS numbers""",
        f"""INSERT INTO workflow_waits (run_id, "key", number, name, workspace, fields, values_hash, snapshot,
                after_seq, checked)
            SELECT {id}, '$wait:paid', 0, 'paid', '', '["order"]', 'hash-' || CAST(n AS varchar(10)), NULL, 0, 1
            FROM ({numbers}) AS numbers""",
        f"""INSERT INTO workflow_events (name, workspace, payload, xact, emitted_at, matched_at, woke)
            SELECT 'paid', '', 'null', NULL, 1, 1, 0 FROM ({numbers}) AS numbers""",
    )
    with outsider(app).begin() as connection:
        for statement in filled:
            connection.execute(sa.text(statement))


def plan(connection: sa.Connection, asked: Asked) -> str:
    how = "EXPLAIN " if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
    found = connection.exec_driver_sql(how + asked.statement, asked.params or {})

    return "\n".join(str(row[-1]) for row in found)


def scans(line: str) -> bool:
    """Whether this part of a plan goes through a table, or a whole index, row by row."""
    if "Seq Scan on workflow_" in line:
        return True
    whole = re.search(r"SCAN (workflow_\w+|[a-z])(?: USING (?:COVERING )?INDEX (\w+))?$", line)

    return whole is not None and whole[2] not in SMALL


@pytest.mark.parametrize("analyzed", [False, True], ids=["not analyzed", "analyzed"])
def test_matching_uses_an_index_for_everything_beside_a_hundred_thousand_waits(
    app: Flask, asking: Asking, analyzed: bool
) -> None:
    fill(app)
    if analyzed:
        with outsider(app).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(sa.text("ANALYZE"))

    with app.app_context():
        runs = [awaiting.spawn(7), awaiting.using(workspace="north").spawn(8), receiving.spawn(1)]
        declared.tick()
        asking.asked.clear()
        runs[2].send("line", 1)
        declared.emit("paid", {"order": 7})
        session_of(app).commit()
        declared.deliver("paid", {"order": 8}, workspace="north")
        runs.append(awaiting_since.spawn(7))
        declared.tick()
        declared.clock.move(hours=2)  # type: ignore[union-attr]
        runs.append(awaiting.spawn(9, 0))
        declared.tick()
    with outsider(app).connect() as connection:
        plans = {
            asked.statement: plan(connection, asked)
            for asked in asking.asked
            if re.search("workflow_(events|waits)", asked.statement) and not asked.statement.startswith("PRAGMA")
        }

    assert [status for (status,) in rows(app, "SELECT status FROM workflow_runs WHERE workflow <> 'awaiting'")] == [
        "completed"
    ] * 2
    bad = {
        statement: found
        for statement, found in plans.items()
        if any(scans(line.strip()) for line in found.splitlines())
    }
    assert bad == {}
    candidates = [found for statement, found in plans.items() if "w.values_hash = " in statement]
    assert len(candidates) == 2
    for found in candidates:
        assert "workflow_waits_match" in found
        assert re.search(r"name.*fields.*values_hash", found, re.DOTALL)
    assert len(plans) > 12
