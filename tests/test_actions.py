"""What operators do to runs through the pages: each action asks, is done once, and says so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from datetime import UTC
from html import unescape
from html.parser import HTMLParser
from threading import local
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.config import ACTIONS
from flask_workflows.dashboard.access import Permission
from flask_workflows.store import reading as read
from tests import apps
from tests.pages import links
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import step_row
from tests.running import at_once

HOUR_MS = 3_600_000
EVIL = "<img src=x onerror=alert(1)>"


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


class _Fields(HTMLParser):
    """What a form holds as it stands, and where it is sent to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.fields: dict[str, str] = {}
        self._within: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name")
        if tag == "form" and given.get("method") == "post":
            self.addresses.append(given["action"] or "")
        elif tag in ("input", "textarea") and name:
            self.fields[name] = given.get("value") or ""
            self._within = name if tag == "textarea" else None

    def handle_data(self, data: str) -> None:
        if self._within is not None:
            self.fields[self._within] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._within is not None:
            # A browser leaves the first newline out.
            self.fields[self._within] = self.fields[self._within].removeprefix("\n")
            self._within = None


def form_of(page: TestResponse) -> tuple[str, dict[str, str]]:
    """Where the page's form is sent to, and what it holds."""
    form = _Fields(page.text.partition("<main")[2])
    (address,) = form.addresses
    return address, form.fields


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


# Retry -------------------------------------------------------------------------------------


