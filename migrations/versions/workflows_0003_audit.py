"""Add causes of failures, the audit and statistics to Flask-Workflows.

Revision ID: workflows_0003
Revises: workflows_0002
Create Date: 2026-12-01 12:00:00
"""

import sqlalchemy as sa
from alembic import op

revision = "workflows_0003"
down_revision = "workflows_0002"
branch_labels = None
depends_on = None


def upgrade(engine_name=""):
    # With several databases (`flask db init --multidb`) this is called once for each; ours is the unnamed one.
    if engine_name:
        return

    with op.batch_alter_table("workflow_runs") as runs:
        runs.add_column(sa.Column("cause", sa.String(32)))
    op.create_index(
        "workflow_runs_cause",
        "workflow_runs",
        ["cause", "id"],
        postgresql_where=sa.text("cause IS NOT NULL"),
        sqlite_where=sa.text("cause IS NOT NULL"),
    )
    op.create_table(
        "workflow_audit",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("run_id", sa.String(36)),
        sa.Column("workspace", sa.String(255), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("before", sa.String(100)),
        sa.Column("after", sa.String(100)),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(100)),
        sa.Column("address", sa.String(100)),
        sa.Column("operation", sa.String(36)),
        sa.PrimaryKeyConstraint("id", name="workflow_audit_pkey"),
    )
    op.create_index(
        "workflow_audit_run",
        "workflow_audit",
        ["run_id", "id"],
        postgresql_where=sa.text("run_id IS NOT NULL"),
        sqlite_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "workflow_audit_operation",
        "workflow_audit",
        ["operation", "id"],
        postgresql_where=sa.text("operation IS NOT NULL"),
        sqlite_where=sa.text("operation IS NOT NULL"),
    )
    op.create_table(
        "workflow_stats",
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("workflow", sa.String(100), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("busy_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("at", "workflow", "outcome", name="workflow_stats_pkey"),
    )


def downgrade(engine_name=""):
    if engine_name:
        return

    for table in ("workflow_stats", "workflow_audit"):
        op.drop_table(table)
    op.drop_index("workflow_runs_cause", "workflow_runs")
    with op.batch_alter_table("workflow_runs") as runs:
        runs.drop_column("cause")
