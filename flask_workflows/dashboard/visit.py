"""One request, as the views have it: who asks, what they may see, and how they are answered."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from datetime import datetime
from functools import cached_property
from typing import Any
from typing import TypeVar
from urllib.parse import urlencode

import sqlalchemy as sa
from flask import make_response
from flask import redirect
from flask import request
from flask import url_for
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Response

from ..audit import By
from ..errors import DatabaseUnreachable
from ..errors import SchemaError
from ..explain import Surroundings
from ..runs import Count
from ..runs import Run
from ..runs import Worker
from ..runtime import current_runtime
from ..runtime import Runtime
from ..store import reading as read
from . import access
from . import csrf
from . import status
from .access import Permission
from .answers import problem
from .bar import bar_of
from .health import Health
from .preferences import CHOICES
from .preferences import letters
from .presentation import Assets
from .presentation import Presentation
from .presentation import Viewer
from .timings import Timings

T = TypeVar("T")

#: How long one look into the database may take.
SECONDS = 2.0

UNREACHABLE = "The database does not answer."

SEEN_HEADER = "X-Workflows-Seen"


def token(values: object) -> str:
    """A short text that is the same as long as the values are."""
    return hashlib.blake2b(repr(values).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Link:
    """A page in the bar at the top."""

    label: str
    endpoint: str
    section: str
    permission: Permission = Permission.VIEW
    #: What a number beside it is of.
    counted: str = ""
    #: Whether the app has any use for it; null for yes. The page is there either way.
    when: Callable[[Runtime], bool] | None = None


class Kept:
    """Answers that were slow to come by, kept for a while: a watched page asks again and again."""

    slow_after = 0.1
    keep = 10.0
    most = 100

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[float, Any]] = {}

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` answers, or answered lately where that took long. The key names the viewer's scope too."""
        until, value = self._kept.get(key, (0.0, None))
        began = time.monotonic()
        if began < until:
            return value  # type: ignore[no-any-return]
        made = make()
        ended = time.monotonic()
        if ended - began > self.slow_after:
            if len(self._kept) >= self.most:
                self._kept.clear()
            self._kept[key] = (ended + self.keep, made)
        return made


@dataclass(frozen=True)
class Site:
    """What the requests to one blueprint have in common."""

    links: tuple[Link, ...]
    presentation: Presentation = field(default_factory=Presentation)
    assets: Assets = field(default_factory=Assets)
    kept: Kept = field(default_factory=Kept)
    timings: Timings = field(default_factory=Timings)
    health: Health = field(default_factory=Health)


