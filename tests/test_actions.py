"""What operators do to runs through the pages: each action asks, is done once, and says so."""

from __future__ import annotations

import re
from datetime import datetime
from html import unescape

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import Workflows
from flask_workflows.config import ACTIONS
from flask_workflows.dashboard.access import Permission
from tests import apps
from tests.pages import links
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of

HOUR_MS = 3_600_000


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int) -> bool:
        """Welcomes a new learner."""
        return True

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def form_of(page: TestResponse) -> tuple[str, dict[str, str]]:
    """Where the page's form is sent to, and what it holds."""
    tags = Tags(page.text.partition("<main")[2]).found
    (address,) = [attributes["action"] for tag, attributes in tags if tag == "form"]
    fields = {
        attributes["name"] or "": attributes.get("value") or ""
        for tag, attributes in tags
        if tag in ("input", "textarea") and "name" in attributes
    }
    assert address is not None
    return address, fields


def submit(client: FlaskClient, page: TestResponse, **typed: str) -> TestResponse:
    """Send the page's form as it stands, with what is typed into it."""
    address, fields = form_of(page)
    return client.post(address, data={**fields, **typed})


def link_named(page: TestResponse, label: str) -> str:
    """Where the link of that name leads."""
    found = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{re.escape(label)}</a>', page.text)
    assert found is not None
    return unescape(found[1])


def ask(client: FlaskClient, run_id: str, action: str) -> TestResponse:
    return client.get(f"/workflows/run/{run_id}/{action}")


def status_of(rows: Rows, workflows: Workflows, app: Flask, run_id: str) -> str:
    with app.app_context():
        return workflows.get(run_id).status


# Cancel ------------------------------------------------------------------------------------


