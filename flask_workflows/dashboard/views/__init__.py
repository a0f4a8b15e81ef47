"""The pages' views: each reads a request, asks, and answers."""

from __future__ import annotations

from ..access import Permission
from ..routes import Route
from ..visit import Link
from . import actions
from . import assets
from . import audit
from . import bulk
from . import deliver
from . import events
from . import failures
from . import health
from . import now
from . import preferences
from . import queues
from . import registry
from . import run
from . import runs
from . import start
from . import step
from . import system
from . import waits
from . import workers

#: In the order of the bar at the top.
LINKS = (
    Link("Now", ".index", "now"),
    Link("Runs", ".runs", "runs"),
    Link("Failures", ".failures", "failures", counted="Causes of failures in the last 24 hours"),
    Link("Waits", ".waits", "waits", counted="Overdue timers and time-outs"),
    Link("Events", ".events", "events"),
    Link("Queues", ".queues", "queues", when=queues.has_queues),
    Link("Workers", ".workers", "workers"),
    Link("Registry", ".registry", "registry"),
    Link("Audit", ".audit", "audit", Permission.VIEW_AUDIT),
    Link("System", ".system", "system", Permission.VIEW_SYSTEM),
)

ROUTES: tuple[Route, ...] = (
    *assets.ROUTES,
    *preferences.ROUTES,
    *now.ROUTES,
    *failures.ROUTES,
    *runs.ROUTES,
    *run.ROUTES,
    *step.ROUTES,
    *actions.ROUTES,
    *bulk.ROUTES,
    *waits.ROUTES,
    *events.ROUTES,
    *deliver.ROUTES,
    *queues.ROUTES,
    *workers.ROUTES,
    *start.ROUTES,
    *registry.ROUTES,
    *audit.ROUTES,
    *system.ROUTES,
)

#: There whether the pages or the JSON routes are left out.
FOR_MACHINES: tuple[Route, ...] = health.ROUTES
