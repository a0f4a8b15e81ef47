"""What the tests of runs share: a clock to move, a table to write to, calls made at the same moment."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from threading import Barrier
from threading import Event
from threading import Thread
from typing import Any
from typing import TypeVar

import pytest
import sqlalchemy as sa
from flask import current_app
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.durations import from_ms

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
    while (due := _next_due()) is not None:
        clock.move_to(from_ms(due))
        executed = workflows.tick()
        assert executed, "a run is due that is not executed"
        executions += executed

    return executions


def _next_due() -> int | None:
    with current_app.extensions["workflows"].engine.connect() as connection:
        due: int | None = connection.scalar(sa.select(sa.func.min(models.runs.c.due_at)))

    return due


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(unique=True)


def make_orders_db() -> SQLAlchemy:
    """A database with the table of `Order`, for `make_app`; the extension's own tables are added to a copy."""
    metadata = sa.MetaData()
    for table in Base.metadata.sorted_tables:
        table.to_metadata(metadata)

    return SQLAlchemy(metadata=metadata)


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


class Proxy:
    """Stands between an app and its PostgreSQL server, and can stop passing anything on."""

    def __init__(self, url: str) -> None:
        server = make_url(url)
        self._address = server.host or "127.0.0.1", server.port or 5432
        self._flowing = Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        host, port = self._listener.getsockname()
        self.url = server.set(host=host, port=port).render_as_string(hide_password=False)
        Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        """Leave every connection open, also new ones, and pass nothing on."""
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def close(self) -> None:
        self._flowing.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._address)
                self._sockets += [client, server]
                Thread(target=self._pass_on, args=(client, server), daemon=True).start()
                Thread(target=self._pass_on, args=(server, client), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._flowing.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
