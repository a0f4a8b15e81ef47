"""Whether the database's tables are those this version of the package works with."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import ReflectedColumn

from flask_workflows import models
from flask_workflows.errors import DatabaseUnreachable
from flask_workflows.errors import SchemaError

logger = logging.getLogger("flask_workflows")

_UPGRADE = "run `flask workflows install` and `flask db upgrade`"


def check_schema(engine: sa.Engine) -> None:
    """Raise `SchemaError` if a table or a column is missing, or one is there that inserts would have to know.

    Reads the catalogue alone, in one connection, and needs no right to change it. Raises `DatabaseUnreachable`, a
    `SchemaError`, if there is no connection to be had.
    """
    found = _columns(engine)
    missing = [name for name in models.metadata.tables if name not in found]
    if len(missing) == len(models.metadata.tables):
        raise SchemaError(
            f"the database {engine.url!s} has no tables of Flask-Workflows; {_UPGRADE}, "
            "or db.create_all() in an app without Flask-Migrate"
        )
    if missing:
        raise SchemaError(f"the package is newer than the database: no table {', '.join(missing)}; {_UPGRADE}")

    for name, table in models.metadata.tables.items():
        _check_columns(table, found[name])


def _columns(engine: sa.Engine) -> Mapping[str, Mapping[str, ReflectedColumn]]:
    try:
        inspector = sa.inspect(engine)
        reflected = inspector.get_multi_columns(filter_names=list(models.metadata.tables))
    except sa.exc.DBAPIError as error:
        raise DatabaseUnreachable(f"the database {engine.url!s} does not answer: {_first_line(error)}") from error
    return {table: {column["name"]: column for column in columns} for (_, table), columns in reflected.items()}


def _check_columns(table: sa.Table, found: Mapping[str, ReflectedColumn]) -> None:
    missing = [column.name for column in table.columns if column.name not in found]
    if missing:
        raise SchemaError(
            f"the package is newer than the database: {table.name} has no column {', '.join(missing)}; {_UPGRADE}"
        )

    unknown = [column for name, column in found.items() if name not in table.columns]
    demanded = [column["name"] for column in unknown if not column["nullable"] and column.get("default") is None]
    if demanded:
        raise SchemaError(
            f"the database is newer than the package: {table.name} has the column {', '.join(demanded)}, "
            "which this version does not fill; upgrade Flask-Workflows, or downgrade the database"
        )
    # Old workers go on beside new ones while a release is rolled out: a column they may leave out harms nobody.
    if unknown:
        names = ", ".join(column["name"] for column in unknown)
        logger.warning("%s has columns this version of Flask-Workflows does not know: %s", table.name, names)


def _first_line(error: sa.exc.DBAPIError) -> str:
    return str(error.orig or error).strip().partition("\n")[0]
