"""What operators come for, done with a keyboard alone, and without the script too."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from flask import Flask
from playwright.sync_api import expect
from playwright.sync_api import Locator

from flask_workflows import models
from flask_workflows import Run
from flask_workflows import Workflows
from flask_workflows.runtime import Runtime
from flask_workflows.store import reading as read
from tests import apps
from tests.browser.keyboard import Keyboard
from tests.browser.site import ON_BOTH
from tests.browser.site import Site
from tests.browser.site import Visitors
from tests.everything import error_of_a_render
from tests.rows import NOW_MS
from tests.rows import Rows
from tests.rows import run_row


@pytest.fixture(params=[True, False], ids=["script", "no script"])
def javascript(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def keyboard(app: Flask, serve: Callable[[Flask], Site], visitors: Visitors, javascript: bool) -> Keyboard:
    return Keyboard(visitors.tab(serve(app), javascript=javascript), javascript=javascript)


def spawn(app: Flask, workflows: Workflows, workflow: str, **values: object) -> str:
    """Start a run and let it come as far as it does now."""
    with app.app_context():
        run_id = workflows.registry.latest(workflow).spawn(**values).id
        workflows.tick()
    return run_id


def status_of(app: Flask, run_id: str) -> str:
    return str(stored(app, run_id).status)


def stored(app: Flask, run_id: str) -> Run:
    runtime: Runtime = apps.runtime_of(app)
    with read.reading(runtime.engine) as connection:
        run = read.read_run(connection, run_id)
    assert run is not None
    return run


def done(keyboard: Keyboard) -> Locator:
    """The line that says what was done; it has the focus."""
    line = keyboard.page.locator("#fw-done")
    expect(line).to_be_focused()
    return line


def test_failed_run_is_found_and_its_error_read(keyboard: Keyboard, rows: Rows) -> None:
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(10, 20)])
    run_id = rows.run("failed", error=error_of_a_render())
    rows.step(run_id, "render", 1, "failed", error=error_of_a_render())
    keyboard.go("/workflows/")

    keyboard.follow("Runs")
    keyboard.follow(r"Failed \d+")
    keyboard.follow("onboarding ….{6}")

    page = keyboard.page
    expect(page.locator("h1")).to_have_text("onboarding")
    expect(page.locator(".fw-headline")).to_contain_text("KeyError: 'vat_id'")
    error = page.locator("section", has=page.get_by_role("heading", name="Error"))
    expect(error).to_contain_text("return totals[order.vat_id]")
    expect(error.get_by_text("core.py:10")).to_be_hidden()
    keyboard.reach(r"\d library frames?")
    keyboard.press("Enter")
    expect(error.get_by_text("core.py:10")).to_be_visible()


def test_runs_of_one_workflow_are_listed(keyboard: Keyboard, rows: Rows) -> None:
    for workflow in ("onboarding", "renewal", "renewal"):
        rows.run(workflow=workflow)
    keyboard.go("/workflows/runs")

    keyboard.write("Workflow", "renewal")
    keyboard.enter()

    expect(keyboard.page.locator("tbody tr")).to_have_count(2)
    expect(keyboard.page.locator("tbody")).not_to_contain_text("onboarding")
    assert "workflow=renewal" in keyboard.page.url
    keyboard.follow("Clear")
    expect(keyboard.page.locator("tbody tr")).to_have_count(3)


def test_run_is_found_by_its_id(keyboard: Keyboard, rows: Rows) -> None:
    wanted, _ = rows.run(ago=1_000_000), rows.run()
    keyboard.go("/workflows/runs")

    keyboard.write("Search", f"id:{wanted[:8]}")
    keyboard.enter()
    expect(keyboard.page.locator("tbody tr")).to_have_count(1)

    keyboard.write("Search", wanted)
    keyboard.enter()
    expect(keyboard.page).to_have_url(re.compile(f"/run/{wanted}"))


def test_list_is_paged_through(keyboard: Keyboard, rows: Rows) -> None:
    rows.insert(models.runs, [run_row(ago=ago) for ago in range(1, 61)])
    keyboard.go("/workflows/runs?limit=25")
    first = keyboard.page.locator("tbody tr").first.get_attribute("id")
    assert first is not None

    keyboard.follow("Older")
    keyboard.follow("Older")
    expect(keyboard.page.locator("tbody tr")).to_have_count(10)
    keyboard.follow("Newer")
    keyboard.follow("Newer")

    expect(keyboard.page.locator("tbody tr").first).to_have_id(first)


def test_run_is_cancelled(keyboard: Keyboard, rows: Rows, app: Flask) -> None:
    run_id = rows.run("pending")
    keyboard.go(f"/workflows/run/{run_id}")

    keyboard.follow("Cancel…")
    expect(keyboard.page.get_by_role("link", name="Keep it")).to_be_focused()
    assert keyboard.faults() == []
    keyboard.write(r"Reason \(optional\)", "The customer left.")
    keyboard.follow("Cancel the run")

    expect(done(keyboard)).to_have_text("The run is cancelled.")
    expect(keyboard.page.locator(".fw-state").first).to_have_text("Cancelled")
    assert status_of(app, run_id) == "cancelled"


@ON_BOTH
def test_failed_run_is_retried(keyboard: Keyboard, app: Flask, workflows: Workflows) -> None:
    run_id = spawn(app, workflows, "renewal", user_id=8)
    assert status_of(app, run_id) == "failed"
    keyboard.go(f"/workflows/run/{run_id}")

    keyboard.follow("Retry…")
    keyboard.follow("Retry the run")

    expect(done(keyboard)).to_contain_text("retr")
    assert status_of(app, run_id) == "pending"


def test_sleeper_is_woken(keyboard: Keyboard, app: Flask, workflows: Workflows) -> None:
    run_id = spawn(app, workflows, "reminder", user_id=8)
    assert status_of(app, run_id) == "sleeping"
    keyboard.go("/workflows/waits")

    keyboard.follow("reminder .*")
    keyboard.follow("Wake now…")
    keyboard.follow("Wake it now")

    done(keyboard)
    with app.app_context():
        workflows.tick()
    assert status_of(app, run_id) == "completed"


@ON_BOTH
def test_event_is_looked_at_and_delivered(keyboard: Keyboard, app: Flask, workflows: Workflows) -> None:
    run_id = spawn(app, workflows, "onboarding", user_id=8)
    assert status_of(app, run_id) == "waiting"
    keyboard.go("/workflows/events")

    keyboard.follow("Deliver event…")
    keyboard.write("Name", "course.completed")
    keyboard.write("Payload, as JSON", '{"user_id": 9}')
    keyboard.follow("Check")
    checked = keyboard.page.get_by_role("status").filter(has=keyboard.page.locator("strong"))
    expect(checked).to_contain_text("wakes nobody")
    assert keyboard.faults() == []

    keyboard.write("Payload, as JSON", '{"user_id": 8}')
    keyboard.follow("Check again")
    expect(checked).to_contain_text("wakes 1 run")
    assert status_of(app, run_id) == "waiting"
    keyboard.follow("Deliver")

    expect(done(keyboard)).to_have_text("The event is delivered.")
    with app.app_context():
        workflows.tick()
    assert status_of(app, run_id) == "completed"


def test_run_is_started(keyboard: Keyboard, app: Flask, workflows: Workflows) -> None:
    keyboard.go("/workflows/runs")

    keyboard.follow("Start a run…")
    keyboard.reach("Workflow")
    keyboard.page.keyboard.type("quick")
    keyboard.follow("Go on")
    keyboard.write("Input", '{"user": 8}')
    keyboard.follow("Start")
    # It fits not: what was typed is still there, and the field has the focus.
    field = keyboard.page.get_by_label("Input")
    expect(field).to_be_focused()
    expect(field).to_have_value('{"user": 8}')
    assert keyboard.faults() == []
    keyboard.press("Control+a")
    keyboard.page.keyboard.type('{"user_id": 8}')
    keyboard.follow("Start")

    done(keyboard)
    (run_id,) = re.findall(r"/run/([0-9a-f-]{36})", keyboard.page.url)
    run = stored(app, run_id)
    assert (run.workflow, run.status) == ("quick", "pending")
    assert run.input == {"user_id": 8}


def test_run_says_why_it_does_not_move(keyboard: Keyboard, rows: Rows, javascript: bool) -> None:
    run_id = rows.run("pending", workflow="old-import", version=4)
    rows.worker()
    keyboard.go("/workflows/runs")

    keyboard.follow("old-import ….{6}")
    expect(keyboard.page.locator(".fw-headline")).to_contain_text("old-import")
    if javascript:
        keyboard.follow("Pause")
        expect(keyboard.page.locator("[data-live-note]")).to_contain_text("Not live.")
        keyboard.follow("Resume")
    rows.change(run_id, status="cancelled", due_at=None, finished_at=NOW_MS)
    if javascript:
        keyboard.page.reload()
    else:
        keyboard.follow("Refresh")

    expect(keyboard.page.locator(".fw-state").first).to_have_text("Cancelled")


def test_ticked_runs_are_cancelled_together(keyboard: Keyboard, rows: Rows, app: Flask, workflows: Workflows) -> None:
    ids = [rows.run("pending", ago=ago) for ago in (30, 20, 10)]
    keyboard.go("/workflows/runs")

    for run_id in ids[:0:-1]:
        keyboard.reach(f"Select onboarding …{run_id[-6:]}")
        keyboard.press("Space")
    keyboard.follow("Cancel.*")
    assert keyboard.faults() == []
    keyboard.follow("Cancel 2 runs")

    expect(done(keyboard)).to_contain_text("2 runs")
    assert keyboard.faults() == []
    with app.app_context():
        workflows.tick()
    assert [status_of(app, run_id) for run_id in ids] == ["waiting", "cancelled", "cancelled"]


def test_form_that_is_out_of_date_says_what_happened(keyboard: Keyboard, rows: Rows) -> None:
    run_id = rows.run("pending")
    keyboard.go(f"/workflows/run/{run_id}/cancel")
    rows.change(run_id, status="completed", finished_at=NOW_MS, due_at=None, epoch=2)

    keyboard.follow("Cancel the run")

    expect(keyboard.page.get_by_role("alert")).to_contain_text("Nothing was done")
    assert keyboard.faults() == []
