"""PostgreSQL through psycopg 3: what is different there."""

from __future__ import annotations

import re
import select
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Set
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy as sa

from . import event_statements as events_sql
from . import statements as sql
from .rows import Change
from .rows import Fenced
from .rows import StepWrite

CHANNEL = "flask_workflows"

_NOW = "(SELECT CAST(coalesce(CAST(:now AS bigint), date_part('epoch', clock_timestamp()) * 1000) AS bigint))"
_CLOCK = f"clock AS MATERIALIZED (SELECT {_NOW} AS ms)"
_TICK = "(SELECT ms FROM clock)"

_FENCE = """
SELECT id, cancel_requested_at, paused_at FROM workflow_runs
WHERE id = :run_id AND epoch = :epoch AND worker IS NOT NULL FOR NO KEY UPDATE
"""


class PostgreSQL:
    """One statement, one round trip, wherever the hot path allows it.

    The fence is a CTE that locks the run's row under the epoch it was claimed with; when a rival changed the row
    meanwhile, READ COMMITTED looks again at the new version, the epoch differs, and everything built on the fence
    writes nothing.
    """

    name = "postgresql"
    text = "text"
    listens = True

    @staticmethod
    @cache
    def sql(statement: str) -> str:
        """The statement as psycopg wants it."""
        statement = statement.replace("{now}", _NOW).replace("{skip_locked}", "FOR NO KEY UPDATE SKIP LOCKED")
        return re.sub(r"(?<![:\w]):(\w+)", r"%(\1)s", statement)

    def prepare(self, connection: Any) -> None:
        import psycopg

        connection.autocommit = True
        # The fence needs it, whatever the app's engine asks for.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = None
        # Null where the app says so, because a pooler of transactions would mix the statements up.
        if connection.prepare_threshold is not None:
            connection.prepare_threshold = 1
            # Every statement here finds its rows by an index. A plan that was kept from when the tables were tiny
            # would read all of them after the next burst of runs.
            connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")

    def is_dead(self, connection: Any) -> bool:
        """Whether the server ended this idle connection, without asking it: then there is something to read."""
        if connection.closed:
            return True
        readable = select.poll()
        readable.register(connection.fileno(), select.POLLIN)
        return bool(readable.poll(0))

    @contextmanager
    def transaction(self, connection: Any, *, deferred: bool = False) -> Iterator[None]:
        with connection.transaction():
            yield

    def written(self, connection: Any) -> bool:
        """Something else once the open transaction has changed a row."""
        return self._has_written(connection)

    @contextmanager
    def at_once(self, connection: Any) -> Iterator[None]:
        """Nothing to do: a row is locked for others of its run only, and they wait for nobody meanwhile."""
        yield

    def clock(self, execute: Any, now: int | None) -> int:
        return int(execute(self.sql("SELECT {now}"), {"now": now}).fetchone()[0])

    def record(
        self, execute: Any, params: dict[str, Any], writes: Sequence[StepWrite], *, touch: bool
    ) -> Fenced | None:
        sql.add_writes(params, writes)
        row = execute(_record_sql(len(writes), touch), params).fetchone()
        return None if row is None else Fenced(*row)

    def settle(self, execute: Any, params: dict[str, Any], change: Change, writes: Sequence[StepWrite]) -> bool:
        sql.add_change(params, change)
        sql.add_writes(params, writes)
        return execute(_settle_sql(len(writes), change.finished), params).fetchone() is not None

    @staticmethod
    @cache
    def events(statement: str) -> str:
        """Fill in how commits are told before from after: by transaction ids and snapshots."""
        for name, text in _EVENTS.items():
            statement = statement.replace(name, text)
        return statement

    def not_before(self, snapshot: str | None) -> dict[str, Any]:
        """The transactions a snapshot does not show: those later than it, and those that were under way."""
        _, later, under_way = str(snapshot).split(":")
        return {"later": int(later), "under_way": [int(xact) for xact in under_way.split(",") if xact]}

    def afresh(self, connection: Any, *, but: Set[str]) -> Any:
        """How to execute with plans made for the tables as they are, `but` for these statements.

        Waits and new events are few at one moment and a hundred thousand at the next; a plan kept from the first would
        scan all of them.
        """
        execute = connection.execute
        return lambda statement, params: execute(statement, params, prepare=None if statement in but else False)

    def replanning(self, execute: Any, run_id: str) -> Any:
        """How to execute on a connection of the app's, whose settings are not ours.

        A plan kept there from when the tables were tiny would read all of a large one. The driver keeps plans by the
        statement's text, so here each run has its own.
        """
        return lambda statement, params: execute(f"{statement}-- {run_id}", params)

    def claim(self, connection: Any, scope: str, params: Mapping[str, Any]) -> tuple[list[tuple[Any, ...]], bool]:
        # Planned afresh each time: a plan kept from when the table was empty would scan all of it later.
        cursor = connection.execute(_claim_sql(scope), params, prepare=False)
        rows = cursor.fetchall()
        return [row[1:] for row in rows if row[1] is not None], bool(rows[0][0])

    def renew(self, execute: Any, params: dict[str, Any], held: Sequence[tuple[str, int]]) -> list[tuple[Any, ...]]:
        """Rows locked by somebody are left out, so that one of them holds up no other."""
        params["ids"] = [run_id for run_id, _ in held]
        params["epochs"] = [epoch for _, epoch in held]
        return list(execute(self.sql(_RENEW), params).fetchall())

    def holds_writes(self, connection: sa.Connection) -> bool:
        """Whether the connection's open transaction has written something."""
        return self._has_written(connection.connection.dbapi_connection)

    def _has_written(self, raw: Any) -> bool:
        row = raw.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchone()
        return bool(row[0])

    holds_write_lock = None

    def autocommits(self, connection: sa.Connection) -> bool:
        """Whether each statement commits by itself."""
        raw: Any = connection.connection.dbapi_connection
        return bool(raw.autocommit)

    def is_broken(self, connection: sa.Connection) -> bool:
        """Whether a statement of the open transaction failed, so that it can only be rolled back."""
        import psycopg

        raw: Any = connection.connection.dbapi_connection
        return bool(raw.info.transaction_status == psycopg.pq.TransactionStatus.INERROR)

    def may_commit(self, connection: sa.Connection) -> bool:
        """Whether the open transaction has something to commit; where asking costs a round trip, it is taken to have.

        A read-only one takes no record, and one with a snapshot of its own would find the run changed by each
        renewal of its lease: if they wrote nothing, better none of them is used.
        """
        import psycopg

        raw: Any = connection.connection.dbapi_connection
        strict = raw.isolation_level not in (None, psycopg.IsolationLevel.READ_COMMITTED)
        return self.holds_writes(connection) if raw.read_only or strict else True

    def is_transient(self, error: BaseException) -> bool:
        """Whether the same statement may well succeed later, on this connection or a new one."""
        import psycopg

        if isinstance(error, psycopg.InternalError) and error.sqlstate is None:
            # Not the server's: what the driver says when a connection ends together with a reply.
            return True
        return isinstance(
            error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.errors.ReadOnlySqlTransaction
        )

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a rival transaction won, so that repeating ours from its start is right."""
        import psycopg

        return isinstance(error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)

    def is_blocked(self, error: BaseException) -> bool:
        import psycopg

        return self.is_conflict(error) or isinstance(error, psycopg.errors.LockNotAvailable)

    def is_duplicate(self, error: BaseException) -> bool:
        import psycopg

        return isinstance(error, psycopg.errors.UniqueViolation)

    def notify(self, execute: Any) -> None:
        execute(f"NOTIFY {CHANNEL}", None)


_RENEW = """
UPDATE workflow_runs r SET due_at = {now} + CAST(:lease_ms AS bigint), status = 'running', updated_at = {now}
FROM (
    SELECT w.id FROM workflow_runs w
    JOIN unnest(CAST(:ids AS text[]), CAST(:epochs AS integer[])) AS held (id, epoch)
        ON w.id = held.id AND w.epoch = held.epoch
    WHERE w.worker IS NOT NULL
    FOR NO KEY UPDATE OF w SKIP LOCKED
) AS mine
WHERE r.id = mine.id
RETURNING r.id, r.epoch, r.cancel_requested_at, r.paused_at
"""

_CLAIM = """
WITH due AS MATERIALIZED (
    SELECT id, worker IS NOT NULL AS held FROM workflow_runs WHERE {claimable} FOR NO KEY UPDATE SKIP LOCKED
)
, taken AS (
    UPDATE workflow_runs r SET {set} FROM due WHERE r.id = due.id RETURNING {returning} AS claimed_at, due.held
)
SELECT {work}, taken.* FROM (SELECT 1) AS one LEFT JOIN taken ON true
"""

_EVENTS = {
    "{xact}": "CAST(CAST(pg_current_xact_id() AS text) AS bigint)",
    "{snapshot}": "CAST(pg_current_snapshot() AS text)",
    # A snapshot means nothing to another cluster, as after a dump and restore; the order of numbers does.
    "{after_seq}": "coalesce((SELECT max(seq) FROM workflow_events), 0)",
    "{skip_locked}": "FOR UPDATE SKIP LOCKED",
    "{lock}": "FOR NO KEY UPDATE",
    # The transaction was not over when the wait was stored.
    "{after_wait}": "CAST(:seq AS bigint) > w.after_seq OR NOT pg_visible_in_snapshot("
    "CAST(CAST(CAST(:xact AS bigint) AS text) AS xid8), CAST(w.snapshot AS pg_snapshot))",
    "{later}": "e.xact >= CAST(:later AS bigint)",
    "{under_way}": "e.xact = ANY (CAST(:under_way AS bigint[]))",
}


@cache
def _claim_sql(scope: str) -> str:
    text = _CLAIM.replace("{claimable}", sql.CLAIMABLE.replace("{scope}", scope))
    text = text.replace("{set}", sql.CLAIM_SET.replace("{r}", "r."))
    text = text.replace("{work}", events_sql.WORK)
    text = text.replace("{returning}", sql.CLAIM_RETURNING.replace("{r}", "r."))
    return PostgreSQL.sql(text)


def _steps_sql(count: int) -> str:
    rows = " UNION ALL ".join(f"SELECT fence.id, {sql.step_row(i, 'text')} FROM fence" for i in range(count))
    return f"INSERT INTO workflow_steps ({sql.STEP_COLUMNS}) {rows} {sql.STEP_CONFLICT}"


@cache
def _record_sql(count: int, touch: bool) -> str:
    fence = sql.TOUCH_RUN if touch else _FENCE
    text = f"""
        WITH {_CLOCK}, fence AS ({fence}), recorded AS ({_steps_sql(count)})
        SELECT cancel_requested_at, paused_at, current_setting('transaction_isolation') FROM fence
    """
    return PostgreSQL.sql(text.replace("{now}", _TICK))


@cache
def _settle_sql(count: int, finished: bool) -> str:
    recorded = f", recorded AS ({_steps_sql(count)})" if count else ""
    if finished:
        # From the row as this statement leaves it, which only its own RETURNING shows.
        told = sql.finished(sql.TELL_FINISHED).replace("workflow_runs r", "fence r").replace(":run_id", "r.id")
        recorded += f", told AS ({told})"
    shown = "id, watched, status, output, error, finished_at"
    text = f"WITH {_CLOCK}, fence AS ({sql.SETTLE_RUN} RETURNING {shown}){recorded} SELECT 1 FROM fence"
    return PostgreSQL.sql(PostgreSQL.events(text.replace("{now}", _TICK)))
