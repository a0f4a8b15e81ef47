"""Add events, waits, published state and marks to Flask-Workflows.

Revision ID: workflows_0002
Revises: workflows_0001
Create Date: 2026-11-30 12:00:00
"""

import sqlalchemy as sa
from alembic import op

revision = "workflows_0002"
down_revision = "workflows_0001"
branch_labels = None
depends_on = None


def upgrade(engine_name=""):
    # With several databases (`flask db init --multidb`) this is called once for each; ours is the unnamed one.
    if engine_name:
        return

    with op.batch_alter_table("workflow_steps") as steps:
        steps.add_column(sa.Column("event_seq", sa.BigInteger()))
    op.create_index(
        "workflow_steps_event",
        "workflow_steps",
        ["run_id", "event_seq"],
        postgresql_where=sa.text("event_seq IS NOT NULL"),
        sqlite_where=sa.text("event_seq IS NOT NULL"),
    )
    op.create_index(
        "workflow_runs_workspace",
        "workflow_runs",
        ["workspace", "status", "id"],
        postgresql_where=sa.text("workspace != ''"),
        sqlite_where=sa.text("workspace != ''"),
    )
    op.create_table(
        "workflow_events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("workspace", sa.String(255), nullable=False),
        sa.Column("run_id", sa.String(36)),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("delivery_id", sa.String(255)),
        sa.Column("xact", sa.BigInteger()),
        sa.Column("emitted_at", sa.BigInteger(), nullable=False),
        sa.Column("matched_at", sa.BigInteger()),
        sa.Column("woke", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="workflow_events_pkey"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "workflow_events_new",
        "workflow_events",
        ["seq"],
        postgresql_where=sa.text("matched_at IS NULL"),
        sqlite_where=sa.text("matched_at IS NULL"),
    )
    op.create_index(
        "workflow_events_name",
        "workflow_events",
        ["name", "emitted_at", "seq"],
        postgresql_where=sa.text("run_id IS NULL"),
        sqlite_where=sa.text("run_id IS NULL"),
    )
    op.create_index(
        "workflow_events_xact",
        "workflow_events",
        ["name", "xact"],
        postgresql_where=sa.text("run_id IS NULL"),
        sqlite_where=sa.text("run_id IS NULL"),
    )
    op.create_index(
        "workflow_events_delivery",
        "workflow_events",
        ["name", "workspace", "delivery_id"],
        unique=True,
        postgresql_where=sa.text("delivery_id IS NOT NULL"),
        sqlite_where=sa.text("delivery_id IS NOT NULL"),
    )
    op.create_index(
        "workflow_events_run",
        "workflow_events",
        ["run_id", "name", "seq"],
        postgresql_where=sa.text("run_id IS NOT NULL"),
        sqlite_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_table(
        "workflow_waits",
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("workspace", sa.String(255), nullable=False),
        sa.Column("fields", sa.String(500), nullable=False),
        sa.Column("values_hash", sa.String(64), nullable=False),
        sa.Column("snapshot", sa.Text()),
        sa.Column("after_seq", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.BigInteger()),
        sa.Column("checked", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key", "number", name="workflow_waits_pkey"),
    )
    op.create_index("workflow_waits_match", "workflow_waits", ["name", "fields", "values_hash", "workspace", "run_id"])
    op.create_index(
        "workflow_waits_unchecked",
        "workflow_waits",
        ["run_id"],
        postgresql_where=sa.text("checked = 0"),
        sqlite_where=sa.text("checked = 0"),
    )
    op.create_table(
        "workflow_state",
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "key", name="workflow_state_pkey"),
    )
    op.create_table(
        "workflow_marks",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="workflow_marks_pkey"),
    )


def downgrade(engine_name=""):
    if engine_name:
        return

    for table in ("workflow_marks", "workflow_state", "workflow_waits", "workflow_events"):
        op.drop_table(table)
    op.drop_index("workflow_runs_workspace", "workflow_runs")
    op.drop_index("workflow_steps_event", "workflow_steps")
    with op.batch_alter_table("workflow_steps") as steps:
        steps.drop_column("event_seq")
