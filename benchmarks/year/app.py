"""The app whose year it is. Its workflows are executed by the engine, and `written` writes more rows of the same kind."""

from __future__ import annotations

from datetime import timedelta

from flask import Flask
from flask_sqlalchemy import SQLAlchemy

from flask_workflows import WorkflowContext
from flask_workflows import Workflows

db = SQLAlchemy()
workflows = Workflows()
workflows.event("approved")

#: Of each 97 runs that somebody starts, so many are of each workflow; a batch starts one order more.
MIX = {"order": 84, "dunning": 3, "trial": 4, "approval": 3, "batch": 3}
STARTED = sum(MIX.values())

#: How long an approval waits, of which every other one is given, after a day.
PATIENCE = timedelta(days=3)
#: A trial sleeps from one to so many days.
LONGEST = 14


class CardDeclined(Exception):
    pass


@workflows.step
def reserve(number: int) -> int:
    return number


@workflows.step
def charge(number: int) -> int:
    return number


@workflows.step
def ship(number: int) -> int:
    return number


@workflows.step(raises=CardDeclined)
def collect(number: int) -> int:
    raise CardDeclined(f"the card for order {number} was declined")


@workflows.workflow
def order(number: int) -> int:
    return ship(charge(reserve(number)))


@workflows.workflow
def dunning(number: int) -> int:
    return collect(reserve(number))


@workflows.workflow
def trial(ctx: WorkflowContext, number: int) -> int:
    reserve(number)
    ctx.sleep(timedelta(days=1 + number % LONGEST))
    return ship(number)


@workflows.workflow
def approval(ctx: WorkflowContext, number: int) -> int:
    reserve(number)
    ctx.wait_for("approved", match={"number": number}, timeout=PATIENCE)
    return ship(number)


@workflows.workflow
def batch(ctx: WorkflowContext, number: int) -> int:
    ctx.set("note", "a batch of one order")
    return order.start(number).result()


def kind_of(number: int) -> str:
    """The workflow of the run with this number."""
    place = number % STARTED
    for name, share in MIX.items():
        if place < share:
            return name
        place -= share
    raise AssertionError(number)


def create_app(url: str) -> Flask:
    app = Flask(__name__)
    app.config.update(SQLALCHEMY_DATABASE_URI=url, WORKFLOWS_DASHBOARD=False, WORKFLOWS_API=False)
    db.init_app(app)
    workflows.init_app(app, db)
    with app.app_context():
        db.create_all()

    return app
