"""The engine's own database connections.

They are made by the app's engine (its URL, its connect arguments, its `connect` listeners) but never taken from the
app's pool, so leases are renewed and steps are stored while every connection of the app is in use.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from contextlib import suppress
from typing import Any

import sqlalchemy as sa


class Connections:
    """Raw DBAPI connections in autocommit mode, the last used first.

    A thread holds at most one at a time, so their number never exceeds that of the threads which write; `keep` is how
    many stay open while unused.
    """

    def __init__(
        self, engine: sa.Engine, keep: int, prepare: Callable[[Any], None], is_dead: Callable[[Any], bool]
    ) -> None:
        self._engine = engine
        self._keep = keep
        self._prepare = prepare
        self._is_dead = is_dead
        self._idle: deque[Any] = deque()
        self._pid = os.getpid()

    def keep(self, number: int) -> None:
        self._keep = max(self._keep, number)

    @contextmanager
    def use(self) -> Iterator[Any]:
        """Lend a connection; one that saw an error which is not a plain refusal is closed, not kept."""
        connection = self._take()
        try:
            yield connection
        except BaseException:
            _close(connection)
            raise
        if len(self._idle) < self._keep:
            self._idle.append(connection)
        else:
            _close(connection)

    def open(self) -> Any:
        """A new connection that belongs to the caller."""
        pooled = self._engine.pool.recreate().connect()
        connection = pooled.dbapi_connection
        pooled.detach()
        self._prepare(connection)
        return connection

    def close(self) -> None:
        while self._idle:
            _close(self._idle.pop())

    def _take(self) -> Any:
        if self._pid != os.getpid():
            # After a fork the sockets belong to the parent: forget them, without a goodbye it would hear.
            self._abandoned = list(self._idle)
            self._idle.clear()
            self._pid = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self.open()
            if not self._is_dead(connection):
                return connection
            _close(connection)


def _close(connection: Any) -> None:
    with suppress(Exception):
        connection.close()
