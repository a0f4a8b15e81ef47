"""Create the shop's tables."""

import sqlalchemy as sa
from alembic import op

revision = "shop_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade():
    op.create_table(
        "courses",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(length=100), nullable=False),
        sa.Column("lessons", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_courses"),
        sa.UniqueConstraint("title", name="uq_courses_title"),
    )
    op.create_table(
        "learners",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("trial_ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("onboarding_run_id", sa.String(length=36), nullable=True),
        sa.Column("trial_run_id", sa.String(length=36), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_learners"),
        sa.UniqueConstraint("email", name="uq_learners_email"),
    )
    op.create_table(
        "accounts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("learner_id", sa.Integer(), nullable=False),
        sa.Column("card_token", sa.String(length=50), nullable=False),
        sa.Column("price", sa.Numeric(precision=10, scale=2), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("paid_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("renewal_run_id", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(["learner_id"], ["learners.id"], name="fk_accounts_learner_id_learners"),
        sa.PrimaryKeyConstraint("id", name="pk_accounts"),
        sa.UniqueConstraint("learner_id", name="uq_accounts_learner_id"),
    )
    op.create_table(
        "enrolments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("learner_id", sa.Integer(), nullable=False),
        sa.Column("course_id", sa.Integer(), nullable=False),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["course_id"], ["courses.id"], name="fk_enrolments_course_id_courses"),
        sa.ForeignKeyConstraint(["learner_id"], ["learners.id"], name="fk_enrolments_learner_id_learners"),
        sa.PrimaryKeyConstraint("id", name="pk_enrolments"),
        sa.UniqueConstraint("learner_id", "course_id", name="uq_enrolments_learner_id"),
    )
    op.create_index("ix_enrolments_course_id", "enrolments", ["course_id"])
    op.create_table(
        "charges",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("account_id", sa.Integer(), nullable=False),
        sa.Column("receipt_id", sa.String(length=50), nullable=False),
        sa.Column("amount", sa.Numeric(precision=10, scale=2), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="fk_charges_account_id_accounts"),
        sa.PrimaryKeyConstraint("id", name="pk_charges"),
        sa.UniqueConstraint("receipt_id", name="uq_charges_receipt_id"),
    )
    op.create_index("ix_charges_account_id", "charges", ["account_id"])
    op.create_table(
        "sent_mails",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("learner_id", sa.Integer(), nullable=False),
        sa.Column("template", sa.String(length=50), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["learner_id"], ["learners.id"], name="fk_sent_mails_learner_id_learners"),
        sa.PrimaryKeyConstraint("id", name="pk_sent_mails"),
    )
    op.create_index("ix_sent_mails_learner_id", "sent_mails", ["learner_id"])


def downgrade():
    op.drop_table("sent_mails")
    op.drop_table("charges")
    op.drop_table("enrolments")
    op.drop_table("accounts")
    op.drop_table("learners")
    op.drop_table("courses")