def test_retry_says_which_steps_run_again_and_which_are_kept(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    rows.worker()
    run_id = rows.run("failed", key="k-1", error=error_json(step="render_pdf"))
    rows.step(run_id, "load", 1)
    rows.step(run_id, "try_card", 2, "failed", error=error_json())
    rows.step(run_id, "reserve", 3)
    rows.step(run_id, "render_pdf", 4, "failed", error=error_json())

    page = ask(client, run_id, "retry")
    text = text_of(page)
    assert "Runs again, with fresh attempts: 4 render_pdf; then what follows in the code." in text
    assert "Kept, and not run again: 1 load, 3 reserve." in text
    assert "Stays failed, as the workflow dealt with it: 2 try_card." in text
    assert "It goes on as version 1. 1 live worker can take it." in text
    assert "It takes its key k-1 again." in text

    submit(client, page)
    assert status_of(rows, workflows, app, run_id) == "pending"
    assert "The run is retried. It is pending." in text_of(client.get(f"/workflows/run/{run_id}"))
    with app.app_context():
        assert [step.key for step in workflows.details(run_id).steps] == ["load", "try_card", "reserve"]


def test_retry_of_a_cancelled_run_says_where_it_goes_on(client: FlaskClient, rows: Rows) -> None:
    waiting = rows.run("cancelled")
    rows.step(waiting, "load", 1)
    rows.step(waiting, "$wait:paid", 2, "waiting", kind="wait")
    fresh = rows.run("cancelled", started_at=None)

    assert "Goes on with: 2 wait paid; then what follows" in text_of(ask(client, waiting, "retry"))
    assert "No live worker can take it now: it waits." in text_of(ask(client, waiting, "retry"))
    assert "Nothing is recorded: it begins at its beginning." in text_of(ask(client, fresh, "retry"))


def test_retry_of_a_long_run_names_some_steps(client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = rows.run("failed", error=error_json())
    rows.insert(models.steps, [step_row(run_id, f"s#{n}", n) for n in range(1, 301)])
    text = text_of(ask(client, run_id, "retry"))
    assert "Kept, and not run again: 1 s#1, 2 s#2" in text
    assert "10 s#10 and 290 more." in text

    monkeypatch.setattr("flask_workflows.dashboard.pages.repeating.MOST_CALLS", 299)
    text = text_of(ask(client, run_id, "retry"))
    assert "What failed last runs again, with fresh attempts. Every other recorded call is kept." in text


def test_retry_onto_a_key_in_use_says_so(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("failed", key="k", error=error_json())
    page = ask(client, run_id, "retry")
    rows.run("pending", key="k")

    refused = submit(client, page, reason="again")

    assert refused.status_code == 409
    assert "a newer unfinished run of 'onboarding' has its key 'k'" in text_of(refused)
    assert "Nothing was done." in text_of(refused)
    assert "again" in form_of(refused)[1]["reason"]


def test_retry_of_a_run_that_goes_on_is_not_offered(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)

    answer = ask(client, run_id, "retry")

    assert answer.status_code == 409
    assert "Only a failed or cancelled run can be retried; this one is sleeping." in text_of(answer)
    assert "Only a failed or cancelled run can be retried" in text_of(client.get(f"/workflows/run/{run_id}"))


# Wake, and move the timer --------------------------------------------------------------------


def test_wake_says_what_was_planned_and_what_follows(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    rows.step(run_id, "$sleep", 1, "sleeping", kind="sleep", due_at=NOW_MS + HOUR_MS)

    page = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Wake now…"))
    assert "Planned for 13:00:00, in 1 h. The sleep ends at once" in text_of(page)

    submit(client, page)
    text = text_of(client.get(f"/workflows/run/{run_id}"))
    assert "The run wakes now." in text
    assert "It wakes now: a worker takes it at its next look." in text
    assert ask(client, run_id, "wake").status_code == 409


def test_next_try_is_made_now(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + 40_000)
    rows.step(run_id, "fetch", 2, "retrying", attempts=2, error=error_json("E", "m"), due_at=NOW_MS + 40_000)

    page = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Try again now…"))

    assert "Planned for 12:00:40, in 40 s. Step 1, fetch, is tried again at once." in text_of(page)
    assert submit(client, page).status_code == 303
    assert "The next try is made now." in text_of(client.get(f"/workflows/run/{run_id}"))


def test_timer_is_moved_in_the_viewers_zone(app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    rows.step(run_id, "$sleep", 1, "sleeping", kind="sleep", due_at=NOW_MS + HOUR_MS)
    client.set_cookie("workflows_view", "zone=Europe%2FParis", path="/workflows/")

    page = ask(client, run_id, "move")
    assert form_of(page)[1]["at"] == "2026-11-30T14:00:00"
    assert "New time, in Europe/Paris" in text_of(page)

    # The form is in the zone it was drawn in, whatever the browser says by now.
    client.set_cookie("workflows_view", "zone=UTC", path="/workflows/")
    assert submit(client, page, at="2026-12-04T09:00").status_code == 303
    with app.app_context():
        run = workflows.get(run_id)
        assert run.due_at == datetime(2026, 12, 4, 8, 0, tzinfo=UTC)
        assert workflows.details(run_id).steps[0].due_at == run.due_at
    assert "The timer is moved to Fri 4 Dec 09:00 (Europe/Paris)." in text_of(client.get(f"/workflows/run/{run_id}"))


@pytest.mark.parametrize(
    ("at", "zone", "words"),
    [
        ("", "UTC", "Write a date and a time, as in 2026-12-04T09:00."),
        ("tomorrow", "UTC", "Write a date and a time"),
        ("2026-12-04T09:00Z", "UTC", "Leave the zone out"),
        ("2026-11-30T11:59", "UTC", "That is past."),
        ("2026-11-30T12:30", "Europe/Paris", "That is past."),
        ("2027-03-28T02:30", "Europe/Paris", "There is no such time in this zone"),
        ("9999-12-31T23:59", "UTC", "That is further than a timer goes."),
        ("9999-12-31T23:59", "America/New_York", "That is further than a timer goes."),
        ("2026-12-04T09:00", "Mars/Phobos", "There is no time zone 'Mars/Phobos'."),
        ("2026-12-04T09:00", "../../etc/passwd", "There is no time zone"),
        (EVIL, EVIL, "There is no time zone"),
    ],
)
def test_time_that_cannot_be_is_said_at_the_field(
    client: FlaskClient, rows: Rows, at: str, zone: str, words: str
) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)

    refused = submit(client, ask(client, run_id, "move"), at=at, zone=zone, reason="because")

    assert refused.status_code == 422
    assert words in text_of(refused)
    assert form_of(refused)[1]["at"] == at
    assert form_of(refused)[1]["reason"] == "because"
    assert EVIL not in refused.text


# Release -----------------------------------------------------------------------------------


def lost(rows: Rows, **values: Any) -> str:
    worker = rows.worker("web-2", host="web-2", pid=4411, seen_ago=94)
    run_id = rows.run("running", worker=worker, **{"due_at": NOW_MS + 600_000, **values})
    rows.step(run_id, "post_entries", 4, "running")
    return run_id


def test_release_says_what_may_run_twice(client: FlaskClient, rows: Rows) -> None:
    run_id = lost(rows)

    run = client.get(f"/workflows/run/{run_id}")
    assert "Its worker, web-2 (web-2:4411), was last seen 1 min ago." in text_of(run)
    page = client.get(link_named(run, "Release lease…"))
    text = text_of(page)
    assert "If web-2 (web-2:4411) still lives, step 1, post_entries may run twice." in text
    assert "Without this, any worker takes the run over in 10 min." in text
    assert "Step 1, post_entries, starts again on the next free worker, attempt 2 of 3." in text

    assert submit(client, page, reason="the machine is gone").status_code == 303
    text = text_of(client.get(f"/workflows/run/{run_id}"))
    assert "The lease is released. The next free worker takes the run over." in text
    assert "the lease ran out 0 s ago." in text


def test_release_of_a_run_with_its_last_attempt_says_that_it_fails(client: FlaskClient, rows: Rows) -> None:
    text = text_of(ask(client, lost(rows, attempts=2), "release"))

    assert "The next worker fails the run: its attempts are used up." in text


def test_lease_of_a_live_worker_is_not_released(client: FlaskClient, rows: Rows) -> None:
    live = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    idle = rows.run("pending")

    answer = ask(client, live, "release")
    assert answer.status_code == 409
    assert "Its worker, web-1:4711, was seen 1 s ago; it is lost after 30 s of silence." in text_of(answer)
    assert "No worker holds it: it is pending." in text_of(ask(client, idle, "release"))


# Send --------------------------------------------------------------------------------------


def messages(rows: Rows) -> list[tuple[str, str]]:
    with rows.engine.connect() as connection:
        found = connection.execute(sa.select(models.events.c.name, models.events.c.payload))
        return [(name, payload) for name, payload in found]


def test_message_is_sent_once(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("waiting", due_at=None)
    rows.step(
        run_id, "$receive:approve", 1, "waiting", kind="receive", input='{"message": "approve", "timeout_ms": null}'
    )

    page = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Send message…"))
    assert "It waits for a message named approve: one of that name wakes it." in text_of(page)
    assert form_of(page)[1]["name"] == "approve"

    first = submit(client, page, payload='{"by": "ana"}')
    # A double click, or a reload.
    second = submit(client, page, payload='{"by": "ana"}')
    assert first.status_code == second.status_code == 303
    assert messages(rows) == [("approve", '{"by":"ana"}')]
    assert "The message approve was sent before, and only then." in text_of(client.get(f"/workflows/run/{run_id}"))

    submit(client, ask(client, run_id, "send"), payload='{"by": "ana"}')
    assert len(messages(rows)) == 2


@pytest.mark.parametrize(
    ("name", "payload", "field", "words"),
    [
        ("", "null", "name", "write 1 to 255"),
        ("a\nb", "null", "name", "control characters"),
        ("x" * 256, "null", "name", "write 1 to 255"),
        ("ok", "", "payload", "Write JSON"),
        ("ok", "{'a': 1}", "payload", "Write JSON"),
        ("ok", "NaN", "payload", "NaN"),
        ("ok", '"\\ud800"', "payload", "surrogate"),
        ("ok", '"\\u0000"', "payload", "NUL"),
        ("ok", "[" * 5_000, "payload", "Write JSON"),
        ("ok", '"' + "x" * 2_000 + '"', "payload", "1,024"),
    ],
)
def test_message_that_cannot_be_is_said_at_its_field(
    sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows, name: str, payload: str, field: str, words: str
) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_MAX_PAYLOAD_BYTES=1_024)
    rows, client = rows_of(app), app.test_client()
    run_id = rows.run("waiting", due_at=None)

    refused = submit(client, ask(client, run_id, "send"), name=name, payload=payload)

    assert refused.status_code == 422
    found = re.search(rf'id="fw-wrong-{field}"[^>]*>(.*?)</p>', refused.text, re.DOTALL)
    assert found is not None
    assert words.lower() in unescape(found[1]).lower()
    assert form_of(refused)[1]["payload"] == payload
    assert messages(rows) == []


def test_message_to_a_run_that_finished_meanwhile_is_not_sent(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("waiting", due_at=None)
    page = ask(client, run_id, "send")
    rows.change(run_id, status="completed", finished_at=NOW_MS)

    refused = submit(client, page, name="a")

    assert refused.status_code == 409
    assert "This run went to completed at 12:00:00. Nothing was done." in text_of(refused)
    assert messages(rows) == []


def test_message_may_be_as_large_as_payloads_are(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("waiting", due_at=None)
    page = ask(client, run_id, "send")

    payload = json.dumps("\u20ac" * 300_000, ensure_ascii=False)
    assert submit(client, page, name="large", payload=payload).status_code == 303
    assert len(messages(rows)) == 1

    refused = submit(client, page, name="larger", payload=payload * 10)
    assert refused.status_code == 413
    assert "What was sent is larger than this app takes in a form." in text_of(refused)
    assert len(messages(rows)) == 1


# Audit, and two at once --------------------------------------------------------------------


def audit(app: Flask) -> list[tuple[str, str, str | None, str | None, str]]:
    """Who, what, before, after, why; the oldest first."""
    with apps.runtime_of(app).engine.connect() as connection:
        entries = read.list_audit(connection).entries
    return [(entry.actor, entry.action, entry.before, entry.after, entry.reason) for entry in reversed(entries)]


def test_every_action_tells_the_audit_who_and_why(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.actor(lambda: "ana")
    asleep = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    failed = rows.run("failed", error=error_json())
    gone = lost(rows)

    for run_id, action, more in (
        (asleep, "move", {"at": "2026-12-04T09:00"}),
        (asleep, "wake", {}),
        (asleep, "send", {"name": "hello"}),
        (asleep, "cancel", {}),
        (failed, "retry", {}),
        (gone, "release", {}),
    ):
        assert submit(client, ask(client, run_id, action), reason=f"why {action}", **more).status_code == 303

    assert audit(app) == [
        ("ana", "move", "2026-11-30T13:00:00.000+00:00", "2026-12-04T09:00:00.000+00:00", "why move"),
        ("ana", "wake", "sleeping", "sleeping", "why wake"),
        ("ana", "send", None, None, "why send"),
        ("ana", "cancel", "sleeping", "cancelled", "why cancel"),
        ("ana", "retry", "failed", "pending", "why retry"),
        ("ana", "release", "running", "running", "why release"),
    ]
    text = text_of(client.get(f"/workflows/run/{asleep}"))
    assert "newest first When Who What Reason 12:00:00 ana cancel: sleeping to cancelled why cancel" in text
    assert "ana send message hello why send" in text
    assert "ana move timer from 13:00:00 to Fri 4 Dec 09:00 why move" in text
    assert "Cancelled by ana, 0 s ago." in text


@pytest.mark.parametrize("rival", ["wake", "move"])
def test_of_two_who_press_opposite_buttons_at_once_one_wins(
    app: Flask, rows: Rows, workflows: Workflows, rival: str
) -> None:
    who = local()
    workflows.actor(lambda: who.name)
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)

    def press(name: str, action: str) -> Callable[[], TestResponse]:
        who.name = name
        client = app.test_client()
        page = ask(client, run_id, action)

        def pressed() -> TestResponse:
            who.name = name
            return submit(client, page, at="2026-12-04T09:00")

        return pressed

    answers = at_once(app, press("ana", "cancel"), press("ben", rival))

    assert sorted(answer.status_code for answer in answers) == [303, 409]
    (entry,) = audit(app)
    winner = answers.index(next(answer for answer in answers if answer.status_code == 303))
    assert entry[:2] == [("ana", "cancel"), ("ben", rival)][winner]
    refused = text_of(answers[1 - winner])
    assert "Nothing was done." in refused
    if winner == 0:
        assert "This run went to cancelled at 12:00:00, by ana" in refused
        assert status_of(rows, workflows, app, run_id) == "cancelled"
    else:
        assert "This run changed since the page was loaded, and is sleeping again" in refused
        assert status_of(rows, workflows, app, run_id) == "sleeping"


def test_of_two_who_cancel_a_running_run_the_second_learns_of_the_first(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.actor(lambda: "ana")
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    first, second = ask(client, run_id, "cancel"), ask(client, run_id, "cancel")

    assert submit(client, first).status_code == 303
    refused = submit(client, second)

    assert refused.status_code == 409
    assert "Cancelling was asked for at 12:00:00, by ana. Nothing was done." in text_of(refused)
    assert len(audit(app)) == 1


def test_two_who_retry_at_once_make_one_retry(app: Flask, rows: Rows, workflows: Workflows) -> None:
    run_id = rows.run("failed", error=error_json())

    def press() -> Callable[[], TestResponse]:
        client = app.test_client()
        page = ask(client, run_id, "retry")
        return lambda: submit(client, page)

    answers = at_once(app, press(), press())

    assert sorted(answer.status_code for answer in answers) == [303, 409]
    assert len(audit(app)) == 1


def test_b109_markup_in_what_is_typed_is_shown_as_text(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.actor(lambda: EVIL)
    run_id = rows.run("waiting", due_at=None, workflow=EVIL, key=EVIL)
    rows.step(run_id, f"$receive:{EVIL}", 1, "waiting", kind="receive", input=json.dumps({"message": EVIL}))

    pages = [ask(client, run_id, action) for action in ("send", "cancel", "retry", "wake", "move", "release")]
    pages.append(submit(client, pages[0], name=EVIL, payload=EVIL, reason=EVIL))
    assert pages[-1].status_code == 422
    assert submit(client, pages[0], name=EVIL, payload=json.dumps({EVIL: EVIL}), reason=EVIL).status_code == 303
    pages.append(client.get(f"/workflows/run/{run_id}"))
    submit(client, pages[1], reason=EVIL)
    pages.append(submit(client, pages[0], name=EVIL))
    pages.append(client.get(f"/workflows/run/{run_id}"))

    for page in pages:
        assert EVIL not in page.text
        assert EVIL in text_of(page)
        assert "img" not in [tag for tag, _ in Tags(page.text).found]


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


@pytest.mark.parametrize("action", ["cancel", "retry", "wake", "move", "release", "send"])
def test_each_action_can_be_made_to_need_a_reason(
    sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows, action: str
) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_REQUIRE_REASON=list(ACTIONS))
    rows, client = rows_of(app), app.test_client()
    run_id = {"retry": lambda: rows.run("failed", error=error_json()), "release": lambda: lost(rows)}.get(
        action, lambda: rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    )()
    typed = {"at": "2026-12-04T09:00", "name": "hello", "payload": '{"a": 1}'}

    refused = submit(client, ask(client, run_id, action), **typed)

    assert refused.status_code == 422
    assert "Say why." in text_of(refused)
    kept = form_of(refused)[1]
    assert all(kept[name] == text for name, text in typed.items() if name in kept)
    assert audit(app) == []
    assert submit(client, refused, reason="because").status_code == 303
    assert [entry[4] for entry in audit(app)] == ["because"]


def test_read_only_pages_say_why_nothing_can_be_done(
    sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_DASHBOARD_READ_ONLY=True)
    run_id = rows_of(app).run("sleeping", due_at=NOW_MS + HOUR_MS)
    client = app.test_client()

    page = client.get(f"/workflows/run/{run_id}")

    assert "Cancel Nothing can be changed here: these pages are read-only." in text_of(page)
    assert "/cancel" not in page.text
    assert ask(client, run_id, "cancel").status_code == 403


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
