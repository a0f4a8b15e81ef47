"""The shop's own tables. The workflow tables come from the extension."""

from __future__ import annotations

from datetime import datetime
from datetime import UTC
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column
from sqlalchemy.orm import relationship


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An aware datetime in UTC on SQLite too, which drops the zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        instant: datetime | None = value
        if instant is None:
            return None
        return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: UtcDateTime}  # noqa: RUF012


class Learner(Base):
    __tablename__ = "learners"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(100))
    email: Mapped[str] = mapped_column(sa.String(254), unique=True)
    trial_ends_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(default=now)
    onboarding_run_id: Mapped[str | None] = mapped_column(sa.String(36))
    trial_run_id: Mapped[str | None] = mapped_column(sa.String(36))

    account: Mapped[Account] = relationship(back_populates="learner")
    enrolments: Mapped[list[Enrolment]] = relationship(back_populates="learner", order_by="Enrolment.id")
    mails: Mapped[list[SentMail]] = relationship(back_populates="learner", order_by="SentMail.id")


class Course(Base):
    __tablename__ = "courses"

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column(sa.String(100), unique=True)
    lessons: Mapped[int]


class Enrolment(Base):
    __tablename__ = "enrolments"
    __table_args__ = (sa.UniqueConstraint("learner_id", "course_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    learner_id: Mapped[int] = mapped_column(sa.ForeignKey("learners.id"))
    course_id: Mapped[int] = mapped_column(sa.ForeignKey("courses.id"), index=True)
    completed_at: Mapped[datetime | None]

    learner: Mapped[Learner] = relationship(back_populates="enrolments")
    course: Mapped[Course] = relationship()


class Account(Base):
    """A learner's subscription."""

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    learner_id: Mapped[int] = mapped_column(sa.ForeignKey("learners.id"), unique=True)
    #: What the payment service gave for the card; the shop never sees its number.
    card_token: Mapped[str] = mapped_column(sa.String(50))
    price: Mapped[Decimal] = mapped_column(sa.Numeric(10, 2))
    #: trial, active or past due
    status: Mapped[str] = mapped_column(sa.String(20), default="trial")
    paid_until: Mapped[datetime | None]
    renewal_run_id: Mapped[str | None] = mapped_column(sa.String(36))

    learner: Mapped[Learner] = relationship(back_populates="account")
    charges: Mapped[list[Charge]] = relationship(back_populates="account", order_by="Charge.id")


class Charge(Base):
    """A receipt of the payment service, as the shop wrote it down."""

    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    account_id: Mapped[int] = mapped_column(sa.ForeignKey("accounts.id"), index=True)
    receipt_id: Mapped[str] = mapped_column(sa.String(50), unique=True)
    amount: Mapped[Decimal] = mapped_column(sa.Numeric(10, 2))
    created_at: Mapped[datetime] = mapped_column(default=now)

    account: Mapped[Account] = relationship(back_populates="charges")


class SentMail(Base):
    """A mail that the SMTP server has taken from us."""

    __tablename__ = "sent_mails"

    id: Mapped[int] = mapped_column(primary_key=True)
    learner_id: Mapped[int] = mapped_column(sa.ForeignKey("learners.id"), index=True)
    template: Mapped[str] = mapped_column(sa.String(50))
    subject: Mapped[str] = mapped_column(sa.String(200))
    created_at: Mapped[datetime] = mapped_column(default=now)

    learner: Mapped[Learner] = relationship(back_populates="mails")
