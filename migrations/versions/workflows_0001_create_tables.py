"""Create the tables of Flask-Workflows.

Revision ID: workflows_0001
Revises:
Create Date: 2026-11-29 12:00:00
"""

import sqlalchemy as sa
from alembic import op

revision = "workflows_0001"
down_revision = None
branch_labels = ("workflows",)
depends_on = None


def upgrade(engine_name=""):
    # With several databases (`flask db init --multidb`) this is called once for each; ours is the unnamed one.
    if engine_name:
        return

    op.create_table(
        "workflow_runs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("workflow", sa.String(100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("queue", sa.String(255), nullable=False),
        sa.Column("workspace", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255)),
        sa.Column("live_key", sa.String(255)),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(36)),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="workflow_runs_pkey"),
    )
    op.create_index(
        "workflow_runs_due",
        "workflow_runs",
        ["due_at", "queue", "workflow", "version"],
        postgresql_where=sa.text("due_at IS NOT NULL"),
        sqlite_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_index(
        "workflow_runs_live_key",
        "workflow_runs",
        ["workflow", "workspace", "live_key"],
        unique=True,
        postgresql_where=sa.text("live_key IS NOT NULL"),
        sqlite_where=sa.text("live_key IS NOT NULL"),
    )
    op.create_index(
        "workflow_runs_status",
        "workflow_runs",
        ["status", "id"],
        postgresql_where=sa.text("status != 'completed'"),
        sqlite_where=sa.text("status != 'completed'"),
    )
    op.create_index("workflow_runs_workflow", "workflow_runs", ["workflow", "status", "id"])

    op.create_table(
        "workflow_steps",
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("input", sa.Text()),
        sa.Column("output", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("earlier", sa.Text()),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("finished_at", sa.BigInteger()),
        sa.Column("due_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("run_id", "key", name="workflow_steps_pkey"),
    )
    op.create_index(
        "workflow_steps_open",
        "workflow_steps",
        ["run_id"],
        postgresql_where=sa.text("status IN ('running', 'retrying', 'sleeping', 'waiting')"),
        sqlite_where=sa.text("status IN ('running', 'retrying', 'sleeping', 'waiting')"),
    )

    op.create_table(
        "workflow_workers",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", sa.Text()),
        sa.Column("workflows", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("stopped_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="workflow_workers_pkey"),
    )


def downgrade(engine_name=""):
    if engine_name:
        return

    op.drop_table("workflow_workers")
    op.drop_table("workflow_steps")
    op.drop_table("workflow_runs")
