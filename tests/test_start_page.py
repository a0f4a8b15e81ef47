"""The form that a run is started with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from itsdangerous import URLSafeTimedSerializer
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import NotRegistered
from flask_workflows import Run
from flask_workflows import service
from flask_workflows import WorkflowContext
from flask_workflows import Workflows
from flask_workflows.dashboard import once
from flask_workflows.dashboard.pages.start import skeleton
from flask_workflows.durations import read_duration
from flask_workflows.errors import InvalidDuration
from flask_workflows.names import new_id
from flask_workflows.operations import BULK
from flask_workflows.payloads import copied
from tests import apps
from tests.pages import links
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.running import at_once

PATH = "/workflows/runs/new"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@dataclass
class Card:
    number: str
    expires: int


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(ctx: WorkflowContext, user_id: int, card: Card | None, note: str = "", *, days: float = 1.0) -> None:
        """Welcomes a new learner."""

    @workflows.workflow(queue="nightly")
    def cleanup() -> None: ...

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def part_of(response: TestResponse) -> str:
    """The page without what stands around it."""
    return response.text.partition('id="fw-start"')[2].partition("</section>")[0]


def options_of(response: TestResponse) -> list[str | None]:
    return [attributes["value"] for tag, attributes in Tags(part_of(response)).found if tag == "option"]


def form_of(response: TestResponse) -> dict[str, str]:
    """What the browser would send of the page's form, as it stands."""
    values: dict[str, str] = {}
    for tag, attributes in Tags(part_of(response)).found:
        if tag == "input" and attributes.get("name"):
            values[str(attributes["name"])] = attributes.get("value") or ""
        elif tag == "option" and "selected" in attributes:
            values["workspace"] = attributes.get("value") or ""
    for name, text in re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>\n(.*?)</textarea>', part_of(response), re.DOTALL):
        values[name] = text.replace("&#34;", '"').replace("&amp;", "&").replace("&lt;", "<").replace("&#39;", "'")
    return values


def send(client: FlaskClient, filled: Mapping[str, str], *, workflow: str = "onboarding", **more: Any) -> TestResponse:
    form = form_of(client.get(PATH, query_string={"workflow": workflow}))
    return client.post(PATH, data={**form, **filled}, **more)


def stored(rows: Rows) -> list[Any]:
    with rows.engine.connect() as connection:
        return list(connection.execute(sa.select(models.runs).order_by(models.runs.c.id)).mappings())


INPUT = '{"user_id": 8, "card": null}'


def test_workflow_is_chosen_first(client: FlaskClient) -> None:
    response = client.get(PATH)

    assert options_of(response) == ["cleanup", "onboarding"]


def test_form_holds_what_must_be_given(client: FlaskClient) -> None:
    response = client.get(f"{PATH}?workflow=onboarding")

    text = text_of(response)
    assert "Start onboarding" in text
    assert "Welcomes a new learner." in text
    assert "user_id: int , card: Card | None , note: str (may be left out)" in text.replace(",", " ,").replace(
        "  ", " "
    )
    assert json.loads(form_of(response)["input"]) == {"user_id": None, "card": None}
    assert "It takes no input" in text_of(client.get(f"{PATH}?workflow=cleanup"))


def test_run_is_started_as_it_is_asked_for(client: FlaskClient, rows: Rows) -> None:
    filled = {
        "input": '{"user_id": 8,\r\n "card": {"number": "4", "expires": 2030}, "note": "café"}',
        "key": " k-1 ",
        "workspace": "acme",
        "delay": "2h",
        "reason": "asked by phone",
    }

    response = send(client, filled)

    (run,) = stored(rows)
    assert (response.status_code, response.location) == (303, f"/workflows/run/{run['id']}")
    assert json.loads(run["input"]) == {"user_id": 8, "card": {"number": "4", "expires": 2030}, "note": "café"}
    assert (run["key"], run["workspace"], run["status"]) == ("k-1", "acme", "sleeping")
    assert run["due_at"] == NOW_MS + 2 * 3_600_000
    assert "Started onboarding." in text_of(client.get(response.location))
    with rows.engine.connect() as connection:
        (entry,) = connection.execute(sa.select(models.audit)).mappings()
    assert (entry["actor"], entry["action"], entry["reason"]) == ("ana", "start", "asked by phone")
    assert (entry["run_id"], entry["workspace"]) == (run["id"], "acme")


