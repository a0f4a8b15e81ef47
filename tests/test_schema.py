from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from flask_workflows import models
from flask_workflows.errors import DatabaseUnreachable
from flask_workflows.errors import SchemaError
from flask_workflows.schema import check_schema


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database_url)
    models.metadata.create_all(engine)

    yield engine

    engine.dispose()


def execute(engine: sa.Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


def test_created_tables_are_accepted(engine: sa.Engine) -> None:
    check_schema(engine)


def test_check_takes_few_statements(engine: sa.Engine) -> None:
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    check_schema(engine)

    assert len(statements) <= 10


def test_empty_database_is_told_what_to_run(engine: sa.Engine) -> None:
    models.metadata.drop_all(engine)

    with pytest.raises(SchemaError) as refusal:
        check_schema(engine)

    assert "has no tables of Flask-Workflows" in str(refusal.value)
    assert "run `flask workflows install` and `flask db upgrade`" in str(refusal.value)
    assert "db.create_all()" in str(refusal.value)


def test_missing_table_means_the_package_is_newer(engine: sa.Engine) -> None:
    execute(engine, "DROP TABLE workflow_workers")

    with pytest.raises(SchemaError) as refusal:
        check_schema(engine)

    assert str(refusal.value) == (
        "the package is newer than the database: no table workflow_workers; "
        "run `flask workflows install` and `flask db upgrade`"
    )


def test_missing_column_means_the_package_is_newer(engine: sa.Engine) -> None:
    execute(engine, "ALTER TABLE workflow_steps DROP COLUMN earlier")

    with pytest.raises(SchemaError) as refusal:
        check_schema(engine)

    assert str(refusal.value) == (
        "the package is newer than the database: workflow_steps has no column earlier; "
        "run `flask workflows install` and `flask db upgrade`"
    )


def test_column_that_inserts_must_fill_means_the_database_is_newer(engine: sa.Engine) -> None:
    execute(engine, "ALTER TABLE workflow_runs RENAME COLUMN losses TO lost")
    execute(engine, "ALTER TABLE workflow_runs ADD COLUMN losses INTEGER")

    with pytest.raises(SchemaError) as refusal:
        check_schema(engine)

    assert str(refusal.value) == (
        "the database is newer than the package: workflow_runs has the column lost, "
        "which this version does not fill; "
        "upgrade Flask-Workflows, or downgrade the database"
    )


@pytest.mark.parametrize("column", ["INTEGER", "INTEGER DEFAULT 1 NOT NULL"])
def test_column_that_inserts_may_leave_out_is_only_warned_about(
    engine: sa.Engine, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(engine, f"ALTER TABLE workflow_runs ADD COLUMN priority {column}")

    check_schema(engine)

    assert caplog.messages == ["workflow_runs has columns this version of Flask-Workflows does not know: priority"]


def test_tables_of_the_app_are_no_concern(engine: sa.Engine) -> None:
    execute(engine, "CREATE TABLE workflow_notes (id INTEGER PRIMARY KEY)")

    check_schema(engine)


def test_tables_are_found_through_the_search_path(postgresql_url: str) -> None:
    engine = sa.create_engine(postgresql_url, connect_args={"options": "-csearch_path=app"})
    execute(engine, "CREATE SCHEMA app")
    models.metadata.create_all(engine)

    check_schema(engine)

    engine.dispose()


def test_silent_database_is_told_apart_and_its_password_kept() -> None:
    engine = sa.create_engine("postgresql+psycopg://app:s3cr%40t@127.0.0.1:1/app")

    with pytest.raises(DatabaseUnreachable) as refusal:
        check_schema(engine)

    assert "postgresql+psycopg://app:***@127.0.0.1:1/app" in str(refusal.value)
    assert "does not answer: " in str(refusal.value)
    assert "s3cr" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
