"""Events and waits, and how they come together.

An emitter only inserts a row. A wait is stored with the run's suspension, under a mark of that moment: PostgreSQL's
snapshot, SQLite's last event. Workers match, in transactions of their own:

- a new event is looked up among the open waits;
- a wait just stored is looked up, once, among the stored events.

Whichever of the two commits last, its look comes after both commits and sees the other; so no wake-up is lost, and no
order of commits is asked of anybody. Each look locks the event, then the run, before it ends the wait, and ends it
only where it is still open: an event, a time-out, a cancellation and a second event have one outcome between them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from ..matching import ENDS
from ..matching import FINISHED
from ..matching import hash_in
from ..matching import MESSAGES
from ..names import is_clean
from . import event_statements as sql
from . import statements
from .rows import NewEvent
from .store import Execute
from .store import LeaseGone
from .store import Store

#: What is told of a run that is there no more.
GONE = '{"status": "gone"}'

#: How long a worker matches before it claims again.
MATCH_SECONDS = 0.2


class Wait(NamedTuple):
    """One of the events a run waits for, as it is stored."""

    key: str
    number: int
    name: str
    workspace: str
    fields: str
    values_hash: str
    snapshot: str | None
    after_seq: int
    since: int | None
    checked: int


class Candidate(NamedTuple):
    """A wait that an event ends if it is still open, in the order of the index."""

    workspace: str
    run_id: str
    key: str
    number: int


class Answer(NamedTuple):
    """A stored event that ends a wait. The oldest comes first."""

    seq: int
    output: str


#: Before the first candidate.
NOWHERE = Candidate("", "", "", -1)


class Events:
    """Events, waits and published state of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dialect = store.dialect
        #: How far each set of fields was gone through, of events with more waits than one transaction ends.
        self._reached: dict[int, dict[str, Candidate]] = {}
        self._by_key = frozenset(map(self._sql, (*sql.BY_KEY, statements.TOUCH_RUN)))

    # Emitting ------------------------------------------------------------------------------

    def insert(self, connection: Any, event: NewEvent) -> tuple[int, bool]:
        """Insert an event in the caller's transaction; answer its number, and whether it is new."""
        execute = self._store.execute_on(connection)
        params = self._store.params(**event._asdict())
        row = execute(self._sql(sql.INSERT_EVENT), params).fetchone()
        if row is not None:
            return int(row[0]), True
        found = execute(self._sql(sql.FIND_DELIVERY), params).fetchone()
        # Null where it was pruned just now.
        return 0 if found is None else int(found[0]), False

    def deliver(self, event: NewEvent) -> tuple[int, bool]:
        """As `insert`, committed at once."""
        return self._store.once(lambda c: self.insert(c, event), together=True)

    def is_finished(self, connection: Any, run_id: str) -> bool | None:
        """Whether the run has finished; null where there is none. Inside the caller's transaction."""
        row = self._store.execute_on(connection)(self._sql(sql.RUN_STATUS), {"run_id": run_id}).fetchone()
        return None if row is None else row[0] is not None

    def look_finished(self, run_id: str) -> bool | None:
        """As `is_finished`, where the caller's transaction is on another database."""
        return self._store.once(lambda c: self.is_finished(c, run_id))

    # Waiting -------------------------------------------------------------------------------

    def expire(self, run_id: str, epoch: int, key: str) -> tuple[str, int | None]:
        """Record that a wait timed out, unless an event ended it first; answer its output and the event's number.

        Raises `LeaseGone` when the run belongs to somebody else.
        """

        def operation(connection: Any) -> tuple[str, int | None]:
            execute = self._executing(connection)
            params = self._store.params(run_id=run_id, epoch=epoch, key=key)

            def lock() -> bool:
                if execute(self._sql(statements.TOUCH_RUN), params).fetchone() is None:
                    raise LeaseGone
                return True

            # A stored event that counts came before the time-out, also if nobody looked for it yet.
            self._end_answered(
                execute, run_id, [wait for wait in self._waits(execute, run_id) if wait.key == key], lock
            )
            execute(self._sql(sql.EXPIRE_WAIT), params)
            execute(self._sql(sql.DROP_WAITS), params)
            row = execute(self._sql(_OUTCOME), params).fetchone()
            return row[0], row[1]

        return self._store.patiently(operation, together=True)

    # Matching ------------------------------------------------------------------------------

    def match_all(self, seconds: float = MATCH_SECONDS) -> bool:
        """Match what there is to match, for about so long; true when something was done."""
        done = False
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.match_next():
            done = True
        for run_id in self.unchecked():
            self.check(run_id)
            done = True
        return done

    def match_next(self) -> bool:
        """End the waits that the oldest new event answers, up to `PAGE` in one transaction; false where there is none.

        An event that answers more is gone on with by the next call.
        """
        found = self._store.once(self._match_next, together=True)
        if found is None:
            return False
        seq, reached = found
        if reached is None:
            self._reached.pop(seq, None)
        else:
            self._reached[seq] = reached
        return True

    def _match_next(self, connection: Any) -> tuple[int, dict[str, Candidate] | None] | None:
        """The event, and how far it was matched; null for the latter at its end."""
        execute = self._executing(connection)
        row = execute(self._sql(sql.NEXT_EVENT), self._store.params()).fetchone()
        if row is None:
            return None
        seq, name, workspace, run_id, payload, emitted_at, xact, delivery_id = row
        if run_id is not None:
            self._match_message(execute, seq, name, run_id)
            return seq, None
        reached = dict(self._reached.get(seq, {}))
        found: list[Candidate] = []
        more = False
        shapes = ((ENDS, delivery_id),) if name == FINISHED else self._shapes(execute, name, payload)
        for fields, values_hash in shapes:
            after = reached.get(fields, NOWHERE)
            params = self._store.params(
                seq=seq,
                name=name,
                workspace=workspace,
                fields=fields,
                values_hash=values_hash,
                emitted_at=emitted_at,
                xact=xact,
                **{f"after_{field}": value for field, value in zip(_CURSOR, after, strict=True)},
            )
            rows = [Candidate(*row) for row in execute(self._candidates(workspace), params).fetchall()]
            if rows:
                reached[fields] = rows[-1]
            more = more or len(rows) == sql.PAGE
            found.extend(rows)
        # By run, whatever they compare: two events that are matched at once then lock runs in one order.
        output = _output(seq, name, payload, emitted_at)
        woke = sum(
            self._end_wait(execute, wait.run_id, wait.key, Answer(seq, _numbered(output, wait.number)))
            for wait in sorted(found, key=lambda wait: (wait.run_id, wait.key, wait.number))
        )
        execute(self._sql(sql.MATCHED), self._store.params(seq=seq, woke=woke, done=int(not more)))
        return seq, reached if more else None

    def _candidates(self, workspace: str) -> str:
        return self._sql(sql.CANDIDATES.replace("{of_workspace}", sql.OF_WORKSPACE if workspace else ""))

    def _shapes(self, execute: Execute, name: str, payload: str) -> Iterator[tuple[str, str]]:
        """Each set of fields that is waited for under this name, with the hash of the payload's values there."""
        value, readable = _decoded(payload)
        if not readable:
            return
        for (fields,) in execute(self._sql(sql.SHAPES), {"name": name}).fetchall():
            values_hash = None if fields == MESSAGES else hash_in(value, fields)
            if values_hash is not None:
                yield fields, values_hash

    def _match_message(self, execute: Execute, seq: int, name: str, run_id: str) -> None:
        """Let the run receive the oldest message of that name, if it waits for one: not always this one."""
        params = self._store.params(run_id=run_id, name=name, seq=seq)
        # Locked though it may not wait: whoever stores a wait, or looks through a stored one, comes before or after.
        if execute(self._sql(sql.LOCK_RUN), params).fetchone() is not None:
            row = execute(self._sql(sql.RECEIVING), params).fetchone()
            if row is not None:
                self._receive(execute, run_id, row[0], name)
        execute(self._sql(sql.MESSAGE_MATCHED), params)

    def unchecked(self) -> list[str]:
        """Runs whose waits were stored and not yet compared with stored events."""
        rows = self._store.once(lambda c: self._executing(c)(self._sql(sql.UNCHECKED), {}).fetchall())
        return [row[0] for row in rows]

    def check(self, run_id: str) -> bool:
        """End a run's open wait with the first stored event that counts for it; true if there was one."""
        return self._store.once(lambda c: self._check(c, run_id), together=True)

    def _check(self, connection: Any, run_id: str) -> bool:
        execute = self._executing(connection)
        waits = [wait for wait in self._waits(execute, run_id) if not wait.checked]

        def lock() -> bool:
            return execute(self._sql(sql.LOCK_RUN), {"run_id": run_id}).fetchone() is not None

        ended = self._end_answered(execute, run_id, waits, lock)
        for wait in waits:
            params = {"run_id": run_id, "key": wait.key, "number": wait.number, "snapshot": wait.snapshot}
            execute(self._sql(sql.CHECKED), params)
        return ended

    def _waits(self, execute: Execute, run_id: str) -> list[Wait]:
        return [Wait(*row) for row in execute(self._sql(sql.WAITS_OF), {"run_id": run_id}).fetchall()]

    def _end_answered(self, execute: Execute, run_id: str, waits: Iterable[Wait], lock: Callable[[], bool]) -> bool:
        """End those waits that a stored event answers; `lock` locks the run, and says whether its waits may end."""
        answers: dict[str, Answer] = {}
        receiving: dict[str, str] = {}
        for wait in waits:
            if wait.fields == MESSAGES:
                receiving[wait.key] = wait.name
            elif (answer := self._first_answer(execute, run_id, wait)) is not None:
                known = answers.get(wait.key)
                answers[wait.key] = answer if known is None or answer.seq < known.seq else known
        # Events before runs, each in their order, so that nobody waits in a circle.
        for answer in sorted(answers.values()):
            execute(self._sql(sql.LOCK_EVENT), {"seq": answer.seq})
        if not lock():
            return False
        ended = 0
        for key, answer in answers.items():
            if self._end_wait(execute, run_id, key, answer):
                execute(self._sql(sql.COUNT_WOKE), {"seq": answer.seq})
                ended += 1
        for key, name in receiving.items():
            ended += self._receive(execute, run_id, key, name)
        return ended > 0

    def _first_answer(self, execute: Execute, run_id: str, wait: Wait) -> Answer | None:
        """The oldest stored event that ends the wait."""
        if wait.fields == ENDS:
            row = execute(self._sql(sql.END_OF_RUN), {"ended": wait.values_hash}).fetchone()
            return None if row is None else Answer(row[0], _numbered(_output(row[0], FINISHED, row[1], row[2]), 0))
        params = {
            "name": wait.name,
            "workspace": wait.workspace,
            "after_seq": wait.after_seq,
            "since": wait.since,
            **self._dialect.not_before(wait.snapshot),
        }
        if wait.checked:
            looks = [sql.STORED_NEW]
        else:
            looks = [sql.STORED_LATER]
            if params.get("under_way"):
                looks.append(sql.STORED_UNDER_WAY)
            if wait.since is not None:
                looks.append(sql.STORED_SINCE)
        found = (self._first_match(execute, statement, params, run_id, wait) for statement in looks)
        return min((answer for answer in found if answer is not None), default=None)

    def _first_match(
        self, execute: Execute, statement: str, params: dict[str, Any], run_id: str, wait: Wait
    ) -> Answer | None:
        for seq, payload, emitted_at in self._stored(execute, statement, params):
            value, readable = _decoded(payload)
            matches = readable and hash_in(value, wait.fields) == wait.values_hash
            if matches and execute(self._sql(sql.RECEIVED), {"run_id": run_id, "seq": seq}).fetchone() is None:
                return Answer(seq, _numbered(_output(seq, wait.name, payload, emitted_at), wait.number))
        return None

    def _stored(self, execute: Execute, statement: str, params: dict[str, Any]) -> Iterator[tuple[int, str, int]]:
        """Stored events that count for a wait by time, oldest first."""
        from_seq, from_at = 0, params["since"]
        while True:
            rows = execute(self._sql(statement), {**params, "from_seq": from_seq, "from_at": from_at}).fetchall()
            yield from rows
            if len(rows) < 500:
                return
            from_seq, _, from_at = rows[-1]

    def _receive(self, execute: Execute, run_id: str, key: str, name: str) -> int:
        """End a wait for messages with the oldest that was not received yet; the run is locked."""
        row = execute(self._sql(sql.NEXT_MESSAGE), {"run_id": run_id, "name": name}).fetchone()
        if row is None:
            return 0
        seq, payload, emitted_at = row
        if not self._end_wait(execute, run_id, key, Answer(seq, _numbered(_output(seq, name, payload, emitted_at), 0))):
            return 0
        execute(self._sql(sql.COUNT_WOKE), {"seq": seq})
        return 1

    def _end_wait(self, execute: Execute, run_id: str, key: str, answer: Answer) -> int:
        """End one wait if it is still open; the run's row is locked first, as every writer does."""
        params = self._store.params(run_id=run_id, key=key, seq=answer.seq, output=answer.output)
        if execute(self._sql(sql.LOCK_RUN), params).fetchone() is None:
            return 0
        if not execute(self._sql(sql.END_WAIT), params).rowcount:
            return 0
        execute(self._sql(sql.DROP_WAITS), params)
        execute(self._sql(sql.MAKE_DUE), params)
        return 1

    # Keeping -------------------------------------------------------------------------------

    def prune_page(self, after: int, cutoff: int, limit: int) -> int | None:
        """Of the next `limit` events by number, delete the matched ones emitted before an instant, in one statement.

        Answers the last number looked at, null at the end. Messages go with their runs.
        """
        page = self._prune(sql.PRUNE_EVENTS_PAGE, after=after, limit=limit).fetchone()
        last, oldest, count = page
        if not count:
            return None
        self._prune(sql.PRUNE_EVENTS, after=after, last=last, cutoff=cutoff)
        # Numbers follow the clock, but for a transaction or two.
        return None if count < limit or oldest > cutoff + 3_600_000 else int(last)

    def tell_gone(self) -> int:
        """Tell runs that wait for the end of others which are gone, as after somebody deleted their rows."""

        def operation(connection: Any) -> int:
            execute = self._executing(connection)
            found = execute(self._sql(statements.ORPHANED_WAITS), self._store.params()).fetchall()
            for (run_id,) in found:
                self.insert(connection, NewEvent(FINISHED, "", GONE, delivery_id=run_id))
            return len(found)

        return self._store.once(operation, together=True)

    def _prune(self, statement: str, **params: int) -> Any:
        return self._store.once(lambda c: self._executing(c)(self._sql(statement), params))

    # Published state -----------------------------------------------------------------------

    def save_state(self, run_id: str, epoch: int, key: str, value: str, connection: Any = None) -> None:
        """Publish a value of a run that is executed, in the caller's transaction where there is one.

        Raises `LeaseGone`.
        """
        params = self._store.params(run_id=run_id, epoch=epoch, key=key, value=value)

        def operation(connection: Any) -> bool:
            return self._store.execute_on(connection)(self._sql(sql.SAVE_STATE), params).fetchone() is not None

        if not (self._store.patiently(operation) if connection is None else operation(connection)):
            raise LeaseGone

    def read_state(self, run_id: str, key: str) -> str | None:
        if not is_clean(key):
            return None
        params = {"run_id": run_id, "key": key}
        row = self._store.once(lambda c: self._store.execute_on(c)(self._sql(sql.READ_STATE), params).fetchone())
        return None if row is None else str(row[0])

    def move_mark(self, name: str, at: int) -> bool:
        """Move a mark forward to an instant; true for the one caller that moved it there."""
        params = {"name": name, "at": at}
        row = self._store.once(lambda c: self._store.execute_on(c)(self._sql(sql.MOVE_MARK), params).fetchone())
        return row is not None

    def _executing(self, connection: Any) -> Execute:
        execute: Execute = self._dialect.afresh(connection, but=self._by_key)
        return execute

    def _sql(self, statement: str) -> str:
        return self._dialect.sql(self._dialect.events(statement))


_OUTCOME = """
SELECT output, event_seq FROM workflow_steps WHERE run_id = :run_id AND "key" = :key
"""

_CURSOR = ("workspace", "run", "key", "number")


def _decoded(payload: str) -> tuple[Any, bool]:
    """The payload, and whether it could be read: what is no JSON, as after an edit by hand, matches nothing."""
    try:
        return json.loads(payload), True
    except (ValueError, RecursionError):
        return None, False


def _output(seq: int, name: str, payload: str, emitted_at: int) -> str:
    """What the wait's record holds: the event, its payload as it was stored."""
    return f'{{"seq":{seq},"name":{json.dumps(name)},"emitted_at":{emitted_at},"payload":{payload}'


def _numbered(output: str, number: int) -> str:
    return f'{output},"number":{number}}}'
