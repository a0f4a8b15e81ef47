"""The blueprint: every view behind its permission, its origin check, and the headers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any

import sqlalchemy as sa
from flask import Blueprint
from flask import Flask
from flask import request_started
from flask.sansio.app import App
from flask.typing import ResponseReturnValue
from werkzeug.wrappers import Response

from ..config import WorkflowsConfig
from ..errors import ReadTimeout
from . import api
from . import views
from .routes import Route
from .routes import View
from .visit import Site
from .visit import Visit

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex",
}


def create_blueprint(
    config: WorkflowsConfig, *, name: str = "flask_workflows", host: str | None = None, subdomain: str | None = None
) -> Blueprint:
    """The pages and the JSON routes, to be registered on the app once."""
    prefix = None if config.url_prefix == "/" else config.url_prefix
    blueprint = Blueprint(name, __name__, url_prefix=prefix, subdomain=subdomain)
    site = Site(views.LINKS)
    blueprint.record(lambda state: site.presentation.put_before(state.app.jinja_loader))
    blueprint.record(lambda state: _exempt_later(state.app))
    _add_routes(blueprint, site, views.FOR_MACHINES, host)
    if config.dashboard:
        _add_routes(blueprint, site, views.ROUTES, host)
    if config.api:
        nested = api.create_blueprint(__name__)
        _add_routes(nested, site, api.ROUTES, host)
        blueprint.register_blueprint(nested)
    blueprint.after_request(_with_headers)
    return blueprint


def _add_routes(blueprint: Blueprint, site: Site, routes: Iterable[Route], host: str | None) -> None:
    for route in routes:
        blueprint.add_url_rule(
            route.rule,
            route.endpoint,
            _guarded(site, route),
            methods=route.methods,
            strict_slashes=False,
            # The JSON routes answer OPTIONS themselves; where null, Flask does.
            provide_automatic_options=False if route.api else None,
            host=host,
        )


def _guarded(site: Site, route: Route) -> View:
    """The view behind its permission."""

    @wraps(route.view)
    def guarded(**values: Any) -> ResponseReturnValue:
        visit = Visit(site, api=route.api)
        try:
            return _checked(visit, route) or route.view(visit, **values)
        except ReadTimeout as error:
            return visit.message("slow.html", 503, code="slow", words=str(error))
        except sa.exc.DBAPIError as error:
            return visit.database_failed(error)
        except Exception as error:
            return visit.action_failed(error)

    guarded.route = route  # type: ignore[attr-defined]
    return guarded


def _checked(visit: Visit, route: Route) -> ResponseReturnValue | None:
    """What to answer instead; null where the view may be called."""
    refusal = None if route.permission is None else visit.refusal(route.permission)
    if refusal is None and route.writes:
        refusal = visit.forged(token=route.token)
    return refusal


def _exempt_later(app: App) -> None:
    def before_first_request(sender: Flask, **_: Any) -> None:
        # By now the app is complete, whatever was initialised after this.
        request_started.disconnect(before_first_request, app)
        exempt_from_csrf_protect(sender)

    request_started.connect(before_first_request, app, weak=False)


def exempt_from_csrf_protect(app: Flask) -> None:
    """Take these views out of Flask-WTF's check, where the app has it: they are checked here, bearer tokens too."""
    protect = app.extensions.get("csrf")
    if protect is not None:
        for view in app.view_functions.values():
            if isinstance(getattr(view, "route", None), Route):
                protect.exempt(view)


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
