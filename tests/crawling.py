"""Every page that links lead to."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterable
from urllib.parse import parse_qsl
from urllib.parse import urlsplit

from werkzeug.test import TestResponse

from tests.pages import Tags

Get = Callable[[str], TestResponse]

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+")


def shape_of(address: str) -> str:
    """What an address shows, so that a hundred runs or filters of one kind count as one."""
    parts = urlsplit(address)
    return _ID.sub("…", parts.path) + "?" + max((name for name, _ in parse_qsl(parts.query)), default="")


def crawl(get: Get, starts: Iterable[str]) -> dict[str, TestResponse]:
    """Go to each of the addresses, and on by links and redirects to one of each shape; answers what was got there."""
    found: dict[str, TestResponse] = {}
    named = list(starts)
    waiting = list(named)
    known: set[str] = set()
    while waiting:
        address = waiting.pop(0)
        shape = address if address in named else shape_of(address)
        if shape in known:
            continue
        known.add(shape)
        response = found[address] = get(address)
        waiting += leads_to(response)
    return found


def leads_to(response: TestResponse) -> list[str]:
    """Where one can go from a page; its forms that write are not among it."""
    if response.location:
        return [response.location]
    if response.mimetype != "text/html":
        return []
    found = []
    for tag, attributes in Tags(response.text).found:
        writes = tag == "form" and attributes.get("method") == "post"
        names = ("href", "src", "hx-get") if writes else ("href", "src", "hx-get", "action")
        found += [value for name in names if (value := attributes.get(name)) and not value.startswith(("#", "data:"))]
    return [address.partition("#")[0] for address in found]
