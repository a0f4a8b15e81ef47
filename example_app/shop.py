"""What visitors can do. Nothing here commits: the caller's transaction takes all of it, or none."""

from __future__ import annotations

from decimal import Decimal

import sqlalchemy as sa

from example_app.extensions import db
from example_app.extensions import workflows
from example_app.models import Account
from example_app.models import Course
from example_app.models import Enrolment
from example_app.models import Learner
from example_app.models import now
from example_app.pace import DAY
from example_app.workflows import CourseCompleted
from example_app.workflows import onboarding
from example_app.workflows import renewal
from example_app.workflows import trial_reminders

PRICE = Decimal("19.00")
TRIAL = 14 * DAY

#: Each card of the payment service in payments.py, and what it does.
CARDS = {
    "tok_4242": "4242: works",
    "tok_0503": "0503: two tries fail, the third works",
    "tok_2000": "2000: works, slowly",
    "tok_0002": "0002: declined",
    "tok_0500": "0500: fails every time",
}

COURSES = {"Sourdough from scratch": 12, "Small-boat sailing": 9, "Reading the night sky": 7}


class EmailTaken(Exception):
    """There is a learner with this address."""


def sign_up(name: str, email: str, course_id: int, card_token: str) -> Learner:
    """Make the learner, their account and their runs."""
    if db.session.scalar(sa.select(Learner).filter_by(email=email)) is not None:
        raise EmailTaken

    learner = Learner(
        name=name,
        email=email,
        trial_ends_at=now() + TRIAL,
        account=Account(card_token=card_token, price=PRICE),
        enrolments=[Enrolment(course_id=course_id)],
    )
    db.session.add(learner)
    # The runs need the id. They are written into the same transaction, so a rollback
    # leaves neither a learner without a welcome nor a welcome without a learner.
    db.session.flush()
    learner.onboarding_run_id = onboarding.start(learner_id=learner.id).id
    learner.trial_run_id = trial_reminders.start(learner_id=learner.id, ends_at=learner.trial_ends_at).id
    return learner


def renew(account: Account) -> None:
    """Start a renewal, or find the one under way: a double click is one charge."""
    key = f"renewal:{account.id}"
    account.renewal_run_id = renewal.using(key=key).start(account_id=account.id).id


def finish(enrolment: Enrolment) -> None:
    """Note that a course is finished, and tell whoever waits for it; both happen with the caller's commit."""
    if enrolment.completed_at is None:
        enrolment.completed_at = now()
        workflows.emit(CourseCompleted(enrolment.learner_id, enrolment.course_id))


def seed_courses() -> None:
    """Put the courses in, unless they are there."""
    known = set(db.session.scalars(sa.select(Course.title)))
    db.session.add_all(Course(title=title, lessons=lessons) for title, lessons in COURSES.items() if title not in known)
