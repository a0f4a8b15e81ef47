"""Let runs have children, and wait for the end of others, in Flask-Workflows.

Revision ID: workflows_0004
Revises: workflows_0003
Create Date: 2026-12-02 12:00:00
"""

import sqlalchemy as sa
from alembic import op

revision = "workflows_0004"
down_revision = "workflows_0003"
branch_labels = None
depends_on = None


def upgrade(engine_name=""):
    # With several databases (`flask db init --multidb`) this is called once for each; ours is the unnamed one.
    if engine_name:
        return

    with op.batch_alter_table("workflow_runs") as runs:
        runs.add_column(sa.Column("parent_id", sa.String(36)))
        runs.add_column(sa.Column("forked_from", sa.String(36)))
        runs.add_column(sa.Column("undoing", sa.Text()))
        runs.add_column(sa.Column("watched", sa.SmallInteger(), nullable=False, server_default="0"))
    op.create_index(
        "workflow_runs_parent",
        "workflow_runs",
        ["parent_id", "id"],
        postgresql_where=sa.text("parent_id IS NOT NULL"),
        sqlite_where=sa.text("parent_id IS NOT NULL"),
    )
    op.create_index(
        "workflow_runs_forks",
        "workflow_runs",
        ["forked_from", "id"],
        postgresql_where=sa.text("forked_from IS NOT NULL"),
        sqlite_where=sa.text("forked_from IS NOT NULL"),
    )


def downgrade(engine_name=""):
    if engine_name:
        return

    op.drop_index("workflow_runs_forks", "workflow_runs")
    op.drop_index("workflow_runs_parent", "workflow_runs")
    with op.batch_alter_table("workflow_runs") as runs:
        runs.drop_column("watched")
        runs.drop_column("undoing")
        runs.drop_column("forked_from")
        runs.drop_column("parent_id")
