"""What can happen to a run, each a verb in one transaction.

Verbs that take `connection` work inside the caller's transaction and commit nothing; all others commit by themselves.
Writes of an execution name the run and the epoch it was claimed with. They change nothing, and answer so, when the
epoch has moved on: the run was taken over, handed back, cancelled or retried.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from threading import Lock
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeVar

import sqlalchemy as sa

from ..errors import KeyBusy
from ..errors import KeyTaken
from ..errors import SetupError
from . import event_statements as events_sql
from . import statements as sql
from .connections import Connections
from .postgresql import PostgreSQL
from .rows import Change
from .rows import ClaimedRun
from .rows import Ended
from .rows import Fenced
from .rows import Lease
from .rows import NewRun
from .rows import Seen
from .rows import StepWrite
from .rows import StoredStep
from .rows import WaitWrite
from .sqlite import SQLite
from .sqlite import Unsettled

logger = logging.getLogger("flask_workflows")
T = TypeVar("T")

Execute = Callable[[str, Any], Any]

#: SQLite and PostgreSQL both bound the parameters of one statement; 1,000 runs stay well below.
ROWS_PER_INSERT = 1_000


#: One thread notifies for the others so many times at a stretch; what it leaves, the next start makes good.
MOST_NOTIFICATIONS = 20


class LeaseGone(Exception):
    """A fenced write found that the run belongs to somebody else."""


class CancelAsked(Exception):
    """A write would have begun something new for a run that is to be cancelled."""


class Busy(Exception):
    """Another writer was first, and this one was not to wait."""


class Watcher(Protocol):
    """What a test has around the transactions of a store; what it raises is as the death of the process there."""

    def entering(self) -> None:
        """A transaction is about to begin, be it to read."""

    def committing(self) -> None:
        """Something was written and is about to be committed."""

    def committed(self) -> None:
        """It was committed."""


class Scope(NamedTuple):
    """What a worker may claim, as a condition on `workflow_runs` and its parameters."""

    condition: str
    params: dict[str, Any]

    @classmethod
    def of(cls, ranges: Iterable[tuple[str, int, int]], queues: Sequence[str] = ()) -> Scope:
        """Runs of each workflow from its lowest to its highest version, on `queues` or on all.

        The workflows stand in a CASE, which no index serves: a planner without statistics would take the one on
        workflows instead of the one on what is due, and read every run there ever was.
        """
        by_range: dict[tuple[int, int], list[str]] = {}
        for name, low, high in ranges:
            by_range.setdefault((low, high), []).append(name)

        params: dict[str, Any] = {}
        parts = []
        for number, ((low, high), names) in enumerate(sorted(by_range.items())):
            listed, added = sql.named(f"workflow{number}_", sorted(names))
            params.update(added)
            parts.append(f"(workflow IN ({listed}) AND version BETWEEN {int(low)} AND {int(high)})")
        condition = f"CASE WHEN {' OR '.join(parts)} THEN true ELSE false END" if parts else "1 = 0"

        if queues:
            listed, added = sql.named("queue", sorted(queues))
            params.update(added)
            condition += f" AND queue IN ({listed})"
        return cls(condition, params)


class Store:
    """The tables of one database.

    `clock` answers the instant to use in ms, or null for the database's own clock.
    """

    def __init__(self, engine: sa.Engine, *, lease_ms: int, clock: Callable[[], int | None] = lambda: None) -> None:
        self.engine = engine
        self.lease_ms = lease_ms
        self.clock = clock
        self.dialect = _dialect(engine)
        self.connections = Connections(engine, keep=2, prepare=self.dialect.prepare, is_dead=self.dialect.is_dead)
        #: Set when waiting for the database to come back is to end.
        self.giving_up = Event()
        #: Null save in tests of crashes. A transaction is then opened for every operation.
        self.watcher: Watcher | None = None
        self._notifying = Lock()
        self._to_notify = False
        self._complained_at: dict[str, float] = {}
        #: Whether a claim saw events or waits that are to be matched; whoever does so says it is false before.
        self.events_wait = False

    def close(self) -> None:
        self.connections.close()

    def ticks(self) -> float:
        """Milliseconds that only go forward, for measuring; of the settable clock where one is set."""
        now = self.clock()
        return time.monotonic() * 1000 if now is None else float(now)

    # Running statements ------------------------------------------------------------------

    def once(self, operation: Callable[[Any], T], *, together: bool = False) -> T:
        """Run on a connection of the engine's own; `together` in one transaction."""
        with self.connections.use() as connection:
            if self.watcher is not None:
                return self._watched(self.watcher, connection, operation, together)
            if not together:
                return operation(connection)
            with self.dialect.transaction(connection):
                return operation(connection)

    def _watched(self, watcher: Watcher, connection: Any, operation: Callable[[Any], T], together: bool) -> T:
        watcher.entering()
        with self.dialect.transaction(connection, deferred=not together):
            before = self.dialect.written(connection)
            result = operation(connection)
            wrote = self.dialect.written(connection) != before
            if wrote:
                watcher.committing()
        if wrote:
            watcher.committed()
        return result

    def commit(self, commit: Callable[[], None]) -> None:
        """Commit a transaction that is not the store's own, but holds a record of it."""
        if self.watcher is None:
            commit()
            return
        self.watcher.committing()
        commit()
        self.watcher.committed()

    def patiently(self, operation: Callable[[Any], T], *, together: bool = False) -> T:
        """As `once`, but outlive a database that is away, locked or restarting.

        The operation must bear repetition: its reply may be lost after it committed.
        """
        pause = 0.05
        while True:
            try:
                return self.once(operation, together=together)
            except Exception as error:
                if not self.dialect.is_transient(error) or self.giving_up.is_set():
                    raise
                self.complain("the database does not answer, trying again", error)
            self.giving_up.wait(pause)
            pause = min(pause * 2, 2.0)

    def _at_once(self, operation: Callable[[Any], T]) -> T:
        """As `once`, in one transaction, without waiting for another writer."""
        with self.connections.use() as connection:
            try:
                with self.dialect.at_once(connection):
                    return operation(connection)
            except Exception as error:
                if not self.dialect.is_blocked(error):
                    raise
        raise Busy

    def complain(self, what: str, error: BaseException, *, run_id: str | None = None) -> None:
        """Log at most one line in ten seconds about the same kind of trouble. Never raises, whatever handlers do."""
        now = time.monotonic()
        if now - self._complained_at.get(what, float("-inf")) >= 10:
            self._complained_at[what] = now
            with suppress(Exception):
                logger.warning("%s%s: %s", "" if run_id is None else f"run {run_id}: ", what, _first_line(error))

    def execute_on(self, connection: Any) -> Execute:
        """One way to execute for raw connections and SQLAlchemy's, whose driver SQL is the same."""
        if isinstance(connection, sa.Connection):
            return connection.exec_driver_sql
        execute: Execute = connection.execute
        return execute

    def params(self, **params: Any) -> dict[str, Any]:
        params["now"] = self.clock()
        return params

    def now(self) -> int:
        """The database's clock, Unix ms."""
        return self.once(lambda c: self.dialect.clock(self.execute_on(c), self.clock()))

    # Starting ------------------------------------------------------------------------------

    def insert(self, connection: Any, new_runs: Sequence[NewRun]) -> dict[str, str]:
        """Insert runs inside the caller's transaction; give those the ids of older runs whose live key they share.

        Waits for an uncommitted rival with the same key. Rows go in by key, so that two such calls cannot deadlock.
        """
        execute = self.execute_on(connection)
        ordered = sorted(new_runs, key=lambda run: (run.workflow, run.workspace, run.key or ""))
        inserted: set[str] = set()
        for start in range(0, len(ordered), ROWS_PER_INSERT):
            inserted.update(self._insert_rows(execute, ordered[start : start + ROWS_PER_INSERT]))
        taken = [run for run in ordered if run.id not in inserted]
        return {run.id: self._holder(execute, run) for run in taken}

    def _insert_rows(self, execute: Execute, new_runs: Sequence[NewRun]) -> list[str]:
        params = self.params()
        for index, run in enumerate(new_runs):
            params.update((f"{field}{index}", value) for field, value in zip(NewRun._fields, run, strict=True))
            params[f"status{index}"] = "sleeping" if run.delay_ms else "pending"
            params[f"delay_ms{index}"] = run.delay_ms or 0
        statement = sql.INSERT_RUN.replace("{rows}", sql.run_rows(len(new_runs)))
        return [row[0] for row in execute(self.dialect.sql(statement), params).fetchall()]

    def _holder(self, execute: Execute, run: NewRun) -> str:
        """The unfinished run with this key; if it finished just now, the new one after all."""
        params = {"workflow": run.workflow, "workspace": run.workspace, "key": run.key}
        for _ in range(100):
            row = execute(self.dialect.sql(sql.FIND_LIVE_KEY), params).fetchone()
            if row is not None:
                return str(row[0])
            if self._insert_rows(execute, [run]):
                return run.id
        raise KeyTaken(f"the key {run.key!r} of workflow {run.workflow!r} is taken by a run this transaction can't see")

    def spawn(
        self, new_runs: Sequence[NewRun], *, then: Callable[[Any, Mapping[str, str]], None] = lambda c, holders: None
    ) -> dict[str, str]:
        """As `insert`, committed at once, together with what `then` does.

        Raises `KeyBusy` when a rival's uncommitted start is in the way for too long.
        """

        def operation(connection: Any) -> dict[str, str]:
            holders = self.insert(connection, new_runs)
            then(connection, holders)
            return holders

        try:
            return self.once(operation, together=True)
        except Exception as error:
            if self.dialect.is_blocked(error):
                raise key_busy(new_runs[0], error) from error
            raise

    def find_live_key(self, run: NewRun) -> str | None:
        """The unfinished run that holds this one's key, if it has one."""
        if run.key is None:
            return None
        params = {"workflow": run.workflow, "workspace": run.workspace, "key": run.key}
        row = self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.FIND_LIVE_KEY), params).fetchone())
        return None if row is None else str(row[0])

    def notify(self) -> None:
        """Tell workers in other processes that there is something to claim.

        While one thread does so, others leave it to that one to tell once more for all of them.
        """
        if not self.dialect.listens:
            return
        self._to_notify = True
        for _ in range(MOST_NOTIFICATIONS):
            if not self._to_notify or not self._notifying.acquire(blocking=False):
                return
            try:
                self._to_notify = False
                self.once(lambda c: self.dialect.notify(self.execute_on(c)))
            finally:
                self._notifying.release()

    # Claims and leases ---------------------------------------------------------------------

    def claim(
        self, scope: Scope, worker: str, limit: int, *, begin: bool = True, alone: bool = False
    ) -> list[ClaimedRun]:
        """Take up to `limit` due runs, oldest due first, each under a raised epoch.

        With `begin` they are executed at once; without, they wait behind others, so only runs that never lost a
        worker are taken. `alone` also takes a run on its last chance.
        """
        params = self.params(
            worker=worker,
            limit=limit,
            lease_ms=self.lease_ms,
            begin=int(begin),
            careful=int(begin),
            alone=int(alone),
            **scope.params,
        )
        ticks = self.ticks()
        rows, wait = self.once(lambda c: self.dialect.claim(c, scope.condition, params))
        # Only ever set here: another thread may be about to look.
        self.events_wait = self.events_wait or wait
        return [ClaimedRun._make((*row, ticks)) for row in rows]

    def next_due(self, scope: Scope) -> int | None:
        """When the first of the runs that may be claimed is due; null where none will ever be."""
        statement = self.dialect.sql(sql.NEXT_DUE.replace("{scope}", scope.condition))
        row = self.once(lambda c: self.execute_on(c)(statement, dict(scope.params)).fetchone())
        return None if row[0] is None else int(row[0])

    def histories(self, run_ids: Sequence[str]) -> dict[str, list[StoredStep]]:
        """The recorded calls of each run, in order."""
        found: dict[str, list[StoredStep]] = {run_id: [] for run_id in run_ids}
        if not run_ids:
            return found
        listed, params = sql.named("run", list(run_ids))
        statement = self.dialect.sql(sql.HISTORY.replace("{ids}", listed))
        for row in self.patiently(lambda c: self.execute_on(c)(statement, params).fetchall()):
            found[row[0]].append(StoredStep(*row[1:]))
        return found

    def branch_history(self, run_id: str, path: str) -> list[StoredStep]:
        """The recorded calls of one branch of a run, and of those that it started."""
        statement = self.dialect.sql(sql.BRANCH_HISTORY)
        params = {"run_id": run_id, "path": path, "length": len(path)}
        rows = self.patiently(lambda c: self.execute_on(c)(statement, params).fetchall())
        return [StoredStep(*row) for row in rows]

    def ended_calls(self, run_id: str, keys: Sequence[str]) -> list[str]:
        """Which of these recorded calls have ended."""
        listed, params = sql.named("key", list(keys))
        statement = self.dialect.sql(sql.ENDED_CALLS.replace("{keys}", listed))
        rows = self.patiently(lambda c: self.execute_on(c)(statement, {"run_id": run_id, **params}).fetchall())
        return [row[0] for row in rows]

    def renew(self, held: Sequence[tuple[str, int]]) -> tuple[list[Lease], list[str]]:
        """Renew the leases of (run, epoch) pairs; answer those renewed, and the runs that are held no more.

        A row locked by somebody else is in neither list.
        """
        params = self.params(lease_ms=self.lease_ms)
        rows = self.once(lambda c: self.dialect.renew(self.execute_on(c), params, held), together=True)
        renewed = [Lease(*row) for row in rows]
        seen = {lease.id for lease in renewed}
        missing = {run_id: epoch for run_id, epoch in held if run_id not in seen}
        return renewed, self._lost(missing)

    def _lost(self, held: Mapping[str, int]) -> list[str]:
        if not held:
            return []
        listed, params = sql.named("run", list(held))
        statement = self.dialect.sql(sql.EPOCHS.replace("{ids}", listed))
        epochs = dict(self.once(lambda c: self.execute_on(c)(statement, params).fetchall()))
        return [run_id for run_id, epoch in held.items() if epochs.get(run_id) != epoch]

    def hand_back(self, held: Sequence[tuple[str, int]], *, delay_ms: int = 0) -> None:
        """Give claimed runs back; whoever still executes one writes nothing more."""
        statement = self.dialect.sql(sql.HAND_BACK)

        def operation(connection: Any) -> None:
            execute = self.execute_on(connection)
            for run_id, epoch in sorted(held):
                execute(statement, self.params(run_id=run_id, epoch=epoch, delay_ms=delay_ms))

        self.once(operation, together=True)

    def hand_back_strays(self, worker: str, but: Sequence[str]) -> int:
        """Give back what this worker holds in the table but does not know of."""
        listed, params = sql.named("run", [*but, ""])
        statement = self.dialect.sql(sql.HAND_BACK_STRAYS.replace("{ids}", listed))
        params = {**params, **self.params(worker=worker)}
        return int(self.once(lambda c: self.execute_on(c)(statement, params).rowcount))

    # Writes of an execution, fenced ----------------------------------------------------------

    def record(
        self, run_id: str, epoch: int, writes: Sequence[StepWrite], *, touch: bool, patient: bool = True
    ) -> Fenced:
        """Store calls of a run. `touch` marks it as begun and forgets faults before this step.

        Waits for a database that is away, unless told not to be patient; then it raises `Busy` where SQLite's one
        writer is another. Raises `LeaseGone` when the run belongs to somebody else.
        """

        def operation(connection: Any) -> Fenced | None:
            params = self.params(run_id=run_id, epoch=epoch)
            return self.dialect.record(self.execute_on(connection), params, writes, touch=touch)

        several = touch or len(writes) > 1
        together = several and self.dialect.name == "sqlite"
        fenced = self.patiently(operation, together=together) if patient else self._at_once(operation)
        if fenced is None:
            raise LeaseGone
        return fenced

    def record_in(self, connection: sa.Connection, run_id: str, epoch: int, write: StepWrite, *, touch: bool) -> Fenced:
        """As `record`, inside the caller's transaction: his writes and the step commit or vanish together."""
        params = self.params(run_id=run_id, epoch=epoch)
        execute = self.dialect.replanning(self.execute_on(connection), run_id)
        fenced = self.dialect.record(execute, params, [write], touch=touch)
        if fenced is None:
            raise LeaseGone
        return fenced

    def record_effect(
        self, run: ClaimedRun, key: str, effect: Callable[[Any], str], write: Callable[[str], StepWrite]
    ) -> str:
        """Do something on a connection and record the call with what it answers, in one transaction.

        Raises `CancelAsked`, and nothing is done, where the run is to be cancelled.
        """
        tries = 0

        def operation(connection: Any) -> str:
            nonlocal tries
            tries += 1
            if tries > 1:
                # It may have been committed, and only the reply was lost.
                found = self._find_step(self.execute_on(connection), run.id, key)
                if found is not None:
                    return str(found[1])
            done = effect(connection)
            params = self.params(run_id=run.id, epoch=run.epoch)
            fenced = self.dialect.record(self.execute_on(connection), params, [write(done)], touch=True)
            if fenced is None:
                raise LeaseGone
            if fenced.cancel_requested_at is not None:
                # A child started now would be unknown to who cancels the children: they may have been counted.
                raise CancelAsked
            return done

        return self.patiently(operation, together=True)

    def find_step(self, run_id: str, key: str) -> tuple[str, str | None] | None:
        """Status and output of one recorded call, once no transaction that writes it is under way."""
        return self.patiently(lambda c: self._find_step(self.execute_on(c), run_id, key), together=True)

    def _find_step(self, execute: Execute, run_id: str, key: str) -> tuple[str, str | None] | None:
        # Whoever records a call holds the run's row until it is committed. The server may be at it still when the
        # connection that asked for it is gone: then its end is waited for here.
        execute(self.dialect.sql(self.dialect.events(sql.LOCK)), {"run_id": run_id})
        row = execute(self.dialect.sql(sql.FIND_STEP), {"run_id": run_id, "key": key}).fetchone()
        return None if row is None else (row[0], row[1])

    def look(self, run_id: str) -> Seen | None:
        """The run as it is now; null for an unknown one."""
        statement = self.dialect.sql(sql.LOOK)
        row = self.patiently(lambda c: self.execute_on(c)(statement, {"run_id": run_id}).fetchone())
        return None if row is None else Seen(*row)

    def settle(
        self,
        run_id: str,
        epoch: int,
        change: Change,
        writes: Sequence[StepWrite] = (),
        waits: Sequence[WaitWrite] = (),
        *,
        idle: bool = False,
        waited: bool = False,
        waiting: Sequence[str] = (),
    ) -> bool:
        """End an execution: the run's new state and its last calls, in one transaction.

        `idle` ends a run that nobody executes; `waited` says that its waits may be open though it has completed;
        `waiting` are recorded calls it goes on to wait for, which may have ended by now: then it is due at once.
        False when somebody asked meanwhile for the run to be cancelled: nothing is written then. Raises `LeaseGone`
        when it belongs to somebody else. Waits for a database that is away; a repetition after a lost reply finds
        its own state under its own epoch, and that is success.
        """
        tries = 0
        # A run that times out may end, in whatever way, without having come to its wait again.
        drops = waited or change.status in ("cancelled", "failed")

        def operation(connection: Any) -> bool:
            nonlocal tries
            tries += 1
            params = self.params(run_id=run_id, epoch=epoch, idle=int(idle))
            try:
                execute = self.execute_on(connection)
                settled = self.dialect.settle(execute, params, change, writes)
                if settled and change.finished and self.dialect.name == "sqlite":
                    self.tell_finished(execute, run_id)
                if settled and waits:
                    self._insert_waits(execute, run_id, waits, again=not writes or writes[-1].status != "waiting")
                if settled and waiting:
                    self._due_if_ended(execute, run_id, waiting)
                if settled and drops:
                    execute(self.dialect.sql(sql.DROP_ALL_WAITS), {"run_id": run_id})
                return settled
            except Unsettled:
                connection.execute("ROLLBACK")
                connection.execute("BEGIN")
                return False

        several = bool(waits) or bool(waiting) or drops or self.dialect.name == "sqlite"
        if self.patiently(operation, together=several):
            return True
        seen = self.look(run_id)
        if seen is None or seen.epoch != epoch:
            raise LeaseGone
        if tries > 1 and seen.status == change.status:
            return True
        if seen.finished_at is not None or seen.cancel_requested_at is None:
            raise LeaseGone
        return False

    def tell_finished(self, execute: Execute, run_id: str) -> None:
        """Tell those who wait for a run that it has finished, in the transaction that ended it."""
        execute(self.dialect.sql(self.dialect.events(sql.finished(sql.TELL_FINISHED))), self.params(run_id=run_id))

    def watch(self, run_id: str) -> tuple[bool, str | None]:
        """Whether there is such a run, and how it finished, as JSON; null while it has not: its end will then be told."""
        look = self.dialect.sql(sql.finished(sql.HOW_FINISHED))
        params = {"run_id": run_id}

        def operation(connection: Any) -> tuple[bool, str | None]:
            execute = self.execute_on(connection)
            while True:
                row = execute(look, params).fetchone()
                if row is None or row[0] is not None:
                    return row is not None, None if row is None else str(row[0])
                if execute(self.dialect.sql(sql.WATCH), params).fetchone() is not None:
                    return True, None

        return self.patiently(operation)

    def _due_if_ended(self, execute: Execute, run_id: str, waiting: Sequence[str]) -> None:
        """Make a run due that was just suspended, if one of these calls has ended."""
        listed, params = sql.named("key", list(waiting))
        statement = self.dialect.sql(sql.DUE_IF_ENDED.replace("{keys}", listed))
        execute(statement, self.params(run_id=run_id, **params))

    def suspend_branch(
        self, run_id: str, epoch: int, write: StepWrite | None, waits: Sequence[WaitWrite], *, touch: bool
    ) -> None:
        """Store what one branch of a run waits for while others go on. Raises `LeaseGone` as `record` does."""

        def operation(connection: Any) -> bool:
            execute, params = self.execute_on(connection), self.params(run_id=run_id, epoch=epoch)
            if write is None:
                ours = execute(self.dialect.sql(self.dialect.events(sql.FENCE)), params).fetchone() is not None
            else:
                ours = self.dialect.record(execute, params, [write], touch=touch) is not None
            if ours and waits:
                self._insert_waits(execute, run_id, waits, again=False)
            return ours

        if not self.patiently(operation, together=True):
            raise LeaseGone

    def _insert_waits(self, execute: Execute, run_id: str, waits: Sequence[WaitWrite], *, again: bool) -> None:
        """Store what a run waits for, in the transaction that suspends it; what it waits for already stays.

        `again`: the call is recorded, and may have ended since the run looked at it, which is then due at once.
        """
        statement = self.dialect.sql(self.dialect.events(events_sql.INSERT_WAIT))
        for wait in waits:
            execute(statement, {"run_id": run_id, **wait._asdict()})
        if again:
            execute(self.dialect.sql(events_sql.WAITS_NO_MORE), self.params(run_id=run_id))

    # Workers -------------------------------------------------------------------------------

    def save_worker(self, **values: Any) -> None:
        """Insert the worker's row, or renew its `seen_at`."""
        self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.SAVE_WORKER), self.params(**values)))

    def stop_worker(self, worker: str) -> None:
        self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.STOP_WORKER), self.params(id=worker)))

    def forget_workers(self, after_ms: int) -> None:
        """Delete workers not seen for that long."""
        params = self.params(after_ms=after_ms)
        self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.FORGET_WORKERS), params))

    def live_workers(self, within_ms: int) -> list[str]:
        """What each live worker can run, as it advertised it."""
        params = self.params(within_ms=within_ms)
        rows = self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.LIVE_WORKERS), params).fetchall())
        return [row[0] for row in rows]

    def overdue_below(self, workflow: str, version: int, overdue_ms: int) -> list[tuple[str, int, int]]:
        """(id, version, epoch) of runs of versions below, that long due."""
        params = self.params(workflow=workflow, below=version, overdue_ms=overdue_ms)
        rows = self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.UNCLAIMED), params).fetchall())
        return [(row[0], row[2], row[3]) for row in rows]

    def unfinished(self) -> list[tuple[str, int, int]]:
        """How many unfinished runs there are of each (workflow, version)."""
        rows = self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.UNFINISHED), self.params()).fetchall())
        return [(row[0], row[1], row[2]) for row in rows]

    def care_is_due(self, scope: Scope) -> bool:
        """Whether a run on its last chance waits for a worker that is otherwise idle."""
        statement = self.dialect.sql(sql.WAITING_CARE.replace("{scope}", scope.condition))
        params = self.params(**scope.params)
        return self.once(lambda c: self.execute_on(c)(statement, params).fetchone()) is not None

    def end_cancelled(self) -> list[str]:
        """Finish runs asked to be cancelled whose worker is gone; answer the workflow of each."""

        def operation(connection: Any) -> list[str]:
            execute = self.execute_on(connection)
            ended = execute(self.dialect.sql(sql.END_CANCELLED), self.params()).fetchall()
            for run_id, _ in ended:
                execute(self.dialect.sql(sql.DROP_ALL_WAITS), {"run_id": run_id})
                self.tell_finished(execute, run_id)
            return [workflow for _, workflow in ended]

        return self.once(operation, together=True)

    # Statistics ------------------------------------------------------------------------------

    def count_ended(self, ended: Sequence[Ended]) -> None:
        """Add to what ended in this quarter of an hour."""
        self.once(lambda c: self.count_ended_in(self.execute_on(c), ended))

    def count_ended_in(self, execute: Execute, ended: Sequence[Ended], at: int | None = None) -> None:
        """As `count_ended`, in the caller's transaction; or in the quarter of an hour that began at `at`.

        Rows are locked in their order, so that two such calls cannot deadlock.
        """
        params = self.params(at=at)
        for index, row in enumerate(ended):
            params.update((f"{field}{index}", value) for field, value in zip(Ended._fields, row, strict=True))
        execute(self.dialect.sql(sql.COUNT_ENDED.replace("{rows}", sql.ended_rows(len(ended)))), params)

    def roll_up(self, before: int) -> bool:
        """Add the oldest day of statistics, as far as it lies before an instant, to those of all time.

        In one transaction, so totals neither fall nor count twice. False where there is none.
        """

        def operation(connection: Any) -> bool:
            execute = self.execute_on(connection)
            oldest = execute(self.dialect.sql(sql.OLDEST_STATS), {"before": before}).fetchone()[0]
            if oldest is None:
                return False
            days = {"first": oldest, "before": min(before, oldest + 86_400_000)}
            # Of two that do this at once, one is given the rows.
            totals: dict[tuple[str, str], Ended] = {}
            for row in execute(self.dialect.sql(sql.DELETE_STATS), days).fetchall():
                known = totals.get(row[:2], Ended(row[0], row[1], 0, 0))
                totals[row[:2]] = known._replace(number=known.number + row[2], busy_ms=known.busy_ms + row[3])
            if totals:
                self.count_ended_in(execute, list(totals.values()), at=0)
            return True

        return self.once(operation, together=True)

    # Pruning -------------------------------------------------------------------------------

    def prune_page(self, after: str, before: str, cutoff: int, limit: int) -> tuple[str | None, int]:
        """Delete the finished among the next `limit` runs by id, with their steps, in one short transaction.

        Answers the last id looked at, null at the end, and how many runs went.
        """
        params = {"after": after, "before": before, "limit": limit}
        page = self.once(lambda c: self.execute_on(c)(self.dialect.sql(sql.PRUNE_PAGE), params).fetchall())
        ids = [run_id for run_id, finished_at in page if finished_at is not None and finished_at < cutoff]
        last = page[-1][0] if len(page) == limit else None
        return last, self._delete(ids, cutoff) if ids else 0

    def _delete(self, ids: Sequence[str], cutoff: int) -> int:
        listed, params = sql.named("run", list(ids))
        params_cutoff: dict[str, Any] = {**params, "cutoff": cutoff}

        def operation(connection: Any) -> int:
            # Runs first: their locks say which of them are still finished and old, against a retry at this moment.
            execute = self.execute_on(connection)
            statement = self.dialect.sql(sql.DELETE_RUNS.replace("{ids}", listed))
            gone = [row[0] for row in execute(statement, params_cutoff).fetchall()]
            if gone:
                listed_gone, params_gone = sql.named("run", gone)
                for statement in (sql.DELETE_STEPS, sql.DELETE_STATE, sql.DELETE_MESSAGES):
                    execute(self.dialect.sql(statement.replace("{ids}", listed_gone)), params_gone)
            return len(gone)

        return self.once(operation, together=True)

    def count_prunable(self, before: str, cutoff: int) -> int:
        statement = self.dialect.sql(sql.COUNT_PRUNABLE)
        params = {"before": before, "cutoff": cutoff}
        return int(self.once(lambda c: self.execute_on(c)(statement, params).fetchone())[0])


def key_busy(run: NewRun, error: BaseException) -> KeyBusy:
    return KeyBusy(
        f"another transaction is starting a run of {run.workflow!r} with the same key, or holds the database: "
        f"{type(error).__name__}; roll back and try again"
    )


def _dialect(engine: sa.Engine) -> PostgreSQL | SQLite:
    if engine.dialect.name == "sqlite":
        return SQLite()
    if engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg":
        return PostgreSQL()
    raise SetupError(
        f"Flask-Workflows stores its runs on SQLite or on PostgreSQL through psycopg 3, not on "
        f"{engine.dialect.name}+{engine.dialect.driver}; write sqlite:///… or postgresql+psycopg://…"
    )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
