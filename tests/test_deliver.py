"""Delivering an event by hand: looked at first, then done once."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from html import unescape

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import Workflows
from tests import apps
from tests.pages import links
from tests.pages import text_of
from tests.rows import NOW
from tests.rows import Rows
from tests.rows import rows_of

EVIL = "<img src=x onerror=alert(1)>"
NEW = "/workflows/events/new"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@dataclass(frozen=True)
class Completed:
    user_id: int
    course: str


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")
    workflows.clock = FixedClock()
    workflows.event("paid")
    workflows.event("completed")(Completed)
    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def fields_of(page: TestResponse) -> dict[str, str]:
    """What stands in the form."""
    form = page.text.partition("<main")[2].partition('<form class="fw-form"')[2].partition("</form>")[0]
    found = {}
    for tag in re.findall(r"<input [^>]*>", form):
        name, value = re.search(r' name="([^"]*)"', tag), re.search(r' value="([^"]*)"', tag)
        assert name is not None
        found[name[1]] = unescape(value[1]) if value is not None else ""
    for name, text in re.findall(r'(?s)<textarea [^>]*name="([^"]*)"[^>]*>\n?(.*?)</textarea>', form):
        found[name] = unescape(text)
    for name, options in re.findall(r'(?s)<select [^>]*name="([^"]*)"[^>]*>(.*?)</select>', form):
        chosen = re.search(r'value="([^"]*)" selected', options) or re.search(r'value="([^"]*)"', options)
        found[name] = unescape(chosen[1]) if chosen is not None else ""
    return found


def send(client: FlaskClient, page: TestResponse, do: str, **typed: str) -> TestResponse:
    return client.post(NEW, data={**fields_of(page), **typed, "do": do})


def check(client: FlaskClient, name: str = "paid", payload: str = '{"order": 7}', **typed: str) -> TestResponse:
    return send(client, client.get(NEW), "check", name=name, payload=payload, **typed)


def events_of(rows: Rows) -> list[Mapping[str, object]]:
    with rows.engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(models.events)).mappings()]


def audit_of(rows: Rows) -> list[Mapping[str, object]]:
    with rows.engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(models.audit)).mappings()]


def test_form_is_reached_from_the_inbox_and_from_waits(app: Flask, client: FlaskClient, rows: Rows) -> None:
    rows.waiting("paid", {"order": 7})

    assert NEW in links(client.get("/workflows/events"))
    (link,) = [link for link in links(client.get("/workflows/waits?name=paid")) if link.startswith(NEW)]
    page = client.get(link)

    assert page.status_code == 200
    assert fields_of(page)["name"] == "paid"
    assert "completed: Completed with user_id: int, course: str" in text_of(page)
    assert ">Deliver</button>" not in page.text


def test_check_says_whom_it_wakes_and_changes_nothing(client: FlaskClient, rows: Rows) -> None:
    run = rows.waiting("paid", {"order": 7})
    for order in (8, 9, 10):
        rows.waiting("paid", {"order": order})
    rows.waiting("shipped", {"order": 7})

    page = check(client, reason="The webhook was lost.")

    text = text_of(page)
    assert page.status_code == 200
    assert f"This wakes 1 run: onboarding …{run[-6:]}" in text
    assert "3 other runs wait for this name with other values." in text
    assert f"/workflows/run/{run}" in links(page)
    assert "/workflows/waits?name=paid" in links(page)
    assert fields_of(page)["payload"] == '{"order": 7}'
    assert fields_of(page)["reason"] == "The webhook was lost."
    assert events_of(rows) == []
    assert audit_of(rows) == []
    assert ">Deliver</button>" in page.text


def test_event_that_wakes_nobody_is_told(client: FlaskClient, rows: Rows) -> None:
    rows.waiting("paid", {"order": 8})

    text = text_of(check(client))

    assert "This wakes nobody now." in text
    assert "1 other run waits for this name with other values." in text


def test_deliver_does_it_says_so_and_leads_to_the_event(client: FlaskClient, rows: Rows) -> None:
    rows.waiting("paid", {"order": 7}, workspace="north")
    page = check(client, workspace="north")

    done = send(client, page, "deliver", reason="The webhook was lost.")

    (event,) = events_of(rows)
    assert done.status_code == 303
    assert done.headers["Location"] == f"/workflows/event/{event['seq']}"
    assert (event["name"], event["workspace"], event["payload"]) == ("paid", "north", '{"order":7}')
    assert "The event is delivered." in text_of(client.get(done.headers["Location"]))
    (entry,) = audit_of(rows)
    assert (entry["actor"], entry["action"], entry["reason"]) == ("ana", "deliver", "The webhook was lost.")


def test_delivered_event_wakes_the_run(app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    run = rows.waiting("paid", {"order": 7})

    send(client, check(client), "deliver")
    with app.app_context():
        app.extensions["workflows"].events.match_all()

    with rows.engine.connect() as connection:
        status = connection.scalar(sa.select(models.runs.c.status).where(models.runs.c.id == run))
    assert status == "pending"
    assert events_of(rows)[0]["woke"] == 1


def test_second_click_delivers_nothing_more(client: FlaskClient, rows: Rows) -> None:
    page = check(client)

    first = send(client, page, "deliver")
    second = send(client, page, "deliver")

    assert len(events_of(rows)) == 1
    assert len(audit_of(rows)) == 1
    assert second.status_code == 303
    assert second.headers["Location"] == first.headers["Location"]
    told = text_of(client.get(second.headers["Location"]))
    assert "This event had been delivered already. It was not delivered twice." in told


def test_clicks_at_once_deliver_once(app: Flask, client: FlaskClient, rows: Rows) -> None:
    fields = {**fields_of(check(client)), "do": "deliver"}
    together = threading.Barrier(4)
    codes: list[int] = []

    def click() -> None:
        other = app.test_client()
        together.wait(10)
        codes.append(other.post(NEW, data=fields).status_code)

    threads = [threading.Thread(target=click) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert codes == [303] * 4
    assert len(events_of(rows)) == 1


def test_what_was_not_checked_is_not_delivered(client: FlaskClient, rows: Rows) -> None:
    page = check(client)

    changed = send(client, page, "deliver", payload='{"order": 8}')

    assert changed.status_code == 200
    assert "This is not what was checked. Nothing was delivered." in text_of(changed)
    assert events_of(rows) == []
    assert (
        client.post(
            NEW, data={**fields_of(client.get(NEW)), "name": "paid", "payload": "1", "do": "deliver"}
        ).status_code
        == 200
    )
    assert events_of(rows) == []

    # The same with other blanks is the same.
    send(client, changed, "deliver", payload='{\n  "order":8\n}')
    assert [event["payload"] for event in events_of(rows)] == ['{"order":8}']


def test_another_event_from_the_same_form_is_another(client: FlaskClient, rows: Rows) -> None:
    page = check(client)
    send(client, page, "deliver")

    again = send(client, page, "check", payload='{"order": 8}')
    send(client, again, "deliver")

    assert [event["payload"] for event in events_of(rows)] == ['{"order":7}', '{"order":8}']


@pytest.mark.parametrize(
    ("typed", "field", "words"),
    [
        ({"name": ""}, "name", "Write the name of an event that the app declares."),
        ({"name": "nope"}, "name", "No event 'nope' is declared in this app."),
        ({"name": "a\x00b"}, "name", "Write the name of an event"),
        ({"payload": ""}, "payload", "Write a JSON value; null for nothing."),
        ({"payload": '{"order": 7'}, "payload", "This is no JSON: line 1, column"),
        ({"payload": "\n\n  {'order': 7}"}, "payload", "This is no JSON: line 3, column 4"),
        ({"payload": "[NaN]"}, "payload", "NaN is no JSON number"),
        ({"payload": "[" * 50_000}, "payload", "This is no JSON"),
        ({"payload": "9" * 5_000}, "payload", "This is no JSON that can be stored"),
        ({"payload": '"\\u0000"'}, "payload", ""),
        ({"payload": '"\\ud800"'}, "payload", ""),
        ({"payload": '"' + "x" * 1_100_000 + '"'}, "payload", "bytes"),
        ({"name": "completed"}, "payload", "the payload is no Completed"),
        ({"name": "completed", "payload": '{"user_id": "x", "course": "y"}'}, "payload", "the payload is no Completed"),
        ({"workspace": "x" * 300}, "workspace", ""),
        ({"workspace": "a\x00b"}, "workspace", ""),
    ],
)
@pytest.mark.parametrize("do", ["check", "deliver"])
def test_what_is_wrong_is_told_at_its_field_and_what_was_typed_is_kept(
    client: FlaskClient, rows: Rows, typed: dict[str, str], field: str, words: str, do: str
) -> None:
    sent = {"name": "paid", "payload": '{"order": 7}', "workspace": "", "reason": "because", **typed}

    page = send(client, client.get(NEW), do, **sent)

    assert page.status_code == 422
    assert re.search(rf'name="{field}"[^>]*aria-invalid="true"', page.text)
    told = page.text.partition(f'id="fw-wrong-{field}"')[2].partition("</p>")[0]
    assert words in unescape(told)
    assert told.count(".") >= 1
    kept = fields_of(page)
    assert {name: kept[name].strip() for name in sent} == {name: value.strip() for name, value in sent.items()}
    assert ">Deliver</button>" not in page.text
    assert events_of(rows) == []


def test_several_faults_are_told_at_once(client: FlaskClient) -> None:
    page = check(client, name="nope", payload="{", workspace="x" * 300)

    for field in ("name", "payload", "workspace"):
        assert f'id="fw-wrong-{field}"' in page.text
    assert page.text.count(" autofocus") == 1


def test_reason_is_asked_for_what_is_done_and_not_for_the_look(
    database_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    app = make_app(database_url, workflows=workflows, WORKFLOWS_REQUIRE_REASON=["deliver"])
    client, rows = app.test_client(), rows_of(app)
    page = check(client)
    assert page.status_code == 200

    refused = send(client, page, "deliver")
    assert refused.status_code == 422
    assert "Say why." in text_of(refused)
    assert events_of(rows) == []

    assert send(client, refused, "deliver", reason="Support asked.").status_code == 303
    assert len(events_of(rows)) == 1


def test_deliver_is_for_those_who_may(app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    fields = fields_of(check(client))
    workflows.authorize(lambda action, run=None: action != "deliver")

    assert client.get(NEW).status_code == 403
    assert client.post(NEW, data={**fields, "do": "check"}).status_code == 403
    assert client.post(NEW, data={**fields, "do": "deliver"}).status_code == 403
    assert NEW not in links(client.get("/workflows/events"))
    assert events_of(rows) == []


def test_nothing_is_delivered_where_nothing_may_be_changed(
    database_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    app = make_app(database_url, workflows=workflows, WORKFLOWS_DASHBOARD_READ_ONLY=True)

    assert app.test_client().get(NEW).status_code == 403
    assert app.test_client().post(NEW).status_code == 403


def test_forged_form_delivers_nothing(client: FlaskClient, rows: Rows) -> None:
    fields = {**fields_of(check(client)), "do": "deliver"}

    assert client.post(NEW, data={**fields, "workflows_token": ""}).status_code == 400
    assert client.post(NEW, data=fields, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 400
    assert client.post(NEW, data=fields, headers={"Origin": "https://evil.example"}).status_code == 400
    assert events_of(rows) == []


@pytest.mark.parametrize("once", ["", "x", "A" * 32, "'" * 32, "0" * 400])
def test_invented_token_is_replaced(client: FlaskClient, rows: Rows, once: str) -> None:
    page = check(client)

    for _ in range(2):
        assert send(client, page, "deliver", once=once).status_code == 303

    assert len({event["delivery_id"] for event in events_of(rows)}) == 2


def test_b110_confined_visitor_delivers_to_their_workspaces_only(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.scope(lambda: ["north", "west"])
    ours = rows.waiting("paid", {"order": 7}, workspace="north")
    theirs = rows.waiting("paid", {"order": 7}, workspace="south")
    for _ in range(3):
        rows.waiting("paid", {"order": 9}, workspace="south")
    page = client.get(NEW)
    assert fields_of(page)["workspace"] == ""

    for workspace in ("", "south", "nowhere"):
        refused = check(client, workspace=workspace)
        assert refused.status_code == 422
        assert 'id="fw-wrong-workspace"' in refused.text
        assert theirs not in refused.text

    found = check(client, workspace="north")
    text = text_of(found)
    assert f"This wakes 1 run: onboarding …{ours[-6:]}" in text
    assert "with other values" not in text
    assert "south" not in text
    for workspace in ("", "south"):
        assert send(client, found, "deliver", workspace=workspace).status_code == 422
    assert events_of(rows) == []
    assert send(client, found, "deliver").status_code == 303
    assert [event["workspace"] for event in events_of(rows)] == ["north"]


def test_b110_visitor_of_no_workspace_delivers_nothing(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    fields = fields_of(check(client))
    workflows.scope(lambda: [""])

    assert "You may not deliver any" in text_of(client.get(NEW))
    assert client.post(NEW, data={**fields, "do": "deliver"}).status_code == 422
    assert events_of(rows) == []


def test_b109_what_is_typed_is_text(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    workflows.event(EVIL)
    rows.waiting(EVIL, workflow=EVIL, workspace=EVIL)
    rows.waiting(EVIL, {"a": 1}, workspace=EVIL)

    for page in (
        client.get(NEW, query_string={"name": EVIL, "workspace": EVIL}),
        check(client, name=EVIL, payload=f'"</textarea>{EVIL}"', workspace=EVIL, reason=f"</textarea>{EVIL}"),
        check(client, name=f'"{EVIL}', payload=EVIL, workspace=EVIL),
    ):
        assert "<img" not in page.text
        assert "&lt;img src=x" in page.text


def test_app_without_events_or_key_says_so(database_url: str, make_app: apps.MakeApp) -> None:
    app = make_app(database_url, workflows=Workflows(authorize=lambda action, run=None: True))
    assert "No event is declared in this app." in text_of(app.test_client().get(NEW))

    app.secret_key = None
    assert "the app has no SECRET_KEY" in text_of(app.test_client().get(NEW))
