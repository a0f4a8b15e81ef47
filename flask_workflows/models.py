"""The tables.

Ids are UUIDv7 text, instants are Unix milliseconds, values are JSON text: the rows read the same on every
database. The tables stand in a metadata of their own; `init_app` mirrors them into the app's, so that
`create_all()` and autogenerate see them.

There is no foreign key from steps to runs: every write of a step already locks its run's row (the fence), and a
key would lock it once more. Deleting is done by `prune`, steps first.
"""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

Id = sa.String(36)
Name = sa.String(100)
Label = sa.String(255)
Millis = sa.BigInteger()

#: One row a run, from its start until it is pruned.
runs = sa.Table(
    "workflow_runs",
    metadata,
    #: UUIDv7: ids are in the order of creation.
    sa.Column("id", Id, nullable=False),
    sa.Column("workflow", Name, nullable=False),
    #: The version it was started on.
    sa.Column("version", sa.Integer, nullable=False),
    #: Which workers may claim it.
    sa.Column("queue", Label, nullable=False),
    #: Empty where it belongs to none.
    sa.Column("workspace", Label, nullable=False),
    #: What it was started with, so that there is one at a time.
    sa.Column("key", Label),
    #: `key` while the run is unfinished, else null: what the unique index guards.
    sa.Column("live_key", Label),
    #: `pending`, `running`, `sleeping`, `waiting`; `completed`, `failed`, `cancelled`.
    sa.Column("status", sa.String(16), nullable=False),
    #: The arguments by name, a JSON object.
    sa.Column("input", sa.Text, nullable=False),
    #: What it returned, as JSON.
    sa.Column("output", sa.Text),
    #: Why it failed: a JSON object with type, message, traceback, step and kind.
    sa.Column("error", sa.Text),
    #: The fencing token: claims and operator actions raise it, writes of an execution are conditional on it.
    sa.Column("epoch", sa.Integer, nullable=False),
    #: Who holds the lease; null when nobody does.
    sa.Column("worker", Id),
    #: When a worker should look at the run next: start, wake, retry, time-out, or the end of its lease.
    sa.Column("due_at", Millis),
    #: Attempts of the run used up since its last newly stored step.
    sa.Column("attempts", sa.Integer, nullable=False),
    #: After how many it fails.
    sa.Column("max_attempts", sa.Integer, nullable=False),
    #: Leases lost since the last newly stored step; such a run is claimed with care.
    sa.Column("losses", sa.Integer, nullable=False),
    #: When somebody asked for it to end; its owner stops it at the next call.
    sa.Column("cancel_requested_at", Millis),
    sa.Column("created_at", Millis, nullable=False),
    #: When it was executed first.
    sa.Column("started_at", Millis),
    sa.Column("updated_at", Millis, nullable=False),
    sa.Column("finished_at", Millis),
    #: What its failure has in common with others of the same cause; null unless it failed.
    sa.Column("cause", sa.String(32)),
    #: The run whose body started it.
    sa.Column("parent_id", Id),
    #: The run whose first calls it took over.
    sa.Column("forked_from", Id),
    #: How the run is to end, as JSON, once what it pushed with `on_failure` is undone; kept after that.
    sa.Column("undoing", sa.Text),
    #: 1 once another run waits for its end, which is then told by an event.
    sa.Column("watched", sa.SmallInteger, nullable=False, server_default="0"),
    #: Since when nothing new of it is executed; null unless it is paused.
    sa.Column("paused_at", Millis),
    #: The `due_at` it goes on with when it is resumed.
    sa.Column("paused_due_at", Millis),
    #: When it fails unless it has finished; null where it may take as long as it takes.
    sa.Column("deadline_at", Millis),
    sa.PrimaryKeyConstraint("id", name="workflow_runs_pkey"),
)

_unfinished = runs.c.due_at.is_not(None)
sa.Index(
    "workflow_runs_due",
    runs.c.due_at,
    runs.c.queue,
    runs.c.workflow,
    runs.c.version,
    postgresql_where=_unfinished,
    sqlite_where=_unfinished,
)
_keyed = runs.c.live_key.is_not(None)
sa.Index(
    "workflow_runs_live_key",
    runs.c.workflow,
    runs.c.workspace,
    runs.c.live_key,
    unique=True,
    postgresql_where=_keyed,
    sqlite_where=_keyed,
)
_remarkable = runs.c.status != "completed"
sa.Index("workflow_runs_status", runs.c.status, runs.c.id, postgresql_where=_remarkable, sqlite_where=_remarkable)
sa.Index("workflow_runs_workflow", runs.c.workflow, runs.c.status, runs.c.id)
_owned = runs.c.workspace != ""
sa.Index(
    "workflow_runs_workspace", runs.c.workspace, runs.c.status, runs.c.id, postgresql_where=_owned, sqlite_where=_owned
)
_child = runs.c.parent_id.is_not(None)
sa.Index("workflow_runs_parent", runs.c.parent_id, runs.c.id, postgresql_where=_child, sqlite_where=_child)
_fork = runs.c.forked_from.is_not(None)
sa.Index("workflow_runs_forks", runs.c.forked_from, runs.c.id, postgresql_where=_fork, sqlite_where=_fork)
_paused = runs.c.paused_at.is_not(None)
sa.Index("workflow_runs_paused", runs.c.id, postgresql_where=_paused, sqlite_where=_paused)
_failed = runs.c.cause.is_not(None)
sa.Index("workflow_runs_cause", runs.c.cause, runs.c.id, postgresql_where=_failed, sqlite_where=_failed)

