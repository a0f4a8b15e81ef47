"""The list of runs: who sees which, what is looked for, what stands on the page."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl
from urllib.parse import urlsplit

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.dashboard.visit import Visit
from tests import apps
from tests.pages import links
from tests.pages import polled
from tests.pages import Tags
from tests.pages import text_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.test_views import FixedClock


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()

    @workflows.workflow
    def onboarding(user_id: int) -> bool:
        return True

    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def listed(response: TestResponse) -> list[str]:
    """The ids of the runs in the table, in its order."""
    return re.findall(r'<tr role="row" id="run-([^"]+)', response.text)


def listing(client: FlaskClient, **query: str) -> list[str]:
    response = client.get("/workflows/runs", query_string=query)
    assert response.status_code == 200
    return listed(response)


# Workspaces --------------------------------------------------------------------------------


def options(response: TestResponse, datalist: str) -> list[str]:
    found = re.search(rf'<datalist id="{datalist}">(.*?)</datalist>', response.text)
    assert found is not None
    return re.findall(r'value="([^"]*)"', found[1])


def test_b110_nothing_outside_the_scope_shows(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    ours = rows.run("failed", workspace="ours", workflow="our-flow", ago=100)
    for status in ("failed", "completed", "pending"):
        rows.run(status, workspace="theirs-secret", workflow="their-flow", key="their-key", queue="their-queue")
        rows.run(status, workflow="nobodys-flow")
    workflows.scope(lambda: "ours")

    page = client.get("/workflows/runs")
    narrowed = client.get("/workflows/runs?workspace=theirs-secret")

    assert listed(page) == [ours]
    assert "All Pending 0 Running 0 Sleeping 0 Waiting 0 Failed 1 Completed 0 Cancelled 0" in text_of(page)
    assert options(page, "fw-names") == ["onboarding", "our-flow"]
    for word in ("theirs-secret", "their-flow", "their-key", "their-queue", "nobodys"):
        assert word not in page.text
    assert listed(narrowed) == []
    assert "Failed 0 Completed 0" in text_of(narrowed)
    assert options(narrowed, "fw-workspaces") == ["ours"]


def test_b110_new_runs_of_others_are_not_announced(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    first = rows.run("failed", workspace="ours", ago=100)
    workflows.scope(lambda: ("ours", "too"))
    rows.run("failed", workspace="theirs", ago=10)

    quiet = client.get(f"/workflows/runs?until={first}")
    rows.run("failed", workspace="too", ago=5)
    told = client.get(f"/workflows/runs?until={first}")

    assert "new run" not in text_of(quiet)
    assert "Show 1 new run" in text_of(told)


def test_b110_visitor_without_a_workspace_sees_nothing(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    rows.run("failed", workspace="theirs")
    rows.run("pending")
    workflows.scope(lambda: ())

    page = client.get("/workflows/runs")

    assert listed(page) == []
    assert "Pending 0 Running 0 Sleeping 0 Waiting 0 Failed 0" in text_of(page)


def test_list_can_be_narrowed_to_a_workspace(client: FlaskClient, rows: Rows) -> None:
    one = rows.run("failed", workspace="ws-1")
    rows.run("failed", workspace="ws-2")
    rows.run("failed")

    page = client.get("/workflows/runs")
    narrowed = client.get("/workflows/runs?workspace=ws-1")

    assert options(page, "fw-workspaces") == ["ws-1", "ws-2"]
    assert listed(narrowed) == [one]
    assert "Failed 1" in text_of(narrowed)


def test_workspace_is_not_asked_for_where_there_is_none(client: FlaskClient, rows: Rows) -> None:
    rows.run()

    fields = [attributes.get("name") for tag, attributes in Tags(client.get("/workflows/runs").text).found]

    assert "workspace" not in fields


# Search ------------------------------------------------------------------------------------


def field(response: TestResponse, name: str) -> dict[str, str | None]:
    named = [attributes for _, attributes in Tags(response.text).found if attributes.get("name") == name]
    (found,) = [attributes for attributes in named if attributes.get("type") != "hidden"]
    return found


def test_search_narrows_the_list_and_its_counts(client: FlaskClient, rows: Rows) -> None:
    mine = rows.run("failed", error=error_json("app.Declined", "no funds"), input='{"order": {"id": 8812}}')
    rows.run("failed", error=error_json("TimeoutError", "no answer"))
    rows.run("completed", input='{"order": {"id": 8812}}')

    response = client.get("/workflows/runs", query_string={"q": "error:declined input.order.id:8812"})

    assert listed(response) == [mine]
    assert "Failed 1 Completed 0" in text_of(response)
    assert field(response, "q")["value"] == "error:declined input.order.id:8812"
    assert all("q=error" in link for link in links(response) if "status=" in link)


@pytest.mark.parametrize("form", ["{}", " {} ", "id:{}", '"{}"'])
def test_pasted_id_leads_to_its_run(client: FlaskClient, rows: Rows, form: str) -> None:
    run_id = rows.run()

    response = client.get("/workflows/runs", query_string={"q": form.format(run_id)})

    assert (response.status_code, response.location) == (303, f"/workflows/run/{run_id}")


def test_b110_pasted_id_that_is_not_there_for_the_visitor_leads_nowhere(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    outside, refused = rows.run(workspace="theirs"), rows.run(workspace="ours")
    workflows.scope(lambda: "ours")
    workflows.authorize(lambda action, run=None: run is None)

    answers = [
        client.get("/workflows/runs", query_string={"q": run_id}) for run_id in (outside, outside.replace("0", "1"))
    ]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert listed(answers[0]) == []
    assert text_of(answers[0]) == text_of(answers[1])
    assert client.get("/workflows/runs", query_string={"q": refused}).status_code == 200


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ("colour:red", "There is no field 'colour'. The fields are workflow, id,"),
        ("onboarding status:nope", "There is no status 'nope'."),
        ('key:"a', "This quotation mark is not closed (character 5)."),
        ("input.password:x", "is hidden, as it matches 'password': nobody may search it (character 1)."),
        ("x" * 600, "A search has 500 characters at most; this one has 600 (character 501)."),
        ("a\x00", "no stored text has (character 2)."),
    ],
)
def test_wrong_search_is_refused_at_the_box_and_the_list_stays(
    client: FlaskClient, rows: Rows, search: str, words: str
) -> None:
    rows.run("completed")
    run_id = rows.run("failed")

    response = client.get("/workflows/runs", query_string={"q": search, "status": "failed"})

    assert response.status_code == 422
    assert words in text_of(response)
    assert "The list below is without the search." in text_of(response)
    assert listed(response) == [run_id]
    box = field(response, "q")
    assert (box["value"], box["aria-invalid"]) == (search, "true")
    assert f'id="{box["aria-describedby"]}"' in response.text
    # What is watched is the list that is shown.
    assert polled(client, response).status_code == 204


def test_stored_values_are_searched_by_those_who_may_see_them(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    run_id = rows.run(input='{"a": 5}')
    workflows.authorize(lambda action, run=None: action != "view_payload")

    for search in ("input.a:5", "-input.a:5", "output:true"):
        response = client.get("/workflows/runs", query_string={"q": search})
        assert response.status_code == 403
        assert "The app does not allow you to look into inputs and outputs (character 1)." in text_of(response)
    assert listing(client, q="onboarding") == [run_id]


def test_b111_what_the_app_hides_is_not_found(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    run_id = rows.run(input='{"salary": 5, "name": "ana"}')
    assert listing(client, q="input.salary:5") == [run_id]

    workflows.redact(lambda path, value: path == "$.salary")

    assert listing(client, q="input.salary:5") == []
    assert listing(client, q="-input.salary:6") == []
    assert listing(client, q="input.name:ana") == [run_id]


@pytest.mark.parametrize("evil", ["<img src=x onerror=alert(1)>", "\"' onmouseover=alert(1) x='", "{{7*7}}"])
def test_b109_search_is_shown_as_text(client: FlaskClient, rows: Rows, evil: str) -> None:
    rows.run()

    for search in (evil, f'key:"{evil}', f"{evil}:x"):
        response = client.get("/workflows/runs", query_string={"q": search})
        assert response.status_code in (200, 422)
        assert field(response, "q")["value"] == search
        assert not [name for _, attributes in Tags(response.text).found for name in attributes if name.startswith("on")]
        assert "49" not in text_of(response)


def test_bounded_search_says_how_far_it_looked(
    client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flask_workflows.dashboard.views.runs.SCAN", 5)
    rows.run(ago=100, input='{"a": 5}')
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(1, 21)])
    found = rows.run(ago=0, input='{"a": 5}')

    response = client.get("/workflows/runs", query_string={"q": "input.a:5"})
    (older,) = [link for link in links(response) if "cursor=older" in link]
    nothing = client.get(older)

    assert listed(response) == [found]
    assert "Searched the newest 5 runs that match the rest; narrow the time or the workflow" in text_of(response)
    assert "None among the newest 5 runs." in text_of(nothing)
    assert "narrow the time or the workflow" in text_of(nothing)


def test_search_that_takes_too_long_says_so(client: FlaskClient, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flask_workflows.dashboard.visit.SECONDS", 0.0)
    rows.run(input='{"a": 5}')
    monkeypatch.setattr(Visit, "now", lambda *_: NOW)

    response = client.get("/workflows/runs", query_string={"q": "-input.a:6"})

    assert response.status_code == 200
    assert "Took over 2 s. Narrow the time or the workflow." in text_of(response)
    assert "All Pending Running Sleeping Waiting Failed Completed Cancelled" in text_of(response)


# The list ----------------------------------------------------------------------------------


def test_timers_come_soonest_first(client: FlaskClient, rows: Rows) -> None:
    late, soon, next_one = (rows.run("sleeping", ago=ago, due_at=NOW_MS + at) for ago, at in ((1, 9), (3, 1), (2, 5)))
    rows.run("failed", ago=1)

    by_tab = client.get("/workflows/runs?status=sleeping&limit=25")
    by_search = client.get("/workflows/runs?q=status:sleeping")

    assert listed(by_tab) == listed(by_search) == [soon, next_one, late]
    assert "Runs, due first" in by_tab.text
    assert polled(client, by_tab).status_code == 204
    # None is hidden from who watches, and a new one is told.
    assert polled(client, client.get("/workflows/runs?status=sleeping&live=1")).status_code == 204
    rows.run("sleeping", ago=0, due_at=NOW_MS - 1)
    watched = polled(client, by_tab)
    assert listed(watched) == [soon, next_one, late]
    assert "Show 1 new run" in text_of(watched)


def test_pages_of_timers_lead_on_and_back(client: FlaskClient, rows: Rows) -> None:
    rows.insert(models.runs, [run_row("sleeping", ago=n, due_at=NOW_MS + n * 7 % 60) for n in range(60)])

    first = client.get("/workflows/runs?limit=25&status=sleeping")
    (later,) = [link for link in links(first) if "cursor=older" in link]
    second = client.get(later)
    (sooner,) = [link for link in links(second) if "cursor=newer" in link]

    assert "Later" in text_of(first)
    assert "Sooner" in text_of(second)
    assert len(set(listed(first)) | set(listed(second))) == 50
    assert listed(client.get(sooner)) == listed(first)
    assert client.get(later.replace("status=sleeping", "status=failed")).status_code == 422


def test_tries_are_told(client: FlaskClient, rows: Rows) -> None:
    failed = rows.run("failed", ago=1, error=error_json(step="render"))
    rows.step(failed, "render", 1, "failed", attempts=5)
    retrying = rows.run("sleeping", ago=2)
    rows.step(retrying, "fetch", 1, "retrying", attempts=3, error=error_json())
    rows.run("failed", ago=3, attempts=2)
    rows.run("pending", ago=4)
    rows.run("running", ago=5, attempts=1)
    rows.run("completed", ago=6)

    response = client.get("/workflows/runs")

    assert re.findall(r'data-label="Tries">(\d+)<', response.text) == ["5", "3", "2", "0", "2", "1"]


def test_nothing_matches_but_would_without_one_filter(client: FlaskClient, rows: Rows) -> None:
    rows.insert(models.runs, [run_row("failed", ago=90_000) for _ in range(12)])
    rows.run("failed", ago=5, workflow="other")

    response = client.get("/workflows/runs?status=failed&workflow=onboarding&time=24h&q=status:failed&limit=25")

    assert "No runs match. 12 match without the time limit. 1 matches of any workflow. Show all" in text_of(response)
    (without_time,) = {
        link for link in links(response) if "time=" not in link and "workflow=onboarding" in link and "q=" in link
    }
    assert len(listing(client, **dict(parse_qsl(urlsplit(without_time).query)))) == 12


def test_nothing_matches_at_all(client: FlaskClient, rows: Rows) -> None:
    assert "No runs yet." in text_of(client.get("/workflows/runs?limit=25"))
    rows.run()
    assert "No runs match. Show all runs" in text_of(client.get("/workflows/runs?key=nope&queue=nope"))


def test_b110_runs_outside_the_scope_do_not_show_as_others(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    rows.run("failed", workspace="theirs")
    workflows.scope(lambda: "ours")

    assert "No runs match. Show all runs" in text_of(
        client.get("/workflows/runs?workspace=theirs&time=24h&q=onboarding")
    )


# Many at once ------------------------------------------------------------------------------


@pytest.fixture
def with_bulk(app: Flask) -> None:
    """The page that asks before many runs are acted on; it may not be there yet."""
    if "flask_workflows.bulk_confirm" not in app.view_functions:
        app.add_url_rule("/workflows/ask", "flask_workflows.bulk_confirm", lambda: "", methods=["POST"])


def ticks(response: TestResponse) -> list[dict[str, str | None]]:
    return [found for _, found in Tags(response.text).found if found.get("name") == "run"]


@pytest.mark.usefixtures("with_bulk")
def test_runs_can_be_ticked(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("failed", workspace="ws-1")
    rows.run("completed", workspace="ws-1")

    response = client.get("/workflows/runs?status=failed&workspace=ws-1&limit=25&q=onboarding")

    (tick,) = ticks(response)
    assert tick["value"] == run_id
    assert tick["form"] == "fw-bulk"
    assert tick["aria-label"] == f"Select onboarding …{run_id[-6:]}"
    (form,) = [found for tag, found in Tags(response.text).found if tag == "form" and found.get("id") == "fw-bulk"]
    assert form["method"] == "post"
    (own,) = re.findall(r'(?s)<form [^>]*id="fw-bulk".*?</form>', response.text)
    hidden = {str(found["name"]): found["value"] for _, found in Tags(own).found if found.get("type") == "hidden"}
    assert hidden.pop("workflows_token")
    assert hidden == {"status": "failed", "workspace": "ws-1", "q": "onboarding"}
    buttons = [found["value"] for tag, found in Tags(response.text).found if found.get("name") == "action"]
    assert buttons == ["cancel", "retry", "wake"]
    assert "Cancel ticked… Retry ticked… Wake ticked… All 1 that match, not only ticked" in " ".join(
        re.sub(r"<[^>]+>", " ", response.text).split()
    )


@pytest.mark.usefixtures("with_bulk")
def test_only_what_is_allowed_is_offered(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    rows.run()
    workflows.authorize(lambda action, run=None: action in ("view", "bulk", "retry"))
    response = client.get("/workflows/runs")
    assert len(ticks(response)) == 1
    assert [found["value"] for _, found in Tags(response.text).found if found.get("name") == "action"] == ["retry"]

    for allowed in (("view", "retry"), ("view", "bulk")):
        workflows.authorize(lambda action, run=None, allowed=allowed: action in allowed)
        response = client.get("/workflows/runs")
        assert ticks(response) == []
        assert "fw-bulk" not in response.text


@pytest.mark.usefixtures("with_bulk")
def test_nothing_can_be_ticked_beside_a_wrong_search(client: FlaskClient, rows: Rows) -> None:
    rows.run()

    response = client.get("/workflows/runs?q=colour:red")

    assert "fw-bulk" not in response.text
    assert "fw-bulk" not in client.get("/workflows/runs?key=nope").text
