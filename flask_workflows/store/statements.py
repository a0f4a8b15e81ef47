"""The SQL both dialects share, with `:name` parameters.

`{now}` stands for the present instant in Unix ms: the database's clock, or `:now` where that is not null (tests).
It is a scalar subquery, so that the planners may use it as the bound of an index scan. No statement that writes
begins with WITH where it runs on SQLite in the caller's transaction: pysqlite would not open one for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from .rows import Change
from .rows import StepWrite

#: The earlier of an instant and so many ms from now.
_DEADLINE = """CASE WHEN CAST(v.column12 AS bigint) <= clock.ms + CAST(v.column13 AS bigint) OR v.column13 IS NULL
    THEN CAST(v.column12 AS bigint) ELSE clock.ms + CAST(v.column13 AS bigint) END"""
_BEGINS = "clock.ms + CAST(v.column9 AS bigint)"

INSERT_RUN = """
INSERT INTO workflow_runs (id, workflow, version, queue, workspace, "key", live_key, status, input, epoch, due_at,
    attempts, max_attempts, losses, created_at, updated_at, parent_id, deadline_at)
SELECT v.column1, v.column2, CAST(v.column3 AS integer), v.column4, v.column5, v.column6, v.column6, v.column10,
    v.column7, 0, {due}, 0, CAST(v.column8 AS integer), 0, clock.ms, clock.ms, v.column11, {deadline}
FROM (VALUES {rows}) AS v CROSS JOIN (SELECT {now} AS ms) AS clock
WHERE 1 = 1
ON CONFLICT (workflow, workspace, live_key) WHERE live_key IS NOT NULL DO NOTHING
RETURNING id
"""
INSERT_RUN = INSERT_RUN.replace("{due}", f"CASE WHEN {{deadline}} < {_BEGINS} THEN {{deadline}} ELSE {_BEGINS} END")
INSERT_RUN = INSERT_RUN.replace("{deadline}", _DEADLINE)

_RUN_ROW = """(:id{i}, :workflow{i}, :version{i}, :queue{i}, :workspace{i}, CAST(:key{i} AS text), :input{i},
    :max_attempts{i}, :delay_ms{i}, :status{i}, CAST(:parent_id{i} AS text), CAST(:deadline_at{i} AS bigint),
    CAST(:deadline_ms{i} AS bigint))"""

FIND_LIVE_KEY = """
SELECT id FROM workflow_runs
WHERE workflow = :workflow AND workspace = :workspace AND live_key = :key
"""

STEP_COLUMNS = """run_id, "key", position, kind, status, input, output, error, attempts, earlier, started_at,
    finished_at, due_at"""

STEP_ROW = """CAST(:key{i} AS {text}), CAST(:position{i} AS integer), CAST(:kind{i} AS {text}),
    CAST(:status{i} AS {text}), CAST(:input{i} AS {text}), CAST(:output{i} AS {text}), CAST(:error{i} AS {text}),
    CAST(:attempts{i} AS integer), CAST(:earlier{i} AS {text}), {now} - CAST(:started_ago{i} AS bigint),
    {now} - CAST(:finished_ago{i} AS bigint),
    coalesce(CAST(:due_at{i} AS bigint), {now} + CAST(:due_in{i} AS bigint))"""

STEP_CONFLICT = """
ON CONFLICT (run_id, "key") DO UPDATE SET status = excluded.status, output = excluded.output, error = excluded.error,
    attempts = excluded.attempts, earlier = excluded.earlier, started_at = excluded.started_at,
    finished_at = excluded.finished_at, due_at = excluded.due_at
"""

_DUE = "coalesce(CAST(:run_due_at AS bigint), {now} + CAST(:run_due_in AS bigint))"

#: Looked at again at the deadline, at the latest; what is being undone has none.
_DUE = f"""CASE WHEN CAST(:run_finished AS integer) = 1 THEN NULL
    WHEN CAST(:run_undoing AS text) IS NULL AND deadline_at < coalesce({_DUE}, deadline_at + 1) THEN deadline_at
    ELSE {_DUE} END"""

#: One that is paused is due only once it is resumed.
SETTLE_RUN = f"""
UPDATE workflow_runs SET status = :run_status, output = :run_output, error = :run_error, cause = :run_cause,
    attempts = CAST(:run_attempts AS integer), losses = CAST(:run_losses AS integer), worker = NULL,
    due_at = CASE WHEN paused_at IS NULL THEN {_DUE} END,
    paused_due_at = CASE WHEN paused_at IS NOT NULL THEN {_DUE} END,
    paused_at = CASE WHEN CAST(:run_finished AS integer) = 0 THEN paused_at END, updated_at = {{now}},
    finished_at = CASE WHEN CAST(:run_finished AS integer) = 1 THEN {{now}} END,
    live_key = CASE WHEN CAST(:run_finished AS integer) = 1 THEN NULL ELSE live_key END,
    undoing = :run_undoing