#: One row a recorded call of a body: steps, sleeps, waits, starts and the like. This is what a replay reads.
steps = sa.Table(
    "workflow_steps",
    metadata,
    sa.Column("run_id", Id, nullable=False),
    #: Name, `name#2` at the second use, with the branch's path before it.
    sa.Column("key", Label, nullable=False),
    #: The call's number in its branch, from 1.
    sa.Column("position", sa.Integer, nullable=False),
    #: `step`, `sleep`, `wait`, `start` and the like.
    sa.Column("kind", sa.String(16), nullable=False),
    #: `running`, `retrying`, `sleeping`, `waiting`; `completed`, `failed`; `pushed` for what may have to be undone.
    sa.Column("status", sa.String(16), nullable=False),
    #: The arguments by name, or what a wait or sleep was called with.
    sa.Column("input", sa.Text),
    #: What a replay answers, as JSON.
    sa.Column("output", sa.Text),
    #: As that of a run.
    sa.Column("error", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False),
    #: The attempts before the last, a JSON list of their starts, ends and errors.
    sa.Column("earlier", sa.Text),
    sa.Column("started_at", Millis),
    sa.Column("finished_at", Millis),
    #: When the next attempt is due, a sleep ends or a wait times out.
    sa.Column("due_at", Millis),
    #: The event a wait ended with; a run receives an event once.
    sa.Column("event_seq", Millis),
    sa.PrimaryKeyConstraint("run_id", "key", name="workflow_steps_pkey"),
)
_received = steps.c.event_seq.is_not(None)
sa.Index("workflow_steps_event", steps.c.run_id, steps.c.event_seq, postgresql_where=_received, sqlite_where=_received)
_open = steps.c.status.in_(("running", "retrying", "sleeping", "waiting"))
sa.Index("workflow_steps_open", steps.c.run_id, postgresql_where=_open, sqlite_where=_open)

#: One row a worker process, renewed with its heartbeat; those that ended stay for a while.
workers = sa.Table(
    "workflow_workers",
    metadata,
    sa.Column("id", Id, nullable=False),
    sa.Column("name", Label, nullable=False),
    sa.Column("host", Label, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    #: JSON list of the queues it serves; null means all.
    sa.Column("queues", sa.Text),
    #: JSON list of `[workflow, lowest version, highest version]` it can run.
    sa.Column("workflows", sa.Text, nullable=False),
    sa.Column("concurrency", sa.Integer, nullable=False),
    sa.Column("started_at", Millis, nullable=False),
    #: The last heartbeat.
    sa.Column("seen_at", Millis, nullable=False),
    #: When it said goodbye; null for one that lives, or was lost.
    sa.Column("stopped_at", Millis),
    sa.PrimaryKeyConstraint("id", name="workflow_workers_pkey"),
)

#: Events and messages, matched or not, until they are pruned.
events = sa.Table(
    "workflow_events",
    metadata,
    #: Events of one transaction are in its order; numbers are never used again, also after pruning.
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), autoincrement=True, nullable=False),
    sa.Column("name", Label, nullable=False),
    #: Empty: the runs of every workspace may receive it.
    sa.Column("workspace", Label, nullable=False),
    #: The only run that may receive it, where it is a message.
    sa.Column("run_id", Id),
    sa.Column("payload", sa.Text, nullable=False),
    #: The sender's own id, which makes a repetition the same event.
    sa.Column("delivery_id", Label),
    #: PostgreSQL: the id of the transaction that emitted it.
    sa.Column("xact", sa.BigInteger),
    sa.Column("emitted_at", Millis, nullable=False),
    #: When a worker looked for the waits it ends; null while it is new.
    sa.Column("matched_at", Millis),
    #: How many waits it ended.
    sa.Column("woke", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("seq", name="workflow_events_pkey"),
    sqlite_autoincrement=True,
)
_new = events.c.matched_at.is_(None)
sa.Index("workflow_events_new", events.c.seq, postgresql_where=_new, sqlite_where=_new)
_public = events.c.run_id.is_(None)
sa.Index(
    "workflow_events_name",
    events.c.name,
    events.c.emitted_at,
    events.c.seq,
    postgresql_where=_public,
    sqlite_where=_public,
)
sa.Index("workflow_events_xact", events.c.name, events.c.xact, postgresql_where=_public, sqlite_where=_public)
_delivered = events.c.delivery_id.is_not(None)
sa.Index(
    "workflow_events_delivery",
    events.c.name,
    events.c.workspace,
    events.c.delivery_id,
    unique=True,
    postgresql_where=_delivered,
    sqlite_where=_delivered,
)
_message = events.c.run_id.is_not(None)
sa.Index(
    "workflow_events_run",
    events.c.run_id,
    events.c.name,
    events.c.seq,
    postgresql_where=_message,
    sqlite_where=_message,
)

