"""That the browser tests see what is wrong: each kind of fault, made on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from flask import Response

from tests.browser import chromium
from tests.browser.site import PHONE
from tests.browser.site import Site
from tests.browser.site import Tab
from tests.browser.site import Visitors

POLICY = "default-src 'self'; img-src *"


def page_with(body: str) -> Flask:
    app = Flask("faulty")

    @app.get("/")
    def home() -> Response:
        html = f'<!doctype html><html lang="en"><title>A page</title><main><h1>A page</h1>{body}</main></html>'
        return Response(html, headers={"Content-Security-Policy": POLICY})

    return app


@pytest.fixture
def look(visitors: Visitors, serve: Callable[[Flask], Site]) -> Callable[..., Tab]:
    def look(body: str, **options: object) -> Tab:
        tab = visitors.tab(serve(page_with(body)), **options)  # type: ignore[arg-type]
        # Violations are told when the page has time.
        tab.go("/").evaluate("new Promise((done) => setTimeout(done, 50))")
        # The faults are those wanted here.
        visitors.tabs.remove(tab)
        return tab

    return look


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("<script>1</script>", "Content-Security-Policy, script-src-elem"),
        ('<p style="color: red">x</p>', "Content-Security-Policy, style-src-attr"),
        ('<button onclick="1">x</button>', "Content-Security-Policy, script-src-attr"),
        ('<img alt="" src="http://127.0.0.1:9/x.png">', "asked another origin: http://127.0.0.1:9/x.png"),
        ('<script src="/missing.js"></script>', "404 for "),
    ],
)
def test_fault_is_seen(look: Callable[..., Tab], body: str, fault: str) -> None:
    tab = look(body)

    assert any(fault in found for found in tab.faults), tab.faults


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("setTimeout(() => { throw new Error('on purpose'); })", "error in the script: on purpose"),
        ("alert(1)", "opened a dialogue: 1"),
        ("console.warn('careful')", "in the console: careful"),
    ],
)
def test_fault_of_a_script_is_seen(look: Callable[..., Tab], script: str, fault: str) -> None:
    tab = look("")

    tab.page.evaluate(script)
    tab.page.evaluate("new Promise((done) => setTimeout(done, 50))")

    assert fault in tab.faults


@pytest.mark.parametrize(
    ("body", "rule"), [("<input>", "label"), ("<h4>x</h4>", "heading-order"), ('<a href="/"></a>', "link-name")]
)
def test_violation_of_a_rule_is_seen_under_the_policy(look: Callable[..., Tab], body: str, rule: str) -> None:
    found = look(body).violations()

    assert any(violation.startswith(rule) for violation in found), found


def test_page_that_is_too_wide_is_seen(look: Callable[..., Tab]) -> None:
    assert look(f"<p>{'x' * 300}</p>", size=PHONE).sideways() > 0
    assert look("<p>x</p>", size=PHONE).sideways() == 0


def test_missing_browser_is_named(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    monkeypatch.setenv("PATH", str(pytester.path))

    assert chromium.find() is None
    assert "apt-get install chromium" in chromium.MISSING
    assert "WORKFLOWS_TESTS_WITHOUT_BROWSER=1" in chromium.MISSING
    assert not chromium.can_install()
