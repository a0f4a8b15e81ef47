"""The course shop, with real mails over SMTP and real charges over HTTP."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from datetime import UTC
from pathlib import Path

import pytest
import requests
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from flask_migrate import downgrade
from flask_migrate import upgrade
from werkzeug.serving import make_server

from example_app import create_app
from example_app import mail
from example_app import mail_sink
from example_app import payments
from example_app import shop
from example_app.billing import charge
from example_app.billing import PaymentUnavailable
from example_app.extensions import db
from example_app.extensions import workflows
from example_app.models import Charge
from example_app.models import Course
from example_app.models import Learner
from example_app.supervisor import free_port
from example_app.supervisor import listens
from example_app.supervisor import ROOT
from example_app.workflows import onboarding
from example_app.workflows import renewal
from example_app.workflows import trial_reminders
from flask_workflows import RunQuery
from flask_workflows import RunStatus
from flask_workflows.testing import advance_until_idle
from flask_workflows.testing import assert_replays
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock
from flask_workflows.testing import run_until_idle
from flask_workflows.testing import WorkflowsFake
from tests.apps import dispose_engines

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)


@dataclass
class Clock:
    """The time that runs live by, moved by hand."""

    instant: datetime

    def now(self) -> datetime:
        return self.instant


@pytest.fixture
def mailbox(tmp_path: Path) -> Path:
    return tmp_path / "mailbox"


@pytest.fixture
def smtp_port(mailbox: Path) -> Iterator[int]:
    port = free_port()
    controller = mail_sink.start(mailbox, port=port)

    yield port

    controller.stop()


@pytest.fixture
def payments_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    app = payments.create_app(
        {"EXAMPLE_PAYMENTS_DATABASE": tmp_path / "payments.sqlite3", "EXAMPLE_PAYMENTS_SLOW_SECONDS": 0}
    )
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    yield f"http://127.0.0.1:{server.server_port}"

    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def app(tmp_path: Path, mailbox: Path, smtp_port: int, payments_url: str) -> Iterator[Flask]:
    app = create_app(
        {
            "TESTING": True,
            "SQLALCHEMY_DATABASE_URI": f"sqlite:///{tmp_path / 'shop.sqlite3'}",
            "EXAMPLE_SMTP_PORT": smtp_port,
            "EXAMPLE_MAILBOX": str(mailbox),
            "EXAMPLE_PAYMENTS_URL": payments_url,
        }
    )
    with app.app_context():
        upgrade()
        shop.seed_courses()
        db.session.commit()

    yield app

    dispose_engines(app)


@pytest.fixture
def clock(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(datetime.now(UTC))
    monkeypatch.setattr(workflows, "clock", clock)
    return clock


@pytest.fixture
def kit_clock(app: Flask, monkeypatch: pytest.MonkeyPatch) -> FixedClock:
    clock = FixedClock(datetime.now(UTC))
    monkeypatch.setattr(workflows, "clock", clock)
    return clock


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def post(client: FlaskClient, action: str, page: str = "/", **fields: str) -> int:
    """Send a form with the token of the page it is on, and return the status."""
    token = re.search(r'name="csrf_token" value="([^"]+)"', client.get(page).text)
    assert token is not None

    return client.post(action, data={"csrf_token": token[1], **fields}).status_code


def sign_up(client: FlaskClient, name: str = "Ada", card: str = "tok_4242") -> int:
    email = f"{name.lower()}@example.com"

    return post(client, "/signup", name=name, email=email, course="1", card=card)


def run_what_is_due(app: Flask) -> None:
    with app.app_context():
        while workflows.tick():
            pass


def let_pass(app: Flask, clock: Clock, duration: timedelta) -> None:
    clock.instant += duration
    run_what_is_due(app)


def templates(mailbox: Path, name: str = "Ada") -> list[str]:
    received = mail.read_mailbox(mailbox)

    return [item.template for item in received if item.to == f"{name.lower()}@example.com"]


def account_status(app: Flask) -> str:
    with app.app_context():
        return db.session.scalars(sa.select(Learner)).one().account.status


def charges_of_service(payments_url: str) -> list[dict[str, str | int]]:
    charges: list[dict[str, str | int]] = requests.get(f"{payments_url}/charges", timeout=10).json()

    return charges


def count_runs(app: Flask) -> int:
    with app.app_context():
        return len(workflows.runs())


# Signing up


def test_sign_up_starts_onboarding_and_reminders(app: Flask, client: FlaskClient, clock: Clock, mailbox: Path) -> None:
    status = sign_up(client)
    run_what_is_due(app)

    assert status == 303
    assert templates(mailbox) == ["welcome"]
    assert "Sourdough" in mail.read_mailbox(mailbox)[0].body
    with app.app_context():
        learner = db.session.scalars(sa.select(Learner)).one()
        assert learner.onboarding_run_id is not None
        assert learner.trial_run_id is not None
        assert workflows.get(learner.onboarding_run_id).status == RunStatus.WAITING
        assert workflows.get(learner.trial_run_id).status == RunStatus.SLEEPING


def test_rolled_back_sign_up_leaves_nothing(app: Flask, clock: Clock, mailbox: Path) -> None:
    with app.app_context():
        course = db.session.scalars(sa.select(Course)).first()
        assert course is not None
        learner = shop.sign_up("Ada", "ada@example.com", course.id, "tok_4242")
        assert learner.onboarding_run_id is not None

        db.session.rollback()

        assert db.session.scalars(sa.select(Learner)).all() == []
    run_what_is_due(app)
    assert count_runs(app) == 0
    assert templates(mailbox) == []


def test_second_sign_up_with_an_address_starts_nothing(app: Flask, client: FlaskClient, clock: Clock) -> None:
    sign_up(client)

    status = sign_up(client)

    assert status == 422
    assert count_runs(app) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "A\x07da"},
        {"email": "ada"},
        {"email": "ada@example.com, bob@example.com"},
        {"course": "99"},
        {"card": "4242424242424242"},
    ],
    ids=["no-name", "control-character", "no-address", "two-addresses", "course", "card"],
)
def test_bad_sign_up_is_refused(app: Flask, client: FlaskClient, wrong: dict[str, str]) -> None:
    form = {"name": "Ada", "email": "ada@example.com", "course": "1", "card": "tok_4242"}

    status = post(client, "/signup", **{**form, **wrong})

    assert status == 422
    assert count_runs(app) == 0


def test_form_without_its_token_is_refused(app: Flask, client: FlaskClient) -> None:
    form = {"name": "Ada", "email": "ada@example.com", "course": "1", "card": "tok_4242"}

    answers = [
        client.post("/signup", data=form).status_code,
        client.post("/signup", data={**form, "csrf_token": "guessed"}).status_code,
    ]

    assert answers == [400, 400]
    assert count_runs(app) == 0


# The flows, by the test kit


def test_kit_sees_what_signing_up_starts(app: Flask, client: FlaskClient, clock: Clock, mailbox: Path) -> None:
    with WorkflowsFake(workflows) as fake:
        sign_up(client)

        fake.assert_started(onboarding, learner_id=1)
        fake.assert_started_times(trial_reminders, 1)
        fake.assert_not_started(renewal)
    assert templates(mailbox) == []


def test_kit_runs_every_flow_to_its_end(app: Flask, client: FlaskClient, kit_clock: FixedClock, mailbox: Path) -> None:
    sign_up(client)
    post(client, "/accounts/1/renew", page="/learners/1")
    with app.app_context():
        advance_until_idle(workflows)

        runs = workflows.runs()
        for run in runs:
            assert_replays(workflows, run.id)

    assert {run.workflow: str(run.status) for run in runs} == {
        "onboarding": "completed",
        "trial_reminders": "completed",
        "renewal": "completed",
    }
    assert Counter(templates(mailbox)) == Counter(["welcome", "receipt", "nudge", "trial-3-days", "trial-ended"])


def test_kit_finishes_an_onboarding_by_its_event(app: Flask, client: FlaskClient, kit_clock: FixedClock) -> None:
    sign_up(client)
    with app.app_context():
        run_until_idle(workflows)
    kit_clock.advance(DAY)

    post(client, "/enrolments/1/finish", page="/learners/1")
    with app.app_context():
        run_until_idle(workflows)

        [run] = workflows.runs(RunQuery(workflow="onboarding"))
        assert (run.status, workflows.get(run.id).output) == (RunStatus.COMPLETED, True)


def test_kit_charges_once_whatever_write_a_renewal_crashes_at(
    app: Flask, client: FlaskClient, kit_clock: FixedClock, payments_url: str
) -> None:
    sign_up(client)
    expected = 0
    for crash in every_crash(workflows):
        with app.app_context():
            with crash:
                run = renewal.spawn(account_id=1)
                run_until_idle(workflows)
            advance_until_idle(workflows)
        expected = len(charges_of_service(payments_url))

    with app.app_context():
        noted = db.session.scalars(sa.select(Charge.receipt_id)).all()
        done = workflows.runs(RunQuery(workflow="renewal", limit=1000))
    assert run.created
    assert len(set(noted)) == len(noted) == expected == len(done)
    assert {str(one.status) for one in done} == {"completed"}


# Onboarding and trial


def test_nudge_comes_after_a_week_without_a_finished_course(
    app: Flask, client: FlaskClient, clock: Clock, mailbox: Path
) -> None:
    sign_up(client)
    run_what_is_due(app)

    let_pass(app, clock, 7 * DAY - MINUTE)
    before = templates(mailbox)
    let_pass(app, clock, MINUTE)

    assert before == ["welcome"]
    assert templates(mailbox) == ["welcome", "nudge"]


def test_no_nudge_once_a_course_is_finished(app: Flask, client: FlaskClient, clock: Clock, mailbox: Path) -> None:
    sign_up(client)
    run_what_is_due(app)
    post(client, "/enrolments/1/finish", page="/learners/1")

    let_pass(app, clock, 8 * DAY)

    assert templates(mailbox) == ["welcome"]


def test_trial_reminders_come_three_days_before_the_end_and_at_the_end(
    app: Flask, client: FlaskClient, clock: Clock, mailbox: Path
) -> None:
    sign_up(client)
    post(client, "/enrolments/1/finish", page="/learners/1")
    run_what_is_due(app)

    seen = []
    for days in (10, 1, 2, 1, 30):
        let_pass(app, clock, days * DAY + MINUTE)
        seen.append(templates(mailbox)[1:])

    assert seen == [
        [],
        ["trial-3-days"],
        ["trial-3-days"],
        ["trial-3-days", "trial-ended"],
        ["trial-3-days", "trial-ended"],
    ]


def test_trial_that_is_nearly_over_gets_the_last_mail_only(
    app: Flask, client: FlaskClient, clock: Clock, mailbox: Path
) -> None:
    sign_up(client)
    post(client, "/enrolments/1/finish", page="/learners/1")
    clock.instant += 12 * DAY
    run_what_is_due(app)

    let_pass(app, clock, 3 * DAY)

    assert Counter(templates(mailbox)) == Counter(["welcome", "trial-ended"])


# Renewing


def renew(app: Flask, client: FlaskClient, card: str) -> None:
    sign_up(client, card=card)
    post(client, "/accounts/1/renew", page="/learners/1")
    run_what_is_due(app)


def test_renewal_is_charged_once_though_the_service_fails_twice(
    app: Flask, client: FlaskClient, clock: Clock, mailbox: Path, payments_url: str
) -> None:
    renew(app, client, "tok_0503")

    for _ in range(4):
        let_pass(app, clock, 3 * MINUTE)

    (charged,) = charges_of_service(payments_url)
    assert charged["requests"] == 3
    assert Counter(templates(mailbox)) == Counter(["welcome", "receipt"])
    with app.app_context():
        account = db.session.scalars(sa.select(Learner)).one().account
        assert [item.receipt_id for item in account.charges] == [charged["id"]]
        assert account.status == "active"
        assert workflows.get(str(account.renewal_run_id)).output == charged["id"]


def test_tries_at_a_charge_are_a_minute_or_more_apart(
    app: Flask, client: FlaskClient, clock: Clock, payments_url: str
) -> None:
    renew(app, client, "tok_0503")

    let_pass(app, clock, MINUTE - timedelta(seconds=5))

    assert charges_of_service(payments_url) == []


def test_declined_card_is_not_tried_again_and_gets_a_mail(
    app: Flask, client: FlaskClient, clock: Clock, mailbox: Path, payments_url: str
) -> None:
    renew(app, client, "tok_0002")

    assert "card-declined" in templates(mailbox)
    assert account_status(app) == "past due"
    assert charges_of_service(payments_url) == []


def test_card_that_keeps_failing_gets_a_mail_after_five_tries(
    app: Flask, client: FlaskClient, clock: Clock, mailbox: Path, payments_url: str
) -> None:
    renew(app, client, "tok_0500")

    for _ in range(3):
        let_pass(app, clock, 5 * MINUTE)
    before = templates(mailbox)
    let_pass(app, clock, 10 * MINUTE)

    assert "payment-failed" not in before
    assert templates(mailbox).count("payment-failed") == 1
    assert account_status(app) == "past due"
    assert charges_of_service(payments_url) == []


def test_double_click_on_renew_is_one_charge(app: Flask, client: FlaskClient, clock: Clock, payments_url: str) -> None:
    sign_up(client)
    post(client, "/accounts/1/renew", page="/learners/1")
    post(client, "/accounts/1/renew", page="/learners/1")

    run_what_is_due(app)

    assert len(charges_of_service(payments_url)) == 1


def test_no_answer_from_the_payment_service_is_worth_another_try(app: Flask) -> None:
    app.config["EXAMPLE_PAYMENTS_URL"] = f"http://127.0.0.1:{free_port()}"

    with app.app_context(), pytest.raises(PaymentUnavailable, match="No answer"):
        charge("tok_4242", shop.PRICE, idempotency_key="a")


# The payment service


def test_payment_service_charges_once_for_one_key(payments_url: str) -> None:
    def pay(card: str, **headers: str) -> tuple[int, str | None]:
        response = requests.post(
            f"{payments_url}/charges", json={"card": card, "amount": "19.00"}, headers=headers, timeout=10
        )

        return response.status_code, response.json().get("id")

    first = pay("tok_4242", **{"Idempotency-Key": "a"})
    again = pay("tok_4242", **{"Idempotency-Key": "a"})
    reused = pay("tok_1111", **{"Idempotency-Key": "a"})
    without = pay("tok_4242")

    assert first[0] == 201
    assert again == (200, first[1])
    assert reused[0] == 422
    assert without[0] == 400
    assert len(charges_of_service(payments_url)) == 1


# Pages, tables, commands


def test_pages_show_learners_mails_and_runs(app: Flask, client: FlaskClient, clock: Clock) -> None:
    renew(app, client, "tok_4242")

    home = client.get("/").text
    learner = client.get("/learners/1").text
    received = client.get("/mailbox").text

    assert "Welcome to the course shop" in home
    assert "rcpt_" in learner
    assert "completed" in learner
    assert "Hello Ada" in received
    assert client.get("/learners/2").status_code == 404


def test_runs_can_be_seen_from_this_machine_only(app: Flask, client: FlaskClient) -> None:
    here = client.get("/workflows/runs", environ_base={"REMOTE_ADDR": "127.0.0.1"})
    elsewhere = client.get("/workflows/runs", environ_base={"REMOTE_ADDR": "192.0.2.1"})

    assert here.status_code == 200
    assert elsewhere.status_code == 403


def test_learner_page_leads_to_the_runs(app: Flask, client: FlaskClient, clock: Clock) -> None:
    renew(app, client, "tok_4242")

    links = re.findall(r'href="(/workflows/run/[^"]+)"', client.get("/learners/1").text)

    assert len(links) == 3
    assert [client.get(link).status_code for link in links] == [200, 200, 200]


def test_learner_page_does_without_pruned_runs(app: Flask, client: FlaskClient, clock: Clock) -> None:
    renew(app, client, "tok_4242")
    clock.instant += 31 * DAY
    with app.app_context():
        workflows.prune()

    page = client.get("/learners/1")

    assert page.status_code == 200
    assert "Renewal" not in page.text
    assert "Onboarding" in page.text


def test_migrations_make_what_the_models_say(app: Flask) -> None:
    result = app.test_cli_runner().invoke(args=["db", "check"])

    assert result.exit_code == 0, result.output
    with app.app_context():
        downgrade(revision="base")
        assert sa.inspect(db.engine).get_table_names() == ["alembic_version"]


def test_busy_port_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        demo = subprocess.run(
            [sys.executable, "-m", "example_app", "--port", str(port)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert demo.returncode == 2
    assert f"Port {port} is taken" in demo.stdout


def test_demo_ends_with_all_its_processes_on_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "example_app", "--port", str(port), "--directory", str(tmp_path)]

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        seen = []
        for line in demo.stdout:
            seen.append(line)
            if "workflows list" in line:
                break
        demo.send_signal(signal.SIGINT)
        seen.append(demo.communicate(timeout=60)[0])

    output = "".join(seen)
    worker = re.search(r"kill -9 (\d+)", output)
    assert demo.returncode == 0, output
    assert worker is not None, output
    assert not listens(port)
    with pytest.raises(ProcessLookupError):
        os.kill(int(worker[1]), 0)


def test_everything_together_survives_a_killed_worker() -> None:
    check = subprocess.run(
        [sys.executable, "-m", "example_app", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert check.returncode == 0, check.stdout + check.stderr
    assert "was ended by SIGKILL" in check.stdout
