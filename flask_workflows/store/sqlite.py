"""SQLite: what is different there.

One writer at a time is SQLite's rule. Inside a process the engine's writers queue on a lock of ours, since SQLite's
own waiting sleeps longer and longer; between processes it is SQLite's `busy_timeout`. Every transaction of the engine
begins IMMEDIATE: a deferred one that reads before it writes can fail at once, whatever the time-out.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from contextlib import contextmanager
from contextlib import suppress
from functools import cache
from threading import RLock
from typing import Any

import sqlalchemy as sa

from . import event_statements as events_sql
from . import statements as sql
from .rows import Change
from .rows import Fenced
from .rows import StepWrite

BUSY_TIMEOUT_MS = 30_000

#: Where a connection's `info` keeps its count of changes at the beginning of its transaction.
CHANGES_BEFORE = "flask_workflows_changes"

#: What `sqlite3.LEGACY_TRANSACTION_CONTROL` is, from Python 3.12 on.
_LEGACY = -1

_NOW = "(SELECT coalesce(:now, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS integer)))"


class SQLite:
    name = "sqlite"
    text = "text"
    listens = False

    def __init__(self) -> None:
        self._writing = RLock()
        self._pid = os.getpid()

    @staticmethod
    @cache
    def sql(statement: str) -> str:
        return statement.replace("{now}", _NOW).replace("{skip_locked}", "")

    def prepare(self, connection: sqlite3.Connection) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA busy_timeout = 1000")
        # Done once for a file, and refused while somebody writes: then a later connection does it.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA synchronous = FULL")

    def is_dead(self, connection: sqlite3.Connection) -> bool:
        return False

    @contextmanager
    def transaction(self, connection: sqlite3.Connection, *, deferred: bool = False) -> Iterator[None]:
        """`deferred`, for a watched operation that may be one that only reads, takes the write lock when it writes."""
        if connection.in_transaction:
            # A watched claim begins its own inside the one that was begun for it.
            yield
            return
        if self._pid != os.getpid():
            # A thread that is only in the parent may have held it at the fork.
            self._writing, self._pid = RLock(), os.getpid()
        with self._writing:
            connection.execute("BEGIN" if deferred else "BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def written(self, connection: sqlite3.Connection) -> int:
        """Something else once the open transaction has changed a row."""
        return connection.total_changes

    @contextmanager
    def at_once(self, connection: sqlite3.Connection) -> Iterator[None]:
        """As `transaction`, but raise at once where another connection or thread writes."""
        if not self._writing.acquire(blocking=False):
            raise sqlite3.OperationalError("database is locked by another thread")
        try:
            connection.execute("PRAGMA busy_timeout = 0")
            with self.transaction(connection):
                yield
        finally:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            self._writing.release()

    def clock(self, execute: Any, now: int | None) -> int:
        return int(execute(self.sql("SELECT {now}"), {"now": now}).fetchone()[0])

    def record(
        self, execute: Any, params: dict[str, Any], writes: Sequence[StepWrite], *, touch: bool
    ) -> Fenced | None:
        """Each INSERT is conditional on the epoch by itself: it holds the write lock that a claim would need."""
        params["now"] = self.clock(execute, params["now"])
        if touch and execute(self.sql(sql.TOUCH_RUN), params).fetchone() is None:
            return None
        fenced = None
        for write in writes:
            params.update(zip(sql.write_names(0), write, strict=True))
            row = execute(_RECORD, params).fetchone()
            if row is None:
                return None
            fenced = Fenced(*row)
        return fenced

    def settle(self, execute: Any, params: dict[str, Any], change: Change, writes: Sequence[StepWrite]) -> bool:
        params["now"] = self.clock(execute, params["now"])
        sql.add_change(params, change)
        for write in writes:
            params.update(zip(sql.write_names(0), write, strict=True))
            if execute(_RECORD, params).fetchone() is None:
                return False
        settled: bool = execute(self.sql(sql.SETTLE_RUN), params).rowcount == 1
        if not settled and writes:
            raise Unsettled
        return settled

    @staticmethod
    @cache
    def events(statement: str) -> str:
        """Fill in how commits are told before from after: by the order of rows, as one writer follows another."""
        for name, text in _EVENTS.items():
            statement = statement.replace(name, text)
        return statement

    def not_before(self, snapshot: str | None) -> dict[str, Any]:
        """Nothing: one writer follows the other, so the wait's own number says it all."""
        return {}

    def afresh(self, connection: sqlite3.Connection, *, but: Set[str]) -> Any:
        return connection.execute

    def replanning(self, execute: Any, run_id: str) -> Any:
        return execute

    def claim(
        self, connection: sqlite3.Connection, scope: str, params: Mapping[str, Any]
    ) -> tuple[list[tuple[Any, ...]], bool]:
        # A look first: an idle worker then neither takes the write lock nor wakes the other workers.
        due, events_wait = connection.execute(_peek_sql(scope), params).fetchone()
        if not due:
            return [], bool(events_wait)
        with self.transaction(connection):
            # Looked up first: what RETURNING tells of a row is what became of it.
            held = dict(connection.execute(_due_sql(scope), params).fetchall())
            listed, ids = sql.named("id", list(held))
            rows = connection.execute(_claim_sql(listed), {**params, **ids}).fetchall()
            return [(*row, bool(held[row[0]])) for row in rows], bool(events_wait)

    def renew(self, execute: Any, params: dict[str, Any], held: Sequence[tuple[str, int]]) -> list[tuple[Any, ...]]:
        renewed = []
        for run_id, epoch in held:
            row = execute(self.sql(_RENEW), {**params, "run_id": run_id, "epoch": epoch}).fetchone()
            if row is not None:
                renewed.append(row)
        return renewed

    def holds_writes(self, connection: sa.Connection) -> bool:
        """Whether the connection's open transaction has written something, and so holds the one write lock."""
        raw: Any = connection.connection.dbapi_connection
        if not raw.in_transaction:
            return False
        if raw.isolation_level is not None and getattr(raw, "autocommit", _LEGACY) == _LEGACY:
            # The driver opens a transaction for the first statement that writes.
            return True
        # The app begins its transactions itself, also to read.
        return bool(raw.total_changes != connection.info.get(CHANGES_BEFORE))

    #: The same question, asked for other reasons.
    holds_write_lock = may_commit = holds_writes

    def autocommits(self, connection: sa.Connection) -> bool:
        """Whether each statement commits by itself."""
        raw: Any = connection.connection.dbapi_connection
        by_itself = raw.isolation_level is None or getattr(raw, "autocommit", _LEGACY) is True
        return by_itself and not raw.in_transaction

    def is_broken(self, connection: sa.Connection) -> bool:
        """Never: a statement that fails leaves the transaction as it was."""
        return False

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and not any(
            word in str(error) for word in ("no such", "syntax error", "has no column", "unable to open")
        )

    def is_conflict(self, error: BaseException) -> bool:
        return self.is_blocked(error)

    def is_blocked(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)

    def is_duplicate(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.IntegrityError) and "UNIQUE" in str(error)

    def notify(self, execute: Any) -> None:
        """Nothing to do: every worker watches `PRAGMA data_version`."""


