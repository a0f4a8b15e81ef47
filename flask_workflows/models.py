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

runs = sa.Table(
    "workflow_runs",
    metadata,
    sa.Column("id", Id, nullable=False),
    sa.Column("workflow", Name, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("queue", Label, nullable=False),
    sa.Column("workspace", Label, nullable=False),
    sa.Column("key", Label),
    #: `key` while the run is unfinished, else null: what the unique index guards.
    sa.Column("live_key", Label),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("input", sa.Text, nullable=False),
    sa.Column("output", sa.Text),
    sa.Column("error", sa.Text),
    #: The fencing token: claims and operator actions raise it, writes of an execution are conditional on it.
    sa.Column("epoch", sa.Integer, nullable=False),
    #: Who holds the lease; null when nobody does.
    sa.Column("worker", Id),
    #: When a worker should look at the run next: start, wake, retry, time-out, or the end of its lease.
    sa.Column("due_at", Millis),
    #: Attempts of the run used up since its last newly stored step.
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    #: Leases lost since the last newly stored step; such a run is claimed with care.
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("cancel_requested_at", Millis),
    sa.Column("created_at", Millis, nullable=False),
    sa.Column("started_at", Millis),
    sa.Column("updated_at", Millis, nullable=False),
    sa.Column("finished_at", Millis),
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

steps = sa.Table(
    "workflow_steps",
    metadata,
    sa.Column("run_id", Id, nullable=False),
    #: Name, `name#2` at the second use, with the branch's path before it.
    sa.Column("key", Label, nullable=False),
    #: The call's number in its branch, from 1.
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("input", sa.Text),
    sa.Column("output", sa.Text),
    sa.Column("error", sa.Text),
    sa.Column("attempts", sa.Integer, nullable=False),
    #: The attempts before the last, a JSON list of their starts, ends and errors.
    sa.Column("earlier", sa.Text),
    sa.Column("started_at", Millis),
    sa.Column("finished_at", Millis),
    sa.Column("due_at", Millis),
    sa.PrimaryKeyConstraint("run_id", "key", name="workflow_steps_pkey"),
)
_open = steps.c.status.in_(("running", "retrying", "sleeping", "waiting"))
sa.Index("workflow_steps_open", steps.c.run_id, postgresql_where=_open, sqlite_where=_open)

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
    sa.Column("seen_at", Millis, nullable=False),
    sa.Column("stopped_at", Millis),
    sa.PrimaryKeyConstraint("id", name="workflow_workers_pkey"),
)