def test_form_that_is_sent_again_starts_nothing(client: FlaskClient, rows: Rows) -> None:
    form = {**form_of(client.get(f"{PATH}?workflow=onboarding")), "input": INPUT}

    first, second = client.post(PATH, data=form), client.post(PATH, data=form)

    (run,) = stored(rows)
    assert first.location == second.location == f"/workflows/run/{run['id']}"
    assert "was started already" in text_of(client.get(second.location))


def test_form_that_is_sent_twice_at_once_starts_one_run(app: Flask, rows: Rows) -> None:
    form = {**form_of(app.test_client().get(f"{PATH}?workflow=onboarding")), "input": INPUT, "key": "k"}

    locations = at_once(app, *[lambda: app.test_client().post(PATH, data=form).location] * 6)

    (run,) = stored(rows)
    assert set(locations) == {f"/workflows/run/{run['id']}"}
    with rows.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(models.audit)) == 1


def test_two_forms_start_two_runs(client: FlaskClient, rows: Rows) -> None:
    send(client, {"input": INPUT})
    send(client, {"input": INPUT})

    assert len(stored(rows)) == 2


def test_form_that_was_open_for_long_is_renewed(app: Flask, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    client = app.test_client()
    form = {**form_of(client.get(f"{PATH}?workflow=onboarding")), "input": INPUT, "key": "k"}

    monkeypatch.setattr(once, "_SECONDS", -1)
    renewed = client.post(PATH, data=form)
    monkeypatch.undo()

    assert renewed.status_code == 422
    assert "The form was open for long. Nothing was started" in text_of(renewed)
    assert stored(rows) == []
    again = form_of(renewed)
    assert (again["input"], again["key"]) == (INPUT, "k")
    assert client.post(PATH, data=again).status_code == 303
    assert len(stored(rows)) == 1


def test_old_form_whose_run_is_there_leads_to_it(app: Flask, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    client = app.test_client()
    form = {**form_of(client.get(f"{PATH}?workflow=onboarding")), "input": INPUT}
    first = client.post(PATH, data=form)
    monkeypatch.setattr(once, "_SECONDS", -1)

    second = client.post(PATH, data=form)

    assert (second.status_code, second.location) == (303, first.location)
    assert len(stored(rows)) == 1


@pytest.mark.parametrize("mark", ["", "x", "somebody", "another app"])
def test_run_gets_no_id_of_a_visitors_choice(app: Flask, rows: Rows, mark: str) -> None:
    """An id that is there already would be found out so, in whatever workspace."""
    there = rows.run(workspace="theirs")
    if mark == "somebody":
        with app.app_context():
            mark = once.seal(there, "bo")
    elif mark == "another app":
        mark = URLSafeTimedSerializer("other", salt="flask_workflows.once").dumps([there, "ana"])

    response = send(app.test_client(), {"input": INPUT, "once": mark})

    assert response.status_code == 422
    assert "Nothing was started" in text_of(response)
    assert there not in response.text
    assert len(stored(rows)) == 1


def test_key_that_is_held_leads_to_the_run_that_holds_it(client: FlaskClient, rows: Rows) -> None:
    holder = rows.run("sleeping", key="k", due_at=NOW_MS + 60_000)

    response = send(client, {"input": INPUT, "key": "k"})

    assert response.location == f"/workflows/run/{holder}"
    assert "Nothing was started: this run has the key k and has not finished." in text_of(client.get(response.location))
    assert len(stored(rows)) == 1


# What is wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "The input is not JSON"),
        ("nope", "The input is not JSON"),
        ("[]", "The input must be a JSON object"),
        ("null", "The input must be a JSON object"),
        ("{}", "The input does not fit: $ "),
        (
            '{"user_id": "8", "card": null}',
            "The input does not fit: $.user_id is of type str, where the annotation says int.",
        ),
        ('{"user_id": 8, "card": {"number": 4, "expires": 1}}', "The input does not fit: $.card.number is of type int"),
        ('{"user_id": 8, "card": null, "nope": 1}', "nope"),
        ('{"user_id": 8, "card": null, "note": "\\u0000"}', "$.note"),
        ('{"user_id": 8, "card": null, "note": NaN}', "The input is not JSON"),
    ],
)
def test_wrong_input_is_told_with_the_path_to_it(client: FlaskClient, rows: Rows, text: str, told: str) -> None:
    response = send(client, {"input": text, "key": "k", "delay": "5m", "reason": "because"})

    assert response.status_code == 422
    assert told in text_of(response)
    assert "stored" not in text_of(response)
    kept = form_of(response)
    assert (kept["input"], kept["key"], kept["delay"], kept["reason"]) == (text, "k", "5m", "because")
    (field,) = [a for tag, a in Tags(response.text).found if tag == "textarea" and a.get("name") == "input"]
    assert field["aria-invalid"] == "true"
    assert "fw-wrong-input" in (field["aria-describedby"] or "")
    assert "autofocus" in field
    assert stored(rows) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("key", "a\tb", "control characters"),
        ("key", "x" * 300, "write 1 to 255"),
        ("workspace", "a\x00b", "control characters"),
        ("delay", "soon", "is no duration; write seconds, or 10m, 12h, 7d"),
        ("delay", "-5", "is no duration"),
        ("delay", "999999d", "must not be longer than 100 years"),
        ("reason", "x" * 1_001, "Shorten it"),
    ],
)
def test_wrong_field_is_told_at_it(client: FlaskClient, rows: Rows, name: str, value: str, told: str) -> None:
    response = send(client, {"input": INPUT, name: value})

    assert response.status_code == 422
    assert re.search(rf'<p class="fw-wrong" id="fw-wrong-{name}"[^>]*>[^<]*{re.escape(told)}', response.text)
    assert stored(rows) == []