_EVENTS = {
    "{xact}": "NULL",
    "{snapshot}": "NULL",
    "{after_seq}": "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'workflow_events'), 0)",
    "{skip_locked}": "",
    "{lock}": "",
    "{after_wait}": "w.after_seq < :seq",
    # The index on name and transaction, which is null here, holds the numbers in order.
    "{later}": "e.xact IS NULL AND e.seq > :after_seq",
    "{under_way}": "1 = 0",
}


class Unsettled(Exception):
    """Rolls back steps written before a settle that found the run changed."""


_RECORD = SQLite.sql(
    f"""
    INSERT INTO workflow_steps ({sql.STEP_COLUMNS})
    SELECT r.id, {sql.step_row(0, "text")} FROM workflow_runs r
    WHERE r.id = :run_id AND r.epoch = :epoch AND r.worker IS NOT NULL
    {sql.STEP_CONFLICT}
    RETURNING (SELECT cancel_requested_at FROM workflow_runs WHERE id = :run_id),
        (SELECT paused_at FROM workflow_runs WHERE id = :run_id)
    """
)

_RENEW = """
UPDATE workflow_runs SET due_at = {now} + :lease_ms, status = 'running', updated_at = {now}
WHERE id = :run_id AND epoch = :epoch AND worker IS NOT NULL
RETURNING id, epoch, cancel_requested_at, paused_at
"""


@cache
def _peek_sql(scope: str) -> str:
    claimable = sql.CLAIMABLE.replace("{scope}", scope)
    return SQLite.sql(f"SELECT EXISTS (SELECT 1 FROM workflow_runs WHERE {claimable}), {events_sql.WORK}")


@cache
def _due_sql(scope: str) -> str:
    claimable = sql.CLAIMABLE.replace("{scope}", scope)
    return SQLite.sql(f"SELECT id, worker IS NOT NULL FROM workflow_runs WHERE {claimable}")


@cache
def _claim_sql(listed: str) -> str:
    text = f"UPDATE workflow_runs SET {sql.CLAIM_SET} WHERE id IN ({listed})"
    return SQLite.sql((text + f" RETURNING {sql.CLAIM_RETURNING}").replace("{r}", ""))
