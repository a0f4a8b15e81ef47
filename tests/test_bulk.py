"""One action on many runs: those ticked, or all that match a filter, frozen when it was ordered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import operations
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.dashboard import csrf
from flask_workflows.operations import BULK
from flask_workflows.operations import Order
from flask_workflows.runs import RunQuery
from flask_workflows.testing import every_crash
from flask_workflows.testing import FixedClock as MovableClock
from flask_workflows.testing import run_until_idle
from tests import apps
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
def may() -> set[str]:
    """What the visitor is refused."""
    return set()


@pytest.fixture
def scope() -> list[Any]:
    """The visitor's workspaces; null for all."""
    return [None]


@pytest.fixture
def workflows(may: set[str], scope: list[Any]) -> Workflows:
    def authorize(action: str, run: Run | None = None) -> bool:
        return action not in may and (run is None or f"{action} {run.id}" not in may)

    workflows = Workflows(authorize=authorize, scope=lambda: scope[0], actor=lambda: "ana")
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


@pytest.fixture
def anywhere(app: Flask) -> Iterator[None]:
    with app.app_context():
        yield


def token_of(client: FlaskClient) -> dict[str, str]:
    """The field that forms are checked by, as any form holds it."""
    with client.application.test_request_context():
        return {csrf.FIELD: csrf.token("ana")}


def confirm(client: FlaskClient, action: str, **fields: Any) -> TestResponse:
    return client.post("/workflows/ops/confirm", data={**token_of(client), "action": action, **fields})


def fields_of(page: TestResponse) -> dict[str, str]:
    return {
        attributes["name"] or "": attributes.get("value") or ""
        for tag, attributes in Tags(page.text).found
        if tag in ("input", "textarea") and "name" in attributes
    }


def order(client: FlaskClient, page: TestResponse, **typed: str) -> TestResponse:
    return client.post("/workflows/ops", data={**fields_of(page), **typed})


def statuses(rows: Rows) -> dict[str, int]:
    """How many runs have each status, the operations left out."""
    query = (
        sa.select(models.runs.c.status, sa.func.count())
        .where(models.runs.c.workflow != BULK)
        .group_by(models.runs.c.status)
    )
    with rows.engine.connect() as connection:
        found = [(str(status), int(number)) for status, number in connection.execute(query)]
    return dict(found)


def audited(rows: Rows) -> list[tuple[Any, ...]]:
    columns = models.audit.c
    query = sa.select(columns.actor, columns.action, columns.run_id, columns.reason, columns.operation)
    with rows.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query.order_by(columns.id))]