def test_too_large_an_input_is_refused(make_app: apps.MakeApp, sqlite_url: str, workflows: Workflows) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_MAX_PAYLOAD_BYTES=1_024)

    response = send(app.test_client(), {"input": json.dumps({"user_id": 8, "card": None, "note": "x" * 2_000})})

    assert response.status_code == 422
    assert re.search(r'id="fw-wrong-input"', response.text)


@pytest.mark.parametrize("name", ["nope", "", BULK, "a\x00b", "<img>"])
def test_unknown_workflow_is_a_404(client: FlaskClient, rows: Rows, name: str) -> None:
    if name:
        assert client.get(PATH, query_string={"workflow": name}).status_code == 404
    response = send(client, {"workflow": name, "input": "{}"})
    assert response.status_code == 404
    assert stored(rows) == []


def test_workflow_of_the_packages_own_is_not_started_by_hand(app: Flask, rows: Rows) -> None:
    """Its input says what it may do, to whatever workspace."""
    with app.app_context(), pytest.raises(NotRegistered):
        service.start(apps.runtime_of(app), BULK, {})

    client = app.test_client()
    assert client.post("/workflows/api/runs", json={"workflow": BULK, "input": {}}).status_code == 404
    assert app.test_cli_runner().invoke(args=["workflows", "start", BULK]).exit_code == 3
    assert BULK not in client.get("/workflows/registry").text
    assert stored(rows) == []


# Who may -----------------------------------------------------------------------------------


