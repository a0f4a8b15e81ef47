"""Runs written by SQL as the engine leaves them, many at a time.

Each row goes through the versions it has in an app: inserted by the start, claimed (by the store's own claim), touched
by each step that is stored, settled. So there are as many dead rows as the engine makes. `tests/test_year.py` holds
what comes of it against runs of the same workflows that were executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from benchmarks.year.app import LONGEST
from benchmarks.year.app import MIX
from benchmarks.year.app import PATIENCE
from benchmarks.year.app import STARTED
from flask_workflows.matching import ENDS
from flask_workflows.names import id_at
from flask_workflows.store import Scope
from flask_workflows.store import Store
from flask_workflows.store.rows import Ended

#: Written runs are on a queue of their own.
QUEUE = "written"
DAY_MS = 86_400_000

_RESERVE = ("reserve", 1, "step", "completed", "@input", "@number")
_SHIP = ("ship", 3, "step", "completed", "@input", "@number")

#: What the first and the second execution of a run record: key, position, kind, status, input, output.
_RECORDS = {
    ("order", 1): (_RESERVE, ("charge", 2, "step", "completed", "@input", "@number"), _SHIP),
    ("dunning", 1): (_RESERVE, ("collect", 2, "step", "failed", "@input", "")),
    ("trial", 1): (_RESERVE, ("$sleep", 2, "sleep", "sleeping", '{"ms": @slept}', "")),
    ("trial", 2): (_SHIP,),
    ("approval", 1): (
        _RESERVE,
        (
            *("$wait:approved", 2, "wait", "waiting"),
            *('{"events":[{"name":"approved","match":@input}],"timeout_ms":@patience}', ""),
        ),
    ),
    ("approval", 2): (_SHIP,),
    ("batch", 1): (
        ("$start:order", 1, "start", "completed", "@input", '{"id": "@child", "created": true}'),
        ("$result", 2, "result", "waiting", '{"run": "@child", "timeout_ms": null}', ""),
    ),
}

#: What becomes of the run then.
_BECOMES = {
    ("order", 1): "completed",
    ("dunning", 1): "failed",
    ("trial", 1): "sleeping",
    ("trial", 2): "completed",
    ("approval", 1): "waiting",
    ("approval", 2): "completed",
    ("batch", 1): "waiting",
    ("batch", 2): "completed",
}

#: One start in a hundred is an operator's.
_START = (
    """
INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, due_at, attempts,
    max_attempts, losses, created_at, updated_at)
SELECT {id}, {workflow}, 1, {queue}, '', 'pending', '{"number":' || n || '}', 0, :now, 0, 3, 0, :now, :now
FROM {numbers}
""",
    """
INSERT INTO workflow_audit (id, at, actor, action, run_id, workspace, target, "after", reason)
SELECT {id}, :now, 'ana@example.com', 'start', {id}, '', {workflow}, 'pending', 'asked for by telephone'
FROM {numbers} WHERE n % 100 = 0
""",
)

_TOUCH = """
UPDATE workflow_runs AS r SET status = 'running', attempts = 0, losses = 0, updated_at = :now
WHERE {held} AND r.epoch = 1
"""

_OF_BATCH = "{held} AND r.epoch = 1 AND r.workflow || '' = 'batch'"

_EXECUTE = (
    _TOUCH,
    f"{_TOUCH} AND r.workflow || '' = 'order'",
    # What was slept through, or waited for in vain.
    """
UPDATE workflow_steps SET status = 'completed', output = CASE kind WHEN 'wait' THEN 'null' END, finished_at = :now
WHERE status IN ('sleeping', 'waiting') AND run_id IN (SELECT r.id FROM workflow_runs r WHERE {held} AND r.epoch > 1)
""",
    "DELETE FROM workflow_waits WHERE run_id IN (SELECT r.id FROM workflow_runs r WHERE {held} AND r.epoch > 1)",
    """
WITH k (workflow, epoch, "key", position, kind, status, input, output) AS (VALUES {records})
INSERT INTO workflow_steps (run_id, "key", position, kind, status, input, output, error, attempts, started_at,
    finished_at, due_at)
SELECT r.id, k."key", k.position, k.kind, k.status, {said input}, nullif({said output}, ''),
    CASE k.status WHEN 'failed' THEN :step_error END, 1, :now,
    CASE WHEN k.status IN ('completed', 'failed') THEN :now END,
    CASE k.kind WHEN 'sleep' THEN :now + {slept} WHEN 'wait' THEN :now + {patience} END
FROM workflow_runs r JOIN k ON k.workflow = r.workflow || '' AND k.epoch = r.epoch WHERE {held}
""",
    """
INSERT INTO workflow_waits (run_id, "key", number, name, workspace, fields, values_hash, snapshot, after_seq, checked)
SELECT r.id, k.column2, 0, k.column3, '', k.column4, CASE k.column1 WHEN 'batch' THEN {child} ELSE {hash of r.input} END,
    {snapshot}, 0, 1
FROM workflow_runs r JOIN (VALUES ('batch', '$result', '$finished', '{ends}'),
    ('approval', '$wait:approved', 'approved', '["number"]')) AS k ON k.column1 = r.workflow || ''
