"""What workers do where there are very many runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows.store import postgresql
from flask_workflows.store import Scope
from flask_workflows.store import sqlite
from tests import apps
from tests import busy_app
from tests.databases import PostgresServer
from tests.processes import count_exchanges
from tests.processes import eventually
from tests.processes import execute
from tests.processes import Fleet
from tests.processes import outsider
from tests.processes import rows
from tests.processes import waiting

SLEEPING = 100_000
LATER = 200_000
FINISHED = 200_000

_NUMBERS = {
    "postgresql": "generate_series(1, {number}) AS n",
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {number}) SELECT n FROM s)",
}
_FILL = """
INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, due_at, attempts,
    max_attempts, losses, created_at, updated_at, finished_at)
SELECT '{status}-' || n, 'five', 1, 'default', '', '{status}', '{{}}', 1, {due}, 0, 3, 0, n, n, {finished} FROM {numbers}
"""
_DEAD = """
INSERT INTO workflow_workers (id, name, host, pid, workflows, concurrency, started_at, seen_at)
SELECT 'dead-' || n, 'dead', 'gone', n, '[]', 4, n, n FROM {numbers}
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database with half a million runs, none of which is due, and a hundred workers that died."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('many') / 'app.sqlite3'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.url(name := server.create_database())
    engine = sa.create_engine(url)
    app = apps.make_app(url, db=SQLAlchemy(metadata=busy_app.Base.metadata))
    with engine.begin() as connection:
        for status, number, due, finished in [
            ("sleeping", SLEEPING, "4000000000000 + n", "NULL"),
            ("pending", LATER, "4000000000000 + n", "NULL"),
            ("completed", FINISHED, "NULL", "n"),
        ]:
            numbers = _NUMBERS[engine.name].format(number=number)
            statement = _FILL.format(status=status, due=due, finished=finished, numbers=numbers)
            connection.execute(sa.text(statement))
        connection.execute(sa.text(_DEAD.format(numbers=_NUMBERS[engine.name].format(number=100))))
    engine.dispose()
    apps.dispose_engines(app)

    yield url

    if request.param == "postgresql":
        server.drop_database(name)


def done(app: Flask, run: str) -> list[Any]:
    return rows(app, "SELECT 1 FROM workflow_runs WHERE id = :id AND finished_at IS NOT NULL", id=run)


def plan_of_claim(app: Flask) -> str:
    scope = Scope.of([("one", 1, 1), ("five", 1, 1)])
    params = dict.fromkeys(["now", "worker"]) | {
        "id0": "",
        "limit": 4,
        "lease_ms": 1,
        "begin": 1,
        "careful": 1,
        "alone": 1,
    }
    with outsider(app).connect() as connection:
        if connection.dialect.name == "sqlite":
            statements = [
                sqlite._peek_sql(scope.condition),
                sqlite._due_sql(scope.condition),
                sqlite._claim_sql(":id0"),
            ]
            explain = "EXPLAIN QUERY PLAN "
        else:
            statements = [postgresql._claim_sql(scope.condition)]
            explain = "EXPLAIN "
        found = [
            row for s in statements for row in connection.exec_driver_sql(explain + s, params | scope.params).fetchall()
        ]
        connection.rollback()

    return "\n".join(str(row[-1]) for row in found)


def test_b93_claim_reads_one_index(busy: Flask) -> None:
    fresh = plan_of_claim(busy)
    execute(busy, "ANALYZE")
    analysed = plan_of_claim(busy)
    runtime = apps.runtime_of(busy)
    assert runtime.store.claim(Scope.of(runtime.registry.ranges()), "nobody", 8) == []

    for plan in (fresh, analysed):
        assert "workflow_runs_due" in plan
        assert "Seq Scan on workflow_runs" not in plan
        assert "SCAN workflow_runs" not in plan


def test_b158_worker_begins_soon_after_its_start(busy: Flask, fleet: Fleet) -> None:
    with busy.app_context():
        run = busy_app.one.spawn().id

    fleet.start()
    eventually(lambda: done(busy, run), within=5)


def test_hundred_thousand_sleepers_cost_an_idle_worker_nothing(busy: Flask, fleet: Fleet, tmp_path: Path) -> None:
    worker = fleet.run(count_exchanges, fleet.url, str(tmp_path))
    eventually(lambda: "serves" in worker.log)
    with busy.app_context():
        run = busy_app.one.spawn().id
        eventually(lambda: done(busy, run))
    for _ in waiting(1):
        pass
    exchanges, memory = len((tmp_path / "exchanges").read_text().splitlines()), resident_kb(worker.pid)

    for _ in waiting(6):
        pass
    asked = (tmp_path / "exchanges").read_text().splitlines()[exchanges:]
    grown = resident_kb(worker.pid) - memory

    # One look a second, and the heartbeat.
    assert 4 <= len(asked) <= 1.2 * 6 + 1, asked
    assert grown < 2_000
    assert memory < 120_000


def resident_kb(pid: int) -> int:
    return int(subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, check=True, text=True).stdout)
