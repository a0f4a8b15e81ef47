"""The app under test. Its worker is the real one: `flask --app benchmarks.app workflows work`."""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from typing import Self

import psycopg
import sqlalchemy as sa
from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import WorkflowContext
from flask_workflows import Workflows

db = SQLAlchemy()
workflows = Workflows()


@workflows.step
def add_one(number: int) -> int:
    return number + 1


@workflows.step
def instant() -> int:
    """The system-wide monotonic clock, which the process that started the run reads too."""
    return time.monotonic_ns()


@workflows.workflow
def one_step(number: int) -> int:
    return add_one(number)


@workflows.workflow
def many_steps(count: int) -> int:
    number = 0
    for _ in range(count):
        number = add_one(number)
    return number


@workflows.workflow
def fan_out(ctx: WorkflowContext, count: int) -> int:
    return sum(ctx.map(add_one, range(count), max_workers=8))


@workflows.workflow
def family(count: int) -> int:
    return sum(handle.result() for handle in [one_step.start(number) for number in range(count)])


@workflows.workflow
def probe() -> int:
    return instant()


@workflows.workflow
def nap(ctx: WorkflowContext, days: int) -> None:
    ctx.sleep(timedelta(days=days))


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    """Make the app, configured by FLASK_… variables, with `config` over them."""
    app = Flask(__name__)
    app.config.from_prefixed_env()
    app.config.from_mapping(config)
    db.init_app(app)
    workflows.init_app(app, db)
    counter = app.config.get("BENCHMARKS_COUNTER")
    if counter is not None:
        with app.app_context():
            _count_statements(db.engine, counter)

    return app


def _count_statements(engine: sa.Engine, path: str) -> None:
    """Keep the number of statements this process executes in a file."""
    number = itertools.count(1)
    file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def count(statement: object) -> None:
        # PRAGMA data_version, every 20 ms, reads a counter in memory and no table.
        if not str(statement).startswith("PRAGMA"):
            os.pwrite(file, b"%d" % next(number), 0)

    class Counting(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Self:
            count(query)
            return super().execute(query, *arguments, **options)

    @sa.event.listens_for(engine, "connect")
    def watch(connection: Any, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.set_trace_callback(count)
        else:
            connection.cursor_factory = Counting
