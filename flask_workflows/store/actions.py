"""What people do to runs, each in one transaction together with its row in the audit.

An action locks the run's row first, so what it says of the run before and after is what was there. One that changes
nothing leaves no row, and one of two with the same `epoch` changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from datetime import UTC
from typing import Any
from typing import NamedTuple

from ..audit import By
from ..durations import from_ms
from ..names import new_id
from . import statements as sql
from .events import Events
from .rows import Ended
from .rows import NewEvent
from .rows import NewRun
from .store import Execute
from .store import Store


class Found(NamedTuple):
    """A run as an action finds it."""

    status: str
    epoch: int
    workflow: str
    workspace: str
    due_at: int | None
    cancel_requested_at: int | None
    finished_at: int | None


class Finished(Exception):
    """A message was for a run that has finished, or that there is none of: `known` says which."""

    def __init__(self, known: bool) -> None:
        self.known = known


class Moved(Exception):
    """A run to be forked is not as it was seen."""


class Actions:
    """What people do to the runs of one store."""

    def __init__(self, store: Store, events: Events) -> None:
        self._store = store
        self._events = events

    # To a run ------------------------------------------------------------------------------

    def cancel(
        self, run_id: str, epoch: int | None, by: By | None = None, *, children: bool = True
    ) -> tuple[bool, list[tuple[str, str]]]:
        """End an idle run, or mark one being executed, and with it its unfinished `children` and theirs.

        Answers whether either applied, and the ids and workflows of the children that ended at once.
        """
        ended: list[tuple[str, str]] = []

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            ended.clear()
            # Asked for already: it will be as it was to be.
            asked = found.finished_at is None and found.cancel_requested_at is not None
            done = self._cancel_one(execute, run_id, found, params, by)
            if done is None:
                return asked
            if children:
                # The lock on the parent is held: what it started is committed, and it starts no more.
                for (child,) in execute(self._sql(sql.DESCENDANTS), params).fetchall():
                    ended.extend(self._cancel_child(execute, child, by))
            self._count(execute, [found.workflow] * (done == "cancelled") + [workflow for _, workflow in ended])
            return True

        return self._on_run(run_id, epoch, act), ended

    def _count(self, execute: Execute, workflows: Sequence[str]) -> None:
        """Count what was cancelled at once; in the order of names, so that two such transactions cannot deadlock."""
        if workflows:
            counted = sorted(Counter(workflows).items())
            self._store.count_ended_in(execute, [Ended(name, "cancelled", number, 0) for name, number in counted])

    def _cancel_child(self, execute: Execute, run_id: str, by: By | None) -> list[tuple[str, str]]:
        found = self._find(execute, run_id, sql.LOCK)
        if found is None:
            return []
        params = self._store.params(run_id=run_id, epoch=None)
        done = self._cancel_one(execute, run_id, found, params, by)
        return [(run_id, found.workflow)] if done == "cancelled" else []

    def _cancel_one(
        self, execute: Execute, run_id: str, found: Found, params: dict[str, Any], by: By | None
    ) -> str | None:
        """What the run has become; null where nothing was to be done."""
        if execute(self._sql(sql.CANCEL_IDLE), params).rowcount:
            execute(self._sql(sql.DROP_ALL_WAITS), params)
            self._store.tell_finished(execute, run_id)
            self._note(execute, by, "cancel", run_id, found, after="cancelled")
            return "cancelled"
        if execute(self._sql(sql.CANCEL_TO_UNDO), params).rowcount:
            execute(self._sql(sql.DROP_ALL_WAITS), params)
            self._note(execute, by, "cancel", run_id, found, after="cancelling")
            return "cancelling"
        if execute(self._sql(sql.CANCEL_RUNNING), params).rowcount:
            self._note(execute, by, "cancel", run_id, found, after="cancelling")
            return "cancelling"
        return None

    def retry(
        self,
        run_id: str,
        epoch: int | None,
        forget: Sequence[str],
        by: By | None = None,
        *,
        from_step: str | None = None,
    ) -> bool:
        """Make a failed or cancelled run due, without the calls in `forget`; false when it is neither."""

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            if not execute(self._sql(sql.RETRY_RUN), params).rowcount:
                return False
            execute(self._sql(sql.UNTELL_FINISHED), params)
            for key in forget:
                execute(self._sql(sql.FORGET_STEP), {"run_id": run_id, "key": key})
            after = "pending" if from_step is None else f"pending, from {from_step}"[:100]
            self._note(execute, by, "retry", run_id, found, after=after)
            return True

        return self._on_run(run_id, epoch, act)

    def pause(self, run_id: str, epoch: int | None, by: By | None = None) -> bool:
        """Put a run aside, or let the one that executes it do so; false when it has ended, or is to end or paused."""

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            for statement, after in ((sql.PAUSE_IDLE, "paused"), (sql.PAUSE_RUNNING, "pausing")):
                if execute(self._sql(statement), params).rowcount:
                    self._note(execute, by, "pause", run_id, found, after=after)
                    return True
            return False

        return self._on_run(run_id, epoch, act)

    def resume(self, run_id: str, epoch: int | None, by: By | None = None) -> bool:
        """Let a paused run go on; false when it is not paused."""

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            if not execute(self._sql(sql.RESUME_RUN), params).rowcount:
                return False
            self._note(execute, by, "resume", run_id, found, before="paused", after=found.status)
            return True

        return self._on_run(run_id, epoch, act)

    def wake(self, run_id: str, epoch: int | None, by: By | None = None) -> bool:
        """Make a sleeping run due now, and the timer it sleeps on; false when it does not sleep."""

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            if self._set_timer(execute, params, None) is None:
                return False
            self._note(execute, by, "wake", run_id, found, after="sleeping")
            return True

        return self._on_run(run_id, epoch, act)

    def move(self, run_id: str, epoch: int | None, at: int, by: By | None = None) -> bool:
        """Make a sleeping run, and the timer it sleeps on, due at an instant; at once if that is past.

        False when it does not sleep.
        """

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            moved = self._set_timer(execute, params, at)
            if moved is None:
                return False
            self._note(execute, by, "move", run_id, found, before=_instant(found.due_at), after=_instant(moved))
            return True

        return self._on_run(run_id, epoch, act)

    def _set_timer(self, execute: Execute, params: dict[str, Any], at: int | None) -> int | None:
        """Answer when the run is due now; null when it does not sleep."""
        params = {**params, "at": at}
        row = execute(self._sql(sql.WAKE_RUN), params).fetchone()
        if row is None:
            return None
        execute(self._sql(sql.WAKE_STEPS), params)
        return int(row[0])

    def release(self, run_id: str, epoch: int | None, silent_ms: int, by: By | None = None) -> bool:
        """End the lease of a worker that stopped, is unknown, or was not seen for that long; false of any other.

        The worker stays named in the row: the claim that takes the run over counts the loss, as of a lease that ended.
        """

        def act(execute: Execute, found: Found, params: dict[str, Any]) -> bool:
            if not execute(self._sql(sql.RELEASE_RUN), {**params, "silent_ms": silent_ms}).rowcount:
                return False
            self._note(execute, by, "release", run_id, found, after=found.status)
            return True

        return self._on_run(run_id, epoch, act)

    def _on_run(self, run_id: str, epoch: int | None, act: Callable[[Execute, Found, dict[str, Any]], bool]) -> bool:
        """Lock the run and act on it; false where there is none, or it is not as it was seen."""

        def operation(connection: Any) -> bool:
            execute, params = self._store.execute_on(connection), self._store.params(run_id=run_id, epoch=epoch)
            # Locked first: a run that suspended between two statements would be marked as cancelled, and wait on.
            found = self._find(execute, run_id, sql.LOCK)
            if found is None or (epoch is not None and found.epoch != epoch):
                return False
            return act(execute, found, params)

        return self._store.once(operation, together=True)

    def _find(self, execute: Execute, run_id: str, statement: str) -> Found | None:
        row = execute(self._sql(statement), {"run_id": run_id}).fetchone()
        return None if row is None else Found(*row)

    # To what runs wait for, and to what begins ---------------------------------------------

    def start(self, new_run: NewRun, by: By | None = None) -> dict[str, str]:
        """As `Store.spawn`, for one run."""

        def note(connection: Any, holders: Mapping[str, str]) -> None:
            if not holders:
                after = "sleeping" if new_run.delay_ms else "pending"
                where = {"run_id": new_run.id, "workspace": new_run.workspace, "target": new_run.workflow}
                self.note(self._store.execute_on(connection), by, "start", **where, after=after)

        return self._store.spawn([new_run], then=note)

    def fork(
        self, new_run: NewRun, run_id: str, epoch: int, kept: Sequence[str], from_step: str, by: By | None = None
    ) -> None:
        """Start a run with copies of recorded calls of another, and of what it had published. Raises `Moved` where that is not of this epoch."""

        def copy(connection: Any, holders: Mapping[str, str]) -> None:
            execute = self._store.execute_on(connection)
            # Locked first: nobody forgets a call that is about to be copied.
            found = self._find(execute, run_id, sql.LOCK)
            if found is None or found.epoch != epoch:
                raise Moved
            ids = {"new": new_run.id, "run_id": run_id}
            execute(self._sql(sql.MARK_FORK), self._store.params(**ids))
            for start in range(0, len(kept), 500):
                listed, params = sql.named("key", list(kept[start : start + 500]))
                execute(self._sql(sql.COPY_STEPS.replace("{keys}", listed)), {**ids, **params})
            execute(self._sql(sql.COPY_STATE), {**ids, "from_step": from_step})
            self._note(execute, by, "fork", run_id, found, after=f"{new_run.id}, from {from_step}"[:100])

        self._store.spawn([new_run], then=copy)

    def deliver(self, event: NewEvent, by: By | None = None) -> tuple[int, bool]:
        """Insert an event; answer its number, and whether it is new."""

        def operation(connection: Any) -> tuple[int, bool]:
            seq, created = self._events.insert(connection, event)
            if created:
                execute = self._store.execute_on(connection)
                self.note(execute, by, "deliver", workspace=event.workspace, target=event.name)
            return seq, created

        return self._store.once(operation, together=True)

    def send(self, run_id: str, message: NewEvent, by: By | None = None) -> bool:
        """Insert a message to a run; whether it is new. Raises `Finished` where nobody would read it."""

        def operation(connection: Any) -> bool:
            _, created = self._events.insert(connection, message)
            if not created:
                return False
            execute = self._store.execute_on(connection)
            found = self._find(execute, run_id, sql.LOCK.replace("{lock}", ""))
            if found is None or found.finished_at is not None:
                raise Finished(found is not None)
            where = {"run_id": run_id, "workspace": found.workspace, "target": message.name}
            self.note(execute, by, "send", **where)
            return True

        return self._store.once(operation, together=True)

    # Keeping an account of it --------------------------------------------------------------

    def account(self, by: By, action: str, **values: str | None) -> None:
        """Write a row for what changed nothing, such as having seen a secret; values as of `note`."""
        self._store.once(lambda c: self.note(self._store.execute_on(c), by, action, **values), together=True)

    def note(
        self,
        execute: Execute,
        by: By | None,
        action: str,
        *,
        run_id: str | None = None,
        workspace: str | None = None,
        target: str | None = None,
        before: str | None = None,
        after: str | None = None,
    ) -> None:
        """Write a row of the audit in the transaction of the action; none where nobody is named."""
        if by is None:
            return
        params = self._store.params(
            id=new_id(self._store.clock()),
            actor=by.actor,
            action=action,
            run_id=run_id,
            workspace=workspace or "",
            target=target or "",
            before=before,
            after=after,
            reason=by.reason,
            request_id=by.request_id,
            address=by.address,
            operation=by.operation,
        )
        execute(self._sql(sql.INSERT_AUDIT), params)

    def _note(
        self,
        execute: Execute,
        by: By | None,
        action: str,
        run_id: str,
        found: Found,
        *,
        before: str | None = None,
        after: str | None = None,
    ) -> None:
        where = {"run_id": run_id, "workspace": found.workspace, "target": found.workflow}
        self.note(execute, by, action, **where, before=before or found.status, after=after)

    def prune(self, before: str, cutoff: int, limit: int) -> int:
        """Delete up to `limit` rows of the audit written before an instant; answer how many went."""
        params = {"before": before, "cutoff": cutoff, "limit": limit}
        statement = self._sql(sql.PRUNE_AUDIT)
        return int(self._store.once(lambda c: self._store.execute_on(c)(statement, params).rowcount))

    def _sql(self, statement: str) -> str:
        return self._store.dialect.sql(self._store.dialect.events(statement))


def _instant(due_at: int | None) -> str | None:
    return None if due_at is None else from_ms(due_at).astimezone(UTC).isoformat(timespec="milliseconds")
