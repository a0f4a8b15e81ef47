"""The SQL of events and waits. `{now}` is as in `statements`; the other braces are the dialects' own words."""

from __future__ import annotations

INSERT_EVENT = """
INSERT INTO workflow_events (name, workspace, run_id, payload, delivery_id, xact, emitted_at, woke)
SELECT :name, :workspace, :run_id, :payload, :delivery_id, {xact}, {now}, 0
WHERE 1 = 1
ON CONFLICT (name, workspace, delivery_id) WHERE delivery_id IS NOT NULL DO NOTHING
RETURNING seq
"""

FIND_DELIVERY = """
SELECT seq FROM workflow_events
WHERE name = :name AND workspace = :workspace AND delivery_id = :delivery_id
"""

#: Nothing where the call has ended meanwhile, or waits already.
INSERT_WAIT = """
INSERT INTO workflow_waits (run_id, "key", number, name, workspace, fields, values_hash, snapshot, after_seq, since,
    checked)
SELECT s.run_id, s."key", CAST(:number AS integer), :name, :workspace, :fields, :values_hash, {snapshot}, {after_seq},
    CAST(:since AS bigint), 0
FROM workflow_steps s WHERE s.run_id = :run_id AND s."key" = :key AND s.status = 'waiting'
ON CONFLICT (run_id, "key", number) DO NOTHING
"""

#: A run that suspends again for a call which has ended since it looked at it.
WAITS_NO_MORE = """
UPDATE workflow_runs SET status = 'pending', due_at = {now}, updated_at = {now}
WHERE id = :run_id AND status = 'waiting' AND NOT EXISTS (SELECT 1 FROM workflow_waits WHERE run_id = :run_id)
"""

#: Whether something is left to match; read with every claim.
WORK = """
(EXISTS (SELECT 1 FROM workflow_events WHERE matched_at IS NULL)
    OR EXISTS (SELECT 1 FROM workflow_waits WHERE checked = 0))
"""

NEXT_EVENT = """
SELECT seq, name, workspace, run_id, payload, emitted_at, xact, delivery_id FROM workflow_events
WHERE matched_at IS NULL ORDER BY seq LIMIT 1 {skip_locked}
"""

#: The sets of fields that open waits of this name compare, found by jumping from one to the next in the index.
SHAPES = """
WITH RECURSIVE shapes (fields) AS (
    SELECT min(fields) FROM workflow_waits WHERE name = :name
    UNION ALL
    SELECT (SELECT min(w.fields) FROM workflow_waits w WHERE w.name = :name AND w.fields > shapes.fields)
    FROM shapes WHERE shapes.fields IS NOT NULL
)
SELECT fields FROM shapes WHERE fields IS NOT NULL
"""

#: How many waits are ended in one transaction.
PAGE = 200

#: The next waits that an event ends. What a run received is looked up for each of them, by a subquery that no planner
#: turns into a join with all that was ever received. `{of_workspace}` is empty for an event of no workspace, which all
#: may receive.
CANDIDATES = f"""
SELECT w.workspace, w.run_id, w."key", w.number FROM workflow_waits w
WHERE w.name = :name AND w.fields = :fields AND w.values_hash = :values_hash {{of_workspace}}
    AND (w.workspace, w.run_id, w."key", w.number) > (:after_workspace, :after_run, :after_key, :after_number)
    AND ({{after_wait}} OR w.since <= CAST(:emitted_at AS bigint))
    AND (SELECT 1 FROM workflow_steps s WHERE s.run_id = w.run_id
        AND s.event_seq = CAST(:seq AS bigint) AND s.event_seq IS NOT NULL LIMIT 1) IS NULL
ORDER BY w.workspace, w.run_id, w."key", w.number LIMIT {PAGE}
"""

OF_WORKSPACE = "AND w.workspace = :workspace"

#: The call in which a run waits for messages of a name.
RECEIVING = """
SELECT "key" FROM workflow_waits
WHERE name = :name AND fields = '@' AND values_hash = :run_id AND run_id = :run_id
ORDER BY "key" LIMIT 1
"""

#: Events are locked before runs: whoever ends a wait does it in this order.
LOCK_EVENT = """
SELECT seq FROM workflow_events WHERE seq = CAST(:seq AS bigint) {lock}
"""

LOCK_RUN = """
SELECT id FROM workflow_runs
WHERE id = :run_id AND finished_at IS NULL AND cancel_requested_at IS NULL {lock}
"""

END_WAIT = """
UPDATE workflow_steps SET status = 'completed', output = :output, event_seq = CAST(:seq AS bigint),
    finished_at = {now}
WHERE run_id = :run_id AND "key" = :key AND status = 'waiting'
"""

DROP_WAITS = """
DELETE FROM workflow_waits WHERE run_id = :run_id AND "key" = :key
"""

#: A run that is executed now finds the outcome when it comes to the call; its lease stays as it is.
MAKE_DUE = """
UPDATE workflow_runs SET status = 'pending', due_at = {now}, updated_at = {now}
WHERE id = :run_id AND worker IS NULL AND status = 'waiting'
"""

MATCHED = """
UPDATE workflow_events SET matched_at = CASE WHEN CAST(:done AS integer) = 1 THEN {now} END,
    woke = woke + CAST(:woke AS integer)
WHERE seq = CAST(:seq AS bigint)
"""

#: A message that is not matched yet is counted then; its row may be locked by who waits for this run.
COUNT_WOKE = """
UPDATE workflow_events SET woke = woke + 1
WHERE seq = CAST(:seq AS bigint) AND (run_id IS NULL OR matched_at IS NOT NULL)
"""

