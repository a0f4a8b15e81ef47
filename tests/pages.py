"""What tests see of a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from flask_workflows.dashboard.routes import Route


def text_of(response: TestResponse) -> str:
    """What a reader sees, blanks made single."""
    body = re.sub(r"(?s)<(script|style|title|svg)\b.*?</\1>", " ", response.text)
    parser = _Text()
    parser.feed(body)
    return " ".join("".join(parser.parts).split())


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("td", "th", "dd", "dt", "p", "h1", "h2", "a", "li", "div", "header", "span"):
            self.parts.append(" ")


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def links(response: TestResponse) -> list[str]:
    """Every address in a page."""
    return [
        value
        for _, attributes in Tags(response.text).found
        for name in ("href", "src", "action", "hx-get", "data-root")
        if (value := attributes.get(name)) and not value.startswith(("#", "data:"))
    ]


def route_of(app: Flask, endpoint: str) -> Route:
    route = getattr(app.view_functions[endpoint], "route", None)
    assert isinstance(route, Route)
    return route


def seen_by(response: TestResponse) -> str:
    """The token of the live part."""
    found = re.search(r'"X-Workflows-Seen":"([0-9a-f]+)"', response.text)
    assert found is not None
    return found[1]


def polled(client: FlaskClient, response: TestResponse) -> TestResponse:
    """Ask again as the page's script does."""
    (address,) = [attributes["hx-get"] for _, attributes in Tags(response.text).found if "hx-get" in attributes]
    assert address is not None
    return client.get(address, headers={"HX-Request": "true", "X-Workflows-Seen": seen_by(response)})


# Access ------------------------------------------------------------------------------------
