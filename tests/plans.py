"""How the database answers what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from flask_workflows.store import reading as read
from tests.rows import Rows


def statements(rows: Rows, work: Callable[[sa.Connection], object]) -> list[tuple[str, Any]]:
    """Each statement that `work` executes, with its parameters."""
    seen: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    sa.event.listen(rows.engine, "before_cursor_execute", note)
    try:
        with read.reading(rows.engine) as connection:
            work(connection)
    finally:
        sa.event.remove(rows.engine, "before_cursor_execute", note)
    return seen


def plans(rows: Rows, work: Callable[[sa.Connection], object]) -> list[str]:
    """The plan of each statement that `work` executes."""
    explain = "EXPLAIN QUERY PLAN " if rows.engine.dialect.name == "sqlite" else "EXPLAIN "
    asked = statements(rows, work)
    with read.reading(rows.engine, seconds=60) as connection:
        return [
            "\n".join(str(line[-1]) for line in connection.exec_driver_sql(explain + statement, parameters))
            for statement, parameters in asked
        ]


def analyze(rows: Rows) -> None:
    """Let the planner know the tables as it would know old ones."""
    if rows.engine.dialect.name == "postgresql":
        with rows.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")


def assert_served(found: list[str], *, in_order: tuple[str, ...] = ()) -> None:
    """No plan goes through one of our tables row by row; SQLite may through those `in_order` of their key.

    What it then reads ends with the limit. It names no index there, since such a table is one.
    """
    assert found
    for plan in found:
        for line in plan.splitlines():
            assert "Seq Scan on workflow_" not in line, plan
            assert not line.strip().startswith("SCAN workflow_") or "USING" in line or line.endswith(in_order), plan