MESSAGE_MATCHED = """
UPDATE workflow_events SET matched_at = {now}, woke = (SELECT count(*) FROM workflow_steps s
    WHERE s.run_id = :run_id AND s.event_seq = CAST(:seq AS bigint) AND s.event_seq IS NOT NULL)
WHERE seq = CAST(:seq AS bigint)
"""

UNCHECKED = """
SELECT DISTINCT run_id FROM workflow_waits WHERE checked = 0 LIMIT 100
"""

WAITS_OF = """
SELECT "key", number, name, workspace, fields, values_hash, snapshot, after_seq, since, checked FROM workflow_waits
WHERE run_id = :run_id ORDER BY "key", number
"""

#: Only the very wait that was looked at: the run may have gone on meanwhile, and wait anew.
CHECKED = """
UPDATE workflow_waits SET checked = 1
WHERE run_id = :run_id AND "key" = :key AND number = CAST(:number AS integer)
    AND (snapshot IS NULL OR snapshot = CAST(:snapshot AS text))
"""

#: Events that count for a wait by the order of commits alone: of later transactions, and of those that were under way.
#: Each by its own index condition, since an OR of the two would be looked for among all events of the name.
_STORED = """
SELECT e.seq, e.payload, e.emitted_at FROM workflow_events e
WHERE e.name = :name AND e.run_id IS NULL AND (e.workspace = '' OR e.workspace = :workspace)
    AND {when} AND e.seq > CAST(:from_seq AS bigint)
ORDER BY e.seq LIMIT 500
"""
STORED_LATER = _STORED.replace("{when}", "{later}")
STORED_UNDER_WAY = _STORED.replace("{when}", "{under_way}")

#: Events that count for a wait with `since`.
STORED_SINCE = """
SELECT e.seq, e.payload, e.emitted_at FROM workflow_events e
WHERE e.name = :name AND e.run_id IS NULL AND (e.workspace = '' OR e.workspace = :workspace)
    AND (e.emitted_at > CAST(:from_at AS bigint)
        OR (e.emitted_at = CAST(:from_at AS bigint) AND e.seq > CAST(:from_seq AS bigint)))
ORDER BY e.emitted_at, e.seq LIMIT 500
"""

#: Events that count for a wait and were not looked at yet.
STORED_NEW = """
SELECT e.seq, e.payload, e.emitted_at FROM workflow_events e
WHERE e.matched_at IS NULL AND e.name = :name AND e.run_id IS NULL AND (e.workspace = '' OR e.workspace = :workspace)
    AND (({later}) OR ({under_way}) OR e.seq > CAST(:after_seq AS bigint) OR e.emitted_at >= CAST(:since AS bigint))
    AND e.seq > CAST(:from_seq AS bigint)
ORDER BY e.seq LIMIT 500
"""

#: How a run ended, if that was told.
END_OF_RUN = """
SELECT e.seq, e.payload, e.emitted_at FROM workflow_events e
WHERE e.name = '$finished' AND e.workspace = '' AND e.delivery_id = :ended
"""

NEXT_MESSAGE = """
SELECT e.seq, e.payload, e.emitted_at FROM workflow_events e
WHERE e.run_id = :run_id AND e.name = :name
    AND (SELECT 1 FROM workflow_steps s WHERE s.run_id = e.run_id AND s.event_seq = e.seq
        AND s.event_seq IS NOT NULL LIMIT 1) IS NULL
ORDER BY e.seq LIMIT 1
"""

RECEIVED = """
SELECT 1 FROM workflow_steps WHERE run_id = :run_id AND event_seq = CAST(:seq AS bigint) AND event_seq IS NOT NULL
"""

#: A time-out, unless an event came first.
EXPIRE_WAIT = """
UPDATE workflow_steps SET status = 'completed', output = 'null', finished_at = {now}
WHERE run_id = :run_id AND "key" = :key AND status = 'waiting'
"""

#: One row of a table that is never empty for long, found by its key: their plans may be kept.
BY_KEY = (LOCK_EVENT, LOCK_RUN, END_WAIT, MAKE_DUE, MATCHED, COUNT_WOKE, RECEIVED, EXPIRE_WAIT)

RUN_STATUS = """
SELECT finished_at FROM workflow_runs WHERE id = :run_id
"""

SAVE_STATE = """
INSERT INTO workflow_state (run_id, "key", value, updated_at)
SELECT id, :key, :value, {now} FROM workflow_runs WHERE id = :run_id AND epoch = :epoch AND worker IS NOT NULL {lock}
ON CONFLICT (run_id, "key") DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
RETURNING run_id
"""

READ_STATE = """
SELECT value FROM workflow_state WHERE run_id = :run_id AND "key" = :key
"""

#: True for one worker a day: the one that moves the mark.
MOVE_MARK = """
INSERT INTO workflow_marks (name, at) VALUES (:name, CAST(:at AS bigint))
ON CONFLICT (name) DO UPDATE SET at = excluded.at WHERE workflow_marks.at < excluded.at
RETURNING at
"""

#: The next events by number: the last of them, the oldest instant, how many.
PRUNE_EVENTS_PAGE = """
SELECT max(seq), min(emitted_at), count(*) FROM (
    SELECT seq, emitted_at FROM workflow_events WHERE seq > CAST(:after AS bigint)
    ORDER BY seq LIMIT CAST(:limit AS integer)
) AS page
"""

#: Messages go with their runs.
PRUNE_EVENTS = """
DELETE FROM workflow_events
WHERE seq > CAST(:after AS bigint) AND seq <= CAST(:last AS bigint)
    AND emitted_at < CAST(:cutoff AS bigint) AND matched_at IS NOT NULL AND run_id IS NULL
"""