WHERE {held} AND r.epoch = 1
""",
    f"""
INSERT INTO workflow_state (run_id, "key", value, updated_at)
SELECT r.id, 'note', '"a batch of one order"', :now FROM workflow_runs r WHERE {_OF_BATCH}
""",
    # To every trial a message that it never reads.
    """
INSERT INTO workflow_events (name, workspace, run_id, payload, xact, emitted_at, woke)
SELECT 'note', '', r.id, r.input, {xact}, :now, 0 FROM workflow_runs r
WHERE {held} AND r.epoch = 1 AND r.workflow || '' = 'trial'
""",
    """
INSERT INTO workflow_events (name, workspace, payload, delivery_id, xact, emitted_at, woke)
SELECT '$finished', '', '{"status": "completed", "output": ' || {number} || ', "error": null}', r.id, {xact}, :now, 0
FROM workflow_runs r WHERE {held} AND r.watched = 1
""",
    # Due in a moment, and so executed the next time.
    f"""
INSERT INTO workflow_runs (id, workflow, version, queue, workspace, status, input, epoch, due_at, attempts,
    max_attempts, losses, created_at, updated_at, parent_id)
SELECT {{child}}, 'order', 1, {{queue}}, '', 'pending', r.input, 0, :now + 1, 0, 3, 0, :now, :now, r.id
FROM workflow_runs r WHERE {_OF_BATCH}
""",
    "UPDATE workflow_runs AS r SET watched = 1 WHERE {soon}",
    """
WITH k (workflow, epoch, status) AS (VALUES {becomes})
UPDATE workflow_runs AS r SET status = k.status, worker = NULL, attempts = CASE k.status WHEN 'failed' THEN 1 ELSE 0 END,
    due_at = CASE WHEN k.status = 'sleeping' THEN :now + {slept}
        WHEN k.status = 'waiting' AND k.workflow = 'approval' THEN :now + {patience} END,
    finished_at = CASE WHEN k.status IN ('completed', 'failed') THEN :now END, updated_at = :now,
    output = CASE k.status WHEN 'completed' THEN CAST({number} AS text) END,
    error = CASE k.status WHEN 'failed' THEN :run_error END, cause = CASE k.status WHEN 'failed' THEN :cause END
FROM k WHERE k.workflow = r.workflow || '' AND k.epoch = r.epoch AND {held}
""",
    # Every other approval a day old gets its event, and one event in ten runs is waited for by nobody.
    """
INSERT INTO workflow_events (name, workspace, payload, xact, emitted_at, woke)
SELECT 'approved', '', r.input, {xact}, :now, 0 FROM workflow_waits w JOIN workflow_runs r ON r.id = w.run_id
WHERE w.run_id >= :yesterday AND w.run_id < :after AND w.name = 'approved' AND r.queue = {queue} AND {number} % 2 = 0
""",
    """
INSERT INTO workflow_events (name, workspace, payload, xact, emitted_at, woke)
SELECT 'viewed', '', '{"number":' || n || '}', {xact}, :now, 0 FROM {numbers} WHERE n % 10 = 0
""",
    """
UPDATE workflow_steps AS s SET status = 'completed', finished_at = :now, event_seq = a.seq,
    output = '{"seq":' || a.seq || ',"name":"' || a.name || '","emitted_at":' || a.emitted_at || ',"payload":' ||
        a.payload || ',"number":' || 0 || '}'
FROM (SELECT w.run_id, w."key", e.seq, e.name, e.emitted_at, e.payload FROM {answers}) AS a
WHERE s.run_id = a.run_id AND s."key" = a."key"
""",
    """
UPDATE workflow_runs SET status = 'pending', due_at = :now + 1, updated_at = :now
WHERE id IN (SELECT w.run_id FROM {answers})
""",
    """
