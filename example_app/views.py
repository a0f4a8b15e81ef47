"""The pages. Each form is a POST that commits once and is answered by a redirect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from flask import Blueprint
from flask import current_app
from flask import flash
from flask import Flask
from flask import redirect
from flask import render_template
from flask import request
from flask import url_for

from example_app import csrf
from example_app import mail
from example_app import shop
from example_app.extensions import db
from example_app.extensions import workflows
from example_app.models import Account
from example_app.models import Course
from example_app.models import Enrolment
from example_app.models import Learner
from flask_workflows import Run
from flask_workflows import RunNotFound

if TYPE_CHECKING:
    from werkzeug import Response

bp = Blueprint("shop", __name__)
bp.before_request(csrf.protect)

#: How many learners the home page shows.
NEWEST = 50

EMAIL = re.compile(r"[A-Za-z0-9._+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")


def init_app(app: Flask) -> None:
    app.register_blueprint(bp)


@bp.get("/")
def home() -> str:
    return _home(form={}, errors={})


@bp.post("/signup")
def sign_up() -> Response | tuple[str, int]:
    form = {key: value.strip() for key, value in request.form.items()}
    errors = _check(form)
    if not errors:
        try:
            learner = shop.sign_up(form["name"], form["email"], int(form["course"]), form["card"])
            db.session.commit()
        except (shop.EmailTaken, sa.exc.IntegrityError):
            db.session.rollback()
            errors["email"] = "Somebody has signed up with this address."
    if errors:
        return _home(form=form, errors=errors), 422
    flash(f"Welcome, {learner.name}. A mail is on its way.")
    return redirect(url_for("shop.learner", learner_id=learner.id), code=303)


@bp.get("/learners/<int:learner_id>")
def learner(learner_id: int) -> str:
    learner = db.get_or_404(Learner, learner_id)
    runs = {
        "Onboarding": _run(learner.onboarding_run_id),
        "Trial reminders": _run(learner.trial_run_id),
        "Renewal": _run(learner.account.renewal_run_id),
    }
    return render_template("shop/learner.html", learner=learner, runs=runs, cards=shop.CARDS)


def _run(run_id: str | None) -> Run | None:
    try:
        return workflows.get(run_id) if run_id else None
    except RunNotFound:
        # A month after its end a run is pruned.
        return None


@bp.post("/accounts/<int:account_id>/renew")
def renew(account_id: int) -> Response:
    account = db.get_or_404(Account, account_id)
    shop.renew(account)
    db.session.commit()
    flash("The renewal is under way.")
    return redirect(url_for("shop.learner", learner_id=account.learner_id), code=303)


@bp.post("/enrolments/<int:enrolment_id>/finish")
def finish(enrolment_id: int) -> Response:
    enrolment = db.get_or_404(Enrolment, enrolment_id)
    shop.finish(enrolment)
    db.session.commit()
    flash(f"Finished: {enrolment.course.title}.")
    return redirect(url_for("shop.learner", learner_id=enrolment.learner_id), code=303)


@bp.get("/mailbox")
def mailbox() -> str:
    """Show what the SMTP sink has received, newest first."""
    directory = current_app.config["EXAMPLE_MAILBOX"]
    mails = mail.read_mailbox(Path(directory)) if directory else []
    return render_template("shop/mailbox.html", directory=directory, mails=mails[::-1])


def _home(form: dict[str, str], errors: dict[str, str]) -> str:
    learners = sa.select(Learner).order_by(Learner.id.desc()).limit(NEWEST)
    return render_template(
        "shop/home.html",
        form=form,
        errors=errors,
        cards=shop.CARDS,
        courses=_courses(),
        learners=db.session.scalars(learners).all(),
    )


def _check(form: dict[str, str]) -> dict[str, str]:
    """Say what is wrong with each field of a sign-up."""
    errors = {}
    name = form.get("name", "")
    if not 1 <= len(name) <= 100 or not name.isprintable():
        errors["name"] = "Your name, in at most 100 characters."
    email = form.get("email", "")
    if len(email) > 254 or not EMAIL.fullmatch(email):
        errors["email"] = "An address such as ada@example.com."
    if form.get("course") not in {str(course.id) for course in _courses()}:
        errors["course"] = "Choose a course."
    if form.get("card") not in shop.CARDS:
        errors["card"] = "Choose a card."
    return errors


def _courses() -> list[Course]:
    return list(db.session.scalars(sa.select(Course).order_by(Course.id)))
