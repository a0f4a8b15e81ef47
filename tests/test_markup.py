"""What every page's markup keeps to, that no browser would tell of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests import apps
from tests.crawling import crawl
from tests.everything import make_workflows
from tests.everything import populate
from tests.everything import StandingClock
from tests.pages import Tags

VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
#: Drawn, and closed in themselves.
SHAPES = {"circle", "path", "rect", "line", "use", "polyline"}
#: What may be left open, and what begins when it ends by itself.
ENDED = {"option": {"option"}, "td": {"td", "tr"}, "tr": {"tr"}}

REFERENCES = ("for", "aria-labelledby", "aria-describedby", "aria-controls", "list", "form")


class Nesting(HTMLParser):
    """Whether every element ends where it should."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        while self.open and tag in ENDED.get(self.open[-1], ()):
            self.open.pop()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        if tag not in VOID | SHAPES:
            self.faults.append(f"<{tag}/> does not end the element")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in ENDED:
            self.open.pop()
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.faults.append(f"</{tag}> ends {self.open[-1:]}, at line {self.getpos()[0]}")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, TestResponse]:
    """Every page there is, by its address."""
    workflows = make_workflows()
    workflows.clock = StandingClock()
    app: Flask = apps.make_app(f"sqlite:///{tmp_path_factory.mktemp('markup') / 'app.sqlite3'}", workflows=workflows)
    runs = populate(app, workflows)
    starts = [
        "/workflows/",
        "/workflows/ops",
        "/workflows/runs?q=a:b",
        *(f"/workflows/run/{run}" for run in runs.values()),
    ]
    found = crawl(app.test_client().get, starts)
    apps.dispose_engines(app)
    return {address: page for address, page in found.items() if page.mimetype == "text/html"}


def test_every_element_ends_where_it_should(pages: Mapping[str, TestResponse]) -> None:
    for address, page in pages.items():
        nesting = Nesting()
        nesting.feed(page.text)
        nesting.close()
        assert nesting.faults == [], address
        assert nesting.open == [], address


def test_every_id_is_there_once(pages: Mapping[str, TestResponse]) -> None:
    for address, page in pages.items():
        counted = Counter(attributes["id"] for _, attributes in Tags(page.text).found if attributes.get("id"))
        assert [name for name, count in counted.items() if count > 1] == [], address


def test_every_reference_leads_to_an_element(pages: Mapping[str, TestResponse]) -> None:
    for address, page in pages.items():
        tags = Tags(page.text).found
        ids = {attributes["id"] for _, attributes in tags if attributes.get("id")}
        named = [
            (attributes[name] or "").split() for _, attributes in tags for name in REFERENCES if name in attributes
        ]
        fragments = [
            [href[1:]]
            for _, attributes in tags
            if (href := attributes.get("href") or "").startswith("#") and len(href) > 1
        ]
        missing = {name for names in [*named, *fragments] for name in names} - ids
        assert missing == set(), address


def test_pages_have_what_readers_go_by(pages: Mapping[str, TestResponse]) -> None:
    for address, page in pages.items():
        tags = Tags(page.text).found
        counted = Counter(tag for tag, _ in tags)
        assert (counted["h1"], counted["main"]) == (1, 1), address
        assert page.text.partition("<body")[0].count("<title>") == 1, address
        levels = [int(tag[1]) for tag, _ in tags if tag in ("h1", "h2", "h3", "h4")]
        assert all(after <= before + 1 for before, after in pairwise(levels)), address
        for tag, attributes in tags:
            assert tag != "html" or attributes.get("lang") == "en"
            assert all(name.startswith("fw") for name in (attributes.get("class") or "").split()), address


def test_every_form_that_writes_has_its_token(pages: Mapping[str, TestResponse]) -> None:
    """But for that of the view, which changes a cookie alone."""
    for address, page in pages.items():
        fields: list[str | None] = []
        for tag, attributes in reversed(Tags(page.text).found):
            if tag == "input":
                fields.append(attributes.get("name"))
            elif tag == "form":
                if attributes.get("method") == "post" and not (attributes.get("action") or "").endswith("/view"):
                    assert "workflows_token" in fields, address
                fields = []