WHERE id = :run_id AND epoch = :epoch AND finished_at IS NULL
    AND (worker IS NOT NULL OR CAST(:idle AS integer) = 1)
    AND (cancel_requested_at IS NULL OR CAST(:run_cancels AS integer) = 1)
"""

#: Tells those who wait for a run that it has finished, in the transaction that ends it. `{xact}` as in
#: `event_statements`. There is one such event for a run, found by its id: one that was retried ends anew.
TELL_FINISHED = """
INSERT INTO workflow_events (name, workspace, payload, delivery_id, xact, emitted_at, woke)
SELECT '$finished', '', {finished}, r.id, {xact}, {now}, 0
FROM workflow_runs r WHERE r.id = :run_id AND r.watched = 1 AND r.finished_at IS NOT NULL
ON CONFLICT (name, workspace, delivery_id) WHERE delivery_id IS NOT NULL DO UPDATE SET payload = excluded.payload,
    xact = excluded.xact, emitted_at = excluded.emitted_at, woke = 0, matched_at = NULL
"""

#: A run that goes on has not ended, as far as anybody waits for that.
UNTELL_FINISHED = """
DELETE FROM workflow_events WHERE name = '$finished' AND workspace = '' AND delivery_id = :run_id
"""

#: How a run ended, as JSON; its parts are JSON text already.
FINISHED = """'{"status": "' || r.status || '", "output": ' || coalesce(r.output, 'null')
    || ', "error": ' || coalesce(r.error, 'null') || '}'"""

#: Null while it has not finished.
HOW_FINISHED = """
SELECT CASE WHEN r.finished_at IS NOT NULL THEN {finished} END FROM workflow_runs r WHERE r.id = :run_id
"""

#: From now on its end will be told.
WATCH = """
UPDATE workflow_runs SET watched = 1 WHERE id = :run_id AND finished_at IS NULL RETURNING id
"""

#: Waits for the end of runs that are gone, as after somebody deleted their rows.
ORPHANED_WAITS = """
SELECT DISTINCT w.values_hash FROM workflow_waits w
WHERE w.name = '$finished' AND NOT EXISTS (SELECT 1 FROM workflow_runs r WHERE r.id = w.values_hash)
LIMIT 1000
"""

#: The unfinished runs below a run, by way of unfinished ones; parents come before their children.
DESCENDANTS = """
WITH RECURSIVE below (id) AS (
    SELECT id FROM workflow_runs WHERE parent_id = :run_id AND parent_id IS NOT NULL AND finished_at IS NULL
    UNION
    SELECT r.id FROM below JOIN workflow_runs r ON r.parent_id = below.id
    WHERE r.parent_id IS NOT NULL AND r.finished_at IS NULL
)
SELECT id FROM below ORDER BY id
"""

#: Marks an execution as begun, and forgets faults that came before the step now stored. Like every write of an
#: execution it asks for a worker too: once the outcome is stored nobody holds the run, though the epoch is still its.
TOUCH_RUN = """
UPDATE workflow_runs SET status = 'running', attempts = 0, losses = 0, updated_at = {now}
WHERE id = :run_id AND epoch = :epoch AND worker IS NOT NULL
RETURNING id, cancel_requested_at, paused_at
"""

FENCE = """
SELECT id FROM workflow_runs WHERE id = :run_id AND epoch = :epoch AND worker IS NOT NULL {lock}
"""

LOOK = """
SELECT epoch, status, cancel_requested_at, finished_at, paused_at FROM workflow_runs WHERE id = :run_id
"""

#: What a claim does to each run it takes. The right-hand sides see the row as it was: a worker still named there
#: lost its lease, and one whose run was running had begun it. With no attempt left it was only to be failed.
CLAIM_SET = """
epoch = {r}epoch + 1,
    attempts = {r}attempts + CASE WHEN {r}worker IS NOT NULL AND {r}status = 'running'
        AND {r}attempts < {r}max_attempts THEN 1 ELSE 0 END,
    losses = {r}losses + CASE WHEN {r}worker IS NOT NULL
        AND ({r}attempts < {r}max_attempts OR {r}losses = 0) THEN 1 ELSE 0 END,
    status = CASE WHEN CAST(:begin AS integer) = 1 THEN 'running' ELSE 'pending' END,
    worker = :worker, due_at = {now} + CAST(:lease_ms AS bigint), updated_at = {now},
    started_at = coalesce({r}started_at, {now})
