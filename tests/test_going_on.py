"""Going on from an earlier call, and runs that are cancelled with others, on the pages: what is told, then done."""

from __future__ import annotations

from datetime import datetime

import pytest
from flask import Flask
from flask.testing import FlaskClient

from flask_workflows import models
from flask_workflows import service
from flask_workflows import Workflows
from flask_workflows.audit import By
from flask_workflows.dashboard import once
from flask_workflows.errors import RunChanged
from flask_workflows.errors import RunCompensated
from flask_workflows.operations import BULK
from flask_workflows.runs import RunQuery
from flask_workflows.store import reading as read
from tests import apps
from tests.pages import text_of
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import rows_of
from tests.rows import run_row
from tests.rows import step_row
from tests.running import at_once
from tests.test_actions import ask
from tests.test_actions import form_of
from tests.test_actions import link_named
from tests.test_actions import submit

HOUR_MS = 3_600_000
EVIL = '"><img src=x onerror=alert(1)>'


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


def failed(rows: Rows, **values: object) -> str:
    """A run that loaded, waited, charged, started another, and failed at its report."""
    run_id = rows.run("failed", error=error_json(step="report"), **values)
    rows.step(run_id, "load", 1)
    rows.step(run_id, "$wait:paid", 2, kind="wait")
    rows.step(run_id, "charge", 3)
    rows.step(run_id, "$start:mailing", 4, kind="start")
    rows.step(run_id, "report", 5, "failed", error=error_json())
    return run_id


def keys_of(app: Flask, run_id: str) -> list[str]:
    return [step.key for step in service.details(apps.runtime_of(app), run_id).steps]


def forks_of(app: Flask, run_id: str) -> list[str]:
    with read.reading(apps.runtime_of(app).engine) as connection:
        return [found.id for found in read.list_forks(connection, run_id, None, limit=10)]


def audit_of(app: Flask) -> list[tuple[str, str, str | None, str | None, str]]:
    with read.reading(apps.runtime_of(app).engine) as connection:
        entries = read.list_audit(connection).entries
    return [(entry.actor, entry.action, entry.run_id, entry.after, entry.reason) for entry in entries]


# Retry from a step ---------------------------------------------------------------------------


