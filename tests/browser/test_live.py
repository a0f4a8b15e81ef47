"""Pages that follow what happens, by the browser's own clock, which the tests move."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

import pytest
from flask import Flask
from flask import redirect
from playwright.sync_api import expect
from playwright.sync_api import Locator
from playwright.sync_api import Page
from playwright.sync_api import Request
from playwright.sync_api import Response
from werkzeug.wrappers import Response as Answer

from flask_workflows import Workflows
from flask_workflows.errors import ReadTimeout
from flask_workflows.store import reading
from tests.browser.site import ON_BOTH
from tests.browser.site import Site
from tests.browser.site import Visitors
from tests.rows import error_json
from tests.rows import NOW
from tests.rows import NOW_MS
from tests.rows import Rows

RUNS = "/workflows/runs"
SEEN = "x-workflows-seen"
MINUTE = 60_000
STEP = 20_000


@dataclass
class Watched:
    """A page whose time is moved, and what it asked for."""

    page: Page
    asked: list[Request] = field(default_factory=list)
    open: set[Request] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.on("request", self._asking)
        self.page.on("requestfinished", lambda request: self.open.discard(request))
        self.page.on("requestfailed", lambda request: self.open.discard(request))

    def _asking(self, request: Request) -> None:
        if SEEN in request.headers:
            self.asked.append(request)
            self.open.add(request)

    def wait(self, millis: int) -> None:
        """Let so much of the page's time pass; what it asks for meanwhile is answered."""
        for _ in range(max(millis // STEP, 1)):
            self.page.clock.run_for(min(millis, STEP))
            while self.open:
                self.page.wait_for_timeout(1)

    def look(self) -> Response:
        """Let time pass, a second at a time, until the page has looked for changes once more."""
        asked = len(self.asked)
        for _ in range(150):
            self.page.clock.run_for(1_000)
            if len(self.asked) > asked:
                break
        else:
            pytest.fail("the page does not look for changes")
        response = self.asked[asked].response()
        assert response is not None
        response.finished()
        return response

    @property
    def note(self) -> Locator:
        return self.page.locator("[data-live-note]")


@pytest.fixture
def watch(app: Flask, serve: Callable[[Flask], Site], visitors: Visitors) -> Callable[[str], Watched]:
    site = serve(app)

    def watch(address: str) -> Watched:
        tab = visitors.tab(site)
        tab.page.clock.install(time=NOW)
        return Watched(tab.go(address))

    return watch


@pytest.fixture
def broken(visitors: Visitors) -> Iterator[None]:
    """For tests in which the server fails: htmx says so in the console, and nothing else may be there."""
    yield

    for tab in visitors.tabs:
        tab.faults[:] = [fault for fault in tab.faults if "Response Status Error Code" not in fault]


@ON_BOTH
def test_run_that_finishes_changes_its_page(rows: Rows, watch: Callable[[str], Watched]) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(f"/workflows/run/{run_id}")
    watched.page.evaluate("window.same = true")
    assert watched.look().status == 204

    rows.step(run_id, "charge", 1)
    assert watched.look().status == 200
    expect(watched.page.locator("#step-1")).to_contain_text("charge")

    rows.change(run_id, status="completed", finished_at=NOW_MS, due_at=None, worker=None, output='"paid"')
    assert watched.look().status == 200
    expect(watched.page).to_have_title("Completed · onboarding · Workflows")
    expect(
        watched.page.get_by_role("region", name="Output").or_(watched.page.locator("#fw-output + *"))
    ).not_to_have_count(0)
    expect(watched.page.locator("main")).to_contain_text('"paid"')
    assert watched.page.evaluate("window.same"), "the page was loaded again"

    asked = len(watched.asked)
    watched.wait(5 * MINUTE)
    assert len(watched.asked) == asked, "a finished run is watched no more"


@ON_BOTH
def test_real_run_is_followed_to_its_end(
    app: Flask, workflows: Workflows, rows: Rows, watch: Callable[[str], Watched]
) -> None:
    with app.app_context():
        quick = next(workflow for workflow in workflows.registry.workflows() if workflow.name == "quick")
        run_id = quick.spawn(user_id=8).id
    watched = watch(f"/workflows/run/{run_id}")
    expect(watched.page.locator(".fw-state").first).to_have_text("Pending")

    with app.app_context():
        workflows.tick()
    watched.look()

    expect(watched.page.locator(".fw-state").first).to_have_text("Completed")


def test_what_changed_in_the_list_is_told_once(rows: Rows, watch: Callable[[str], Watched]) -> None:
    worker = rows.worker()
    ids = [rows.run("running", ago=ago, worker=worker, due_at=NOW_MS + 20_000) for ago in (30, 20, 10)]
    watched = watch(RUNS)
    told = watched.page.locator("#fw-status")
    assert told.get_attribute("role") == "status"

    for run_id in ids[:2]:
        rows.change(run_id, status="completed", finished_at=NOW_MS, due_at=None, worker=None)
    rows.change(ids[2], status="failed", finished_at=NOW_MS, due_at=None, worker=None, error=error_json())
    watched.look()
    expect(watched.page.locator(f"#run-{ids[0]}")).to_contain_text("Completed")
    expect(told).to_be_empty()
    watched.wait(6_000)

    expect(told).to_have_text(re.compile("2 runs completed, 1 run failed|1 run failed, 2 runs completed"))


def test_unchanged_page_is_left_alone(rows: Rows, watch: Callable[[str], Watched]) -> None:
    run_id = rows.run("failed", error=error_json(traceback=TRACEBACK))
    rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(RUNS)
    watched.page.locator(f"#link-{run_id}").focus()
    watched.page.evaluate("window.row = document.querySelector('tbody tr')")

    assert watched.look().status == 204

    assert watched.page.evaluate("window.row.isConnected")
    expect(watched.page.locator(f"#link-{run_id}")).to_be_focused()


def test_focus_and_open_details_outlive_a_change(rows: Rows, watch: Callable[[str], Watched]) -> None:
    run_id = rows.run("failed", error=error_json(traceback=TRACEBACK))
    running = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(RUNS)
    watched.page.locator(f"#link-{run_id}").focus()

    rows.change(running, status="completed", finished_at=NOW_MS, due_at=None, worker=None)
    assert watched.look().status == 200

    expect(watched.page.locator(f"#run-{running}")).to_contain_text("Completed")
    expect(watched.page.locator(f"#link-{run_id}")).to_be_focused()


TRACEBACK = 'Traceback:\n  File "/usr/lib/python3/site-packages/a.py", line 1, in f\n    g()\nKeyError: 1'


def test_opened_details_stay_open(rows: Rows, watch: Callable[[str], Watched]) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(f"/workflows/run/{run_id}")
    details = watched.page.locator("#fw-cannot")
    details.locator("summary").click()
    watched.page.locator("h1").click()

    rows.step(run_id, "pack", 1, "running")
    assert watched.look().status == 200

    expect(watched.page.locator("#step-1")).to_be_visible()
    expect(details).to_have_attribute("open", "")


def test_new_runs_wait_to_be_shown(rows: Rows, watch: Callable[[str], Watched]) -> None:
    rows.run(ago=30)
    watched = watch(RUNS)
    rows.run(ago=20)
    newest = rows.run(ago=10)

    watched.look()

    link = watched.page.get_by_role("link", name="Show 2 new runs")
    expect(link).to_be_visible()
    expect(watched.page.locator("tbody tr")).to_have_count(1)
    link.click()
    expect(watched.page.locator("tbody tr").first).to_have_id(f"run-{newest}")


@pytest.mark.parametrize(
    "occupy",
    [
        "document.querySelector('#fw-runs tbody td').innerHTML += '<input type=checkbox checked>'",
        "getSelection().selectAllChildren(document.querySelector('#fw-runs tbody td'))",
        "Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })",
    ],
    ids=["a row is ticked", "text is selected", "the tab is hidden"],
)
def test_nothing_moves_while_somebody_is_busy(rows: Rows, watch: Callable[[str], Watched], occupy: str) -> None:
    rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(RUNS)
    watched.look()
    asked = len(watched.asked)

    watched.page.evaluate(occupy)
    watched.wait(2 * MINUTE)
    assert len(watched.asked) == asked

    watched.page.evaluate(
        """for (const box of document.querySelectorAll("input:checked")) box.click();
        getSelection().removeAllRanges(); delete document.hidden; document.activeElement.blur()"""
    )
    watched.look()


def test_nothing_moves_while_something_is_typed(rows: Rows, watch: Callable[[str], Watched]) -> None:
    """In a field of the part that is live; one beside it does not matter."""
    rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(RUNS)
    watched.page.locator("#fw-runs").evaluate("part => part.append(document.createElement('textarea'))")
    watched.page.locator("#fw-runs textarea").focus()

    watched.wait(2 * MINUTE)
    assert watched.asked == []

    watched.page.locator(".fw-filter input[name=queue]").focus()
    watched.look()


# When it does not work -----------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.usefixtures("broken")
def test_visitor_who_is_signed_out_is_told(
    rows: Rows, workflows: Workflows, watch: Callable[[str], Watched], status: int
) -> None:
    rows.run()
    watched = watch(RUNS)
    workflows.authorize(lambda action, run=None: False if status == 403 else Answer("Sign in.", 401))

    assert watched.look().status == status

    expect(watched.note).to_contain_text("Signed out.")
    expect(watched.note.get_by_role("link", name="Sign in again")).to_be_visible()
    expect(watched.page.locator("tbody tr")).to_have_count(1)
    asked = len(watched.asked)
    watched.wait(10 * MINUTE)
    assert len(watched.asked) == asked


def test_visitor_who_is_led_to_a_login_page_is_told(
    app: Flask, rows: Rows, workflows: Workflows, watch: Callable[[str], Watched]
) -> None:
    app.add_url_rule("/login", view_func=lambda: "<!doctype html><title>Login</title><h1>Login</h1>")
    rows.run()
    watched = watch(RUNS)
    workflows.authorize(lambda action, run=None: redirect("/login"))

    with watched.page.expect_response(lambda response: response.url.endswith("/login")):
        watched.wait(12_000)

    expect(watched.note).to_contain_text("Signed out.")
    expect(watched.page.locator("tbody tr")).to_have_count(1)
    expect(watched.page).to_have_title("Runs · Workflows")


@pytest.mark.usefixtures("broken")
def test_failure_is_told_and_asked_about_less_and_less(
    rows: Rows, watch: Callable[[str], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(f"/workflows/run/{run_id}")
    live = watched.note.inner_text()

    def slow(*_: object, **__: object) -> None:
        raise ReadTimeout("reading took more than 2 s")

    with monkeypatch.context() as patch:
        patch.setattr(reading, "read_run", slow)
        assert watched.look().status == 503
        watched.wait(1_000)
        expect(watched.note).to_contain_text(re.compile(r"Not updating since \d\d:\d\d; trying again in \d+ s\."))

        # 3 s, then twice that, and so on, up to a minute.
        watched.wait(10 * MINUTE)
        assert 6 <= len(watched.asked) <= 16
        expect(watched.note).to_contain_text("Not updating since 12:00;")

    watched.look()
    expect(watched.note).to_have_text(live)


@pytest.mark.usefixtures("broken")
def test_server_that_is_gone_is_told(rows: Rows, watch: Callable[[str], Watched], visitors: Visitors) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(f"/workflows/run/{run_id}")

    watched.page.context.set_offline(True)
    watched.wait(6_000)
    expect(watched.note).to_contain_text("Not updating since 12:00;")
    expect(watched.page.locator("h1")).to_be_visible()

    watched.page.context.set_offline(False)
    watched.look()
    expect(watched.note).to_contain_text("Live")
    (tab,) = visitors.tabs
    tab.faults[:] = [fault for fault in tab.faults if not re.search("ERR_INTERNET_DISCONNECTED|htmx:", fault)]


# Pausing -------------------------------------------------------------------------------------


def test_page_can_be_paused_and_resumed(rows: Rows, watch: Callable[[str], Watched]) -> None:
    """WCAG 2.2.2"""
    rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(RUNS)

    watched.note.get_by_role("link", name="Pause").click()
    expect(watched.note).to_contain_text("Not live.")
    watched.asked.clear()
    watched.wait(5 * MINUTE)
    assert watched.asked == []

    watched.note.get_by_role("link", name="Resume").click()
    expect(watched.note).to_contain_text("Live")
    watched.look()


def test_page_nobody_looks_at_slows_down_and_stops(rows: Rows, watch: Callable[[str], Watched]) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(f"/workflows/run/{run_id}")

    watched.wait(11 * MINUTE)
    asked = len(watched.asked)
    watched.wait(10 * MINUTE)
    assert 6 <= len(watched.asked) - asked <= 12

    watched.wait(40 * MINUTE)
    expect(watched.note).to_contain_text("Paused.")
    asked = len(watched.asked)
    watched.wait(10 * MINUTE)
    assert len(watched.asked) == asked

    watched.note.get_by_role("link", name="Resume").click()
    expect(watched.note).to_contain_text("Live")
    watched.look()


def test_times_go_on_without_asking(rows: Rows, watch: Callable[[str], Watched]) -> None:
    run_id = rows.run("running", ago=30, worker=rows.worker(), due_at=NOW_MS + 20_000)
    watched = watch(f"/workflows/run/{run_id}?live=0")
    age = watched.page.locator(".fw-facts time[data-tick=ago]").first
    before = age.inner_text()

    watched.wait(5 * MINUTE)

    expect(age).to_have_text("5 min ago")
    assert before == "30 s ago"
    assert watched.asked == []