#: What runs wait for now; rows go when the wait ends.
waits = sa.Table(
    "workflow_waits",
    metadata,
    sa.Column("run_id", Id, nullable=False),
    sa.Column("key", Label, nullable=False),
    #: Which of several events one call waits for, from 0.
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("name", Label, nullable=False),
    sa.Column("workspace", Label, nullable=False),
    #: JSON list of the payload's fields it compares, sorted; `@` where it waits for messages to its own run.
    sa.Column("fields", sa.String(500), nullable=False),
    #: Hash of the values they must have; the run's id for messages.
    sa.Column("values_hash", sa.String(64), nullable=False),
    #: PostgreSQL: the snapshot the wait was stored under; events visible in it came before.
    sa.Column("snapshot", sa.Text),
    #: The last event before it; on PostgreSQL others may have been under way.
    sa.Column("after_seq", sa.BigInteger, nullable=False),
    #: Events emitted from this instant on count too.
    sa.Column("since", Millis),
    #: Whether stored events were looked through, which is done once, after the wait was committed.
    sa.Column("checked", sa.Integer, nullable=False),
    sa.PrimaryKeyConstraint("run_id", "key", "number", name="workflow_waits_pkey"),
)
sa.Index("workflow_waits_match", waits.c.name, waits.c.fields, waits.c.values_hash, waits.c.workspace, waits.c.run_id)
_unchecked = waits.c.checked == 0
sa.Index("workflow_waits_unchecked", waits.c.run_id, postgresql_where=_unchecked, sqlite_where=_unchecked)

#: What runs publish while they go on.
state = sa.Table(
    "workflow_state",
    metadata,
    sa.Column("run_id", Id, nullable=False),
    sa.Column("key", Label, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("updated_at", Millis, nullable=False),
    sa.PrimaryKeyConstraint("run_id", "key", name="workflow_state_pkey"),
)

#: When things done once for all workers were last done.
marks = sa.Table(
    "workflow_marks",
    metadata,
    sa.Column("name", Name, nullable=False),
    sa.Column("at", Millis, nullable=False),
    sa.PrimaryKeyConstraint("name", name="workflow_marks_pkey"),
)

#: Who did what to which run; written in the transaction of the action, never changed.
audit = sa.Table(
    "workflow_audit",
    metadata,
    sa.Column("id", Id, nullable=False),
    sa.Column("at", Millis, nullable=False),
    #: Empty where nobody knows.
    sa.Column("actor", Label, nullable=False),
    sa.Column("action", sa.String(32), nullable=False),
    #: The run it was done to, where it was one.
    sa.Column("run_id", Id),
    #: Empty for what belongs to none.
    sa.Column("workspace", Label, nullable=False),
    #: The workflow, event, message or other thing, by name.
    sa.Column("target", Label, nullable=False),
    #: The run's status, or whatever the action changed, before and after it.
    sa.Column("before", sa.String(100)),
    sa.Column("after", sa.String(100)),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("request_id", sa.String(100)),
    sa.Column("address", sa.String(100)),
    #: The run that did it for the actor, one of many.
    sa.Column("operation", Id),
    sa.PrimaryKeyConstraint("id", name="workflow_audit_pkey"),
)
_of_run = audit.c.run_id.is_not(None)
sa.Index("workflow_audit_run", audit.c.run_id, audit.c.id, postgresql_where=_of_run, sqlite_where=_of_run)
_by_operation = audit.c.operation.is_not(None)
sa.Index(
    "workflow_audit_operation",
    audit.c.operation,
    audit.c.id,
    postgresql_where=_by_operation,
    sqlite_where=_by_operation,
)

#: How many runs ended in which way, by the quarter of an hour.
stats = sa.Table(
    "workflow_stats",
    metadata,
    #: When the quarter of an hour began; 0 for all that was pruned.
    sa.Column("at", Millis, nullable=False),
    sa.Column("workflow", Name, nullable=False),
    #: `completed`, `failed`, `cancelled`; `lost` for runs that were taken over from a lost worker.
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    #: How long the executions took that ended so, together.
    sa.Column("busy_ms", sa.BigInteger, nullable=False),
    sa.PrimaryKeyConstraint("at", "workflow", "outcome", name="workflow_stats_pkey"),
)
