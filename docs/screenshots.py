"""Make the pictures of the pages in `docs/pictures`: `python docs/screenshots.py`.

Runs the course shop with slow days, does what an operator does there, and takes a picture of each page in light and in
dark, with Chromium, which must be installed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from typing import Literal

from playwright.sync_api import Browser
from playwright.sync_api import Page
from playwright.sync_api import sync_playwright
from playwright.sync_api import ViewportSize

HERE = Path(__file__).resolve().parent
PICTURES = HERE / "pictures"
PORT = 5079
ROOT = f"http://127.0.0.1:{PORT}/workflows"
DESK = ViewportSize(width=1320, height=860)
PHONE = ViewportSize(width=390, height=844)


def main() -> None:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        sys.exit("Chromium is needed for the pictures: apt-get install chromium, or your system's like")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "example_app", "--port", str(PORT), "--directory", directory]
        shop = subprocess.Popen(
            [*command, "--day-seconds", "600"],
            cwd=HERE.parent,
            env={**os.environ, "FLASK_WORKFLOWS_STEP_BACKOFF_SECS": "1"},
        )
        try:
            runs = _be_busy()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=found)
                _take_all(browser, runs)
                browser.close()
        finally:
            shop.send_signal(signal.SIGINT)
            shop.wait(timeout=60)


# What happens in the shop ------------------------------------------------------------------


def _be_busy() -> dict[str, str]:
    """Let runs complete, fail, wait and be acted on; answer the ids of those with a picture."""
    done = _wait(lambda: _runs(workflow="renewal", status="completed"), at_least=2)
    for account in (990_001, 990_002, 990_003):
        # There is no such account, so its step fails each time.
        _call("POST", "/api/runs", {"workflow": "renewal", "input": {"account_id": account}})
    failed = _wait(lambda: _runs(status="failed"), at_least=3)
    waiting = _wait(lambda: _runs(workflow="onboarding", status="waiting"), at_least=2)
    sleeping = _wait(lambda: _runs(workflow="trial_reminders", status="sleeping"), at_least=2)
    _call("POST", f"/api/runs/{waiting[-1]['id']}/cancel", {"reason": "The learner closed the account"})
    _call("POST", f"/api/runs/{failed[-1]['id']}/retry", {"reason": "The account was restored"})
    payload = {"learner_id": 990_001, "course_id": 3}
    _call("POST", "/api/events", {"name": "course.completed", "payload": payload, "reason": "The webhook was down"})
    return {
        "completed": done[-1]["id"],
        "failed": failed[0]["id"],
        "waiting": waiting[0]["id"],
        "sleeping": sleeping[0]["id"],
    }


def _wait(look: Callable[[], list[dict[str, Any]]], *, at_least: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            found = look()
        except OSError:
            found = []
        if len(found) >= at_least:
            return found
        time.sleep(0.5)
    sys.exit("the shop's runs did not come as far as the pictures need them")


def _runs(**filters: str) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    found: list[dict[str, Any]] = _call("GET", f"/api/runs?{query}")["runs"]
    return found


def _call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(ROOT + path, data, headers, method=method)) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{method} {path}: {error.code} {error.read().decode()}")


# The pictures ------------------------------------------------------------------------------


def _take_all(browser: Browser, runs: dict[str, str]) -> None:
    pages = {
        "now": "/",
        "runs": "/runs",
        "run": f"/run/{runs['completed']}",
        "run-failed": f"/run/{runs['failed']}",
        "run-waiting": f"/run/{runs['waiting']}",
        "cancel": f"/run/{runs['sleeping']}/cancel",
        "start": "/runs/new?workflow=onboarding",
        "failures": "/failures",
        "waits": "/waits",
        "events": "/events",
        "deliver": "/events/new",
        "workers": "/workers",
        "queues": "/queues",
        "registry": "/registry",
        "workflow": "/registry/renewal",
        "operations": "/ops",
        "audit": "/audit",
        "system": "/system",
    }
    schemes: tuple[tuple[Literal["light", "dark"], str], ...] = (("light", ""), ("dark", "-dark"))
    for scheme, suffix in schemes:
        context = browser.new_context(viewport=DESK, color_scheme=scheme, timezone_id="Europe/Berlin")
        page = context.new_page()
        for name, path in pages.items():
            page.goto(ROOT + path)
            _take(page, f"{name}{suffix}")
        _tick_and_ask(page)
        _take(page, f"bulk{suffix}")
        context.close()
    context = browser.new_context(viewport=PHONE, color_scheme="light", timezone_id="Europe/Berlin")
    page = context.new_page()
    for name in ("now", "runs", "run-failed"):
        page.goto(ROOT + pages[name])
        _take(page, f"{name}-phone")
    context.close()


def _tick_and_ask(page: Page) -> None:
    page.goto(f"{ROOT}/runs?status=sleeping")
    for box in page.locator("input[name=run]").all()[:3]:
        box.check()
    page.get_by_role("button", name="Wake ticked").click()


def _take(page: Page, name: str) -> None:
    """What the first screen shows, and what is below where that is not much more."""
    height = page.evaluate("document.documentElement.scrollHeight")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=height < 1_400)


if __name__ == "__main__":
    main()