def test_retry_from_a_step_says_what_runs_again_then_does_it(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = failed(rows)
    chooser = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Retry…"))
    assert "3 charge, completed" in text_of(chooser)

    page = client.get(f"/workflows/run/{run_id}/retry?from_step=charge")
    text = text_of(page)
    assert "Retry this run from step 3?" in text
    again = "Runs again, 3 recorded calls: 3 charge, 4 start mailing, 5 report; then what follows in the code."
    assert again in text
    assert "What these steps did, they do a second time: 3 charge, 5 report." in text
    assert "These start runs anew; those they started before go on as they are: 4 start mailing." in text
    assert "Kept, and not run again: 1 load, 2 wait paid." in text

    done = submit(client, page, reason="wrong price")
    assert (done.status_code, done.location) == (303, f"/workflows/run/{run_id}")
    shown = text_of(client.get(f"/workflows/run/{run_id}"))
    assert "The run is retried from step 3. It is pending." in shown
    assert "retry: failed to pending, from charge" in shown
    assert keys_of(app, run_id) == ["load", "$wait:paid"]
    assert audit_of(app) == [("ana", "retry", run_id, "pending, from charge", "wrong price")]


def test_step_page_leads_to_both(client: FlaskClient, rows: Rows) -> None:
    run_id = failed(rows)
    page = client.get(f"/workflows/run/{run_id}/step/3?status=failed")

    for label, title in [
        ("Retry from here…", "Retry this run from step 3?"),
        ("Fork from here…", "Fork this run from"),
    ]:
        address = link_named(page, label)
        assert "status=failed" in address
        assert title in text_of(client.get(address))


@pytest.mark.parametrize(("action", "permission"), [("retry", "retry"), ("fork", "start")])
def test_step_page_leads_nowhere_that_is_not_allowed(
    one_client: FlaskClient, workflows: Workflows, action: str, permission: str
) -> None:
    run_id = failed(rows_of(one_client.application))
    workflows.authorize(lambda action, run=None: action != permission or run is None)

    page = one_client.get(f"/workflows/run/{run_id}/step/3")

    assert page.status_code == 200
    assert f"/{action}?" not in page.text
    assert one_client.get(f"/workflows/run/{run_id}/{action}?from_step=charge").status_code == 403


@pytest.mark.parametrize("action", ["retry", "fork"])
@pytest.mark.parametrize("key", ["nothing", EVIL, "a\x00b", "x" * 3_000])
def test_b109_step_there_is_none_of_is_a_404(one_client: FlaskClient, action: str, key: str) -> None:
    run_id = failed(rows_of(one_client.application))

    response = one_client.get(f"/workflows/run/{run_id}/{action}", query_string={"from_step": key})

    assert response.status_code == 404
    assert "The run has no recorded call" in text_of(response)
    assert "<img" not in response.text


def test_step_that_was_forgotten_meanwhile_is_told(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = failed(rows)
    retry, fork = (client.get(f"/workflows/run/{run_id}/{name}?from_step=charge") for name in ("retry", "fork"))
    with app.app_context():
        apps.workflows_of(app).retry(run_id, by=By("bo"), from_step="load")

    for page in (retry, fork):
        refused = submit(client, page)
        assert refused.status_code == 409
        assert "This run went to pending at 12:00:00, by bo. Nothing was done." in text_of(refused)
    assert forks_of(app, run_id) == []


def test_long_run_offers_its_first_and_last_calls(one_client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(one_client.application)
    run_id = rows.run("failed", error=error_json())
    rows.insert(models.steps, [step_row(run_id, f"s#{n}", n) for n in range(1, 2_001)])

    page = ask(one_client, run_id, "fork")
    assert page.text.partition("<main")[2].count("<option") == 200
    assert "1,800 calls in between are not listed" in text_of(page)
    assert len(page.data) < 60_000
    shown = text_of(one_client.get(f"/workflows/run/{run_id}/fork?from_step=s%23900"))
    assert "Runs again, 1,101 recorded calls: 900 s#900, 901 s#901" in shown
    assert "and 1,091 more" in shown
    assert "and 889 more" in shown

    monkeypatch.setattr("flask_workflows.dashboard.pages.repeating.MOST_CALLS", 1_000)
    monkeypatch.setattr("flask_workflows.dashboard.views.actions.MOST_CALLS", 1_000)
    for name in ("retry", "fork"):
        shown = text_of(one_client.get(f"/workflows/run/{run_id}/{name}?from_step=s%231900"))
        assert "The run has too many calls to list them." in shown
    assert one_client.get(f"/workflows/run/{run_id}/fork?from_step=s%232900").status_code == 404


# Fork ----------------------------------------------------------------------------------------


def test_fork_asks_from_where_says_what_it_takes_over_and_leads_to_the_new_run(
    app: Flask, client: FlaskClient, rows: Rows
) -> None:
    run_id = failed(rows, key="k", workspace="acme")
    before = service.details(apps.runtime_of(app), run_id)
    chooser = client.get(link_named(client.get(f"/workflows/run/{run_id}"), "Fork…"))
    assert "A fork is a new run that takes over what this one recorded before a call" in text_of(chooser)
    assert 'method="post"' not in chooser.text.partition("<main")[2]

    page = client.get(f"/workflows/run/{run_id}/fork?from_step=charge")
    text = text_of(page)
    assert "Runs again, 3 recorded calls: 3 charge, 4 start mailing, 5 report" in text
    assert "Taken over, and not run again: 1 load, 2 wait paid." in text
    assert "This run stays as it is: nothing of it is changed." in text
    assert "The new run has this one's input and queue, without its key k." in text

    done = submit(client, page, reason="with the new price")
    (new,) = forks_of(app, run_id)
    assert (done.status_code, done.location) == (303, f"/workflows/run/{new}")
    assert "Forked from step 3. This is the new run." in text_of(client.get(f"/workflows/run/{new}"))
    made = service.get(apps.runtime_of(app), new)
    assert (made.forked_from, made.workspace, made.key) == (run_id, "acme", None)
    assert keys_of(app, new) == ["load", "$wait:paid"]
    assert service.details(apps.runtime_of(app), run_id) == before
    assert audit_of(app) == [("ana", "fork", run_id, f"{new}, from charge", "with the new price")]
    assert f"fork to {new}, from charge" in text_of(client.get(f"/workflows/run/{run_id}"))


def test_fork_of_a_run_that_goes_on_makes_anew_what_is_not_over(client: FlaskClient, rows: Rows) -> None:
    run_id = rows.run("waiting", due_at=None)
    rows.step(run_id, "load", 1)
    rows.step(run_id, "$parallel", 2, kind="parallel")
    rows.step(run_id, "2.0/$wait:paid", 1, "waiting", kind="wait")
    rows.step(run_id, "2.1/charge", 1)

    text = text_of(client.get(f"/workflows/run/{run_id}/fork?from_step=2.1/charge"))

    assert "Runs again, 2 recorded calls: 3 2.0 wait paid, 4 2.1 charge; then" in text
    assert "This run goes on as it is" in text


def test_form_sent_twice_at_once_makes_one_fork(app: Flask, rows: Rows) -> None:
    run_id = failed(rows)
    address, form = form_of(app.test_client().get(f"/workflows/run/{run_id}/fork?from_step=charge"))
    locations = at_once(app, *[lambda: app.test_client().post(address, data=form).location] * 4)

    (new,) = forks_of(app, run_id)
    assert set(locations) == {f"/workflows/run/{new}"}
    assert len(audit_of(app)) == 1
    # However much later, and whatever became of the other run.
    rows.change(run_id, epoch=9)
    assert app.test_client().post(address, data=form).location == f"/workflows/run/{new}"


def test_form_without_its_mark_or_choice_makes_nothing(
    one_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, app = one_client, one_client.application
    run_id = failed(rows_of(app))
    page = client.get(f"/workflows/run/{run_id}/fork?from_step=charge")

    for typed, words in [
        ({"once": "mine"}, "The form came without its mark. Nothing was started"),
        ({"from_step": ""}, "Choose the call to go on from."),
        ({"epoch": ""}, "The form came without what it was drawn from."),
    ]:
        refused = submit(client, page, **typed)
        assert refused.status_code == 422
        assert words in text_of(refused)
    monkeypatch.setattr(once, "_SECONDS", -1)
    late = submit(client, page)
    assert (late.status_code, "The form was open for long." in text_of(late)) == (422, True)
    assert forks_of(app, run_id) == []
    monkeypatch.undo()
    assert submit(client, late).status_code == 303


def test_fork_of_a_run_that_changed_is_asked_for_again(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = failed(rows)
    page = client.get(f"/workflows/run/{run_id}/fork?from_step=charge")
    rows.change(run_id, epoch=3, updated_at=NOW_MS)

    refused = submit(client, page)

    assert refused.status_code == 409
    assert "This run changed since the page was loaded" in text_of(refused)
    assert submit(client, refused).status_code == 303
    with pytest.raises(RunChanged):
        service.fork(apps.runtime_of(app), run_id, "charge", epoch=1)


def test_call_that_is_forgotten_at_that_moment_is_not_copied(app: Flask, rows: Rows) -> None:
    """A fork reads the history before it copies it: what a retry forgets in between must not leave a gap."""
    run_id, runtime = failed(rows), apps.runtime_of(app)
    histories = runtime.store.histories

    def then_retried(ids: list[str]) -> object:
        found = histories(ids)
        runtime.store.histories = histories  # type: ignore[method-assign]
        service.retry(runtime, run_id, from_step="$wait:paid")
        return found

    runtime.store.histories = then_retried  # type: ignore[method-assign, assignment]
    with app.app_context(), pytest.raises(RunChanged):
        service.fork(runtime, run_id, "report")
    assert forks_of(app, run_id) == []


def test_undone_run_is_neither_forked_nor_retried(app: Flask, client: FlaskClient, rows: Rows) -> None:
    run_id = failed(rows, undoing="{}")

    with pytest.raises(RunCompensated):
        service.fork(apps.runtime_of(app), run_id, "charge")
    for name in ("retry", "fork"):
        answer = client.get(f"/workflows/run/{run_id}/{name}?from_step=charge")
        assert answer.status_code == 409
        assert "What it did was undone when it ended" in text_of(answer)


def test_run_of_the_packages_own_is_not_forked(one_client: FlaskClient) -> None:
    rows = rows_of(one_client.application)
    run_id = rows.run("completed", workflow=BULK)
    rows.step(run_id, "act", 1)

    answer = one_client.get(f"/workflows/run/{run_id}/fork?from_step=act")

    assert answer.status_code == 409
    assert "It is a run of the package's own" in text_of(answer)


def test_run_without_calls_is_not_forked(one_client: FlaskClient) -> None:
    run_id = rows_of(one_client.application).run("pending")

    assert "No call is recorded that a fork could go on from." in text_of(ask(one_client, run_id, "fork"))


# Cancel, with children -----------------------------------------------------------------------


def family(rows: Rows) -> tuple[str, list[str]]:
    """A run that waits for two of its children, one of another workspace; a third has finished."""
    parent = rows.run("waiting", due_at=None)
    children = [
        rows.run("sleeping", parent_id=parent, due_at=NOW_MS + HOUR_MS, workspace=name) for name in ("", "east")
    ]
    rows.run("completed", parent_id=parent)
    return parent, children


@pytest.mark.parametrize("keep", [False, True])
def test_cancel_says_how_many_children_end_with_it_and_may_keep_them(
    app: Flask, client: FlaskClient, rows: Rows, keep: bool
) -> None:
    parent, children = family(rows)
    page = ask(client, parent, "cancel")
    assert "The unfinished runs that it started, 2 now, end with it, and so do those they started." in text_of(page)

    address, form = form_of(page)
    assert form.pop("keep_children") == "1"
    assert client.post(address, data={**form, **({"keep_children": "1"} if keep else {})}).status_code == 303

    with app.app_context():
        found = {run.id: run.status for run in apps.workflows_of(app).runs(RunQuery())}
    assert found[parent] == "cancelled"
    assert {found[child] for child in children} == {"sleeping" if keep else "cancelled"}


def test_b110_children_outside_the_scope_are_not_counted(one_client: FlaskClient, workflows: Workflows) -> None:
    parent, _ = family(rows_of(one_client.application))
    workflows.scope(lambda: "")

    assert "The unfinished runs that it started, 1 now, end with it" in text_of(ask(one_client, parent, "cancel"))


def test_many_children_are_counted_up_to_a_number(one_client: FlaskClient) -> None:
    rows = rows_of(one_client.application)
    parent = rows.run("waiting", due_at=None)
    rows.insert(models.runs, [run_row("sleeping", parent_id=parent) for _ in range(1_050)])

    assert "The unfinished runs that it started, 1,000+ now" in text_of(ask(one_client, parent, "cancel"))


def test_cancel_without_children_has_nothing_to_tick(one_client: FlaskClient) -> None:
    run_id = rows_of(one_client.application).run("pending")

    assert "keep_children" not in ask(one_client, run_id, "cancel").text


def test_cancel_says_what_will_be_undone(one_client: FlaskClient) -> None:
    rows = rows_of(one_client.application)
    run_id = rows.run("waiting", due_at=None)
    rows.step(run_id, "book", 1)
    rows.step(run_id, "$undo:unbook", 2, "pushed", kind="undo")
    rows.step(run_id, "$undo:refund", 3, "pushed", kind="undo")

    text = text_of(ask(one_client, run_id, "cancel"))

    assert "What it did is undone first, by: 3 undo refund, 2 undo unbook. After that it cannot be retried." in text
    assert "is not undone" not in text


@pytest.mark.parametrize("asked", [None, 1_800_000_000_000], ids=["failed", "cancelled"])
def test_run_that_is_being_undone_cannot_be_cancelled(one_client: FlaskClient, asked: int | None) -> None:
    rows = rows_of(one_client.application)
    run_id = rows.run("sleeping", undoing='{"status": "failed"}', cancel_requested_at=asked)
    rows.step(run_id, "$undo:unbook", 1, "retrying", kind="undo")

    answer = one_client.get(f"/workflows/run/{run_id}/cancel")

    assert answer.status_code == 409
    assert "It has ended, and what it did is being undone." in text_of(answer)
