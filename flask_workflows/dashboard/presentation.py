"""How pages are marked up: their templates, their files, and the viewer's clock.

The templates have an environment of their own, so that nothing the app does to its Jinja (other delimiters, escaping
off, context processors) reaches them. A template of the same name in the app goes first.
"""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from datetime import tzinfo
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import jinja2
from flask import current_app
from flask import Request
from flask import request as current_request
from flask import url_for
from markupsafe import escape
from markupsafe import Markup
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from .. import paths
from .. import phrases
from ..explain import Form
from ..explain import Instant
from ..explain import Name
from ..explain import say
from ..explain import Text
from ..payloads import Hidden
from ..payloads import Shown
from .preferences import COOKIE
from .preferences import Preferences

FOLDER = "flask_workflows"

_FILES = ("icon.svg", "htmx.min.js", "workflows.css", "workflows.js")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whom a page is for: the zone and the instant that times are told in."""

    zone: tzinfo
    #: Null where a page tells no times.
    now: datetime | None
    wants: Preferences = field(default_factory=Preferences)

    @classmethod
    def of(cls, request: Request, now: datetime | None) -> Viewer:
        wants = Preferences.of(request.cookies.get(COOKIE, ""))
        return cls(_zone(wants.zone or wants.browser), now, wants)

    @property
    def millis(self) -> int:
        return 0 if self.now is None else int(self.now.timestamp() * 1000)

    @property
    def zone_name(self) -> str:
        return str(getattr(self.zone, "key", "UTC"))

    def time(self, at: datetime, form: Form = "at") -> Markup:
        """A time that the script lets tick; its title says it exactly."""
        words = say(at, form, now=self.now or at, zone=self.zone)
        exact = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        machine = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        ticks = Markup("") if form == "at" else Markup(' data-tick="{}"').format(form)
        return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(machine, exact, ticks, words)

    def clock(self, at: datetime) -> str:
        """The same as plain text, for where no element may stand."""
        return say(at, "at", now=self.now or at, zone=self.zone)

    def text(self, text: Text) -> Markup:
        """Parts of a text, marked up."""
        return Markup("").join(self._part(part) for part in text)

    def _part(self, part: str | Name | Instant) -> Markup:
        match part:
            case Name(text):
                return Markup('<code class="fw-name" translate="no" dir="auto">{}</code>').format(text)
            case Instant(at, form):
                return self.time(at, form)
            case _:
                return escape(part)

    def value(self, shown: Shown) -> Markup:
        """The pieces of a stored value."""
        return Markup("").join(
            Markup('<span class="fw-hidden">{}</span>').format(str(part)) if isinstance(part, Hidden) else escape(part)
            for part in shown.parts
        )


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        # An invented name, or a system without the list of zones.
        return UTC


class Presentation:
    """The templates."""

    def __init__(self) -> None:
        ours = jinja2.FileSystemLoader(paths.TEMPLATES)
        self._ours = ours
        self._environment = jinja2.Environment(
            loader=ours, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._environment.filters.update(
            number=phrases.number,
            count=lambda value: phrases.count(value.value, capped=value.capped),
            several=phrases.several,
        )

    def put_before(self, loader: jinja2.BaseLoader | None) -> None:
        """Let the app's own templates go before ours."""
        if loader is not None:
            self._environment.loader = jinja2.ChoiceLoader([loader, self._ours])

    def render(self, template: str, viewer: Viewer, **values: Any) -> str:
        text = self._environment.get_template(f"{FOLDER}/{template}").render(
            viewer=viewer, url_for=url_for, app_name=_app_name(), app_url=_app_url(), nonce=_nonce(), **values
        )
        # Half of a surrogate pair may stand in a stored text, and is no text in UTF-8.
        return text.encode("utf-8", "backslashreplace").decode()


def _nonce() -> str:
    """What the app's policy lets its own scripts and styles by, where it has one; as Flask-Talisman tells templates."""
    told = current_app.jinja_env.globals.get("csp_nonce")
    return str(told()) if callable(told) else ""


def _app_name() -> str:
    return current_app.name.rpartition(".")[2]


def _app_url() -> str | None:
    """Where the app begins; null where that is the dashboard itself, or nothing is."""
    root = f"{current_request.script_root}/"
    adapter = current_app.create_url_adapter(current_request)
    return root if url_for(".index") != root and adapter is not None and adapter.test("/", "GET") else None


class Assets:
    """Our files, under an address that changes with what is in them."""

    def __init__(self) -> None:
        self._contents = {name: (paths.STATIC / name).read_bytes() for name in _FILES}
        self._versions = {
            name: hashlib.blake2b(content, digest_size=6).hexdigest() for name, content in self._contents.items()
        }

    def url(self, name: str) -> str:
        return url_for(".asset", version=self._versions[name], file=name)

    def response(self, version: str, name: str) -> Response:
        content = self._contents.get(name)
        if content is None:
            raise NotFound
        response = Response(content, mimetype=mimetypes.guess_type(name)[0])
        # A page of another release may ask: it gets ours, and shall not keep it.
        kept = "public, max-age=31536000, immutable" if version == self._versions[name] else "no-cache"
        response.headers["Cache-Control"] = kept
        return response
