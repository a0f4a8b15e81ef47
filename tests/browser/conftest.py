"""One browser for all of these tests; sites and visitors for each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from flask import Flask
from playwright.sync_api import Browser
from playwright.sync_api import sync_playwright

from flask_workflows import Workflows
from tests import apps
from tests.browser import chromium
from tests.browser.site import served
from tests.browser.site import Site
from tests.browser.site import Visitors
from tests.browser.world import make_world
from tests.browser.world import World
from tests.everything import make_workflows
from tests.everything import StandingClock
from tests.rows import Rows
from tests.rows import rows_of

Serve = Callable[[Flask], Site]

_FLAGS = (
    "--no-sandbox",  # which root cannot have
    "--disable-dev-shm-usage",  # which is small in containers
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--process-per-site",  # a renderer for all tabs of a context
    "--disable-extensions",
    "--mute-audio",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. It ends with this package: while it is there, nobody else can have an event loop in this thread."""
    path = chromium.find()
    if chromium.left_out():
        pytest.skip(f"{chromium.WITHOUT} is set")
    if path is None:
        pytest.fail(chromium.MISSING, pytrace=False)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def visitors(browser: Browser) -> Iterator[Visitors]:
    """Opens tabs. Afterwards nothing may have gone wrong on any of them."""
    visitors = Visitors(browser)

    yield visitors

    visitors.close()
    assert visitors.faults == []


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves apps while the test runs."""
    with ExitStack() as stack:
        yield lambda app: Site(app, stack.enter_context(served(app)))


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A fresh database, on SQLite unless the test is parametrised by `ON_BOTH`."""
    found: str = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return found


@pytest.fixture
def workflows() -> Workflows:
    """Those of `world`, on a site of the test's own; its time stands still."""
    workflows = make_workflows()
    workflows.clock = StandingClock()
    return workflows


@pytest.fixture
def app(url: str, make_app: apps.MakeApp, workflows: Workflows) -> Flask:
    return make_app(url, workflows=workflows)


@pytest.fixture
def rows(app: Flask) -> Rows:
    return rows_of(app)


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A site with something of everything, to be looked at and left as it is."""
    path: Path = tmp_path_factory.mktemp("world") / "app.sqlite3"
    with make_world(f"sqlite:///{path}") as world:
        yield world
    apps.dispose_engines(world.site.app)