"""

#: A run that lost its worker is taken only by a claim `careful` enough to begin it at once, and before its last
#: chance only by a worker that is otherwise idle.
CLAIMABLE = """
due_at <= {now} AND {scope}
    AND (CAST(:careful AS integer) = 1 OR (losses = 0 AND worker IS NULL))
    AND (CAST(:alone AS integer) = 1 OR (losses = 0 AND worker IS NULL)
        OR attempts + CASE WHEN worker IS NOT NULL AND status = 'running' THEN 1 ELSE 0 END <> max_attempts - 1)
ORDER BY due_at LIMIT CAST(:limit AS integer)
"""

CLAIM_RETURNING = """{r}id, {r}workflow, {r}version, {r}queue, {r}workspace, {r}"key", {r}input, {r}status, {r}epoch,
    {r}attempts, {r}max_attempts, {r}losses, {r}created_at, {r}started_at, {r}cancel_requested_at,
    {r}paused_at, {r}deadline_at, {r}undoing, {r}due_at - CAST(:lease_ms AS bigint)"""

NEXT_DUE = """
SELECT min(due_at) FROM workflow_runs WHERE due_at IS NOT NULL AND {scope}
"""

HISTORY = """
SELECT run_id, "key", position, kind, status, input, output, error, attempts, earlier, started_at, finished_at, due_at
FROM workflow_steps WHERE run_id IN ({ids}) ORDER BY run_id, position
"""

#: The calls of one branch, and of those inside it.
BRANCH_HISTORY = """
SELECT "key", position, kind, status, input, output, error, attempts, earlier, started_at, finished_at, due_at
FROM workflow_steps WHERE run_id = :run_id AND substr("key", 1, CAST(:length AS integer)) = :path ORDER BY position
"""

ENDED_CALLS = """
SELECT "key" FROM workflow_steps WHERE run_id = :run_id AND "key" IN ({keys}) AND status = 'completed'
"""

FIND_STEP = """
SELECT status, output FROM workflow_steps WHERE run_id = :run_id AND "key" = :key
"""

EPOCHS = """
SELECT id, epoch FROM workflow_runs WHERE id IN ({ids})
"""

#: Gives claimed runs back, due at once or after `delay_ms`. A raised epoch stops an execution that still goes on.
HAND_BACK = """
UPDATE workflow_runs SET status = 'pending', worker = NULL, epoch = epoch + 1,
    due_at = {now} + CAST(:delay_ms AS bigint), updated_at = {now}
WHERE id = :run_id AND epoch = :epoch AND worker IS NOT NULL
"""

#: Runs a claim took whose reply never arrived: nobody executes them.
HAND_BACK_STRAYS = """
UPDATE workflow_runs SET status = 'pending', worker = NULL, epoch = epoch + 1, due_at = {now}, updated_at = {now}
WHERE worker = :worker AND status <> 'completed' AND status IN ('pending', 'running') AND id NOT IN ({ids})
"""

SAVE_WORKER = """
INSERT INTO workflow_workers (id, name, host, pid, queues, workflows, concurrency, started_at, seen_at)
VALUES (:id, :name, :host, :pid, :queues, :workflows, :concurrency, {now}, {now})
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at
"""

STOP_WORKER = """
UPDATE workflow_workers SET stopped_at = {now}, seen_at = {now} WHERE id = :id
"""

LIVE_WORKERS = """
SELECT workflows FROM workflow_workers WHERE stopped_at IS NULL AND seen_at >= {now} - CAST(:within_ms AS bigint)
"""

FORGET_WORKERS = """
DELETE FROM workflow_workers WHERE seen_at < {now} - CAST(:after_ms AS bigint)
"""

UNCLAIMED = """
SELECT id, workflow, version, epoch FROM workflow_runs
WHERE due_at <= {now} - CAST(:overdue_ms AS bigint)
    AND CASE WHEN workflow = :workflow AND version < CAST(:below AS integer) THEN true ELSE false END
