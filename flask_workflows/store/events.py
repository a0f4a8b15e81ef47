"""Events and waits, and how they come together.

An emitter only inserts a row. A wait is stored with the run's suspension, under a mark of that moment: PostgreSQL's
snapshot, SQLite's last event. Workers match, in transactions of their own:

- a new event is looked up among the open waits;
- a wait just stored is looked up, once, among the stored events.

Whichever of the two commits last, its look comes after both commits and sees the other; so no wake-up is lost, and no
order of commits is asked of anybody. Each look locks the run before it ends the wait, and ends it only where it is
still open: an event, a time-out, a cancellation and a second event have one outcome between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..matching import hash_in
from ..matching import MESSAGES
from . import event_statements as sql
from .rows import NewEvent
from .store import Execute
from .store import LeaseGone
from .store import Store


class Events:
    """Events, waits and published state of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dialect = store.dialect

    # Emitting ------------------------------------------------------------------------------

    def insert(self, connection: Any, event: NewEvent) -> tuple[int, bool]:
        """Insert an event in the caller's transaction; answer its number, and whether it is new."""
        execute = self._store.execute_on(connection)
        params = self._store.params(**event._asdict())
        row = execute(self._sql(sql.INSERT_EVENT), params).fetchone()
        if row is not None:
            return int(row[0]), True
        found = execute(self._sql(sql.FIND_DELIVERY), params).fetchone()
        return int(found[0]), False

    def deliver(self, event: NewEvent) -> tuple[int, bool]:
        """As `insert`, committed at once."""
        return self._store.once(lambda c: self.insert(c, event), together=True)

    def is_finished(self, connection: Any, run_id: str) -> bool | None:
        """Whether the run has finished; null where there is none. Inside the caller's transaction."""
        row = self._store.execute_on(connection)(self._sql(sql.RUN_STATUS), {"run_id": run_id}).fetchone()
        return None if row is None else row[0] is not None

    # Waiting -------------------------------------------------------------------------------

    def expire(self, run_id: str, epoch: int, key: str) -> tuple[str, int | None]:
        """Record that a wait timed out, unless an event ended it first; answer its output and the event's number.

        Raises `LeaseGone` when the run belongs to somebody else.
        """

        def operation(connection: Any) -> tuple[str, int | None]:
            execute = self._store.execute_on(connection)
            params = self._store.params(run_id=run_id, epoch=epoch, key=key)
            if not self._dialect.hold(execute, params):
                raise LeaseGone
            # A stored event that counts came before the time-out, also if nobody looked for it yet.
            self._check_waits(execute, run_id)
            execute(self._sql(sql.EXPIRE_WAIT), params)
            execute(self._sql(sql.DROP_WAITS), params)
            row = execute(self._sql(_OUTCOME), params).fetchone()
            return row[0], row[1]

        return self._store.patiently(operation, together=True)

    # Matching ------------------------------------------------------------------------------

    def match_all(self, rounds: int = 100) -> bool:
        """Match what there is to match, up to a number of events; true when a run was made due."""
        woke = 0
        for _ in range(rounds):
            ended = self.match_next()
            if ended is None:
                break
            woke += ended
        for run_id in self.unchecked():
            woke += self.check(run_id)
        return woke > 0

    def match_next(self) -> int | None:
        """End the waits that the oldest new event answers, up to 200 in one transaction.

        Answers how many, null when there is no new event. One that answers more is gone on with by the next call.
        """
        return self._store.once(self._match_next, together=True)

    def _match_next(self, connection: Any) -> int | None:
        execute = self._store.execute_on(connection)
        row = execute(self._sql(sql.NEXT_EVENT), self._store.params()).fetchone()
        if row is None:
            return None
        seq, name, workspace, run_id, payload, emitted_at, xact = row
        output = _output(seq, name, payload, emitted_at)
        found: list[tuple[str, int, str]] = []
        more = False
        for fields, values_hash in self._shapes(execute, name, run_id, payload):
            params = self._store.params(
                seq=seq,
                name=name,
                workspace=workspace,
                fields=fields,
                values_hash=values_hash,
                emitted_at=emitted_at,
                xact=xact,
            )
            rows = execute(self._sql(sql.CANDIDATES), params).fetchall()
            more = more or len(rows) == 200
            found.extend((waiting, number, key) for waiting, key, number in rows)
        # By run, whatever they compare: two events that are matched at once then lock runs in one order.
        woke = sum(
            self._end_wait(execute, waiting, key, seq, _numbered(output, number))
            for waiting, number, key in sorted(found)
        )
        execute(self._sql(sql.MATCHED), self._store.params(seq=seq, woke=woke, done=int(not (more and woke))))
        return woke

    def _shapes(self, execute: Execute, name: str, run_id: str | None, payload: str) -> Iterator[tuple[str, str]]:
        """Each set of fields that is waited for under this name, with the hash of the payload's values there."""
        if run_id is not None:
            yield MESSAGES, run_id
            return
        value = json.loads(payload)
        for (fields,) in execute(self._sql(sql.SHAPES), {"name": name}).fetchall():
            values_hash = None if fields == MESSAGES else hash_in(value, fields)
            if values_hash is not None:
                yield fields, values_hash

    def unchecked(self) -> list[str]:
        """Runs whose waits were stored and not yet compared with stored events."""
        rows = self._store.once(lambda c: self._store.execute_on(c)(self._sql(sql.UNCHECKED), {}).fetchall())
        return [row[0] for row in rows]

    def check(self, run_id: str) -> bool:
        """End a run's open wait with the first stored event that counts for it; true if there was one."""
        return self._store.once(lambda c: self._check(c, run_id), together=True)

    def _check(self, connection: Any, run_id: str) -> bool:
        execute = self._store.execute_on(connection)
        if execute(self._sql(sql.LOCK_RUN), {"run_id": run_id}).fetchone() is None:
            execute(self._sql(sql.CHECKED), {"run_id": run_id})
            return False
        return self._check_waits(execute, run_id)

    def _check_waits(self, execute: Execute, run_id: str) -> bool:
        ended = False
        by_key: dict[str, list[Any]] = {}
        for row in execute(self._sql(sql.WAITS_OF), {"run_id": run_id}).fetchall():
            by_key.setdefault(row[0], []).append(row)
        for key, rows in by_key.items():
            answers = [answer for row in rows if (answer := self._first_answer(execute, run_id, row)) is not None]
            if answers:
                seq, output = min(answers)
                ended = bool(self._end_wait(execute, run_id, key, seq, output)) or ended
                execute(self._sql(sql.COUNT_WOKE), {"seq": seq})
        execute(self._sql(sql.CHECKED), {"run_id": run_id})
        return ended

    def _first_answer(self, execute: Execute, run_id: str, row: Any) -> tuple[int, str] | None:
        _, number, name, workspace, fields, values_hash, snapshot, after_seq, since = row
        if fields == MESSAGES:
            found = execute(self._sql(sql.NEXT_MESSAGE), {"run_id": run_id, "name": name}).fetchone()
            return None if found is None else (found[0], _numbered(_output(found[0], name, *found[1:]), number))
        params = {
            "name": name,
            "workspace": workspace,
            "snapshot": snapshot,
            "after_seq": after_seq,
            "from_seq": 0,
            "from_at": since,
        }
        for seq, payload, emitted_at in self._stored(execute, params):
            received = {"run_id": run_id, "seq": seq}
            matches = hash_in(json.loads(payload), fields) == values_hash
            if matches and execute(self._sql(sql.RECEIVED), received).fetchone() is None:
                    return seq, _numbered(_output(seq, name, payload, emitted_at), number)
        return None

    def _stored(self, execute: Execute, params: dict[str, Any]) -> Iterator[tuple[int, str, int]]:
        """Stored events that count for a wait by time, oldest first."""
        statement = self._sql(sql.STORED_AFTER if params["from_at"] is None else sql.STORED_SINCE)
        while True:
            rows = execute(statement, params).fetchall()
            yield from rows
            if len(rows) < 500:
                return
            params = {**params, "from_seq": rows[-1][0]}
            if params["from_at"] is not None:
                params["from_at"] = rows[-1][2]

    def _end_wait(self, execute: Execute, run_id: str, key: str, seq: int, output: str) -> int:
        """End one wait if it is still open; the run's row is locked first, as every writer does."""
        params = self._store.params(run_id=run_id, key=key, seq=seq, output=output)
        if execute(self._sql(sql.LOCK_RUN), params).fetchone() is None:
            return 0
        if not execute(self._sql(sql.END_WAIT), params).rowcount:
            return 0
        execute(self._sql(sql.DROP_WAITS), params)
        execute(self._sql(sql.MAKE_DUE), params)
        return 1

    def prune(self, cutoff: int, limit: int) -> int:
        """Delete matched events emitted before an instant, in one short transaction; messages go with their runs."""
        params = {"cutoff": cutoff, "limit": limit}
        return int(self._store.once(lambda c: self._store.execute_on(c)(self._sql(sql.PRUNE_EVENTS), params).rowcount))

    # Published state -----------------------------------------------------------------------

    def save_state(self, run_id: str, epoch: int, key: str, value: str) -> None:
        """Publish a value of a run that is executed. Raises `LeaseGone`."""
        params = self._store.params(run_id=run_id, epoch=epoch, key=key, value=value)

        def operation(connection: Any) -> bool:
            return self._store.execute_on(connection)(self._sql(sql.SAVE_STATE), params).fetchone() is not None

        if not self._store.patiently(operation):
            raise LeaseGone

    def read_state(self, run_id: str, key: str) -> str | None:
        params = {"run_id": run_id, "key": key}
        row = self._store.once(lambda c: self._store.execute_on(c)(self._sql(sql.READ_STATE), params).fetchone())
        return None if row is None else str(row[0])

    def move_mark(self, name: str, at: int) -> bool:
        """Move a mark forward to an instant; true for the one caller that moved it there."""
        params = {"name": name, "at": at}
        row = self._store.once(lambda c: self._store.execute_on(c)(self._sql(sql.MOVE_MARK), params).fetchone())
        return row is not None

    def _sql(self, statement: str) -> str:
        return self._dialect.sql(self._dialect.events(statement))


_OUTCOME = """
SELECT output, event_seq FROM workflow_steps WHERE run_id = :run_id AND "key" = :key
"""


def _output(seq: int, name: str, payload: str, emitted_at: int) -> str:
    """What the wait's record holds: the event, its payload as it was stored."""
    return f'{{"seq":{seq},"name":{json.dumps(name)},"emitted_at":{emitted_at},"payload":{payload}'


def _numbered(output: str, number: int) -> str:
    return f'{output},"number":{number}}}'
