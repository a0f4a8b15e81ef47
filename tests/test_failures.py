from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import models
from flask_workflows import Workflows
from flask_workflows.dashboard.pages.failures import bars
from flask_workflows.dashboard.pages.failures import HEIGHT
from flask_workflows.dashboard.visit import Kept
from flask_workflows.errors import ReadTimeout
from flask_workflows.runs import Count
from flask_workflows.runs import Failures
from flask_workflows.store import reading as read
from flask_workflows.store.reading import scope as looking
from tests import apps
from tests.pages import polled
from tests.pages import Tags
from tests.pages import text_of
from tests.plans import plans
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import tables
from tests.running import Clock

EVIL = "<img src=x onerror=alert(1)>"
HOUR = 3_600
DAY = timedelta(hours=24)


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = FixedClock()
    return workflows


@pytest.fixture
def app(database_url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(database_url, workflows=workflows)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer may take long enough to be kept, and the next look would not see what changed."""
    monkeypatch.setattr(Kept, "slow_after", float("inf"))


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


def fail(rows: Rows, cause: str | None, *, ended_ago: float = 60, **values: Any) -> str:
    """A failed run that took an hour."""
    ended = NOW_MS - int(ended_ago * 1000)
    given = {"error": error_json(), **values}
    return rows.run("failed", ago=ended_ago + HOUR, finished_at=ended, cause=cause, **given)


def listed(client: FlaskClient, query: str = "") -> list[str]:
    """The rows of the table, as a reader sees them."""
    response = client.get(f"/workflows/failures{query}")
    assert response.status_code == 200
    found = re.findall(r'(?s)<tr role="row" id="cause-.*?</tr>', response.text)
    return [html.unescape(" ".join(re.sub(r"<[^>]+>", " ", row).split())) for row in found]


# The page ----------------------------------------------------------------------------------


def test_failures_of_one_cause_are_one_row(client: FlaskClient, rows: Rows) -> None:
    fail(rows, "a1", ended_ago=3 * HOUR, version=1)
    fail(rows, "a1", ended_ago=2 * HOUR, version=3, error=error_json(message="older words"))
    newest = fail(rows, "a1", ended_ago=HOUR, version=2, error=error_json(message="newer words", step="charge"))
    fail(rows, "b2", ended_ago=60, workflow="import", error=error_json(type="shop.errors.Refused", message=""))
    rows.run("completed")

    first, second = listed(client)

    assert first.startswith("import Refused Newest run …")
    assert second.startswith(f"onboarding at step charge KeyError: newer words Newest run …{newest[-6:]} 3 ")
    assert "09:00:00 11:00:00 1, 2, 3" in second


def test_row_leads_to_its_runs_and_to_the_newest(client: FlaskClient, rows: Rows) -> None:
    newest = fail(rows, "a1")

    response = client.get("/workflows/failures")

    addresses = {attributes.get("href") for tag, attributes in Tags(response.text).found if tag == "a"}
    assert "/workflows/runs?status=failed&q=cause:a1" in addresses
    assert f"/workflows/run/{newest}" in addresses
    fail(rows, "b2", workflow="other")
    runs = text_of(client.get("/workflows/runs?status=failed&q=cause:a1"))
    assert newest[-6:] in runs
    assert "other" not in runs


def test_time_is_when_they_failed_not_when_they_were_created(client: FlaskClient, rows: Rows) -> None:
    month = 29 * 24 * HOUR
    rows.run("failed", ago=month, finished_at=NOW_MS - 60_000, cause="long", workflow="long", error=error_json())
    fail(rows, "hours", ended_ago=2 * HOUR, workflow="hours")
    fail(rows, "days", ended_ago=48 * HOUR, workflow="days")
    fail(rows, "weeks", ended_ago=8 * 24 * HOUR, workflow="weeks")
    fail(rows, "months", ended_ago=31 * 24 * HOUR, workflow="months")

    def names(query: str) -> list[str]:
        return [row.split()[0] for row in listed(client, query)]

    assert names("?time=1h") == ["long"]
    assert names("") == names("?time=24h") == ["long", "hours"]
    assert names("?time=7d") == ["long", "hours", "days"]
    assert names("?time=30d") == ["long", "hours", "days", "weeks"]
    assert names("?time=all") == ["long", "hours", "days", "weeks", "months"]


def test_unknown_time_is_refused(client: FlaskClient) -> None:
    response = client.get("/workflows/failures?time=2h")

    assert response.status_code == 422
    assert "Write one of 1h, 24h, 7d, 30d, all." in text_of(response)


def test_failures_without_a_cause_are_grouped_by_their_class(client: FlaskClient, rows: Rows) -> None:
    fail(rows, None, error=error_json(type="OSError", message="one"))
    fail(rows, None, error=error_json(type="OSError", message="two", traceback="x" * 5_000))
    fail(rows, None, error=error_json(type="KeyError"))
    fail(rows, None, workflow="other", error=error_json(type="OSError"))
    fail(rows, None, workflow="silent", error=None)
    fail(rows, None, workflow="broken", error="{not json")

    found = listed(client)

    assert sorted(re.sub(r" Newest run …\w+ (\d+) .*", r" x \1", row) for row in found) == [
        "broken unreadable: the stored error cannot be read x 1",
        "onboarding KeyError: 'vat_id' x 1",
        "onboarding OSError: two x 2",
        "other OSError: 'vat_id' x 1",
        "silent no error was stored x 1",
    ]
    addresses = {attributes.get("href") for _, attributes in Tags(client.get("/workflows/failures").text).found}
    assert "/workflows/runs?status=failed&workflow=other" in addresses


def test_hours_are_drawn_by_when_the_runs_failed(client: FlaskClient, rows: Rows) -> None:
    for ago in (60, 120, 5 * HOUR, 30 * HOUR):
        fail(rows, "a1", ended_ago=ago)

    response = client.get("/workflows/failures?time=all")

    assert 'aria-label="3 in the last 24 hours"' in response.text
    drawn = [attributes for tag, attributes in Tags(response.text).found if tag == "rect"]
    assert [(bar["x"], bar["height"]) for bar in drawn] == [("90.0", "12.0"), ("110.0", "24.0")]


def test_bars_stay_in_their_frame_however_many_there_are() -> None:
    drawn = bars({1: 1_000_000, 2: 1}, range(24))

    assert [bar.height for bar in drawn] == [HEIGHT, 2]
    assert all(bar.y >= 0 and bar.y + bar.height <= HEIGHT for bar in drawn)
    assert bars({}, range(24)) == ()


def test_nothing_failed_says_so_and_where_older_ones_are(client: FlaskClient, rows: Rows) -> None:
    assert "No failures in the last 24 hours." in text_of(client.get("/workflows/failures"))
    assert "older" not in text_of(client.get("/workflows/failures"))
    assert "No failures." in text_of(client.get("/workflows/failures?time=all"))

    fail(rows, "a1", ended_ago=48 * HOUR)

    response = client.get("/workflows/failures?time=1h")
    assert "No failures in the last hour. 1 failed run is older. Show failures of any time" in text_of(response)
    assert "/workflows/failures?time=all" in response.text


def test_retried_runs_leave_the_page(client: FlaskClient, rows: Rows) -> None:
    run_id = fail(rows, "a1")
    first = client.get("/workflows/failures")
    assert 'data-live="10"' in first.text
    assert polled(client, first).status_code == 204

    rows.change(run_id, status="pending", cause=None, error=None, finished_at=None, due_at=NOW_MS + 10**6)

    changed = polled(client, first)
    assert changed.status_code == 200
    assert "No failures in the last 24 hours." in text_of(changed)
    assert polled(client, changed).status_code == 204


def test_poll_keeps_the_time(client: FlaskClient, rows: Rows) -> None:
    fail(rows, "a1", ended_ago=48 * HOUR)
    first = client.get("/workflows/failures?time=7d")
    fail(rows, "b2")

    assert "1 in the last" in polled(client, first).text
    assert len(re.findall('<tr role="row" id', polled(client, first).text)) == 2


def test_user_data_is_text_and_secrets_are_hidden(client: FlaskClient, rows: Rows) -> None:
    fail(rows, "a1", workflow=EVIL, error=error_json(type=EVIL, message=EVIL, step=EVIL))
    fail(rows, EVIL, error=error_json(message="password=hunter2"))
    fail(rows, None, workflow=EVIL, error=error_json(type=EVIL, message=EVIL))

    response = client.get("/workflows/failures")

    assert "<img" not in response.text
    assert response.text.count("&lt;img") > 5
    assert "hunter2" not in response.text


def test_no_payload_is_read(app: Flask, client: FlaskClient, rows: Rows) -> None:
    fail(rows, "a1")
    fail(rows, None)
    statements: list[str] = []
    sa.event.listen(apps.runtime_of(app).engine, "before_cursor_execute", lambda *args: statements.append(args[2]))

    client.get("/workflows/failures")

    assert statements
    for statement in statements:
        assert "input" not in statement
        assert "output" not in statement


def test_slow_answer_says_so(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any) -> Failures:
        raise ReadTimeout("reading took more than 2 s")

    monkeypatch.setattr(read, "list_failures", slow)

    response = client.get("/workflows/failures")

    assert response.status_code == 200
    assert "Took over 2 s." in text_of(response)


def test_retry_is_offered_only_where_there_is_a_page_for_it_and_only_to_those_who_may(
    database_url: str, make_app: apps.MakeApp, workflows: Workflows
) -> None:
    allowed = ["view", "retry"]
    workflows.hooks = replace(workflows.hooks, authorize=lambda action, run=None: action in allowed)
    app = make_app(database_url, workflows=workflows)
    fail(rows_of(app), "a1")
    fail(rows_of(app), None)
    there = "flask_workflows.bulk_confirm" in app.view_functions
    if not there:
        app.add_url_rule("/workflows/bulk", "flask_workflows.bulk_confirm", lambda: "", methods=["POST"])
    client = app.test_client()

    before = client.get("/workflows/failures")
    allowed.append("bulk")
    response = client.get("/workflows/failures")

    assert "Retry all…" not in before.text
    # What has no cause cannot be told from others.
    assert response.text.count("Retry all…") == 1
    sent = {
        attributes["name"]: attributes["value"]
        for tag, attributes in Tags(response.text).found
        if tag == "input" and attributes["type"] == "hidden"
    }
    assert sent.pop("csrf_token", None) or any("token" in str(name) for name in sent)
    assert {name: sent[name] for name in ("action", "status", "q", "all")} == {
        "action": "retry",
        "status": "failed",
        "q": "cause:a1",
        "all": "1",
    }


# Tenants -----------------------------------------------------------------------------------


@pytest.fixture
def scoped(workflows: Workflows) -> list[Any]:
    """What the app answers for the visitor's workspaces: the first element."""
    answer: list[Any] = [None]
    workflows.hooks = replace(workflows.hooks, scope=lambda: answer[0])
    return answer


@pytest.mark.parametrize("mine", ["mine", ""])
@pytest.mark.parametrize("cause", ["shared", None])
def test_b110_failures_of_others_are_not_counted(
    client: FlaskClient, rows: Rows, scoped: list[Any], mine: str, cause: str | None
) -> None:
    own = fail(rows, cause, workspace=mine, ended_ago=HOUR)
    foreign = fail(rows, cause, workspace="theirs", version=7, error=error_json(message="theirs"))
    fail(rows, "only theirs", workspace="theirs", workflow="theirs")
    scoped[0] = mine

    response = client.get("/workflows/failures?time=all")
    (row,) = listed(client, "?time=all")

    assert f"…{own[-6:]} 1 11:00:00 11:00:00 1" in row
    assert "theirs" not in response.text
    assert foreign not in response.text
    assert counted(client) == "1"


def test_b110_visitor_of_no_workspace_sees_no_failure(client: FlaskClient, rows: Rows, scoped: list[Any]) -> None:
    fail(rows, "a1", ended_ago=HOUR)
    scoped[0] = ()

    text = text_of(client.get("/workflows/failures?time=1h"))

    assert "No failures in the last hour." in text
    assert "older" not in text
    assert counted(client) is None


# In the bar --------------------------------------------------------------------------------


def counted(client: FlaskClient) -> str | None:
    """The number beside Failures in the bar."""
    found = re.search(r'(?s)<nav class="fw-nav".*?</nav>', client.get("/workflows/runs").text)
    assert found is not None
    number = re.search(r'href="[^"]*/failures"[^>]*>Failures(?: <b[^>]*>(.*?)</b>)?</a>', found[0])
    assert number is not None
    return number[1]


def test_bar_counts_the_causes_of_the_last_day(client: FlaskClient, rows: Rows) -> None:
    fail(rows, "old", ended_ago=25 * HOUR)
    assert counted(client) is None

    fail(rows, "a1")
    fail(rows, "a1")
    fail(rows, "b2", ended_ago=23 * HOUR)
    fail(rows, None)
    assert counted(client) == "3"


# Reading -----------------------------------------------------------------------------------


def failures_of(rows: Rows, workspaces: tuple[str, ...] | None = None, **options: Any) -> Failures:
    with read.reading(rows.engine) as connection:
        return read.list_failures(connection, None, NOW - DAY, workspaces, **options)


@pytest.fixture
def bare(database_url: str) -> Iterator[Rows]:
    with tables(database_url) as rows:
        yield rows


def test_bounded_look_says_that_there_are_more(bare: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "LOOKED_AT", 5)
    monkeypatch.setattr(looking.newest, "__kwdefaults__", {"limit": 5})
    for workspace in ("", "mine"):
        for _ in range(5):
            fail(bare, "a1", workspace=workspace)

    # Those of no workspace are looked for among the newest of all.
    assert failures_of(bare).looked_at == Count(5, capped=True)
    assert failures_of(bare, ("mine",)).looked_at == Count(5)
    assert failures_of(bare, ("",)).looked_at == Count(0, capped=True)
    assert failures_of(bare, ("mine", "")).looked_at == Count(5, capped=True)
    assert sum(group.count for group in failures_of(bare).groups) == 5


def test_causes_beyond_the_most_are_told(bare: Rows) -> None:
    for n in range(7):
        fail(bare, f"cause-{n}", ended_ago=n)

    found = failures_of(bare, most=5)

    assert [group.cause for group in found.groups] == [f"cause-{n}" for n in range(5)]
    assert found.more == 2


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    """Mostly completed runs, and failures of several causes."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('failures') / 'runs.sqlite3'}"
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.url(name := server.create_database())
    with tables(url) as rows:
        made = [
            run_row(
                "failed" if n % 50 == 0 else "completed",
                ago=(20_000 - n) * 10,
                workspace="tenant" if n % 300 == 0 else "",
                error=error_json() if n % 50 == 0 else None,
                cause=f"cause-{n % 7}" if n % 100 == 0 else None,
            )
            for n in range(20_000)
        ]
        rows.insert(models.runs, made)
        if rows.engine.dialect.name == "postgresql":
            with rows.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield rows
    if request.param == "postgresql":
        server.drop_database(name)


@pytest.mark.parametrize("workspaces", [None, ("tenant", ""), ("tenant",)], ids=["all", "two", "one"])
@pytest.mark.parametrize("since", [None, NOW - DAY], ids=["any time", "a day"])
def test_b92_failures_are_found_through_an_index(
    large: Rows, workspaces: tuple[str, ...] | None, since: datetime | None
) -> None:
    found = plans(large, lambda connection: read.list_failures(connection, since, NOW - DAY, workspaces))

    assert len(found) >= 3
    for plan in found:
        assert "Seq Scan on workflow_runs" not in plan
        for line in plan.splitlines():
            if line.startswith("SCAN workflow_runs"):
                assert "USING" in line, plan


# Real runs ---------------------------------------------------------------------------------


def test_real_failures_appear_with_what_they_said(database_url: str, make_app: apps.MakeApp) -> None:
    workflows = Workflows(authorize=lambda action, run=None: True)
    workflows.clock = clock = Clock()

    @workflows.step
    def charge(card: int) -> None:
        raise RuntimeError(f"no funds on card {card}")

    @workflows.workflow
    def payer(card: int) -> None:
        charge(card)

    app = make_app(database_url, workflows=workflows)
    with app.app_context():
        ids = [payer.spawn(card).id for card in (11, 22)]
        for _ in range(4):
            workflows.tick()
            clock.move(minutes=5)

    client = app.test_client()
    (row,) = listed(client)
    assert row.startswith("payer at step charge RuntimeError: no funds on card")
    assert re.search(r"Newest run …\w+ 2 ", row)
    (address,) = [
        str(attributes["href"])
        for tag, attributes in Tags(client.get("/workflows/failures").text).found
        if tag == "a" and "cause:" in str(attributes.get("href"))
    ]
    runs = client.get(address)
    assert all(f'id="run-{run_id}"' in runs.text for run_id in ids)


def test_all_runs_of_a_cause_can_be_asked_to_be_retried(client: FlaskClient, rows: Rows) -> None:
    for _ in range(3):
        fail(rows, "a1")
    fail(rows, "b2")
    page = client.get("/workflows/failures").text
    forms = re.findall(r"(?s)<form method=\"post\".*?</form>", page)
    (form,) = [form for form in forms if "cause:a1" in form]
    fields = {str(attributes["name"]): attributes["value"] for tag, attributes in Tags(form).found if tag == "input"}
    (action,) = [attributes["action"] for tag, attributes in Tags(form).found if tag == "form"]

    asks = client.post(str(action), data=fields)

    assert asks.status_code == 200
    assert re.search(r"\b3 runs\b", text_of(asks))
    assert "Retry" in text_of(asks)
