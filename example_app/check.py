"""Plays everything through once and looks at what came of it.

One worker is killed while a charge is on its way: the payment service has the money, and
nobody has the receipt.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import sqlalchemy as sa

from example_app import create_app
from example_app import mail
from example_app.extensions import db
from example_app.extensions import workflows
from example_app.models import Learner
from example_app.supervisor import Supervisor
from example_app.visitor import Visitor

SETTINGS = {
    "EXAMPLE_DAY_SECONDS": "0.5",
    "EXAMPLE_MINUTE_SECONDS": "0.1",
    "EXAMPLE_PAYMENTS_SLOW_SECONDS": "3",
    "FLASK_WORKFLOWS_POLL_INTERVAL_MS": "200",
}

SLOW_CARD = "tok_2000"

#: Seconds for all runs to finish: a killed worker's lease, and a slow machine.
TIMEOUT = 120.0


_FINISHED = {"completed", "failed", "cancelled"}


@dataclass(frozen=True)
class Case:
    name: str
    card: str
    charges: int
    #: What comes besides a welcome and the two reminders of the trial.
    mails: tuple[str, ...]


CASES = (
    Case("Ada", "tok_4242", charges=1, mails=("receipt",)),
    Case("Grace", "tok_0503", charges=1, mails=("receipt", "nudge")),
    Case("Edsger", "tok_0002", charges=0, mails=("card-declined", "nudge")),
    Case("Niklaus", "tok_0500", charges=0, mails=("payment-failed", "nudge")),
    Case("Barbara", SLOW_CARD, charges=1, mails=("receipt", "nudge")),
)


def run(supervisor: Supervisor, visitor: Visitor, settings: dict[str, str], say: Callable[[str], None]) -> int:
    """Return the exit code: 0 if all came out right."""
    app = create_app({"SQLALCHEMY_DATABASE_URI": settings["FLASK_SQLALCHEMY_DATABASE_URI"]})
    with app.app_context():
        _play(supervisor, visitor, settings["EXAMPLE_PAYMENTS_URL"], say)
        supervisor.wait_until(lambda: _all_runs_are(_FINISHED), "The end of all runs", timeout=TIMEOUT)
        charges = _charges(settings["EXAMPLE_PAYMENTS_URL"])
        problems = [
            *_wrong_runs(),
            *(problem for case in CASES for problem in _wrong(case, charges)),
            *_wrong_mailbox(Path(settings["EXAMPLE_MAILBOX"])),
        ]
        db.engine.dispose()

    for problem in problems:
        say(f"WRONG: {problem}")
    if not problems:
        say("All runs completed; each mail was sent and each card charged as often as it should be.")
    return 1 if problems else 0


def _play(supervisor: Supervisor, visitor: Visitor, payments: str, say: Callable[[str], None]) -> None:
    """Sign up, renew, and kill the worker while Barbara's card is being charged."""
    learner_ids = []
    for case in CASES:
        learner_id = visitor.sign_up(case.name, case.card)
        assert learner_id is not None, "the check starts with an empty database"
        if "nudge" not in case.mails:
            visitor.finish_course(learner_id)
        learner_ids.append(learner_id)
    # A run that the dead worker had claimed and not begun would come too late for a reminder.
    supervisor.wait_until(lambda: _all_runs_are({*_FINISHED, "sleeping"}), "The welcome mails", timeout=TIMEOUT)

    for learner_id in learner_ids:
        visitor.renew(learner_id)
    supervisor.wait_until(
        lambda: SLOW_CARD in {charge["card"] for charge in _charges(payments)}, "The slow charge", timeout=TIMEOUT
    )
    worker = supervisor.pid("worker")
    say(f"The payment service has charged Barbara and not answered: kill -9 {worker}")
    os.kill(worker, signal.SIGKILL)
    supervisor.wait_until(lambda: supervisor.pid("worker") != worker, "A new worker", timeout=30)


def _charges(url: str) -> list[dict[str, Any]]:
    with requests.Session() as session:
        session.trust_env = False
        response = session.get(f"{url}/charges", timeout=20)
        response.raise_for_status()
        return list(response.json())


def _learner(name: str) -> Learner:
    return db.session.scalars(sa.select(Learner).filter_by(name=name)).one()


def _statuses() -> dict[str, str]:
    """Give the status of each run under a name to read."""
    # A transaction that stays open would go on seeing what it saw at first.
    db.session.rollback()
    statuses = {}
    for learner in db.session.scalars(sa.select(Learner)):
        run_ids = {
            "onboarding": learner.onboarding_run_id,
            "trial reminders": learner.trial_run_id,
            "renewal": learner.account.renewal_run_id,
        }
        for name, run_id in run_ids.items():
            if run_id is not None:
                statuses[f"{learner.name}'s {name}"] = str(workflows.get(run_id).status)
    return statuses


def _all_runs_are(wanted: set[str]) -> bool:
    return set(_statuses().values()) <= wanted


def _wrong_runs() -> list[str]:
    return [f"{name} is {status}" for name, status in _statuses().items() if status != "completed"]


def _wrong(case: Case, charges: list[dict[str, Any]]) -> list[str]:
    learner = _learner(case.name)
    problems = []

    receipts = [charge["id"] for charge in charges if charge["card"] == case.card]
    noted = [charge.receipt_id for charge in learner.account.charges]
    if len(receipts) != case.charges or noted != receipts:
        problems.append(f"{case.name} was charged {receipts}, {noted} is noted, not {case.charges}")

    if case.card == SLOW_CARD and [charge["requests"] for charge in charges if charge["card"] == SLOW_CARD] != [2]:
        problems.append(f"{case.name}'s charge was not asked for by both workers: {charges}")

    expected = Counter([*case.mails, "welcome", "trial-3-days", "trial-ended"])
    sent = Counter(item.template for item in learner.mails)
    if sent != expected:
        problems.append(f"{case.name} was sent {dict(sent)}, not {dict(expected)}")
    return problems


def _wrong_mailbox(mailbox: Path) -> list[str]:
    """Compare what the SMTP server has with what the shop says it has sent."""
    # A worker killed between a mail and its record sends it again, under the same id.
    received = {item.message_id: (item.to, item.template) for item in mail.read_mailbox(mailbox)}
    sent = [
        (learner.email, item.template) for learner in db.session.scalars(sa.select(Learner)) for item in learner.mails
    ]
    if Counter(received.values()) != Counter(sent):
        return [f"the mailbox has {sorted(received.values())}, not {sorted(sent)}"]
    return []