ORDER BY due_at LIMIT 100
"""

WAITING_CARE = """
SELECT 1 FROM workflow_runs
WHERE due_at <= {now} AND {scope} AND (losses > 0 OR worker IS NOT NULL)
    AND attempts + CASE WHEN worker IS NOT NULL AND status = 'running' THEN 1 ELSE 0 END = max_attempts - 1
LIMIT 1
"""

#: A run as an operator's action finds it; `Found` in `actions`.
LOCK = """
SELECT status, epoch, workflow, workspace, coalesce(due_at, paused_due_at), cancel_requested_at, finished_at
FROM workflow_runs
WHERE id = :run_id {lock}
"""

#: Operator actions raise the epoch, save the mark on a running run, whose owner may still store its step.
_PUSHED = """
EXISTS (SELECT 1 FROM workflow_steps s WHERE s.run_id = workflow_runs.id AND s.kind = 'undo' AND s.status = 'pushed')
"""

CANCEL_IDLE = """
UPDATE workflow_runs SET status = 'cancelled', epoch = epoch + 1, worker = NULL, due_at = NULL, live_key = NULL,
    paused_at = NULL, paused_due_at = NULL,
    cancel_requested_at = coalesce(cancel_requested_at, {now}), finished_at = {now}, updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND (worker IS NULL OR status = 'pending' OR due_at <= {now})
    AND undoing IS NULL AND NOT {pushed}
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
""".replace("{pushed}", _PUSHED)

#: An idle run that has something to undo: a worker does that, then it ends.
CANCEL_TO_UNDO = """
UPDATE workflow_runs SET status = 'pending', epoch = epoch + 1, worker = NULL, due_at = {now},
    paused_at = NULL, paused_due_at = NULL,
    cancel_requested_at = coalesce(cancel_requested_at, {now}), updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND (worker IS NULL OR status = 'pending' OR due_at <= {now})
    AND undoing IS NULL AND cancel_requested_at IS NULL AND {pushed}
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
""".replace("{pushed}", _PUSHED)

CANCEL_RUNNING = """
UPDATE workflow_runs SET cancel_requested_at = {now}, paused_at = NULL, paused_due_at = NULL, updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND cancel_requested_at IS NULL AND undoing IS NULL
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
"""

#: One that nobody has begun to execute is put aside at once.
PAUSE_IDLE = """
UPDATE workflow_runs SET paused_at = {now}, paused_due_at = CASE WHEN worker IS NULL THEN due_at ELSE {now} END,
    due_at = NULL, worker = NULL, epoch = epoch + 1, updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND paused_at IS NULL AND (worker IS NULL OR status = 'pending')
    AND (cancel_requested_at IS NULL OR undoing IS NOT NULL)
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
"""

#: As with cancelling, the owner may still store its step.
PAUSE_RUNNING = """
UPDATE workflow_runs SET paused_at = {now}, updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND paused_at IS NULL
    AND (cancel_requested_at IS NULL OR undoing IS NOT NULL)
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
"""

#: It may be due for something that came meanwhile. One that is executed has not paused yet, and goes on.
RESUME_RUN = """
UPDATE workflow_runs SET due_at = coalesce(due_at, paused_due_at), paused_at = NULL, paused_due_at = NULL,
    epoch = epoch + CASE WHEN worker IS NULL THEN 1 ELSE 0 END, updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND paused_at IS NOT NULL
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
"""

DUE_IF_ENDED = """
UPDATE workflow_runs SET status = 'pending', due_at = {now}, updated_at = {now}
WHERE id = :run_id AND status IN ('waiting', 'sleeping') AND worker IS NULL AND EXISTS (
    SELECT 1 FROM workflow_steps s WHERE s.run_id = :run_id AND s."key" IN ({keys}) AND s.status = 'completed'
)
"""

#: Without its deadline: who retries a run wants it to go on.
RETRY_RUN = """
UPDATE workflow_runs SET status = 'pending', epoch = epoch + 1, worker = NULL, attempts = 0, losses = 0,
    error = NULL, output = NULL, cause = NULL, cancel_requested_at = NULL, finished_at = NULL, deadline_at = NULL,
    due_at = {now}, live_key = "key", updated_at = {now}