UPDATE workflow_events SET matched_at = :now, woke = CASE WHEN seq IN (SELECT e.seq FROM {answers}) THEN 1 ELSE 0 END
WHERE matched_at IS NULL
""",
    "DELETE FROM workflow_waits WHERE run_id IN (SELECT r.id FROM workflow_runs r WHERE {soon} AND r.epoch > 0)",
)


class Written:
    """Writes runs, at the instants that the store's clock shows.

    `failure` is how a `dunning` failed that was executed: the step's error, the run's, and the cause.
    """

    def __init__(self, store: Store, failure: Sequence[str]) -> None:
        self._store = store
        self._failure = dict(zip(("step_error", "run_error", "cause"), failure, strict=True))
        self._scope = Scope.of([(name, 1, 1) for name in MIX], [QUEUE])
        self._numbers: dict[str, int] = {}
        self._start = self._made(_START)
        self._execute = self._made(_EXECUTE)

    def start(self, first: int, last: int) -> None:
        """Start the runs with these numbers, which are due now."""
        now = self._store.now()
        self._numbers = {"first": first, "last": last}
        self._all(self._start, {"now": now, "head": id_at(now)[:-12], **self._numbers})

    def claim(self, limit: int) -> int:
        """Claim up to so many due ones as a worker does; answer how many."""
        return len(self._store.claim(self._scope, "writer", limit))

    def execute(self) -> None:
        """Bring what is claimed at this instant to where it ends or waits, emit events and match them.

        What that makes due is due a millisecond later.
        """
        now = self._store.now()
        yesterday = {"yesterday": id_at(now - DAY_MS), "after": id_at(now - DAY_MS + 1)}
        held = {"held": now + self._store.lease_ms}
        self._all(self._execute, {"now": now, **held, **yesterday, **self._numbers, **self._failure})

    def count(self, quarters: Sequence[int], runs: int) -> None:
        """Add what so many runs come to to the statistics of each of these quarters of an hour."""
        ended = [Ended(name, "completed", max(1, runs * share // STARTED), runs) for name, share in MIX.items()]

        def operation(connection: Any) -> None:
            for at in quarters:
                self._store.count_ended_in(self._store.execute_on(connection), ended, at=at)

        self._store.once(operation, together=True)

    def _made(self, statements: Sequence[str]) -> list[str]:
        dialect = self._store.dialect
        words = _words(dialect.name)
        return [dialect.sql(dialect.events(_filled(statement, words))) for statement in statements]

    def _all(self, statements: Sequence[str], params: dict[str, Any]) -> None:
        sqlite = self._store.dialect.name == "sqlite"
        # Planned afresh, as the tables grow from nothing.
        options: dict[str, Any] = {} if sqlite else {"prepare": False}

        def operation(connection: Any) -> None:
            self._in_a_hurry(connection, True)
            for statement in statements:
                connection.execute(statement, params, **options)
            self._in_a_hurry(connection, False)

        # On PostgreSQL each commits by itself, as in an app, so that dead versions may go as soon.
        self._store.once(operation, together=sqlite)

    def _in_a_hurry(self, connection: Any, begins: bool) -> None:
        """What is written need not be on the disk at each commit; what is measured is."""
        if self._store.dialect.name == "postgresql":
            connection.execute("SET synchronous_commit = off" if begins else "RESET synchronous_commit")


def _words(dialect: str) -> dict[str, str]:
    """What stands for the words in braces, which may hold further ones."""
    sqlite = dialect == "sqlite"
    counted = "WITH RECURSIVE c (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM c WHERE n < :last) SELECT n FROM c"
    placed, cases = 0, ""
    for name, share in MIX.items():
        placed += share
        cases += f" WHEN n % {STARTED} < {placed} THEN '{name}'"
    records = [(*which, *record) for which, records in _RECORDS.items() for record in records]
    said = "k.{column}"
    for word, value in (
        *(("input", "r.input"), ("number", "{number}"), ("slept", "{slept}")),
        *(("patience", "{patience}"), ("child", "{child}")),
    ):
        said = f"replace({said}, '@{word}', CAST({value} AS text))"
    return {
        "{said input}": said.replace("{column}", "input"),
        "{said output}": said.replace("{column}", "output"),
        "{records}": _values(records),
        "{becomes}": _values([(*which, status) for which, status in _BECOMES.items()]),
        "{answers}": """workflow_events e JOIN workflow_waits w ON w.name = e.name
            AND w.fields = CASE e.name WHEN '$finished' THEN '{ends}' ELSE '["number"]' END
            AND w.values_hash = CASE e.name WHEN '$finished' THEN e.delivery_id ELSE {hash of e.payload} END
            WHERE e.matched_at IS NULL""",
        # As long as a hash.
        "{hash of e.payload}": f"substr(e.payload || '{'x' * 64}', 1, 64)",
        "{hash of r.input}": f"substr(r.input || '{'x' * 64}', 1, 64)",
        "{held}": "r.due_at = :held AND r.queue = {queue}",
        "{soon}": "r.due_at = :now + 1 AND r.queue = {queue}",
        "{id}": ":head || {hex}",
        "{hex}": "printf('%012x', n)" if sqlite else "lpad(to_hex(n), 12, '0')",
        "{numbers}": f"({counted}) AS numbers" if sqlite else "generate_series(CAST(:first AS bigint), :last) AS s (n)",
        "{workflow}": f"CASE{cases} END",
        "{child}": "substr(r.id, 1, 15) || '001' || substr(r.id, 19)",
        "{slept}": f"(1 + {{number}} % {LONGEST}) * {DAY_MS}",
        "{number}": "CAST(substr(r.input, 11, length(r.input) - 11) AS integer)",
        "{patience}": str(PATIENCE // timedelta(milliseconds=1)),
        "{queue}": f"'{QUEUE}'",
        "{ends}": ENDS,
        "%": "%" if sqlite else "%%",
    }


def _filled(statement: str, words: dict[str, str]) -> str:
    for word, text in words.items():
        statement = statement.replace(word, text)
    return statement


def _values(rows: Sequence[tuple[str | int, ...]]) -> str:
    """Rows of SQL; words in braces in what they hold are left for later."""
    written = (", ".join(str(v) if isinstance(v, int) else f"'{v}'" for v in row) for row in rows)
    return ", ".join(f"({row})" for row in written)
