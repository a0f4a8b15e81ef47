"""What the tests of runs share: a clock to move, a table to write to, calls made at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from threading import Barrier
from typing import Any
from typing import TypeVar

import pytest
import sqlalchemy as sa
from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from flask_workflows import Workflows

T = TypeVar("T")

#: For tests of what only one of the databases does: their `database_url` is of that kind.
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self._now = datetime(2040, 1, 1, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def move(self, **by: float) -> None:
        """Move it, by the arguments of a timedelta."""
        self._now += timedelta(**by)

    def move_to(self, instant: datetime) -> None:
        self._now = max(self._now, instant)


def run_out(workflows: Workflows, clock: Clock) -> int:
    """Execute until every run has finished, moving the clock on to each next due; answer the number of executions."""
    executions = workflows.tick()
    while dues := [run.due_at for run in workflows.runs() if run.due_at is not None]:
        clock.move_to(min(dues))
        executed = workflows.tick()
        assert executed, "a run is due that is not executed"
        executions += executed

    return executions


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(unique=True)


def make_orders_db() -> SQLAlchemy:
    """A database with the table of `Order`, for `make_app`."""
    return SQLAlchemy(metadata=Base.metadata)


def begin_explicitly(engine: sa.Engine) -> None:
    """Let an SQLite engine begin transactions to read too, as SQLAlchemy's documentation advises."""

    def leave_it_to_us(raw: Any, record: Any) -> None:
        raw.isolation_level = None

    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    engine.dispose()
    sa.event.listen(engine, "connect", leave_it_to_us)
    sa.event.listen(engine, "begin", begin)


def committed_notes() -> list[str]:
    """The notes of the orders that are committed, as another connection sees them."""
    with current_app.extensions["sqlalchemy"].engine.connect() as connection:
        return list(connection.scalars(sa.select(Order.note).order_by(Order.note)))


def at_once(app: Flask, *calls: Callable[[], T]) -> list[T]:
    """Make the calls on threads that wait for one another, each in a context of the app; raise what one raised."""
    barrier = Barrier(len(calls))

    def make(call: Callable[[], T]) -> T:
        with app.app_context():
            barrier.wait(timeout=30)
            return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(make, calls))