WHERE id = :run_id AND status IN ('failed', 'cancelled')
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
"""

#: A run that begins with a history has been held before, as far as claims know.
MARK_FORK = """
UPDATE workflow_runs SET forked_from = :run_id, epoch = 1 WHERE id = :new
"""

COPY_STEPS = """
INSERT INTO workflow_steps (run_id, "key", position, kind, status, input, output, error, attempts, earlier, started_at,
    finished_at, due_at, event_seq)
SELECT CAST(:new AS text), "key", position, kind, status, input, output, error, attempts, earlier, started_at,
    finished_at, due_at, event_seq
FROM workflow_steps WHERE run_id = :run_id AND "key" IN ({keys})
"""

#: What was published before the call that is made anew; what came later is published again.
COPY_STATE = """
INSERT INTO workflow_state (run_id, "key", value, updated_at)
SELECT CAST(:new AS text), "key", value, updated_at FROM workflow_state
WHERE run_id = :run_id AND updated_at <= (
    SELECT started_at FROM workflow_steps s WHERE s.run_id = :run_id AND s."key" = :from_step
)
"""

FORGET_STEP = """
DELETE FROM workflow_steps WHERE run_id = :run_id AND "key" = :key
"""

_AT = "CASE WHEN CAST(:at AS bigint) > {now} THEN CAST(:at AS bigint) ELSE {now} END"

_WAKES = f"CASE WHEN undoing IS NULL AND deadline_at < {_AT} THEN deadline_at ELSE {_AT} END"

WAKE_RUN = f"""
UPDATE workflow_runs SET epoch = epoch + 1, due_at = CASE WHEN paused_at IS NULL THEN {_WAKES} END,
    paused_due_at = CASE WHEN paused_at IS NOT NULL THEN {_WAKES} END, updated_at = {{now}}
WHERE id = :run_id AND status = 'sleeping' AND worker IS NULL
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
RETURNING coalesce(due_at, paused_due_at)
"""

#: With the timer itself moved, no replay sleeps on.
WAKE_STEPS = f"""
UPDATE workflow_steps SET due_at = {_AT} WHERE run_id = :run_id AND status IN ('sleeping', 'retrying')
"""

#: Of a worker that is gone. It stays named, so that whoever takes the run over counts the loss.
RELEASE_RUN = """
UPDATE workflow_runs SET epoch = epoch + 1, due_at = CASE WHEN due_at < {now} THEN due_at ELSE {now} END,
    updated_at = {now}
WHERE id = :run_id AND finished_at IS NULL AND worker IS NOT NULL
    AND (CAST(:epoch AS integer) IS NULL OR epoch = CAST(:epoch AS integer))
    AND NOT EXISTS (SELECT 1 FROM workflow_workers w WHERE w.id = workflow_runs.worker AND w.stopped_at IS NULL
        AND w.seen_at >= {now} - CAST(:silent_ms AS bigint))
"""

INSERT_AUDIT = """
INSERT INTO workflow_audit (id, at, actor, action, run_id, workspace, target, "before", "after", reason, request_id,
    address, operation)
VALUES (:id, {now}, :actor, :action, :run_id, :workspace, :target, :before, :after, :reason, :request_id, :address,
    :operation)
"""

PRUNE_AUDIT = """
DELETE FROM workflow_audit WHERE id IN (
    SELECT id FROM workflow_audit WHERE id < :before AND at < CAST(:cutoff AS bigint)
    ORDER BY id LIMIT CAST(:limit AS integer)
)
"""

PRUNE_PAGE = """
SELECT id, finished_at FROM workflow_runs
WHERE id > :after AND id < :before ORDER BY id LIMIT CAST(:limit AS integer)
"""

COUNT_PRUNABLE = """
SELECT count(*) FROM workflow_runs WHERE id < :before AND finished_at < CAST(:cutoff AS bigint)
"""

DELETE_STEPS = """
DELETE FROM workflow_steps WHERE run_id IN ({ids})
"""

DELETE_STATE = """
DELETE FROM workflow_state WHERE run_id IN ({ids})
"""

DELETE_MESSAGES = """
DELETE FROM workflow_events WHERE run_id IN ({ids})
"""

DELETE_RUNS = """
DELETE FROM workflow_runs WHERE id IN ({ids}) AND finished_at < CAST(:cutoff AS bigint) RETURNING id
"""

#: Served by the partial index on states, whatever number of runs has completed.
UNFINISHED = """
SELECT workflow, version, count(*) FROM workflow_runs
WHERE status <> 'completed' AND status IN ('pending', 'running', 'sleeping', 'waiting')
GROUP BY workflow, version
"""

#: Nobody will execute these to their end: the owner is gone, and perhaps the code too. `{skip_locked}` leaves out a row
#: that somebody locks, so that it holds up no other.
END_CANCELLED = """
UPDATE workflow_runs SET status = 'cancelled', epoch = epoch + 1, worker = NULL, due_at = NULL, live_key = NULL,
    finished_at = {now}, updated_at = {now}
