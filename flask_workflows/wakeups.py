"""How a worker learns that something is to be claimed, sooner than by polling.

PostgreSQL: one connection listens; it is made again when it dies, and then something may have been missed, so the
worker looks. SQLite: `PRAGMA data_version` moves when another connection committed. Either only wakes: what is lost
here makes a start slow, never lost, since the worker polls all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event
from threading import Thread
from typing import Any

import sqlalchemy as sa

from .leases import STOP_SECONDS
from .store import Store
from .store.postgresql import CHANNEL

logger = logging.getLogger("flask_workflows")

#: How often SQLite's version is read.
WATCH_SECONDS = 0.02
#: How long to listen before looking whether to end.
LISTEN_SECONDS = 0.2
#: A connection that says nothing is asked whether it still lives.
PROBE_SECONDS = 60.0


class Listener:
    """A thread that calls `wake` when another process may have made something due."""

    def __init__(self, store: Store, wake: Callable[[], None], *, url: str | None = None) -> None:
        self._store = store
        self._wake = wake
        self._url = url
        self._ending = Event()
        self._thread = Thread(target=self._run, name="workflows-listener", daemon=True)
        #: Whether wake-ups arrive now, for those who want to know why they do not.
        self.listening = False

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if the database lets it."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        pause = 0.1
        while not self._ending.is_set():
            try:
                connection = self._connect()
            except Exception as error:
                self._store.complain("wake-ups do not arrive, polling meanwhile", error)
                self._ending.wait(pause)
                pause = min(pause * 2, 5.0)
                continue
            pause = 0.1
            try:
                self._wake()
                (self._listen if self._store.dialect.listens else self._watch)(connection)
            except Exception as error:
                self._store.complain("wake-ups were interrupted, polling meanwhile", error)
                self._ending.wait(pause)
            finally:
                self.listening = False
                with suppress(Exception):
                    connection.close()

    def _connect(self) -> Any:
        if self._url is None:
            return self._store.connections.open()
        import psycopg

        url = sa.make_url(self._url).set(drivername="postgresql")
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)

    def _listen(self, connection: Any) -> None:
        connection.execute(f"LISTEN {CHANNEL}")
        self.listening = True
        self._wake()
        silent = 0.0
        while not self._ending.is_set():
            heard = False
            for _ in connection.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                heard = True
                self._wake()
            silent = 0.0 if heard else silent + LISTEN_SECONDS
            if silent >= PROBE_SECONDS:
                connection.execute("SELECT 1")
                silent = 0.0

    def _watch(self, connection: Any) -> None:
        self.listening = True
        seen = None
        while not self._ending.wait(WATCH_SECONDS):
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                self._wake()