@pytest.mark.usefixtures("anywhere")
def test_ticked_runs_are_cancelled_and_no_others(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    ticked = [rows.run("sleeping", due_at=NOW_MS + HOUR_MS) for _ in range(3)]
    rows.run("sleeping", due_at=NOW_MS + HOUR_MS)

    page = confirm(client, "cancel", run=ticked)
    assert "Cancel 3 runs?" in text_of(page)
    done = order(client, page, reason="A flood")
    assert done.status_code == 303
    assert statuses(rows) == {"sleeping": 4}
    run_until_idle(workflows)

    assert statuses(rows) == {"sleeping": 1, "cancelled": 3}
    operation = done.headers["Location"].rpartition("/")[2]
    assert sorted(audited(rows)[1:]) == sorted(("ana", "cancel", run, "A flood", operation) for run in ticked)
    shown = text_of(client.get(done.headers["Location"]))
    assert "Done: 3 of 3 runs." in shown
    assert "A flood" in shown


@pytest.mark.usefixtures("anywhere")
def test_all_that_match_are_frozen_when_asked(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    for _ in range(5):
        rows.run("failed", error='{"type": "KeyError", "message": "no"}')
    rows.run("failed", workflow="renewal", error='{"type": "KeyError", "message": "no"}')
    rows.run("completed")

    page = confirm(client, "retry", all="1", workflow="onboarding")
    # It fails after the page was drawn, and so is not meant.
    rows.run("failed", ago=0, error='{"type": "KeyError", "message": "no"}')
    text = text_of(page)
    done = order(client, page)
    run_until_idle(workflows)

    assert "Retry 5 runs?" in text
    assert "1 other run" in text
    assert statuses(rows) == {"completed": 6, "failed": 2}
    assert "Done: 5 of 5 runs." in text_of(client.get(done.headers["Location"]))


@pytest.mark.usefixtures("anywhere")
def test_all_that_a_search_finds_are_meant_and_b111_nothing_hidden(
    client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.redact(lambda path, value: path == "$.salary")
    rows.run("sleeping", due_at=NOW_MS + HOUR_MS, input='{"user_id": 8, "salary": 5}')
    rows.run("sleeping", due_at=NOW_MS + HOUR_MS, input='{"user_id": 9, "salary": 5}')

    assert "No run" in text_of(confirm(client, "cancel", all="1", q="input.salary:5"))
    page = confirm(client, "cancel", all="1", q="input.user_id:8 -status:failed")
    assert "Cancel 1 run?" in text_of(page)
    order(client, page)
    run_until_idle(workflows)

    assert statuses(rows) == {"sleeping": 1, "cancelled": 1}
    assert confirm(client, "cancel", all="1", q="colour:red").status_code == 422


@pytest.mark.usefixtures("anywhere")
def test_form_sent_twice_is_one_operation(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    page = confirm(client, "cancel", run=[rows.run("sleeping", due_at=NOW_MS + HOUR_MS)])

    first, second = order(client, page), order(client, page)
    run_until_idle(workflows)
    third = order(client, page)

    assert first.headers["Location"] == second.headers["Location"] == third.headers["Location"]
    assert len(workflows.runs(RunQuery(workflow=BULK))) == 1
    assert len(audited(rows)) == 2


@pytest.mark.usefixtures("anywhere")
def test_above_a_hundred_the_number_is_typed(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    for _ in range(101):
        rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    page = confirm(client, "cancel", all="1")

    refused = order(client, page, reason="Why not")
    wrong = order(client, page, number="100")
    run_until_idle(workflows)

    assert refused.status_code == wrong.status_code == 422
    assert "Type 101" in text_of(refused)
    assert "Why not" in refused.text
    assert statuses(rows) == {"sleeping": 101}

    assert order(client, page, number="101").status_code == 303
    run_until_idle(workflows)
    assert statuses(rows) == {"cancelled": 101}


@pytest.mark.usefixtures("anywhere")
def test_operation_goes_in_chunks_and_stops_between_two(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    for _ in range(operations.CHUNK + 50):
        rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    page = confirm(client, "cancel", all="1")
    done = order(client, page, number="250")
    address = done.headers["Location"]
    stopped = client.post(f"{address}/stop", data=token_of(client))
    run_until_idle(workflows)

    assert stopped.status_code == 303
    assert statuses(rows) == {"sleeping": 250}
    assert "Stopped after 0 of 250 runs." in text_of(client.get(address))
    assert "Stopped" in text_of(client.get("/workflows/ops")) or "Cancelled" in text_of(client.get("/workflows/ops"))


@pytest.mark.usefixtures("anywhere")
def test_runs_that_moved_on_are_skipped(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    kept, gone = (rows.run("sleeping", due_at=NOW_MS + HOUR_MS) for _ in range(2))
    done = order(client, confirm(client, "cancel", run=[kept, gone]))
    rows.change(gone, status="completed", due_at=None, finished_at=NOW_MS)
    run_until_idle(workflows)

    text = text_of(client.get(done.headers["Location"]))
    assert "Done: 1 of 2 runs." in text
    assert "Skipped 1" in text


@pytest.mark.usefixtures("anywhere")
def test_key_that_a_newer_run_holds_is_said(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    failed = rows.run("failed", key="order-7", error='{"type": "KeyError", "message": "no"}')
    rows.run("sleeping", key="order-7", due_at=NOW_MS + HOUR_MS)
    done = order(client, confirm(client, "retry", run=[failed]))
    run_until_idle(workflows)

    text = text_of(client.get(done.headers["Location"]))
    assert "Refused 1" in text
    assert "order-7" in text


@pytest.mark.usefixtures("anywhere")
def test_crash_anywhere_acts_on_each_run_once(rows: Rows, workflows: Workflows) -> None:
    workflows.clock = MovableClock(NOW)
    for attempt in every_crash(workflows):
        with rows.engine.begin() as connection:
            for table in reversed(models.metadata.sorted_tables):
                connection.execute(table.delete())
        ids = [rows.run("sleeping", due_at=2**42) for _ in range(3)]
        meant = Order("cancel", By("ana"), runs=tuple(ids))
        with attempt:
            workflows.spawn(BULK, {"order": meant, "expected": 3})
            run_until_idle(workflows)
        run_until_idle(workflows)

        assert statuses(rows) in ({"cancelled": 3}, {"sleeping": 3})
        if statuses(rows) == {"cancelled": 3}:
            assert sorted(row[2] for row in audited(rows)) == sorted(ids)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "No run is ticked"),
        ({"all": "1", "status": "odd"}, "There is no status"),
        ({"run": [f"{n:036}" for n in range(201)]}, "200 is the most"),
    ],
    ids=["none", "status", "many"],
)
def test_wrong_order_is_refused_in_words(client: FlaskClient, fields: dict[str, Any], words: str) -> None:
    page = confirm(client, "cancel", **fields)

    assert page.status_code == 422
    assert words in text_of(page)


def test_unknown_action_is_refused(client: FlaskClient) -> None:
    assert confirm(client, "delete", run=["x"]).status_code == 422


def test_order_of_somebody_else_is_not_taken(client: FlaskClient, rows: Rows, scope: list[Any]) -> None:
    page = confirm(client, "cancel", run=[rows.run("sleeping", due_at=NOW_MS + HOUR_MS)])
    fields = fields_of(page)
    scope[0] = ("north",)

    assert client.post("/workflows/ops", data=fields).status_code == 422
    assert client.post("/workflows/ops", data={**fields, "order": "x"}).status_code == 422


@pytest.mark.parametrize("refused", ["bulk", "cancel", "view"])
def test_each_permission_is_asked_for(client: FlaskClient, rows: Rows, may: set[str], refused: str) -> None:
    page = confirm(client, "cancel", run=[rows.run("sleeping", due_at=NOW_MS + HOUR_MS)])
    assert page.status_code == 200
    may.add(refused)

    again = confirm(client, "cancel", run=[rows.run("sleeping", due_at=NOW_MS + HOUR_MS)])
    if refused == "view":
        assert "Nothing to do" in text_of(again)
    else:
        assert again.status_code == 403
        assert order(client, page).status_code == 403
    assert statuses(rows) == {"sleeping": 2}


def test_run_the_visitor_may_not_cancel_is_left_out(client: FlaskClient, rows: Rows, may: set[str]) -> None:
    allowed, other = (rows.run("sleeping", due_at=NOW_MS + HOUR_MS) for _ in range(2))
    may.add(f"cancel {other}")

    page = confirm(client, "cancel", run=[allowed, other])

    assert "Cancel 1 run?" in text_of(page)
    assert other not in page.text


@pytest.mark.usefixtures("anywhere")
def test_b110_other_workspaces_are_out_of_reach(
    client: FlaskClient, rows: Rows, workflows: Workflows, scope: list[Any]
) -> None:
    ours = rows.run("sleeping", workspace="north", due_at=NOW_MS + HOUR_MS)
    theirs = rows.run("sleeping", workspace="south", due_at=NOW_MS + HOUR_MS)
    of_all = order(client, confirm(client, "wake", run=[theirs])).headers["Location"]
    scope[0] = ("north",)

    ticked, every = confirm(client, "cancel", run=[ours, theirs]), confirm(client, "cancel", all="1")
    assert "Cancel 1 run?" in text_of(ticked)
    assert "Cancel 1 run?" in text_of(every)
    assert theirs not in ticked.text + every.text
    assert client.get(of_all).status_code == 404
    assert client.post(f"{of_all}/stop", data=token_of(client)).status_code == 404
    assert of_all.rpartition("/")[2] not in client.get("/workflows/ops").text

    mine = order(client, every).headers["Location"]
    run_until_idle(workflows)
    assert client.get(mine).status_code == 200
    assert mine in client.get("/workflows/ops").text
    scope[0] = None
    assert workflows.get(ours).status == "cancelled"
    assert workflows.get(theirs).status != "cancelled"


def test_b111_what_the_app_hides_is_not_found_by_an_operation(
    app: Flask, client: FlaskClient, rows: Rows, workflows: Workflows
) -> None:
    workflows.redact(lambda path, value: path == "$.salary")
    run_id = rows.run("failed", input='{"salary": 5, "name": "ana"}')

    hidden = confirm(client, "retry", all="1", q="input.salary:5")
    shown = confirm(client, "retry", all="1", q="input.name:ana")

    assert "Nothing to do" in text_of(hidden)
    assert run_id not in hidden.text
    assert "Retry 1 run?" in text_of(shown)
    found = Order("retry", By("ana"), query=RunQuery(search="input.salary:5"))
    with app.app_context():
        assert operations.act("none", found, None).done == 0


def test_who_ordered_it_and_why_are_for_those_who_see_the_audit(client: FlaskClient, rows: Rows, may: set[str]) -> None:
    rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    done = order(client, confirm(client, "wake", all="1"), reason="asked, password=hunter2").headers["Location"]

    shown = [client.get(address).text for address in (done, "/workflows/ops")]
    may.add("view_audit")
    hidden = [client.get(address).text for address in (done, "/workflows/ops")]

    assert "asked, password=[hidden]" in shown[0]
    assert all("ana" in text and "hunter2" not in text for text in shown)
    assert not any("ana" in text or "asked" in text for text in hidden)


@pytest.mark.parametrize("stored", ["{", "null", "[]", '{"order": 1, "expected": 2}', '{"expected": "x"}'])
def test_operation_that_cannot_be_read_spoils_nothing(
    client: FlaskClient, rows: Rows, scope: list[Any], stored: str
) -> None:
    broken = [rows.run(status, workflow=BULK, input=stored, output="{") for status in ("completed", "running")]

    for run_id in broken:
        page = client.get(f"/workflows/ops/{run_id}")
        assert page.status_code == 200
        assert "Unreadable order" in text_of(page)
        assert run_id in client.get("/workflows/ops").text
    scope[0] = ("north",)
    assert client.get(f"/workflows/ops/{broken[0]}").status_code == 404


def test_texts_are_shown_as_text(client: FlaskClient, rows: Rows) -> None:
    evil = "<img src=x onerror=alert(1)>"
    page = confirm(client, "cancel", run=[rows.run("sleeping", workflow=evil[:20], due_at=NOW_MS + HOUR_MS)])
    done = order(client, page, reason=evil)

    assert "<img" not in page.text
    shown = client.get(done.headers["Location"]).text + client.get("/workflows/ops").text
    assert "<img" not in shown
    assert re.search(r"&lt;img src=x", shown)


def test_page_of_an_operation_is_live_until_it_has_ended(
    client: FlaskClient, rows: Rows, app: Flask, workflows: Workflows
) -> None:
    page = confirm(client, "cancel", run=[rows.run("sleeping", due_at=NOW_MS + HOUR_MS)])
    address = order(client, page).headers["Location"]

    assert "data-live" in client.get(address).text
    with app.app_context():
        run_until_idle(workflows)
    assert "data-live" not in client.get(address).text


def test_own_workflow_is_in_no_list_of_the_apps(workflows: Workflows) -> None:
    assert [workflow.name for workflow in workflows.registry.workflows()] == ["onboarding"]
    assert (BULK, 1, 1) in workflows.registry.ranges()
