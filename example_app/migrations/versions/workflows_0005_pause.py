"""Let runs be paused, and have deadlines, in Flask-Workflows.

Revision ID: workflows_0005
Revises: workflows_0004
Create Date: 2026-12-03 12:00:00
"""

import sqlalchemy as sa
from alembic import op

revision = "workflows_0005"
down_revision = "workflows_0004"
branch_labels = None
depends_on = None


def upgrade(engine_name=""):
    # With several databases (`flask db init --multidb`) this is called once for each; ours is the unnamed one.
    if engine_name:
        return

    with op.batch_alter_table("workflow_runs") as runs:
        runs.add_column(sa.Column("paused_at", sa.BigInteger()))
        runs.add_column(sa.Column("paused_due_at", sa.BigInteger()))
        runs.add_column(sa.Column("deadline_at", sa.BigInteger()))
    op.create_index(
        "workflow_runs_paused",
        "workflow_runs",
        ["id"],
        postgresql_where=sa.text("paused_at IS NOT NULL"),
        sqlite_where=sa.text("paused_at IS NOT NULL"),
    )


def downgrade(engine_name=""):
    if engine_name:
        return

    op.drop_index("workflow_runs_paused", "workflow_runs")
    with op.batch_alter_table("workflow_runs") as runs:
        runs.drop_column("deadline_at")
        runs.drop_column("paused_due_at")
        runs.drop_column("paused_at")