WHERE id IN (
    SELECT id FROM workflow_runs
    WHERE due_at <= {now} AND cancel_requested_at IS NOT NULL AND undoing IS NULL AND NOT {pushed} {skip_locked}
)
RETURNING id, workflow
""".replace("{pushed}", _PUSHED)

#: To the quarter of an hour it is now, or to the one that `:at` says.
COUNT_ENDED = """
INSERT INTO workflow_stats (at, workflow, outcome, count, busy_ms)
SELECT coalesce(CAST(:at AS bigint), clock.ms / 900000 * 900000), v.column1, v.column2, CAST(v.column3 AS bigint),
    CAST(v.column4 AS bigint)
FROM (VALUES {rows}) AS v CROSS JOIN (SELECT {now} AS ms) AS clock
WHERE 1 = 1
ORDER BY v.column1, v.column2
ON CONFLICT (at, workflow, outcome) DO UPDATE SET count = workflow_stats.count + excluded.count,
    busy_ms = workflow_stats.busy_ms + excluded.busy_ms
"""

_ENDED_ROW = "(CAST(:workflow{i} AS text), CAST(:outcome{i} AS text), :number{i}, :busy_ms{i})"

OLDEST_STATS = """
SELECT min(at) FROM workflow_stats WHERE at > 0 AND at < CAST(:before AS bigint)
"""

DELETE_STATS = """
DELETE FROM workflow_stats WHERE at >= CAST(:first AS bigint) AND at < CAST(:before AS bigint)
RETURNING workflow, outcome, count, busy_ms
"""

DROP_ALL_WAITS = """
DELETE FROM workflow_waits WHERE run_id = :run_id
"""


@cache
def run_rows(count: int) -> str:
    """The VALUES of `count` runs, their parameters numbered from 0."""
    return ", ".join(_RUN_ROW.replace("{i}", str(i)) for i in range(count))


@cache
def ended_rows(count: int) -> str:
    return ", ".join(_ENDED_ROW.replace("{i}", str(i)) for i in range(count))


@cache
def finished(statement: str) -> str:
    """Fill in how a run ended."""
    return statement.replace("{finished}", FINISHED)


@cache
def step_row(index: int, text: str) -> str:
    return STEP_ROW.replace("{i}", str(index)).replace("{text}", text)


def named(prefix: str, values: list[str]) -> tuple[str, dict[str, str]]:
    """`:a0, :a1, …` for an IN list, and its parameters."""
    names = [f"{prefix}{i}" for i in range(len(values))]
    return ", ".join(f":{name}" for name in names), dict(zip(names, values, strict=True))


@cache
def write_names(index: int) -> tuple[str, ...]:
    return tuple(f"{field}{index}" for field in StepWrite._fields)


def add_writes(params: dict[str, Any], writes: Sequence[StepWrite]) -> None:
    for index, write in enumerate(writes):
        params.update(zip(write_names(index), write, strict=True))


def add_change(params: dict[str, Any], change: Change) -> None:
    params["run_status"] = change.status
    params["run_output"] = change.output
    params["run_error"] = change.error
    params["run_cause"] = change.cause
    params["run_attempts"] = change.attempts
    params["run_losses"] = change.losses
    params["run_due_at"] = change.due_at
    params["run_due_in"] = change.due_in
    params["run_finished"] = int(change.finished)
    params["run_undoing"] = change.undoing
    params["run_cancels"] = int(change.status == "cancelled" or change.undoing is not None)
