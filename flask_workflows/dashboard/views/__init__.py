"""The pages' views: each reads a request, asks, and answers."""

from __future__ import annotations

from ..routes import Route
from ..visit import Link
from . import actions
from . import assets
from . import now
from . import registry
from . import run
from . import runs

#: In the order of the bar at the top.
LINKS = (Link("Now", ".index", "now"), Link("Runs", ".runs", "runs"), Link("Registry", ".registry", "registry"))

ROUTES: tuple[Route, ...] = (*assets.ROUTES, *now.ROUTES, *runs.ROUTES, *run.ROUTES, *actions.ROUTES, *registry.ROUTES)