def test_cancel_asks_then_cancels_then_says_so(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    rows.step(run_id, "load", 1)
    rows.step(run_id, "$sleep", 2, "sleeping", kind="sleep")

    page = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Cancel…"))
    text = text_of(page)
    assert page.status_code == 200
    assert "Cancel this run?" in text
    assert "It ends at once, and does not wake at 13:00:00." in text
    assert "Its 2 recorded calls stay. What the steps did is not undone." in text
    assert status_of(rows, workflows, app, run_id) == "sleeping"

    done = submit(client, page)
    assert (done.status_code, done.location) == (303, f"/workflows/run/{run_id}")
    assert status_of(rows, workflows, app, run_id) == "cancelled"
    assert "The run is cancelled." in text_of(client.get(f"/workflows/run/{run_id}"))
    assert "The run is cancelled." not in text_of(client.get(f"/workflows/run/{run_id}"))


def test_cancel_of_a_running_run_says_what_finishes_first(client: FlaskClient, rows: Rows) -> None:
    worker = rows.worker()
    run_id = rows.run("running", worker=worker, due_at=NOW_MS + 20_000)
    rows.step(run_id, "charge", 1, "running")

    page = ask(client, run_id, "cancel")
    assert "Step 1, charge, runs on web-1:4711 now. It finishes first; nothing after it starts." in text_of(page)

    submit(client, page)
    assert "Cancelling was asked for. The run stops at its next step." in text_of(
        client.get(f"/workflows/run/{run_id}")
    )
    again = ask(client, run_id, "cancel")
    assert again.status_code == 409
    assert "Cancelling was asked for 0 s ago; the run stops at its next step." in text_of(again)


def test_run_that_finished_meanwhile_is_left_alone(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("running", worker="w", due_at=NOW_MS + 20_000)
    page = ask(client, run_id, "cancel")
    rows.change(run_id, status="completed", finished_at=NOW_MS - 17_000, due_at=None, worker=None, epoch=2)

    refused = submit(client, page)

    assert refused.status_code == 409
    assert "This run went to completed at 11:59:43. Nothing was done." in text_of(refused)
    assert "The run is completed since 11:59:43." in text_of(refused)
    assert "<form" not in refused.text.partition("<main")[2]


def test_run_that_changed_meanwhile_is_asked_for_again(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    page = ask(client, run_id, "cancel")
    rows.change(run_id, epoch=3, updated_at=NOW_MS)

    refused = submit(client, page, reason="too late")

    assert refused.status_code == 409
    assert "This run changed since the page was loaded, and is sleeping again at 12:00:00." in text_of(refused)
    assert "too late" in text_of(refused)
    assert submit(client, refused).status_code == 303


def test_focus_is_on_keep_and_only_cancel_is_red(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("pending")

    tags = Tags(ask(client, run_id, "cancel").text).found

    focused = [attributes for _, attributes in tags if "autofocus" in attributes]
    assert [attributes["href"] for attributes in focused] == [f"/workflows/run/{run_id}"]
    assert [tag for tag, attributes in tags if "fw-danger" in (attributes.get("class") or "")] == ["button"]


def test_action_the_visitor_may_not_do_is_refused_and_not_offered(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.authorize(lambda action, run=None: action != "cancel")
    run_id = rows.run("pending")

    page = client.get(f"/workflows/run/{run_id}")
    assert not [link for link in links(page) if link.endswith("/cancel")]
    assert "You are not allowed to cancel this run." in text_of(page)
    assert ask(client, run_id, "cancel").status_code == 403
    assert client.post(f"/workflows/run/{run_id}/cancel", data={"epoch": "1"}).status_code == 403


def test_b110_action_on_a_run_outside_the_scope_finds_none(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.scope(lambda: "ours")
    run_id = rows.run("pending", workspace="theirs")

    for answer in (ask(client, run_id, "cancel"), ask(client, "unknown", "cancel")):
        assert answer.status_code == 404


def test_form_without_its_token_does_nothing(app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    run_id = rows.run("pending")

    assert client.post(f"/workflows/run/{run_id}/cancel", data={"epoch": "1"}).status_code == 400
    assert status_of(rows, workflows, app, run_id) == "pending"


@pytest.mark.parametrize("epoch", ["", "x", "-1", "1.0", "9" * 30, "\u0661"])
def test_form_without_its_epoch_does_nothing(client: FlaskClient, rows: Rows, epoch: str) -> None:
    run_id = rows.run("pending")

    refused = submit(client, ask(client, run_id, "cancel"), epoch=epoch, reason="why")

    assert refused.status_code == 422
    assert "The form came without what it was drawn from." in text_of(refused)


def test_way_back_keeps_the_filters(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("pending")
    page = client.get(f"/workflows/run/{run_id}?status=pending&workflow=onboarding")

    done = submit(client, client.get(link_named(page, "Cancel…")))

    assert done.location == f"/workflows/run/{run_id}?status=pending&workflow=onboarding"


# Reasons -----------------------------------------------------------------------------------


def test_reason_is_asked_for_where_the_app_wants_one(
    sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_REQUIRE_REASON=["cancel"])
    rows, client = rows_of(app), app.test_client()
    run_id = rows.run("pending")

    page = ask(client, run_id, "cancel")
    refused = submit(client, page, reason="  \n")

    assert refused.status_code == 422
    assert "Say why." in text_of(refused)
    (field,) = [attributes for tag, attributes in Tags(refused.text).found if tag == "textarea"]
    assert field["aria-invalid"] == "true"
    assert field["aria-describedby"] == "fw-wrong-reason fw-reason-hint"
    assert "autofocus" in field
    assert status_of(rows, workflows, app, run_id) == "pending"
    assert submit(client, refused, reason="asked by the customer").status_code == 303


@pytest.mark.parametrize("reason", ["x" * 1_001, "a\x00b"])
def test_reason_that_cannot_be_kept_comes_back_as_it_was_typed(client: FlaskClient, rows: Rows, reason: str) -> None:
    run_id = rows.run("pending")

    refused = submit(client, ask(client, run_id, "cancel"), reason=reason)

    assert refused.status_code == 422
    assert reason[-100:].replace("\x00", "") in text_of(refused).replace("\x00", "").replace("�", "")


def test_reasons_can_be_required_of_every_action_there_is() -> None:
    assert set(ACTIONS) == {permission.value for permission in Permission if not permission.looks}


# Addresses ---------------------------------------------------------------------------------

ODD = ["a/b", "a#b", "a?b", "a%2Fb", "a b", "😀", "a&b=c", "ü/%", "cancel", "run/x/cancel/y"]


@pytest.mark.parametrize("run_id", ODD)
def test_odd_ids_find_their_run(app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows, run_id: str) -> None:
    rows.run("pending", id=run_id)
    rows.run("pending", id="other")
    (link,) = [link for link in links(client.get("/workflows/runs")) if re.search(r"/run/(?!other)", link)]

    link = link_named(client.get(link), "Cancel…")
    page = client.get(link)
    assert run_id in text_of(page)
    assert submit(client, page).status_code == 303

    assert status_of(rows, workflows, app, run_id) == "cancelled"
    assert status_of(rows, workflows, app, "other") == "pending"


def test_run_whose_id_ends_like_an_action_is_not_confused(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    rows.run("pending", id="x/cancel", workflow="longer")

    page = client.get("/workflows/run/x/cancel")
    assert "longer" in text_of(page)
    assert "<form" not in page.text.partition("<main")[2]

    rows.run("pending", id="x")
    page = client.get("/workflows/run/x/cancel")
    assert form_of(page)[0] == "/workflows/run/x/cancel"
    assert "longer" not in text_of(page)
    submit(client, page)
    assert status_of(rows, workflows, app, "x") == "cancelled"
    assert status_of(rows, workflows, app, "x/cancel") == "pending"

    longer = client.get("/workflows/run/x/cancel/cancel")
    submit(client, longer)
    assert status_of(rows, workflows, app, "x/cancel") == "cancelled"