class Visit:
    """A request to one of the pages, or to a JSON route where `api`."""

    def __init__(self, site: Site, *, api: bool = False) -> None:
        self.site = site
        self.api = api
        self.request = request
        self.runtime: Runtime = current_runtime()
        self._decided: dict[tuple[Permission, str | None], bool | Response] = {}

    # Who asks ------------------------------------------------------------------------------------

    @cached_property
    def actor(self) -> str:
        """Who the visitor is, for the audit; empty if nobody knows."""
        return access.actor_of(self.runtime.hooks.actor)

    @cached_property
    def scope(self) -> tuple[str, ...] | None:
        """The workspaces the visitor may see; null for all."""
        return access.workspaces(self.runtime.hooks.scope)

    @property
    def read_only(self) -> bool:
        return self.runtime.config.dashboard_read_only

    def may(self, permission: Permission, run: Run | None = None) -> bool:
        """Whether the visitor may do this, for what a page shows. What is done is checked by `refusal`."""
        if self.read_only and not permission.looks:
            return False
        return self._decide(permission, run) is True

    def _decide(self, permission: Permission, run: Run | None) -> bool | Response:
        """What the app says, asked once for each permission and run."""
        asked = (permission, None if run is None else run.id)
        if asked not in self._decided:
            self._decided[asked] = access.decide(self.runtime.hooks.authorize, permission, run, self.request)
        return self._decided[asked]

    def sees(self, workspace: str) -> bool:
        """Whether a workspace lies in the visitor's scope."""
        return self.scope is None or workspace in self.scope

    def confine(self, workspace: str) -> bool:
        """Limit what is seen to one workspace; false where it lies outside the visitor's scope."""
        if not self.sees(workspace):
            return False
        self.scope = (workspace,)
        return True

    def refusal(self, permission: Permission, run: Run | None = None) -> ResponseReturnValue | None:
        """What to answer a visitor who may not do this; null for one who may."""
        answer = self._decide(permission, run)
        if isinstance(answer, Response):
            return answer
        if not answer:
            if run is not None and permission.looks:
                # Whoever may not see a run is not to learn that there is one.
                return self.no_run(run.id)
            if self.runtime.hooks.authorize is None:
                words = "Nobody may do anything here until the app passes authorize to Workflows."
                return self.message("closed.html", 403, code="closed", words=words)
            words = f"The app does not allow you to {permission.value.replace('_', ' ')}."
            return self.message("forbidden.html", 403, code="forbidden", words=words)
        if self.read_only and not permission.looks:
            words = "Nothing can be changed here: WORKFLOWS_DASHBOARD_READ_ONLY is set."
            return self.message("read_only.html", 403, code="read_only", words=words)
        return None

    def forged(self, *, token: bool = True) -> ResponseReturnValue | None:
        """What to answer where the request may be another site's doing; null otherwise."""
        if not self.api:
            self._take_payloads()
        try:
            problem = csrf.problem(self.request, self.actor, api=self.api, token=token)
        except RequestEntityTooLarge:
            words = "What was sent is larger than this app takes in a form. Nothing was done."
            return self.message("too_large.html", 413, code="too_large", words=words)
        return None if problem is None else self.message("forged.html", 400, code="forged", words=problem)

    def _take_payloads(self) -> None:
        """Let a form hold the largest payload there may be, each of its bytes written with three letters, and no more."""
        most = 3 * self.runtime.config.max_payload_bytes + 100_000
        if self.request.max_form_memory_size is not None:
            self.request.max_form_memory_size = max(self.request.max_form_memory_size, most)
        self.request.max_content_length = min(self.request.max_content_length or most, most)

    @property
    def by(self) -> By:
        """Who acts, and the reason given in the form, for the audit."""
        given = (self.request.get_json(silent=True) if self.request.is_json else None) or self.request.form
        reason = given.get("reason", "") if hasattr(given, "get") else ""
        return By(
            self.actor,
            reason=str(reason)[:1_000],
            request_id=self.request.headers.get("X-Request-ID", "")[:100] or None,
            address=self.request.remote_addr if self.runtime.config.audit_address else None,
        )

    @property
    def here(self) -> str:
        """The address of this page, to come back to; that of the first page where this one is not to be asked for."""
        endpoint = self.request.endpoint
        if self.request.method not in ("GET", "HEAD") or endpoint is None:
            return url_for(".index")
        # Not by keywords: some names mean something else to `url_for`.
        query = urlencode(list(self.request.args.items(multi=True)))
        return url_for(endpoint, **(self.request.view_args or {})) + (f"?{query}" if query else "")

    # Reading -------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection whose statements may take `SECONDS`. Raises `ReadTimeout`."""
        with self.site.timings.measured(), read.reading(self.runtime.engine, seconds=SECONDS) as connection:
            yield connection

    def now(self, connection: sa.Connection) -> datetime:
        """The instant that stored ones compare with."""
        millis = self.runtime.store.clock()
        return read.database_now(connection) if millis is None else read.instant(millis)

    @property
    def real_time(self) -> bool:
        """Whether ids say when their runs were created."""
        return self.runtime.store.clock() is None

    def surroundings(
        self, now: datetime, workers: tuple[Worker, ...], ahead: Count | None = None, run: Run | None = None
    ) -> Surroundings:
        """What is known beside the runs, or beside one."""
        runtime = self.runtime
        return Surroundings(
            now=now,
            workers=workers,
            known=runtime.registry.known(),
            keep_days=runtime.config.prune_after_days,
            ahead=ahead,
            tries=runtime.registry.tries(runtime.config.step_attempts),
            payloads=self.may(Permission.VIEW_PAYLOAD, run),
        )

    # Answering -----------------------------------------------------------------------------------

    def page(
        self,
        name: str,
        now: datetime,
        values: object,
        *,
        section: str = "",
        poll: Mapping[str, Any] | None = None,
        interval: int = 10,
        status_code: int = 200,
        **more: Any,
    ) -> ResponseReturnValue:
        """The page `<name>.html`, or its live part `_<name>.html` alone where htmx asks for that.

        `values` is what the live part shows, as `page` in the templates: unchanged, a look at it is answered 204.
        `poll` is the query string that such a look is made with; `interval` the seconds between two.
        """
        partial = self.request.headers.get("HX-Request") == "true"
        bar = bar_of(self, now, counts=not partial)
        seen = token((values, poll, bar.notice))
        if self.request.headers.get(SEEN_HEADER) == seen:
            return "", 204
        # A part of a page has no place for the line; the next whole page says it.
        line = "" if partial else status.read(self.request)
        text = self._render(
            f"_{name}.html" if partial else f"{name}.html",
            now,
            page=values,
            section=section,
            poll=dict(poll or {}),
            interval=interval,
            seen=seen,
            live=self.request.args.get("live") != "0",
            partial=partial,
            status=line,
            bar=bar,
            **more,
        )
        if partial:
            # Stands outside the part that is swapped.
            text += self._render("_notice.html", now, bar=bar, partial=True)
        response = make_response(text, status_code)
        if line:
            status.clear(response)
        return response

    def message(self, template: str, status_code: int, *, code: str, words: str, **values: Any) -> ResponseReturnValue:
        """A page that says one thing; on a JSON route its code and words alone."""
        if self.api:
            return problem(code, words, status_code)
        bar = bar_of(self, None)
        text = self._render(template, None, section="", status="", words=words, bar=bar, partial=False, **values)
        return text, status_code

    def done(self, text: str, endpoint: str, **values: Any) -> ResponseReturnValue:
        """After an action: lead to a page (303), which says this once."""
        response = redirect(url_for(endpoint, **values), code=303)
        status.put(response, text)
        return response

    def no_run(self, run_id: str) -> ResponseReturnValue:
        days = self.runtime.config.prune_after_days
        words = f"There is no run {run_id[:200]}: it was never committed, or was pruned."
        return self.message("no_run.html", 404, code="workflow_run_not_found", words=words, run_id=run_id, days=days)

    def database_failed(self, error: sa.exc.DBAPIError) -> ResponseReturnValue:
        """Say what is missing where the tables are not what they should be; anything else is the app's to handle."""
        words = self.schema_problem()
        if words is not None:
            if words == UNREACHABLE:
                return self.message("unreachable.html", 503, code="unreachable", words=words)
            return self.message("schema.html", 503, code="schema", words=words)
        raise error

    def action_failed(self, error: Exception) -> ResponseReturnValue:
        """Say so where the database is locked or went away in an action; anything else is the app's to handle."""
        store = self.runtime.store
        if not store.dialect.is_transient(error):
            raise error
        # It may have been done, and the answer be lost.
        store.complain("an action on the pages failed", error)
        words = "The database did not answer. Look whether it was done, then try again."
        return self.message("unreachable.html", 503, code="unreachable", words=words)

    def schema_problem(self) -> str | None:
        """What is wrong with the tables, in words; null where nothing is."""
        try:
            self.runtime.check_schema()
        except DatabaseUnreachable:
            # Where the database is, is none of the page's business, and drivers say it.
            return UNREACHABLE
        except SchemaError as error:
            return self.without_address(error)
        return None

    def without_address(self, error: SchemaError) -> str:
        """What is wrong with the tables. Where the database is, is none of the visitor's business."""
        return str(error).replace(f"the database {self.runtime.engine.url!s}", "the database")

    def _links(self) -> tuple[Link, ...]:
        return tuple(link for link in self.site.links if link.when is None or link.when(self.runtime))

    def _render(self, template: str, now: datetime | None, **values: Any) -> str:
        env_name = self.runtime.config.env_name
        return self.site.presentation.render(
            template,
            Viewer.of(self.request, now),
            assets=self.site.assets,
            links=self._links() if self.may(Permission.VIEW) else (),
            may=lambda permission, run=None: self.may(Permission(permission), run),
            token=lambda: csrf.token(self.actor),
            token_field=csrf.FIELD,
            can_act=csrf.can_act(),
            read_only=self.read_only,
            env_name=env_name,
            title_prefix=f"{env_name} · " if env_name else "",
            here=self.here,
            again=self.request.method == "GET",
            go=letters(link.section for link in self.site.links),
            choices=CHOICES,
            **values,
        )
