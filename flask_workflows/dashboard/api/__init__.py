"""The JSON routes: what the pages show and do, for programs.

Each module lists its `ROUTES`, with what each takes and gives beside its view; requests are read by that, and the
OpenAPI document is made of it.
"""

from __future__ import annotations

from flask import Blueprint

from ..routes import Route
from . import about
from . import acts
from . import audit
from . import document
from . import events
from . import runs
from . import starting
from .outside import answer_in_json
from .outside import outside

PREFIX = "/api"

_KNOWN: tuple[Route, ...] = (*runs.ROUTES, *starting.ROUTES, *acts.ROUTES, *events.ROUTES, *audit.ROUTES, *about.ROUTES)
_DESCRIBED: tuple[Route, ...] = (*_KNOWN, document.described(_KNOWN))

ROUTES: tuple[Route, ...] = (*_DESCRIBED, *outside(_DESCRIBED))


def create_blueprint(import_name: str) -> Blueprint:
    """The blueprint the routes go on, in that of the pages."""
    blueprint = Blueprint("api", import_name, url_prefix=PREFIX)
    answer_in_json(blueprint)
    return blueprint
