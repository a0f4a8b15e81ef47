"""An app served to a browser, and what the browser sees of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from typing import Literal

import pytest
from flask import Flask
from playwright.sync_api import Browser
from playwright.sync_api import BrowserContext
from playwright.sync_api import ConsoleMessage
from playwright.sync_api import Page
from playwright.sync_api import Request
from playwright.sync_api import Response
from werkzeug.serving import make_server
from werkzeug.serving import WSGIRequestHandler

Scheme = Literal["light", "dark"]
Size = tuple[int, int]

#: For tests whose answer could depend on the database.
ON_BOTH = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)

WIDE = (1280, 900)
PHONE = (390, 844)

#: The rules of WCAG 2.0 to 2.2, levels A and AA, and those of good practice.
AXE_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice")

_TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error("Content-Security-Policy, " + event.violatedDirective + ": " + event.blockedURI + event.sample);
});
"""

_RUN_AXE = """async (only) => {
  const results = await axe.run(document, { runOnly: only, resultTypes: ["violations"] });
  return results.violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => id + " (" + help + "): " + node.target.join(" ") + "\\n  " + node.html.slice(0, 200)));
}"""

# The browser says in the console what the answers said already.
_ANSWERS = "Failed to load resource: the server responded with a status of"


class _Handler(WSGIRequestHandler):
    """Says nothing on the terminal."""

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@contextmanager
def served(app: Callable[..., Any]) -> Iterator[str]:
    """Serve a WSGI app on a free port of this machine; gives its origin."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Site:
    """An app and the origin it is served at."""

    app: Flask
    origin: str


@dataclass
class Tab:
    """A page of the browser; `faults` is what must not have happened on it."""

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error in the script: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", self._response)
        self.page.on("dialog", self._dialog)

    def go(self, address: str, status: int = 200) -> Page:
        """Load an address under the origin, which must answer with this status."""
        response = self.page.goto(self.origin + address)
        assert response is not None
        assert response.status == status, f"{address} was answered {response.status}"
        return self.page

    def violations(self, *rules: str) -> list[str]:
        """What axe-core finds wrong with the page as it stands, by these rules or by all."""
        self.page.evaluate(_axe_script())
        only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": AXE_TAGS}
        found: list[str] = self.page.evaluate(_RUN_AXE, only)
        return found

    def all_faults(self, *, again: bool = False) -> list[str]:
        """What is wrong with the page: by the rules of accessibility, the policy, ours; each way it can be seen.

        Where `again` says that a page of its kind was looked at, it is held on a phone against what depends on sizes.
        """
        found = self.violations()
        self.show(scheme="dark")
        # The same page in other colours.
        found += [f"in the dark: {fault}" for fault in self.violations("color-contrast", "link-in-text-block")]
        self.show(size=PHONE)
        rules = ("target-size", "scrollable-region-focusable", "aria-hidden-focus") if again else ()
        found += [f"on a phone: {fault}" for fault in self.violations(*rules)]
        if beyond := self.sideways():
            found.append(f"on a phone it scrolls sideways by {beyond} px")
        self.show()
        if beyond := self.sideways():
            found.append(f"it scrolls sideways by {beyond} px")
        return found + self.faults

    def show(self, *, scheme: Scheme = "light", size: Size = WIDE) -> None:
        """Let the same page be seen another way."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size({"width": size[0], "height": size[1]})

    def sideways(self) -> int:
        """By how many pixels the page as a whole can be scrolled sideways."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return found

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_ANSWERS):
            self.faults.append(f"in the console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:")):
            self.faults.append(f"asked another origin: {request.url}")

    def _response(self, response: Response) -> None:
        if response.request.resource_type in ("script", "stylesheet", "image", "font") and not response.ok:
            self.faults.append(f"{response.status} for {response.url}")

    def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"opened a dialogue: {dialog.message}")
        dialog.dismiss()


_axe: list[str] = []


def _axe_script() -> str:
    # Evaluated through the debugger, which the page's policy does not bind. The package is read, not imported.
    if not _axe:
        spec = find_spec("axe_playwright_python")
        assert spec is not None
        assert spec.origin is not None
        _axe.append(Path(spec.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
    return _axe[0]


@dataclass
class Visitors:
    """Opens tabs, each in a context of its own: no cookies, nothing kept."""

    browser: Browser
    contexts: list[BrowserContext] = field(default_factory=list)
    tabs: list[Tab] = field(default_factory=list)

    def tab(
        self,
        site: Site,
        *,
        scheme: Scheme = "light",
        size: Size = WIDE,
        javascript: bool = True,
        zone: str = "UTC",
        **options: Any,
    ) -> Tab:
        context = self.browser.new_context(
            color_scheme=scheme,
            viewport={"width": size[0], "height": size[1]},
            java_script_enabled=javascript,
            timezone_id=zone,
            locale="en-GB",
            **options,
        )
        context.set_default_timeout(15_000)
        context.add_init_script(_TELL_VIOLATIONS)
        self.contexts.append(context)
        tab = Tab(context.new_page(), site.origin)
        self.tabs.append(tab)
        return tab

    def close(self) -> None:
        for context in self.contexts:
            context.close()

    @property
    def faults(self) -> list[str]:
        return [fault for tab in self.tabs for fault in tab.faults]
