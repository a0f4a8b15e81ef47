"""What the shop does over days: welcome a learner, remind them of their trial, renew.

A worker runs each function from the top whenever its run wakes. Steps that are done give
their stored result, sleeps hold no worker, and a restart loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from example_app import billing
from example_app import mail
from example_app.billing import CardDeclined
from example_app.billing import Receipt
from example_app.extensions import db
from example_app.extensions import workflows
from example_app.models import Account
from example_app.models import Charge
from example_app.models import Learner
from example_app.models import now
from example_app.models import SentMail
from example_app.pace import DAY
from example_app.pace import MINUTE
from flask_workflows import current_run
from flask_workflows import Retry
from flask_workflows import StepFailed
from flask_workflows import WorkflowContext


@workflows.event("course.completed")
@dataclass(frozen=True)
class CourseCompleted:
    """A learner finished a course."""

    learner_id: int
    course_id: int


@workflows.workflow
def onboarding(ctx: WorkflowContext, learner_id: int) -> bool:
    """Welcomes a new learner, then nudges them if they finish no course within a week."""
    send_mail(learner_id, "welcome")
    # One who finishes before the welcome is sent counts too: `since` takes events from the start on.
    finished = ctx.wait_for(CourseCompleted, match={"learner_id": learner_id}, timeout=7 * DAY, since=ctx.started_at)
    if finished is None:
        send_mail(learner_id, "nudge")
    return finished is not None


@workflows.workflow
def trial_reminders(ctx: WorkflowContext, learner_id: int, ends_at: datetime) -> None:
    """Reminds a learner three days before their trial ends, and on the day."""
    three_days_before = ends_at - 3 * DAY
    if ctx.now() < three_days_before:
        ctx.sleep_until(three_days_before)
        send_mail(learner_id, "trial-3-days")
    ctx.sleep_until(ends_at)
    send_mail(learner_id, "trial-ended")


@workflows.workflow
def renewal(ctx: WorkflowContext, account_id: int) -> str:
    """Charges a renewal, trying for a while; a card that keeps failing gets a mail instead."""
    learner_id = account_owner(account_id)
    try:
        receipt = charge(account_id)
    except CardDeclined as error:
        note_unpaid(account_id)
        send_mail(learner_id, "card-declined")
        return f"declined: {error}"
    except StepFailed as error:
        note_unpaid(account_id)
        send_mail(learner_id, "payment-failed")
        return f"not charged: {error.message}"
    record_receipt(account_id, receipt)
    send_mail(learner_id, "receipt")
    return receipt.id


@workflows.step
def send_mail(learner_id: int, template: str) -> None:
    learner = db.session.get_one(Learner, learner_id)
    # A worker that dies between here and the stored result sends again, as does any
    # mailer; the Message-ID stays the same, so that the second can be told from the first.
    key = current_run.idempotency_key.replace(":", ".")
    message = mail.compose(learner, template, message_id=f"<{key}@example.com>")
    mail.deliver(message)
    # Not committed here: it commits together with the step's result.
    db.session.add(SentMail(learner_id=learner_id, template=template, subject=message["Subject"]))


@workflows.step
def account_owner(account_id: int) -> int:
    return db.session.get_one(Account, account_id).learner_id


@workflows.step(retry=Retry(attempts=5, backoff=Retry.exponential(MINUTE, max=60 * MINUTE)), raises=(CardDeclined,))
def charge(account_id: int) -> Receipt:
    account = db.session.get_one(Account, account_id)
    # One key for all tries of this step: the service charges once, whatever is lost on the way.
    return billing.charge(account.card_token, account.price, idempotency_key=current_run.idempotency_key)


@workflows.step(transactional=True)
def record_receipt(account_id: int, receipt: Receipt) -> None:
    account = db.session.get_one(Account, account_id)
    account.status = "active"
    account.paid_until = max(account.paid_until or now(), now()) + 30 * DAY
    db.session.add(Charge(account_id=account_id, receipt_id=receipt.id, amount=receipt.amount))


@workflows.step(transactional=True)
def note_unpaid(account_id: int) -> None:
    db.session.get_one(Account, account_id).status = "past due"