def test_starting_asks_for_a_permission_of_its_own(app: Flask, workflows: Workflows, rows: Rows) -> None:
    client = app.test_client()
    form = {**form_of(client.get(f"{PATH}?workflow=onboarding")), "input": INPUT}
    assert PATH in links(client.get("/workflows/runs"))

    workflows.authorize(lambda action, run=None: action == "view")

    assert client.get(PATH).status_code == client.post(PATH, data=form).status_code == 403
    assert stored(rows) == []
    assert PATH not in links(client.get("/workflows/runs"))
    assert "Start a run" not in client.get("/workflows/registry/onboarding").text


def test_whoever_may_start_and_not_look_is_told_the_id(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.authorize(lambda action, run=None: action == "start")
    client = app.test_client()

    response = send(client, {"input": INPUT})

    (run,) = stored(rows)
    assert response.location == PATH
    assert f"Started onboarding. Its id is {run['id']}." in text_of(client.get(PATH))


def test_form_needs_its_token(app: Flask, rows: Rows) -> None:
    client = app.test_client()
    form = {**form_of(client.get(f"{PATH}?workflow=onboarding")), "input": INPUT, "workflows_token": ""}

    assert client.post(PATH, data=form).status_code == 400
    assert stored(rows) == []


def test_app_without_a_key_says_so(make_app: apps.MakeApp, sqlite_url: str, workflows: Workflows) -> None:
    client = make_app(sqlite_url, workflows=workflows, SECRET_KEY=None).test_client()

    text = text_of(client.get(f"{PATH}?workflow=onboarding"))

    assert "the app has no SECRET_KEY" in text


def test_b110_run_is_started_in_an_own_workspace_only(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.scope(lambda: ["ours", "too"])
    client = app.test_client()
    page = client.get(f"{PATH}?workflow=onboarding")
    assert options_of(page) == ["ours", "too"]

    for workspace in ("theirs", ""):
        response = send(client, {"input": INPUT, "workspace": workspace})
        assert response.status_code == 422
        assert "Choose one of your workspaces" in text_of(response)
    assert stored(rows) == []

    assert send(client, {"input": INPUT, "workspace": "too"}).status_code == 303
    assert [run["workspace"] for run in stored(rows)] == ["too"]


# Like another ------------------------------------------------------------------------------


def test_form_is_filled_in_like_another_run(client: FlaskClient, rows: Rows) -> None:
    text = '{"user_id":8,"card":null,"days":1.50,"note":"a b"}'
    run_id = rows.run("failed", input=text, key="k", workspace="acme")

    page = client.get(f"{PATH}?like={run_id}")

    form = form_of(page)
    assert form["input"] == '{\n  "user_id": 8,\n  "card": null,\n  "days": 1.50,\n  "note": "a b"\n}'
    assert (form["workspace"], form["key"]) == ("acme", "")
    assert client.post(PATH, data=form).status_code == 303
    assert json.loads(stored(rows)[-1]["input"]) == json.loads(text)


@pytest.mark.parametrize(
    "input",
    [
        '{"user_id": 8, "card": {"number": "hunter2", "expires": 1}}',
        '{"user_id": 8, "card": null, "note": "password=hunter2"}',
        '{"user_id": 8, "card": null, "note": "hunter2 for the app alone"}',
        '{"user_id": 8, "note": "hunter2',
        json.dumps({"user_id": 8, "note": "hunter2" * 100_000}),
    ],
    ids=["key", "text", "app", "broken", "long"],
)
def test_b111_hidden_values_are_not_copied(app: Flask, workflows: Workflows, rows: Rows, input: str) -> None:
    workflows.redact(lambda path, value: isinstance(value, str) and "for the app" in value)
    run_id = rows.run("failed", input=input)

    response = app.test_client().get(f"{PATH}?like={run_id}")

    assert response.status_code == 200
    assert "hunter2" not in response.text
    assert "not copied" in text_of(response)
    assert json.loads(form_of(response)["input"]) == {"user_id": None, "card": None}


def test_input_is_copied_for_whoever_may_see_it(app: Flask, workflows: Workflows, rows: Rows) -> None:
    run_id = rows.run("failed", input='{"user_id": 4711, "card": null}')

    def authorize(action: str, run: Run | None = None) -> bool:
        return action != "view_payload"

    workflows.authorize(authorize)

    response = app.test_client().get(f"{PATH}?like={run_id}")

    assert response.status_code == 404
    assert "4711" not in response.text


def test_b110_run_of_another_workspace_is_not_copied(app: Flask, workflows: Workflows, rows: Rows) -> None:
    workflows.scope(lambda: ["ours"])
    run_id = rows.run("failed", workspace="theirs")

    assert app.test_client().get(f"{PATH}?like={run_id}").status_code == 404


def test_run_without_code_is_like_nothing(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("failed", workflow="old-import")

    response = client.get(f"{PATH}?like={run_id}")

    assert response.status_code == 404
    assert "There is no such workflow" in text_of(response)


@pytest.mark.parametrize("run_id", ["nope", "a/b", "%00", "%F0%9F%98%80"])
def test_unknown_run_is_like_nothing(client: FlaskClient, run_id: str) -> None:
    assert client.get(f"{PATH}?like={run_id}").status_code == 404


def test_b109_what_was_typed_comes_back_as_text(client: FlaskClient) -> None:
    evil = "</textarea><img src=x onerror=alert(1)>"

    response = send(client, dict.fromkeys(("input", "key", "workspace", "delay", "reason", "like"), evil))

    assert response.status_code == 422
    assert not [tag for tag, _ in Tags(response.text).found if tag == "img"]
    assert all(link.startswith("/workflows/") or link == "/" for link in links(response))


# Pure --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5", 1.5), ("10m", 600), (" 12 h ", 43_200), ("7d", 604_800), ("5s", 5)]
)
def test_duration_is_read_as_typed(text: str, seconds: float) -> None:
    assert read_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-1", "1w", "1e3", "nan", "10 m s", "٣", "9" * 10, "1h30m"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidDuration):
        read_duration(text)


@pytest.mark.parametrize(
    ("stored_text", "expected"),
    [
        ('{"a":1.50}', '{\n  "a": 1.50\n}'),
        ("null", "null"),
        ('{"a":"[hidden]"}', '{\n  "a": "[hidden]"\n}'),
        ('{"token":"x"}', None),
        ('{"token":null}', '{\n  "token": null\n}'),
        ("nope", None),
        ("[" * 10_000, None),
    ],
)
def test_value_is_copied_unless_something_is_hidden(stored_text: str, expected: str | None) -> None:
    assert copied(stored_text) == expected


def test_skeleton_has_what_must_be_given(workflows: Workflows) -> None:
    assert skeleton(workflows.registry.latest("onboarding")) == '{\n  "user_id": null,\n  "card": null\n}'
    assert skeleton(workflows.registry.latest("cleanup")) == "{}"


def test_mark_is_for_one_visitor(app: Flask) -> None:
    with app.app_context():
        run_id = new_id()
        mark = once.seal(run_id, "ana")

        assert once.read(mark, "ana") == once.Once(run_id)
        assert once.read(mark, "bo") is None


@pytest.mark.parametrize(
    ("status", "workflow", "offered"),
    [
        ("completed", "onboarding", True),
        ("failed", "onboarding", True),
        ("cancelled", "onboarding", True),
        ("running", "onboarding", False),
        ("failed", "old-import", False),
        ("failed", BULK, False),
    ],
)
def test_ended_run_offers_to_start_one_like_it(
    client: FlaskClient, rows: Rows, status: str, workflow: str, offered: bool
) -> None:
    run_id = rows.run(status, workflow=workflow)

    page = client.get(f"/workflows/run/{run_id}")

    assert [link for link in links(page) if link.startswith(PATH)] == [f"{PATH}?like={run_id}"] * offered
