"""The pages under the policies that apps set for all their pages (B107)."""

from __future__ import annotations

from collections.abc import Callable
from secrets import token_urlsafe

import pytest
from flask import Flask
from flask import g
from flask import Response
from playwright.sync_api import expect

from flask_workflows import Workflows
from tests.browser.keyboard import Keyboard
from tests.browser.site import Site
from tests.browser.site import Visitors
from tests.everything import find_addresses
from tests.everything import populate
from tests.rows import NOW_MS
from tests.rows import Rows

#: As Flask-Talisman has it by default, and as strict as one can be with nonces.
POLICIES = {
    "self": "default-src 'self'; object-src 'none'",
    "nonces": "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
    "img-src 'self'; form-action 'self'; base-uri 'none'",
}


@pytest.fixture(params=POLICIES)
def guarded(request: pytest.FixtureRequest, app: Flask) -> Flask:
    """An app with a policy of its own, told to templates as Flask-Talisman does."""
    app.jinja_env.globals["csp_nonce"] = lambda: g.nonce

    @app.before_request
    def make_nonce() -> None:
        g.nonce = token_urlsafe()

    @app.after_request
    def set_policy(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICIES[request.param].format(nonce=g.nonce)
        return response

    return app


def test_b107_no_page_breaks_the_apps_policy(
    guarded: Flask, workflows: Workflows, serve: Callable[[Flask], Site], visitors: Visitors
) -> None:
    runs = populate(guarded, workflows)
    tab = visitors.tab(serve(guarded))

    for endpoint, addresses in find_addresses(guarded, runs).items():
        for address in addresses[:1] if endpoint not in ("asset", "value", "step_value") else ():
            page = tab.go(address)
            assert tab.faults == [], address
            # Styled, and its script runs.
            assert page.locator(".fw-top").evaluate("bar => getComputedStyle(bar).display") == "flex"
            expect(page.locator(".fw-js")).to_have_count(0)


def test_b107_pages_are_live_and_act_under_the_apps_policy(
    guarded: Flask, rows: Rows, serve: Callable[[Flask], Site], visitors: Visitors
) -> None:
    run_id = rows.run("running", worker=rows.worker(), due_at=NOW_MS + 20_000)
    tab = visitors.tab(serve(guarded))
    page = tab.go(f"/workflows/run/{run_id}")
    rows.change(run_id, status="sleeping", worker=None)
    page.locator("#fw-run").evaluate("part => htmx.trigger(part, 'fw:poll')")
    expect(page.locator(".fw-state").first).to_have_text("Sleeping")

    keyboard = Keyboard(tab)
    keyboard.follow("Cancel…")
    keyboard.follow("Cancel the run")

    expect(page.locator("#fw-done")).to_have_text("The run is cancelled.")
