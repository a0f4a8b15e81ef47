"""Paused runs and deadlines on the pages, in searches and over HTTP."""

from __future__ import annotations

from datetime import datetime

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows import models
from flask_workflows import service
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.errors import InvalidSearch
from flask_workflows.runs import Run
from flask_workflows.search import parse
from flask_workflows.store import reading as read
from tests import apps
from tests.answers import API
from tests.answers import get
from tests.answers import post
from tests.answers import problem_of
from tests.pages import links
from tests.pages import text_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.test_actions import ask
from tests.test_actions import link_named
from tests.test_actions import submit

HOUR_MS = 3_600_000
START = "/workflows/runs/new?workflow=onboarding"


class FixedClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
def workflows() -> Workflows:
    workflows = Workflows(authorize=lambda action, run=None: True, actor=lambda: "ana")
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
def one_client(sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows) -> FlaskClient:
    """For what does not depend on the database."""
    return make_app(sqlite_url, workflows=workflows).test_client()


def run_of(app: Flask, run_id: str) -> Run:
    return service.get(apps.runtime_of(app), run_id)


def audit_of(app: Flask) -> list[tuple[str, str, str | None, str | None, str]]:
    with read.reading(apps.runtime_of(app).engine) as connection:
        entries = read.list_audit(connection).entries
    return [(entry.actor, entry.action, entry.before, entry.after, entry.reason) for entry in entries]


def paused(rows: Rows, **values: object) -> str:
    given = {"due_at": None, "paused_at": NOW_MS - 300_000, "paused_due_at": NOW_MS + HOUR_MS, **values}
    return rows.run("sleeping", **given)


# On the run's page -----------------------------------------------------------------------------


