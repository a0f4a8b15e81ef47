"""What is asked of the audit, the causes and the statistics reads an index, or a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from datetime import datetime
from datetime import UTC
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask

from flask_workflows import Workflows
from flask_workflows.store import reading as read
from tests import apps

NUMBER = 30_000

_NUMBERS = {
    "postgresql": "generate_series(1, {number}) AS n",
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {number}) SELECT n FROM s)",
}
_FILL = [
    """INSERT INTO workflow_audit (id, at, actor, action, run_id, workspace, target, reason)
    SELECT CAST(1000000 + n AS text), n, 'ana', 'cancel', 'run-' || n, '', 'w', '' FROM {numbers}""",
    """INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, attempts, max_attempts,
        losses, created_at, updated_at, finished_at, cause)
    SELECT 'run-' || n, 'w', 1, 'default', '', 'failed', '{{}}', 1, 0, 3, 0, n, n, n, 'cause-' || (n - n / 10 * 10)
    FROM {numbers}""",
    """INSERT INTO workflow_stats (at, workflow, outcome, count, busy_ms)
    SELECT 900000 * CAST(n AS bigint), 'w', 'completed', 1, 1 FROM {numbers}""",
    """INSERT INTO workflow_waits (run_id, "key", number, name, workspace, fields, values_hash, after_seq, checked)
    SELECT 'run-' || n, '$wait', 0, 'paid', '', '[]', 'hash-' || n, 0, 1 FROM {numbers}""",
]


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp) -> Flask:
    workflows = Workflows()
    workflows.event("paid")
    app = make_app(database_url, workflows=workflows)
    with apps.runtime_of(app).engine.begin() as connection:
        for statement in _FILL:
            numbers = _NUMBERS[connection.dialect.name].format(number=NUMBER)
            connection.exec_driver_sql(statement.format(numbers=numbers))
        connection.exec_driver_sql("ANALYZE")
    return app


def plans(app: Flask, ask: Callable[[sa.Connection], object]) -> Iterator[str]:
    """How the database answers each statement that is asked."""
    asked: list[tuple[str, Any]] = []
    with apps.runtime_of(app).engine.connect() as connection:

        def note(connection: sa.Connection, cursor: object, statement: str, parameters: Any, *rest: object) -> None:
            asked.append((statement, parameters))

        sa.event.listen(connection, "before_cursor_execute", note)
        ask(connection)
        sa.event.remove(connection, "before_cursor_execute", note)
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        for statement, parameters in asked:
            rows = connection.exec_driver_sql(explain + statement, parameters).fetchall()
            yield "\n".join(str(row[-1]) for row in rows)


@pytest.mark.parametrize(
    ("ask", "index"),
    [
        (lambda c: read.list_audit(c), "workflow_audit_pkey"),
        (lambda c: read.list_audit(c, cursor="older.1020000"), "workflow_audit_pkey"),
        (lambda c: read.list_audit(c, cursor="newer.1020000", actor="ben"), "workflow_audit_pkey"),
        (lambda c: read.list_audit(c, run_id="run-20000"), "workflow_audit_run"),
        (lambda c: read.count_cause(c, "cause-1", None), "workflow_runs_cause"),
        (lambda c: read.count_cause(c, "cause-1", ("acme",)), "workflow_runs_cause"),
        (lambda c: read.finished_stats(c, datetime.fromtimestamp(900 * (NUMBER - 5), UTC)), "workflow_stats_pkey"),
    ],
    ids=["newest", "older", "of an actor", "of a run", "cause", "cause in a scope", "finished"],
)
def test_a_look_reads_an_index(app: Flask, ask: Callable[[sa.Connection], object], index: str) -> None:
    # SQLite calls the index of a primary key by its number.
    names = (index, f"sqlite_autoindex_{index.removesuffix('_pkey')}_1")
    for plan in plans(app, ask):
        assert any(name in plan for name in names), plan
        assert "Seq Scan" not in plan
        # What is looked through for an actor is bounded, and sorted at most.
        assert "TEMP B-TREE" not in plan or "CO-ROUTINE" in plan


def test_what_an_event_would_wake_is_looked_up_by_its_values_and_others_are_counted_up_to_a_bound(app: Flask) -> None:
    matching, *_, others = list(plans(app, lambda c: read.waits_for(c, "paid", {}, "", None)))

    assert "workflow_waits_match" in matching
    assert "workflow_waits_match" in others or "Limit" in others