def test_run_is_paused_and_resumed_from_its_page(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    page = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Pause…"))
    assert "Its time goes on: resumed after 13:00:00, it goes on at once." in text_of(page)
    assert "Nothing of it is executed until somebody resumes it." in text_of(page)

    done = submit(client, page, reason="the bank is down")
    assert (done.status_code, done.location) == (303, f"/workflows/run/{run_id}")
    shown = client.get(f"/workflows/run/{run_id}")
    assert "The run is paused." in text_of(shown)
    assert "Paused by ana 0 s ago: nothing of it is executed until it is resumed." in text_of(shown)
    assert "fw-edge-paused" in shown.text
    assert run_of(app, run_id).paused

    page = client.get(link_named(shown, "Resume…"))
    assert "It goes on 13:00:00, in 1 h, or when what it waits for comes." in text_of(page)
    assert submit(client, page).status_code == 303
    assert not run_of(app, run_id).paused
    assert "The run is resumed." in text_of(client.get(f"/workflows/run/{run_id}"))
    assert audit_of(app) == [
        ("ana", "resume", "paused", "sleeping", ""),
        ("ana", "pause", "sleeping", "paused", "the bank is down"),
    ]
    assert "sleeping → paused" in text_of(client.get("/workflows/audit?action=pause"))


def test_running_run_is_paused_before_its_next_step(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    rows.step(run_id, "charge", 1, "running")

    page = ask(client, run_id, "pause")
    assert "Step 1, charge, finishes first; nothing after it starts." in text_of(page)
    submit(client, page)

    shown = text_of(client.get(f"/workflows/run/{run_id}"))
    assert "Pausing was asked for by ana 0 s ago; the run stops before its next step." in shown
    assert "It has not stopped yet, and goes on as if nothing had been asked." in text_of(ask(client, run_id, "resume"))
    # It is still executed, and so is its cancellation.
    assert "Step 1, charge, runs on web-1:4711 now." in text_of(ask(client, run_id, "cancel"))


@pytest.mark.parametrize(
    ("action", "status", "values", "words"),
    [
        ("pause", "completed", {}, "The run is completed since"),
        ("pause", "running", {"cancel_requested_at": NOW_MS, "worker": "w"}, "It is being cancelled."),
        ("pause", "sleeping", {"due_at": None, "paused_at": NOW_MS}, "It is paused already."),
        ("resume", "waiting", {}, "It is not paused."),
    ],
)
def test_what_cannot_be_paused_or_resumed_says_why(
    one_client: FlaskClient, action: str, status: str, values: dict[str, object], words: str
) -> None:
    run_id = rows_of(one_client.application).run(status, **values)

    answer = ask(one_client, run_id, action)

    assert (answer.status_code, words in text_of(answer)) == (409, True)


def test_run_that_changed_meanwhile_is_asked_for_again(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("sleeping", due_at=NOW_MS + HOUR_MS)
    page = ask(client, run_id, "pause")
    with app.app_context():
        apps.workflows_of(app).pause(run_id, by=By("bo"))

    refused = submit(client, page)

    assert refused.status_code == 409
    assert "This run went to paused" in text_of(refused)
    assert "by bo" in text_of(refused)
    rows.change(run_id, paused_at=None, due_at=NOW_MS + HOUR_MS, epoch=9)
    assert submit(client, page).status_code == 409


def test_only_the_fitting_one_of_both_is_spoken_of(one_client: FlaskClient) -> None:
    rows = rows_of(one_client.application)
    going_on, held = rows.run("waiting", due_at=None), paused(rows)

    found = [links(one_client.get(f"/workflows/run/{run_id}")) for run_id in (going_on, held)]

    assert f"/workflows/run/{going_on}/pause" in found[0]
    assert not any(link.endswith("/resume") for link in found[0])
    assert f"/workflows/run/{held}/resume" in found[1]
    assert not any(link.endswith("/pause") for link in found[1])


def test_reason_can_be_asked_for(sqlite_url: str, make_app: apps.MakeApp, workflows: Workflows) -> None:
    app = make_app(sqlite_url, workflows=workflows, WORKFLOWS_REQUIRE_REASON=["pause"])
    client, run_id = app.test_client(), rows_of(app).run("waiting")

    assert submit(client, ask(client, run_id, "pause")).status_code == 422
    assert problem_of(client.post(f"{API}/runs/{run_id}/pause", json={})) == (400, "invalid_reason")
    assert submit(client, ask(client, run_id, "pause"), reason="why").status_code == 303


# Lists, searches and the first page ------------------------------------------------------------


def listed(client: FlaskClient, search: str) -> str:
    response: TestResponse = client.get("/workflows/runs", query_string={"q": search})
    assert response.status_code == 200
    return text_of(response)


def test_paused_runs_are_labelled_and_found(client: FlaskClient, rows: Rows) -> None:
    held = paused(rows, workflow="held")
    rows.run("sleeping", due_at=NOW_MS + HOUR_MS, workflow="asleep")
    rows.run("completed", workflow="over")

    assert "Paused paused 5 min ago" in text_of(client.get("/workflows/runs"))
    assert held[-6:] in listed(client, "is:paused")
    assert "asleep" not in listed(client, "is:paused").partition("Created")[2]
    assert held[-6:] not in listed(client, "-is:paused")
    assert held[-6:] in listed(client, "is:paused workflow:held")
    assert "No runs match" in listed(client, "is:paused workflow:over") or "over" in listed(client, "is:paused")
    with pytest.raises(InvalidSearch, match="Write is:paused"):
        parse("is:tired")


def test_many_paused_runs_are_found_among_the_newest(one_client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(one_client.application)
    held = [paused(rows) for _ in range(4)]
    monkeypatch.setattr("flask_workflows.store.reading.searching._FEW", 2)

    assert all(run_id[-6:] in listed(one_client, "is:paused") for run_id in held)


def test_first_page_counts_paused_runs(client: FlaskClient, rows: Rows, workflows: Workflows) -> None:
    assert "paused" not in text_of(client.get("/workflows/"))
    paused(rows)
    response = client.get("/workflows/")
    assert "1 run is paused: it goes on once somebody resumes it." in text_of(response)
    assert "/workflows/runs?q=is:paused" in [link.replace("%3A", ":") for link in links(response)]

    rows.insert(models.runs, [run_row("waiting", due_at=None, paused_at=NOW_MS, workspace="south") for _ in range(2)])
    assert "3 runs are paused: they go on once resumed." in text_of(client.get("/workflows/"))
    workflows.scope(lambda: "south")
    assert "2 runs are paused" in text_of(client.get("/workflows/"))


# Deadlines -------------------------------------------------------------------------------------


def test_deadline_is_told_in_the_sentence(client: FlaskClient, rows: Rows) -> None:
    ahead = rows.run("sleeping", due_at=NOW_MS + HOUR_MS, deadline_at=NOW_MS + 3 * HOUR_MS)
    past = paused(rows, deadline_at=NOW_MS - HOUR_MS)
    over = rows.run("failed", error=error_json("DeadlineExceeded", "late", kind="deadline"), deadline_at=NOW_MS)

    text = text_of(client.get(f"/workflows/run/{ahead}"))
    assert "It must have finished by 15:00:00, in 3 h." in text
    assert "Deadline 15:00:00, in 3 h" in text
    assert "Its deadline, 15:00:00, stays" in text_of(ask(client, ahead, "pause"))
    assert "Its deadline passed 1 h ago: it fails once it is resumed." in text_of(client.get(f"/workflows/run/{past}"))
    assert "Its deadline passed 1 h ago: it fails." in text_of(ask(client, past, "resume"))
    assert "It must have finished" not in text_of(client.get(f"/workflows/run/{over}"))


def test_deadline_is_given_in_the_form_of_a_start(app: Flask, client: FlaskClient) -> None:
    page = client.get(START)

    for typed, words in [("soon", "soon"), ("0", "Give it some time: 1 s at least."), ("-5", "-5")]:
        refused = submit(client, page, input='{"user_id": 8}', deadline=typed)
        assert (refused.status_code, words in text_of(refused) + refused.text) == (422, True)
    done = submit(client, page, input='{"user_id": 8}', deadline="3h")

    assert done.status_code == 303
    assert done.location is not None
    deadline = run_of(app, done.location.rpartition("/")[2]).deadline_at
    assert deadline is not None
    assert (deadline - NOW).total_seconds() == 3 * 3_600


# Over HTTP -------------------------------------------------------------------------------------


def test_run_is_paused_and_resumed_over_http(app: Flask, rows: Rows) -> None:
    run_id, client = rows.run("waiting", due_at=None), app.test_client()

    held = post(client, f"/runs/{run_id}/pause", {"epoch": 1, "reason": "why"})
    again = post(client, f"/runs/{run_id}/pause")
    resumed = post(client, f"/runs/{run_id}/resume", {"epoch": held["epoch"]})

    assert held["paused_at"] == again["paused_at"] == "2026-11-30T12:00:00.000Z"
    assert (resumed["paused_at"], resumed["status"]) == (None, "waiting")
    assert [entry[1] for entry in audit_of(app)] == ["resume", "pause"]


def test_run_that_cannot_be_is_left_alone_over_http(one_client: FlaskClient) -> None:
    rows = rows_of(one_client.application)
    finished, going_on, held = rows.run("completed"), rows.run("waiting"), paused(rows)

    def refused(run_id: str, action: str, **body: int) -> tuple[int, str]:
        return problem_of(one_client.post(f"{API}/runs/{run_id}/{action}", json=body))

    assert refused(finished, "pause") == (409, "workflow_run_finished")
    assert refused(going_on, "pause", epoch=7) == (409, "workflow_run_changed")
    assert refused(going_on, "resume") == (409, "workflow_run_not_paused")
    assert refused(held, "resume", epoch=7) == (409, "workflow_run_changed")


def test_run_is_started_with_a_deadline_over_http(app: Flask) -> None:
    client = app.test_client()
    body = {"workflow": "onboarding", "input": {"user_id": 8}}

    started = post(client, "/runs", {**body, "deadline": 90.5}, status=201)

    assert started["deadline_at"] == "2026-11-30T12:01:30.500Z"
    assert get(client, f"/runs/{started['id']}")["deadline_at"] == started["deadline_at"]
    for wrong in (0, -1, "1h", True):
        assert problem_of(client.post(f"{API}/runs", json={**body, "deadline": wrong})) == (400, "invalid_deadline")
